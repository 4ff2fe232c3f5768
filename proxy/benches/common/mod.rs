//! Messages over any network, as benches send them.

use std::sync::Arc;
use std::time::Instant;
use std::{hint, thread};

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::{MemoryKind, Net, RecvBuffer, RecvComm, Request, SendComm};

/// The two ends of a connection.
pub(crate) type Ends = (Box<dyn SendComm>, Box<dyn RecvComm>);

/// A connection from a device to itself, or what the network makes of that.
pub(crate) fn connect(net: &Arc<dyn Net>) -> Result<Ends, NetError> {
    let mut listener = net.listen(0)?;
    let mut connecting = net.connect(0, listener.handle())?;
    let (mut send, mut recv) = (None, None);
    loop {
        send = if send.is_none() { connecting.poll()? } else { send };
        recv = if recv.is_none() { listener.accept()? } else { recv };
        if let (Some(_), Some(_)) = (&send, &recv)
            && let (Some(send), Some(recv)) = (send.take(), recv.take())
        {
            return Ok((send, recv));
        }
    }
}

/// Waits as a proxy thread does that has something to do.
fn idle() {
    thread::yield_now();
}

/// Sends so many messages, as many under way at a time. When the first has begun: then the receiver is ready, too.
pub(crate) fn send_all(
    comm: &mut dyn SendComm,
    size: usize,
    count: usize,
    most: usize,
) -> Result<Instant, NetError> {
    let mut data = vec![1u8; size];
    // SAFETY: the bytes outlive the connection's use of them: all requests are done below.
    let memory = unsafe { comm.register(data.as_mut_ptr(), size, MemoryKind::Host)? };
    let mut under_way = std::collections::VecDeque::new();
    let (mut left, mut since) = (count, None);
    while left > 0 || !under_way.is_empty() {
        if left > 0 && under_way.len() < most {
            // SAFETY: as above; nobody writes there.
            if let Some(request) = unsafe { comm.isend(data.as_ptr(), size, 0, memory)? } {
                since.get_or_insert_with(Instant::now);
                under_way.push_back(request);
                left -= 1;
            }
        }
        match under_way.front() {
            Some(&front) if left == 0 || under_way.len() == most => {
                if comm.test(front)? {
                    under_way.pop_front();
                } else {
                    idle();
                }
            }
            _ => {}
        }
    }
    Ok(since.unwrap_or_else(Instant::now))
}

/// Receives them.
pub(crate) fn recv_all(
    comm: &mut dyn RecvComm,
    size: usize,
    count: usize,
    most: usize,
) -> Result<(), NetError> {
    let mut data = vec![vec![0u8; size]; most];
    let mut buffers = Vec::new();
    for data in &mut data {
        let address = data.as_mut_ptr();
        // SAFETY: as in `send_all`.
        let memory = unsafe { comm.register(address, size, MemoryKind::Host)? };
        buffers.push(RecvBuffer { address, bytes: size, tag: 0, memory });
    }
    let mut requests: Vec<Option<Request>> = vec![None; most];
    let mut given = 0;
    for done in 0..count {
        while given < count && given < done + most {
            // SAFETY: as above; each buffer is given once at a time.
            requests[given % most] = unsafe { comm.irecv(&[buffers[given % most]])? };
            given += 1;
        }
        if let Some(request) = requests[done % most] {
            while !comm.test(request, &mut [0])? {
                idle();
            }
        }
    }
    Ok(())
}

/// Buffers that are named before their messages come: the slots of a connection.
const AHEAD: u32 = 8;

/// Microseconds of half a round trip. Both ends ask all the time, and do `idle` in between; each has named the buffers
/// of the next messages, as a proxy has for the slots that are free.
pub(crate) fn latency(
    (there, back): (&Arc<dyn Net>, &Arc<dyn Net>),
    size: usize,
    rounds: u32,
    idle: fn(),
) -> Result<f64, NetError> {
    let ((mut there_out, mut there_in), (mut back_out, mut back_in)) =
        (connect(there)?, connect(back)?);
    let other =
        thread::spawn(move || turns(&mut *back_out, &mut *there_in, size, false, rounds, idle));
    let since = Instant::now();
    turns(&mut *there_out, &mut *back_in, size, true, rounds, idle)?;
    let time = since.elapsed();
    other.join().expect("the other end")?;
    Ok(time.as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
}

/// One end's part of that.
fn turns(
    send: &mut dyn SendComm,
    recv: &mut dyn RecvComm,
    size: usize,
    first: bool,
    rounds: u32,
    idle: fn(),
) -> Result<(), NetError> {
    let (mut from, mut to) = (vec![0u8; size], vec![vec![0u8; size]; AHEAD as usize]);
    // SAFETY: as in `send_all`.
    let ours = unsafe { send.register(from.as_mut_ptr(), size, MemoryKind::Host)? };
    let mut buffers = Vec::new();
    for to in &mut to {
        let address = to.as_mut_ptr();
        // SAFETY: the same.
        let memory = unsafe { recv.register(address, size, MemoryKind::Host)? };
        buffers.push(RecvBuffer { address, bytes: size, tag: 0, memory });
    }
    // SAFETY: as in `send_all`; a buffer is given again when it has been filled.
    let next = |recv: &mut dyn RecvComm, n: u32| unsafe {
        recv.irecv(&[buffers[n as usize % buffers.len()]])
    };
    let mut given = std::collections::VecDeque::new();
    for n in 0..AHEAD.min(rounds) {
        given.push_back(next(recv, n)?);
    }
    for round in 0..rounds {
        let mut receive = |recv: &mut dyn RecvComm| {
            let arrives = given.pop_front().flatten();
            while !arrives.map_or(Ok(true), |request| recv.test(request, &mut [0]))? {
                idle();
            }
            if round + AHEAD < rounds {
                given.push_back(next(recv, round + AHEAD)?);
            }
            Ok::<_, NetError>(())
        };
        if !first {
            receive(recv)?;
        }
        let request = loop {
            // SAFETY: as in `send_all`.
            match unsafe { send.isend(from.as_ptr(), size, 0, ours)? } {
                Some(request) => break request,
                None => hint::spin_loop(),
            }
        };
        if first {
            receive(recv)?;
        }
        while !send.test(request)? {
            idle();
        }
    }
    Ok(())
}

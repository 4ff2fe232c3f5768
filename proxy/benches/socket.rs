//! The socket network over loopback, against plain blocking sockets with as many streams, which is what iperf3 does.
//!
//! ```text
//! cargo bench -p ferroccl-proxy --bench socket
//! ```
//!
//! Bandwidth: messages of one size one after the other, 8 under way. Latency: half a round trip of a message, with both ends
//! asking all the time. The processor's time a gigabyte, of both ends and the system together, tells more on a machine that
//! does other things besides; a thread that asks all the time uses some to wait, too.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{hint, thread};

use common::{connect, recv_all, send_all};
use ferroccl_proxy::NetError;
use ferroccl_proxy::net::Net;
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};

const UNDER_WAY: usize = 8;
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn net(threads: usize, sockets: usize) -> Result<Arc<dyn Net>, NetError> {
    Ok(Arc::new(SocketNet::new(SocketConfig {
        interfaces: vec![SocketInterface { name: "lo".to_owned(), address: LOOPBACK, scope_id: 0 }],
        threads: Some(threads),
        sockets_per_thread: Some(sockets),
        secret: [1; 32],
        connect_timeout: Duration::from_secs(10),
    })?))
}

/// A figure, and the seconds of the processor a gigabyte that it took.
type Figure = (f64, f64);

/// Seconds that the processor has worked for this process.
fn processor() -> f64 {
    // SAFETY: all zeros is a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it is written there.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Gigabytes a second.
fn rate(bytes: usize, since: Instant, worked: f64) -> Figure {
    let gigabytes = bytes as f64 / 1e9;
    (gigabytes / since.elapsed().as_secs_f64(), (processor() - worked) / gigabytes)
}

fn bandwidth(
    threads: usize,
    sockets: usize,
    size: usize,
    total: usize,
) -> Result<Figure, NetError> {
    let count = (total / size.max(1)).clamp(16, 400_000);
    let (mut send, mut recv) = connect(&net(threads, sockets)?)?;
    let receiver = thread::spawn(move || recv_all(&mut *recv, size, count, UNDER_WAY));
    let (since, worked) = (Instant::now(), processor());
    send_all(&mut *send, size, count, UNDER_WAY)?;
    receiver.join().expect("the receiver")?;
    Ok(rate(size * count, since, worked))
}

/// The same of plain sockets, one thread a stream and end.
fn plain(streams: usize, total: usize) -> std::io::Result<Figure> {
    let listener = TcpListener::bind((LOOPBACK, 0))?;
    let mut ends = Vec::new();
    for _ in 0..streams {
        let out = TcpStream::connect(listener.local_addr()?)?;
        ends.push((out, listener.accept()?.0));
    }
    let part = total / streams;
    let (since, worked) = (Instant::now(), processor());
    let threads: Vec<_> = ends
        .into_iter()
        .flat_map(|(mut out, mut inp)| {
            let write = thread::spawn(move || -> std::io::Result<()> {
                let data = vec![1u8; 128 << 10]; // iperf3's length of TCP writes
                (0..part / data.len()).try_for_each(|_| out.write_all(&data))
            });
            let read = thread::spawn(move || -> std::io::Result<()> {
                let mut data = vec![0u8; 128 << 10];
                while inp.read(&mut data)? > 0 {}
                Ok(())
            });
            [write, read]
        })
        .collect();
    for thread in threads {
        thread.join().expect("a stream")?;
    }
    Ok(rate(total, since, worked))
}

fn latency(size: usize, rounds: u32) -> Result<Figure, NetError> {
    let net = net(0, 1)?;
    Ok((common::latency((&net, &net), size, rounds, hint::spin_loop)?, f64::NAN))
}

/// The same of plain sockets that are asked all the time.
fn plain_latency(size: usize, rounds: u32) -> std::io::Result<Figure> {
    let listener = TcpListener::bind((LOOPBACK, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let theirs = listener.accept()?.0;
    let one = move |mut end: TcpStream, first: bool| -> std::io::Result<()> {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
        let mut data = vec![0u8; size];
        for round in 0..2 * rounds {
            if (round % 2 == 0) == first {
                end.write_all(&data)?;
                continue;
            }
            let mut read = 0;
            while read < size {
                match end.read(&mut data[read..]) {
                    Ok(n) => read += n,
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => hint::spin_loop(),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    };
    let other = thread::spawn(move || one(theirs, false));
    let since = Instant::now();
    one(ours, true)?;
    let time = since.elapsed();
    other.join().expect("the other end")?;
    Ok((time.as_secs_f64() * 1e6 / f64::from(rounds) / 2.0, f64::NAN))
}

type Run = (String, Box<dyn FnMut() -> Figure>);

/// The best of some rounds, in each of which all take their turn: what else the machine does disturbs all alike.
fn best(rounds: usize, runs: &mut [Run], better: fn(f64, f64) -> f64) {
    let mut figures = vec![None::<Figure>; runs.len()];
    for _ in 0..rounds {
        for ((_, run), best) in runs.iter_mut().zip(&mut figures) {
            let new = run();
            *best = Some(best.map_or(new, |old| (better(old.0, new.0), old.1.min(new.1))));
        }
    }
    for ((name, _), figure) in runs.iter().zip(figures) {
        let (figure, worked) = figure.unwrap_or((f64::NAN, f64::NAN));
        println!("{name:<44} {figure:>8.2} {worked:>8.2}");
    }
}

fn main() {
    let total = 512 << 20;
    println!("bandwidth in GB/s, and seconds of the processor a GB; the best of 7");
    for streams in [1, 2, 4] {
        let mut runs: Vec<Run> = vec![(
            format!("plain sockets, {streams} streams"),
            Box::new(move || plain(streams, total).expect("plain sockets")),
        )];
        for threads in [0, 1, 2].into_iter().filter(|&threads| threads <= streams) {
            for size in [4 << 20, 512 << 10, 128 << 10] {
                let each = streams / threads.max(1);
                runs.push((
                    format!("{threads} threads, {streams} sockets, {} KiB", size >> 10),
                    Box::new(move || bandwidth(threads, each, size, total).expect("the network")),
                ));
            }
        }
        best(7, &mut runs, f64::max);
    }
    println!("half a round trip in microseconds, the best of 7");
    let mut runs: Vec<Run> = Vec::new();
    for size in [8, 1 << 10, 16 << 10, 64 << 10] {
        runs.push((
            format!("plain sockets, {size} bytes"),
            Box::new(move || plain_latency(size, 2000).expect("plain sockets")),
        ));
        runs.push((
            format!("{size} bytes"),
            Box::new(move || latency(size, 2000).expect("the network")),
        ));
    }
    best(7, &mut runs, f64::min);
    let rate = || {
        let (rate, _) = bandwidth(0, 1, 8, 8 * 100_000).expect("the network");
        (rate * 1e9 / 8.0 / 1e6, f64::NAN)
    };
    println!("messages of 8 bytes, in millions a second");
    best(7, &mut [("0 threads, 1 socket".to_owned(), Box::new(rate))], f64::max);
}

//! What every network must do. Each function is a case; [`all`] runs them over a device.
//!
//! What a network promises is in `ferroccl_proxy::net`; these cases know no more of it than that.

use std::collections::VecDeque;
use std::sync::Arc;

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::{MAX_HANDLE, MAX_REQUESTS, MemoryHandle, MemoryKind, Net, Request};

use crate::support::{Message, Random, Receiving, Sending, connect, exchange, until};

/// All cases, over this device.
pub(crate) fn all(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    properties(net, device);
    sizes(net, device, seed);
    many_small(net, device, seed);
    streams(net, device, seed);
    full(net, device, seed);
    both_directions(net, device, seed);
    several_connections(net, device, seed);
    too_long(net, device);
    closed_sender(net, device);
    closed_receiver(net, device);
    misuse(net, device);
    handles(net, device);
}

/// What a device says of itself makes sense, and there is no other.
pub(crate) fn properties(net: &Arc<dyn Net>, device: usize) {
    let properties = net.properties(device).unwrap();
    assert!((1..=MAX_REQUESTS).contains(&properties.max_requests), "{properties:?}");
    assert!(properties.max_receives >= 1 && properties.speed > 0, "{properties:?}");
    assert!(!net.name().is_empty() && !properties.name.is_empty());
    let none = net.devices();
    assert!(net.properties(none).is_err() && net.listen(none).is_err());
    let listener = net.listen(device).unwrap();
    assert!((1..=MAX_HANDLE).contains(&listener.handle().len()));
    assert!(net.connect(none, listener.handle()).is_err());
}

/// Sizes from 0 to some MiB, around all that is round; buffers that fit and larger ones, at odd addresses.
pub(crate) fn sizes(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    let mut ends = connect(net, device);
    let round = [0, 1, 64, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20, 3 << 20];
    for size in round.iter().flat_map(|&size: &usize| [size.saturating_sub(1), size, size + 1]) {
        let mut data = vec![0; size];
        seed.fill(&mut data);
        exchange(&mut ends, &data, size, [0, 0]);
        exchange(&mut ends, &data, size + seed.below(100), [seed.below(9), seed.below(9)]);
    }
}

/// Thousands of small messages, with few buffers given at a time.
pub(crate) fn many_small(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    let (mut send, mut recv) = connect(net, device);
    stream(&mut [(&mut send, &mut recv)], 4000, 100, 3, seed);
}

/// Messages of all sizes, as many under way as may be.
pub(crate) fn streams(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    let (mut send, mut recv) = connect(net, device);
    stream(&mut [(&mut send, &mut recv)], 150, 1 << 20, MAX_REQUESTS, seed);
}

/// Connections one against the other, between the same two devices.
pub(crate) fn both_directions(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    let (mut a, mut b) = (connect(net, device), connect(net, device));
    stream(&mut [(&mut a.0, &mut a.1), (&mut b.0, &mut b.1)], 60, 1 << 20, 8, seed);
}

/// Several connections to one listener, made at once.
pub(crate) fn several_connections(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    let mut listener = net.listen(device).unwrap();
    let mut connecting: Vec<_> =
        (0..5).map(|_| Some(net.connect(device, listener.handle()).unwrap())).collect();
    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
    until(|| {
        for slot in &mut connecting {
            if let Some(send) = slot.as_mut().and_then(|c| c.poll().unwrap()) {
                sends.push(Sending::new(send));
                *slot = None;
            }
        }
        recvs.extend(listener.accept().unwrap().map(Receiving::new));
        (sends.len() == 5 && recvs.len() == 5).then_some(())
    });
    drop(listener); // connections stay
    // Which is connected to which, nobody says but a message.
    let mut first: Vec<_> =
        (recvs.iter_mut()).map(|recv| until(|| recv.begin(1, 0, 9).unwrap())).map(Some).collect();
    let ours: Vec<_> =
        (0..).zip(&mut sends).map(|(i, s)| until(|| s.begin(&[i], 0, 9).unwrap())).collect();
    let mut order = [usize::MAX; 5];
    let mut sent = [false; 5];
    until(|| {
        for (j, slot) in first.iter_mut().enumerate() {
            if let Some(message) = slot
                && recvs[j].is_done(message).unwrap().is_some()
            {
                order[usize::from(message.bytes()[0])] = j;
                *slot = None;
            }
        }
        for (i, message) in ours.iter().enumerate() {
            sent[i] = sent[i] || sends[i].is_done(message).unwrap();
        }
        (sent == [true; 5] && first.iter().all(Option::is_none)).then_some(())
    });
    let mut recvs: Vec<_> = recvs.into_iter().map(Some).collect();
    let mut recvs: Vec<_> = order.iter().map(|&j| recvs[j].take().expect("each once")).collect();
    let mut ends: Vec<_> = sends.iter_mut().zip(&mut recvs).collect();
    stream(&mut ends, 40, 300 << 10, 4, seed);
}

/// As many under way as a connection takes: it takes what it says, and says so when there are too many. Done out of order.
pub(crate) fn full(net: &Arc<dyn Net>, device: usize, seed: &mut Random) {
    let promised = net.properties(device).unwrap().max_requests;
    let (mut send, mut recv) = connect(net, device);
    let mut buffers: Vec<Message> = Vec::new();
    while let Some(buffer) = recv.begin(200 << 10, 1, 1).unwrap() {
        buffers.push(buffer);
        assert!(buffers.len() <= MAX_REQUESTS);
    }
    assert!(buffers.len() >= promised, "{} of {promised} buffers", buffers.len());
    let mut data = vec![0; 200 << 10];
    seed.fill(&mut data);
    let sizes: Vec<_> = buffers.iter().map(|_| seed.size(data.len())).collect();
    let mut messages: Vec<Message> = Vec::new();
    let mut arrived = vec![false; sizes.len()];
    until(|| {
        while let Some(&size) = sizes.get(messages.len()) {
            let Some(message) = send.begin(&data[data.len() - size..], 3, 1).unwrap() else {
                break;
            };
            messages.push(message);
        }
        for i in (0..sizes.len()).rev().filter(|&i| !arrived[i]).collect::<Vec<_>>() {
            if let Some(size) = recv.is_done(&buffers[i]).unwrap() {
                assert_eq!(size, sizes[i]);
                assert!(buffers[i].bytes()[..size] == data[data.len() - size..], "message {i}");
                arrived[i] = true;
            }
        }
        arrived.iter().all(|&it| it).then_some(())
    });
    messages
        .iter()
        .rev()
        .for_each(|message| until(|| send.is_done(message).unwrap().then_some(())));
}

/// A message that does not fit ends the connection, and both ends learn of it; those before it arrive.
pub(crate) fn too_long(net: &Arc<dyn Net>, device: usize) {
    for (size, capacity) in [(11, 10), (100_000, 99_999), (1 << 20, 0)] {
        let (mut send, mut recv) = connect(net, device);
        let buffers = [recv.begin(100_000, 0, 0), recv.begin(capacity, 0, 0)];
        let [first, second] = buffers.map(|buffer| buffer.unwrap().unwrap());
        let mut ours = Vec::new();
        let (mut theirs, mut size_of_first) = (None, None);
        until(|| {
            if ours.is_empty() {
                ours.extend(send.begin(&[7; 70_000], 0, 0).unwrap());
            } else if ours.len() == 1 {
                match send.begin(&vec![8; size], 0, 0) {
                    Ok(message) => ours.extend(message),
                    Err(_) => return Some(()), // networks may know the buffer's size before they send
                }
            }
            ours.iter().for_each(|message| drop(send.comm.test(message.request)));
            if size_of_first.is_none() {
                size_of_first = recv.is_done(&first).unwrap();
                return None;
            }
            theirs = recv.is_done(&second).err();
            theirs.is_some().then_some(())
        });
        if let Some(error) = theirs {
            let text = error.to_string();
            assert!(
                text.contains(&size.to_string()) && text.contains(&capacity.to_string()),
                "{text}"
            );
            assert_eq!(size_of_first, Some(70_000));
            stays_broken_recv(&mut recv, &second, &error);
            drop(recv);
        }
        ends_of_sender(&mut send);
    }
}

/// A sender that goes away: what it has sent arrives, and then there is an error.
pub(crate) fn closed_sender(net: &Arc<dyn Net>, device: usize) {
    for size in [10, 300_000] {
        let (mut send, mut recv) = connect(net, device);
        let [first, second] = [0; 2].map(|_| recv.begin(size, 0, 0).unwrap().unwrap());
        let (mut ours, mut sent, mut arrived) = (None, false, None);
        until(|| {
            if ours.is_none() {
                ours = send.begin(&vec![3; size], 0, 0).unwrap();
            }
            sent = sent || ours.as_ref().is_some_and(|ours| send.is_done(ours).unwrap());
            if arrived.is_none() && !sent {
                arrived = recv.is_done(&first).unwrap();
            }
            sent.then_some(())
        });
        drop(send);
        if arrived.is_none() {
            arrived = Some(until(|| recv.is_done(&first).unwrap()));
        }
        assert_eq!(arrived, Some(size));
        assert!(first.bytes().iter().all(|&byte| byte == 3));
        let error = until(|| recv.is_done(&second).err());
        stays_broken_recv(&mut recv, &second, &error);
    }
}

/// A receiver that goes away, with buffers given and without.
pub(crate) fn closed_receiver(net: &Arc<dyn Net>, device: usize) {
    for given in [0, 1] {
        let (mut send, mut recv) = connect(net, device);
        let _buffers: Vec<_> = (0..given).map(|_| recv.begin(10, 0, 0).unwrap()).collect();
        drop(recv);
        ends_of_sender(&mut send);
    }
}

/// Requests and memory of others are no requests and memory.
pub(crate) fn misuse(net: &Arc<dyn Net>, device: usize) {
    let (mut send, mut recv) = connect(net, device);
    assert!(send.comm.test(Request(u64::MAX)).is_err());
    assert!(recv.comm.test(Request(u64::MAX), &mut [0]).is_err());
    assert!(send.comm.deregister(MemoryHandle(77)).is_err());
    assert!(recv.comm.deregister(MemoryHandle(77)).is_err());
    if !net.properties(device).unwrap().cuda {
        let mut byte = 0u8;
        // SAFETY: it is refused for its kind; nobody goes there.
        assert!(unsafe { send.comm.register(&mut byte, 1, MemoryKind::Cuda) }.is_err());
        // SAFETY: the same.
        assert!(unsafe { recv.comm.register(&mut byte, 1, MemoryKind::Cuda) }.is_err());
    }
    // SAFETY: no buffer at all.
    assert!(unsafe { recv.comm.irecv(&[]) }.is_err());
    // None of this breaks it.
    exchange(&mut (send, recv), b"still there", 11, [0, 0]);
}

/// What is no handle is refused, at once or when it is tried.
pub(crate) fn handles(net: &Arc<dyn Net>, device: usize) {
    let whole = net.listen(device).unwrap().handle().to_vec();
    for handle in [&[][..], &whole[..whole.len() / 2], &[0xff; MAX_HANDLE]] {
        assert!(net.connect(device, handle).is_err(), "{handle:x?}");
    }
}

/// After an error there are only errors.
fn stays_broken_recv(recv: &mut Receiving, message: &Message, error: &NetError) {
    assert!(!error.net.is_empty() && !error.reason.is_empty());
    assert!(recv.is_done(message).is_err() && recv.begin(1, 0, 0).is_err());
}

/// Sends until it learns that nobody is there; after that it stays so.
fn ends_of_sender(send: &mut Sending) {
    let mut under_way: VecDeque<Message> = VecDeque::new();
    until(|| {
        match send.begin(&[1; 5000], 0, 0) {
            Ok(message) => under_way.extend(message),
            Err(_) => return Some(()),
        }
        match send.is_done(under_way.front()?) {
            Ok(true) => drop(under_way.pop_front()),
            Ok(false) => {}
            Err(_) => return Some(()),
        }
        None
    });
    assert!(send.begin(&[1], 0, 0).is_err() && send.begin(&[1], 0, 0).is_err());
}

/// Sends `count` messages over each of some connections at a time and looks at what arrives, with so many buffers given at
/// a time.
pub(crate) fn stream(
    ends: &mut [(&mut Sending, &mut Receiving)],
    count: usize,
    most: usize,
    window: usize,
    seed: &mut Random,
) {
    struct Progress {
        data: VecDeque<Vec<u8>>,
        sent: usize,
        given: usize,
        arrived: usize,
        ours: Vec<Message>,
        theirs: VecDeque<Message>,
    }
    let mut all: Vec<_> = (ends.iter())
        .map(|_| Progress {
            data: VecDeque::new(),
            sent: 0,
            given: 0,
            arrived: 0,
            ours: Vec::new(),
            theirs: VecDeque::new(),
        })
        .collect();
    until(|| {
        for ((send, recv), one) in ends.iter_mut().zip(&mut all) {
            while one.given < count && one.theirs.len() < window {
                let buffer = recv.begin(most, seed.below(9), one.given as u32).unwrap();
                let Some(buffer) = buffer else { break };
                one.theirs.push_back(buffer);
                one.given += 1;
            }
            while one.sent < count && one.data.len() < 2 * MAX_REQUESTS {
                let mut data = vec![0; seed.size(most)];
                seed.fill(&mut data);
                let message = send.begin(&data, seed.below(9), one.sent as u32).unwrap();
                let Some(message) = message else { break };
                one.ours.push(message);
                one.data.push_back(data);
                one.sent += 1;
            }
            // In any order: a caller may ask for the last first.
            if !one.ours.is_empty() {
                let any = seed.below(one.ours.len());
                if send.is_done(&one.ours[any]).unwrap() {
                    one.ours.remove(any);
                }
            }
            while let Some(buffer) = one.theirs.front() {
                let Some(size) = recv.is_done(buffer).unwrap() else { break };
                let data = one.data.pop_front().expect("it was sent");
                assert_eq!(size, data.len(), "message {}", one.arrived);
                assert!(buffer.bytes()[..size] == data[..], "message {} differs", one.arrived);
                one.theirs.pop_front();
                one.arrived += 1;
            }
        }
        all.iter().all(|one| one.arrived == count && one.ours.is_empty()).then_some(())
    });
}

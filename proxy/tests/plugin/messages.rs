//! Messages through plugins of all versions.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::thread;

use ferroccl_proxy::net::{
    MAX_HANDLE, MAX_REQUESTS, MemoryHandle, MemoryKind, Net, PluginNet, Properties, RecvBuffer,
    Request,
};

use crate::support::{
    Chance, Counts, Pair, VERSIONS, all, connect, connect_from, load, load_path, until,
};

#[test]
fn what_devices_are() {
    for (net, version) in all().iter().zip(VERSIONS) {
        assert_eq!((net.name(), net.version(), net.devices()), ("loopback", version, 2));
        let expected = Properties {
            name: "lo".to_owned(),
            pci_path: Some("/sys/devices/virtual/net/lo".to_owned()),
            guid: 0x1122_3344_5566_7788,
            speed: 40_000,
            port: 1,
            max_requests: 32,
            max_receives: 4,
            cuda: false,
            dma_buf: false,
            members: Vec::new(),
        };
        assert_eq!(net.properties(0).unwrap(), expected);
        let guid = expected.guid + 1;
        let second = Properties { pci_path: None, guid, ..expected };
        assert_eq!(net.properties(1).unwrap(), second);
        let error = net.properties(2).unwrap_err().to_string();
        assert_eq!(error, "loopback: getProperties: there is no device 2, only 2");
        assert!(net.listen(2).is_err() && net.connect(usize::MAX, &[0; 128]).is_err());
    }
}

/// From version 9 on.
#[test]
fn devices_are_made_of_several() {
    for version in VERSIONS {
        let net = load("virtual", version, &["DEVICES=3"]);
        if version == 8 {
            assert_eq!(net.max_devices_per_nic(), 1);
            let error = net.make_virtual_device(&[0, 1]).unwrap_err().to_string();
            assert_eq!(error, "loopback: makeVDevice: the plugin has no such function");
            continue;
        }
        assert_eq!((net.max_devices_per_nic(), net.devices()), (4, 3));
        assert_eq!(net.make_virtual_device(&[0, 2]).unwrap(), 3);
        let made = net.properties(3).unwrap();
        assert_eq!((made.name.as_str(), made.speed, made.members), ("lo+lo", 80_000, vec![0, 2]));
        assert_eq!(net.devices(), 4);
        // The same one, also for who loads the plugin again.
        let again = load_path(net.library().as_ref()).unwrap();
        for net in [&net, &again] {
            assert_eq!((net.make_virtual_device(&[0, 2]).unwrap(), net.devices()), (3, 4));
        }
        let mut pair = connect_from(&net, 3, 3);
        let (message, mut buffer) = (pair.message(vec![7; 1000]), pair.buffer(1000));
        let (sent, received) = (pair.isend(&message, 0), pair.irecv(&mut buffer));
        until(|| pair.sender.test(sent).unwrap().then_some(()));
        until(|| pair.receiver.test(received, &mut [0]).unwrap().then_some(()));
        for (members, wrong) in [
            (&[1, 3][..], "device 3 is made of [0, 2]"),
            (&[1, 4], "device 4 is none of the 4 real ones"),
            (&[1], "1 devices, where a virtual one has 2 to 4"),
            (&[1, 1], "a device is there twice: [1, 1]"),
        ] {
            let error = net.make_virtual_device(members).unwrap_err().to_string();
            assert_eq!(error, format!("loopback: makeVDevice: {wrong}"));
        }
    }
}

#[test]
fn sizes_of_all_kinds() {
    let mut chance = Chance::new(1);
    for net in all() {
        let mut pair = connect(net);
        for size in [0, 1, 2, 3, 15, 16, 17, 255, 4095, 65_537, 1 << 20, (3 << 20) + 1] {
            for longer in [0, 1, 77] {
                let message = pair.message(chance.bytes(size));
                let mut buffer = pair.buffer(size + longer);
                let received = pair.irecv(&mut buffer);
                let sent = pair.isend(&message, 0);
                assert_eq!(pair.finish(sent, received), size);
                assert!(buffer.bytes[..size] == message.bytes, "{size} bytes differ");
                assert!(buffer.bytes[size..].iter().all(|byte| *byte == 0xee), "{size} and more");
                pair.sender.deregister(message.handle).unwrap();
                pair.receiver.deregister(buffer.handle).unwrap();
            }
        }
    }
}

#[test]
fn as_many_as_may_be_under_way() {
    for net in all() {
        let mut pair = connect(net);
        let message = |i: usize| vec![i as u8; 1000 * i];
        let messages: Vec<_> = (0..MAX_REQUESTS).map(|i| pair.message(message(i))).collect();
        let mut buffers: Vec<_> = messages.iter().map(|_| pair.buffer(40_000)).collect();
        let received: Vec<_> = buffers.iter_mut().map(|buffer| pair.irecv(buffer)).collect();
        let sent: Vec<_> = messages.iter().map(|message| pair.isend(message, 0)).collect();
        // The plugin would give an error.
        assert_eq!(pair.try_isend(&messages[0], 0), Ok(None));
        assert_eq!(pair.try_irecv(&mut [(&mut buffers[0], 0)]), Ok(None));
        // The newest first: that moves all of them.
        for (i, (sent, received)) in sent.into_iter().zip(received).enumerate().rev() {
            assert_eq!(pair.finish(sent, received), 1000 * i);
        }
        for (message, buffer) in messages.iter().zip(&buffers) {
            assert!(message.bytes == buffer.bytes[..message.bytes.len()]);
        }
        // And there is room again.
        let (sent, received) = (pair.isend(&messages[3], 0), pair.irecv(&mut buffers[5]));
        assert_eq!(pair.finish(sent, received), 3000);
    }
}

/// Several buffers a request, messages of any size in any order, ends on threads of their own.
#[test]
fn at_random() {
    for (net, seed) in all().iter().zip(10..) {
        let Pair { mut sender, mut receiver } = connect(net);
        let mut chance = Chance::new(seed);
        let mut groups = Vec::new();
        for _ in 0..60 {
            let mut tags: Vec<u32> = (0..=chance.below(4) as u32).collect();
            let mut size = || {
                let end = 1 << (1 + chance.below(17));
                chance.below(end)
            };
            let sizes: Vec<_> = tags.iter().map(|_| size()).collect();
            for i in (1..tags.len()).rev() {
                tags.swap(i, chance.below(i + 1)); // in which order they are sent
            }
            groups.push((tags, sizes));
        }
        let to_receive = groups.clone();
        let byte = |group: usize, tag: u32, i: usize| (group * 31 + tag as usize * 7 + i) as u8;
        let sends = thread::spawn(move || {
            for (group, (tags, sizes)) in groups.into_iter().enumerate() {
                let mut under_way = Vec::new();
                for tag in tags {
                    let size = sizes[tag as usize];
                    let mut bytes: Vec<u8> = (0..size).map(|i| byte(group, tag, i)).collect();
                    let at = bytes.as_mut_ptr();
                    // SAFETY: the bytes stay until all of the group are sent.
                    let memory = unsafe { sender.register(at, size, MemoryKind::Host) }.unwrap();
                    // SAFETY: as above.
                    let isend = || unsafe { sender.isend(at, size, tag, memory) }.unwrap();
                    under_way.push((until(isend), memory, bytes));
                }
                for (request, memory, _bytes) in under_way {
                    until(|| sender.test(request).unwrap().then_some(()));
                    sender.deregister(memory).unwrap();
                }
            }
            sender // not closed before all has arrived
        });
        for (group, (tags, sizes)) in to_receive.into_iter().enumerate() {
            let mut memory: Vec<_> = sizes.iter().map(|size| vec![0u8; size + group]).collect();
            let mut buffers = Vec::new();
            for (tag, bytes) in memory.iter_mut().enumerate() {
                let (address, bytes) = (bytes.as_mut_ptr(), bytes.len());
                // SAFETY: the bytes stay until all of the group have come.
                let handle = unsafe { receiver.register(address, bytes, MemoryKind::Host) };
                let (tag, memory) = (tag as u32, handle.unwrap());
                buffers.push(RecvBuffer { address, bytes, tag, memory });
            }
            // SAFETY: as above.
            let request = until(|| unsafe { receiver.irecv(&buffers) }.unwrap());
            let mut arrived = vec![0; tags.len()];
            until(|| receiver.test(request, &mut arrived).unwrap().then_some(()));
            assert_eq!(arrived, sizes);
            for ((tag, buffer), size) in (0..).zip(&memory).zip(sizes) {
                let right = |(i, value): (usize, &u8)| *value == byte(group, tag, i);
                assert!(buffer[..size].iter().enumerate().all(right), "group {group} tag {tag}");
            }
            for buffer in buffers {
                receiver.deregister(buffer.memory).unwrap();
            }
        }
        sends.join().unwrap();
    }
}

#[test]
fn a_closed_peer_is_an_error() {
    for net in all() {
        let Pair { mut sender, receiver } = connect(net);
        drop(receiver);
        let mut bytes = vec![1u8; 1 << 20];
        let (at, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the bytes outlive the connection.
        let memory = unsafe { sender.register(at, length, MemoryKind::Host) }.unwrap();
        // SAFETY: as above.
        let mut isend = || unsafe { sender.isend(at, length, 0, memory) }.unwrap();
        let request = until(&mut isend);
        let error = until(|| sender.test(request).err());
        assert_eq!(error.to_string(), "loopback: test: ncclRemoteError");
        // It stays broken, and says so.
        assert_eq!(sender.test(request), Err(error.clone()));
        // SAFETY: as above.
        assert_eq!(unsafe { sender.isend(at, length, 0, memory) }, Err(error));

        let mut pair = connect(net);
        let mut buffer = pair.buffer(100);
        let request = pair.irecv(&mut buffer);
        let Pair { sender, mut receiver } = pair;
        assert_eq!(receiver.test(request, &mut [0]), Ok(false));
        drop(sender);
        let error = until(|| receiver.test(request, &mut [0]).err());
        assert_eq!(error.to_string(), "loopback: test: ncclRemoteError");
    }
}

#[test]
fn a_message_longer_than_its_buffer() {
    for net in all() {
        let mut pair = connect(net);
        let (first, second) = (pair.message(vec![1; 10]), pair.message(vec![2; 11]));
        let (mut fits, mut small) = (pair.buffer(10), pair.buffer(10));
        let received = [pair.irecv(&mut fits), pair.irecv(&mut small)];
        let sent = [pair.isend(&first, 0), pair.isend(&second, 0)];
        for sent in sent {
            until(|| pair.sender.test(sent).unwrap().then_some(()));
        }
        let error = until(|| pair.receiver.test(received[1], &mut [0]).err());
        assert_eq!(error.to_string(), "loopback: test: ncclInvalidUsage");
        assert!(small.bytes.iter().all(|byte| *byte == 0xee));
        // The one before it has arrived.
        let mut size = [0];
        assert_eq!(pair.receiver.test(received[0], &mut size), Ok(true));
        assert_eq!((size[0], fits.bytes == first.bytes), (10, true));
    }
}

#[test]
fn a_message_longer_than_a_plugin_takes() {
    let too_long = |net: &PluginNet, length: usize, most: usize| {
        let mut pair = connect(net);
        let memory = pair.message(vec![0; 10]);
        // SAFETY: nothing is read where the length is refused.
        let given = unsafe { pair.sender.isend(memory.bytes.as_ptr(), length, 0, memory.handle) };
        let reason = format!("a message of {length} bytes, where {most} are the most");
        assert_eq!(given.unwrap_err().reason, reason);
        // The connection is not broken by that.
        let mut buffer = pair.buffer(10);
        let (sent, received) = (pair.isend(&memory, 0), pair.irecv(&mut buffer));
        assert_eq!(pair.finish(sent, received), 10);
    };
    for net in all() {
        too_long(net, 1 << 31, i32::MAX as usize);
    }
    for version in [9, 10, 11] {
        too_long(&load("short", version, &["MAX_P2P_BYTES=999"]), 1000, 999);
    }
}

#[test]
fn handles_of_others_are_refused() {
    for net in all() {
        for length in [0, 1, MAX_HANDLE - 1, MAX_HANDLE + 1] {
            let error = net.connect(0, &vec![7; length]).map(|_| ()).unwrap_err();
            let reason = format!("a handle of {length} bytes, not 128");
            assert_eq!((error.operation, error.reason), ("connect", reason));
        }
        let error = net.connect(0, &[7; MAX_HANDLE]).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "loopback: connect: ncclInvalidArgument");
        // Nobody listens any more.
        let handle = net.listen(0).unwrap().handle().to_vec();
        let error = match net.connect(0, &handle) {
            Ok(mut connecting) => until(|| connecting.poll().map(|_| ()).err()),
            Err(error) => error,
        };
        assert_eq!(error.to_string(), "loopback: connect: ncclRemoteError");
    }
}

#[test]
fn what_is_not_of_a_connection() {
    for net in all() {
        let (mut pair, mut other) = (connect(net), connect(net));
        let mut pad = pair.message(vec![]);
        let theirs = other.message(vec![0; 10]);
        pad.handle = MemoryHandle(theirs.handle.0 + 1000);
        let error = pair.try_isend(&pad, 0).unwrap_err();
        let reason = format!("memory {} is not registered with this connection", pad.handle.0);
        assert_eq!((error.operation, error.reason), ("isend", reason));
        let message = pair.message(vec![0; 10]);
        pair.sender.deregister(message.handle).unwrap();
        assert!(pair.sender.deregister(message.handle).is_err());
        assert!(pair.try_isend(&message, 0).is_err());
        assert!(pair.receiver.deregister(message.handle).is_err());

        // Requests: unknown, done already, with too little room for sizes.
        assert!(pair.sender.test(Request(0)).is_err());
        let (message, mut buffer) = (pair.message(vec![0; 10]), pair.buffer(10));
        let (sent, received) = (pair.isend(&message, 0), pair.irecv(&mut buffer));
        let error = pair.receiver.test(received, &mut []).unwrap_err().to_string();
        assert_eq!(error, "loopback: test: room for 0 sizes, and there are 1");
        assert_eq!(pair.finish(sent, received), 10);
        assert!(pair.sender.test(sent).unwrap_err().reason.contains("is not under way"));
        assert!(pair.receiver.test(received, &mut [0]).is_err());

        // None, or more buffers than the plugin takes.
        assert!(pair.try_irecv(&mut []).is_err());
        let mut buffers: Vec<_> = (0..5).map(|_| pair.buffer(1)).collect();
        let mut buffers: Vec<_> = buffers.iter_mut().zip(0..).collect();
        let error = pair.try_irecv(&mut buffers).unwrap_err().to_string();
        assert_eq!(error, "loopback: irecv: 5 buffers, not 1 to 4");
        assert!(pair.try_irecv(&mut buffers[..4]).unwrap().is_some());

        // Memory of GPUs where the plugin takes none.
        for kind in [MemoryKind::Cuda, MemoryKind::DmaBuf { fd: 0, offset: 0 }] {
            // SAFETY: it is refused.
            let given = unsafe { pair.sender.register(theirs.bytes.as_ptr().cast_mut(), 1, kind) };
            assert!(given.unwrap_err().reason.starts_with("device lo takes no "));
        }
    }
}

#[test]
fn memory_of_a_gpu_is_flushed() {
    for version in VERSIONS {
        let net = load("gpu", version, &["GPU"]);
        let properties = net.properties(0).unwrap();
        assert!(properties.cuda && properties.dma_buf);
        let mut pair = connect(&net);
        let message = pair.message(vec![5; 10]);
        let mut host = pair.buffer(10);
        let file = std::fs::File::open("/dev/null").unwrap();
        let by_file = MemoryKind::DmaBuf { fd: file.as_raw_fd(), offset: 1 << 40 };
        let mut bytes = [0u8; 20];
        for kind in [MemoryKind::Cuda, by_file] {
            let (address, bytes) = (bytes.as_mut_ptr(), bytes.len());
            // SAFETY: the bytes outlive the connection.
            let memory = unsafe { pair.receiver.register(address, bytes, kind) }.unwrap();
            let buffer = RecvBuffer { address, bytes, tag: 0, memory };
            // SAFETY: as above.
            let received = until(|| unsafe { pair.receiver.irecv(&[buffer]) }.unwrap());
            let sent = pair.isend(&message, 0);
            assert_eq!(pair.finish(sent, received), 10);
            // SAFETY: as above.
            let flush = unsafe { pair.receiver.iflush(&[buffer]) }.unwrap().unwrap();
            until(|| pair.receiver.test(flush, &mut []).unwrap().then_some(()));
            assert!(pair.receiver.test(flush, &mut []).is_err(), "it is done already");
        }
        let counts = Counts::of(&net);
        assert_eq!(counts.last_fd.load(Ordering::SeqCst), file.as_raw_fd());
        assert_eq!(counts.last_offset.load(Ordering::SeqCst), 1 << 40);
        // Other memory needs none.
        let (address, memory) = (host.bytes.as_mut_ptr(), host.handle);
        let buffer = RecvBuffer { address, bytes: 10, tag: 0, memory };
        // SAFETY: as above.
        assert_eq!(unsafe { pair.receiver.iflush(&[buffer]) }, Ok(None));
    }
}

/// A plugin may give NULL for a registration.
#[test]
fn registrations_that_are_nothing() {
    for version in VERSIONS {
        let net = load("unregistered", version, &["NO_REGISTRATIONS"]);
        let mut pair = connect(&net);
        let (message, mut buffer) = (pair.message(vec![3; 100]), pair.buffer(100));
        let (sent, received) = (pair.isend(&message, 0), pair.irecv(&mut buffer));
        assert_eq!(pair.finish(sent, received), 100);
        pair.sender.deregister(message.handle).unwrap();
        drop(pair);
        assert_eq!(Counts::of(&net).open()[1..], [0; 4]);
    }
}

#[test]
fn all_is_closed_and_in_the_right_order() {
    for version in VERSIONS {
        let net = load("closed", version, &[]);
        let counts = Counts::of(&net);
        let contexts = i32::from(version == 11);
        let listener = net.listen(0).unwrap();
        let mut pair = connect(&net);
        let _message = pair.message(vec![0; 10]);
        let mut buffer = pair.buffer(10);
        let received = pair.irecv(&mut buffer);
        assert_eq!(counts.open(), [contexts, 1, 1, 1, 2]);
        // Connections outlive the network.
        drop(net);
        assert_eq!(counts.open(), [contexts, 1, 1, 1, 2]);
        drop(listener);
        let message = pair.message(vec![9; 10]);
        let sent = pair.isend(&message, 0);
        assert_eq!((pair.finish(sent, received), buffer.bytes), (10, vec![9; 10]));
        let Pair { sender, receiver } = pair;
        drop(sender);
        assert_eq!(counts.open(), [contexts, 0, 0, 1, 1]);
        drop(receiver);
        assert_eq!(counts.open(), [0; 5]);
    }
}

//! What can be tried from inside only: a queue pair that fails, a peer that lies, what is registered.
//!
//! All cases but one need a device; `in_a_vm` runs them where there are some.

#[path = "../../../../tests/support/rdma.rs"]
mod rdma;
#[path = "../../../../tests/support/skip.rs"]
mod skip;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connecting::{VerbsConnecting, VerbsListener};
use super::control::{ConnectionInfo, ControlMessage, ControlSocket, PairInfo, PortInfo};
use super::device::{LinkLayer, PortAddress};
use super::queue_pair::{LocalBuffer, SendWr};
use super::recv::VerbsRecvComm;
use super::send::VerbsSendComm;
use super::*;
use crate::net::handshake::Sockets;
use crate::net::{MemoryKind, RecvBuffer, RecvComm as _, Request, SendComm as _};

#[test]
fn in_a_vm() {
    if let Err(lack) = rdma::in_a_vm(&["net::verbs::tests::"]) {
        skip::skip(&lack);
    }
}

const HANG: Duration = Duration::from_secs(60);

#[track_caller]
fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < HANG, "it hangs");
        std::thread::yield_now();
    }
}

/// From `rxa` to `rxb`.
fn net(change: impl FnOnce(&mut VerbsConfig)) -> VerbsNet {
    let address = Ipv4Addr::LOCALHOST.into();
    let interface = Interface { name: "lo".to_owned(), address, scope_id: 0 };
    let mut config = VerbsConfig::new(interface, [42; 32]);
    config.connect_timeout = Duration::from_secs(20);
    config.hca = "=rxa,rxb".parse().unwrap();
    (config.timeout, config.retry_cnt) = (10, 2);
    change(&mut config);
    VerbsNet::new(config).unwrap()
}

fn listener(net: &VerbsNet, device: usize) -> VerbsListener {
    let VerbsConfig { interface, secret, connect_timeout, .. } = &*net.config;
    let acceptor = SocketsAcceptor::new(NAME, interface, secret, 0, *connect_timeout).unwrap();
    VerbsListener::new(acceptor, &net.device("listen", device).unwrap(), &net.config)
}

fn call(net: &VerbsNet, listener: &VerbsListener) -> SocketsConnector {
    let VerbsConfig { interface, secret, connect_timeout, .. } = &*net.config;
    let handle = Handle::decode(crate::net::Listener::handle(listener)).unwrap();
    SocketsConnector::new(NAME, handle, interface, secret, *connect_timeout).unwrap()
}

fn connect(net: &VerbsNet) -> (VerbsSendComm, VerbsRecvComm) {
    connect_from(net, 0, 1)
}

/// From a device to another one.
fn connect_from(net: &VerbsNet, from: usize, to: usize) -> (VerbsSendComm, VerbsRecvComm) {
    let mut listener = listener(net, to);
    let device = net.device("connect", from).unwrap();
    let mut connecting = VerbsConnecting::new(call(net, &listener), &device, &net.config);
    let (mut send, mut recv) = (None, None);
    until(|| {
        send = send.take().or_else(|| connecting.step().unwrap());
        recv = recv.take().or_else(|| listener.ready().unwrap());
        (send.is_some() && recv.is_some()).then_some(())
    });
    (send.unwrap(), recv.unwrap())
}

fn give(recv: &mut VerbsRecvComm, buffer: &mut [u8]) -> Request {
    let (address, bytes) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the tests keep buffers longer than connections, and look at them when they are done.
    unsafe {
        let memory = recv.register(address, bytes, MemoryKind::Host).unwrap();
        recv.irecv(&[RecvBuffer { address, bytes, tag: 0, memory }]).unwrap().unwrap()
    }
}

fn send_all(send: &mut VerbsSendComm, data: &mut [u8]) -> Request {
    let (address, bytes) = (data.as_mut_ptr(), data.len());
    // SAFETY: as in `give`.
    unsafe {
        let memory = send.register(address, bytes, MemoryKind::Host).unwrap();
        until(|| send.isend(address, bytes, 0, memory).unwrap())
    }
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_queue_pair_that_fails_is_told_to_both_ends() {
    // Patient: a device that waits for the other end's answers would find out by itself before it is told, where the machine is busy.
    let net = net(|config| (config.timeout, config.retry_cnt) = (16, 7));
    for of_the_sender in [true, false] {
        let (mut data, mut buffer) = (vec![1u8; 16 << 20], vec![0u8; 16 << 20]);
        let (mut send, mut recv) = connect(&net);
        let theirs = give(&mut recv, &mut buffer);
        let ours = send_all(&mut send, &mut data);
        let port = if of_the_sender { "rxa:1" } else { "rxb:1" };
        let pair =
            if of_the_sender { &send.endpoint().pairs[0] } else { &recv.endpoint().pairs[0] };
        let name = format!("{port}, queue pair {}: ", pair.number);
        pair.break_off();
        let (mut errors, mut size) = ([None, None], [0]);
        until(|| {
            errors[0] = errors[0].take().or_else(|| send.test(ours).err());
            errors[1] = errors[1].take().or_else(|| recv.test(theirs, &mut size).err());
            errors.iter().all(Option::is_some).then_some(())
        });
        let text = format!("{errors:?}");
        assert!(text.contains(&name) && text.contains(" failed: "), "{name}: {text}");
        assert!(text.contains("it ended the connection: "), "{text}");
        // No byte comes any more.
        let there = buffer.clone();
        std::thread::sleep(Duration::from_millis(200));
        assert!(there == buffer, "after the error");
    }
}

/// The error names the port of the pair, whichever of the device's it is; a flush reads by each port.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_device_of_two_ports_fails_and_flushes_by_port() {
    // Patient: the end that fails is the one that is broken here.
    let net = net(|config| {
        (config.flush_host, config.timeout, config.retry_cnt) = (true, 16, 7);
    });
    let [from, to] = [[0, 1], [1, 0]].map(|members| net.make_virtual_device(&members).unwrap());
    for (place, port) in [(0, "rxa:1"), (1, "rxb:1")] {
        let (mut data, mut buffer) = (vec![1u8; 5000], vec![0u8; 5000]);
        let (mut send, mut recv) = connect_from(&net, from, to);
        for _ in 0..50 {
            let theirs = give(&mut recv, &mut buffer);
            let ours = send_all(&mut send, &mut data);
            until(|| recv.test(theirs, &mut [0]).unwrap().then_some(()));
            let (address, bytes) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: as in `give`.
            let flush = unsafe {
                let memory = recv.register(address, bytes, MemoryKind::Host).unwrap();
                recv.iflush(&[RecvBuffer { address, bytes, tag: 0, memory }]).unwrap().unwrap()
            };
            until(|| recv.test(flush, &mut []).unwrap().then_some(()));
            until(|| send.test(ours).unwrap().then_some(()));
        }
        let (mut data, mut buffer) = (vec![1u8; 16 << 20], vec![0u8; 16 << 20]);
        let theirs = give(&mut recv, &mut buffer);
        let ours = send_all(&mut send, &mut data);
        let pair = &send.endpoint().pairs[place];
        let name = format!("{port}, queue pair {}: ", pair.number);
        pair.break_off();
        let (mut errors, mut size) = ([None, None], [0]);
        until(|| {
            errors[0] = errors[0].take().or_else(|| send.test(ours).err());
            errors[1] = errors[1].take().or_else(|| recv.test(theirs, &mut size).err());
            errors.iter().all(Option::is_some).then_some(())
        });
        let text = format!("{errors:?}");
        assert!(text.contains(&name) && text.contains(" failed: "), "{name}: {text}");
    }
}

/// A write to what is nobody's is refused by the other end's device, which ends the connection for both.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_wrong_key_is_an_error() {
    let (mut send, mut recv) = connect(&net(|_| ()));
    let mut data = vec![1u8; 100];
    let endpoint = send.endpoint();
    let name = format!("rxa:1, queue pair {}: an RDMA write failed: ", endpoint.pairs[0].number);
    let remote = (endpoint.theirs.address, endpoint.theirs.keys[0].wrapping_add(0x100));
    let from = LocalBuffer { address: data.as_ptr() as u64, bytes: 8, key: 0, host: true };
    endpoint.pairs[0].post(SendWr::Write(from, remote));
    endpoint.post_waiting();
    // SAFETY: nothing is begun: there is no buffer for it.
    let error = until(|| unsafe {
        let memory = send.register(data.as_mut_ptr(), 0, MemoryKind::Host).unwrap();
        send.isend(data.as_ptr(), 0, 0, memory).err()
    });
    assert!(error.reason.contains(&name), "{error}");
    let mut buffer = vec![0u8; 100];
    let (address, bytes) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: as in `give`.
    let theirs = until(|| unsafe {
        let memory = recv.register(address, bytes, MemoryKind::Host).unwrap();
        let request = recv.irecv(&[RecvBuffer { address, bytes, tag: 0, memory }]);
        request.map_or_else(Some, |request| recv.test(request?, &mut [0]).err())
    });
    assert!(theirs.reason.contains("it ended the connection: "), "{theirs}");
    assert!(theirs.reason.contains(&name), "{theirs}");
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn what_has_arrived_is_flushed() {
    let (mut send, mut recv) = connect(&net(|config| config.flush_host = true));
    let (mut data, mut buffer) = (vec![7u8; 5000], vec![0u8; 5000]);
    for round in 0..200 {
        let theirs = give(&mut recv, &mut buffer);
        let ours = send_all(&mut send, &mut data);
        until(|| recv.test(theirs, &mut [0]).unwrap().then_some(()));
        let (address, bytes) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: as in `give`.
        let (flush, none) = unsafe {
            let memory = recv.register(address, bytes, MemoryKind::Host).unwrap();
            let buffer = RecvBuffer { address, bytes, tag: 0, memory };
            let empty = RecvBuffer { bytes: 0, ..buffer };
            (recv.iflush(&[empty, buffer, empty]).unwrap(), recv.iflush(&[empty]).unwrap())
        };
        assert!(none.is_none(), "nothing to read");
        let flush = flush.expect("a read");
        until(|| recv.test(flush, &mut []).unwrap().then_some(()));
        assert!(recv.test(flush, &mut []).is_err(), "it is done, round {round}");
        until(|| send.test(ours).unwrap().then_some(()));
    }
    // Memory of the host needs none, and there is none.
    let (mut send, mut recv) = connect(&net(|_| ()));
    let theirs = give(&mut recv, &mut buffer);
    let _ours = send_all(&mut send, &mut data);
    until(|| recv.test(theirs, &mut [0]).unwrap().then_some(()));
    let address = buffer.as_mut_ptr();
    // SAFETY: as in `give`.
    let flush = unsafe {
        let memory = recv.register(address, 5000, MemoryKind::Host).unwrap();
        recv.iflush(&[RecvBuffer { address, bytes: 5000, tag: 0, memory }]).unwrap()
    };
    assert_eq!(flush, None);
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn memory_is_registered_once() {
    let net = net(|_| ());
    let (mut a, mut b) = (connect(&net), connect(&net));
    let mut memory = vec![0u8; 1 << 20];
    let at = memory.as_mut_ptr();
    let context = Arc::clone(&net.ports[0].context);
    let before = context.cache.len();
    // SAFETY: the memory outlives the connections, and nothing is sent.
    unsafe {
        let whole = a.0.register(at, 1 << 20, MemoryKind::Host).unwrap();
        let same = b.0.register(at, 1 << 20, MemoryKind::Host).unwrap();
        let part = b.0.register(at.add(4097), 100, MemoryKind::Host).unwrap();
        assert_eq!(context.cache.len(), before + 1, "one registration for all");
        a.0.deregister(whole).unwrap();
        b.0.deregister(part).unwrap();
        assert_eq!(context.cache.len(), before + 1, "one still uses it");
        b.0.deregister(same).unwrap();
        assert_eq!(context.cache.len(), before, "the last takes it back");
        // Of a GPU there is none here, and it is said why.
        let error = a.0.register(at, 100, MemoryKind::Cuda).unwrap_err();
        assert!(error.reason.starts_with("rxa: ") && error.reason.contains("nvidia_peermem"));
        let file = MemoryKind::DmaBuf { fd: 0, offset: 0 };
        let error = b.1.register(at, 100, file).unwrap_err();
        assert!(error.reason.contains("rxb: neither the device registers DMA buffers"), "{error}");
        // Nor is there anything at 0.
        let error = a.0.register(std::ptr::null_mut(), 100, MemoryKind::Host).unwrap_err();
        assert!(error.reason.contains("100 bytes at 0x0 (Host): "), "{error}");
    }
}

/// Who knows the secret may still say what makes no sense.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn introductions_that_make_no_sense_are_refused() {
    let net = net(|_| ());
    let mut listener = listener(&net, 1);
    let address = net.ports[0].address(None).unwrap();
    let sane = ConnectionInfo {
        link: LinkLayer::Ethernet,
        ports: vec![PortInfo { address, key: 0 }],
        psn: 0,
        split: false,
        memory: 0,
        pairs: vec![PairInfo { number: 1, port: 0 }],
    };
    let mut refused = |said: ControlMessage| {
        let mut connector = call(&net, &listener);
        let Sockets { control, .. } = until(|| {
            assert!(listener.ready().unwrap().is_none());
            connector.poll().unwrap()
        });
        let mut control = ControlSocket::new(control);
        control.queue(&said);
        until(|| {
            assert!(control.flush().is_ok() && listener.ready().unwrap().is_none());
            match control.receive() {
                Ok(None) => None,
                Ok(Some(ControlMessage::Close { reason, .. })) => Some(reason),
                other => panic!("{other:?}"),
            }
        })
    };
    let text = refused(ControlMessage::Ready);
    assert!(text.contains("out of turn"), "{text}");
    let text = refused(ControlMessage::Connect(ConnectionInfo {
        link: LinkLayer::InfiniBand,
        ..sane.clone()
    }));
    assert_eq!(text, "rxb:1 is of Ethernet, the other port of InfiniBand");
    let text = refused(ControlMessage::Connect(ConnectionInfo {
        pairs: sane.pairs.repeat(150),
        ..sane.clone()
    }));
    assert!(text.contains("has queue pairs 129"), "{text}");
    let nowhere = PortAddress { gid: [0; 16], ..address };
    let ports = vec![PortInfo { address: nowhere, key: 0 }];
    let text = refused(ControlMessage::Connect(ConnectionInfo { ports, ..sane }));
    assert!(text.contains("rxb:1: queue pair ") && text.contains("cannot be connected"), "{text}");
    let text = refused(ControlMessage::Close { filled: 0, reason: "no".to_owned() });
    assert_eq!(text, "it refuses: no");
    // It still takes those that do.
    let device = net.device("connect", 0).unwrap();
    let mut connecting = VerbsConnecting::new(call(&net, &listener), &device, &net.config);
    let mut send = None;
    until(|| {
        send = send.take().or_else(|| connecting.step().unwrap());
        listener.ready().unwrap()
    });
}

//! The socket network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::net::Net;
use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};

use crate::conformance;

use crate::support::{Random, Receiving, Sending, address, connect, exchange, meet, until};

/// A network over these addresses of the loopback interface.
pub(crate) fn config(addresses: &[IpAddr], threads: usize, sockets: usize) -> SocketConfig {
    let interface = |&address| SocketInterface { name: "lo".to_owned(), address, scope_id: 0 };
    SocketConfig {
        interfaces: addresses.iter().map(interface).collect(),
        threads: Some(threads),
        sockets_per_thread: Some(sockets),
        secret: [42; 32],
        connect_timeout: Duration::from_secs(20),
    }
}

pub(crate) fn net(addresses: &[IpAddr], threads: usize, sockets: usize) -> Arc<dyn Net> {
    Arc::new(SocketNet::new(config(addresses, threads, sockets)).unwrap())
}

pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

#[test]
fn by_threads() {
    let mut seed = Random::new("by_threads");
    for (threads, sockets) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)] {
        conformance::all(&net(&[V4], threads, sockets), 0, &mut seed);
    }
}

#[test]
fn by_the_caller() {
    let mut seed = Random::new("by_the_caller");
    for sockets in [1, 2, 4] {
        conformance::all(&net(&[V4], 0, sockets), 0, &mut seed);
    }
}

#[test]
fn over_ipv6() {
    let mut seed = Random::new("over_ipv6");
    conformance::all(&net(&[V6], 0, 1), 0, &mut seed);
    conformance::streams(&net(&[V6], 2, 2), 0, &mut seed);
}

#[test]
fn each_interface_is_a_device() {
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let net = net(&[V4, other, V6], 0, 1);
    assert_eq!(net.devices(), 3);
    let properties = net.properties(1).unwrap();
    assert_eq!((properties.name.as_str(), properties.speed), ("lo", 10_000));
    assert_eq!(properties.pci_path, None, "there is no card");
    let mut listener = net.listen(0).unwrap();
    // From the device that is asked for; over IPv6 there is no way to that address, so another leads there.
    for (device, from) in [(0, "127.0.0.1:"), (1, "127.0.0.2:"), (2, "127.0.0.1:")] {
        let mut connecting = net.connect(device, listener.handle()).unwrap();
        let mut ends = meet(&mut listener, &mut connecting).unwrap();
        exchange(&mut ends, b"hello", 5, [0, 0]);
        let (send, mut recv) = ends;
        let buffer = recv.begin(1, 0, 0).unwrap().unwrap();
        drop(send);
        let error = until(|| recv.is_done(&buffer).err()).to_string();
        let wanted = format!("Socket: test: the connection with {from}");
        assert!(
            error.starts_with(&wanted) && error.ends_with("it closed the connection"),
            "{error}"
        );
    }
}

#[test]
fn of_ends_that_differ_the_listeners_sockets_count() {
    let mut seed = Random::new("of_ends_that_differ_the_listeners_sockets_count");
    for ((threads, sockets), (their_threads, their_sockets)) in
        [((0, 1), (2, 3)), ((3, 2), (0, 1)), ((2, 1), (1, 5))]
    {
        let (ours, theirs) =
            (net(&[V4], threads, sockets), net(&[V4], their_threads, their_sockets));
        let mut listener = theirs.listen(0).unwrap();
        let mut connecting = ours.connect(0, listener.handle()).unwrap();
        let (mut send, mut recv) = meet(&mut listener, &mut connecting).unwrap();
        conformance::stream(&mut [(&mut send, &mut recv)], 60, 1 << 20, 8, &mut seed);
    }
}

#[test]
fn limits_name_their_variables() {
    let error = |threads, sockets| SocketNet::new(config(&[V4], threads, sockets)).unwrap_err();
    assert_eq!(error(17, 1).to_string(), "Socket: init: NCCL_SOCKET_NTHREADS=17: it is 0 to 16");
    assert!(error(2, 65).to_string().contains("NCCL_NSOCKS_PERTHREAD=65"));
    let both = error(8, 9).to_string();
    assert!(both.contains("NCCL_SOCKET_NTHREADS=8") && both.contains("NCCL_NSOCKS_PERTHREAD=9"));
    assert!(SocketNet::new(config(&[], 0, 1)).unwrap_err().reason.contains("NCCL_SOCKET_IFNAME"));
    let text = format!("{:?}", config(&[V4], 0, 1));
    assert!(!text.contains("42"), "a secret is not shown: {text}");
}

/// All the sockets that there may be.
#[test]
fn sixteen_threads_and_sixty_four_sockets() {
    let mut seed = Random::new("sixteen_threads_and_sixty_four_sockets");
    let (mut send, mut recv) = connect(&net(&[V4], 16, 4), 0);
    conformance::stream(&mut [(&mut send, &mut recv)], 10, 8 << 20, 4, &mut seed);
}

const INNER: &str = "FERROCCL_TEST_INNER";

/// This test of this program, in a process of its own.
fn inner(test: &str, value: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(INNER, value);
    command
}

#[test]
fn nothing_is_left() {
    let output = inner("socket::counts", "yes").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "counts what its process has: `nothing_is_left` runs it alone"]
fn counts() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let before = (count("fd"), count("task"));
    let mut seed = Random::new("counts");
    for (threads, sockets) in [(0, 2), (2, 2)] {
        let net = net(&[V4], threads, sockets);
        for round in 0..5 {
            let mut listener = net.listen(0).unwrap();
            let half = TcpStream::connect(address(listener.handle())).unwrap();
            let _ = listener.accept().unwrap();
            let mut connecting = net.connect(0, listener.handle()).unwrap();
            if round == 0 {
                continue; // nothing comes of it
            }
            let (mut send, mut recv) = meet(&mut listener, &mut connecting).unwrap();
            conformance::stream(&mut [(&mut send, &mut recv)], 5, 1 << 20, 4, &mut seed);
            let mut ends = (send, recv);
            exchange(&mut ends, &vec![1; 1 << 20], 1 << 20, [0, 0]);
            let (mut send, mut recv) = ends;
            // A thread that is joined may be listed for a moment.
            until(|| (count("task") == before.1 + 2 * threads).then_some(()));
            // Dropped in the midst of a message, in any order.
            let _buffer = recv.begin(64 << 20, 0, 0).unwrap();
            let _message = send.begin(&vec![1; 64 << 20], 0, 0).unwrap();
            if round % 2 == 0 {
                drop(recv);
            } else {
                drop(send);
            }
            drop(half);
        }
    }
    assert_eq!(count("fd"), before.0);
    until(|| (count("task") == before.1).then_some(()));
}

#[test]
fn a_killed_sender_is_noticed() {
    let net = net(&[V4], 1, 2);
    let mut listener = net.listen(0).unwrap();
    let handle: String = listener.handle().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut child =
        inner("socket::sends_until_killed", &handle).stdout(Stdio::null()).spawn().unwrap();
    let mut recv = Receiving::new(until(|| listener.accept().unwrap()));
    let mut arrived = 0;
    let error = until(|| {
        let buffer = match recv.begin(1 << 20, 0, 0) {
            Ok(buffer) => buffer.unwrap(),
            Err(error) => return Some(error),
        };
        let arrival = until(|| recv.is_done(&buffer).transpose());
        match arrival {
            Ok(size) => assert_eq!(size, 1 << 20),
            Err(error) => return Some(error),
        }
        arrived += 1;
        if arrived == 20 {
            child.kill().unwrap();
        }
        None
    });
    assert!(
        error.reason.contains("127.0.0.1:") && error.reason.contains("it closed the connection")
    );
    assert!(recv.begin(1, 0, 0).is_err() && arrived >= 20);
    child.wait().unwrap();
}

#[test]
#[ignore = "`a_killed_sender_is_noticed` starts it"]
fn sends_until_killed() {
    let text = std::env::var(INNER).unwrap();
    let pairs = text.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    let handle: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    let mut connecting = net(&[V4], 1, 1).connect(0, &handle).unwrap();
    let mut send = Sending::new(until(|| connecting.poll().unwrap()));
    let data = vec![9; 1 << 20];
    loop {
        let message = until(|| send.begin(&data, 0, 0).unwrap());
        until(|| send.is_done(&message).unwrap().then_some(()));
    }
}

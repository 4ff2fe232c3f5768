//! How connections end: mistakes, killed peers, cables that break, strangers. Each error says which port, and with whom.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroccl_proxy::NetError;
use ferroccl_proxy::net::socket::{SocketConfig, SocketNet};
use ferroccl_proxy::net::verbs::VerbsNet;
use ferroccl_proxy::net::{FaultNet, Net, TraceNet};

use crate::support::{
    HANG, Message, Random, Receiving, Sending, address, connect, exchange, log_until, meet, until,
};
use crate::{cable, config, conformance, net};

/// What does not match is told to both ends, and in the words of who noticed.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn what_does_not_match_both_ends_are_told() {
    for (size, tag, wanted) in [
        (11, 0, "message 1 has 11 bytes, its buffer 10"),
        (9, 5, "message 1 has tag 5, its buffer 0"),
    ] {
        let (mut send, mut recv) = connect(&cable(|_| ()), 0);
        let first = recv.begin(100, 0, 0).unwrap().unwrap();
        let second = recv.begin(10, 0, 0).unwrap().unwrap();
        let ours = until(|| send.begin(&[1; 100], 0, 0).unwrap());
        // Before the end of the connection, which is told over another way and might overtake it.
        assert_eq!(until(|| recv.is_done(&first).unwrap()), 100);
        let error = until(|| send.begin(&vec![2; size], 0, tag).err());
        assert!(error.reason.contains("127.0.0.1:") && error.reason.ends_with(wanted), "{error}");
        let theirs = until(|| recv.is_done(&second).err());
        let told = format!("it ended the connection: {wanted}");
        assert!(theirs.reason.ends_with(&told), "{theirs}");
        assert!(recv.begin(1, 0, 0).is_err() && send.begin(&[1], 0, 0).is_err());
        // What was done before may still be had, until the end was told: that it was.
        assert!(send.is_done(&ours).is_err());
    }
}

const INNER: &str = "FERROCCL_TEST_INNER";

/// A test of this program in a process of its own, with a listener's handle.
fn inner(test: &str, handle: &[u8]) -> Child {
    let handle: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(INNER, handle);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The handle that this process was started with, if it was.
fn handle() -> Option<Vec<u8>> {
    let text = std::env::var(INNER).ok()?;
    let pairs = text.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    Some(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect())
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_killed_sender_is_noticed() {
    let net = cable(|_| ());
    let mut listener = net.listen(0).unwrap();
    let mut child = inner("ends::sends_until_killed", listener.handle());
    let mut recv = Receiving::new(until(|| listener.accept().unwrap()));
    let mut arrived = 0;
    let error = until(|| {
        let buffer = match recv.begin(1 << 20, 0, 0) {
            Ok(buffer) => buffer.unwrap(),
            Err(error) => return Some(error),
        };
        match until(|| recv.is_done(&buffer).transpose()) {
            Ok(size) => assert_eq!(size, 1 << 20),
            Err(error) => return Some(error),
        }
        arrived += 1;
        if arrived == 5 {
            child.kill().unwrap(); // in the midst of the next
        }
        None
    });
    assert!(error.reason.contains("it closed the connection"), "{error}");
    assert!(error.reason.contains("127.0.0.1:") && recv.begin(1, 0, 0).is_err(), "{error}");
    child.wait().unwrap();
}

#[test]
#[ignore = "`a_killed_sender_is_noticed` starts it"]
fn sends_until_killed() {
    let Some(handle) = handle() else { return };
    let mut connecting = cable(|_| ()).connect(0, &handle).unwrap();
    let mut send = Sending::new(until(|| connecting.poll().unwrap()));
    let data = vec![9; 1 << 20];
    loop {
        let message = until(|| send.begin(&data, 0, 0).unwrap());
        until(|| send.is_done(&message).unwrap().then_some(()));
    }
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_killed_receiver_is_noticed() {
    let net = cable(|_| ());
    // The other way around: the child listens, and says where.
    let mut child = inner("ends::receives_until_killed", &[]);
    let mut text = String::new();
    let mut out = child.stdout.take().unwrap();
    while !text.contains("handle ") || !text.ends_with('.') {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{text}");
        text.push(byte[0] as char);
    }
    let text = text.split_once("handle ").unwrap().1.trim_end_matches('.').as_bytes().to_vec();
    let hex = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let handle: Vec<u8> = text.chunks(2).map(hex).collect();
    let mut connecting = net.connect(0, &handle).unwrap();
    let mut send = Sending::new(until(|| connecting.poll().unwrap()));
    let (data, mut sent) = (vec![9; 1 << 20], 0);
    let error = until(|| {
        let message = match send.begin(&data, 0, 0) {
            Ok(message) => message?,
            Err(error) => return Some(error),
        };
        sent += 1;
        if sent == 5 {
            child.kill().unwrap(); // with this one on its way
        }
        let is_done = until(|| match send.is_done(&message) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        is_done.err()
    });
    // By whichever is first: the end of its socket, or the device that finds nobody.
    let named = ["it closed the connection", "rxa:1, queue pair "];
    assert!(named.iter().any(|text| error.reason.contains(text)), "{error}");
    assert!(send.begin(&data, 0, 0).is_err() && sent >= 5);
    child.wait().unwrap();
}

#[test]
#[ignore = "`a_killed_receiver_is_noticed` starts it"]
fn receives_until_killed() {
    if handle().is_none() {
        return;
    }
    let mut listener = cable(|_| ()).listen(0).unwrap();
    let handle: String = listener.handle().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("handle {handle}.");
    let mut recv = Receiving::new(until(|| listener.accept().unwrap()));
    loop {
        let buffer = until(|| recv.begin(1 << 20, 0, 0).unwrap());
        until(|| recv.is_done(&buffer).unwrap());
    }
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

fn tc(arguments: &str) {
    run("tc", arguments);
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program).args(arguments.split(' ')).status();
    assert!(status.is_ok_and(|status| status.success()), "{program} {arguments}");
}

/// The cable, pulled out at `rxa`'s end until it is dropped.
struct Pulled;

impl Pulled {
    fn new() -> Pulled {
        ip("link set va down");
        Pulled
    }
}

impl Drop for Pulled {
    /// An interface that goes down forgets how the other end is reached (see `tests/rdma/vm`).
    fn drop(&mut self) {
        let theirs = std::fs::read_to_string("/sys/class/net/vb/address").unwrap();
        ip("link set va up");
        ip("route replace 10.0.1.2/32 dev va table 101");
        ip(&format!("neigh replace 10.0.1.2 lladdr {} dev va", theirs.trim()));
    }
}

/// The same cable, which loses all that `rxa` sends until it is dropped.
struct Lossy;

impl Lossy {
    fn new() -> Lossy {
        tc("qdisc add dev va root netem loss 100%");
        Lossy
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        tc("qdisc del dev va root");
    }
}

/// Sends until there is an error, and what both ends say then. The receiver begins with this buffer, if it has one.
fn until_broken(
    (send, recv): &mut (Sending, Receiving),
    mut theirs: Option<Message>,
    bytes: usize,
) -> (NetError, NetError) {
    let data = vec![3; bytes];
    let (mut ours, mut ends) = (None, [None, None]);
    let since = Instant::now();
    while ends.iter().any(Option::is_none) {
        assert!(since.elapsed() < HANG, "it hangs: {ends:?}");
        if ends[0].is_none() {
            let step = match &ours {
                None => send.begin(&data, 0, 0).map(|message| ours = message),
                Some(message) => send.is_done(message).map(|done| {
                    ours = ours.take().filter(|_| !done);
                }),
            };
            ends[0] = step.err();
        }
        if ends[1].is_none() {
            let step = match &theirs {
                None => recv.begin(bytes, 0, 0).map(|buffer| theirs = buffer),
                Some(buffer) => recv.is_done(buffer).map(|size| {
                    theirs = theirs.take().filter(|_| size.is_none());
                }),
            };
            ends[1] = step.err();
        }
        std::thread::yield_now();
    }
    let [Some(ours), Some(theirs)] = ends else { unreachable!() };
    (ours, theirs)
}

/// A buffer of a receiver that has nothing more to write: two messages come after its place was written, so that write has
/// been acknowledged. Whatever breaks then, the receiver's device has nothing to give up.
fn begun_and_quiet(ends: &mut (Sending, Receiving), bytes: usize) -> Message {
    let (send, recv) = ends;
    let buffers = [1, 1, bytes].map(|bytes| recv.begin(bytes, 0, 0).unwrap().unwrap());
    for buffer in &buffers[..2] {
        let message = until(|| send.begin(&[1], 0, 0).unwrap());
        until(|| recv.is_done(buffer).unwrap());
        until(|| send.is_done(&message).unwrap().then_some(()));
    }
    buffers.into_iter().last().unwrap()
}

const BROKEN: usize = 1 << 20;

/// A cable that loses everything: the card gives up after its retries, and both ends say which port that was. An end whose
/// card has nothing to give up is told by the other.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_cable_that_loses_everything_is_an_error() {
    // 2^10 * 4.096 us, twice: some milliseconds, but what the kernel makes of it.
    let net = cable(|c| (c.timeout, c.retry_cnt) = (10, 1));
    for both_write in [false, true] {
        let mut ends = connect(&net, 0);
        exchange(&mut ends, b"before", 6, [0, 0]);
        let begun = (!both_write).then(|| begun_and_quiet(&mut ends, BROKEN));
        let lossy = Lossy::new();
        let (ours, theirs) = until_broken(&mut ends, begun, BROKEN);
        drop(lossy);
        // Linux 6.12's soft-RoCE may say no more than that the queue pair is in the error state.
        let causes = ["failed: transport retry counter", "failed: Work Request Flushed"];
        let own = |error: &NetError, port: &str| {
            error.reason.contains(&format!("{port}, queue pair "))
                && causes.iter().any(|cause| error.reason.contains(cause))
        };
        let told = |error: &NetError| error.reason.contains("it ended the connection: ");
        let text = format!("both write: {both_write}; {ours}; {theirs}");
        if both_write {
            // Who gives up first tells the other, which may have given up in the meantime.
            assert!(own(&ours, "rxa:1") || own(&theirs, "rxb:1"), "{text}");
            assert!(own(&ours, "rxa:1") || told(&ours), "{text}");
            assert!(own(&theirs, "rxb:1") || told(&theirs), "{text}");
        } else {
            assert!(own(&ours, "rxa:1") && told(&theirs), "{text}");
        }
    }
    // It is not the device that is broken.
    exchange(&mut connect(&net, 0), b"again", 5, [0, 0]);
}

/// A cable that is pulled out: an event of the port, and errors, not a hang.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn a_cable_that_is_pulled_is_an_error() {
    let net = cable(|c| (c.timeout, c.retry_cnt) = (10, 1));
    let mut ends = connect(&net, 0);
    let begun = begun_and_quiet(&mut ends, BROKEN);
    {
        let _pulled = Pulled::new();
        let (ours, theirs) = until_broken(&mut ends, Some(begun), BROKEN);
        let text = format!("{ours}; {theirs}");
        assert!(ours.reason.contains("rxa:1, queue pair "), "{text}");
        assert!(ours.reason.contains(" failed: "), "{text}");
        assert!(theirs.reason.contains("it ended the connection: "), "the other is told: {text}");
        // Nor can there be new connections.
        let mut listener = net.listen(0).unwrap();
        let mut connecting = net.connect(0, listener.handle()).unwrap();
        let error = meet(&mut listener, &mut connecting).unwrap_err();
        assert!(error.reason.starts_with("rxa:1: ") && error.reason.contains("down"), "{error}");
    }
    // It works again when it is back.
    until(|| VerbsNet::new(config("=rxa,rxb")).ok().filter(|net| net.devices() == 2));
    exchange(&mut connect(&net, 0), b"again", 5, [0, 0]);
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn no_such_address_is_an_error() {
    let net = cable(|c| c.gid_index = Some(200));
    let listener = net.listen(0).unwrap();
    let mut connecting = net.connect(0, listener.handle()).unwrap();
    let (mut listener, since) = (listener, Instant::now());
    let error = loop {
        assert!(since.elapsed() < HANG, "it hangs");
        let _ = listener.accept().unwrap();
        match connecting.poll() {
            Ok(None) => {}
            Ok(Some(_)) => panic!("it connects"),
            Err(error) => break error,
        }
    };
    assert!(error.reason.contains("rxa:1 has no GID 200 (NCCL_IB_GID_INDEX)"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn strangers_are_refused() {
    let mut seed = Random::new("strangers_are_refused");
    let net = net("=rxe0");
    let mut listener = net.listen(0).unwrap();
    for length in [1, 100, 5000] {
        let mut stranger = TcpStream::connect(address(listener.handle())).unwrap();
        let mut said = vec![0; length];
        seed.fill(&mut said);
        stranger.write_all(&said).unwrap();
        stranger.shutdown(Shutdown::Write).unwrap();
        let here = stranger.local_addr().unwrap();
        let log = log_until(&mut listener, "refused");
        assert!(log.contains(&format!("NET/IB: refused {here}: ")), "{log}");
    }
    let silent = TcpStream::connect(address(listener.handle())).unwrap();
    // Who knows another secret, and who is of another network of the same ranks.
    let mut other = config("=rxe0");
    other.secret = [41; 32];
    let other: Arc<dyn Net> = Arc::new(VerbsNet::new(other).unwrap());
    let mut connecting = other.connect(0, listener.handle()).unwrap();
    let error = meet(&mut listener, &mut connecting).unwrap_err();
    assert!(error.reason.contains("its secret is not ours"), "{error}");
    let sockets = SocketNet::new(SocketConfig {
        interfaces: vec![config("=rxe0").interface],
        threads: None,
        sockets_per_thread: None,
        secret: [42; 32],
        connect_timeout: Duration::from_secs(20),
    });
    let sockets = sockets.unwrap();
    let error = sockets.connect(0, listener.handle()).err().unwrap();
    assert!(error.reason.contains("a handle that has 0 sockets"), "{error}");
    let error = net.connect(0, sockets.listen(0).unwrap().handle()).err().unwrap();
    assert!(error.reason.contains("a handle of another network"), "{error}");
    // None of them held anybody up.
    let mut connecting = net.connect(0, listener.handle()).unwrap();
    exchange(&mut meet(&mut listener, &mut connecting).unwrap(), b"one of us", 9, [0, 0]);
    drop(silent);
}

#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn with_faults_and_a_record() {
    let mut seed = Random::new("with_faults_and_a_record");
    let faulty = FaultNet::new(net("=rxe0"), "seed=3,delay=3".parse().unwrap());
    let net: Arc<dyn Net> = Arc::new(TraceNet::new(Arc::new(faulty)));
    conformance::streams(&net, 0, &mut seed);
    conformance::closed_receiver(&net, 0);
}

/// Nothing is left of networks and connections: no file, no thread.
#[test]
#[ignore = "needs an RDMA device: `in_a_vm` has one"]
fn nothing_is_left() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    drop(net("=rxe0")); // what the library keeps for good
    let before = (count("fd"), count("task"));
    for round in 0..10 {
        let net = net("=rxe0");
        let listener = net.listen(0).unwrap();
        let _half = net.connect(0, listener.handle()).unwrap();
        let (mut send, mut recv) = connect(&net, 0);
        // Dropped in the midst of a message, in any order.
        let _buffer = recv.begin(8 << 20, 0, 0).unwrap();
        let _message = until(|| send.begin(&vec![1; 8 << 20], 0, 0).unwrap());
        if round % 2 == 0 {
            drop(recv);
        } else {
            drop(send);
        }
    }
    assert_eq!(count("fd"), before.0);
    until(|| (count("task") == before.1).then_some(()));
}

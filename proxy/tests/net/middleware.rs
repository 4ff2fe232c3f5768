//! Networks over networks: faults and records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroccl_proxy::net::{FaultNet, Faults, Net, TraceNet};
use tracing::Level;

use crate::conformance;
use crate::socket::{V4, net};
use crate::support::{Random, connect, exchange, until, with_log};

fn faulty(faults: &str) -> Arc<dyn Net> {
    Arc::new(FaultNet::new(net(&[V4], 0, 1), faults.parse::<Faults>().unwrap()))
}

#[test]
fn a_network_with_delays_is_still_one() {
    let mut seed = Random::new("a_network_with_delays_is_still_one");
    let delays = format!("seed={},delay=3", seed.below(1000));
    conformance::all(&faulty(&delays), 0, &mut seed);
    let net = faulty("delay=300us");
    conformance::sizes(&net, 0, &mut seed);
    conformance::full(&net, 0, &mut seed);
}

#[test]
fn a_recorded_network_is_still_one() {
    let mut seed = Random::new("a_recorded_network_is_still_one");
    let net: Arc<dyn Net> = Arc::new(TraceNet::new(net(&[V4], 1, 1)));
    conformance::all(&net, 0, &mut seed);
    let over_both: Arc<dyn Net> = Arc::new(TraceNet::new(faulty("seed=3,delay=1")));
    conformance::all(&over_both, 0, &mut seed);
}

#[test]
fn a_record_has_sizes_tags_and_times() {
    let ((), log) = with_log(Level::TRACE, || {
        let net: Arc<dyn Net> = Arc::new(TraceNet::new(net(&[V4], 0, 1)));
        let mut ends = connect(&net, 0);
        exchange(&mut ends, &[1; 1234], 2000, [0, 0]);
        drop(ends);
    });
    let mut lines = log.lines().filter(|line| line.contains("ferroccl::net:"));
    for wanted in [
        "Socket: listens on device 0",
        "Socket: connects from device 0",
        "Socket: device 0 has connected",
        "has accepted",
        "bytes=2000 kind=Host",
        "irecv connection=",
        "isend connection=",
        "bytes=1234 took=",
        "closes connection=",
    ] {
        assert!(lines.any(|line| line.contains(wanted)), "{wanted} in this order, in\n{log}");
    }
    assert!(log.contains("bytes=2000 tag=0") && log.contains("messages=1 bytes=1234 under_way=0"));
    assert!(log.lines().count() < 30, "a line for what happens, none for what does not:\n{log}");
    // Connections are in it, and what they have read is not.
    let longest = log.lines().map(str::len).max();
    assert!(longest.is_some_and(|bytes| bytes < 4000), "a line of {longest:?} bytes");
}

#[test]
fn delays_are_of_tests_and_of_time() {
    let tests = |faults: &str| -> Vec<u32> {
        let (mut send, mut recv) = connect(&faulty(faults), 0);
        let count = |_| {
            let buffer = recv.begin(4, 0, 0).unwrap().unwrap();
            let message = send.begin(&[1; 4], 0, 0).unwrap().unwrap();
            until(|| send.is_done(&message).unwrap().then_some(()));
            std::thread::sleep(Duration::from_millis(2)); // it is there
            (0..1000).find(|_| recv.is_done(&buffer).unwrap().is_some()).unwrap()
        };
        (0..20).map(count).collect()
    };
    assert_eq!(tests("seed=1"), [0; 20]);
    let delayed = tests("seed=1,delay=7");
    assert!(delayed.iter().all(|&n| n <= 7) && delayed.iter().any(|&n| n > 3), "{delayed:?}");
    assert_eq!(tests("seed=1,delay=7"), delayed, "a seed replays");
    assert_ne!(tests("seed=2,delay=7"), delayed);

    let since = Instant::now();
    let mut ends = connect(&faulty("seed=5,delay=40ms"), 0);
    for _ in 0..8 {
        exchange(&mut ends, b"late", 4, [0, 0]);
    }
    assert!(since.elapsed() > Duration::from_millis(40), "8 times up to 40 ms, at both ends");
}

#[test]
fn what_is_cut_is_cut_for_both() {
    let mut ends = connect(&faulty("cut=5"), 0);
    for _ in 0..5 {
        exchange(&mut ends, b"whole", 5, [0, 0]);
    }
    let (mut send, mut recv) = ends;
    let error = send.begin(b"never", 0, 0).unwrap_err().to_string();
    assert_eq!(error, "Socket: isend: cut on purpose, after 5 messages");
    assert_eq!(recv.begin(5, 0, 0).unwrap_err().operation, "irecv");
    assert!(send.begin(b"never", 0, 0).is_err() && recv.begin(5, 0, 0).is_err());

    // Only one end has the fault: the other learns of it from its network.
    let (faulty, sound) = (faulty("cut=0"), net(&[V4], 0, 1));
    let mut listener = sound.listen(0).unwrap();
    let mut connecting = faulty.connect(0, listener.handle()).unwrap();
    let (mut send, mut recv) = crate::support::meet(&mut listener, &mut connecting).unwrap();
    let buffer = recv.begin(5, 0, 0).unwrap().unwrap();
    assert!(send.begin(b"never", 0, 0).is_err());
    let error = until(|| recv.is_done(&buffer).err());
    assert!(error.reason.contains("closed the connection"), "{error}");
}

#[test]
fn what_is_dropped_stalls_and_holds_nothing_up_before_it() {
    let mut ends = connect(&faulty("drop=3"), 0);
    for _ in 0..3 {
        exchange(&mut ends, b"whole", 5, [0, 0]);
    }
    let (mut send, mut recv) = ends;
    let buffers = [0; 2].map(|_| recv.begin(5, 0, 0).unwrap().unwrap());
    for _ in 0..2 {
        let message = send.begin(b"never", 0, 0).unwrap().unwrap();
        until(|| send.is_done(&message).unwrap().then_some(()));
    }
    for _ in 0..50 {
        assert!(buffers.iter().all(|buffer| recv.is_done(buffer).unwrap().is_none()));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn one_bit_is_corrupted_once() {
    for seed in 0..20 {
        let (mut send, mut recv) = connect(&faulty(&format!("seed={seed},corrupt=2")), 0);
        let mut flipped = Vec::new();
        for (i, size) in [300, 300, 0, 300, 300].into_iter().enumerate() {
            let buffer = recv.begin(400, 0, 0).unwrap().unwrap();
            let message = send.begin(&[0x5a; 300][..size], 0, 0).unwrap().unwrap();
            until(|| send.is_done(&message).unwrap().then_some(()));
            assert_eq!(until(|| recv.is_done(&buffer).unwrap()), size);
            let bits = buffer.bytes()[..size].iter().map(|byte| (byte ^ 0x5a).count_ones());
            flipped.extend(bits.filter(|&bits| bits > 0).map(|bits| (i, bits)));
            assert!(buffer.bytes()[size..].iter().all(|&byte| byte == 0xa5));
        }
        assert_eq!(flipped, [(3, 1)], "seed {seed}: message 2 is empty");
    }
}

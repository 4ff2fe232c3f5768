//! Ranks that do not make a call that the others wait in: who that is, is said to all.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp, log};

use crate::again::{elsewhere, here};
use crate::{init_ranks, sums};

/// The ranks of a group that is made within one thread, or by ranks that find each other.
fn group(n: u32, config: &CommConfig, alone: bool) -> Vec<Communicator> {
    let device = Device::cpu();
    match alone {
        false => Communicator::init_all_with(&device, n, config).unwrap(),
        true => init_ranks(&device, n, config),
    }
}

/// The error of a communicator that others have found to have failed.
fn told(rank: &Communicator) -> Error {
    let start = Instant::now();
    loop {
        match rank.async_error() {
            Err(error) => return error,
            Ok(()) if start.elapsed() < Duration::from_secs(30) => {
                thread::sleep(Duration::from_millis(2));
            }
            Ok(()) => panic!("rank {} is told nothing", rank.rank()),
        }
    }
}

/// Makes a call on some of the ranks; each has the error that it ends in.
fn call(ranks: &[Communicator], who: &[usize]) -> Vec<(usize, Option<Error>)> {
    let device = ranks[0].device();
    let streams: Vec<_> = who.iter().map(|_| device.stream().unwrap()).collect();
    for (&r, stream) in who.iter().zip(&streams) {
        let buffer = device.alloc::<f32>(10).unwrap();
        ranks[r].all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
    }
    who.iter().zip(&streams).map(|(&r, stream)| (r, stream.synchronize().err())).collect()
}

#[test]
fn all_ranks_name_the_absent_ones() {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(300));
    for alone in [false, true] {
        for absent in [&[2][..], &[0, 3]] {
            let ranks = group(5, &config, alone);
            let all = call(&ranks, &[0, 1, 2, 3, 4]);
            assert!(all.iter().all(|(_, error)| error.is_none()), "{all:?}");
            let present: Vec<_> = (0..5).filter(|r| !absent.contains(&(*r as u32))).collect();
            let mut errors = call(&ranks, &present);
            errors.extend(absent.iter().map(|&r| (r as usize, Some(told(&ranks[r as usize])))));
            for (r, error) in errors {
                let Some(Error::Timeout { ranks, reason }) = error else {
                    panic!("rank {r}, alone: {alone}, absent: {absent:?}: {error:?}");
                };
                assert_eq!(ranks, absent, "rank {r}, alone: {alone}: {reason}");
                let call = "call 2, all_reduce(count 10, type float, op sum), waits in vain: rank ";
                assert!(reason.starts_with(call), "{reason}");
                assert!(reason.ends_with(" has not entered it: its last call is 1"), "{reason}");
            }
            // Who comes late is told the same.
            let late = ranks[absent[0] as usize].barrier(&ranks[0].device().stream().unwrap());
            let text = late.unwrap_err().to_string();
            assert!(text.contains(&format!("rank {} has not entered it", absent[0])), "{text}");
        }
    }
}

/// Two communicators whose calls are made in different orders on two ranks, each in one stream. The first that gives up says
/// so, and lets the other one go on.
#[test]
fn calls_in_different_orders_are_told() {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(300));
    let patient = CommConfig::default();
    for alone in [false, true] {
        let (a, b) = (group(2, &config, alone), group(2, &patient, alone));
        let device = a[0].device();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        a[0].barrier(&streams[0]).unwrap();
        b[1].barrier(&streams[1]).unwrap();
        thread::sleep(Duration::from_millis(2)); // who was first is known by the clock
        b[0].barrier(&streams[0]).unwrap();
        a[1].barrier(&streams[1]).unwrap();
        // Rank 1's barrier finds rank 0 gone, or, where it waits for no more than that rank 0 has entered it, ends well.
        assert!(streams[0].synchronize().is_err());
        let late = streams[1].synchronize();
        for error in a.iter().map(told) {
            let Error::Timeout { ranks, reason } = &error else { panic!("{error}") };
            assert_eq!(*ranks, [1], "{reason}");
            let why = "rank 1 has it in a stream behind a call of another communicator";
            assert!(reason.contains(why), "{reason}");
            if let Err(error) = &late {
                assert!(error.to_string().contains(why), "{error}");
            }
        }
        assert!(a[1].barrier(&streams[1]).is_err(), "of a communicator that has failed");
        assert!(b.iter().all(|rank| rank.async_error().is_ok()));
    }
}

/// Where all have made the call it is some connection that does not move, and no rank is to blame for its absence.
#[test]
fn nobody_is_absent_from_messages() {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(200));
    let ranks = group(2, &config, true);
    let (stream, buffer) =
        (ranks[0].device().stream().unwrap(), ranks[0].device().alloc(9).unwrap());
    ranks[0].recv::<u8>(&buffer, 1, &stream).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, Error::Kernel(_)), "{error}");
    assert!(error.to_string().starts_with("timeout: rank 0 channel 0 step "), "{error}");
}

/// Several messages of a block wait at the same time: who waits for them sleeps before long, as for one.
#[test]
fn who_waits_for_several_messages_gives_its_core_away() {
    // Nanoseconds that this thread has had a core.
    let on_core = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let ranks = group(5, &CommConfig::default(), false);
    let device = ranks[0].device();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffers: Vec<_> = ranks.iter().map(|_| device.alloc::<f32>(10).unwrap()).collect();
    let receives = || -> ferroccl::Result<()> {
        (1..5).try_for_each(|peer| ranks[0].recv(&buffers[peer], peer as u32, &streams[0]))
    };
    ferroccl::group(receives).unwrap();
    let waited = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(400));
            for peer in 1..5 {
                ranks[peer].send(&buffers[peer], 0, &streams[peer]).unwrap();
            }
        });
        let before = on_core();
        streams[0].synchronize().unwrap();
        Duration::from_nanos(on_core() - before)
    });
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    // A thread that does not notice that nothing moves has a core for all of the 400 ms.
    assert!(waited < Duration::from_millis(100), "{waited:?}");
}

#[test]
fn calls_that_wait_are_warned_of() {
    let file = std::env::temp_dir().join(format!("ferroccl-stalls-{}.log", std::process::id()));
    if !here() {
        let variables = [
            ("NCCL_DEBUG", "WARN"),
            ("NCCL_DEBUG_FILE", file.to_str().unwrap()),
            ("FERROCCL_WARN_AFTER", "0.1"),
        ];
        return elsewhere(module_path!(), "calls_that_wait_are_warned_of", &variables);
    }
    let file = std::env::var("NCCL_DEBUG_FILE").unwrap();
    log::init_from_env().unwrap();
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    let has = |from: usize, n: usize, what: &str| {
        let start = Instant::now();
        loop {
            let text = &read()[from..];
            if text.matches(what).count() >= n {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no {what:?} in: {text}");
            thread::sleep(Duration::from_millis(10));
        }
    };
    for alone in [false, true] {
        let from = read().len();
        let mut config = CommConfig::default();
        config.warn_after = if alone { None } else { Some(Duration::from_millis(100)) };
        let ranks = group(3, &config, alone);
        assert!(call(&ranks, &[0, 1, 2]).iter().all(|(_, error)| error.is_none()));
        let device = ranks[0].device();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let (part, buffer) = (device.alloc::<f64>(11).unwrap(), device.alloc(33).unwrap());
        for r in [0, 2] {
            ranks[r].all_gather(&part, &buffer, &streams[r]).unwrap();
        }
        for r in [0, 2] {
            // Again after twice the time.
            let waits = format!("rank {r} of 3 has waited for ");
            has(from, 2, &waits);
            has(from, 2, ": rank 1 has not entered it: its last call is 1");
        }
        has(from, 2, " s in call 2, all_gather(count 11, type double, op sum)");
        ranks[1].all_gather(&part, &buffer, &streams[1]).unwrap();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        ranks[0].send(&buffer, 1, &streams[0]).unwrap();
        has(from, 1, " s in sends and receives of 264 bytes: a peer has not made the calls");
        ranks[1].recv(&buffer, 0, &streams[1]).unwrap();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
    std::fs::remove_file(&file).unwrap();
}

/// The thread that looks at calls must own no communicator while it holds what a communicator's drop needs.
#[test]
fn communicators_come_and_go_while_calls_are_watched() {
    let mut config = CommConfig::default();
    // The thread looks as often as it ever does, and each communicator that goes wakes it.
    config.warn_after = Some(Duration::from_millis(20));
    let (done, all_done) = mpsc::channel();
    for thread in 0..3 {
        let (config, done) = (config.clone(), done.clone());
        thread::spawn(move || {
            let device = Device::cpu();
            for _ in 0..1500 {
                let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
                let sums = sums(&device, &[(&ranks[0], 1), (&ranks[1], 2)]);
                assert!(sums.iter().all(|sum| matches!(sum, Ok(3))), "{sums:?}");
            }
            done.send(thread).unwrap();
        });
    }
    drop(done);
    for left in (1..=3).rev() {
        let end = all_done.recv_timeout(Duration::from_secs(60));
        assert!(end.is_ok(), "{left} of 3 threads hang, or have failed: {end:?}");
    }
}

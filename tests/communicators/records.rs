//! The flight recorder: what can be seen of ranks from outside, while they work and when they have failed.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl::flight_recorder::{self, CommRecord, ConnectionRecord, ProcessRecord, trace};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ReduceOp};

use crate::again::{elsewhere, here};
use crate::init_ranks;

fn group(n: u32, config: &CommConfig, alone: bool) -> Vec<Communicator> {
    let device = Device::cpu();
    match alone {
        false => Communicator::init_all_with(&device, n, config).unwrap(),
        true => init_ranks(&device, n, config),
    }
}

/// The ranks of this process's only communicator.
fn ours(record: &ProcessRecord) -> Vec<&CommRecord> {
    assert_eq!(record.pid, std::process::id());
    let mut ranks: Vec<_> = record.communicators.iter().collect();
    ranks.sort_by_key(|comm| comm.rank);
    assert!(ranks.iter().all(|comm| comm.id == ranks[0].id), "{ranks:?}");
    ranks
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ferroccl-records-{}-{name}", std::process::id()))
}

#[test]
fn a_rank_that_waits_says_for_what_and_for_whom() {
    if !here() {
        return elsewhere(module_path!(), "a_rank_that_waits_says_for_what_and_for_whom", &[]);
    }
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(60));
    // Half of them is one: each step is acknowledged.
    config.slots = Some(2);
    // What goes over the mesh moves nothing on connections.
    config.algorithm = Some(Algorithm::Ring);
    for alone in [false, true] {
        let ranks = group(3, &config, alone);
        let device = ranks[0].device();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let buffers: Vec<_> = ranks.iter().map(|_| device.upload(&[1u32; 50]).unwrap()).collect();
        let call = |r: usize| {
            ranks[r].all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r]).unwrap();
        };
        (0..3).for_each(call);
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        call(0);
        call(1);
        let started = Instant::now();
        let record = loop {
            let record = flight_recorder::query(std::process::id()).unwrap();
            let ranks = ours(&record);
            if ranks[..2].iter().all(|comm| !comm.waits.is_empty() && comm.held_up_by.is_some()) {
                break record;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "{record:#?}");
            thread::sleep(Duration::from_millis(10));
        };
        let seen = ours(&record);
        assert_eq!(seen.len(), 3);
        for comm in &seen[..2] {
            let [first, second] = &comm.calls[..] else { panic!("{:?}", comm.calls) };
            assert_eq!((first.number, second.number), (Some(1), Some(2)));
            assert_eq!(first.call, "all_reduce(count 50, type uint32, op sum)");
            let times = [first.entered_ns, first.started_ns.unwrap(), first.ended_ns.unwrap()];
            assert!(times.is_sorted() && first.ended_ns.unwrap() <= record.time_ns, "{times:?}");
            assert!(second.started_ns.is_some() && second.ended_ns.is_none());
            let held_up = comm.held_up_by.as_deref().unwrap();
            assert_eq!(held_up, "call 2 is held up: rank 2 has not entered it: its last call is 1");
            // The first call has moved something on every rank's connections.
            // In the second they may have sent what rank 2 has yet to take.
            let moved = |c: &ConnectionRecord| c.acknowledged > 0 && c.sent >= c.acknowledged;
            assert!(comm.connections.iter().any(moved));
            assert!(comm.connections.iter().any(|c| c.received > 0 && !c.messages));
        }
        assert!(seen.iter().any(|comm| comm.waits.iter().any(|wait| wait.peer == 2)), "{seen:#?}");
        assert_eq!(seen[2].calls.len(), 1);
        assert!(seen[2].waits.is_empty() && seen[2].failure.is_none());
        call(2);
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let record = ProcessRecord::here();
        let ends = ours(&record).iter().map(|comm| comm.calls[1].ended_ns).collect::<Vec<_>>();
        assert!(ends.iter().all(Option::is_some), "{ends:?}");
        drop(ranks);
        // The socket goes with the last communicator.
        let listed = || flight_recorder::processes().unwrap().contains(&std::process::id());
        let dropped = Instant::now();
        while listed() {
            assert!(dropped.elapsed() < Duration::from_secs(30));
            thread::sleep(Duration::from_millis(5));
        }
        assert!(flight_recorder::query(std::process::id()).is_err());
        assert!(ProcessRecord::here().communicators.is_empty());
    }
}

fn read(path: &Path) -> (Vec<ProcessRecord>, serde_json::Value) {
    let bytes = std::fs::read(path).unwrap();
    (trace::read(&bytes).unwrap(), serde_json::from_slice(&bytes).unwrap())
}

/// The first failure of each communicator writes a file, and a signal another; they have a track for each rank and channel.
#[test]
fn failures_and_signals_write_files() {
    let file = temporary("%p.json");
    if !here() {
        let variables =
            [("FERROCCL_DUMP_FILE", file.to_str().unwrap()), ("FERROCCL_DUMP_SIGNAL", "sigusr2")];
        return elsewhere(module_path!(), "failures_and_signals_write_files", &variables);
    }
    let path = std::env::var("FERROCCL_DUMP_FILE").unwrap();
    let path = path.replace("%p", &std::process::id().to_string());
    let numbered =
        |n: u32| PathBuf::from(if n == 1 { path.clone() } else { format!("{path}.{n}") });
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(2));
    let mut next = 1;
    for alone in [false, true] {
        let ranks = group(2, &config, alone);
        let device = ranks[0].device();
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let buffer = device.alloc::<f32>(1 << 20).unwrap();
        for (rank, stream) in ranks.iter().zip(&streams) {
            rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        // SAFETY: kill takes no pointers, and the signal has a handler.
        unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGUSR2) };
        let started = Instant::now();
        while !std::fs::read(numbered(next)).is_ok_and(|bytes| bytes.ends_with(b"}")) {
            assert!(started.elapsed() < Duration::from_secs(30), "no {:?}", numbered(next));
            thread::sleep(Duration::from_millis(5));
        }
        let (records, trace) = read(&numbered(next));
        assert!(ours(&records[0]).iter().all(|comm| comm.failure.is_none()));
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();
        let channels = u64::from(ours(&records[0])[0].calls[0].channels);
        let tracks = of("M").iter().filter(|e| e["name"] == "thread_name").count() as u64;
        assert!(tracks >= 2 * channels, "{events:#?}");
        let slices = of("X");
        assert_eq!(slices.len() as u64, 2 * channels, "{slices:#?}");
        for slice in slices {
            assert_eq!(
                (&slice["name"], &slice["args"]["state"]),
                (&"all_reduce".into(), &"ended".into())
            );
            assert!(
                slice["dur"].as_f64().unwrap() > 0.0 && slice["tid"].as_u64().unwrap() < channels
            );
        }

        ranks[1].all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[1]).unwrap();
        assert!(streams[1].synchronize().is_err());
        // Both ranks have failed, and each has written its file by then, or is about to.
        let started = Instant::now();
        let whole = |n| std::fs::read(numbered(n)).is_ok_and(|bytes| bytes.ends_with(b"}"));
        while !(whole(next + 1) && whole(next + 2)) {
            assert!(started.elapsed() < Duration::from_secs(30), "no {:?}", numbered(next + 2));
            thread::sleep(Duration::from_millis(5));
        }
        let (records, _) = read(&numbered(next + 2));
        for comm in ours(&records[0]) {
            let failure = comm.failure.as_deref().unwrap();
            assert!(failure.contains("rank 0 has not entered it"), "{failure}");
        }
        (next..next + 3).for_each(|n| std::fs::remove_file(numbered(n)).unwrap());
        next += 3;
    }
}

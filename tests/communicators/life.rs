//! Beginnings in the background, and ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroccl::bootstrap::Bootstrap;
use ferroccl::config::Config;
use ferroccl::flight_recorder;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{
    AbortHandle, CommConfig, Communicator, Device, Error, InProgress, Operator, ReduceOp, UniqueId,
};
use ferroccl_proxy::net::LocalNet;

use super::{each, init_ranks, sums};
use crate::again::{elsewhere, here};

/// Far below every limit of a wait, far above what a busy machine takes to notice.
const SOON: Duration = Duration::from_secs(10);

fn loopback() -> UniqueId {
    UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap()
}

fn init(id: &UniqueId, n: u32, rank: u32) -> InProgress<Communicator> {
    let config = CommConfig::default();
    Communicator::init_rank_nonblocking(&Device::cpu(), n, id, rank, &config).unwrap()
}

/// Polls until it is over.
fn polled<T>(progress: &mut InProgress<T>) -> ferroccl::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(value) = progress.poll()? {
            return Ok(value);
        }
        assert!(begun.elapsed() < SOON, "still in progress");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Many at once, of different groups, from one thread: none waits for another.
#[test]
fn several_groups_come_together_at_once() {
    let ids: Vec<_> = (0..8).map(|_| loopback()).collect();
    // Group by group backwards, so that no group is whole before the last call.
    let mut begun: Vec<_> = (0..3)
        .flat_map(|rank| ids.iter().enumerate().map(move |(group, id)| (group, init(id, 3, rank))))
        .collect();
    let ranks: Vec<(usize, Communicator)> =
        begun.iter_mut().map(|(group, progress)| (*group, polled(progress).unwrap())).collect();
    let given: Vec<_> = ranks.iter().map(|(group, c)| (c, 10u64.pow(*group as u32))).collect();
    for ((group, _), sum) in ranks.iter().zip(sums(&Device::cpu(), &given)) {
        assert_eq!(sum.unwrap(), 3 * 10u64.pow(*group as u32));
    }
    let taken = begun[0].1.poll().unwrap_err();
    assert!(matches!(taken, Error::InvalidArgument { argument: "self", .. }), "{taken}");
}

/// In every stage of coming together: nobody has come, one has come and stays silent, all are there but one.
#[test]
fn an_abort_ends_what_waits_for_others() {
    let silent = loopback();
    let config = Config::from_env().unwrap();
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| Bootstrap::connect(&silent, 1, 2, &config.bootstrap()).unwrap());
        let stages: [(&str, UniqueId, u32); 3] = [
            ("nobody", loopback(), 2),
            ("nobody, no root", UniqueId::rendezvous("127.0.0.1:9".parse().unwrap(), 1, b"x"), 2),
            ("one that is silent", silent, 2),
        ];
        for (stage, id, n) in stages {
            let rank = if stage.contains("root") { 1 } else { 0 };
            let mut progress = init(&id, n, rank);
            std::thread::sleep(Duration::from_millis(150));
            assert!(progress.poll().unwrap().is_none(), "{stage}");
            progress.abort();
            let error = polled(&mut progress).unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{stage}: {error}");
            assert!(error.to_string().contains("came together"), "{stage}: {error}");
        }
        drop(peer.join().unwrap());
    });
}

/// From another thread, by the handle of the settings: also before it has begun.
#[test]
fn a_handle_guards_all_that_is_made_with_it() {
    let device = Device::cpu();
    let abort = AbortHandle::new();
    let mut config = CommConfig::default();
    config.abort = Some(abort.clone());
    let ranks = init_ranks(&device, 2, &config);
    let children =
        each(2, |rank| ranks[rank as usize].split_with(Some(0), 0, &config).unwrap().unwrap());
    let free = Communicator::split_all(&ranks, |_| (Some(0), 0)).unwrap();
    let stuck = device.stream().unwrap();
    let buffer = device.alloc::<f32>(10).unwrap();
    children[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stuck).unwrap();
    assert!(!abort.is_aborted());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            abort.abort();
        });
        assert!(stuck.synchronize().is_err());
    });
    for communicator in ranks.iter().chain(&children) {
        assert!(communicator.async_error().is_err());
        assert!(communicator.abort_handle().is_aborted());
    }
    // Nobody aborted what was split off without it.
    let ones: Vec<_> = free.iter().flatten().map(|rank| (rank, 1)).collect();
    assert!(sums(&device, &ones).into_iter().all(|sum| sum.unwrap() == 2));
    let late = Communicator::init_all_with(&device, 2, &config).unwrap();
    assert!(late.iter().all(|communicator| communicator.async_error().is_err()));
    let error = Communicator::init_rank_with(&device, 2, &loopback(), 0, &config).unwrap_err();
    assert!(matches!(error, Error::Aborted { rank: 0, .. }), "{error}");
}

#[test]
fn a_split_in_the_background() {
    let ranks = Communicator::init_all(&Device::cpu(), 3).unwrap();
    let config = CommConfig::default();
    let split = |rank: usize, color| ranks[rank].split_nonblocking(color, 0, &config).unwrap();
    let mut first = split(0, Some(1));
    std::thread::sleep(Duration::from_millis(30));
    assert!(first.poll().unwrap().is_none());
    let (mut second, mut third) = (split(1, None), split(2, Some(1)));
    assert!(polled(&mut second).unwrap().is_none());
    let pair = [polled(&mut first).unwrap().unwrap(), polled(&mut third).unwrap().unwrap()];
    assert_eq!(pair.each_ref().map(Communicator::rank), [0, 1]);
    // Dropped, it is over: its parent can do all but split.
    drop(split(0, Some(1)));
    let ones: Vec<_> = ranks.iter().map(|rank| (rank, 1)).collect();
    assert!(sums(&Device::cpu(), &ones).into_iter().all(|sum| sum.unwrap() == 3));
    assert!(ranks[0].split(Some(0), 0).is_err());
}

/// Ranks of a process do without each other's addresses, as those of several do.
#[test]
fn ranks_of_a_process_share_memory_where_p2p_is_off() {
    let mut config = CommConfig::default();
    config.p2p = Some(false);
    let device = Device::cpu();
    let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
    let ones: Vec<_> = ranks.iter().map(|rank| (rank, 1)).collect();
    assert!(sums(&device, &ones).into_iter().all(|sum| sum.unwrap() == 3));
}

/// What a thread leaves behind that panics does not wait for calls that nobody will make.
#[test]
fn a_panic_ends_what_waits() {
    let device = Device::cpu();
    let mut ranks = Communicator::init_all(&device, 2).unwrap();
    let (second, first) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let buffer = device.alloc::<u32>(100).unwrap();
    first.all_reduce(&buffer, &buffer, ReduceOp::Sum, &streams[0]).unwrap();
    let (theirs, other) = (streams[1].clone(), buffer.clone());
    let panicked = std::thread::spawn(move || {
        second.recv(&other, 0, &theirs).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    let begun = Instant::now();
    for stream in &streams {
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("abort"), "{error}");
    }
    assert!(begun.elapsed() < SOON);
}

/// What was sent is received, though its sender finalizes and is gone before.
#[test]
fn finalize_waits_for_all_that_was_called() {
    let mut remote = CommConfig::default();
    (remote.p2p, remote.shm) = (Some(false), Some(false));
    let mut local = remote.clone();
    local.net = Some(Arc::new(LocalNet::default()));
    for (name, config) in [("memory", CommConfig::default()), ("sockets", remote), ("net", local)] {
        let device = Device::cpu();
        let ranks = init_ranks(&device, 2, &config);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let data: Vec<u32> = (0..300_000).collect();
        let buffers = [device.upload(&data).unwrap(), device.alloc::<u32>(data.len()).unwrap()];
        std::thread::scope(|scope| {
            let (receiver, into, stream) = (&ranks[1], &buffers[1], &streams[1]);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                receiver.recv(into, 0, stream).unwrap();
            });
            ranks[0].send(&buffers[0], 1, &streams[0]).unwrap();
            ranks[0].finalize().unwrap();
            assert!(streams[0].query().unwrap(), "{name}: a call is still under way");
        });
        ranks[0].finalize().unwrap();
        let after = ranks[0].send(&buffers[0], 1, &streams[0]).unwrap_err();
        assert!(after.to_string().contains("is finalized"), "{name}: {after}");
        let mut ranks = ranks;
        drop(ranks.remove(0));
        ranks[0].finalize().unwrap();
        assert!(buffers[1].to_vec(&streams[1]).unwrap() == data, "{name}");
    }
}

/// Where kernels run only while somebody waits, finalizing is that.
#[test]
fn finalize_runs_what_would_not_run_by_itself() {
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(3))));
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    config.net = Some(Arc::new(LocalNet::default()));
    let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffers: Vec<_> = ranks.iter().map(|_| device.upload(&[1u32; 999]).unwrap()).collect();
    for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
        rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
    }
    ranks.iter().for_each(|rank| rank.finalize().unwrap());
    drop(ranks);
    for (buffer, stream) in buffers.iter().zip(&streams) {
        assert_eq!(buffer.to_vec(stream).unwrap(), [3; 999]);
    }
}

#[test]
fn finalize_tells_of_a_failure_and_an_abort_ends_it() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let (stream, buffer) = (device.stream().unwrap(), device.alloc::<f32>(10).unwrap());
    ranks[0].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
    let mut finalize = ranks[0].finalize_nonblocking().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(finalize.poll().unwrap().is_none(), "the other rank has not called");
    finalize.abort();
    let error = polled(&mut finalize).unwrap_err();
    assert!(error.to_string().contains("rank 0 was aborted"), "{error}");
    assert!(ranks[0].finalize().is_err());
    // A group is told at its end, and a communicator that made no call has nothing to wait for.
    let id = loopback();
    let alone = Communicator::init_rank(&device, 1, &id, 0).unwrap();
    alone.finalize().unwrap();
    let late = ferroccl::group(|| alone.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream));
    assert!(late.unwrap_err().to_string().contains("is finalized"));
}

/// Files and threads of this process.
fn held() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// However it ends, nothing stays behind.
#[test]
fn nothing_stays_behind() {
    if !here() {
        let limit = [("FERROCCL_BOOTSTRAP_TIMEOUT", "5")];
        return elsewhere(module_path!(), "nothing_stays_behind", &limit);
    }
    let device = Device::cpu();
    let mut config = CommConfig::default();
    (config.p2p, config.shm) = (Some(false), Some(false));
    let mut round = |which: usize| {
        match which % 5 {
            // Dropped while it waits. (A root to which nobody has come yet stays.)
            0 => {
                let waiting = init(&loopback(), 3, 1);
                std::thread::sleep(Duration::from_millis(100));
                drop(waiting);
            }
            // Aborted while it waits for a part.
            1 => {
                let id = loopback();
                let waiting = [init(&id, 3, 0), init(&id, 3, 2)];
                std::thread::sleep(Duration::from_millis(20));
                waiting.iter().for_each(InProgress::abort);
            }
            // Split, the child dropped with a call that never ends.
            2 => {
                let ranks = init_ranks(&device, 3, &config);
                let children = Communicator::split_all(&ranks, |r| (Some(r % 2), 0)).unwrap();
                let (stream, buffer) = (device.stream().unwrap(), device.alloc::<f32>(9).unwrap());
                let child = children[0].as_ref().unwrap();
                child.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
                child.abort();
                assert!(stream.synchronize().is_err());
            }
            // A split that a rank leaves.
            3 => {
                let mut ranks = Communicator::init_all(&device, 3).unwrap();
                drop(ranks.pop());
                assert!(ranks[0].split(Some(0), 0).is_err());
            }
            // Finalized.
            _ => {
                let ranks = init_ranks(&device, 2, &config);
                let ones: Vec<_> = ranks.iter().map(|rank| (rank, 1)).collect();
                assert!(sums(&device, &ones).into_iter().all(|sum| sum.unwrap() == 2));
                ranks.iter().for_each(|rank| rank.finalize().unwrap());
            }
        }
    };
    (0..5).for_each(&mut round); // what is made once and kept
    let settled = |limit: Option<(usize, usize)>| {
        // Threads that nobody waits for (a root's) end soon, but not at once.
        let begun = Instant::now();
        loop {
            let now = held();
            match limit {
                Some((files, threads)) if now.0 > files || now.1 > threads => {
                    assert!(begun.elapsed() < SOON, "{now:?} files and threads, were {limit:?}");
                }
                None if begun.elapsed() < Duration::from_millis(500) => {}
                _ => return now,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let before = settled(None);
    (0..30).for_each(&mut round);
    settled(Some(before));
}

/// As with NCCL. The record has when a kernel began: none does.
#[test]
fn a_rank_alone_launches_nothing_in_place() {
    if !here() {
        return elsewhere(module_path!(), "a_rank_alone_launches_nothing_in_place", &[]);
    }
    let device = Device::cpu();
    let alone = &Communicator::init_all(&device, 1).unwrap()[0];
    let stream = device.stream().unwrap();
    let a = device.upload(&[3.0f32; 100]).unwrap();
    let b = device.upload(&[5.0f32; 100]).unwrap();
    let twice = Operator::pre_mul_sum(2.0f32);
    // In place, or of nothing.
    let none = a.slice(0..0);
    alone.all_reduce(&a, &a, ReduceOp::Sum, &stream).unwrap();
    alone.all_reduce(&a, &a, ReduceOp::Avg, &stream).unwrap();
    alone.reduce(&a, &a, ReduceOp::Max, 0, &stream).unwrap();
    alone.broadcast(&a, &a, 0, &stream).unwrap();
    alone.all_gather(&a, &a, &stream).unwrap();
    alone.reduce_scatter(&a, &a, ReduceOp::Prod, &stream).unwrap();
    alone.barrier(&stream).unwrap();
    alone.all_reduce(&none, &b.slice(0..0), twice.clone(), &stream).unwrap();
    let started = || {
        let record = flight_recorder::query(std::process::id()).unwrap();
        let calls = record.communicators[0].calls.iter();
        calls.map(|call| (call.started_ns.is_some(), call.ended_ns.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(started(), [(false, true); 8]);
    assert_eq!(a.to_vec(&stream).unwrap(), [3.0; 100]);
    // A copy, and what changes the values.
    alone.all_reduce(&a, &b, ReduceOp::Sum, &stream).unwrap();
    alone.all_reduce(&a, &a, twice, &stream).unwrap();
    assert_eq!(
        (a.to_vec(&stream).unwrap(), b.to_vec(&stream).unwrap()),
        (vec![6.0; 100], vec![3.0; 100])
    );
    assert_eq!(started()[8..], [(true, true); 2]);
    alone.finalize().unwrap();
    assert!(alone.all_reduce(&a, &a, ReduceOp::Sum, &stream).is_err());
}

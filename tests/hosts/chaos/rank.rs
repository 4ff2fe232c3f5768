//! A process of a run, and its ranks.

use std::io::BufRead;
use std::time::{Duration, Instant};

use ferroccl::{
    Communicator, Device, DeviceBuffer, ReduceOp, Result, ShrinkMode, Stream, UniqueId, group,
};

use super::limits::{self, signal};
use super::plan::{Call, Fault, Place, Plan};

/// Variables: the plan's name, and which process this is.
pub(super) const PLAN: &str = "FERROCCL_TEST_CHAOS";
pub(super) const PROCESS: &str = "FERROCCL_TEST_PROCESS";

/// One process, when this one was started as that.
#[test]
fn member() {
    let Ok(name) = std::env::var(PLAN) else { return };
    let plan = Plan::named(&name);
    let process: usize = std::env::var(PROCESS).unwrap().parse().unwrap();
    let id: UniqueId = std::env::var("FERROCCL_UNIQUE_ID").unwrap().parse().unwrap();
    let device = match plan.place {
        Place::Gpus => Device::cuda(process as u32 % 2).unwrap(),
        _ => Device::cpu(),
    };
    // What the process has for good, such as the workers of the device, is there by then.
    let alone = Communicator::init_all(&device, 1).unwrap();
    let stream = device.stream().unwrap();
    // Out of place: a rank alone launches nothing in place.
    let (one, copy) = (device.upload(&[1u32]).unwrap(), device.alloc::<u32>(1).unwrap());
    alone[0].all_reduce(&one, &copy, ReduceOp::Sum, &stream).unwrap();
    stream.synchronize().unwrap();
    drop((alone, stream, one, copy));
    wait_for(|| threads().is_empty());
    let before = limits::open();
    std::thread::scope(|scope| {
        for rank in plan.processes[process].clone() {
            let (plan, id, device) = (&plan, &id, &device);
            scope.spawn(move || say(&format!("{rank} {}", run(plan, id, rank, device))));
        }
    });
    let clean = wait_for(|| threads().is_empty() && limits::open().len() <= before.len());
    if clean {
        say("clean");
    } else {
        let (threads, open) = (threads(), limits::open());
        say(&format!("left threads {threads:?}, descriptors {open:?} instead of {before:?}"));
    }
}

fn say(what: &str) {
    println!("\nchaos: {what}");
}

pub(super) fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The threads that belong to communicators. Workers, which have numbers, the proxy and a GPU's are the process's.
fn threads() -> Vec<(i32, String)> {
    let of_process = |kind: &str| matches!(kind, "proxy" | "cuda") || kind.parse::<u32>().is_ok();
    limits::threads(|name| name.strip_prefix("ferroccl-").is_some_and(|kind| !of_process(kind)))
}

/// What comes of a rank: `done`, or `failed`, the blamed ranks, and the text; and how it went on.
fn run(plan: &Plan, id: &UniqueId, rank: u32, device: &Device) -> String {
    let mine = rank == plan.victim;
    if mine {
        match plan.fault {
            Fault::KilledAtLine(at) => limits::Killer::watch(at),
            Fault::NoDescriptors { left } => {
                limits::limit(libc::RLIMIT_NOFILE, limits::open().len() as u64, left);
            }
            Fault::NoMemory { left } => {
                limits::limit(libc::RLIMIT_AS, limits::address_space(), left);
            }
            Fault::NoThreads { at_once: true } => limits::no_more_threads(),
            _ => {}
        }
    }
    let stream = match device.stream() {
        Ok(stream) => stream,
        Err(error) => return format!("failed {:?} {error}", error.blamed_ranks()),
    };
    let comm = match Communicator::init_rank(device, plan.ranks(), id, rank) {
        Ok(comm) => comm,
        Err(error) => return format!("failed {:?} {error}", error.blamed_ranks()),
    };
    let and_then = |error: &str| {
        let failed = failed(&comm, error);
        format!("{failed} | {}", go_on(plan, &comm, device))
    };
    for (i, (call, count)) in plan.calls.iter().enumerate() {
        let fault = if mine && i == plan.at { plan.fault } else { Fault::Nothing };
        let mut count = *count;
        match fault {
            Fault::Killed { behind: false } => signal(libc::SIGKILL),
            Fault::Frozen | Fault::Paused => signal(libc::SIGSTOP),
            Fault::Absent => return failed(&comm, "is absent"),
            Fault::Exits { behind: false } => std::process::exit(0),
            Fault::Leaves { behind: false } => return "left".to_owned(),
            Fault::Aborts { behind: false } => comm.abort(),
            Fault::Revokes { behind: false } => comm.revoke().unwrap(),
            Fault::Mismatch => count += 1,
            Fault::Forks => fork(&comm, &stream),
            Fault::FrozenThread(name) => limits::freeze(name),
            Fault::NoThreads { at_once: false } => limits::no_more_threads(),
            _ if fault != Fault::Nothing && plan.of_network() => {
                // The driver's work; it says when it is done.
                say("now");
                std::io::stdin().lock().read_line(&mut String::new()).unwrap();
            }
            _ => {}
        }
        let result = make(&comm, *call, count, i as u32, device, &stream, || {
            match fault {
                Fault::Killed { behind: true } => signal(libc::SIGKILL),
                Fault::Exits { behind: true } => std::process::exit(0),
                Fault::Aborts { behind: true } => comm.abort(),
                Fault::Revokes { behind: true } => comm.revoke().unwrap(),
                _ => {}
            }
            fault != Fault::Leaves { behind: true }
        });
        match result {
            Ok(Some(true)) => {}
            Ok(None) => return "left".to_owned(),
            // Who is no neighbour of the victim may be done before it hears of it.
            Ok(Some(false)) if plan.fault == Fault::Mismatch && i == plan.at => {
                return and_then("the result is wrong");
            }
            Ok(Some(false)) => return format!("wrong result of call {i}, {call:?} of {count}"),
            Err(error) => return and_then(&error.to_string()),
        }
    }
    // Who goes while others are in a call is gone for them.
    match comm.barrier(&stream).and_then(|()| stream.synchronize()) {
        Ok(()) => "done".to_owned(),
        Err(error) => and_then(&error.to_string()),
    }
}

/// The communicator's own error, which comes at last: some ranks hear of it from others.
fn failed(comm: &Communicator, call: &str) -> String {
    wait_for(|| comm.async_error().is_err());
    match comm.async_error() {
        Ok(()) => format!("failed [] no error of the communicator, but: {call}"),
        Err(error) => format!("failed {:?} {error}", error.blamed_ranks()),
    }
}

/// Those that are left work together again.
fn go_on(plan: &Plan, comm: &Communicator, device: &Device) -> String {
    let once_more = || -> Result<Option<bool>> {
        let left = comm.shrink(&plan.excluded(), ShrinkMode::Abort)?;
        let stream = device.stream()?;
        make(&left, Call::AllReduce, 1000, 99, device, &stream, || true)
    };
    match once_more() {
        Ok(Some(true)) => "went on".to_owned(),
        Ok(_) => "went on with a wrong result".to_owned(),
        Err(error) => format!("did not go on: {error}"),
    }
}

fn fork(comm: &Communicator, stream: &Stream) {
    // SAFETY: the child makes calls that end before they do anything, and ends without destructors.
    match unsafe { libc::fork() } {
        0 => {
            let refused = comm.barrier(stream).is_err() && comm.finalize().is_err();
            comm.abort();
            // SAFETY: the child's end.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the status is ours.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "calls in a fork are refused");
        }
    }
}

/// Makes a call, and says whether its result is right, unless `behind`, which runs when it is under way, forgoes it.
fn make(
    comm: &Communicator,
    call: Call,
    count: usize,
    salt: u32,
    device: &Device,
    stream: &Stream,
    behind: impl FnOnce() -> bool,
) -> Result<Option<bool>> {
    let (n, rank) = (comm.world_size(), comm.rank());
    let value = |rank: u32, i: usize| ((rank + 1) * (i as u32 % 1000 + 1)).wrapping_add(salt);
    let fill = |rank: u32, len: usize| (0..len).map(|i| value(rank, i)).collect::<Vec<u32>>();
    let all = |i: usize| (0..n).map(|rank| value(rank, i)).fold(0, u32::wrapping_add);
    let up = |values: &[u32]| -> Result<DeviceBuffer<u32>> { device.upload(values) };
    let blocks = n as usize;
    let (input, output, want): (_, DeviceBuffer<u32>, Vec<u32>) = match call {
        Call::AllGather => {
            let want = (0..n).flat_map(|rank| fill(rank, count)).collect();
            (up(&fill(rank, count))?, device.alloc(count * blocks)?, want)
        }
        Call::ReduceScatter => {
            let first = count * rank as usize;
            let want = (first..first + count).map(all).collect();
            (up(&fill(rank, count * blocks))?, device.alloc(count)?, want)
        }
        Call::Broadcast { root } => {
            let buffer = up(&fill(rank, count))?;
            (buffer.clone(), buffer, fill(root, count))
        }
        Call::Around => {
            (up(&fill(rank, count))?, device.alloc(count)?, fill((rank + n - 1) % n, count))
        }
        Call::AllReduce => {
            let buffer = up(&fill(rank, count))?;
            (buffer.clone(), buffer, (0..count).map(all).collect())
        }
        Call::Barrier => (device.alloc(0)?, device.alloc(0)?, Vec::new()),
    };
    match call {
        Call::AllReduce => comm.all_reduce(&input, &output, ReduceOp::Sum, stream)?,
        Call::Broadcast { root } => comm.broadcast(&input, &output, root, stream)?,
        Call::AllGather => comm.all_gather(&input, &output, stream)?,
        Call::ReduceScatter => comm.reduce_scatter(&input, &output, ReduceOp::Sum, stream)?,
        Call::Barrier => comm.barrier(stream)?,
        Call::Around => group(|| {
            comm.send(&input, (rank + 1) % n, stream)?;
            comm.recv(&output, (rank + n - 1) % n, stream)
        })?,
    }
    if !behind() {
        return Ok(None);
    }
    Ok(Some(output.to_vec(stream)? == want))
}

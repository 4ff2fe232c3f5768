//! Random calls on random groups of processes, with a fault in their middle: every run ends in time, with the right results
//! or with the same right culprit on every rank that is left; those go on without it, and nothing of what failed stays.
//!
//! A run is a function of its seed, which a failure prints. `FERROCCL_SEED=N` runs that one alone, `FERROCCL_CHAOS_RUNS=N` so
//! many from 0 on.

use std::fmt::{self, Display};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferroccl::config::Config;
use ferroccl::{
    Communicator, Device, DeviceBuffer, ReduceOp, Result, ShrinkMode, Stream, UniqueId, group,
};

use crate::again::again;
use crate::random::Random;

/// What goes wrong at a call of one rank, the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// SIGKILL, before or behind the call.
    Killed {
        behind: bool,
    },
    /// SIGKILL so long after the process's start: most of these hit the set-up.
    KilledAfter(Duration),
    /// SIGSTOP for ever.
    Frozen,
    /// SIGSTOP, and SIGCONT before anybody's time is up.
    Paused,
    /// It does not make the call.
    Absent,
    /// The process ends without a word to anybody.
    Exits,
    /// The communicator is dropped.
    Leaves,
    Aborts,
    Revokes,
    /// It calls with another count.
    Mismatch,
    /// A child that has a copy of the communicator, uses it, and ends.
    Forks,
    /// There are few descriptors left for the set-up.
    NoDescriptors {
        left: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    AllReduce,
    Broadcast {
        root: u32,
    },
    AllGather,
    ReduceScatter,
    Barrier,
    /// To the next rank, from the one before.
    Around,
}

/// A run, as its seed says.
#[derive(Debug)]
struct Plan {
    seed: u64,
    ranks: u32,
    /// Each rank is a host: over sockets.
    hosts: bool,
    calls: Vec<(Call, usize)>,
    victim: u32,
    /// The call at which the fault is.
    at: usize,
    fault: Fault,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1));
        let ranks = 2 + random.below(4) as u32;
        let n = 3 + random.below(12);
        let call = |random: &mut Random| {
            let count = [0, 1, 3, 64, 1001, 40_000, 200_003][random.below(7)];
            let call = match random.below(6) {
                0 => Call::Broadcast { root: random.below(ranks as usize) as u32 },
                1 => Call::AllGather,
                2 => Call::ReduceScatter,
                3 => Call::Barrier,
                4 => Call::Around,
                _ => Call::AllReduce,
            };
            (call, count)
        };
        let fault = match seed % 15 {
            0 | 1 => Fault::Killed { behind: random.chance(50) },
            2 | 3 => Fault::KilledAfter(Duration::from_millis(random.below(120) as u64)),
            4 => Fault::Frozen,
            5 => Fault::Paused,
            6 => Fault::Absent,
            7 => Fault::Exits,
            8 => Fault::Leaves,
            9 => Fault::Aborts,
            10 => Fault::Revokes,
            11 => Fault::Mismatch,
            12 => Fault::Forks,
            13 => Fault::NoDescriptors { left: random.below(24) as u64 },
            _ => Fault::Nothing,
        };
        let mut calls: Vec<_> = (0..n).map(|_| call(&mut random)).collect();
        let at = random.below(n);
        if fault == Fault::Mismatch {
            calls[at] = (Call::AllReduce, 1 + random.below(5000));
        }
        if matches!(fault, Fault::Absent | Fault::Leaves) {
            // What no rank has to wait for would hide it.
            calls[at] = (Call::AllReduce, 100);
        }
        let (victim, hosts) = (random.below(ranks as usize) as u32, random.chance(50));
        Plan { seed, ranks, hosts, calls, victim, at, fault }
    }

    /// Whether all ranks get all results.
    fn harmless(&self) -> bool {
        matches!(self.fault, Fault::Nothing | Fault::Paused | Fault::Forks)
    }

    /// Whether the victim itself goes on with the others after the failure.
    fn stays(&self) -> bool {
        matches!(self.fault, Fault::Aborts | Fault::Revokes | Fault::Mismatch)
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, ranks, hosts, calls, victim, at, fault } = self;
        let place = if *hosts { "hosts" } else { "processes of a host" };
        write!(
            f,
            "seed {seed}: {ranks} {place}, {} calls, rank {victim} {fault:?} at {at}",
            calls.len()
        )
    }
}

// A rank.

/// One rank, when this process was started as one.
#[test]
fn member() {
    let Ok(seed) = std::env::var("FERROCCL_TEST_CHAOS") else { return };
    let plan = Plan::new(seed.parse().unwrap());
    let rank: u32 = std::env::var("FERROCCL_TEST_RANK").unwrap().parse().unwrap();
    let id: UniqueId = std::env::var("FERROCCL_UNIQUE_ID").unwrap().parse().unwrap();
    let device = Device::cpu();
    let stream = device.stream().unwrap();
    // What the process has for good, such as the workers of the device, is there by then.
    let alone = Communicator::init_all(&device, 1).unwrap();
    alone[0].barrier(&stream).unwrap();
    stream.synchronize().unwrap();
    drop(alone);
    wait_for(|| threads().is_empty());
    let before = descriptors();
    say(&run(&plan, &id, rank, &device, &stream));
    drop(stream);
    let clean = wait_for(|| threads().is_empty() && descriptors() <= before);
    if clean {
        say("clean");
    } else {
        say(&format!("left threads {:?}, {} descriptors of {before}", threads(), descriptors()));
    }
}

fn say(what: &str) {
    println!("\nchaos: {what}");
}

fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The threads that belong to communicators. Workers, which have numbers, and the proxy are the process's.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let of_process = |kind: &str| kind.trim() == "proxy" || kind.trim().parse::<u32>().is_ok();
    names
        .filter(|name| name.strip_prefix("ferroccl-").is_some_and(|kind| !of_process(kind)))
        .collect()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What comes of a rank: `done`, or `failed`, the blamed ranks, and the text; and how it went on.
fn run(plan: &Plan, id: &UniqueId, rank: u32, device: &Device, stream: &Stream) -> String {
    let mine = rank == plan.victim;
    if let (true, Fault::NoDescriptors { left }) = (mine, plan.fault) {
        let limit = descriptors() as u64 + left;
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        // SAFETY: it reads a structure that is there.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    }
    let comm = match Communicator::init_rank(device, plan.ranks, id, rank) {
        Ok(comm) => comm,
        Err(error) => return format!("failed {:?} {error}", error.blamed_ranks()),
    };
    for (i, (call, count)) in plan.calls.iter().enumerate() {
        let fault = if mine && i == plan.at { plan.fault } else { Fault::Nothing };
        let mut count = *count;
        match fault {
            Fault::Killed { behind: false } => signal(libc::SIGKILL),
            Fault::Frozen | Fault::Paused => signal(libc::SIGSTOP),
            Fault::Absent => return failed(&comm, "is absent"),
            Fault::Exits => std::process::exit(0),
            Fault::Leaves => return "left".to_owned(),
            Fault::Aborts => comm.abort(),
            Fault::Revokes => comm.revoke().unwrap(),
            Fault::Mismatch => count += 1,
            Fault::Forks => fork(&comm, stream),
            _ => {}
        }
        let result = make(&comm, *call, count, i as u64, device, stream, || {
            if fault == (Fault::Killed { behind: true }) {
                signal(libc::SIGKILL);
            }
        });
        match result {
            Ok(true) => {}
            Ok(false) => return format!("wrong result of call {i}, {call:?} of {count}"),
            Err(error) => {
                let failed = failed(&comm, &error.to_string());
                return format!("{failed} | {}", go_on(plan, &comm, device));
            }
        }
    }
    // Who goes while others are in a call is gone for them.
    match comm.barrier(stream).and_then(|()| stream.synchronize()) {
        Ok(()) => "done".to_owned(),
        Err(error) => {
            let failed = failed(&comm, &error.to_string());
            format!("{failed} | {}", go_on(plan, &comm, device))
        }
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
    let exclude = if plan.stays() { vec![] } else { vec![plan.victim] };
    let once_more = || -> Result<bool> {
        let left = comm.shrink(&exclude, ShrinkMode::Abort)?;
        let stream = device.stream()?;
        make(&left, Call::AllReduce, 1000, 99, device, &stream, || ())
    };
    match once_more() {
        Ok(true) => "went on".to_owned(),
        Ok(false) => "went on with a wrong result".to_owned(),
        Err(error) => format!("did not go on: {error}"),
    }
}

fn signal(number: i32) {
    // SAFETY: it takes no pointers.
    unsafe { libc::raise(number) };
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

/// Makes a call, and says whether its result is right; `behind` runs when it is under way.
fn make(
    comm: &Communicator,
    call: Call,
    count: usize,
    salt: u64,
    device: &Device,
    stream: &Stream,
    behind: impl FnOnce(),
) -> Result<bool> {
    let (n, rank) = (u64::from(comm.world_size()), u64::from(comm.rank()));
    let value = |rank: u64, i: usize| (rank + 1) * (i as u64 % 1000 + 1) + salt;
    let fill = |rank: u64, len: usize| (0..len).map(|i| value(rank, i)).collect::<Vec<u64>>();
    let all = |i: usize| (0..n).map(|rank| value(rank, i)).sum::<u64>();
    let up = |values: &[u64]| -> Result<DeviceBuffer<u64>> { device.upload(values) };
    let blocks = n as usize;
    let (input, output, want): (_, DeviceBuffer<u64>, Vec<u64>) = match call {
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
            (buffer.clone(), buffer, fill(root.into(), count))
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
            comm.send(&input, ((rank + 1) % n) as u32, stream)?;
            comm.recv(&output, ((rank + n - 1) % n) as u32, stream)
        })?,
    }
    behind();
    Ok(output.to_vec(stream)? == want)
}

// A job.

/// The longest that a run may take: what the settings allow, and time for a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// A rank's process, and what it has said.
struct Process {
    child: Child,
    said: mpsc::Receiver<String>,
}

fn start(plan: &Plan, id: &UniqueId, rank: u32) -> Process {
    let mut command: Command = again(module_path!(), "member");
    // What is only late on a busy machine is no fault.
    let [timeout, heartbeat, bootstrap] =
        if plan.harmless() { ["60", "30", "60"] } else { ["8", "5", "12"] };
    command
        .env("FERROCCL_TEST_CHAOS", plan.seed.to_string())
        .env("FERROCCL_TEST_RANK", rank.to_string())
        .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
        .env("FERROCCL_TIMEOUT", timeout)
        .env("FERROCCL_HEARTBEAT_TIMEOUT", heartbeat)
        .env("FERROCCL_BOOTSTRAP_TIMEOUT", bootstrap)
        .env("FERROCCL_WORKERS", "2");
    if plan.hosts {
        command.env("NCCL_HOSTID", format!("chaos {rank}")).env("NCCL_NET", "Socket");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (tell, said) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(std::io::Result::ok) {
            if let Some(line) = line.strip_prefix("chaos: ") {
                let _ = tell.send(line.to_owned());
            }
        }
    });
    Process { child, said }
}

/// Runs a plan; what is wrong with what came of it.
fn play(plan: &Plan) -> std::result::Result<(), String> {
    let id = UniqueId::new(&Config::default().bootstrap()).unwrap();
    let begun = Instant::now();
    let mut processes: Vec<_> = (0..plan.ranks).map(|rank| start(plan, &id, rank)).collect();
    let victim = &mut processes[plan.victim as usize].child;
    match plan.fault {
        Fault::KilledAfter(time) => {
            std::thread::sleep(time);
            victim.kill().unwrap();
        }
        Fault::Paused => {
            let pid = victim.id();
            let stopped = || {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            };
            let stops = wait_for(|| stopped() || begun.elapsed() > BOUND);
            std::thread::sleep(Duration::from_millis(400));
            // SAFETY: it takes no pointers; the process is our child.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGCONT) };
            assert!(stops, "{plan}: the victim does not stop");
        }
        _ => {}
    }
    let dies = matches!(
        plan.fault,
        Fault::Killed { .. } | Fault::KilledAfter(_) | Fault::Frozen | Fault::Exits
    );
    let mut ends = Vec::new();
    for (rank, process) in (0..).zip(&processes) {
        if dies && rank == plan.victim {
            continue;
        }
        let mut said = Vec::new();
        while said.len() < 2 {
            match process.said.recv_timeout(BOUND.saturating_sub(begun.elapsed())) {
                Ok(line) => said.push(line),
                Err(_) => break,
            }
        }
        ends.push((rank, said));
    }
    for process in &mut processes {
        let _ = process.child.kill();
        process.child.wait().unwrap();
    }
    let wrong: Vec<_> = ends.iter().filter_map(|(rank, said)| judge(plan, *rank, said)).collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{plan}\n{}\nall: {ends:#?}", wrong.join("\n")))
    }
}

/// What is wrong with the end of a rank.
fn judge(plan: &Plan, rank: u32, said: &[String]) -> Option<String> {
    let wrong = |why: &str| Some(format!("rank {rank} {why}: {said:?}"));
    let [end, after] = said else { return wrong("has not ended in time") };
    if after != "clean" {
        return wrong("leaves something behind");
    }
    if plan.harmless() {
        return if end == "done" { None } else { wrong("is not done") };
    }
    let victim = plan.victim;
    if rank == victim {
        return match plan.fault {
            Fault::Leaves if end == "left" => None,
            // Few descriptors may do.
            Fault::NoDescriptors { .. } if end == "done" || end.contains("Too many open files") => {
                None
            }
            Fault::NoDescriptors { .. } => wrong("does not say what it lacks"),
            _ if end.starts_with("failed ") => None,
            _ => wrong("has not failed"),
        };
    }
    // Descriptors may do, and the time may come when all is over.
    if matches!(plan.fault, Fault::NoDescriptors { .. } | Fault::KilledAfter(_)) && end == "done" {
        return None;
    }
    let names = match plan.fault {
        Fault::Aborts => end.contains(&format!("rank {victim} was aborted")),
        Fault::Revokes => end.contains(&format!("revoked by rank {victim}")),
        Fault::Mismatch => {
            end.contains("differs between ranks") && end.contains(&format!("rank {victim} called"))
        }
        Fault::Leaves => {
            end.contains(&format!("rank {victim} has left"))
                || end.starts_with(&format!("failed [{victim}]"))
        }
        Fault::KilledAfter(_) | Fault::NoDescriptors { .. } => {
            end.contains(&format!("rank {victim}"))
        }
        _ => end.starts_with(&format!("failed [{victim}] ")),
    };
    if !names {
        return wrong("does not blame the victim");
    }
    // A group that has not come together does not shrink.
    let together = end.contains(" | ");
    if together && !end.ends_with("| went on") {
        return wrong("does not go on");
    }
    None
}

#[test]
fn every_rank_gets_the_result_or_the_culprit() {
    if std::env::var_os("FERROCCL_TEST_CHAOS").is_some() {
        return;
    }
    let number = |name| std::env::var(name).ok().map(|value: String| value.parse::<u64>().unwrap());
    let seeds = match (number("FERROCCL_SEED"), number("FERROCCL_CHAOS_RUNS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, runs) => 0..runs.unwrap_or(15),
    };
    let (mut failures, runs) = (Vec::new(), seeds.end - seeds.start);
    let mut table = std::collections::BTreeMap::<String, (u64, u64)>::new();
    for seed in seeds {
        let plan = Plan::new(seed);
        let kind = format!("{:?}", plan.fault);
        let kind = kind.split([' ', '(']).next().unwrap_or_default().to_owned();
        let result = play(&plan);
        let count = table.entry(kind).or_default();
        count.0 += 1;
        if let Err(why) = result {
            count.1 += 1;
            eprintln!("{why}");
            failures.push(seed);
        }
    }
    for (kind, (runs, failed)) in table {
        eprintln!("{kind:>14} {runs:>5} runs {failed:>4} failed");
    }
    assert!(
        failures.is_empty(),
        "{} of {runs} runs have failed: FERROCCL_SEED={failures:?}",
        failures.len()
    );
}

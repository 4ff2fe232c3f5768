//! Random calls on random groups of processes, with a fault in their middle: every run ends in time, with the right results
//! or with the same right culprit on every rank that is left; those go on without it, and nothing of what failed stays.
//!
//! A run is a function of its seed, which a failure prints. `FERROCCL_SEED=N` runs that one alone, `FERROCCL_CHAOS_RUNS=N` so
//! many from 0 on. A table has, for each kind of connection, every way to go beside every kind of call; `FERROCCL_TEST_END=N`
//! runs one of its rows alone.
//!
//! `plan` draws a run, `rank` is what its processes do, `limits` what they do to themselves, `relay` a bad way to the root;
//! here is who starts them and judges their ends.

mod limits;
mod plan;
mod rank;
mod relay;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ferroccl::UniqueId;
use ferroccl::config::Config;

use self::plan::{CALLS, Fault, Place, Plan};
use self::rank::wait_for;
use crate::again::{again, only};
use crate::fake_driver::library;
use crate::free_port::free_port;
use crate::hosts::{Hosts, INTERFACE};

/// The longest that a run may take: what the settings allow, and time for a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// The body of a process.
const MEMBER: &str = concat!(module_path!(), "::rank");

/// What a run comes to.
#[derive(Clone, Copy)]
enum Outcome {
    Right,
    Named,
}

/// A process, and what it says.
struct Process {
    child: Child,
    said: mpsc::Receiver<String>,
    lines: Vec<String>,
}

impl Process {
    fn start(plan: &Plan, hosts: Option<&Hosts>, id: &UniqueId, process: usize) -> Self {
        let mut command: Command = match hosts {
            Some(hosts) => {
                let mut command = hosts.command(process, std::env::current_exe().unwrap());
                command.args(only(MEMBER, "member"));
                command
            }
            None => again(MEMBER, "member"),
        };
        // What is only late on a busy machine is no fault.
        let [timeout, heartbeat, bootstrap] =
            if plan.harmless() { ["60", "30", "60"] } else { ["8", "5", "12"] };
        command
            .env(rank::PLAN, &plan.name)
            .env(rank::PROCESS, process.to_string())
            .env("FERROCCL_UNIQUE_ID", id.to_secret_hex())
            .env("FERROCCL_TIMEOUT", timeout)
            .env("FERROCCL_HEARTBEAT_TIMEOUT", heartbeat)
            .env("FERROCCL_BOOTSTRAP_TIMEOUT", bootstrap)
            .env("FERROCCL_WORKERS", "2");
        match plan.place {
            Place::OneHost | Place::Namespaces => {}
            Place::Gpus => {
                let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/cubins-of-chaos");
                command.env("FERROCCL_CUDA_LIBRARY", library()).env("FERROCCL_CUDA_CACHE", cache);
            }
            Place::Hosts => drop(command.env("NCCL_HOSTID", format!("chaos {process}"))),
            Place::Verbs => {
                command.env("NCCL_HOSTID", format!("chaos {process}"));
                let device = ["=rxa", "=rxb"][process % 2];
                command.env("NCCL_SOCKET_IFNAME", "=lo").env("NCCL_IB_HCA", device);
            }
        }
        match plan.place {
            Place::OneHost | Place::Gpus => {}
            Place::Hosts | Place::Namespaces => drop(command.env("NCCL_NET", "Socket")),
            Place::Verbs => drop(command.env("NCCL_NET", "IB")),
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(std::io::Result::ok) {
                if let Some(line) = line.strip_prefix("chaos: ") {
                    let _ = tell.send(line.to_owned());
                }
            }
        });
        Process { child, said, lines: Vec::new() }
    }

    /// Hears what it says until `enough` does, or until it ends, or until the time of a run is over.
    fn hear(&mut self, begun: Instant, enough: impl Fn(&str) -> bool) -> bool {
        loop {
            match self.said.recv_timeout(BOUND.saturating_sub(begun.elapsed())) {
                Ok(line) if enough(&line) => {
                    self.lines.push(line);
                    return true;
                }
                Ok(line) => self.lines.push(line),
                Err(_) => return false,
            }
        }
    }
}

/// Where rank 0 or a root of its own listens: what most ranks know, and what the victim's process does.
fn ids(plan: &Plan, hosts: Option<&Hosts>) -> [UniqueId; 2] {
    if plan.of_root() {
        let root = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let seed = format!("chaos {} {}", plan.name, root.port());
        let ways = [root, relay::relay(root, plan.fault)];
        return ways.map(|at| UniqueId::rendezvous(at, 1, seed.as_bytes()));
    }
    let here = |interface: Option<String>| {
        let config =
            Config::from_lookup(|name| interface.clone().filter(|_| name == "NCCL_SOCKET_IFNAME"));
        UniqueId::new(&config.unwrap().bootstrap()).unwrap()
    };
    let id = match hosts {
        Some(hosts) => hosts.within(0, || here(Some(format!("={INTERFACE}")))),
        None if plan.place == Place::Verbs => here(Some("=lo".to_owned())),
        None => here(None),
    };
    [id, id]
}

/// Runs a plan; what is wrong with what came of it.
fn play(plan: &Plan) -> Result<Outcome, String> {
    let hosts = (plan.place == Place::Namespaces)
        .then(|| Hosts::new(plan.processes.len()))
        .transpose()
        .map_err(|why| format!("{plan}: {why}"))?;
    let [id, of_victim] = ids(plan, hosts.as_ref());
    let at = plan.process(plan.victim);
    let begun = Instant::now();
    let start = |process| {
        let id = if process == at { &of_victim } else { &id };
        Process::start(plan, hosts.as_ref(), id, process)
    };
    let mut processes: Vec<_> = (0..plan.processes.len()).map(start).collect();
    let victim = &mut processes[at];
    match plan.fault {
        Fault::KilledAfter(time) => {
            std::thread::sleep(time);
            victim.child.kill().unwrap();
        }
        Fault::Paused => {
            let pid = victim.child.id();
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
    if let Some(hosts) = hosts.as_ref().filter(|_| plan.of_network())
        && victim.hear(begun, |line| line == "now" || line == "clean")
        && victim.lines.pop().as_deref() == Some("now")
    {
        fail(plan, hosts, at).unwrap();
        let _ = victim.child.stdin.take().unwrap().write_all(b"\n");
        if let Fault::CutFor(time) = plan.fault {
            std::thread::sleep(time);
            hosts.restore(at).unwrap();
        }
    }
    for (i, process) in processes.iter_mut().enumerate() {
        if !(i == at && plan.dies()) {
            process.hear(begun, |line| line == "clean" || line.starts_with("left threads"));
        }
    }
    let ends: Vec<_> = processes.iter_mut().map(end).collect();
    judge(plan, &ends).map_err(|wrong| {
        let ends = ends.iter().map(|end| format!("{end:#?}")).collect::<Vec<_>>().join("\n");
        format!("{plan}\n{wrong}\nall: {ends}")
    })
}

/// What the network does to the victim's host.
fn fail(plan: &Plan, hosts: &Hosts, at: usize) -> Result<(), String> {
    match plan.fault {
        Fault::Cut | Fault::CutFor(_) => hosts.cut(at),
        Fault::Slow(milliseconds) => hosts.delay(at, milliseconds),
        Fault::Lossy(percent) => hosts.loss(at, percent.into()),
        Fault::BlackHole { other } => hosts.part(at, plan.process(other)),
        _ => Ok(()),
    }
}

/// How a process has ended.
#[derive(Debug)]
struct End {
    status: ExitStatus,
    /// What each rank says of its end.
    ranks: BTreeMap<u32, String>,
    /// What it has left behind, or why it does not say.
    left: Option<String>,
}

fn end(process: &mut Process) -> End {
    let mut end = End {
        status: ExitStatus::default(),
        ranks: BTreeMap::new(),
        left: Some("it has not ended in time".to_owned()),
    };
    for line in &process.lines {
        match line.split_once(' ').and_then(|(rank, end)| Some((rank.parse().ok()?, end))) {
            Some((rank, said)) => drop(end.ranks.insert(rank, said.to_owned())),
            None => end.left = Some(line.clone()).filter(|line| line != "clean"),
        }
    }
    if end.left.is_some() {
        let _ = process.child.kill();
    }
    end.status = process.child.wait().unwrap();
    end
}

/// What the ends come to, or what is wrong with them.
fn judge(plan: &Plan, ends: &[End]) -> Result<Outcome, String> {
    let at = plan.process(plan.victim);
    let mut wrong = Vec::new();
    let mut blamed = BTreeSet::new();
    let mut right = true;
    // The fault was late: who is done is gone, and nobody goes on with it.
    let late =
        plan.may_miss() && ends.iter().any(|end| end.ranks.values().any(|end| end == "done"));
    for (process, end) in ends.iter().enumerate() {
        if process == at && plan.dies() {
            continue;
        }
        // There is no other way to go for a Rust program whose memory is used up.
        let aborts = process == at && matches!(plan.fault, Fault::NoMemory { .. });
        if aborts && end.status.signal() == Some(libc::SIGABRT) {
            continue;
        }
        if let Some(left) = &end.left {
            wrong.push(format!("process {process}: {left}"));
        }
        for rank in plan.processes[process].clone() {
            let said = end.ranks.get(&rank).map_or("", |said| said);
            right &= said == "done";
            if let Some(why) = judge_rank(plan, rank, said, late) {
                wrong.push(format!("rank {rank} {why}: {said}"));
            }
            if !plan.excluded().contains(&rank)
                && let Some((ranks, _)) =
                    said.strip_prefix("failed [").and_then(|s| s.split_once(']'))
            {
                blamed.insert(ranks.to_owned());
            }
        }
    }
    if blamed.len() > 1 && plan.culprits().len() == 1 && !plan.may_miss() {
        wrong.push(format!("ranks blame different ones: {blamed:?}"));
    }
    match wrong.is_empty() {
        true if right => Ok(Outcome::Right),
        true => Ok(Outcome::Named),
        false => Err(wrong.join("\n")),
    }
}

/// What is wrong with the end of a rank.
fn judge_rank(plan: &Plan, rank: u32, end: &str, late: bool) -> Option<&'static str> {
    let unless = |right: bool, why| (!right).then_some(why);
    if plan.harmless() {
        return unless(end == "done", "is not done");
    }
    if end == "done" && plan.may_miss() {
        return None;
    }
    let culprits = plan.culprits();
    let victim = plan.victim;
    let among = |list: &str| {
        let mut ranks = list.split(", ").map(|rank| rank.parse::<u32>());
        ranks.all(|rank| rank.is_ok_and(|rank| culprits.contains(&rank)))
    };
    let blames = end
        .strip_prefix("failed [")
        .and_then(|end| end.split_once("] "))
        .is_some_and(|(list, _)| among(list));
    let of_victims =
        if culprits.contains(&rank) { plan.process(rank) == plan.process(victim) } else { false };
    if of_victims {
        let right = match plan.fault {
            Fault::Leaves { .. } => end == "left",
            // Of several ranks of a process any may be the one that has none.
            Fault::NoDescriptors { .. } if culprits.len() > 1 => end.starts_with("failed "),
            Fault::NoDescriptors { .. } => {
                end.contains("Too many open files") || end.contains("(EMFILE; ulimit -n there)")
            }
            Fault::NoThreads { .. } => end.contains("Resource temporarily unavailable"),
            _ => end.starts_with("failed "),
        };
        return unless(right, "does not say what is wrong with it");
    }
    let words = |rank: &u32| {
        let word = format!("rank {rank}");
        end.match_indices(&word)
            .any(|(i, _)| !end[i + word.len()..].starts_with(|c: char| c.is_ascii_digit()))
    };
    let names = match plan.fault {
        Fault::Aborts { .. } => end.contains(&format!("rank {victim} was aborted")),
        Fault::Revokes { .. } => end.contains(&format!("revoked by rank {victim}")),
        Fault::Mismatch => {
            end.contains("differs between ranks") && end.contains(&format!("rank {victim} called"))
        }
        // A proxy alone is not known to stand still: then nobody is blamed.
        Fault::FrozenThread(_) if end.starts_with("failed [] timeout: ") => true,
        Fault::Leaves { .. } => blames || end.contains(&format!("rank {victim} has left")),
        // Some have no communicator yet.
        _ if plan.may_miss() => blames || culprits.iter().any(words),
        _ => blames,
    };
    if !names {
        return Some("does not blame the victim");
    }
    // A group that has not come together does not shrink.
    let on = late || !end.contains(" | ") || end.ends_with("| went on");
    unless(on, "does not go on")
}

/// How many runs of each kind of fault were right, named the victim, and failed; and which failed.
#[derive(Default)]
struct Tally {
    kinds: BTreeMap<String, [u64; 3]>,
    failures: Vec<String>,
}

impl Tally {
    fn play(&mut self, plan: &Plan) {
        let kind = format!("{:?}", plan.fault);
        let kind = kind.split([' ', '(']).next().unwrap_or_default().to_owned();
        let counts = self.kinds.entry(kind).or_default();
        match play(plan) {
            Ok(Outcome::Right) => counts[0] += 1,
            Ok(Outcome::Named) => counts[1] += 1,
            Err(why) => {
                counts[2] += 1;
                eprintln!("{why}");
                self.failures.push(plan.name.clone());
            }
        }
    }

    fn end(self) {
        eprintln!("| fault | right | named | failed |\n|---|---|---|---|");
        for (kind, [right, named, failed]) in self.kinds {
            eprintln!("| {kind} | {right} | {named} | {failed} |");
        }
        assert!(self.failures.is_empty(), "failed: {:?}", self.failures);
    }
}

fn runs() -> Option<u64> {
    std::env::var("FERROCCL_CHAOS_RUNS").ok().map(|runs| runs.parse().unwrap())
}

#[test]
fn every_rank_gets_the_result_or_the_culprit() {
    let seeds = crate::tier::named_or(0..runs().unwrap_or(plan::KINDS));
    let no_hosts = Hosts::new(1).err();
    if let Some(why) = &no_hosts {
        crate::skip::skip(why);
    }
    let mut tally = Tally::default();
    for plan in seeds.map(Plan::new) {
        if no_hosts.is_none() || plan.place != Place::Namespaces {
            tally.play(&plan);
        }
    }
    tally.end();
}

/// Each way to go, by each kind of connection: with one kind of call each, or with all where many runs are asked for.
fn ends(place: Place) {
    let one = std::env::var("FERROCCL_TEST_END").ok();
    let chosen = |number: usize| match &one {
        Some(one) => *one == number.to_string(),
        None => runs().is_some() || number % CALLS.len() == number / CALLS.len() % CALLS.len(),
    };
    let mut tally = Tally::default();
    for (_, plan) in plan::ends(place).into_iter().enumerate().filter(|(i, _)| chosen(*i)) {
        tally.play(&plan);
    }
    tally.end();
}

#[test]
fn who_goes_is_named_over_shared_memory() {
    ends(Place::OneHost);
}

#[test]
fn who_goes_is_named_over_sockets() {
    ends(Place::Hosts);
}

#[test]
fn who_goes_is_named_between_gpus() {
    match ferroccl::ptx::unavailable() {
        Some(why) => crate::skip::skip(why),
        None => ends(Place::Gpus),
    }
}

#[test]
#[ignore = "needs RDMA devices: `verbs::in_a_vm` has them"]
fn one_vm_who_goes_is_named() {
    ends(Place::Verbs);
}

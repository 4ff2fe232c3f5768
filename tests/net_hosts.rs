//! Ranks on several hosts (`hosts`): right results whatever the shape of the job, over far and lossy cables too, and an error
//! that names who is lost when a cable is cut, a rank is killed or a host dies.
//!
//! What runs in a host is this test program, started again: `member` is then the body. `FERROCCL_TEST_TRIALS=200` tries each
//! way to fail so often.

mod hosts;
mod random;
mod skip;

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use ferroccl::config::Config;
use ferroccl::{CommConfig, Communicator, Device, ProtocolId, ReduceOp, UniqueId};
use hosts::Hosts;
use random::Random;

/// For what must come.
const LONG: Duration = Duration::from_secs(60);

fn hosts(n: usize) -> Option<Hosts> {
    Hosts::new(n).map_err(|why| skip::skip(&why)).ok()
}

/// Ranks in hosts, and what they say.
struct Job {
    ranks: Vec<(Child, Lines<BufReader<ChildStdout>>)>,
}

impl Job {
    /// `per_host` ranks in each host, in their order; rank 0 of the first waits for all.
    fn start(hosts: &Hosts, per_host: usize, work: &str, env: &[(&str, &str)]) -> Job {
        let n = hosts.len() * per_host;
        // The root listens in the first host.
        let id = hosts.within(0, || {
            let config = Config::from_lookup(|name| {
                (name == "NCCL_SOCKET_IFNAME").then(|| format!("={}", hosts::INTERFACE))
            });
            UniqueId::new(&config.unwrap()).unwrap()
        });
        let ranks = (0..n).map(|rank| {
            let mut child = hosts
                .command(rank / per_host, std::env::current_exe().unwrap())
                .args(["--exact", "member", "--nocapture", "--test-threads=1"])
                .env("FERROCCL_TEST_RANK", rank.to_string())
                .env("FERROCCL_TEST_RANKS", n.to_string())
                .env("FERROCCL_TEST_JOB", work)
                .env("FERROCCL_UNIQUE_ID", id.to_string())
                .envs(env.iter().copied())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            (child, lines)
        });
        Job { ranks: ranks.collect() }
    }

    /// The next line of a rank that begins so, without that.
    fn told(&mut self, rank: usize, word: &str) -> String {
        let lines = self.ranks[rank].1.by_ref().map_while(Result::ok);
        let found = lines.map(|line| line.strip_prefix(word).map(str::to_owned)).find_map(|l| l);
        found.unwrap_or_else(|| panic!("rank {rank} does not say {word:?}"))
    }

    fn all_told(&mut self, word: &str) -> Vec<String> {
        (0..self.ranks.len()).map(|rank| self.told(rank, word)).collect()
    }

    fn end(self) {
        for (rank, (mut child, _)) in self.ranks.into_iter().enumerate() {
            assert!(child.wait().unwrap().success(), "rank {rank}");
        }
    }
}

/// One rank, when this process was started as one.
#[test]
fn member() {
    let Ok(rank) = std::env::var("FERROCCL_TEST_RANK") else { return };
    let get = |name: &str| std::env::var(name).unwrap();
    let (rank, n): (u32, u32) =
        (rank.parse().unwrap(), get("FERROCCL_TEST_RANKS").parse().unwrap());
    let id: UniqueId = get("FERROCCL_UNIQUE_ID").parse().unwrap();
    let mut config = CommConfig::default();
    config.protocol = std::env::var("FERROCCL_TEST_PROTOCOL").ok().map(|p| p.parse().unwrap());
    let device = Device::cpu();
    let communicator = Communicator::init_rank_with(&device, n, &id, rank, &config).unwrap();
    match get("FERROCCL_TEST_JOB").as_str() {
        "sums" => sums(&communicator),
        "for_ever" => for_ever(&communicator),
        other => panic!("no job {other}"),
    }
}

fn sums(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let (rank, n) = (communicator.rank(), communicator.world_size());
    let calls: usize = std::env::var("FERROCCL_TEST_CALLS").unwrap().parse().unwrap();
    // Every rank draws the same numbers, so that each knows all inputs.
    let mut random = Random(u64::from(n));
    for call in 0..calls {
        let count = random.pick(&[1usize, 7, 1000, 40_001]);
        let shift = random.below(100) as i64;
        let values = |factor: u32| -> Vec<i64> {
            (0..count as i64).map(|i| (i + shift) * i64::from(factor)).collect()
        };
        let send = device.upload(&values(rank + 1)).unwrap();
        let recv = if call % 2 == 0 { send.clone() } else { device.alloc(count).unwrap() };
        communicator.all_reduce(&send, &recv, ReduceOp::Sum, &stream).unwrap();
        let want = values(n * (n + 1) / 2);
        assert!(recv.to_vec(&stream).unwrap() == want, "rank {rank} call {call} count {count}");
    }
    println!("\nended well");
}

fn for_ever(communicator: &Communicator) {
    let device = communicator.device();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<f32>(100_000).unwrap();
    for call in 0u64.. {
        let done = communicator.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream);
        if let Err(error) = done.and_then(|()| stream.synchronize()) {
            println!("\nended {error}");
            return;
        }
        if call == 3 {
            println!("\nruns");
        }
    }
}

const CALLS: &str = "FERROCCL_TEST_CALLS";

/// As many trials as `FERROCCL_TEST_TRIALS` says, or a few. Each is some milliseconds into the calls: where, its number says.
fn trials(few: usize) -> impl Iterator<Item = usize> {
    let set = std::env::var("FERROCCL_TEST_TRIALS").ok();
    (0..set.map_or(few, |n| n.parse().unwrap())).inspect(|trial| println!("trial {trial}"))
}

fn let_it_run(trial: usize) {
    let micros = Random(trial as u64).below(20_000) as u64;
    std::thread::sleep(Duration::from_micros(micros));
}

#[test]
fn jobs_of_every_shape() {
    for (n, per_host) in [(2, 4), (4, 2), (8, 1)] {
        let Some(hosts) = hosts(n) else { return };
        for algorithm in ["Ring", "Tree"] {
            for &protocol in ProtocolId::ALL {
                let protocol = protocol.to_string();
                let env = [
                    (CALLS, "12"),
                    ("NCCL_ALGO", algorithm),
                    ("FERROCCL_TEST_PROTOCOL", protocol.as_str()),
                ];
                println!("{n} hosts of {per_host}, {algorithm}, {protocol}");
                let mut job = Job::start(&hosts, per_host, "sums", &env);
                job.all_told("ended well");
                job.end();
            }
        }
    }
}

#[test]
fn ipv6_and_several_sockets() {
    let Some(hosts) = hosts(2) else { return };
    for (family, threads, sockets) in
        [("AF_INET6", "0", "1"), ("AF_INET", "2", "2"), ("AF_INET6", "1", "4")]
    {
        let env = [
            (CALLS, "12"),
            ("NCCL_SOCKET_FAMILY", family),
            ("NCCL_SOCKET_NTHREADS", threads),
            ("NCCL_NSOCKS_PERTHREAD", sockets),
        ];
        println!("{family}, {threads} threads with {sockets} sockets each");
        let mut job = Job::start(&hosts, 1, "sums", &env);
        job.all_told("ended well");
        job.end();
    }
}

#[test]
fn far_and_lossy_cables_change_nothing() {
    let Some(hosts) = hosts(2) else { return };
    hosts.delay(0, 200).unwrap();
    let mut job = Job::start(&hosts, 1, "sums", &[(CALLS, "2")]);
    job.all_told("ended well");
    job.end();
    hosts.delay(0, 0).unwrap();
    hosts.loss(1, 5.0).unwrap();
    let mut job = Job::start(&hosts, 2, "sums", &[(CALLS, "8")]);
    job.all_told("ended well");
    job.end();
}

#[test]
fn a_killed_rank_is_named_on_every_host() {
    let Some(hosts) = hosts(4) else { return };
    for trial in trials(40) {
        let victim = trial % 8;
        let mut job = Job::start(&hosts, 2, "for_ever", &[]);
        job.all_told("runs");
        let_it_run(trial);
        job.ranks[victim].0.kill().unwrap();
        job.ranks[victim].0.wait().unwrap();
        for rank in (0..8).filter(|rank| *rank != victim) {
            let error = job.told(rank, "ended ");
            assert!(error.contains(&format!("lost rank {victim}")), "{victim}: {error}");
            assert!(job.ranks[rank].0.wait().unwrap().success());
        }
    }
}

#[test]
fn a_host_that_dies_is_named_on_every_other() {
    let Some(hosts) = hosts(4) else { return };
    for trial in trials(20) {
        let victim = trial % 4;
        let mut job = Job::start(&hosts, 2, "for_ever", &[]);
        job.all_told("runs");
        let_it_run(trial);
        hosts.kill(victim).unwrap();
        for rank in (0..8).filter(|rank| rank / 2 != victim) {
            let error = job.told(rank, "ended ");
            let named = (2 * victim..2 * victim + 2)
                .any(|lost| error.contains(&format!("lost rank {lost}")));
            assert!(named, "host {victim}: {error}");
        }
        for (child, _) in &mut job.ranks {
            child.wait().unwrap();
        }
    }
}

/// Nothing closes a connection: it is its silence by which the rank is found.
#[test]
fn a_cut_cable_is_an_error_within_the_time_limit() {
    let Some(hosts) = hosts(3) else { return };
    for trial in trials(3) {
        let victim = trial % 3;
        let mut job = Job::start(&hosts, 1, "for_ever", &[("FERROCCL_TIMEOUT", "4")]);
        job.all_told("runs");
        let_it_run(trial);
        hosts.cut(victim).unwrap();
        let since = Instant::now();
        for rank in (0..3).filter(|rank| *rank != victim) {
            let error = job.told(rank, "ended ");
            let named = error.contains(&format!("lost rank {victim}"));
            assert!(named, "rank {rank}, cut off {victim}: {error}");
        }
        assert!(since.elapsed() < LONG, "{:?}", since.elapsed());
        hosts.restore(victim).unwrap();
        for (child, _) in &mut job.ranks {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}

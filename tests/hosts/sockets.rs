//! Ranks on several hosts (`hosts`): right results whatever the shape of the job, over far and lossy cables too, and an error
//! that names who is lost when a cable is cut, a rank is killed or a host dies.
//!
//! What runs in a host is this test program, started again: `member` is then the body. `FERROCCL_TEST_TRIALS=200` tries each
//! way to fail so often.

use std::time::{Duration, Instant};

use ferroccl::config::Config;
use ferroccl::{ProtocolId, UniqueId};

use crate::hosts::Hosts;
use crate::members::{CALLS, Job};
use crate::random::Random;

/// For what must come.
const LONG: Duration = Duration::from_secs(60);

fn hosts(n: usize) -> Option<Hosts> {
    Hosts::new(n).map_err(|why| crate::skip::skip(&why)).ok()
}

/// `per_host` ranks in each host, in their order; rank 0 of the first waits for all.
fn start(hosts: &Hosts, per_host: usize, work: &str, env: &[(&str, &str)]) -> Job {
    // The root listens in the first host.
    let id = hosts.within(0, || {
        let config = Config::from_lookup(|name| {
            (name == "NCCL_SOCKET_IFNAME").then(|| format!("={}", crate::hosts::INTERFACE))
        });
        UniqueId::new(&config.unwrap().bootstrap()).unwrap()
    });
    Job::start(hosts.len() * per_host, &id, work, env, |rank| {
        hosts.command(rank / per_host, std::env::current_exe().unwrap())
    })
}

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
                let mut job = start(&hosts, per_host, "sums", &env);
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
        let mut job = start(&hosts, 1, "sums", &env);
        job.all_told("ended well");
        job.end();
    }
}

#[test]
fn far_and_lossy_cables_change_nothing() {
    let Some(hosts) = hosts(2) else { return };
    hosts.delay(0, 200).unwrap();
    let mut job = start(&hosts, 1, "sums", &[(CALLS, "2")]);
    job.all_told("ended well");
    job.end();
    hosts.delay(0, 0).unwrap();
    hosts.loss(1, 5.0).unwrap();
    let mut job = start(&hosts, 2, "sums", &[(CALLS, "8")]);
    job.all_told("ended well");
    job.end();
}

#[test]
fn a_killed_rank_is_named_on_every_host() {
    let Some(hosts) = hosts(4) else { return };
    for trial in trials(40) {
        let victim = trial % 8;
        let mut job = start(&hosts, 2, "for_ever", &[]);
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
        let mut job = start(&hosts, 2, "for_ever", &[]);
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
        let mut job = start(&hosts, 1, "for_ever", &[("FERROCCL_TIMEOUT", "4")]);
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

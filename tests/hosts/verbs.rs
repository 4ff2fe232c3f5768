//! Ranks on several hosts, over RDMA: soft-RoCE devices in virtual machines (`tests/rdma/vm`).
//!
//! In one machine, ranks are processes that take themselves for hosts (`NCCL_HOSTID`), each with a device of its own or all
//! with the same; in two, they are hosts indeed. All cases but two are ignored: those start this program in a VM to run them.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ferroccl::config::Config;
use ferroccl::{ProtocolId, UniqueId};

use crate::again::again;
use crate::members::{CALLS, Job};
use crate::tier::is_nightly;

#[test]
fn in_a_vm() {
    if let Err(lack) = crate::rdma::in_a_vm(&["one_vm"]) {
        crate::skip::skip(&lack);
    }
}

#[test]
fn in_two_vms() {
    if let Err(lack) = crate::rdma::in_two_vms("two_vms") {
        crate::skip::skip(&lack);
    }
}

fn id(interface: &str) -> UniqueId {
    let config =
        Config::from_lookup(|name| (name == "NCCL_SOCKET_IFNAME").then(|| interface.to_owned()));
    UniqueId::new(&config.unwrap().bootstrap()).unwrap()
}

/// Ranks, each a host, that have these devices in turn.
fn start(n: usize, devices: &[&str], work: &str, env: &[(&str, &str)]) -> Job {
    Job::start(n, &id("=lo"), work, env, |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("NCCL_NET", "IB").env("NCCL_SOCKET_IFNAME", "=lo");
        command.env("NCCL_HOSTID", format!("host{rank}"));
        command.env("NCCL_IB_HCA", format!("={}", devices[rank % devices.len()]));
        command
    })
}

#[test]
#[ignore = "needs RDMA devices: `in_a_vm` has them"]
fn one_vm_all_protocols() {
    let shapes = [(2, "Ring"), (3, "Tree"), (4, "Ring"), (2, "Tree"), (3, "Ring"), (4, "Tree")];
    for (i, (n, algorithm)) in shapes.into_iter().enumerate() {
        // Each protocol in one shape, or all in all: a job takes an emulated machine seconds.
        let protocols = ProtocolId::ALL.iter().filter(|p| is_nightly() || p.index() == i);
        for protocol in protocols {
            let protocol = protocol.to_string();
            println!("{n} ranks, {algorithm}, {protocol}");
            let env = [
                (CALLS, "8"),
                ("NCCL_ALGO", algorithm),
                ("FERROCCL_TEST_PROTOCOL", protocol.as_str()),
            ];
            let mut job = start(n, &["rxa", "rxb"], "sums", &env);
            job.all_told("ended well");
            job.end();
        }
    }
}

#[test]
#[ignore = "needs RDMA devices: `in_a_vm` has them"]
fn one_vm_settings() {
    let cases: [&[(&str, &str)]; 4] = [
        &[("NCCL_IB_QPS_PER_CONNECTION", "3")],
        &[("NCCL_IB_QPS_PER_CONNECTION", "2"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")],
        &[
            ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
            ("NCCL_IB_AR_THRESHOLD", "0"),
            ("NCCL_IB_USE_INLINE", "0"),
        ],
        &[("NCCL_IB_GID_INDEX", "1"), ("NCCL_IB_TC", "106"), ("NCCL_IB_PCI_RELAXED_ORDERING", "0")],
    ];
    for case in cases {
        println!("{case:?}");
        let env: Vec<_> = [(CALLS, "6")].iter().chain(case).copied().collect();
        let mut job = start(2, &["rxa", "rxb"], "sums", &env);
        job.all_told("ended well");
        job.end();
    }
}

/// What is chosen is said, in NCCL's words: InfiniBand by itself where there is a device, sockets where it is not to be.
#[test]
#[ignore = "needs RDMA devices: `in_a_vm` has them"]
fn one_vm_choices() {
    for (env, wanted) in [
        (("NCCL_NET", ""), "NET/IB : Using [0]rxe0:1/RoCE; OOB lo:127.0.0.1"),
        (("NCCL_IB_DISABLE", "1"), "NET/IB : No device found: NCCL_IB_DISABLE is 1"),
        (("NCCL_IB_HCA", "mlx5"), "NET/IB : No device found: no port of a device is up"),
    ] {
        let folder = std::env::temp_dir().join("choices");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("%p.log");
        let env = [
            (CALLS, "1"),
            ("NCCL_NET", ""),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
            ("NCCL_DEBUG_FILE", file.to_str().unwrap()),
            env,
        ];
        let mut job = start(2, &["rxe0"], "sums", &env);
        job.all_told("ended well");
        job.end();
        let logs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        assert_eq!(logs.len(), 2, "{logs:?}");
        for log in logs {
            let log = std::fs::read_to_string(log).unwrap();
            assert!(log.contains(wanted), "{wanted}: {log}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
#[ignore = "needs RDMA devices: `in_a_vm` has them"]
fn one_vm_a_killed_rank_is_named() {
    for victim in 0..3 {
        let mut job = start(3, &["rxa", "rxb"], "for_ever", &[]);
        job.all_told("runs");
        job.ranks[victim].0.kill().unwrap();
        job.ranks[victim].0.wait().unwrap();
        for rank in (0..3).filter(|rank| *rank != victim) {
            let error = job.told(rank, "ended ");
            assert!(error.contains(&format!("lost rank {victim}")), "{victim}: {error}");
            assert!(job.ranks[rank].0.wait().unwrap().success());
        }
    }
}

/// The cable of a rank is dead, while TCP still goes: an error that names the port, not a hang.
#[test]
#[ignore = "needs RDMA devices: `in_a_vm` has them"]
fn one_vm_a_dead_link_is_an_error() {
    let env = [("NCCL_IB_TIMEOUT", "12"), ("NCCL_IB_RETRY_CNT", "2")];
    let mut job = start(2, &["rxa", "rxb"], "for_ever", &env);
    job.all_told("runs");
    let tc = |what: &str| {
        let mut arguments = vec!["qdisc", what, "dev", "va", "root"];
        arguments.extend(if what == "add" { &["netem", "loss", "100%"][..] } else { &[] });
        assert!(Command::new("tc").args(arguments).status().unwrap().success());
    };
    let since = Instant::now();
    tc("add");
    let errors = job.all_told("ended ");
    tc("del");
    println!("{errors:?} after {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    let named =
        |error: &String| error.contains("rxa:1, queue pair") || error.contains("rxb:1, queue pair");
    assert!(errors.iter().all(named), "{errors:?}");
    // Linux 6.12's soft-RoCE may say no more than that the queue pair is in the error state.
    let causes = ["transport retry counter exceeded", "Work Request Flushed Error"];
    let caused = |error: &String| causes.iter().any(|cause| error.contains(cause));
    assert!(errors.iter().any(caused), "{errors:?}");
    job.end();
}

/// This host's part of a job on two: two ranks here, two there.
#[test]
#[ignore = "needs two hosts: `in_two_vms` has them"]
fn two_vms_all_protocols() {
    let get = |name: &str| std::env::var(name).unwrap();
    let host: usize = get("FERROCCL_VM_HOST").parse().unwrap();
    let shared = PathBuf::from(get("FERROCCL_VM_SHARED"));
    let ids: Vec<String> = if host == 0 {
        // The roots are this process, in this host; it stays until its ranks have ended, and those of the other.
        let ids: Vec<_> = ProtocolId::ALL.iter().map(|_| id("=eth0").to_secret_hex()).collect();
        std::fs::write(shared.join("ids.new"), ids.join("\n")).unwrap();
        std::fs::rename(shared.join("ids.new"), shared.join("ids")).unwrap();
        ids
    } else {
        let since = Instant::now();
        let text = loop {
            assert!(since.elapsed() < Duration::from_secs(60), "the other host gives no id");
            match std::fs::read_to_string(shared.join("ids")) {
                Ok(text) => break text,
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        text.lines().map(str::to_owned).collect()
    };
    // The others have been through one machine.
    let is_tested = |protocol: &ProtocolId| is_nightly() || *protocol == ProtocolId::Ll128;
    for (protocol, id) in ProtocolId::ALL.iter().zip(&ids).filter(|(p, _)| is_tested(p)) {
        let ranks: Vec<_> = (0..2)
            .map(|i| {
                let rank = (2 * host + i).to_string();
                again("", "member")
                    .envs([("NCCL_NET", "IB"), ("NCCL_SOCKET_IFNAME", "=eth0")])
                    .envs([("FERROCCL_TEST_RANKS", "4"), ("FERROCCL_TEST_JOB", "sums")])
                    .envs([(CALLS, "8"), ("FERROCCL_TEST_RANK", rank.as_str())])
                    .env("FERROCCL_UNIQUE_ID", id)
                    .env("FERROCCL_TEST_PROTOCOL", protocol.to_string())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut rank in ranks {
            assert!(rank.wait().unwrap().success(), "{protocol}");
        }
        println!("{protocol}: right");
    }
    // Whoever is done first waits: a machine that goes takes what it has sent last with it.
    std::fs::write(shared.join(format!("done{host}")), "").unwrap();
    let since = Instant::now();
    while !shared.join(format!("done{}", 1 - host)).exists() {
        assert!(since.elapsed() < Duration::from_secs(60), "the other host does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
}

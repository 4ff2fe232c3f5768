//! Environments as launchers make them, and as people break them.

use std::collections::HashMap;

use super::variables::{derived_port, first_host};
use super::*;

/// `NAME=value` words as an environment.
fn read(text: &str) -> Result<Option<RankEnv>> {
    let env: HashMap<&str, &str> =
        text.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    RankEnv::from_lookup(|name| env.get(name).map(|v| (*v).to_owned()))
}

fn ranks(text: &str) -> RankEnv {
    read(text).unwrap().unwrap_or_else(|| panic!("no launcher in {text}"))
}

const OMPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=3 PMIX_NAMESPACE=460062721";
const OMPI_LOCAL: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                          OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=460062721";
const TORCH: &str =
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500";
const SLURM: &str = "SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_JOB_ID=99 \
                     SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[04-05] SLURM_STEP_TASKS_PER_NODE=4,3";
const POD: &str = "JOB_COMPLETION_INDEX=3 WORLD_SIZE=4 NCCL_COMM_ID=localhost:4000";
const RUN: &str = "FERROCCL_RANK=1 FERROCCL_WORLD_SIZE=4 FERROCCL_LOCAL_RANK=1";

#[test]
fn every_launcher_is_understood() {
    for (text, launcher, numbers) in [
        (RUN, Launcher::Ferroccl, (1, 4, 1, 4)),
        (TORCH, Launcher::Torchrun, (5, 8, 1, 4)),
        (OMPI, Launcher::OpenMpi, (3, 4, 1, 2)),
        ("PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", Launcher::Pmi, (2, 4, 0, 2)),
        ("PMI_RANK=2 PMI_SIZE=4", Launcher::Pmi, (2, 4, 2, 4)),
        (SLURM, Launcher::Slurm, (5, 7, 1, 3)),
        (POD, Launcher::Kubernetes, (3, 4, 0, 1)),
    ] {
        let env = ranks(text);
        assert_eq!(env.launcher, launcher, "{text}");
        assert_eq!((env.rank, env.world_size, env.local_rank, env.local_size), numbers, "{text}");
    }
}

#[test]
fn a_local_rank_without_a_size_says_that_there_are_so_many_at_least() {
    let step = "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=7 SLURM_LOCALID=1 SLURM_STEP_ID=0 \
                SLURM_STEP_NODELIST=n[04-05] SLURM_JOB_ID=9";
    let env = ranks(step);
    assert_eq!((env.rank, env.local_rank, env.local_size), (5, 1, 2));
    let most = step.replace("LOCALID=1", "LOCALID=4294967295");
    let error = read(&most).unwrap_err().to_string();
    assert!(error.contains("SLURM_LOCALID=4294967295"), "{error}");
}

#[test]
fn no_launcher_is_none() {
    for text in [
        "",
        "HOME=/root",
        "RANK= WORLD_SIZE=",
        "MASTER_ADDR=host MASTER_PORT=29500", // set for something that has not started yet
        "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=9", // a batch script: one process, not eight
        "JOB_COMPLETION_INDEX=3",             // a pod that has nothing to do with the other ones
    ] {
        assert_eq!(read(text).unwrap(), None, "{text}");
    }
}

#[test]
fn the_inner_launcher_counts() {
    assert_eq!(ranks(&format!("{SLURM} {TORCH}")).launcher, Launcher::Torchrun);
    assert_eq!(ranks(&format!("{OMPI} {RUN}")).launcher, Launcher::Ferroccl);
    let batch = "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=9";
    assert_eq!(ranks(&format!("{OMPI} {batch}")).launcher, Launcher::OpenMpi);
    for inner in [TORCH, OMPI, SLURM, RUN] {
        assert_ne!(ranks(&format!("{POD} {inner}")).launcher, Launcher::Kubernetes, "{inner}");
    }
    // Half of a name that anybody may use does not hide a launcher that is there.
    assert_eq!(ranks(&format!("{OMPI} RANK=1")).launcher, Launcher::OpenMpi);
}

#[test]
fn what_is_half_set_or_contradicts_itself_is_named() {
    for (text, variable) in [
        ("FERROCCL_RANK=1", "FERROCCL_WORLD_SIZE="),
        ("FERROCCL_WORLD_SIZE=1", "FERROCCL_RANK="),
        ("FERROCCL_RANK=4 FERROCCL_WORLD_SIZE=4", "FERROCCL_RANK=4"),
        ("FERROCCL_RANK=-1 FERROCCL_WORLD_SIZE=4", "FERROCCL_RANK=-1"),
        ("FERROCCL_RANK=0 FERROCCL_WORLD_SIZE=0", "FERROCCL_WORLD_SIZE=0"),
        ("FERROCCL_RANK=0 FERROCCL_WORLD_SIZE=4 FERROCCL_LOCAL_RANK=4", "FERROCCL_LOCAL_RANK=4"),
        ("RANK=1", "WORLD_SIZE="),
        ("WORLD_SIZE=1", "RANK="),
        ("RANK=0 WORLD_SIZE=x MASTER_ADDR=h MASTER_PORT=1", "WORLD_SIZE=x"),
        ("RANK=0 WORLD_SIZE=2 MASTER_PORT=29500", "MASTER_ADDR="),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", "MASTER_PORT="),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65535", "MASTER_PORT=65535"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=0", "MASTER_PORT=0"),
        ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE="),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "OMPI_COMM_WORLD_LOCAL_SIZE=2",
        ),
        ("PMI_SIZE=2", "PMI_RANK="),
        ("PMIX_RANK=0 PMIX_NAMESPACE=j", "PMIX_RANK=0"),
        ("SLURM_PROCID=0 SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS="),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=2(y3)",
            "SLURM_STEP_TASKS_PER_NODE=",
        ),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_LOCALID=0 SLURM_NODEID=3 SLURM_STEP_TASKS_PER_NODE=2(x3)",
            "SLURM_NODEID=3",
        ),
        ("JOB_COMPLETION_INDEX=4 WORLD_SIZE=4", "JOB_COMPLETION_INDEX=4"),
        ("JOB_COMPLETION_INDEX=x WORLD_SIZE=4", "JOB_COMPLETION_INDEX=x"),
        ("JOB_COMPLETION_INDEX=0 WORLD_SIZE=0", "WORLD_SIZE=0"),
        ("FERROCCL_RANK=0 FERROCCL_WORLD_SIZE=2 FERROCCL_UNIQUE_ID=zz", "FERROCCL_UNIQUE_ID=..."),
        ("FERROCCL_RANK=0 FERROCCL_WORLD_SIZE=2 NCCL_COMM_ID=zz", "NCCL_COMM_ID=zz"),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(
            error.starts_with("invalid setting") && error.contains(variable),
            "{text}: {error}"
        );
    }
}

/// The rendezvous that an environment leads to.
fn meets(text: &str) -> (String, u16, String) {
    match ranks(text).id_source {
        IdSource::Rendezvous { host, port, seed } => (host, port, seed),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn all_ranks_of_a_job_meet_at_one_place_and_other_jobs_at_another() {
    for (text, other_rank, other_job) in [
        (OMPI_LOCAL, ("RANK=1", "RANK=0"), ("460062721", "460062722")),
        (TORCH, ("RANK=5", "RANK=0"), ("29500", "29510")),
        (SLURM, ("PROCID=5", "PROCID=0"), ("STEP_ID=0", "STEP_ID=1")),
    ] {
        let place = meets(text);
        assert_eq!(place, meets(&text.replacen(other_rank.0, other_rank.1, 1)));
        assert_ne!(place.2, meets(&text.replace(other_job.0, other_job.1)).2);
    }
    assert_eq!(meets(TORCH).1, 29501, "torchrun itself listens on MASTER_PORT");
    assert_ne!(meets(TORCH).2, meets(&format!("{TORCH} TORCHELASTIC_RESTART_COUNT=1")).2);
    assert_eq!(meets(SLURM).0, "n04");
    assert_eq!(meets(&SLURM.replace("=4,3", "=7").replace("NODEID=1", "NODEID=0")).0, "127.0.0.1");
    assert_eq!(meets(&format!("{OMPI} MASTER_ADDR=n1 MASTER_PORT=80")).0, "n1");
}

#[test]
fn derived_ports_stay_in_their_range() {
    for i in 0..10_000 {
        let port = derived_port(&format!("job {i}"));
        assert!((15_000..32_000).contains(&port), "{port}");
    }
}

#[test]
fn an_id_that_is_given_comes_first() {
    let id = UniqueId::rendezvous(([127, 0, 0, 1], 7).into(), 1, b"x");
    let text = id.to_secret_hex();
    let env = ranks(&format!("{TORCH} FERROCCL_UNIQUE_ID={text} NCCL_COMM_ID=127.0.0.1:9"));
    assert_eq!(env.unique_id(&Config::default()).unwrap(), id);
    assert_eq!(env.unique_id(&with_secret("a secret of the user's")).unwrap(), id);
    let env = ranks(&format!("{TORCH} NCCL_COMM_ID=127.0.0.1:9"));
    assert_eq!(env.look_up(&Config::default()).unwrap().address().port(), 9);
}

fn with_secret(text: &str) -> Config {
    Config::from_lookup(|name| (name == "FERROCCL_SECRET").then(|| text.to_owned())).unwrap()
}

/// Anybody can know what launchers say.
#[test]
fn the_users_secret_is_part_of_what_is_derived() {
    let [ours, theirs] = ["a secret of the user's", "another user's secret"].map(with_secret);
    let slurm = SLURM.replace("n[04-05]", "localhost");
    let comm_id = format!("{RUN} NCCL_COMM_ID=127.0.0.1:9");
    for text in [TORCH, OMPI_LOCAL, &slurm, POD, &comm_id] {
        let id = |config: &Config| ranks(text).unique_id(config).unwrap();
        let public = ranks(text).look_up(&Config::default()).unwrap();
        assert_eq!(id(&ours), id(&ours), "{text}: all ranks agree");
        assert_ne!(id(&ours), public, "{text}");
        assert_ne!(id(&ours), id(&theirs), "{text}");
        assert_eq!(id(&ours).address(), public.address(), "{text}");
    }
    let bootstrap = |config: &Config| {
        let comm_id = Some("127.0.0.1:9".parse().unwrap());
        let settings = ferroccl_bootstrap::Settings { comm_id, ..config.bootstrap() };
        UniqueId::new(&settings).unwrap()
    };
    assert_eq!(bootstrap(&ours), ranks(&comm_id).unique_id(&ours).unwrap(), "without a launcher");
    assert_ne!(bootstrap(&ours), bootstrap(&theirs));
}

/// A job of one host, told to meet at a loopback address, has a secret of its own.
#[test]
fn ranks_at_a_loopback_address_share_what_nobody_can_guess() {
    let config = Config::default();
    let at = |place: &str| format!("FERROCCL_WORLD_SIZE=2 NCCL_COMM_ID={place}");
    for (place, secret) in [
        ("127.0.0.1:9", true),
        ("127.9.8.7:9", true),
        ("[::1]:9", true),
        ("localhost:9", true),
        ("10.0.0.1:9", false),
        ("[fe80::1]:9", false),
    ] {
        let ids = [0, 1].map(|rank| {
            let env = ranks(&format!("FERROCCL_RANK={rank} {}", at(place)));
            assert_eq!(env.meets_at_loopback(), secret, "{place}");
            env.unique_id(&config).unwrap()
        });
        assert_eq!(ids[0], ids[1], "{place}");
        let public = ranks(&format!("FERROCCL_RANK=0 {}", at(place))).look_up(&config).unwrap();
        assert_eq!(ids[0] != public, secret, "{place}");
    }
    assert!(ranks(OMPI_LOCAL).meets_at_loopback());
    assert!(!ranks(SLURM).meets_at_loopback());
    // A rank alone needs none, and asks nobody.
    let alone = "FERROCCL_RANK=0 FERROCCL_WORLD_SIZE=1 NCCL_COMM_ID=127.0.0.1:9";
    assert_eq!(ranks(alone).unique_id(&config).unwrap(), ranks(alone).look_up(&config).unwrap());
}

#[test]
fn nothing_to_meet_by_says_what_to_set() {
    for text in [RUN, OMPI, "PMI_RANK=0 PMI_SIZE=2", "JOB_COMPLETION_INDEX=3 WORLD_SIZE=4"] {
        let error = ranks(text).unique_id(&Config::default()).unwrap_err().to_string();
        assert!(error.contains("NCCL_COMM_ID=host:port"), "{text}: {error}");
    }
}

/// A pod's name is known once it runs; a launcher that has started on its hosts has no such excuse.
#[test]
fn only_pods_wait_for_a_name() {
    let mut config = Config::default();
    config.bootstrap_timeout = Duration::from_millis(700);
    for (launcher, waits) in [(POD, true), (TORCH, false)] {
        // RFC 6761: a name that never exists.
        let text =
            format!("NCCL_COMM_ID=pod-0.invalid:4000 {}", launcher.replace("NCCL_COMM_ID", "_"));
        let started = Instant::now();
        let error = ranks(&text).unique_id(&config).unwrap_err().to_string();
        assert!(error.contains("looking up pod-0.invalid"), "{error}");
        assert!(!waits || started.elapsed() >= config.bootstrap_timeout);
    }
    assert_eq!(ranks(POD).look_up(&config).unwrap().address().port(), 4000);
}

#[test]
fn node_lists() {
    for (list, first) in [
        ("n1", Some("n1")),
        ("n1,n2", Some("n1")),
        ("n[01-04,07],x3", Some("n01")),
        ("n[7]", Some("n7")),
        ("rack[1-2]node[03-04]", Some("rack1node03")),
        ("gpu[5,9]-ib,x", Some("gpu5-ib")),
        ("n[1", None),
    ] {
        assert_eq!(first_host(list).as_deref(), first, "{list}");
    }
}

//! Groups as launchers start them: this test program, started by the real `mpirun` and with the variables of
//! the others, finds its rank and its group by the environment alone; on one host, and on several.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use ferroccl::bootstrap::{Bootstrap, UniqueId};
use ferroccl::config::Config;
use ferroccl::launcher::RankEnv;
use ferroccl::log;

use crate::again::only;
use crate::free_port::free_port;
use crate::hosts::Hosts;

/// Held by a test whose ranks listen on a port that was chosen before they start, or try several: the ranks of
/// another such test, knocking at that port, would be in its log.
fn ports() -> MutexGuard<'static, ()> {
    static PORTS: Mutex<()> = Mutex::new(());
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of a rank: two groups one after the other, and a line of what came of it.
#[test]
fn as_rank() {
    if std::env::var_os("FERROCCL_TEST_RANK").is_none() {
        return;
    }
    log::init_from_env().unwrap();
    let config = Config::from_env().unwrap();
    let me = RankEnv::from_env().unwrap().expect("a launcher");
    let id = me.unique_id(&config).unwrap();
    let groups = if id.is_rendezvous() { 2 } else { 1 };
    for _ in 0..groups {
        let group = Bootstrap::connect(&id, me.rank, me.world_size, &config.bootstrap())
            .unwrap_or_else(|e| panic!("{e}: {e:?}"));
        let sum: u32 =
            group.all_gather(&[me.rank as u8]).unwrap().iter().map(|b| u32::from(b[0])).sum();
        // One write: lines of several ranks share a pipe.
        print!(
            "\nrank {} of {} local {} of {} by {}: sum {sum}\n",
            me.rank, me.world_size, me.local_rank, me.local_size, me.launcher
        );
    }
}

/// A command without the launchers that the tests themselves may run under.
fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["OMPI_", "PMI", "SLURM_", "NCCL_", "FERROCCL_"].iter().any(|p| name.starts_with(p)) {
            command.env_remove(&*name);
        }
    }
    for name in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "JOB_COMPLETION_INDEX",
    ] {
        command.env_remove(name);
    }
    command.env("FERROCCL_TEST_RANK", "1").env("FERROCCL_BOOTSTRAP_TIMEOUT", "60");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn rank_command() -> Command {
    rank_by(Command::new(std::env::current_exe().unwrap()))
}

fn rank_by(command: Command) -> Command {
    let mut command = clean(command);
    command.args(only(module_path!(), "as_rank"));
    command
}

/// The `rank ...` lines of an output, sorted, each once.
fn lines(outputs: &[Output]) -> Vec<String> {
    let mut lines = Vec::new();
    for output in outputs {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        lines.extend(text.lines().filter(|l| l.starts_with("rank ")).map(str::to_owned));
    }
    lines.sort();
    lines.dedup();
    lines
}

fn expected(n: u32, launcher: &str) -> Vec<String> {
    expected_of(n, n, launcher)
}

/// Of `n` ranks, `m` on a host.
fn expected_of(n: u32, m: u32, launcher: &str) -> Vec<String> {
    let sum: u32 = (0..n).sum();
    let line = |r| format!("rank {r} of {n} local {} of {m} by {launcher}: sum {sum}", r % m);
    (0..n).map(line).collect()
}

/// Starts `n` ranks with the variables that `vars` gives each.
fn start(n: u32, vars: impl Fn(u32) -> Vec<(&'static str, String)>) -> Vec<Output> {
    let ranks: Vec<_> =
        (0..n).map(|rank| rank_command().envs(vars(rank)).spawn().unwrap()).collect();
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

/// Arguments for an `mpirun` that keeps its files in `dir`. Open MPI 4.1 keeps those of all jobs of a user in
/// one directory under `/tmp`, and a job fails ("File exists") if another makes that directory at the
/// same moment.
fn own_session(dir: &Path) -> [&OsStr; 3] {
    [OsStr::new("--mca"), OsStr::new("orte_tmpdir_base"), dir.as_os_str()]
}

#[test]
fn mpirun() {
    let _ports = ports();
    if Command::new("mpirun").arg("--version").output().is_err() {
        return crate::skip::skip("no mpirun (apt-get install openmpi-bin)");
    }
    // Two jobs at the same time must not meet.
    let job = |n: u32| {
        let exe = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        clean(Command::new("mpirun"))
            .args(own_session(dir.path()))
            .args(["--allow-run-as-root", "--oversubscribe", "-n", &n.to_string()])
            .arg(exe)
            .args(only(module_path!(), "as_rank"))
            .output()
            .unwrap()
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| job(3));
        assert_eq!(lines(&[job(4)]), expected(4, "mpirun (Open MPI)"));
        assert_eq!(lines(&[other.join().unwrap()]), expected(3, "mpirun (Open MPI)"));
    });
}

#[test]
fn mpirun_on_several_hosts() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return crate::skip::skip("no mpirun (apt-get install openmpi-bin)");
    }
    let hosts = match Hosts::new(2) {
        Ok(hosts) => hosts,
        Err(why) => return crate::skip::skip(&why),
    };
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    hosts.remote_shell(&shell).unwrap();
    let job = |id: Option<String>| {
        let mut command = clean(hosts.command(0, "mpirun"));
        command.args(own_session(dir.path()));
        command.args(["--allow-run-as-root", "--mca", "plm_rsh_agent", shell.to_str().unwrap()]);
        command.args(["-n", "4", "--host"]);
        command.arg(format!("{}:2,{}:2", hosts.ipv4(0), hosts.ipv4(1)));
        command.args(["-x", "FERROCCL_TEST_RANK", "-x", "FERROCCL_BOOTSTRAP_TIMEOUT"]);
        if let Some(id) = id {
            command.args(["-x", &format!("NCCL_COMM_ID={id}")]);
        }
        command.arg(std::env::current_exe().unwrap());
        command.args(only(module_path!(), "as_rank")).output().unwrap()
    };
    let launcher = "mpirun (Open MPI)";
    let id = format!("{}:4000", hosts.ipv4(0));
    assert_eq!(lines(&[job(Some(id))]), expected_of(4, 2, launcher));
    // mpirun gives every rank the address of its own, but not rank 0's.
    let lost = job(None);
    let text = [&lost.stdout[..], &lost.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(!lost.status.success());
    assert!(text.contains("the ranks are on several hosts"), "{text}");
}

/// Two ranks on each of two hosts, whose launchers say where to meet.
#[test]
fn variables_on_several_hosts() {
    let hosts = match Hosts::new(2) {
        Ok(hosts) => hosts,
        Err(why) => return crate::skip::skip(&why),
    };
    let names = |launcher| match launcher {
        "ferroccl run" => {
            ["FERROCCL_RANK", "FERROCCL_WORLD_SIZE", "FERROCCL_LOCAL_RANK", "FERROCCL_LOCAL_SIZE"]
        }
        "torchrun" => ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        _ => ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    };
    let (v4, v6) = (hosts.ipv4(0), hosts.ipv6(0));
    let comm_id = |at: String| vec![("NCCL_COMM_ID", at)];
    let master = |at: String| vec![("MASTER_ADDR", at), ("MASTER_PORT", "29500".to_owned())];
    for (launcher, meet) in [
        ("ferroccl run", comm_id(format!("{v4}:4000"))),
        ("ferroccl run", comm_id(format!("[{v6}]:4000"))),
        ("mpiexec (PMI)", comm_id(format!("{v4}:4000"))),
        ("mpiexec (PMI)", master(v4.to_string())),
        ("torchrun", master(v4.to_string())),
        ("torchrun", master(v6.to_string())),
    ] {
        let ranks: Vec<_> = (0..4)
            .map(|rank: u32| {
                let host = (rank / 2) as usize;
                let mut command = hosts.command(host, std::env::current_exe().unwrap());
                let numbers = [rank, 4, rank % 2, 2].map(|n| n.to_string());
                command = rank_by(command);
                command.envs(names(launcher).into_iter().zip(numbers)).envs(meet.clone());
                command.spawn().unwrap()
            })
            .collect();
        let outputs: Vec<_> =
            ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
        assert_eq!(lines(&outputs), expected_of(4, 2, launcher), "{meet:?}");
    }
}

#[test]
fn torchrun_variables() {
    let _ports = ports();
    // torchrun's own store listens on MASTER_PORT.
    let port = free_port();
    let _store = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let outputs = start(4, |rank| {
            vec![
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", "4".to_owned()),
                ("LOCAL_RANK", rank.to_string()),
                ("LOCAL_WORLD_SIZE", "4".to_owned()),
                ("MASTER_ADDR", host.to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("TORCHELASTIC_RUN_ID", "none".to_owned()),
            ]
        });
        assert_eq!(lines(&outputs), expected(4, "torchrun"));
    }
}

#[test]
fn slurm_variables() {
    let _ports = ports();
    let job = std::process::id().to_string();
    let outputs = start(3, |rank| {
        vec![
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_NTASKS", "3".to_owned()),
            ("SLURM_JOB_ID", job.clone()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_STEP_NODELIST", "here".to_owned()),
            ("SLURM_STEP_TASKS_PER_NODE", "3".to_owned()),
        ]
    });
    assert_eq!(lines(&outputs), expected(3, "srun (Slurm)"));
}

#[test]
fn kubernetes_variables() {
    let _ports = ports();
    let port = free_port();
    let outputs = start(3, |rank| {
        vec![
            ("JOB_COMPLETION_INDEX", rank.to_string()),
            ("WORLD_SIZE", "3".to_owned()),
            ("NCCL_COMM_ID", format!("localhost:{port}")),
            ("FERROCCL_SECRET", "a secret of the job's user".to_owned()),
        ]
    });
    assert_eq!(lines(&outputs), expected_of(3, 1, "Kubernetes"));
}

#[test]
fn ferroccl_run_variables_and_the_log() {
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    let log = std::env::temp_dir().join(format!("ferroccl-{}-%h-%p.log", std::process::id()));
    let outputs = start(2, |rank| {
        vec![
            ("FERROCCL_RANK", rank.to_string()),
            ("FERROCCL_WORLD_SIZE", "2".to_owned()),
            ("FERROCCL_LOCAL_RANK", rank.to_string()),
            ("FERROCCL_UNIQUE_ID", id.to_secret_hex()),
            ("NCCL_DEBUG", "INFO".to_owned()),
            // Rank 0 logs to a file, rank 1 to stderr.
            ("NCCL_DEBUG_FILE", if rank == 0 { log.display().to_string() } else { String::new() }),
        ]
    });
    assert_eq!(lines(&outputs), expected(2, "ferroccl run"));
    let stderr = String::from_utf8_lossy(&outputs[1].stderr);
    assert!(stderr.contains(" [1] NCCL INFO NCCL_DEBUG set by environment to INFO"), "{stderr}");
    assert!(stderr.contains("NCCL INFO rank 1 of 2 is connected"), "{stderr}");
    assert!(!String::from_utf8_lossy(&outputs[0].stderr).contains("NCCL INFO"));
    let prefix = format!("ferroccl-{}-", std::process::id());
    let files: Vec<_> = std::fs::read_dir(std::env::temp_dir())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .collect();
    assert_eq!(files.len(), 1);
    let text = std::fs::read_to_string(files[0].path()).unwrap();
    std::fs::remove_file(files[0].path()).unwrap();
    assert!(text.contains(" [0] NCCL INFO rank 0 of 2 is connected"), "{text}");
}

#[test]
fn a_rank_that_contradicts_the_others_is_told_and_the_root_logs_it() {
    let _ports = ports();
    let comm_id = format!("127.0.0.1:{}", free_port());
    let outputs: Vec<Output> = {
        let rank = |rank: u32, size: u32, wait: &str| {
            rank_command()
                .env("FERROCCL_RANK", rank.to_string())
                .env("FERROCCL_WORLD_SIZE", size.to_string())
                .env("FERROCCL_LOCAL_RANK", rank.to_string())
                .env("NCCL_COMM_ID", &comm_id)
                .env("NCCL_DEBUG", "WARN")
                .env("FERROCCL_BOOTSTRAP_TIMEOUT", wait)
                .spawn()
                .unwrap()
        };
        let zero = rank(0, 2, "6");
        // Rank 0's size counts when it is the first that comes.
        thread::sleep(std::time::Duration::from_secs(1));
        let one = rank(1, 3, "60");
        [zero, one].map(|rank| rank.wait_with_output().unwrap()).into()
    };
    let text = |i: usize| {
        let output: &Output = &outputs[i];
        assert!(!output.status.success());
        [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
    };
    let (zero, one) = (text(0), text(1));
    let why = "it speaks of 3 ranks, those before it of 2";
    assert!(one.contains(why) && one.contains("OtherWorldSize"), "{one}");
    assert!(zero.contains(why), "{zero}");
    assert!(zero.contains("1 of 2 ranks did not come: rank 1"), "{zero}");
}

//! Where the threads of a job run: on the cores near their GPUs.

use std::collections::BTreeMap;

use crate::channels::{hosts, start};

/// The cores that each thread of a process may use, by the threads' names.
fn cores_of_threads(pid: u32) -> BTreeMap<String, String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let thread = |task: std::fs::DirEntry| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).ok();
        let status = read("status")?;
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((read("comm")?.trim().to_owned(), cores.trim().to_owned()))
    };
    tasks.filter_map(thread).collect()
}

/// Each of a host's two GPUs is at a CPU of one core.
#[test]
fn the_proxy_thread_runs_near_the_gpu() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return crate::skip::skip("there is one core only");
    }
    let Some(hosts) = hosts(2, 2) else { return };
    let file = std::env::temp_dir().join(format!("ferroccl-cores-{}.xml", std::process::id()));
    let text = include_str!("../topology_files/pcie-2gpu-2nic.xml")
        .replace("\"ffffffff,ffffffff\"", "\"00000001\"")
        .replace("\"ffffffff,ffffffff,00000000,00000000\"", "\"fffffffe\"");
    std::fs::write(&file, text).unwrap();
    let mut job = start(&hosts, 2, false, file.to_str().unwrap(), "for_ever", &[]);
    job.all_told("runs");
    for rank in 0..4 {
        let cores = cores_of_threads(job.ranks[rank].0.id());
        println!("rank {rank}: {cores:?}");
        let own = cores_of_threads(std::process::id()).into_values().next().unwrap();
        let proxy = cores.get("ferroccl-proxy").map(String::as_str);
        let near = |cores: &str| if rank % 2 == 0 { cores == "0" } else { cores.starts_with('1') };
        assert!(proxy.is_some_and(near), "rank {rank}: {cores:?}");
        // The thread that made the communicator is where it was.
        assert_eq!(cores.get("member"), Some(&own), "rank {rank}: {cores:?}");
    }
    job.ranks[0].0.kill().unwrap();
    for rank in 1..4 {
        job.told(rank, "ended ");
    }
    std::fs::remove_file(file).unwrap();
}

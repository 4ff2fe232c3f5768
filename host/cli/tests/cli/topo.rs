//! `ferroccl topo`, and the topology in a job.

use std::fs;

use serde_json::Value;

use super::support::{ROOT, ferroccl, text};

fn file(name: &str) -> String {
    format!("{ROOT}/tests/topology_files/{name}.xml")
}

#[test]
fn this_machine_has_a_cpu_and_something_that_ranks_run_on() {
    let out = ferroccl(["topo", "--json"]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    let count = |kind: &str| {
        all["nodes"].as_array().unwrap().iter().filter(|node| node["kind"] == kind).count()
    };
    assert!(count("cpu") >= 1 && count("gpu") >= 1, "{all}");
    assert_eq!(all["ranks"], count("gpu"));
}

#[test]
fn thousands_of_hosts_from_one_file() {
    let out = ferroccl(["topo", "--json", "--nodes", "3072", "--file", &file("hgx-h100")])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(all["ranks"], 24_576);
    for ring in all["rings"].as_array().unwrap() {
        let mut ranks: Vec<u64> =
            ring.as_array().unwrap().iter().map(|r| r.as_u64().unwrap()).collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..24_576));
    }
    for tree in all["trees"].as_array().unwrap() {
        let tree = tree.as_array().unwrap();
        assert_eq!(tree.len(), 24_576);
        assert_eq!(tree.iter().filter(|parent| **parent == -1).count(), 1);
    }
}

#[test]
fn a_drawing_and_a_graph_for_graphviz() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("system.svg");
    let name = svg.to_str().unwrap();
    let out =
        ferroccl(["topo", "--dot", "--svg", name, "--file", &file("dgx1-v100")]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let dot = text(&out.stdout);
    assert!(dot.starts_with("graph system {") && dot.matches(" -- ").count() > 20, "{dot}");
    let svg = fs::read_to_string(svg).unwrap();
    for what in ["<svg ", "GPU 7", "NET 3", "CPU 1", "NVL 40 GB/s", "</svg>"] {
        assert!(svg.contains(what), "{what} in {svg}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (arguments, error) in [
        (vec!["--file", "/nonesuch.xml"], "/nonesuch.xml: No such file"),
        (vec!["--file", &file("aws-p4d-24xl-topo")], "--assume sm="),
        (vec!["--file", &file("aws-p4d-24xl-topo"), "--assume", "sm=80,wings=2"], "wings"),
        (vec!["--assume", "sm=80"], "--file"),
        (vec!["--nodes", "0"], "0 is not in 1..=65536"),
        (vec!["--file", &file("pcie-4gpu-no-nic"), "--nodes", "2"], "no network port"),
        (vec!["--svg", "/nonesuch/x.svg"], "/nonesuch/x.svg: No such file"),
    ] {
        let mut command = ferroccl(["topo"]);
        let out = command.args(&arguments).output().unwrap();
        assert!(!out.status.success(), "{arguments:?}");
        assert!(text(&out.stderr).contains(error), "{arguments:?}: {}", text(&out.stderr));
    }
}

#[test]
fn a_job_dumps_and_reads_topology_and_graphs() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let job = ["perf", "all_reduce", "-b", "8", "-e", "8", "-g", "2", "-n", "1", "-w", "0"];
    let out = ferroccl(job)
        .env("NCCL_TOPO_DUMP_FILE", path("topo.xml"))
        .env("NCCL_GRAPH_DUMP_FILE", path("graph.xml"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    // What was written is what is read.
    let again = ferroccl(job)
        .env("NCCL_TOPO_FILE", path("topo.xml"))
        .env("NCCL_TOPO_DUMP_FILE", path("again.xml"))
        .env("NCCL_GRAPH_FILE", path("graph.xml"))
        .env("NCCL_DEBUG", "INFO")
        .env("NCCL_DEBUG_SUBSYS", "GRAPH")
        .output()
        .unwrap();
    assert!(again.status.success(), "{}", text(&again.stderr));
    let log = text(&again.stderr) + &text(&again.stdout);
    assert!(log.contains("NCCL INFO Pattern 4, crossNic 0, nChannels"), "{log}");
    let read = |name: &str| fs::read_to_string(path(name)).unwrap();
    assert_eq!(read("topo.xml"), read("again.xml"));
    // And a file that is none ends it, with its name.
    let broken = ferroccl(job).env("NCCL_GRAPH_FILE", path("topo.xml")).output().unwrap();
    assert!(!broken.status.success());
    let error = text(&broken.stderr);
    assert!(error.contains("topo.xml:1: <system>: not a graph file"), "{error}");
}

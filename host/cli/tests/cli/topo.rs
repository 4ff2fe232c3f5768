//! `ferroccl topo`, and the topology in a job.

use std::collections::HashSet;
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
fn cards_that_are_one() {
    let topo = |settings: &[(&str, &str)]| {
        let mut command = ferroccl(["topo", "--nodes", "2", "--file", &file("dgx-a100")]);
        let out = command.envs(settings.iter().copied()).output().unwrap();
        (out.status.success(), format!("{}{}", text(&out.stdout), text(&out.stderr)))
    };
    let (_, apart) = topo(&[]);
    assert!(
        apart.contains("8 network ports") && apart.contains("NET 7 mlx5_7: 25 GB/s"),
        "{apart}"
    );
    let (ok, merged) = topo(&[("NCCL_NET_MERGE_LEVEL", "PIX")]);
    assert!(ok && merged.contains("4 network ports"), "{merged}");
    for line in ["NIC 0000:19:00.0 [48]", "NET 8 mlx5_0+mlx5_1: 50 GB/s [50]", "NET/11"] {
        assert!(merged.contains(line), "{line} in {merged}");
    }
    let forced = ("NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_7");
    let (ok, merged) = topo(&[forced]);
    assert!(ok && merged.contains("NET 8 mlx5_0+mlx5_7: 50 GB/s"), "{merged}");
    for (settings, wrong) in [
        (
            &[("NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_9")][..],
            "NCCL_NET_FORCE_MERGE=mlx5_0,mlx5_9: there is no card mlx5_9; there are mlx5_0,",
        ),
        (
            &[forced, ("NCCL_NET", "Socket")],
            "NCCL_NET_FORCE_MERGE=mlx5_0,mlx5_7: network Socket makes no virtual devices",
        ),
        (&[("NCCL_NET_MERGE_LEVEL", "NVL")], "NCCL_NET_MERGE_LEVEL=NVL: none of LOC, PORT, PIX"),
    ] {
        let (ok, error) = topo(settings);
        assert!(!ok && error.contains(wrong), "{error}");
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

/// Each value of an attribute in a page, in order.
fn values<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    page.split(&format!("{name}=\"")).skip(1).map(|rest| &rest[..rest.find('"').unwrap()]).collect()
}

#[test]
fn a_page_in_which_a_channel_can_be_picked() {
    for name in ["dgx1-v100", "dgx-a100", "hgx-h100", "pcie-2gpu-2nic"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("system.html");
        let out = ferroccl(["topo", "--html", path.to_str().unwrap(), "--file", &file(name)])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        let page = fs::read_to_string(path).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
        for outside in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{name}: {outside}");
        }

        let channels = values(&page, "data-channel");
        let options = values(&page, "<option value");
        assert_eq!(options[0], "", "all are the first choice");
        assert_eq!(options[1..], channels, "{name}");
        assert!(!channels.is_empty(), "{name}");

        let parts = values(&page, "data-part");
        let passed = values(&page, "data-passes");
        assert_eq!(passed.len(), channels.len());
        for passed in &passed {
            for part in passed.split(' ') {
                assert!(parts.contains(&part), "{name}: {part} is not drawn");
            }
        }
        if name == "dgx1-v100" {
            let passed: HashSet<_> = passed.iter().collect();
            assert!(passed.len() > 1, "all channels pass the same parts: {passed:?}");
        }
    }
}

/// The value of an attribute of an SVG element.
fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap();
    rest.split_once('"').unwrap().0
}

/// Left, upper, right and lower edge.
type Area = [f64; 4];

fn overlap(a: &Area, b: &Area) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

/// In drawings no link passes behind a device, no label lies on another, and all is within the picture.
#[test]
fn drawings_are_clear() {
    let directory = tempfile::tempdir().unwrap();
    let svg = directory.path().join("system.svg");
    for (name, assume, hosts) in [
        ("dgx1-v100", "sm=70", [1, 2, 4, 7]),
        ("dgx-a100", "sm=80", [1, 2, 4, 32]),
        ("hgx-h100", "sm=90", [1, 2, 4, 33]),
        ("azure-ndv4-topo", "sm=80,nvswitch=12", [1, 2, 4, 8]),
        ("azure-ncv4-topo", "sm=80", [1, 2, 4, 3]),
        ("aws-p4d-24xl-topo", "sm=80,nvswitch=12", [1, 2, 4, 16]),
        ("pcie-4gpu-no-nic", "sm=80", [1; 4]),
    ] {
        for n in hosts {
            let n = n.to_string();
            let mut command = ferroccl(["topo", "--nodes", &n, "--assume", assume]);
            let out =
                command.arg("--file").arg(file(name)).arg("--svg").arg(&svg).output().unwrap();
            assert!(out.status.success(), "{}", text(&out.stderr));
            clear(&fs::read_to_string(&svg).unwrap(), &format!("{name}, {n} hosts"));
        }
    }
}

fn clear(svg: &str, what: &str) {
    let number = |element: &str, name: &str| attribute(element, name).parse::<f64>().unwrap();
    let picture = svg.lines().next().unwrap();
    let picture = [0.0, 0.0, number(picture, "width"), number(picture, "height")];
    let boxes: Vec<Area> = svg
        .lines()
        .filter(|line| line.starts_with("<rect x") && attribute(line, "stroke") == "#555")
        .map(|line| {
            let (x, y) = (number(line, "x"), number(line, "y"));
            [x, y, x + number(line, "width"), y + number(line, "height")]
        })
        .collect();
    let labels: Vec<(&str, Area)> = svg
        .lines()
        .filter(|line| line.starts_with("<text"))
        .map(|line| {
            let words = line.split_once('>').unwrap().1.split_once('<').unwrap().0;
            let (x, y, size) = (number(line, "x"), number(line, "y"), number(line, "font-size"));
            let width = 0.5 * size * words.chars().count() as f64;
            let left = if attribute(line, "text-anchor") == "middle" { x - width / 2.0 } else { x };
            (words, [left, y - 0.7 * size, left + width, y])
        })
        .collect();
    assert!(boxes.len() > 4 && labels.len() > boxes.len() / 2, "{what}");
    for (i, (one, area)) in labels.iter().enumerate() {
        assert!(area[0] >= 0.0 && area[2] <= picture[2] && area[3] <= picture[3], "{what}: {one}");
        for (other, area_of_other) in &labels[i + 1..] {
            assert!(!overlap(area, area_of_other), "{what}: {one:?} and {other:?}");
        }
    }
    for line in svg.lines().filter(|line| line.starts_with("<polyline") && line.contains(" GB/s")) {
        let points: Vec<f64> = attribute(line, "points")
            .split([' ', ','])
            .map(|number| number.parse().unwrap())
            .collect();
        for part in points.windows(4).step_by(2) {
            let (left, right) = (part[0].min(part[2]), part[0].max(part[2]));
            let (top, bottom) = (part[1].min(part[3]), part[1].max(part[3]));
            // It may begin and end at an edge.
            let way = [left - 0.1, top + 0.2, right + 0.1, bottom - 0.2];
            let way = [way[0], way[1].min(way[3]), way[2], way[3].max(way[1])];
            let behind = boxes.iter().find(|device| overlap(&way, device));
            assert_eq!(behind, None, "{what}: {line}");
        }
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

/// A job uses the transport that the path between two GPUs allows.
#[test]
fn transports_follow_paths() {
    let file = file("pcie-4gpu-no-nic");
    for (variables, ways) in [
        // Two pairs of GPUs, each under a switch of an Intel CPU of its own.
        (&[][..], ["P2P/direct pointer", "SHM", "P2P/direct pointer", "SHM"]),
        (&[("NCCL_P2P_LEVEL", "SYS")], ["P2P/direct pointer"; 4]),
        (&[("NCCL_P2P_LEVEL", "LOC")], ["SHM"; 4]),
        (&[("NCCL_P2P_LEVEL", "LOC"), ("NCCL_SHM_DISABLE", "1")], ["[send] via NET/Socket/0"; 4]),
    ] {
        let mut command =
            ferroccl(["perf", "all_reduce", "-g", "4", "-b", "8", "-e", "64K", "-f", "64"]);
        command.env("NCCL_TOPO_FILE", &file).env("FERROCCL_TOPO_RANKS", "all");
        command.env("NCCL_DEBUG", "INFO").env("NCCL_SOCKET_IFNAME", "lo");
        let out = command.envs(variables.iter().copied()).output().unwrap();
        assert!(out.status.success(), "{variables:?}: {}", text(&out.stderr));
        let log = text(&out.stdout) + &text(&out.stderr);
        for (rank, way) in ways.iter().enumerate() {
            let edge = format!("{rank} -> {}", (rank + 1) % 4);
            let line = |line: &&str| line.contains(&edge) && line.ends_with(way);
            assert!(log.lines().any(|l| line(&l)), "{variables:?}: {edge} by {way}: {log}");
        }
    }
}

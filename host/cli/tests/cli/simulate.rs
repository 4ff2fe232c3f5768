//! `ferroccl simulate`: what it prints, writes and refuses.

use std::fs;
use std::process::Output;

use crate::support::{ROOT, ferroccl, text};

fn simulate(args: &[&str]) -> Output {
    let mut command = ferroccl(["simulate"]);
    command.args(args).current_dir(ROOT).output().unwrap()
}

const DGX: [&str; 3] = ["all_reduce", "--file", "tests/topology_files/dgx-a100.xml"];

fn of_dgx(args: &[&str]) -> Output {
    simulate(&[&DGX[..], args].concat())
}

#[test]
fn algorithms_are_side_by_side_and_all_that_is_simulated_says_so() {
    let out = of_dgx(&["--nodes", "2", "--bytes", "8..64K"]);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(shown.starts_with("# SIMULATED: all_reduce on 2 hosts of 8 ranks, tests/"), "{shown}");
    let rows: Vec<&str> = shown.lines().filter(|line| !line.starts_with('#')).collect();
    // 8, 64, 512, 4K, 32K and 64K, by ring, tree, hierarchical, chain and doubling.
    assert_eq!(rows.len(), 30, "{shown}");
    assert_eq!(rows.iter().filter(|row| row.contains('*')).count(), 6, "{shown}");
    for word in ["Hierarchical", "Not simulated", "NVLS: ", "The fullest links of 64K"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert_eq!(shown, text(&of_dgx(&["--nodes", "2", "--bytes", "8..64K"]).stdout));
}

#[test]
fn results_go_into_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let names =
        ["json", "plot", "trace", "tuner", "finish"].map(|name| (format!("--{name}"), path(name)));
    let mut args = vec!["--nodes", "2", "--bytes", "8,1M", "--algo", "ring,tree"];
    names.iter().for_each(|(flag, file)| args.extend([flag.as_str(), file.as_str()]));
    let out = of_dgx(&args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(json["simulated"], true);
    let calls = json["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 4, "{json}");
    assert!(calls.iter().all(|call| call["time_us"].as_f64().unwrap() > 0.0), "{json}");
    assert!(read("plot").contains("SIMULATED") && read("plot").contains("Tree"));
    let trace: serde_json::Value = serde_json::from_str(&read("trace")).unwrap();
    assert_eq!(trace["otherData"]["simulated"], true);
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
    assert!(read("tuner").contains("allreduce,0,1048575,tree,ll,"), "{}", read("tuner"));
    // Two sizes by two algorithms on 16 ranks, and a heading.
    assert_eq!(read("finish").lines().count(), 65);
}

#[test]
fn faults_are_beside_the_call_without_them() {
    let out = of_dgx(&["--nodes", "2", "--bytes", "64M", "--algo", "ring", "--what-if"]);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    for word in ["slow-link:host=1", "dead-port:host=1", "straggler:rank=0,us=1000", "background:"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    // A host that dies is not one of two alone: its parts, and with the call their sum.
    for part in [
        "dead-node:host=1: until the 8 ranks",
        "noticed",
        "told",
        "connected",
        "agreed",
        "64M by Ring: ",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let dead = ["--what-if", "dead-node", "--json", "-"];
    let out = of_dgx(&[&["--nodes", "4", "--bytes", "8", "--algo", "ring"], &dead[..]].concat());
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let recovery = &json["recoveries"][0];
    assert_eq!(
        (&recovery["fault"], &recovery["ranks_left"]),
        (&"dead-node:host=0".into(), &24.into())
    );
    let us = recovery["parts"].as_array().unwrap().iter().map(|part| part["us"].as_f64().unwrap());
    assert!(
        (us.sum::<f64>() - recovery["until_the_call_us"].as_f64().unwrap()).abs() < 1e-3,
        "{json}"
    );
    let one = ["--what-if", "straggler:rank=3,us=500", "--json", "-"];
    let out = of_dgx(&[&["--nodes", "2", "--bytes", "8", "--algo", "tree"], &one[..]].concat());
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let row = &json["rows"][0];
    let more = row["with_us"].as_f64().unwrap() - row["without_us"].as_f64().unwrap();
    assert!((400.0..501.0).contains(&more), "{json}");
}

/// Late starts and what is broken in both cases are in the heading; a ratio below 1 has a difference below 0; what is coarse says so.
#[test]
fn results_say_under_which_conditions_and_how_closely() {
    let late = ["--nodes", "4", "--bytes", "8", "--algo", "ring", "--skew", "20", "--seed", "3"];
    let broken = ["--fault", "slow-link:host=1", "--what-if", "dead-node:host=3", "--steps", "1"];
    let out = of_dgx(&[&late[..], &broken].concat());
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    for line in [
        "# with slow-link:host=1,port=0,part=0.5",
        "# with ranks that start late, by 20 us on the mean (seed 3)",
        "dead-node:host=3 (1 of 1 channels, fixed shares of links)",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(shown.lines().any(|row| row.contains("  Ring ") && row.contains(" -")), "{shown}");
    let out = of_dgx(&[&late[..], &["--what-if", "dead-port", "--steps", "1"]].concat());
    let shown = text(&out.stdout);
    let both = "(without 1 of 4 hosts, fixed shares of links, with 1 of 1 channels, fixed shares of links)";
    assert!(shown.contains(both), "{shown}");
    let out = of_dgx(&[&late[..], &["--json", "-"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&json["skew_us"], &json["seed"]), (&20.0.into(), &3.into()), "{json}");
    assert!(!shown.contains("fullest links"), "of 8 bytes none is full: {shown}");
    let out = simulate(&[&["sendrecv"], &DGX[1..], &["--nodes", "2", "--bytes", "8"]].concat());
    let error = text(&out.stderr);
    assert!(out.status.code() == Some(1) && error.contains("who sends to whom"), "{out:?}");
}

/// What is fitted is read by `explain` and `simulate`, and changes what is chosen.
#[test]
fn fitted_times_go_into_a_file_that_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("times.json").display().to_string();
    let out = of_dgx(&["--nodes", "2", "--bytes", "8..1M", "--fit", &file]);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    // Each protocol, and a size between each two.
    for row in ["LL  ", "LL128", "Simple", " 36 "] {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(
        (&json["simulated"], &json["nodes"], &json["ranks"]),
        (&true.into(), &2.into(), &16.into())
    );
    assert!(json["times"].as_array().unwrap().len() >= 9, "{json}");
    let explain = |file: &str| {
        let mut command = ferroccl(["explain"]);
        let args = [&DGX[..], &["--nodes", "2", "--bytes", "8"]].concat();
        command.args(args).env("FERROCCL_TUNER_FILE", file).current_dir(ROOT).output().unwrap()
    };
    let simulated = first_number(&shown, &["8", "Tree", "LL", "1"]);
    let [with, without] =
        [file.as_str(), ""].map(|file| first_number(&text(&explain(file).stdout), &["Tree", "LL"]));
    // Lines are within 2 % of what was simulated.
    assert!((with / simulated - 1.0).abs() < 0.02, "{with} {simulated}");
    assert!(with != without, "{with}");
    fs::write(&file, "{}").unwrap();
    let error = text(&explain(&file).stderr);
    assert!(error.contains("FERROCCL_TUNER_FILE") && error.contains("no file of times"), "{error}");
}

/// The number behind these words in a row of a table.
fn first_number(shown: &str, words: &[&str]) -> f64 {
    let behind = |row: &str| {
        let row: Vec<&str> = row.split_whitespace().collect();
        row.strip_prefix(words)?.first()?.parse().ok()
    };
    shown.lines().find_map(behind).unwrap_or_else(|| panic!("{words:?}: {shown}"))
}

#[test]
fn networks_are_described_or_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("fabric.json");
    let attach = r#"{ "hosts": [0, 3], "switch": "all" }"#;
    fs::write(&file, format!(r#"{{ "version": 1, "attach": [ {attach} ] }}"#)).unwrap();
    let file = file.display().to_string();
    for fabric in ["fat-tree:hosts=1,oversubscription=8", "dragonfly", file.as_str()] {
        let out = of_dgx(&["--nodes", "4", "--bytes", "1M", "--algo", "ring", "--fabric", fabric]);
        assert!(out.status.success(), "{fabric}: {}", text(&out.stderr));
    }
    fs::write(&file, "{").unwrap();
    let out = of_dgx(&["--nodes", "4", "--bytes", "1M", "--fabric", file.as_str()]);
    assert!(out.status.code() == Some(1) && text(&out.stderr).contains("the fabric: "), "{out:?}");
}

#[test]
fn explanations_have_simulated_times_below() {
    let mut command = ferroccl(["explain"]);
    let args = [&DGX[..], &["--nodes", "2", "--bytes", "1M", "--simulate"]].concat();
    let out = command.args(args).current_dir(ROOT).output().unwrap();
    let shown = text(&out.stdout);
    assert!(
        shown.starts_with("# all_reduce: 16 ranks") && shown.contains("# SIMULATED: "),
        "{shown}"
    );
}

#[test]
fn what_cannot_be_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("no-gpus.xml").display().to_string();
    let cpu = r#"<cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"/>"#;
    fs::write(&file, format!(r#"<system version="1">{cpu}</system>"#)).unwrap();
    let error = text(&simulate(&["all_reduce", "--file", &file]).stderr);
    assert!(error.contains("no-gpus.xml has no GPUs of a known"), "{error}");
    for (args, code, word) in [
        (&["--bytes", "8..4"][..], 2, "no larger than the last"),
        (&["--bytes", "8Q"], 2, "unit of size"),
        (&["--fault", "fire"], 2, "neither slow-link"),
        (&["--what-if", "dead-node"], 1, "no host is left"),
        (&["--bytes", "8", "--what-if", "--fit", "f"], 2, "cannot be used with"),
        (&["--skew=-1"], 2, "0 to 1000000000"),
        (&["--nodes", "2", "--ranks", "3"], 2, "evenly"),
        (&["--ranks", "9"], 2, "9 ranks on a host that has 8 GPUs"),
        (&["--nodes", "2", "--fabric", "ring"], 1, "neither rail, fat-tree nor dragonfly"),
        (&["--nodes", "2", "--fault", "dead-port:host=9"], 1, "there are 2 hosts"),
        (&["--bytes", "8", "--algo", "nvls"], 1, "NVLS: "),
        (&["--bytes", "8", "--json", "/no/such/file"], 1, "/no/such/file"),
    ] {
        let out = of_dgx(args);
        let error = text(&out.stderr);
        assert!(out.status.code() == Some(code) && error.contains(word), "{args:?}: {out:?}");
    }
}

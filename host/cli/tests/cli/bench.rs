//! `ferroccl bench`.

use serde_json::Value;

use super::skip;
use super::support::{ferroccl, finish, text};

/// The document of a run with these arguments.
fn json(arguments: &[&str]) -> Value {
    let mut command = ferroccl(["bench", "--json", "-"]);
    let out = finish(command.args(arguments));
    assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out.stdout)))
}

/// What was measured, with protocol and bytes.
fn measured(document: &Value) -> Vec<(String, Option<String>, u64)> {
    let figures = document["figures"].as_array().unwrap();
    let word = |value: &Value| value.as_str().map(str::to_owned);
    figures
        .iter()
        .map(|f| (word(&f["what"]).unwrap(), word(&f["protocol"]), f["bytes"].as_u64().unwrap()))
        .collect()
}

#[test]
fn everything_is_measured_on_the_cpu() {
    let document = json(&["--quick", "-e", "4K", "--ranks", "3", "--blocks", "2"]);
    let all = measured(&document);
    for what in ["hop", "step", "post"] {
        for protocol in ["LL", "LL128", "Simple"] {
            let there = |m: &&(String, Option<String>, u64)| {
                m.0 == what && m.1.as_deref() == Some(protocol)
            };
            assert_eq!(all.iter().filter(there).count(), 1, "{what} {protocol} in {all:?}");
        }
    }
    for what in ["barrier", "signal"] {
        assert!(all.contains(&(what.into(), None, 0)), "{what} in {all:?}");
    }
    for what in ["put", "copy", "reduce"] {
        let sizes: Vec<u64> = all.iter().filter(|m| m.0 == what).map(|m| m.2).collect();
        assert_eq!(sizes, [1 << 10, 4 << 10], "{what}");
    }
    assert_eq!(document["simulated"], false);
    for figure in document["figures"].as_array().unwrap() {
        assert_eq!(figure["rounds"].as_array().unwrap().len(), 3, "{figure}");
        let ranks = if figure["what"] == "reduce" || figure["what"] == "barrier" { 3 } else { 0 };
        assert!(ranks == 0 || figure["ranks"] == ranks, "{figure}");
    }
}

#[test]
fn in_the_emulator_times_are_simulated_and_the_same_each_time() {
    let arguments =
        ["barrier", "signal", "put", "reduce", "--runtime", "ptx", "--model", "h100-nvlink"];
    let once = json(&arguments);
    if once["figures"].as_array().unwrap().is_empty() {
        return skip::skip("this build has no PTX");
    }
    assert_eq!(once, json(&arguments));
    assert_eq!(once["simulated"], true);
    let us = |what: &str| {
        let figures = once["figures"].as_array().unwrap();
        figures.iter().find(|f| f["what"] == what).unwrap()["us"].as_f64().unwrap()
    };
    // A word over NVLink takes 0.6 us in this machine; a barrier is one, and waits within the blocks.
    assert!((0.5..2.0).contains(&us("signal")), "{once}");
    assert!((0.5..3.0).contains(&us("barrier")), "{once}");
}

#[test]
fn a_table_says_what_is_not_measured_and_why() {
    let out = finish(&mut ferroccl(["bench", "post", "--runtime", "ptx"]));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let table = text(&out.stdout);
    assert!(table.contains("SIMULATED") && table.contains("# post: not measured"), "{table}");
}

#[test]
fn files_are_written_and_what_cannot_be_is_said_first() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("bench.svg");
    let mut command = ferroccl(["bench", "put", "--quick", "-e", "4K", "--svg"]);
    let out = finish(command.arg(&svg));
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("GB/s"), "{}", text(&out.stdout));
    assert!(std::fs::read_to_string(&svg).unwrap().contains("time (us)"));
    for (arguments, words) in [
        (vec!["-b", "1M", "-e", "1K"], "--maxbytes (-e) is less than --minbytes (-b)"),
        (vec!["--write-model", "x.json"], "--write-model: what is measured is a GPU"),
        (vec!["--json", "/no/such/folder/x.json"], "/no/such/folder/x.json: "),
    ] {
        let mut command = ferroccl(["bench", "hop"]);
        let out = finish(command.args(&arguments));
        assert_eq!(out.status.code(), Some(1), "{arguments:?}");
        assert!(text(&out.stderr).contains(words), "{}", text(&out.stderr));
        assert!(out.stdout.is_empty());
    }
    let out = finish(&mut ferroccl(["bench", "hops"]));
    assert_eq!(out.status.code(), Some(2));
}

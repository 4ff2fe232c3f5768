//! `ferroccl explain` on this machine: what it prints, writes and refuses.

use std::process::Output;

use crate::support::{ferroccl, text};

fn explain<const N: usize>(args: [&str; N], variables: &[(&str, &str)]) -> Output {
    let mut command = ferroccl(["explain"]);
    command.args(args).envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn one_size_in_full() {
    let out = explain(["all_reduce", "--ranks", "4", "--bytes", "8"], &[]);
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(shown.starts_with("# all_reduce: 4 ranks on 1 host, this machine, "), "{shown}");
    assert!(shown.contains("# 8: OneShot with Simple, 1 channel of 1 thread, "), "{shown}");
    assert!(shown.contains("times slower") && shown.contains("there is no network that reduces"));
    // Eleven algorithms do all-reduces, in three protocols each.
    assert_eq!(shown.lines().filter(|line| !line.starts_with('#')).count(), 33, "{shown}");
}

#[test]
fn sizes_settings_and_json() {
    let out = explain(
        ["all_reduce", "--ranks", "16", "--bytes", "8,4K,1M", "--json", "-"],
        &[("NCCL_PROTO", "LL128,Simple"), ("NCCL_ALGO", "ring"), ("NCCL_MAX_NCHANNELS", "1")],
    );
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let sizes = json["sizes"].as_array().unwrap();
    let chosen: Vec<_> = sizes.iter().map(|s| s["protocol"].as_str().unwrap()).collect();
    assert_eq!(chosen, ["LL128", "Simple", "Simple"], "{json}");
    assert!(sizes.iter().all(|size| size["channels"] == 1), "{json}");
    assert_eq!(json["switch_points"].as_array().unwrap().len(), 2, "{json}");

    let out = explain(["all_reduce", "-b", "8", "-e", "64", "-f", "2"], &[]);
    assert_eq!(text(&out.stdout).lines().filter(|line| !line.starts_with('#')).count(), 4);
}

#[test]
fn what_cannot_be_is_said() {
    let out = explain(["all_gather", "--bytes", "8"], &[("NCCL_ALGO", "Tree")]);
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(
        error.contains("Tree: no Tree does all_gather; Ring: not allowed by NCCL_ALGO"),
        "{out:?}"
    );
    let out = explain(["all_gather", "--bytes", "8"], &[("NCCL_ALGO", "ring;allreduce:tree")]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let out = explain(["barrier", "--bytes", "8"], &[]);
    assert!(out.status.code() == Some(2) && text(&out.stderr).contains("no size"), "{out:?}");
    for (args, word) in [
        (["--ranks", "3", "--nodes", "2"], "evenly"),
        (["--bytes", "8", "-b", "8"], "cannot be used"),
        (["--bytes", "8Q", "--nodes", "1"], "unit of size"),
        (["-b", "64", "-e", "8"], "larger"),
        (["--bytes", "8", "--assume", "sm=80"], "--file"),
    ] {
        let out = ferroccl(["explain", "all_reduce"]).args(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(text(&out.stderr).contains(word), "{}", text(&out.stderr));
    }
    let out = explain(["all_to_some"], &[]);
    assert!(text(&out.stderr).contains("reduce_scatter"), "{out:?}");
    let out = explain(["all_to_all", "--bytes", "8", "--nodes", "2"], &[]);
    let error = text(&out.stderr);
    assert!(out.status.code() == Some(1) && error.contains("memory of one host"), "{out:?}");
    assert!(error.ends_with("; so it is made of sends and receives (sendrecv)\n"), "{error}");
    let out = explain(["all_to_all", "--bytes", "64M", "-R"], &[]);
    assert!(out.status.success() && text(&out.stdout).contains("64M: Direct"), "{out:?}");
}

/// What no kernel does is shown as what it is made of.
#[test]
fn an_all_to_all_that_no_kernel_does_is_explained_as_messages() {
    let out = explain(["all_to_all", "--ranks", "4"], &[("NCCL_ALGO", "ring,oneshot")]);
    let table = text(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    let row = |size: &str| table.lines().find(|line| line.trim_start().starts_with(size)).unwrap();
    assert!(row("8 ").contains("OneShot"), "{table}");
    assert!(row("1G").contains(" p2p "), "{table}");
    assert!(table.contains("bytes on: OneShot with Simple\n"), "{table}");
    assert!(table.trim_end().ends_with("bytes on: sends and receives"), "{table}");
    let out = explain(["all_to_all", "--ranks", "4"], &[]);
    assert!(text(&out.stdout).contains("bytes on: Linear with Simple\n"), "{out:?}");
    let out = explain(["all_to_all", "--ranks", "4", "--bytes", "8"], &[("NCCL_ALGO", "ring")]);
    let text = text(&out.stdout);
    assert!(text.contains("8: p2p with") && text.contains("not allowed by NCCL_ALGO"), "{text}");
}

#[test]
fn the_plot_is_written_where_it_is_asked_for() {
    let path = std::env::temp_dir().join(format!("ferroccl-explain-{}.svg", std::process::id()));
    let file = path.to_str().unwrap();
    let out = explain(["all_reduce", "--bytes", "8", "--nodes", "4", "--plot", file], &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("hosts    ranks"), "{}", text(&out.stdout));
    let svg = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("8 B ring"), "{svg}");

    let out = explain(["all_reduce", "--bytes", "8", "--plot", "/nowhere/at/all.svg"], &[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("/nowhere/at/all.svg: "), "{}", text(&out.stderr));
}

/// A call for which `NCCL_ALGO` leaves nothing is refused; the model may still reason about it.
#[test]
fn a_call_without_an_algorithm_is_refused_by_the_library() {
    let out = ferroccl(["perf", "all_reduce", "-g", "2", "-b", "8", "-e", "8"])
        .env("NCCL_ALGO", "Bruck")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(error.contains("no kernel"), "{error}");
}

/// NVLS, NVLSTree and PAT are shown with what NCCL's model says of them, and never chosen.
#[test]
fn what_nccl_has_besides_is_named() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/topology_files/hgx-h100.xml");
    let run = |collective, extra: [&str; 4], variables: &[(&str, &str)]| {
        let [a, b, c, d] = extra;
        let out = explain([collective, "--file", file, a, b, c, d], variables);
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let large = ["--bytes", "128M", "--nodes", "1"];
    let out = run("all_reduce", large, &[]);
    let row = |name: &str| out.lines().find(|line| line.trim_start().starts_with(name));
    assert!(row("NVLS ").unwrap().ends_with("NCCL would take it; here only on windows"), "{out}");
    assert!(row("Ring").unwrap().ends_with("chosen") && row("NVLSTree").is_none(), "{out}");
    // Who has a list of algorithms gets none of others from NCCL either.
    let out = run("all_reduce", large, &[("NCCL_ALGO", "Ring")]);
    assert!(out.contains("  here only on windows") && !out.contains("NCCL would"), "{out}");
    let small = ["--bytes", "8", "--nodes", "2"];
    let out = run("all_reduce", small, &[]);
    assert!(out.contains("NVLSTree") && !out.contains("NCCL would"), "{out}");
    // Hosts of one GPU each.
    let out = run("all_gather", ["--bytes", "8,1M", "--ranks=16", "--nodes=16"], &[]);
    assert!(out.contains("NCCL would take PAT for 8, 1M,"), "{out}");
    let alone = ["--bytes", "1M", "--json", "-"];
    let json: serde_json::Value = serde_json::from_str(&run("all_reduce", alone, &[])).unwrap();
    let only = &json["sizes"][0]["nccl_only"][0];
    assert_eq!((&only["algorithm"], &only["protocol"]), (&"NVLS".into(), &"Simple".into()));
    assert!(only["time_us"].as_f64().unwrap() > 25.0 && only["fastest"].is_boolean(), "{only}");
}

//! `ferroccl ptx run`: a kernel on buffers from the command line.

use std::process::Output;

use serde_json::Value;

use super::skip;
use super::support::{ROOT, ferroccl, finish, text};

/// `ferroccl ptx run --file FIXTURE ARGUMENTS`.
fn run(fixture: &str, arguments: &[&str]) -> Output {
    let file = format!("ptx/tests/fixtures/{fixture}.ptx");
    let mut command = ferroccl(["ptx", "run", "--file", &file]);
    finish(command.args(arguments).current_dir(ROOT))
}

fn printed(fixture: &str, arguments: &[&str]) -> String {
    let out = run(fixture, arguments);
    assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

const MATMUL: [&str; 12] = [
    "--blocks",
    "2,2",
    "--threads",
    "16,16",
    "--arg",
    "f32[1024]",
    "--arg",
    "f32[1024]=0..",
    "--arg",
    "f32[1024]=1",
    "--arg",
    "s32=32",
];

#[test]
fn a_kernel_runs_on_buffers_and_its_figures_are_the_same_every_time() {
    let out = printed("matmul.sm_90", &MATMUL);
    // Rows of 0, 1, 2, ... times ones: 0 + ... + 31.
    assert!(
        out.starts_with(
            "matmul: 2x2x1 blocks of 16x16x1 threads\n\nargument 0, f32[1024]: 496 496 "
        ),
        "{out}"
    );
    assert!(out.contains("barriers           128\n"), "{out}");
    assert_eq!(out, printed("matmul.sm_90", &MATMUL));
    let mut seeded = MATMUL.to_vec();
    seeded.extend(["--seed", "5", "--json", "--show", "2"]);
    let json: Value = serde_json::from_str(&printed("matmul.sm_90", &seeded)).unwrap();
    assert_eq!(json["buffers"][0]["elements"], serde_json::json!(["496", "496"]));
    assert_eq!(json["counts"]["global_stores"], 32);
    let mut threads = MATMUL.to_vec();
    threads.extend(["--schedule", "threads"]);
    assert!(printed("matmul.sm_90", &threads).contains(": 496 496 "));
}

#[test]
fn values_of_every_type_go_in_and_come_out() {
    // axpy4(float4 *y, const float4 *x, float alpha, int n)
    let out = printed(
        "vector.sm_90",
        &[
            "axpy4",
            "--arg",
            "f32[8]=1",
            "--arg",
            "f32[8]=0..",
            "--arg",
            "f32=-0.5",
            "--arg",
            "s32=2",
        ],
    );
    assert!(out.contains("f32[8]: 1 0.5 0 -0.5 -1 -1.5 -2 -2.5\n"), "{out}");
    // widen(double2 *out, const uchar4 *in, int n)
    let out = printed(
        "vector.sm_90",
        &["widen", "--threads", "2", "--arg", "f64[8]", "--arg", "u8[8]=7", "--arg", "s32=2"],
    );
    assert!(out.contains("u8[8]: 7 7 7 7 7 7 7 7\n"), "{out}");
}

#[test]
fn faults_and_wrong_arguments_are_told() {
    let fails = |arguments: &[&str], code: i32, what: &str| {
        let out = run("matmul.sm_90", arguments);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(what), "{arguments:?}: {said}");
    };
    let mut short = MATMUL;
    short[5] = "f32[1000]";
    fails(&short, 1, "0 bytes after the end of argument 0 (f32) of 4000 bytes");
    fails(&short, 1, "lane 24: `st.global.f32");
    fails(&["--arg", "s32=1"], 1, "matmul: 4 bytes of parameters, the kernel takes 28");
    fails(&["--arg", "q32=1"], 2, "there is no type `q32`");
    fails(&["--arg", "u8=256"], 2, "`256` is no u8");
    fails(&["--arg", "s8=-129"], 2, "`-129` is no s8");
    fails(&["--arg", "u32[x]"], 2, "TYPE[COUNT]");
    fails(&["--arg", "u64[99999999999]"], 2, "more than 1024 MiB");
    fails(&["--arg", "u32"], 2, "a number needs a value");
    fails(&["--blocks", "1,2,3,4"], 2, "at most three numbers");
    fails(&["--unit", "128"], 2, "--seed");
    fails(&["--seed", "1", "--schedule", "threads"], 2, "cannot be used with");
    let recursion = run("call.sm_90", &["recursion", "--arg", "s32[32]"]);
    assert!(text(&recursion.stderr).contains("recursion is not emulated"));
}

/// Where a kernel's simulated time goes: the path's parts come to the whole, and the trace has a track for each warp.
#[test]
fn a_critical_path_is_summed_up_and_traced() {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let path = file.path().to_str().unwrap();
    let mut command =
        ferroccl(["ptx", "critical-path", "--file", "ptx/tests/fixtures/reduce.sm_90.ptx"]);
    let launch = "--kernel block_sum --blocks 3 --threads 96 --arg f32[2] --arg f32[1000]=0.. --arg s32=1000";
    command.args(launch.split(' ')).args(["-o", path]).current_dir(ROOT);
    let shown = finish(&mut command);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    assert!(shown.contains("SIMULATED on h100-nvlink") && shown.contains("of a launch"), "{shown}");
    assert!(shown.contains("ptx/tests/fixtures/reduce.cu:"), "{shown}");
    let document = finish(command.arg("--json"));
    let document: Value = serde_json::from_str(&text(&document.stdout)).unwrap();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let whole = number(&document["us"]);
    let sum =
        |list: &Value| list.as_array().unwrap().iter().map(|part| number(&part["us"])).sum::<f64>();
    let summary = &document["critical_path"];
    for parts in [&summary["parts"], &summary["spots"]] {
        assert!((sum(parts) - whole).abs() < 1e-3, "{document}");
    }
    let steps = document["steps"].as_array().unwrap();
    for two in steps.windows(2) {
        assert!((number(&two[0]["end_us"]) - number(&two[1]["start_us"])).abs() < 1e-9, "{two:?}");
    }

    let trace: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(trace["otherData"]["simulated"], true);
    let events = trace["traceEvents"].as_array().unwrap();
    let mut tracks = std::collections::BTreeMap::new();
    let mut names = std::collections::BTreeMap::new();
    for event in events {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        match event["ph"].as_str().unwrap() {
            "M" if event["name"] == "thread_name" => {
                names.insert(track, event["args"]["name"].as_str().unwrap());
            }
            "M" => {}
            "X" => {
                let (start, long) = (number(&event["ts"]), number(&event["dur"]));
                assert!(start >= 0.0 && long > 0.0, "{event}");
                tracks.entry(track).or_insert_with(Vec::new).push((start, start + long));
            }
            other => panic!("{other}"),
        }
    }
    let warps: Vec<_> = names.iter().filter(|(_, name)| name.contains("warp")).collect();
    assert_eq!(warps.len(), 9, "3 blocks of 3 warps: {names:?}");
    assert!(warps.iter().all(|(track, _)| tracks.contains_key(track)), "{names:?}");
    let launch = tracks[&(0, 0)][0];
    assert!((launch.1 - number(&document["launch_us"])).abs() < 1e-9, "{launch:?}");
    for (track, spans) in &tracks {
        // Nothing begins before the launch is over, and nothing before what is before it has ended.
        assert!(spans[0].0 >= launch.1 - 1e-9 || spans[0] == launch, "{track:?}");
        assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0 + 1e-6), "{track:?}: {spans:?}");
    }
}

/// The same of a call of the library's: what it waits for are other GPUs, and nothing of that where all ranks are on one.
#[test]
fn the_critical_path_of_a_call_leads_from_gpu_to_gpu() {
    if let Some(why) = ferroccl::ptx::unavailable() {
        return skip::skip(why);
    }
    let run = |flags: &str| -> Value {
        let mut command = ferroccl(["ptx", "critical-path", "--json"]);
        let out = finish(command.args(flags.split(' ')));
        assert!(out.status.success(), "{flags}: {}", text(&out.stderr));
        serde_json::from_str(&text(&out.stdout)).unwrap()
    };
    // Around a ring of lines data is there before a rank comes to it, so that no path leads to another.
    let tree = "all_reduce --ranks 4 --size 1K --algo tree --proto ll";
    let first = run(tree);
    assert_eq!(run(tree), first, "the same every time");
    let of = |document: &Value, what: &str| -> f64 {
        let parts = document["critical_path"]["parts"].as_array().unwrap().iter();
        parts
            .filter(|part| part["what"].as_str().unwrap().contains(what))
            .map(|p| p["us"].as_f64().unwrap())
            .sum()
    };
    assert!((of(&first, "") - first["us"].as_f64().unwrap()).abs() < 1e-3, "{first}");
    assert!(of(&first, "another GPU") + of(&first, "NVLink") > 1.0, "{first}");
    let gpus: std::collections::BTreeSet<u64> = first["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["gpu"].as_u64().unwrap())
        .collect();
    assert!(gpus.len() > 1, "{gpus:?}");
    let spots = first["critical_path"]["spots"].as_array().unwrap();
    assert!(spots.iter().any(|spot| !spot["inlined_through"].as_array().unwrap().is_empty()));
    let one = run(&format!("{tree} --model h200-one-gpu"));
    assert_eq!(of(&one, "another GPU") + of(&one, "NVLink"), 0.0, "{one}");
    // The first call of a communicator is not the second.
    assert_ne!(run(&format!("{tree} --warmup 0"))["us"], first["us"]);
}

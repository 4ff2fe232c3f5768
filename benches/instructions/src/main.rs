//! Counts the instructions of small calls, and compares them with those that were recorded.
//!
//! ```text
//! cd benches/instructions
//! cargo run --release                counts, and fails where a count is over its bar
//! cargo run --release -- --record    writes the counts to recorded.txt
//! ```
//!
//! It takes valgrind (`apt install valgrind`) and gungraun's runner (`cargo install gungraun-runner --locked --version`, with the version
//! that Cargo.toml has). `cargo xtask nightly` runs the first. Who makes calls quicker, or slower for a reason, runs the second, and
//! the commit has the new recorded.txt and the reason.
//!
//! A count is that of a call of all ranks together: each rank's call, the kernels, and the wait for each rank. One thread makes the
//! calls and runs the kernels. What sets the ranks up does not count, nor does what other threads do.
//!
//! Instructions are no time: a miss of a cache or a call of the system counts as any other. But timings on a machine that others use
//! move by tens of per cent, and counts of one binary by less than one. Another compiler, or other code beside the call's, makes another
//! binary. So a bar is [`TOLERANCE`] above what was recorded.
//!
//! The processor is valgrind's: it has AVX2 if the machine has, and never AVX-512. Kernels and the C library choose their
//! instructions by that, so that AVX-512's are not counted, and a machine without AVX2 has other counts. The recorded ones are of
//! x86-64 with AVX2, Debian 12's C library.
//!
//! gungraun keeps the profiles in `gungraun/` of the target directory, for `callgrind_annotate`, and its own table
//! (`cargo bench`) compares with the run before.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use ferroccl_instructions::CALLS;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Instructions of a call, by case.
type Counts = BTreeMap<String, u64>;

/// Per cent of a recorded count that a count may be above it. As much below it, the recorded count is called out of date.
const TOLERANCE: u64 = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => compare(),
        ["--record"] => record(),
        _ => Err("arguments: none, or --record".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts, and fails where a count is over its bar.
fn compare() -> Outcome<()> {
    let recorded = parse(&fs::read_to_string(recorded_file())?)?;
    let counted = count()?;
    println!("{:24} {:>10} {:>10} {:>10}", "instructions of a call", "recorded", "bar", "counted");
    let (mut wrong, mut low) = (0, 0);
    for (case, &count) in &counted {
        let Some(&was) = recorded.get(case) else {
            println!("{case:24} {:>10} {:>10} {count:>10}  not recorded: --record", "", "");
            wrong += 1;
            continue;
        };
        let margin = was * TOLERANCE / 100;
        let over = count > was + margin;
        let under = count < was - margin;
        let what = if over {
            "  over the bar"
        } else if under {
            "  far below: --record lowers the bar"
        } else {
            ""
        };
        println!("{case:24} {was:>10} {:>10} {count:>10}{what}", was + margin);
        wrong += usize::from(over);
        low += usize::from(under);
    }
    for case in recorded.keys().filter(|case| !counted.contains_key(*case)) {
        println!("{case:24} is recorded and no case of benches/calls.rs: --record");
        wrong += 1;
    }
    if low > 0 {
        println!("{low} of {} counts are far below what was recorded", counted.len());
    }
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{wrong} lines of the table above say what is wrong").into()),
    }
}

/// Counts, and writes that down.
fn record() -> Outcome<()> {
    let counted = count()?;
    let mut text = String::from(
        "# Instructions of a call, by COLLECTIVE_RANKS_BYTES. Written by `instructions --record`.\n",
    );
    for (case, count) in &counted {
        writeln!(text, "{case} {count}")?;
    }
    fs::write(recorded_file(), text)?;
    println!("{} counts are recorded", counted.len());
    Ok(())
}

fn recorded_file() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/recorded.txt"))
}

/// The counts of a file as [`record`] writes it.
fn parse(text: &str) -> Outcome<Counts> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let count = line.split_once(' ').and_then(|(case, n)| Some((case, n.parse().ok()?)));
            let (case, count) = count.ok_or_else(|| format!("recorded.txt: no count: {line:?}"))?;
            Ok((case.to_owned(), count))
        })
        .collect()
}

/// Has gungraun count all cases.
fn count() -> Outcome<Counts> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["bench", "--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    cargo.args(["--bench", "calls", "--", "--output-format=json"]).stderr(Stdio::inherit());
    let output = cargo.output()?;
    if !output.status.success() {
        return Err(format!("{cargo:?}: {}", output.status).into());
    }
    // A line for each case.
    let lines = str::from_utf8(&output.stdout)?.lines();
    lines.filter(|line| line.starts_with('{')).map(count_of).collect()
}

/// The count of a case, as gungraun has it.
fn count_of(line: &str) -> Outcome<(String, u64)> {
    let summary: serde_json::Value = serde_json::from_str(line)?;
    let case = summary["id"].as_str();
    let count = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new");
    match (case, count.and_then(serde_json::Value::as_u64)) {
        // Nothing is counted where callgrind has not found the function.
        (Some(case), Some(count)) if count > 0 => Ok((case.to_owned(), count / CALLS)),
        _ => Err(format!("no count in gungraun's summary: {line:.200}").into()),
    }
}

//! The program as it is run: alone, and as several processes.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const TRAIN: &str = env!("CARGO_BIN_EXE_train");

/// Little, but several buckets, steps and epochs.
const SHORT: [&str; 6] = ["--epochs", "2", "--images", "256", "--bucket", "8"];

/// The `ferroccl` command, which cargo builds as an example.
fn launcher() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/ferroccl")
}

/// Without what a shell may have set, and with a thread of candle's for each process.
fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars() {
        if name.starts_with("FERROCCL_") || name.starts_with("NCCL_") {
            command.env_remove(name);
        }
    }
    command.env("RAYON_NUM_THREADS", "1").env("FERROCCL_TIMEOUT", "60");
    command
}

fn alone(arguments: &[&str]) -> Output {
    clean(Command::new(TRAIN)).args(arguments).output().unwrap()
}

fn processes(ranks: u32, arguments: &[&str]) -> Output {
    let mut command = clean(Command::new(launcher()));
    command.args(["run", "-n", &ranks.to_string(), "--", TRAIN]).args(arguments);
    command.output().unwrap()
}

/// What a run that ended well has printed.
fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// All numbers of a text but the parameters' hash.
fn numbers(text: &str) -> Vec<f64> {
    let words =
        text.lines().filter(|line| line.starts_with("epoch")).flat_map(str::split_whitespace);
    words.filter_map(|word| word.trim_end_matches([',', ':']).parse().ok()).collect()
}

/// Losses within a fiftieth, and as many images right but for a few.
fn assert_near(found: &str, wanted: &str) {
    let (found, wanted) = (numbers(found), numbers(wanted));
    assert_eq!(found.len(), wanted.len());
    assert!(!wanted.is_empty());
    for (found, wanted) in found.iter().zip(&wanted) {
        let off = (found - wanted).abs();
        assert!(off <= 0.02 * wanted.abs().max(0.1), "{found} for {wanted}");
    }
}

/// Losses, and by their hash all parameters.
#[test]
fn four_processes_compute_what_one_does_bit_by_bit() {
    let arguments = [&SHORT[..], &["--deterministic"]].concat();
    let one = printed(alone(&arguments));
    assert_eq!(one.lines().count(), 3, "{one}");
    assert_eq!(printed(processes(4, &arguments)), one);
}

/// Two processes add their parts pairwise, and without the flag the algorithm decides: other bits, the same training.
#[test]
fn other_orders_differ_in_the_last_bits() {
    let one = printed(alone(&SHORT));
    assert_near(&printed(processes(2, &[&SHORT[..], &["--deterministic"]].concat())), &one);
    assert_near(&printed(processes(4, &SHORT)), &one);
}

#[test]
fn the_others_name_a_rank_that_is_killed() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut ranks: Vec<_> = (0..4)
        .map(|rank| {
            let mut command = clean(Command::new(TRAIN));
            command.args(["--epochs", "100000", "--images", "64"]);
            command.env("NCCL_COMM_ID", format!("127.0.0.1:{port}"));
            command.env("FERROCCL_RANK", rank.to_string()).env("FERROCCL_WORLD_SIZE", "4");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    // It trains.
    let mut output = BufReader::new(ranks[0].stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("epoch 1: loss"), "{line}");
    let mut killed = ranks.remove(2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    // Rank 0 goes on printing until it notices.
    output.read_to_string(&mut line).unwrap();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("train: ") && error.contains("lost rank 2"), "{error}");
    }
}

#[test]
fn parts_that_do_not_fit_the_ranks_are_refused() {
    let output = processes(3, &SHORT);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("4 parts: not to be divided among 3 ranks"), "{error}");
}

/// Another machine's vector instructions round otherwise.
#[test]
fn the_readme_shows_what_is_printed() {
    let readme = include_str!("../README.md");
    let shown = readme.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let found = printed(alone(&[]));
    assert_eq!(found.lines().count(), shown.lines().count() + 1, "{found}");
    assert_near(&found, shown);
}

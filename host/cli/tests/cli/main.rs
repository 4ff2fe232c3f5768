//! The `ferroccl` command as its users meet it: the built binary, its output, its exit codes.

mod bench;
mod book;
mod collectives;
mod explain;
#[path = "../../../../tests/support/fake_driver.rs"]
mod fake_driver;
#[cfg(feature = "cuda")]
mod gpus;
mod heartbeat;
mod new;
mod perf;
mod planned;
mod ptx;
mod ptx_crate;
mod ptx_run;
mod readme;
mod reports;
mod results;
mod run;
mod simulate;
#[path = "../../../../tests/support/skip.rs"]
mod skip;
mod snapshots;
mod status;
mod support;
mod topo;
mod verify;

use support::{ferroccl, text};

#[test]
fn without_arguments_it_says_what_it_can_do() {
    let out = ferroccl([]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let help = text(&out.stderr);
    for word in ["perf", "run", "explain", "env", "Usage:"] {
        assert!(help.contains(word), "{word} in {help}");
    }
    assert!(!help.contains("__keeper"), "the keeper is nobody's business: {help}");
}

#[test]
fn an_unknown_subcommand_is_named() {
    let out = ferroccl(["pref"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("'pref'"), "{}", text(&out.stderr));
}

/// Text whose lines may be broken anywhere.
fn unwrapped(bytes: &[u8]) -> String {
    text(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a user looks for in the help: every flag of the README of nccl-tests, units, defaults, examples.
#[test]
fn the_help_has_flags_units_defaults_and_examples() {
    let out = ferroccl(["perf", "--help"]).output().unwrap();
    assert!(out.status.success());
    let help = unwrapped(&out.stdout);
    for flag in [
        "-t, --nthreads",
        "-g, --ngpus",
        "-b, --minbytes",
        "-e, --maxbytes",
        "-i, --stepbytes",
        "-f, --stepfactor",
        "-o, --op",
        "-d, --datatype",
        "-r, --root",
        "-n, --iters",
        "-w, --warmup_iters",
        "-m, --agg_iters",
        "-a, --average",
        "-p, --parallel_init",
        "-c, --check",
        "-z, --blocking",
        "-C, --report_cputime",
        "-I, --per_iter_timing",
        "-N, --run_cycles",
        "-T, --timeout",
        "-J, --json",
        "-F, --csv",
        "--report <FILE>",
        "--compare <FILE>",
        "-y, --stream_null",
        "--proto",
        "--channels",
        "--json",
        "--runtime",
        "possible values: all_reduce",
        "[default: 20]",
        "[default: 32M",
        "powers of 1024",
        "10^9 bytes per second",
        "2(n-1)/n",
        "Examples:",
        "Exit status:",
    ] {
        assert!(help.contains(flag), "{flag} in {help}");
    }
    let out = ferroccl(["run", "--help"]).output().unwrap();
    let help = unwrapped(&out.stdout);
    for word in
        ["-n, --ranks", "--tag-output", "--grace", "FERROCCL_RANK", "Examples:", "Exit status:"]
    {
        assert!(help.contains(word), "{word} in {help}");
    }
}

#[test]
fn env_shows_every_knob() {
    let out = ferroccl(["env"]).env("NCCL_PROTO", "LL").output().unwrap();
    let shown = text(&out.stdout);
    for knob in ferroccl::config::KNOBS {
        assert!(
            shown.contains(&format!("\n{}", knob.name)) || shown.starts_with(knob.name),
            "{shown}"
        );
    }
    assert!(shown.contains("\nNCCL_PROTO=LL\n"), "{shown}");
    assert!(shown.contains("\nNCCL_BUFFSIZE is not set"), "{shown}");

    let out = ferroccl(["env", "--set"]).env("NCCL_PROTO", "LL").output().unwrap();
    assert_eq!(text(&out.stdout).lines().next(), Some("NCCL_PROTO=LL"));

    for command in [&mut ferroccl(["env"]), &mut ferroccl(["perf", "all_reduce"])] {
        let out = command.env("NCCL_PROTO", "LLL").output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains("NCCL_PROTO=LLL"), "{}", text(&out.stderr));
    }
}

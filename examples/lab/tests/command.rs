//! The command with the lab's protocols and kernels, as its users meet it.

use std::process::{Command, Output};

use ferroccl_lab::PTX;

/// Runs the command; with settings of the environment.
fn lab(line: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(line.split_whitespace());
    for name in ["NCCL_PROTO", "NCCL_ALGO"] {
        command.env_remove(name);
    }
    command.envs(settings.iter().copied()).output().unwrap()
}

/// What it prints, if it ends well.
fn prints(line: &str, settings: &[(&str, &str)]) -> String {
    let out = lab(line, settings);
    let (text, wrong) = (String::from_utf8(out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{line}: {wrong}");
    text.unwrap()
}

/// What it complains of.
fn complains(line: &str, settings: &[(&str, &str)]) -> String {
    let out = lab(line, settings);
    assert!(!out.status.success(), "{line}");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn perf_runs_what_is_named() {
    let sizes = "-b 8 -e 4K -f 16 -n 2 -w 1";
    for (line, settings, how) in [
        ("-g 3 --proto ll64", &[][..], "LL64"),
        ("-g 3 --proto Stamped", &[], "Stamped"),
        ("-g 5 --algo halving", &[], "Halving"),
        ("-g 3", &[("NCCL_PROTO", "ll64")], "LL64"),
        ("-g 5", &[("NCCL_ALGO", "halving"), ("NCCL_PROTO", "ll64")], "Halving    LL64"),
        ("-g 3", &[("NCCL_PROTO", "simple;allreduce:stamped")], "Stamped"),
    ] {
        let text = prints(&format!("perf all_reduce {sizes} {line}"), settings);
        let rows: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(rows.iter().all(|row| row.contains(how)), "{line}: {text}");
        assert!(text.contains("Out of bounds values : 0 OK"), "{text}");
    }
}

#[test]
fn names_that_nobody_has_are_errors() {
    let known = complains("perf all_reduce --proto ll65", &[]);
    assert!(known.contains("LL, LL128, Simple, LL64, Stamped"), "{known}");
    let known = complains("perf all_reduce -g 2 -e 8", &[("NCCL_PROTO", "ll65")]);
    assert!(known.contains("one of LL LL128 Simple LL64 Stamped"), "{known}");
    let known = complains("explain all_reduce --bytes 8", &[("NCCL_ALGO", "quartering")]);
    assert!(known.contains("Doubling Linear Halving"), "{known}");
    let none = complains("perf all_gather -g 2 -e 8 --algo halving", &[]);
    assert!(none.contains("all_gather is not done this way"), "{none}");
}

#[test]
fn explain_has_them() {
    let text = prints("explain all_reduce --bytes 8", &[]);
    assert!(
        text.contains("the model has no figures of it, and NCCL_ALGO does not name it"),
        "{text}"
    );
    let text = prints("explain all_reduce --bytes 8", &[("NCCL_PROTO", "ll64")]);
    assert!(text.contains("# 8: Ring with LL64"), "{text}");
}

#[test]
fn figures_are_fitted() {
    let text = prints("perf all_reduce -g 2 --fit -n 20 -e 64K", &[]);
    for words in
        ["LL128", "Stamped", ".protocol_figures::<LL64>(ProtocolFigures { like: ProtocolId::"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let why = complains("perf all_gather -g 2 --fit", &[]);
    assert!(why.contains("--fit: it measures all_reduce"), "{why}");
}

#[test]
fn its_ptx_is_looked_at_and_run() {
    if PTX.is_empty() {
        return println!("skipped: there was no compiler for PTX");
    }
    let text = prints("ptx list ll64", &[]);
    assert!(text.contains("all_reduce_ring_ll64_sum_float") && text.contains("LL64"), "{text}");
    let text = prints("ptx stats all_reduce_ring_stamped_sum_float", &[]);
    assert!(text.contains("instructions"), "{text}");
    let line = "perf all_reduce -g 2 -b 8 -e 8 --proto ll64 --runtime ptx --model h100-nvlink";
    let text = prints(line, &[]);
    assert!(text.contains("all_reduce_") && text.contains("LL64"), "{text}");
    let line = "ptx critical-path all_reduce --size 8 --algo ring --proto ll64";
    let text = prints(line, &[]);
    assert!(text.contains("SIMULATED") && text.contains("ll64.rs"), "{text}");
}

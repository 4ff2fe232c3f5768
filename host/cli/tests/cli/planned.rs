//! What `ferroccl perf` says that ran, and what it refuses to call by another name.

use serde_json::Value;

use super::perf::{PLAN, assert_right, column, rows, table_of};
use super::support::{ferroccl, finish, text};

fn measure(collective: &str, flags: &str) -> std::process::Command {
    let mut command = ferroccl(["perf", collective, "-n", "1", "-w", "0", "-b", "1K", "-e", "1K"]);
    command.args(flags.split_whitespace());
    command
}

/// The kernels that rank 0 has put into its stream, by the log.
fn launched(errors: &str) -> Vec<&str> {
    let lines = errors.lines().filter(|line| line.contains("rank=0 "));
    let mut kernels: Vec<&str> =
        lines.filter_map(|line| line.split("kernel=").nth(1)?.split(' ').next()).collect();
    kernels.dedup();
    kernels
}

#[test]
fn a_row_says_what_the_log_says_that_ran() {
    for (collective, flags, setting, kernel, plan) in [
        (
            "all_reduce",
            "-g 4 --algo ring --proto Simple",
            None,
            "all_reduce_ring_simple_",
            ["Ring", "Simple"],
        ),
        ("all_reduce", "-g 4 --algo TREE --proto ll", None, "all_reduce_tree_ll_", ["Tree", "LL"]),
        ("all_reduce", "-g 4", Some(("NCCL_ALGO", "chain")), "reduce_chain_", ["Chain", ""]),
        ("all_reduce", "-g 4", Some(("NCCL_PROTO", "LL128")), "_ll128_", ["", "LL128"]),
        (
            "all_gather",
            "-g 4 --algo bruck --proto Simple",
            None,
            "all_gather_bruck_simple",
            ["Bruck", "Simple"],
        ),
        (
            "all_reduce",
            "-g 4 --algo hierarchical --proto LL",
            Some(("FERROCCL_RANKS_PER_NODE", "2")),
            "reduce_",
            ["Hierarchical", "LL"],
        ),
        (
            "alltoall",
            "-g 3 -R 2 -b 3M -e 3M",
            None,
            "all_to_all_direct_simple",
            ["Direct", "Simple"],
        ),
        ("alltoall", "-g 3 -R 2", Some(("NCCL_ALGO", "ring")), "sendrecv", ["p2p", ""]),
        ("alltoall", "-g 3 -b 96 -e 96", None, "all_to_all_one_shot_simple", ["OneShot", "Simple"]),
        (
            "alltoall",
            "-g 3 -b 96 -e 96 --proto ll",
            None,
            "all_to_all_one_shot_ll",
            ["OneShot", "LL"],
        ),
        ("alltoall", "-g 3 -b 96K -e 96K", None, "all_to_all_linear_simple", ["Linear", "Simple"]),
        ("alltoall", "-g 3 -b 96M -e 96M", None, "all_to_all_linear_simple", ["Linear", "Simple"]),
        (
            "alltoall",
            "-g 3 -b 3M -e 3M",
            Some(("NCCL_ALGO", "ring,oneshot")),
            "sendrecv",
            ["p2p", ""],
        ),
        (
            "alltoall",
            "-g 3 -b 3M -e 3M --algo oneshot",
            None,
            "all_to_all_one_shot",
            ["OneShot", ""],
        ),
        (
            "alltoall",
            "-g 3 -b 96K -e 96K --proto simple",
            None,
            "all_to_all_linear",
            ["Linear", "Simple"],
        ),
        ("sendrecv", "-g 2", None, "send_recv", ["p2p", ""]),
        ("all_reduce", "-g 1", None, "all_reduce_ring_simple_", ["Ring", "Simple"]),
    ] {
        let mut command = measure(collective, flags);
        command.envs(setting).env("NCCL_DEBUG", "TRACE").env("NCCL_DEBUG_SUBSYS", "COLL");
        let out = finish(&mut command);
        let (table, errors) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{collective} {flags}: {table}{errors}");
        let row = &rows(&table)[0];
        for (said, want) in row[PLAN..].iter().zip(plan) {
            assert!(want.is_empty() || *said == want, "{collective} {flags}: {row:?}");
        }
        assert!(row[PLAN + 2].parse::<u32>().is_ok_and(|channels| channels > 0), "{row:?}");
        let kernels = launched(&errors);
        if plan[0] != "p2p" {
            assert!(
                !kernels.is_empty() && kernels.iter().any(|k| k.contains(kernel)),
                "{kernels:?}"
            );
        }
    }
}

#[test]
fn the_channels_of_a_row_are_those_of_its_launches() {
    for channels in [1, 3] {
        let mut command = measure("all_reduce", &format!("-g 2 --channels {channels} --algo ring"));
        let out = finish(command.env("NCCL_DEBUG", "TRACE").env("NCCL_DEBUG_SUBSYS", "COLL"));
        let (table, errors) = (text(&out.stdout), text(&out.stderr));
        assert_eq!(rows(&table)[0][PLAN + 2], channels.to_string(), "{table}");
        assert!(errors.contains(&format!(" channels={channels}")), "{errors}");
    }
    // Where the size chooses, small calls use fewer than large ones.
    let table = table_of(&mut measure("all_reduce", "-b 8 -e 64M -f 8388608 -g 2 -c 0"));
    let channels = column(&rows(&table), PLAN + 2);
    assert_eq!(channels[0], "1", "{table}");
}

#[test]
fn what_cannot_be_had_is_refused_before_anything_is_measured() {
    for (collective, flags, words) in [
        ("all_reduce", "-g 4 --algo bruck", &["--algo Bruck", "all_reduce", "Tree, Ring"][..]),
        ("reduce_scatter", "-g 4 --algo collnetchain", &["--algo CollnetChain", "reduce_scatter"]),
        ("all_reduce", "-g 4 --algo collnetchain", &["--algo CollnetChain", "all_reduce"]),
        ("all_reduce", "-g 4 --algo hierarchical", &["--algo Hierarchical", "node"]),
        ("all_reduce", "-g 1 --algo tree", &["--algo Tree", "single rank"]),
        ("all_reduce", "-g 1 --proto LL", &["--proto LL", "single rank"]),
        ("sendrecv", "-g 2 --algo ring", &["--algo Ring", "sendrecv", "messages"]),
        ("alltoall", "-g 2 --algo tree", &["--algo Tree", "alltoall", "OneShot, Direct, Linear"]),
        ("alltoall", "-g 2 --algo direct", &["--algo Direct", "-R 2"]),
        ("alltoall", "-g 1 --algo oneshot", &["--algo OneShot", "single rank"]),
        ("all_gather", "-t 2 -g 2 --algo tree", &["--algo Tree", "all_gather", "Ring, Bruck"]),
    ] {
        let out = finish(&mut measure(collective, flags));
        let errors = text(&out.stderr);
        assert_eq!(
            out.status.code(),
            Some(2),
            "{collective} {flags}: {}{errors}",
            text(&out.stdout)
        );
        assert_eq!(text(&out.stdout), "", "{collective} {flags}");
        for word in words {
            assert!(errors.replace('\n', " ").contains(word), "{flags}: {word:?} in {errors}");
        }
        assert_eq!(errors.matches("error:").count(), 1, "once: {errors}");
    }
}

#[test]
fn a_flag_that_contradicts_the_environment_names_both() {
    let mut command = measure("all_reduce", "-g 2 --algo tree");
    let out = finish(command.env("NCCL_ALGO", "ring"));
    let errors = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{}{errors}", text(&out.stdout));
    assert!(errors.contains("--algo Tree") && errors.contains("NCCL_ALGO=Ring"), "{errors}");
}

#[test]
fn every_process_refuses_and_none_says_that_another_is_lost() {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    for algorithm in ["bruck", "hierarchical"] {
        let mut command = ferroccl(["run", "-n", "3", "--", exe, "perf", "all_reduce"]);
        let out = finish(command.args(["-b", "8", "-e", "8", "--algo", algorithm]));
        let errors = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{errors}");
        assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
        assert!(!errors.contains("lost"), "{errors}");
    }
}

/// A list of `NCCL_ALGO` is a filter, as with NCCL: what it names and a collective has not is no error, as long as it leaves
/// something; where it leaves nothing the call fails, and where no list applies that is said.
#[test]
fn a_list_of_the_environment_filters_fails_or_is_said_not_to_apply() {
    let table = table_of(measure("all_reduce", "-g 4").env("NCCL_ALGO", "bruck,tree"));
    assert_right(&table);
    assert_eq!(rows(&table)[0][PLAN], "Tree");
    assert!(table.contains(" algorithm: Tree,Bruck (NCCL_ALGO) "), "{table}");

    let out = finish(measure("all_reduce", "-g 4").env("NCCL_ALGO", "bruck"));
    let errors = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{errors}");
    assert!(errors.contains("NCCL_ALGO") && errors.contains("all_reduce"), "{errors}");
    assert!(!errors.contains("invalid argument op"), "the operator is not at fault: {errors}");

    for (collective, flags, name, value) in
        [("sendrecv", "-g 2", "NCCL_ALGO", "tree"), ("all_reduce", "-g 1", "NCCL_PROTO", "LL")]
    {
        let out = finish(measure(collective, flags).env(name, value));
        assert!(out.status.success(), "{out:?}");
        let errors = text(&out.stderr);
        let of = format!("{name}=");
        assert!(errors.contains(&of) && errors.contains("does not apply"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn the_record_has_the_plan_of_every_row() {
    let args = "-g 4 -b 8 -e 4M -f 524288 --algo ring --json -";
    let json: Value = serde_json::from_str(&table_of(&mut measure("all_reduce", args))).unwrap();
    let results = json["results"].as_array().unwrap();
    let table = table_of(&mut measure("all_reduce", &args.replace("--json -", "")));
    for (result, row) in results.iter().zip(rows(&table)) {
        assert_eq!(
            (&result["algorithm"], &result["protocol"]),
            (&row[PLAN].into(), &row[PLAN + 1].into())
        );
        assert_eq!(result["channels"].to_string(), row[PLAN + 2]);
    }
    let json = table_of(&mut measure("sendrecv", "-g 2 --json -"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["results"][0]["algorithm"].is_null(), "messages have none: {json}");
}

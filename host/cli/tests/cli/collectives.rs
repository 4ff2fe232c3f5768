//! `ferroccl perf` on every collective: results checked, and the columns that nccl-tests has for each.

use serde_json::Value;

use super::perf::{PLAN, assert_right, column, rows, table_of};
use super::skip;
use super::support::{ferroccl, finish, text};

const ALL: [&str; 10] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "sendrecv",
    "alltoall",
    "gather",
    "scatter",
    "hypercube",
];

fn measure(collective: &str, flags: &str) -> String {
    let args = ["perf", collective, "-n", "1", "-w", "1"];
    table_of(ferroccl(args).args(flags.split_whitespace()))
}

/// Whether it is done in place, too.
fn in_place(collective: &str) -> bool {
    !matches!(collective, "sendrecv" | "alltoall")
}

/// Every element was checked and none was wrong, in both places where there are two.
fn all_right(collective: &str, table: &str) {
    if in_place(collective) {
        return assert_right(table);
    }
    let rows = rows(table);
    assert!(!rows.is_empty(), "{table}");
    for row in rows {
        assert_eq!((row[8], &row[9..13]), ("0", &["N/A"; 4][..]), "{row:?}");
    }
    assert!(table.contains("\n# Out of bounds values : 0 OK\n"), "{table}");
}

#[test]
fn every_collective_is_right() {
    for collective in ALL {
        for flags in ["-g 1", "-g 2", "-g 4", "-t 4", "-t 2 -g 4", "-g 16 -e 40000", "-g 4 -m 3"] {
            let flags = format!("-b 16 -e 3000000 -f 13 {flags}");
            all_right(collective, &measure(collective, &flags));
        }
        // No power of two.
        if collective != "hypercube" {
            for flags in ["-g 3", "-g 5 -d uint8", "-t 7 -d double"] {
                let flags = format!("-b 20 -e 1000000 -f 11 {flags}");
                all_right(collective, &measure(collective, &flags));
            }
        }
    }
}

#[test]
fn every_type_is_right() {
    for collective in ALL {
        let table = measure(collective, "-b 80000 -e 80000 -g 4 -d all");
        all_right(collective, &table);
        let types = column(&rows(&table), 2).len();
        assert_eq!(types, ferroccl::DataType::ALL.len(), "{table}");
    }
    for collective in ["reduce_scatter", "reduce"] {
        let table = measure(collective, "-b 40000 -e 40000 -g 3 -o all -d all");
        all_right(collective, &table);
        let all = ferroccl::DataType::ALL.len() * ferroccl::ReduceOp::ALL.len();
        assert_eq!(rows(&table).len(), all);
    }
}

#[test]
fn sizes_counts_operators_and_roots_are_those_of_nccl_tests() {
    for (collective, count, redop, root) in [
        ("all_reduce", "1000", "sum", "-1"),
        ("all_gather", "248", "none", "-1"),
        ("reduce_scatter", "248", "sum", "-1"),
        ("broadcast", "1000", "none", "2"),
        ("reduce", "1000", "sum", "2"),
        ("sendrecv", "1000", "none", "-1"),
        ("alltoall", "248", "none", "-1"),
        ("gather", "248", "none", "2"),
        ("scatter", "248", "none", "2"),
        ("hypercube", "248", "none", "-1"),
    ] {
        let table = measure(collective, "-b 4000 -e 4000 -g 4 -r 2");
        let rows = rows(&table);
        let size = if count == "248" { "3968" } else { "4000" };
        assert_eq!(rows[0][..5], [size, count, "float", redop, root], "{collective}");
        let [time, algbw, busbw] = [5, 6, 7].map(|i| rows[0][i].parse::<f64>().unwrap());
        let (moved, factor) = match collective {
            "all_reduce" => (1.0, 1.5),
            "hypercube" => (0.75, 1.0),
            "broadcast" | "reduce" | "sendrecv" => (1.0, 1.0),
            _ => (1.0, 0.75),
        };
        let size: f64 = size.parse().unwrap();
        assert!((algbw - moved * size / time / 1e3).abs() <= 0.006 + algbw * 0.01, "{table}");
        assert!((busbw - algbw * factor).abs() <= 0.0125, "{table}");
    }
}

#[test]
fn every_rank_can_be_the_root() {
    for collective in ["broadcast", "reduce", "gather", "scatter"] {
        let table = measure(collective, "-b 64K -e 64K -t 2 -g 2 -r all");
        all_right(collective, &table);
        assert_eq!(column(&rows(&table), 4), ["0", "1", "2", "3"]);
    }
    let table = measure("all_gather", "-b 64K -e 64K -g 2 -r all");
    assert_eq!(column(&rows(&table), 4), ["-1"]);
}

#[test]
fn algorithms_and_protocols_are_forced() {
    for (collective, algorithms) in [
        (
            "all_reduce",
            &["ring", "tree", "chain", "doubling", "oneshot", "twoshot", "hierarchical"][..],
        ),
        ("all_gather", &["ring", "bruck", "linear", "oneshot"]),
        ("reduce_scatter", &["ring", "bruck", "linear", "oneshot", "chain"]),
        ("broadcast", &["ring", "tree", "linear"]),
        ("reduce", &["ring", "tree", "chain"]),
    ] {
        for algorithm in algorithms {
            for protocol in ["LL", "LL128", "Simple"] {
                for ranks in ["-g 2", "-g 5"] {
                    let flags = format!(
                        "-b 8 -e 400000 -f 61 {ranks} --algo {algorithm} --proto {protocol}"
                    );
                    // On one node a hierarchy has nothing to do.
                    let per_node = (*algorithm == "hierarchical").then_some((
                        "FERROCCL_RANKS_PER_NODE",
                        if ranks == "-g 2" { "1" } else { "2" },
                    ));
                    let args = ["perf", collective, "-n", "1", "-w", "1"];
                    let mut command = ferroccl(args);
                    let table = table_of(command.args(flags.split(' ')).envs(per_node));
                    all_right(collective, &table);
                    for row in rows(&table) {
                        assert_eq!(row[PLAN].to_lowercase(), *algorithm, "{flags}: {row:?}");
                        assert_eq!(row[PLAN + 1], protocol, "{flags}: {row:?}");
                    }
                    let said = format!("# ferroccl {} {collective} ", env!("CARGO_PKG_VERSION"));
                    assert!(table.contains(&said), "{table}");
                }
            }
        }
    }
}

#[test]
fn a_hypercube_of_three_is_refused() {
    let out = finish(&mut ferroccl(["perf", "hypercube", "-g", "3", "-b", "8", "-e", "8"]));
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("a power of two of ranks; there are 3"), "{out:?}");
}

#[test]
fn what_is_not_measured_is_null_in_the_json() {
    let out = measure("alltoall", "-b 4K -e 4K -g 4 --json -");
    let json: Value = serde_json::from_str(&out).unwrap();
    let row = &json["results"][0];
    assert!(row["in_place"].is_null() && row["out_of_place"]["wrong"] == 0, "{json}");
    assert_eq!((&row["redop"], &row["root"]), (&"none".into(), &(-1).into()));
    assert!(json["algorithm"].is_null(), "{json}");
    assert_eq!(json["collective"], "alltoall");
}

#[test]
fn ranks_in_processes_are_right() {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    for collective in ALL {
        let mut command = ferroccl(["run", "-n", "4", "--", exe, "perf", collective, "-n", "1"]);
        let table = table_of(command.args(["-b", "64", "-e", "300000", "-f", "67"]));
        all_right(collective, &table);
    }
}

/// What a GPU would run, emulated, with all checks.
#[test]
fn the_emulator_runs_every_collective() {
    if let Some(why) = ferroccl::ptx::unavailable() {
        return skip::skip(why);
    }
    for collective in ALL {
        for flags in ["", "--seed 3 --checks"] {
            let flags = format!("--runtime ptx -g 4 -b 4K -e 4K {flags}");
            let table = measure(collective, &flags);
            all_right(collective, &table);
            assert!(table.contains("# Figures of one call"), "{table}");
        }
    }
}

//! What `ferroccl perf` writes and shows besides its table: pages, comparisons, comma-separated values, the spread of iterations; and
//! all flags of nccl-tests.

use std::fs;

use serde_json::Value;

use super::perf::{rows, table_of};
use super::support::{ferroccl, finish, text};

const SMALL: [&str; 10] = ["perf", "all_reduce", "-b", "8", "-e", "2K", "-f", "16", "-n", "3"];

fn measure(flags: &str) -> String {
    table_of(ferroccl(SMALL).args(flags.split_whitespace()))
}

fn refused(flags: &str) -> String {
    let out = finish(ferroccl(SMALL).args(flags.split_whitespace()));
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{flags}: {out:?}");
    text(&out.stderr)
}

#[test]
fn a_run_is_compared_with_one_from_before() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (json, page) = (file("before.json"), file("page.html"));
    let table = table_of(ferroccl(SMALL).args(["-g", "2", "-J"]).arg(&json));
    fs::write(file("before.txt"), &table).unwrap();
    for before in [&json, &file("before.txt")] {
        let mut command = ferroccl(SMALL);
        command.args(["-g", "2", "--percentiles", "--compare"]).arg(before);
        let shown = table_of(command.arg("--report").arg(&page));
        let beside = shown.split("# Beside ").nth(1).unwrap();
        assert!(beside.starts_with(&before.display().to_string()), "{shown}");
        // The times in it are those of the table.
        let then = rows(&table)[0][5];
        let line = beside.lines().find(|line| line.trim_start().starts_with("8 ")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[..4].to_vec(), words.len()), (vec!["8", "float", "sum", then], 9));
        assert!(beside.contains("# out-of-place  ") && beside.contains("median"), "{beside}");
        let html = fs::read_to_string(&page).unwrap();
        for word in [
            "<title>all_reduce, 2 ranks</title>",
            "<svg",
            "How many times as fast",
            "copies in memory",
            "99th percentile",
            "wrong elements",
        ] {
            assert!(html.contains(word), "{word}");
        }
    }
    // What is compared has to be there before anything is measured.
    let out = finish(ferroccl(SMALL).args(["--compare", "/nowhere/before.json"]));
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    assert!(text(&out.stderr).contains("/nowhere/before.json: No such file"), "{out:?}");
    let out = finish(ferroccl(SMALL).arg("--compare").arg(file("page.html")));
    assert!(text(&out.stderr).contains("no results of ferroccl perf or nccl-tests"), "{out:?}");
}

#[test]
fn json_says_where_and_how_and_keeps_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    let secret = "0123456789abcdef0123456789abcdef";
    let mut command = ferroccl(SMALL);
    command.env("NCCL_PROTO", "LL").env("FERROCCL_SECRET", secret);
    table_of(command.args(["-g", "2", "-I", "1", "-K", "1", "--json"]).arg(&path));
    let text = fs::read_to_string(&path).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["settings"]["NCCL_PROTO"], "LL");
    assert!(!text.contains(secret) && json["machine"]["cores"].as_u64() > Some(0), "{text}");
    let spread = &json["results"][0]["in_place"]["iterations"];
    let of = |name: &str| spread[name].as_f64().unwrap();
    assert!(of("min_us") > 0.0 && of("min_us") <= of("p50_us") && of("p50_us") <= of("p90_us"));
    assert!(of("p90_us") <= of("p99_us") && of("p99_us") <= of("max_us"));
    assert!(of("jitter_percent") >= 0.0);
}

#[test]
fn comma_separated_values_are_those_of_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.csv");
    let flags = ["perf", "alltoall", "-b", "64", "-e", "64", "-n", "2", "-g", "2"];
    // Messages have no algorithm.
    let mut command = ferroccl(flags);
    let table = table_of(command.env("NCCL_ALGO", "ring").arg("-F").arg(&path));
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let [names, line] = lines.as_slice() else { panic!("{text}") };
    let value = |name: &str| line[names.iter().position(|n| *n == name).unwrap()];
    assert_eq!((value("size_bytes"), value("type"), value("redop")), ("64", "float", "none"));
    assert_eq!((value("out_of_place_wrong"), value("in_place_time_us")), ("0", ""));
    assert_eq!((value("algorithm"), value("out_of_place_p99_us")), ("", ""));
    let (time, shown) = (value("out_of_place_time_us"), rows(&table)[0][5]);
    assert!((time.parse::<f64>().unwrap() - shown.parse::<f64>().unwrap()).abs() < 0.1);
}

#[test]
fn every_flag_of_nccl_tests_is_understood() {
    // All of nccl-tests' getopt string; values that are allowed.
    let flags = "-t 1 -g 2 -b 8 -e 8 -i 8 -n 2 -m 2 -w 1 -N 1 -p 0 -I 1 -K 1 -c 1 -o sum -d float -r 0 -z 2 \
                 -y 0 -T 60 -G 0 -C 0 -a 1 -R 0 -x 0 -D 0 -V 16 -S 0 -M 0 -u 0";
    let mut command = ferroccl(["perf", "all_reduce"]);
    let table = table_of(command.args(flags.split_whitespace()));
    assert!(table.contains("i_min    i_max    i_p99    i_cv%"), "{table}");
    let line = table.lines().find(|line| line.trim_start().starts_with("8 ")).unwrap();
    // 13 of nccl-tests, 4 more for each place, 3 for what ran.
    assert_eq!(line.split_whitespace().count(), 24, "{line}");
    assert!(measure("-g 2 -y 1 -x 2 -V 8").contains("\n# Without effect: -y, -x, -V\n"));
    assert!(refused("-D 1").contains("examples/fused") || refused("-D 1").contains("0..=0"));
    for (flags, word) in [
        ("-K 1", "-K leaves out"),
        ("-I 1 -K 3", "-K leaves no iteration"),
        ("-I 1 -G 2 --runtime cuda", "-I times calls one by one"),
        ("-z 3 -G 2 --runtime cuda", "-z 3 waits"),
        ("-u 1 -R 2", "-u moves buffers"),
        ("-z 4", "4"),
    ] {
        let error = refused(flags);
        assert!(error.contains(word), "{flags}: {error}");
    }
}

#[test]
fn cycles_waits_alignment_and_stamps() {
    // 8 B, 128 B and 2 KiB, twice.
    let table = measure("-g 2 -N 2");
    let sizes: Vec<&str> = rows(&table).iter().map(|row| row[0]).collect();
    assert_eq!(sizes, ["8", "128", "2048", "8", "128", "2048"]);
    for flags in ["-g 3 -u 1", "-g 2 -u 3 -d int8", "-t 2 -z 1", "-t 2 -z 2", "-t 2 -z 3 -m 2"] {
        let table = measure(flags);
        for row in rows(&table) {
            assert_eq!((row[8], row[12]), ("0", "0"), "{flags}: {row:?}");
        }
    }
    assert!(measure("-t 2 -z 3").contains("untimed, all ranks"));
    let stamped = measure("-g 2 -S 1");
    let line = stamped.lines().find(|line| line.trim_start().starts_with("8 ")).unwrap();
    let time: jiff::civil::DateTime = line[line.len() - 19..].parse().unwrap();
    let now = jiff::Zoned::now().datetime();
    assert!((now - time).total(jiff::Unit::Minute).unwrap().abs() < 60.0, "{time}, {now}");
    let memory = measure("-g 2 -M 1");
    assert!(memory.contains("# Host memory of process 0: ") && memory.contains("a rank)"));
}

#[test]
fn processes_time_their_iterations_together() {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    for flags in ["-I 1", "-z 1", "-z 3 -m 2", "-N 2 -u 1"] {
        let mut job = ferroccl(["run", "-n", "2", "--", exe]);
        let table = table_of(job.args(SMALL).args(flags.split_whitespace()));
        assert!(table.contains("# Out of bounds values : 0 OK"), "{flags}: {table}");
    }
}

//! `ferroccl perf`: the table that readers and scripts know, its JSON, its errors.

use std::process::{Command, Stdio};
use std::time::Duration;

use ferroccl::runtime::ptx::MachineModel;
use serde_json::Value;

use super::skip;
use super::support::{LONG, Mark, ferroccl, finish, plain, text, within};

/// Where what is planned begins in a row: the first column behind nccl-tests' own.
pub(super) const PLAN: usize = 13;

/// One row: size, count, type, redop, root, then time, algbw, busbw, #wrong, twice, then algorithm, protocol and channels.
pub(super) fn rows(table: &str) -> Vec<Vec<&str>> {
    let rows = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let rows: Vec<Vec<_>> = rows.map(|line| line.split_whitespace().collect()).collect();
    for row in &rows {
        assert_eq!(row.len(), PLAN + 3, "{row:?} in {table}");
    }
    rows
}

pub(super) fn column<'a>(rows: &[Vec<&'a str>], i: usize) -> Vec<&'a str> {
    rows.iter().map(|row| row[i]).collect()
}

/// Runs a measurement that must go well; gives its table.
fn measure(args: &str) -> String {
    table_of(ferroccl(["perf", "all_reduce", "-n", "2", "-w", "1"]).args(args.split(' ')))
}

pub(super) fn table_of(command: &mut Command) -> String {
    let out = finish(command);
    let (table, errors) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{command:?}\n{table}{errors}");
    assert_eq!(errors, "", "no progress where there is no terminal");
    table
}

/// A table in which every element was checked and none was wrong.
pub(super) fn assert_right(table: &str) {
    let rows = rows(table);
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!((row[8], row[12]), ("0", "0"), "{row:?}");
    }
    assert!(table.contains("\n# Out of bounds values : 0 OK\n"), "{table}");
}

#[test]
fn the_table_is_that_of_nccl_tests() {
    let table = measure("-b 8 -e 64K -f 2 -g 4");
    let first = table.lines().next().unwrap();
    assert_eq!(
        first,
        "# nThread 1 nGpus 4 minBytes 8 maxBytes 65536 step: 2(factor) warmup iters: 1 iters: 2 \
         agg iters: 1 validation: 1 graph: 0"
    );
    assert!(table.contains("\n# Using devices\n#  Rank  0 Group  0 Pid "), "{table}");
    assert_eq!(table.matches("#  Rank ").count(), 4);
    assert!(table.contains("out-of-place                       in-place"));
    assert!(table.contains("algbw   busbw #wrong     time"));
    assert_right(&table);

    let rows = rows(&table);
    let sizes: Vec<String> = (3..=16).map(|i| (1u32 << i).to_string()).collect();
    let counts: Vec<String> = (1..=14).map(|i| (1u32 << i).to_string()).collect();
    assert_eq!((column(&rows, 0), column(&rows, 1)), (strs(&sizes), strs(&counts)));
    for row in &rows {
        assert_eq!((row[2], row[3], row[4]), ("float", "sum", "-1"));
        for place in [5, 9] {
            let [time, algbw, busbw] = [0, 1, 2].map(|i| row[place + i].parse::<f64>().unwrap());
            let size: f64 = row[0].parse().unwrap();
            // As far as two digits behind the point tell; 4 ranks: busbw is 1.5 algbw.
            assert!((algbw - size / time / 1e3).abs() <= 0.006 + algbw * 0.01, "{row:?}");
            assert!((busbw - algbw * 1.5).abs() <= 0.0125, "{row:?}");
        }
    }
    let last = table.lines().rev().nth(1).unwrap();
    let mean: f64 = last.strip_prefix("# Avg bus bandwidth    : ").unwrap().trim().parse().unwrap();
    let all: Vec<f64> =
        rows.iter().flat_map(|r| [r[7], r[11]]).map(|v| v.parse().unwrap()).collect();
    assert!((mean - all.iter().sum::<f64>() / all.len() as f64).abs() <= 0.006);
}

fn strs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[test]
fn every_type_and_operator_is_right() {
    let table = measure("-b 40000 -e 40000 -g 3 -o all -d all");
    assert_right(&table);
    let rows = rows(&table);
    let mut pairs: Vec<_> = rows.iter().map(|row| (row[2], row[3])).collect();
    let all = ferroccl::DataType::ALL.len() * ferroccl::ReduceOp::ALL.len();
    assert_eq!(pairs.len(), all);
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), all);
}

#[test]
fn every_protocol_and_number_of_ranks_is_right() {
    for flags in [
        "-g 1",
        "-g 2 --proto LL",
        "-g 5 --proto ll128",
        "-g 4 --proto Simple",
        "-g 4 --channels 4",
        "-t 4",
        "-t 2 -g 2",
        "-t 3 -p 1",
        "-g 2 -z 1",
        "-g 2 -C 1",
        "-g 2 -m 3",
        "-t 2 -a 0",
        "-t 2 -a 3",
        "-g 2 -c 3",
        "-g 2 -w 0",
    ] {
        assert_right(&measure(&format!("-b 4 -e 300000 -f 17 {flags}")));
    }
}

#[test]
fn sizes_go_by_steps_too() {
    let table = measure("-b 1K -e 3K -i 512 -d f64 -g 2");
    assert_eq!(column(&rows(&table), 0), ["1024", "1536", "2048", "2560", "3072"]);
    assert!(table.contains("step: 512(bytes)"));
    let table = measure("-b 0 -e 4 -i 1 -g 2");
    assert_eq!(column(&rows(&table), 1), ["0", "1"]);
    assert_right(&table);
}

#[test]
fn unchecked_is_said() {
    let table = measure("-b 8 -e 8 -g 2 -c 0");
    let rows = rows(&table);
    assert_eq!((rows[0][8], rows[0][12]), ("N/A", "N/A"));
    assert!(table.contains("validation: 0"));
}

#[test]
fn json_says_all_that_the_table_says() {
    let out = measure("-b 8 -e 32 -f 2 -g 4 -o min -d int32 --proto LL --channels 2 --json -");
    let json: Value = serde_json::from_str(&out).expect("nothing but JSON on standard output");
    assert_eq!(json["version"], 2);
    assert_eq!((&json["complete"], &json["error"]), (&true.into(), &Value::Null));
    assert_eq!(json["collective"], "all_reduce");
    assert_eq!((&json["protocol"], &json["channels"]), (&"LL".into(), &2.into()));
    assert_eq!((&json["iters"], &json["check_iters"]), (&2.into(), &1.into()));
    assert_eq!(json["ranks"].as_array().unwrap().len(), 4);
    assert_eq!(json["ranks"][3]["rank"], 3);
    for key in ["pid", "host", "device", "name"] {
        assert!(!json["ranks"][0][key].is_null(), "{key}");
    }
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for (result, size) in results.iter().zip([8, 16, 32]) {
        assert_eq!((&result["size_bytes"], &result["count"]), (&size.into(), &(size / 4).into()));
        assert_eq!((&result["type"], &result["redop"]), (&"int32".into(), &"min".into()));
        assert_eq!(result["root"], -1);
        for place in ["out_of_place", "in_place"] {
            for key in ["time_us", "algbw_gbps", "busbw_gbps"] {
                assert!(result[place][key].as_f64().unwrap() > 0.0, "{place} {key}");
            }
            assert_eq!(result[place]["wrong"], 0);
        }
    }
    assert_eq!(json["out_of_bounds_values"], 0);
    assert!(json["avg_busbw_gbps"].as_f64().unwrap() > 0.0);
}

#[test]
fn json_goes_to_a_file_beside_the_table() {
    let path = std::env::temp_dir().join(format!("ferroccl-cli-{}.json", std::process::id()));
    let table = measure(&format!("-b 8 -e 8 -g 2 --json {}", path.display()));
    let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(rows(&table).len(), json["results"].as_array().unwrap().len());

    let out = finish(&mut ferroccl([
        "perf",
        "all_reduce",
        "-b",
        "8",
        "-e",
        "8",
        "--json",
        "/no/such/dir/x",
    ]));
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("/no/such/dir/x"), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout), "", "before anything is measured");
}

#[test]
fn bad_command_lines() {
    let cases: [(&str, &str); 26] = [
        ("", "<COLLECTIVE>"),
        ("all_to_none", "possible values: all_reduce"),
        ("all_reduce -b 8Q", "\"Q\" is no unit of size"),
        ("all_reduce -b x", "'x'"),
        ("all_reduce -e 99999999T", "more than 2^64 bytes"),
        ("all_reduce -b 2K -e 1K", "the smallest size (-b 2K) is larger than the largest (-e 1K)"),
        ("all_reduce -e 64M -i 0", "-i 0"),
        ("all_reduce -f 1", "at least 2"),
        ("all_reduce -b 0 -f 2", "from 0 bytes"),
        ("all_reduce -i 1 -f 2", "cannot be used with"),
        ("all_reduce -t 0", "1..=4096"),
        ("all_reduce -g many", "'many'"),
        ("all_reduce -n 0", "'--iters <N>'"),
        ("all_reduce -m 0", "'--agg_iters <N>'"),
        ("all_reduce -w -1", "-1"),
        ("all_reduce -c x", "'--check <N>'"),
        ("all_reduce -a 4", "'--average <0-3>'"),
        ("all_reduce -z 4", "possible values: 0, 1"),
        ("all_reduce -C x", "possible values: 0, 1"),
        ("all_reduce -p x", "possible values: 0, 1"),
        ("all_reduce -o mul", "possible values: sum, prod, min, max, avg, mulsum, all"),
        ("all_reduce -d f99", "possible values: int8, uint8"),
        ("all_reduce -r x", "neither a rank nor"),
        ("all_reduce -r 2 -g 2", "root 2 (-r) is none of the 2 ranks"),
        ("all_reduce --proto LL64", "possible values: LL, LL128, Simple"),
        ("all_reduce --channels 33", "1..=32"),
    ];
    for (args, word) in cases {
        let out = finish(ferroccl(["perf"]).args(args.split_whitespace()));
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args}: {error}");
        // clap wraps nothing of an error's first lines, but may break a list.
        assert!(error.replace('\n', " ").contains(word), "{args}: {word:?} in {error}");
        assert_eq!(text(&out.stdout), "", "{args}");
    }
}

#[test]
fn a_size_that_no_memory_has_is_an_error() {
    let out =
        finish(ferroccl(["perf", "all_reduce"]).args(["-b", "8", "-e", "4000000T", "-f", "1000"]));
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    let error = text(&out.stderr);
    assert!(error.starts_with("ferroccl perf: ") && !error.contains("panicked"), "{error}");
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    let mut command = ferroccl(["perf", "all_reduce", "-b", "8", "-e", "1M", "-f", "2", "-n", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stderr), "");
}

const PERF: [&str; 9] = ["perf", "all_reduce", "-b", "8", "-e", "256K", "-f", "8", "-n"];

/// The ranks, pids and rows of a measurement by processes.
fn assert_processes(table: &str, processes: usize, ranks: usize) {
    assert_right(table);
    assert_eq!(table.matches("# nThread").count(), 1, "only rank 0 speaks: {table}");
    let who = table.lines().filter_map(|line| line.strip_prefix("#  Rank"));
    let who: Vec<Vec<_>> = who.map(|line| line.split_whitespace().collect()).collect();
    let mut pids: Vec<_> = who.iter().map(|words| words[4]).collect();
    assert_eq!(
        who.iter().map(|w| w[0].parse().unwrap()).collect::<Vec<usize>>(),
        (0..ranks).collect::<Vec<_>>()
    );
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), processes, "{table}");
}

#[test]
fn ranks_are_processes_under_run() {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    for (n, flags, ranks) in
        [("2", "", 2), ("4", "", 4), ("2", "-t 2 -g 2", 8), ("3", "-o all -d half", 3)]
    {
        let mut command = ferroccl(["run", "-n", n, "--", exe]);
        command.args(PERF).arg("2").args(flags.split_whitespace());
        assert_processes(&table_of(&mut command), n.parse().unwrap(), ranks);
    }
}

#[test]
fn ranks_are_processes_under_mpirun() {
    let mut mpirun = plain("mpirun");
    mpirun.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "4",
        env!("CARGO_BIN_EXE_ferroccl"),
    ]);
    mpirun.args(PERF).arg("2");
    match mpirun.output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            skip::skip("no mpirun (apt-get install openmpi-bin)");
        }
        Err(e) => panic!("{e}"),
        Ok(out) => {
            assert!(out.status.success(), "{}", text(&out.stderr));
            assert_processes(&text(&out.stdout), 4, 4);
        }
    }
}

/// kill -9 of one rank in the middle of a measurement: the others end with an error, nothing hangs or is left.
#[test]
fn a_killed_rank_ends_the_measurement() {
    let mark = Mark::new();
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    let mut command = ferroccl(["run", "-n", "4", "--grace", "60", "--tag-output", "--", exe]);
    command.args(["perf", "all_reduce", "-b", "1M", "-e", "1M", "-n", "1000000"]);
    mark.put_on(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let ranks = || -> Vec<String> {
        let alive = mark.alive();
        alive.into_iter().filter(|p| p.contains(" perf ") && !p.contains(" run ")).collect()
    };
    assert!(within(LONG, || ranks().len() == 4), "{:#?}", mark.alive());
    std::thread::sleep(Duration::from_millis(500));
    let victim: i32 = ranks()[2].split(' ').next().unwrap().parse().unwrap();
    // SAFETY: kill takes no pointers; the mark says that the process is of this test.
    unsafe { libc::kill(victim, libc::SIGKILL) };
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    assert!(within(LONG, || waiter.is_finished()), "{:#?}", mark.alive());
    let out = waiter.join().unwrap();
    assert_eq!(out.status.code(), Some(137), "{}", text(&out.stderr));
    mark.assert_gone();
}

#[test]
fn the_example_runs_alone_and_under_a_launcher() {
    // target/debug/deps/cli-... -> target/debug/examples/all_reduce, which `cargo test` builds.
    let exe = std::env::current_exe().unwrap();
    let example = exe.ancestors().nth(2).unwrap().join("examples/all_reduce");
    if !example.exists() {
        let why = format!("{} is not built (cargo test --examples builds it)", example.display());
        return skip::skip(&why);
    }
    let mut launched = ferroccl(["run", "-n", "4", "--"]);
    launched.arg(&example);
    for command in [&mut plain(&example), &mut launched] {
        let out = finish(command);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let mut lines: Vec<_> = text(&out.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        let want: Vec<_> =
            (0..4).map(|rank| format!("rank {rank} of 4: 1 + ... + 4 = 10")).collect();
        assert_eq!(lines, want);
    }
}

/// The figures' lines of a table.
fn figures(table: &str) -> Vec<&str> {
    table.lines().filter(|line| line.contains("  all_reduce_")).collect()
}

#[test]
fn the_emulator_counts_the_same_every_time() {
    if let Some(why) = ferroccl::ptx::unavailable() {
        return skip::skip(why);
    }
    let run = |flags: &str| {
        let args = ["perf", "all_reduce", "--runtime", "ptx", "-g", "3", "-b", "8", "-e", "32K"];
        let table = table_of(
            ferroccl(args).args(["-f", "64", "--algo", "ring"]).args(flags.split_whitespace()),
        );
        assert_right(&table);
        table
    };
    let first = run("");
    assert!(first.contains("warmup iters: 0 iters: 1 "), "{first}");
    assert!(first.contains("[ptx] sm_90, 128 threads a block, lockstep"), "{first}");
    assert_eq!(figures(&first).len(), 6, "{first}");
    assert_eq!(figures(&first), figures(&run("")));
    // What warps have to wait for depends on the schedule.
    let seeded = run("--seed 7");
    assert_ne!(figures(&first), figures(&seeded));
    assert_eq!(figures(&seeded), figures(&run("--seed 7")));
    let stores = |table: &str| -> Vec<String> {
        let fields = figures(table).into_iter().map(|line| line.split_whitespace().nth(5));
        fields.map(|sectors| sectors.unwrap().to_owned()).collect()
    };
    // What they store does not: in the smallest size, where no credit is used up, and in the others but for a word when a sender's
    // is used up, or when there is more of it.
    let smallest = |table: &str| stores(table)[..2].to_vec();
    for other in [seeded, run("--checks")] {
        assert_eq!(smallest(&first), smallest(&other));
        for (a, b) in stores(&first).iter().zip(stores(&other)) {
            let [a, b] = [a, &b].map(|n| n.parse::<i64>().unwrap());
            assert!((a - b).abs() <= 3, "more than a word of each rank's: {first}{other}");
        }
    }
    run("--ptx-schedule threads");
    assert!(run("-t 2 -g 2").contains("threads a block, threads"));
}

#[test]
fn the_figures_are_in_the_json() {
    if let Some(why) = ferroccl::ptx::unavailable() {
        return skip::skip(why);
    }
    let args = ["perf", "all_reduce", "--runtime", "ptx", "-g", "2", "-b", "4K", "-e", "4K"];
    let document =
        table_of(ferroccl(args).args(["--algo", "ring", "--proto", "LL128", "--json", "-"]));
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["runtime"], "ptx");
    let counts = &document["results"][0]["out_of_place"]["counts"];
    assert_eq!(counts["kernel"], "all_reduce_ring_ll128_sum_float");
    let number = |name: &str| counts[name].as_u64().unwrap();
    // At least the output of both ranks.
    assert!(number("bytes_stored") >= 2 * 4096 && number("warp_instructions") > 100, "{counts}");
    let moved = (number("bytes_loaded") + number("bytes_stored")) as f64 / (2.0 * 4096.0);
    assert!((counts["moved_per_byte"].as_f64().unwrap() - moved).abs() < 1e-9, "{counts}");
    let cpu = table_of(&mut ferroccl(["perf", "all_reduce", "-b", "8", "-e", "8", "--json", "-"]));
    assert!(!cpu.contains("counts"), "{cpu}");
}

/// Simulated times are the same every time, and are called that.
#[test]
fn simulated_times() {
    if let Some(why) = ferroccl::ptx::unavailable() {
        return skip::skip(why);
    }
    let run = |model: &str, flags: &str| {
        let all = format!("all_reduce --runtime ptx --model {model} -g 2 -b 4K -e 4K {flags}");
        table_of(ferroccl(["perf"]).args(all.split_whitespace()))
    };
    let rows = |table: &str| -> Vec<Vec<f64>> {
        let rows = table.lines().filter(|line| line.trim_start().starts_with("4096 "));
        let numbers = |line: &str| line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        rows.map(numbers).collect()
    };
    // Up and down a tree each rank waits for another; around a ring of lines data is there before a rank comes to it.
    let first = run("h100-nvlink", "--algo tree");
    assert_right(&first);
    assert!(
        first.contains("# Times are SIMULATED: kernels in virtual time on h100-nvlink"),
        "{first}"
    );
    assert!(first.contains("[0000:21:00.0] GPU 1 (h100-nvlink, simulated)"), "{first}");
    assert_eq!(rows(&first).len(), 1, "{first}");
    assert_eq!(rows(&first), rows(&run("h100-nvlink", "--algo tree")));
    // The fifth field is the time: the ways are shorter where both ranks are on one GPU.
    let time = |table: &str| rows(table)[0][3];
    let one_gpu = run("h200-one-gpu", "--algo tree");
    assert!(one_gpu.contains("GPU 0 (h200-one-gpu, simulated)"), "{one_gpu}");
    assert!(
        (2.0..50.0).contains(&time(&one_gpu)) && time(&one_gpu) < time(&first),
        "{one_gpu}{first}"
    );
    assert_right(&run("a100", "--checks --seed 3"));
    // The critical path's parts come to the time of the call, and some of it is another GPU's.
    let traced = run("h100-nvlink", "--algo tree --critical-path");
    assert_eq!(rows(&traced), rows(&first));
    let (_, path) = traced.split_once("# Critical paths (SIMULATED)").unwrap();
    let of_call = path.split("# 1 of ").nth(1).unwrap();
    let whole = of_call.strip_prefix("4096 bytes, out of place: ").unwrap();
    let whole: f64 = whole.split(" us").next().unwrap().parse().unwrap();
    // Both are rounded, one of them from whole nanoseconds.
    assert!((whole - time(&traced)).abs() < 0.011, "{traced}");
    let (parts, _) = of_call.split_once("of it, at").unwrap();
    let parts: f64 = parts
        .lines()
        .filter_map(|l| l.strip_prefix("# ")?.split(" us ").next()?.trim().parse::<f64>().ok())
        .sum();
    assert!((parts - time(&traced)).abs() < 0.1, "{parts}: {traced}");
    assert!(of_call.contains("another GPU") || of_call.contains("over NVLink"), "{traced}");
    // A file is a machine as well, and its figures count.
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let mut model = MachineModel::find("h100-nvlink").unwrap();
    model.replace("peer_ns", 10_000, "measured").unwrap();
    std::fs::write(file.path(), serde_json::to_string(&model).unwrap()).unwrap();
    let slow = run(file.path().to_str().unwrap(), "--algo tree");
    assert!(time(&slow) > 2.0 * time(&first), "{slow}{first}");
    let document = run("a100", "--json -");
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["simulated_on"], "a100");
}

/// On windows, with algorithms that are for these; and what each of them lacks elsewhere.
#[test]
fn registered_buffers() {
    let perf = |flags: &str| {
        let mut command = ferroccl(["perf"]);
        command.args(flags.split_whitespace());
        command
    };
    for algorithm in ["Direct", "NVLS"] {
        for collective in ["all_reduce", "all_gather", "reduce_scatter"] {
            let all = format!("{collective} -g 3 -b 1K -e 64K -f 64 -R 2 --algo {algorithm}");
            let table = table_of(&mut perf(&all));
            assert_right(&table);
            assert!(table.contains(&format!(" {algorithm}  Simple ")), "{table}");
        }
    }
    let fails = |flags: &str, says: &str| {
        let out = perf(flags).output().unwrap();
        let error = text(&out.stderr);
        assert!(!out.status.success() && error.contains(says), "{flags}: {error}");
    };
    fails("all_reduce -g 3 -b 1K -e 1K --algo nvls", "its buffers are to be registered: -R 2");
    fails("all_reduce -g 3 -b 1K -e 1K -R 2 --algo nvls -d double", "there is no such kernel");
    if ferroccl::ptx::unavailable().is_some() {
        return;
    }
    let on = |model: &str| {
        format!("all_reduce -g 2 -b 4K -e 4K -R 2 --algo nvls --runtime ptx --model {model}")
    };
    let table = table_of(&mut perf(&on("h100-nvlink")));
    assert_right(&table);
    assert!(table.contains(" NVLS  Simple "), "{table}");
    // GPUs of sm_80 have no multicast objects, and a GPU is in one once.
    for model in ["a100", "h200-one-gpu"] {
        fails(&on(model), "on GPUs of sm_90 whose switch has multicast objects");
    }
}

#[test]
fn flags_of_the_emulator_that_do_not_go_together_are_refused() {
    for (flags, word) in [
        ("--seed 1", "--runtime ptx"),
        ("--checks", "--runtime ptx"),
        ("--ptx-schedule threads", "--runtime ptx"),
        ("--model a100", "--runtime ptx"),
        ("--runtime ptx --model h100", "a100, h100-nvlink, h200-one-gpu"),
        ("--runtime ptx --model ./none.json", "No such file"),
        ("--runtime ptx --model ./Cargo.toml", "expected value"),
        ("--runtime ptx -t 2 --model a100", "lockstep"),
        ("--runtime ptx --critical-path", "--model"),
        ("--runtime ptx -t 2 --ptx-schedule lockstep", "lockstep"),
        ("--runtime ptx -t 2 --checks", "lockstep"),
        ("--runtime ptx --ptx-schedule threads --seed 1", "lockstep"),
    ] {
        let out = finish(ferroccl(["perf", "all_reduce"]).args(flags.split(' ')));
        assert_eq!(out.status.code(), Some(2), "{flags}");
        assert!(text(&out.stderr).contains(word), "{flags}: {}", text(&out.stderr));
    }
}

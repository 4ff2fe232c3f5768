//! What becomes of results and messages: files that are whole, records of measurements that end early, lines that are whole.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use super::support::{LONG, ferroccl, finish, text, within};

fn record(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A measurement that goes on for long, once it has printed a row; its record is to be in `path`.
fn under_way(path: &std::path::Path) -> Child {
    let args = ["perf", "all_reduce", "-g", "2", "-b", "8", "-e", "64M", "-f", "2", "-n", "100000"];
    let mut command = ferroccl(args);
    command.args(["-c", "0", "--json"]).arg(path);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let row = |line: std::io::Result<String>| !line.unwrap().starts_with('#');
    assert!(lines.by_ref().any(row), "a row");
    std::thread::spawn(move || lines.for_each(drop));
    child
}

#[test]
fn an_interrupted_measurement_leaves_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    for (signal, name) in [(libc::SIGINT, "SIGINT"), (libc::SIGTERM, "SIGTERM")] {
        let path = directory.path().join("results.json");
        fs::write(&path, "an old record").unwrap();
        let mut child = under_way(&path);
        assert_eq!(fs::read(&path).unwrap(), b"an old record", "until there is a new one");
        // SAFETY: kill takes no pointers; the child has not been waited for.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        assert!(within(LONG, || child.try_wait().unwrap().is_some()));
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal));
        let json = record(&path);
        assert_eq!(json["complete"], false, "{json}");
        assert_eq!(json["error"], format!("interrupted by {name}"));
        assert!(!json["results"].as_array().unwrap().is_empty(), "{json}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing beside it");
    }
}

#[test]
fn a_measurement_that_fails_later_leaves_its_rows_and_one_that_fails_at_once_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results.json");
    // The first type's rows are measured before the second type finds no algorithm.
    let mut command = ferroccl(["perf", "all_reduce", "-g", "2", "-b", "8", "-e", "8", "-n", "1"]);
    command.arg("--json").arg(&path);
    let out = finish(&mut command);
    assert!(out.status.success(), "{out:?}");
    let json = record(&path);
    assert_eq!((&json["complete"], &json["error"]), (&true.into(), &Value::Null));

    let before = fs::read(&path).unwrap();
    let out = finish(command.env("NCCL_ALGO", "bruck"));
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert_eq!(fs::read(&path).unwrap(), before, "no row, no new record");
}

#[test]
fn variables_that_nothing_reads_are_warned_of_once() {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    let perf = ["perf", "all_reduce", "-b", "8", "-e", "8", "-n", "1"];
    let mut job = ferroccl(["run", "-n", "2", "--", exe]);
    job.args(perf);
    for command in [&mut ferroccl(perf), &mut ferroccl(["env", "--set"]), &mut job] {
        command.env("FERROCCL_TIMEOT", "5").env("NCCL_ALOG", "ring").env("NCCL_CUMEM_ENABLE", "0");
        command
            .env("FERROCCL_TEST_X", "1")
            .env("FERROCCL_PTX", "none")
            .env("FERROCCL_SKIPPED", "x");
        let out = finish(command);
        let errors = text(&out.stderr);
        assert!(out.status.success(), "{errors}");
        for (name, nearest) in [("FERROCCL_TIMEOT", "FERROCCL_TIMEOUT"), ("NCCL_ALOG", "NCCL_ALGO")]
        {
            let said = format!("{name} is set, which nothing reads: is {nearest} meant?");
            assert_eq!(errors.matches(&said).count(), 1, "{errors}");
        }
        assert_eq!(errors.lines().count(), 2, "{errors}");
    }
    // With a log, the log has it, once.
    let mut command = ferroccl(perf);
    let out =
        finish(command.env("FERROCCL_TIMEOT", "5").env("NCCL_DEBUG", "WARN").args(["-g", "2"]));
    let all = text(&out.stderr) + &text(&out.stdout);
    assert_eq!(all.matches("FERROCCL_TIMEOT is set").count(), 1, "{all}");
    assert!(all.contains("NCCL WARN FERROCCL_TIMEOT"), "{all}");
}

/// Whatever the ranks say at once, every line is whole and says who it is from.
#[test]
fn lines_of_a_jobs_errors_are_whole_and_name_rank_and_host() {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    let mut command =
        ferroccl(["run", "-n", "4", "--grace", "30", "--", exe, "perf", "all_reduce"]);
    let out = finish(command.args(["-b", "8", "-e", "8"]).env("NCCL_ALGO", "bruck"));
    let errors = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{errors}");
    for line in errors.lines() {
        let rest = line
            .strip_prefix("ferroccl perf: rank ")
            .or_else(|| line.strip_prefix("ferroccl run: rank "));
        let rest = rest.unwrap_or_else(|| panic!("{line:?} in {errors}"));
        let (rank, rest) = rest.split_once(" on ").unwrap_or_else(|| panic!("{line:?}"));
        assert!(rank.parse::<u32>().is_ok_and(|rank| rank < 4), "{line:?}");
        assert!(
            rest.split_once(": ").is_some_and(|(host, what)| !host.is_empty() && !what.is_empty()),
            "{line:?}"
        );
    }
    assert!(
        errors.contains("ferroccl perf: rank ") && errors.contains("ferroccl run: rank "),
        "{errors}"
    );
}

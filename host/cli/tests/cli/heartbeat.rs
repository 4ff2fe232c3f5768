//! A rank that is stopped: noticed by its silence, whatever the budget of kernels is, or waited for where that is asked for.

use std::process::{Child, Stdio};
use std::time::Duration;

use super::support::{LONG, Mark, ferroccl, text, within};

/// Sends a signal to one of the processes with the mark.
fn signal(mark: &Mark, pid: i32, number: i32) {
    assert!(mark.alive().iter().any(|process| process.starts_with(&format!("{pid} "))));
    // SAFETY: kill takes no pointers; the mark says that the process is of this test.
    unsafe { libc::kill(pid, number) };
}

/// Three ranks that measure, with these settings, and the process of the last; their measurement has begun.
fn measuring(mark: &Mark, settings: &[(&str, &str)], iterations: &str) -> (Child, i32) {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    let mut command = ferroccl(["run", "-n", "3", "--grace", "1", "--", exe, "perf", "all_reduce"]);
    command.args(["-b", "64K", "-e", "64K", "-c", "0", "-n", iterations]);
    command.envs(settings.iter().copied()).env("NCCL_DEBUG", "INFO");
    mark.put_on(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The heading comes when all ranks are connected.
    let mut heading = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    while !heading.contains("(us)") {
        assert!(std::io::BufRead::read_line(&mut out, &mut heading).unwrap() > 0, "{heading}");
    }
    let last = heading.lines().find_map(|line| line.strip_prefix("#  Rank  2 Group  0 Pid"));
    let pid = last.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    // What comes further is read, too, so that nobody waits for it.
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    (child, pid)
}

#[test]
fn without_a_budget_a_stopped_rank_is_lost_by_its_silence() {
    let mark = Mark::new();
    let settings = [("FERROCCL_TIMEOUT", "0"), ("FERROCCL_HEARTBEAT_TIMEOUT", "1")];
    let (child, pid) = measuring(&mark, &settings, "100000000");
    signal(&mark, pid, libc::SIGSTOP);
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    let ended = within(LONG, || waiter.is_finished());
    if !ended {
        signal(&mark, pid, libc::SIGKILL);
    }
    let out = waiter.join().unwrap();
    let errors = text(&out.stderr);
    assert!(ended && !out.status.success(), "{errors}");
    assert!(errors.contains("lost rank 2: ") && errors.contains("said nothing"), "{errors}");
    mark.assert_gone();
}

#[test]
fn without_a_heartbeat_a_stopped_rank_is_waited_for() {
    let mark = Mark::new();
    // The budget alone would make it lost after a second of silence.
    let settings = [("FERROCCL_HEARTBEAT_TIMEOUT", "0")];
    let (child, pid) = measuring(&mark, &settings, "3000");
    signal(&mark, pid, libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(4));
    signal(&mark, pid, libc::SIGCONT);
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    assert!(within(LONG, || waiter.is_finished()), "{:#?}", mark.alive());
    let out = waiter.join().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    mark.assert_gone();
}

#[test]
fn the_setting_is_shown_and_checked() {
    let out = ferroccl(["env"]).env("FERROCCL_HEARTBEAT_TIMEOUT", "0").output().unwrap();
    assert!(text(&out.stdout).contains("FERROCCL_HEARTBEAT_TIMEOUT=0\n"), "{out:?}");
    for (value, word) in [("-1", "0 to 86400"), ("0.01", "less than 0.1 seconds"), ("x", "seconds")]
    {
        let out = ferroccl(["env"]).env("FERROCCL_HEARTBEAT_TIMEOUT", value).output().unwrap();
        let errors = text(&out.stderr);
        assert!(!out.status.success() && errors.contains(word), "{value}: {errors}");
    }
}

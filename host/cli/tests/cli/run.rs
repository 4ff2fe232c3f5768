//! `ferroccl run`: numbers, exit codes, output, and that nothing is left whatever happens.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::support::{LONG, Mark, end_of, ferroccl, finish, text, within};

/// `ferroccl run` of a shell script on `n` ranks.
fn job(n: u32, flags: &[&str], script: &str) -> std::process::Command {
    let mut command = ferroccl(["run", "-n", &n.to_string()]);
    command.args(flags).args(["--", "sh", "-c", script]);
    command
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: kill takes no pointers; the child is ours and not waited for.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
}

#[test]
fn every_rank_is_told_who_it_is() {
    let out = finish(&mut job(
        3,
        &[],
        "echo $FERROCCL_RANK/$FERROCCL_WORLD_SIZE $FERROCCL_LOCAL_RANK/$FERROCCL_LOCAL_SIZE ${#FERROCCL_UNIQUE_ID}",
    ));
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(lines(&out.stdout), ["0/3 0/3 256", "1/3 1/3 256", "2/3 2/3 256"]);
    assert_eq!(text(&out.stderr), "");
}

#[test]
fn arguments_pass_untouched() {
    let out =
        finish(ferroccl(["run", "-n", "1"]).args(["printf", "%s|", "-n", "a b", "--", "--grace"]));
    assert_eq!(text(&out.stdout), "-n|a b|--|--grace|");
}

/// The cores that each rank may use, as Linux lists them.
fn cores_of_ranks(n: u32, flags: &[&str]) -> Vec<String> {
    let script = "echo $FERROCCL_RANK $(grep Cpus_allowed_list /proc/self/status)";
    let out = finish(&mut job(n, flags, script));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let printed = text(&out.stdout);
    let of_rank = |rank: u32| {
        let start = format!("{rank} Cpus_allowed_list: ");
        let line = printed.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("rank {rank}: {out:?}")).to_owned()
    };
    (0..n).map(of_rank).collect()
}

#[test]
fn ranks_have_a_core_each_where_they_outnumber_them() {
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let cores = std::thread::available_parallelism().unwrap().get() as u32;
    let bound = cores_of_ranks(cores + 1, &[]);
    assert!(bound.iter().all(|core| core.parse::<u32>().is_ok()), "{bound:?}");
    let different: std::collections::HashSet<_> = bound.iter().collect();
    assert_eq!(different.len() as u32, cores, "{bound:?}");
    assert_eq!(bound[0], bound[cores as usize]);
    assert_eq!(cores_of_ranks(1, &["--bind-to", "core"]), [&*bound[0]]);
    for (ranks, flags) in [(cores + 1, &["--bind-to", "none"][..]), (1, &[])] {
        assert_eq!(cores_of_ranks(ranks, flags), vec![own; ranks as usize]);
    }
}

#[test]
fn the_first_failure_is_the_jobs() {
    let started = Instant::now();
    let mark = Mark::new();
    let script = "[ $FERROCCL_RANK = 2 ] && exit 7; exec sleep 1000";
    let out = finish(mark.put_on(&mut job(4, &[], script)));
    assert_eq!(out.status.code(), Some(7));
    let errors = text(&out.stderr);
    assert!(
        errors.contains("rank 2 on ")
            && errors.contains(": ended with exit code 7; ending the others")
    );
    assert!(started.elapsed() < LONG);
    mark.assert_gone();
}

#[test]
fn a_rank_killed_by_a_signal_is_128_more() {
    let script = "[ $FERROCCL_RANK = 1 ] && kill -9 $$; exec sleep 1000";
    let out = finish(&mut job(2, &[], script));
    assert_eq!(out.status.code(), Some(128 + 9));
    let errors = text(&out.stderr);
    assert!(errors.contains("rank 1 on ") && errors.contains(": was killed by signal 9 (SIGKILL)"));
}

#[test]
fn ranks_may_end_in_their_own_time() {
    let out = finish(&mut job(3, &[], "sleep 0.$FERROCCL_RANK; echo $FERROCCL_RANK"));
    assert!(out.status.success());
    assert_eq!(text(&out.stdout), "0\n1\n2\n");
}

#[test]
fn who_does_not_end_when_told_is_killed() {
    let mark = Mark::new();
    let script = "trap '' TERM; [ $FERROCCL_RANK = 0 ] && exit 3; while :; do sleep 0.1; done";
    let out = finish(mark.put_on(&mut job(3, &["--grace", "0.3"], script)));
    assert_eq!(out.status.code(), Some(3));
    mark.assert_gone();
}

#[test]
fn who_is_told_to_end_may_clean_up() {
    let script = "[ $FERROCCL_RANK = 0 ] && { sleep 0.3; exit 3; }; \
                  trap 'echo cleaned; exit' TERM; while :; do sleep 0.05; done";
    let out = finish(&mut job(2, &["--grace", "60"], script));
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(3), "cleaned\n"));
}

#[test]
fn a_command_that_is_not_there() {
    let out = finish(&mut ferroccl(["run", "-n", "2", "--", "/no/such/command"]));
    assert_eq!(out.status.code(), Some(127));
    let error = text(&out.stderr);
    assert!(error.contains("cannot start \"/no/such/command\": No such file"), "{error}");

    let out = finish(&mut ferroccl(["run", "-n", "2", "--", "/"]));
    assert_eq!(out.status.code(), Some(126), "{}", text(&out.stderr));
}

#[test]
fn bad_command_lines() {
    let cases: [(&[&str], &str); 7] = [
        (&["--", "true"], "--ranks"),
        (&["-n", "2", "--bind-to", "socket", "--", "true"], "[possible values: auto, none, core]"),
        (&["-n", "0", "--", "true"], "0 is not in 1..=4096"),
        (&["-n", "x", "--", "true"], "'x'"),
        (&["-n", "2"], "COMMAND"),
        (&["-n", "2", "--grace", "-1", "--", "true"], "--grace"),
        (&["-n", "2", "--grace=long", "--", "true"], "not a number of seconds"),
    ];
    for (args, word) in cases {
        let out = finish(ferroccl(["run"]).args(args));
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(word), "{args:?}: {word} in {error}");
    }
}

#[test]
fn tagged_lines_are_whole() {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo out $i; echo err $i >&2; done; printf end";
    let out = finish(&mut job(3, &["--tag-output"], script));
    let mut want: Vec<String> =
        (0..3).flat_map(|r| (1..10).map(move |i| format!("[{r}] out {i}"))).collect();
    want.extend((0..3).map(|r| format!("[{r}] end")));
    want.sort();
    assert_eq!(lines(&out.stdout), want);
    assert_eq!(lines(&out.stderr).len(), 27);
}

#[test]
fn a_daemon_that_keeps_the_output_does_not_keep_the_launcher() {
    let mark = Mark::new();
    let file = std::env::temp_dir().join(format!("ferroccl-daemon-{}", std::process::id()));
    // The daemon says when it has left the group.
    let script = "setsid sh -c 'echo up >$FILE; exec sleep 1000' & \
                  until [ -s $FILE ]; do sleep 0.01; done; echo started";
    let mut command = job(1, &["--tag-output"], script);
    let out = finish(mark.put_on(&mut command).env("FILE", &file));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(text(&out.stdout), "[0] started\n");
    assert_eq!(mark.alive().len(), 1, "who leaves the group is left alone");
}

#[test]
fn input_goes_to_rank_0() {
    let mut command = job(2, &["--tag-output"], "cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "[0] hello\n");
}

/// A job whose ranks have children of their own, all of them at work.
fn busy(mark: &Mark, flags: &[&str]) -> Child {
    let mut command = job(3, flags, "sleep 1000 & sleep 1001 & wait");
    let child = mark.put_on(&mut command).stderr(Stdio::null()).spawn().unwrap();
    // The launcher, its keeper, 3 shells and 6 sleeps.
    let count = |what| mark.alive().iter().filter(|p| p.contains(what)).count();
    assert!(
        within(LONG, || count("sleep 1000 &") == 4 && count(" sleep 100") == 6 + 4),
        "{:#?}",
        mark.alive()
    );
    child
}

#[test]
fn signals_end_the_job_and_what_it_started() {
    for (number, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let mark = Mark::new();
        let child = busy(&mark, &["--grace", "0.5"]);
        signal(&child, number);
        assert_eq!(end_of(child), Some(code));
        mark.assert_gone();
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let mark = Mark::new();
    let mut command = job(2, &["--grace", "1000"], "trap '' INT; sleep 1000 & wait; wait");
    let child = mark.put_on(&mut command).spawn().unwrap();
    assert!(
        within(LONG, || mark.alive().iter().filter(|p| p.ends_with("sleep 1000 ")).count() == 2)
    );
    signal(&child, libc::SIGINT);
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, libc::SIGINT);
    assert_eq!(end_of(child), Some(130));
    mark.assert_gone();
}

#[test]
fn a_killed_launcher_leaves_nothing() {
    let mark = Mark::new();
    let mut child = busy(&mark, &[]);
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    mark.assert_gone();
}

#[test]
fn a_killed_keeper_is_no_way_out() {
    let mark = Mark::new();
    let mut child = busy(&mark, &["--grace", "0.5"]);
    let keeper = mark.alive().into_iter().find(|p| p.contains("__keeper")).unwrap();
    let keeper: i32 = keeper.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: kill takes no pointers; the mark says that the process is of this test.
    unsafe { libc::kill(keeper, libc::SIGKILL) };
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "the job goes on");
    signal(&child, libc::SIGTERM);
    assert_eq!(end_of(child), Some(143));
    mark.assert_gone();
}

#[test]
fn what_a_rank_leaves_behind_ends_with_the_job() {
    let mark = Mark::new();
    let out = finish(mark.put_on(&mut job(2, &[], "sleep 1000 >/dev/null 2>&1 & exit 0")));
    assert!(out.status.success());
    mark.assert_gone();
}

//! `ferroccl status`: the ranks of running jobs as others see them, and the files that they leave.

use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use ferroccl::flight_recorder::trace;
use serde_json::Value;

use super::support::{LONG, Mark, ferroccl, finish, text, within};

/// Two processes with two ranks each that measure for long; their numbers, the first ranks' first.
fn measuring(mark: &Mark, settings: &[(&str, &str)]) -> (Child, [u32; 2]) {
    let exe = env!("CARGO_BIN_EXE_ferroccl");
    let mut command = ferroccl(["run", "-n", "2", "--grace", "1", "--", exe, "perf", "all_reduce"]);
    command.args(["-g", "2", "-b", "64K", "-e", "64K", "-c", "0", "-n", "100000000"]);
    command.envs(settings.iter().copied());
    mark.put_on(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut heading, mut out) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
    while !heading.contains("(us)") {
        assert!(out.read_line(&mut heading).unwrap() > 0, "{heading}");
    }
    let pid = |rank: u32| {
        let start = format!("#  Rank  {rank} Group  0 Pid");
        let line = heading.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let pids = [pid(0), pid(2)];
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    (child, pids)
}

fn status(arguments: &[&str]) -> Command {
    let mut command = ferroccl(["status"]);
    command.args(arguments);
    command
}

fn signal(pid: u32, number: i32) {
    // SAFETY: kill takes no pointers; the process is one of this test's.
    unsafe { libc::kill(pid.cast_signed(), number) };
}

#[test]
fn a_running_job_is_shown_rank_by_rank() {
    let mark = Mark::new();
    // What goes over the mesh has no steps of connections.
    let (mut child, pids) = measuring(&mark, &[("NCCL_ALGO", "ring")]);
    let [first, second] = pids.map(|pid| pid.to_string());
    // The heading is written before the first call.
    let called = |pid: &str| {
        let out = finish(&mut status(&[pid]));
        !text(&out.stdout).contains("has made no call")
    };
    assert!(within(LONG, || called(&first) && called(&second)));
    let out = finish(&mut status(&[&first, &second, "--calls", "3", "--steps"]));
    let shown = text(&out.stdout);
    assert!(out.status.success(), "{shown}{}", text(&out.stderr));
    for rank in 0..4 {
        let pid = pids[rank / 2];
        let line = format!("  rank {rank} on cpu, ferroccl {pid} on ");
        assert!(shown.contains(&line), "{shown}");
    }
    assert!(shown.contains(", 4 ranks\n"), "{shown}");
    assert!(shown.contains("all_reduce(count 16384, type float, op sum) by "), "{shown}");
    assert!(shown.contains("collectives, rank 3: "), "{shown}");

    // Without a number: all, among others these.
    let all = text(&finish(&mut status(&[])).stdout);
    assert!(pids.iter().all(|pid| all.contains(&format!("ferroccl {pid} on "))), "{all}");

    // One file with both processes, which is a trace; read again it is shown as before.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("now.json");
    let path = path.to_str().unwrap();
    assert!(finish(&mut status(&[&first, &second, "-o", path])).status.success());
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(trace::read(&bytes).unwrap().len(), 2);
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let named = events.iter().filter(|event| event["name"] == "process_name").count();
    assert_eq!(named, 4, "a rank each: {events:#?}");
    let again = text(&finish(&mut status(&["--from", path])).stdout);
    assert!(again.contains(&format!("  rank 3 on cpu, ferroccl {second} on ")), "{again}");
    let standard = finish(&mut status(&[&first, "-o", "-"]));
    assert_eq!(trace::read(&standard.stdout).unwrap().len(), 1);

    // A process that is stopped does not answer, and the others say who holds them up.
    signal(pids[1], libc::SIGSTOP);
    let held_up = within(LONG, || {
        let out = finish(&mut status(&[&first]));
        text(&out.stdout).contains(" waits for ")
    });
    assert!(held_up);
    let out = finish(&mut status(&[&second]));
    assert!(!out.status.success());
    let errors = text(&out.stderr);
    assert!(errors.contains(&format!("process {second}: it does not answer")), "{errors}");
    signal(pids[1], libc::SIGCONT);
    signal(child.id(), libc::SIGTERM);
    child.wait().unwrap();
    mark.assert_gone();
}

#[test]
fn who_cannot_be_asked_is_named() {
    let own = std::process::id().to_string();
    let out = finish(&mut status(&[&own]));
    let errors = text(&out.stderr);
    assert!(!out.status.success() && out.stdout.is_empty());
    assert!(errors.contains(&format!("process {own} has no communicator")), "{errors}");

    let mark = Mark::new();
    let (mut child, pids) = measuring(&mark, &[("FERROCCL_STATUS", "0")]);
    let errors = text(&finish(&mut status(&[&pids[0].to_string()])).stderr);
    assert!(errors.contains("FERROCCL_STATUS=0"), "{errors}");
    signal(child.id(), libc::SIGTERM);
    child.wait().unwrap();
    mark.assert_gone();

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.json");
    std::fs::write(&path, "{}").unwrap();
    let out = finish(&mut status(&["--from", path.to_str().unwrap(), "/nowhere"]));
    let errors = text(&out.stderr);
    assert!(!out.status.success(), "{errors}");
    assert!(errors.contains("x.json: ") && errors.contains("/nowhere: "), "{errors}");
}

/// Another user may neither ask nor be asked.
#[test]
fn a_process_answers_its_owner_alone() {
    // SAFETY: geteuid has no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return super::skip::skip("only root can play another user");
    }
    let mark = Mark::new();
    let (mut child, pids) = measuring(&mark, &[]);
    let pid = pids[0].to_string();
    // Where the command's file is not for all to read, nobody but its owner starts it.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let copy = directory.path().join("ferroccl");
    std::fs::copy(env!("CARGO_BIN_EXE_ferroccl"), &copy).unwrap();
    let mut other = Command::new(&copy);
    other.args(["status", &pid]);
    std::os::unix::process::CommandExt::uid(&mut other, 65534);
    let out = finish(&mut other);
    let errors = text(&out.stderr);
    assert!(!out.status.success() && out.stdout.is_empty(), "{errors}");
    assert!(errors.contains(&format!("process {pid} is user 0's")), "{errors}");
    // Somebody who does not care whose the process is.
    let pid = pids[0];
    let told = |user: libc::c_long| {
        let ask = move || {
            let id = -1;
            // SAFETY: it takes no pointers, and changes this thread alone (credentials(7), "C library/kernel differences").
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, id, user, id) }, 0);
            let name = format!("ferroccl-status-{pid}");
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
            let mut stream = UnixStream::connect_addr(&address).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer.len()
        };
        std::thread::spawn(ask).join().unwrap()
    };
    assert_eq!((told(65534), told(0) > 100), (0, true));
    signal(child.id(), libc::SIGTERM);
    child.wait().unwrap();
    mark.assert_gone();
}

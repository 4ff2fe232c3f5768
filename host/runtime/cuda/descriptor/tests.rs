use std::ffi::c_int;
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Backlog, ControlMessage, MsgFlags, listen, sendmsg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, geteuid, pipe};

use super::*;
use crate::local_socket;

#[path = "../../../../tests/support/again.rs"]
mod again;
use again::{again, elsewhere, here};

/// How long something that does not answer is waited for.
const SOON: Duration = Duration::from_millis(200);
/// In this time is done what waits for nobody: less than any patience.
const QUICK: Duration = Duration::from_secs(1);

/// A file with some bytes, offered.
fn offered(content: &str) -> Offered {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    Offered::new(Shared::Memory, file.into()).unwrap()
}

fn handle(of: &Offered) -> DescriptorHandle {
    of.handle(4096).unwrap()
}

/// What is in a file.
fn content(file: OwnedFd) -> String {
    use std::os::unix::fs::FileExt as _;
    let mut bytes = [0; 64];
    let read = File::from(file).read_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// By the socket, and no other way.
fn asked(handle: &DescriptorHandle) -> Result<OwnedFd, AskError> {
    ask(&handle.socket, &handle.token, ask::PATIENCE)
}

fn text<T>(result: Result<T, impl std::fmt::Display>) -> String {
    result.map(drop).unwrap_err().to_string()
}

fn is_closed_by_exec(file: &OwnedFd) -> bool {
    // SAFETY: it takes numbers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
}

/// In a thread of user 65534.
fn as_other_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let same = -1_i64;
        // SAFETY: it takes no pointers, and changes this thread alone (credentials(7), "C library/kernel differences").
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, same, 65534_i64, same) }, 0);
        act()
    };
    thread::scope(|scope| scope.spawn(act).join().unwrap())
}

fn is_root(what: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can {what}");
    }
    root
}

/// Another process that offers a file, and the handle.
fn other_process() -> (Child, DescriptorHandle) {
    let mut child = again(module_path!(), "offers")
        .env("FERROCCL_TEST_OFFERS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let told = lines.find_map(|line| line.strip_prefix("told: ").map(str::to_owned)).unwrap();
    let bytes: Vec<u8> = told.split(' ').map(|byte| byte.parse().unwrap()).collect();
    (child, DescriptorHandle::from_bytes(Shared::Memory, &bytes).unwrap())
}

/// That process's part.
#[test]
fn offers() {
    if std::env::var_os("FERROCCL_TEST_OFFERS").is_none() {
        return;
    }
    let offered = offered("from afar");
    let bytes: Vec<_> = handle(&offered).to_bytes().iter().map(u8::to_string).collect();
    println!("\ntold: {}", bytes.join(" "));
    // Until the other process ends us, or is gone.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_descriptor_is_had_as_long_as_it_is_offered() {
    let (first, second) = (offered("first"), offered("second"));
    let [one, two] = [&first, &second].map(handle);
    assert_eq!((one.socket, one.magic), (two.socket, two.magic));
    assert_ne!(one.token, two.token);
    for way in [DescriptorHandle::take, |handle: &DescriptorHandle| Ok(asked(handle).unwrap())] {
        let [file, other] = [&one, &two].map(|handle| way(handle).unwrap());
        assert!(is_closed_by_exec(&file));
        assert_eq!([file, other].map(content), ["first", "second"]);
    }
    let changed = DescriptorHandle { inode: one.inode ^ 1, ..one };
    assert!(text(changed.take()).contains("is not what its owner offered"));
    let wrong = DescriptorHandle { token: [7; 16], ..one };
    assert!(matches!(asked(&wrong), Err(AskError::Withdrawn)));
    // It is not looked for by its number, which may be another file's.
    let (error, started) = (wrong.take().unwrap_err(), Instant::now());
    assert!(matches!(error, Error::System { .. }), "{error}");
    assert!(error.to_string().ends_with("it does not offer that, or no longer"), "{error}");
    assert!(started.elapsed() < QUICK);
    drop(first);
    assert!(one.take().is_err() && two.take().is_ok());
}

/// Nothing is left of a descriptor when it is withdrawn: it would keep the memory.
#[test]
fn a_withdrawn_descriptor_is_closed() {
    let (mut reader, writer) = pipe().map(|(r, w)| (File::from(r), w)).unwrap();
    let offered = Offered::new(Shared::Memory, writer).unwrap();
    let handle = handle(&offered);
    drop(asked(&handle).unwrap());
    drop(offered);
    // Or it waits for ever.
    reader.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn another_process_gives_a_descriptor_and_a_stopped_or_dead_one_is_not_waited_for() {
    let (mut child, handle) = other_process();
    assert_eq!(handle.pid, child.id());
    let pid = Pid::from_raw(child.id() as i32);
    assert_eq!(content(asked(&handle).unwrap()), "from afar");
    let wrong = DescriptorHandle { token: [7; 16], ..handle };
    assert!(matches!(asked(&wrong), Err(AskError::Withdrawn)));
    assert_eq!(content(handle.take().unwrap()), "from afar");

    kill(pid, Signal::SIGSTOP).unwrap();
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    let started = Instant::now();
    let error = ask(&handle.socket, &handle.token, SOON).unwrap_err();
    assert!(matches!(error, AskError::Silent(SOON)) && started.elapsed() >= SOON, "{error}");
    // What cannot be had by its number either.
    let other = DescriptorHandle { fd: 9999, ..handle };
    let error = text(other.take_from_owner(SOON));
    for part in ["taking descriptor 9999", "not answered within 200ms; by pidfd_getfd: "] {
        assert!(error.contains(part), "{error}");
    }
    kill(pid, Signal::SIGCONT).unwrap();
    assert_eq!(content(asked(&handle).unwrap()), "from afar");

    child.kill().unwrap();
    child.wait().unwrap();
    let (error, started) = (handle.take().unwrap_err(), Instant::now());
    assert!(matches!(error, Error::System { .. }), "{error}");
    let why = "it is gone, or is in another network namespace; by pidfd_getfd: No such process";
    assert!(error.to_string().contains(why), "{error}");
    assert!(started.elapsed() < QUICK);
}

/// Another network namespace does not have the socket's name.
#[test]
fn where_the_socket_is_not_reached_a_descriptor_is_taken_by_its_number() {
    if !is_root("make a network namespace") {
        return;
    }
    let (mut child, handle) = other_process();
    thread::scope(|scope| {
        let elsewhere = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            assert!(matches!(asked(&handle), Err(AskError::Absent(_))));
            assert_eq!(content(handle.take().unwrap()), "from afar");
            let other = DescriptorHandle { namespace: handle.namespace ^ 1, ..handle };
            let error = text(other.take());
            let why = "another network namespace; by pidfd_getfd: it is of another PID namespace";
            assert!(error.contains(why), "{error}");
        };
        scope.spawn(elsewhere).join().unwrap();
    });
    // By the socket the PID namespace does not matter.
    let other = DescriptorHandle { namespace: handle.namespace ^ 1, ..handle };
    assert_eq!(content(other.take().unwrap()), "from afar");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn bytes_of_anything_else_are_no_handle() {
    let file = offered("");
    let good = handle(&file).to_bytes();
    assert_eq!(DescriptorHandle::from_bytes(Shared::Memory, &good).unwrap(), handle(&file));
    assert!(DescriptorHandle::from_bytes(Shared::Multicast, &good).is_err());
    for bytes in [
        &good[1..],
        &[good.clone(), vec![0]].concat(),
        &[],
        &[0xff; HANDLE_BYTES],
        &[0xff; size_of::<IpcHandle>()],
    ] {
        let error = DescriptorHandle::from_bytes(Shared::Memory, bytes).unwrap_err();
        assert!(matches!(error, Error::Bootstrap(_)), "{error}");
    }
    assert_eq!(handle(&file).bytes(4096).unwrap(), 4096);
    assert!(handle(&file).bytes(4097).is_err());
}

#[test]
fn callers_that_say_nothing_or_nonsense_hold_nobody_up() {
    let offered = offered("good");
    let handle = handle(&offered);
    let connect = || local_socket::connect(&socket_name(&handle.socket)).unwrap();
    let good = || {
        let started = Instant::now();
        assert_eq!(content(asked(&handle).unwrap()), "good");
        assert!(started.elapsed() < QUICK);
    };
    let mut silent: Vec<_> = (0..200).map(|_| connect()).collect();
    good();
    let mut halves: Vec<_> = (0..60).map(|_| connect()).collect();
    halves.iter_mut().for_each(|half| half.write_all(&handle.token[..9]).unwrap());
    good();
    // The rest of the token is still good, where it comes soon.
    let mut last = halves.pop().unwrap();
    last.write_all(&handle.token[9..]).unwrap();
    let mut byte = [0];
    last.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [GIVEN]);
    drop(halves);
    good();
    let mut garbage = connect();
    garbage.write_all(&[0xff; 16]).unwrap();
    let mut answer = Vec::new();
    garbage.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, [UNKNOWN]);
    // Those that ask nothing are hung up on.
    let started = Instant::now();
    for silent in &mut silent {
        silent.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    good();
}

/// The end of who has connected, at an owner that is none of ours.
fn posing(answer: impl Fn(UnixStream) + Send + 'static) -> Token {
    let name = random().unwrap();
    let listener: UnixListener = local_socket::bind(&socket_name(&name)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if stream.read_exact(&mut Token::default()).is_ok() {
                answer(stream);
            }
        }
    });
    name
}

#[test]
fn answers_that_make_no_sense_are_errors_and_leave_no_descriptor() {
    let send = |stream: &UnixStream, byte: u8, files: &[RawFd]| {
        let rights = [ControlMessage::ScmRights(files)];
        let rights = if files.is_empty() { &[][..] } else { &rights };
        let (byte, none) = ([byte], MsgFlags::empty());
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&byte)], rights, none, None).unwrap();
    };
    let (reader, writer) = pipe().map(|(r, w)| (r, Arc::new(w))).unwrap();
    type Is = fn(&AskError) -> bool;
    let cases: [(u8, usize, Is); 6] = [
        (GIVEN, 0, |e| matches!(e, AskError::Malformed)),
        (GIVEN, 2, |e| matches!(e, AskError::Malformed)),
        (GIVEN, 3, |e| matches!(e, AskError::Truncated)),
        (UNKNOWN, 0, |e| matches!(e, AskError::Withdrawn)),
        (UNKNOWN, 1, |e| matches!(e, AskError::Malformed)),
        (77, 1, |e| matches!(e, AskError::Malformed)),
    ];
    for (byte, files, is) in cases {
        let given = Arc::clone(&writer);
        let name = posing(move |stream| send(&stream, byte, &vec![given.as_raw_fd(); files]));
        let error = ask(&name, &Token::default(), ask::PATIENCE).unwrap_err();
        assert!(is(&error), "{byte} {files}: {error}");
    }
    let name = posing(drop);
    let error = ask(&name, &Token::default(), ask::PATIENCE).unwrap_err();
    assert!(matches!(error, AskError::Closed), "{error}");
    // It accepts nobody, and then nobody more has room to wait.
    let name = random().unwrap();
    let deaf = local_socket::bind(&socket_name(&name)).unwrap();
    listen(&deaf, Backlog::new(1).unwrap()).unwrap();
    let is_silent = || matches!(ask(&name, &Token::default(), SOON), Err(AskError::Silent(SOON)));
    assert!(is_silent());
    let waiting: Vec<_> =
        (0..10).map_while(|_| local_socket::connect(&socket_name(&name)).ok()).collect();
    assert!(waiting.len() < 10 && is_silent());
    let name = posing(|_| thread::sleep(Duration::from_secs(60)));
    let (started, error) = (Instant::now(), ask(&name, &Token::default(), SOON).unwrap_err());
    assert!(matches!(error, AskError::Silent(SOON)) && started.elapsed() >= SOON, "{error}");
    assert!(started.elapsed() < QUICK);
    // What has come with the answers is closed.
    let link = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = all.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let pipe = link(writer.as_raw_fd());
    assert_eq!(numbers.filter(|&fd| link(fd) == pipe).count(), 2, "the two ends that were made");
    drop(reader);
}

#[test]
fn other_users_get_no_descriptor_and_give_none() {
    if !is_root("play another user") {
        return;
    }
    let offered = offered("mine");
    let handle = handle(&offered);
    // It knows the token, and does not look at whom it asks.
    let name = socket_name(&handle.socket);
    let answer = as_other_user(|| {
        let mut stream = local_socket::connect(&name).unwrap();
        let _ = stream.write_all(&handle.token);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    assert_eq!(answer, b"");
    let error = as_other_user(|| asked(&handle)).unwrap_err();
    assert!(matches!(error, AskError::Closed), "{error}");
    assert_eq!(content(asked(&handle).unwrap()), "mine");
    // It listens at the name of a process that is gone.
    let name = as_other_user(|| posing(drop));
    let error = ask(&name, &Token::default(), ask::PATIENCE).unwrap_err();
    assert!(matches!(error, AskError::Stranger(65534)), "{error}");
}

/// The service's threads, by how often each has slept.
fn services() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses = tasks.map(|task| {
        std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default()
    });
    let ours = statuses.filter(|status| status.starts_with("Name:\tferroccl-fds\n"));
    let slept = |status: String| {
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().split_whitespace().last().unwrap().parse().unwrap()
    };
    ours.map(slept).collect()
}

/// Sockets and files without a name that a program has which is started here.
fn seen_by_programs() -> usize {
    let list = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("pipe:"), "{list}");
    list.lines().filter(|line| line.contains("socket:") || line.contains("(deleted)")).count()
}

#[test]
fn the_service_is_one_thread_that_sleeps_and_a_fork_has_another() {
    elsewhere(module_path!(), "one_thread", &[]);
}

/// Its part in a process of its own.
#[test]
fn one_thread() {
    if !here() {
        return;
    }
    assert!(services().is_empty());
    let inherited = seen_by_programs();
    let many: Vec<_> = (0..50).map(|i| offered(&i.to_string())).collect();
    assert_eq!(content(asked(&handle(&many[7])).unwrap()), "7");
    drop(many);
    let offered = offered("parent's");
    let of_parent = handle(&offered);
    thread::sleep(SOON);
    let before = services();
    assert_eq!(before.len(), 1);
    thread::sleep(2 * SOON);
    assert_eq!(services(), before, "it sleeps");

    // A caller that says nothing and is gone again leaves nothing to wait for.
    drop(local_socket::connect(&socket_name(&of_parent.socket)).unwrap());
    thread::sleep(SOON);
    let before = services();
    thread::sleep(2 * SOON);
    assert_eq!(services(), before, "it sleeps again");

    let (mut reader, mut writer) = pipe().map(|(r, w)| (File::from(r), File::from(w))).unwrap();
    // SAFETY: the other threads of this process hold no lock that the child needs: they sleep.
    let child: c_int = unsafe { libc::fork() };
    if child == 0 {
        drop(reader);
        assert!(text(offered.handle(1)).contains("is a fork"));
        assert_eq!(content(of_parent.take().unwrap()), "parent's");
        drop(offered);
        let own = self::offered("child's");
        writer.write_all(&handle(&own).to_bytes()).unwrap();
        // Until the parent ends us.
        loop {
            thread::sleep(Duration::from_secs(60));
        }
    }
    drop(writer);
    let mut bytes = [0; HANDLE_BYTES];
    reader.read_exact(&mut bytes).unwrap();
    let of_child = DescriptorHandle::from_bytes(Shared::Memory, &bytes).unwrap();
    assert_ne!(of_child.socket, of_parent.socket);
    assert_eq!(content(of_child.take().unwrap()), "child's");
    assert_eq!(content(asked(&of_parent).unwrap()), "parent's", "the child has dropped its copy");
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    waitpid(Pid::from_raw(child), None).unwrap();
    assert!(of_child.take().is_err());
    assert_eq!(seen_by_programs(), inherited);
}

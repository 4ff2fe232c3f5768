//! A network namespace without a name: a file descriptor, and the processes that run in it.
//!
//! `ip netns add` would give it a name under /run/netns, which stays when the test is killed. One that is only a
//! descriptor goes with the last process that has it, whatever becomes of the test.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A killed process is gone in milliseconds, unless the kernel holds it in a system call.
const DYING: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Namespace {
    // Shared with the commands that are to run in it: the number must not come to mean another file.
    fd: Arc<OwnedFd>,
    /// What `/proc/PID/ns/net` leads to for its processes.
    identity: (u64, u64),
}

impl Namespace {
    /// An empty one: its only interface is a loopback, which is down.
    pub(super) fn new() -> Result<Self, String> {
        // A thread may leave for a namespace of its own; what remains of that one is the descriptor.
        let made = thread::spawn(|| {
            // SAFETY: unshare takes no pointers.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let file = made.join().expect("the thread does not panic").map_err(|e| {
            let right = e.raw_os_error() == Some(libc::EPERM);
            let why = if right {
                ": only root may make one (or try `unshare -r` before the command)"
            } else {
                ""
            };
            format!("no network namespace: {e}{why}")
        })?;
        let about = file.metadata().map_err(|e| format!("no network namespace: {e}"))?;
        Ok(Namespace { fd: Arc::new(file.into()), identity: (about.dev(), about.ino()) })
    }

    /// Where `ip` and other processes of ours find it.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// What `/proc/PID/ns/net` reads as for its processes.
    pub(super) fn link(&self) -> String {
        format!("net:[{}]", self.identity.1)
    }

    /// Has `command` run here, on a machine that is called `hostname`.
    pub(super) fn take_in(&self, command: &mut Command, hostname: &str) {
        let fd = self.fd.clone();
        let name = CString::new(hostname).expect("our names have no zeros");
        let enter = move || {
            enter(fd.as_raw_fd())?;
            // SAFETY: the string is as long as stated.
            let named = unsafe {
                libc::unshare(libc::CLONE_NEWUTS) == 0
                    && libc::sethostname(name.as_ptr(), name.as_bytes().len()) == 0
            };
            if named { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: between fork and exec this makes system calls and nothing else.
        unsafe { command.pre_exec(enter) };
    }

    /// Runs `body` on a thread that is here; so are the sockets and the threads that it makes.
    pub(super) fn within<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let on_thread = || {
            enter(self.fd.as_raw_fd()).expect("the namespace is open");
            body()
        };
        thread::scope(|scope| {
            scope.spawn(on_thread).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Gives `ip` these lines, here.
    pub(super) fn ip(&self, lines: &str) -> Result<(), String> {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]);
        self.take_in(&mut command, "set-up");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => "there is no `ip` (apt-get install iproute2)".to_owned(),
            _ => format!("ip: {e}"),
        };
        let mut child = command.spawn().map_err(failed)?;
        // One that ends before it has read everything says why.
        let _ = child.stdin.take().expect("it is piped").write_all(lines.as_bytes());
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("ip: {}, given:\n{lines}", String::from_utf8_lossy(&output.stderr).trim()))
    }

    /// The processes that are here, children of children included. Ours is not, even if a thread of it is.
    pub(super) fn processes(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
        let ids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
        ids.filter(|&pid| pid != std::process::id().cast_signed() && self.has(pid)).collect()
    }

    /// Whether the process is here. One that has ended, if not waited for, is nowhere.
    fn has(&self, pid: i32) -> bool {
        std::fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }

    /// Kills the processes that are here, and those that they start meanwhile.
    pub(super) fn kill(&self) -> Result<(), String> {
        let deadline = Instant::now() + DYING;
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("processes {processes:?} do not die"));
            }
            for pid in processes {
                self.kill_one(pid);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills a process if it is still here. A pidfd means one process for ever, a number does not.
    fn kill_one(&self, pid: i32) {
        // SAFETY: neither call takes pointers, but for a null one; the descriptor is new, and ours.
        unsafe {
            let Ok(fd) = RawFd::try_from(libc::syscall(libc::SYS_pidfd_open, pid, 0)) else {
                return;
            };
            if fd < 0 {
                return; // it has ended
            }
            let fd = OwnedFd::from_raw_fd(fd);
            if self.has(pid) {
                let none = std::ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), libc::SIGKILL, none, 0);
            }
        }
    }
}

/// Moves this thread.
fn enter(namespace: RawFd) -> io::Result<()> {
    // SAFETY: setns takes no pointers.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

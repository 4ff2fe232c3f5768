//! Starting the binary, and looking after what it started.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The repository, where the topology files and PTX of tests are.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Longer than anything here takes on a busy machine; a hang is found after it.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Variables by which launchers number ranks, and the library's own: what surrounds a test must not matter.
const LAUNCHERS: [&str; 8] =
    ["FERROCCL_", "NCCL_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE"];

/// The built command with these arguments, as if no launcher were near.
pub(crate) fn ferroccl<const N: usize>(args: [&str; N]) -> Command {
    let mut command = plain(env!("CARGO_BIN_EXE_ferroccl"));
    command.args(args);
    command
}

/// Any command, as if no launcher were near.
pub(crate) fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if LAUNCHERS.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs to the end, which must come.
pub(crate) fn finish(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let child = loop {
        match command.spawn() {
            // A test that has copied its program: another test's child, forked meanwhile, has the file open for writing until it
            // becomes a program of its own.
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && begun.elapsed() < LONG =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            child => break child.unwrap(),
        }
    };
    let id = child.id().cast_signed();
    let waiter = thread::spawn(move || child.wait_with_output().unwrap());
    if !within(LONG, || waiter.is_finished()) {
        // SAFETY: kill takes no pointers.
        unsafe { libc::kill(id, libc::SIGKILL) };
        panic!("{command:?} does not end");
    }
    waiter.join().unwrap()
}

/// Waits for the end of a child, which must come.
pub(crate) fn end_of(mut child: Child) -> Option<i32> {
    let mut status = None;
    let ended = within(LONG, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert!(ended, "{child:?} does not end");
    status.unwrap().code()
}

/// Whether `condition` comes true in time.
pub(crate) fn within(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A mark in the environment of a command, which everything it starts inherits.
pub(crate) struct Mark(String);

impl Mark {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the numbers must differ.
        Mark(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    pub(crate) fn put_on<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("CLI_TEST_MARK", &self.0)
    }

    /// The processes that have the mark and live, as `pid command`.
    pub(crate) fn alive(&self) -> Vec<String> {
        let mark = format!("CLI_TEST_MARK={}", self.0);
        let of = |pid: &str| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            environ.split(|&b| b == 0).find(|v| *v == mark.as_bytes())?;
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(format!("{pid} {}", text(&command).replace('\0', " ")))
        };
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        names
            .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
            .filter_map(|p| of(&p))
            .collect()
    }

    /// Nothing with the mark may live a moment from now.
    pub(crate) fn assert_gone(&self) {
        assert!(within(Duration::from_secs(20), || self.alive().is_empty()), "{:#?}", self.alive());
    }
}

/// What a failed test leaves must not keep the terminal, or the next test, waiting.
impl Drop for Mark {
    fn drop(&mut self) {
        for left in self.alive() {
            let pid = left.split(' ').next().and_then(|pid| pid.parse().ok());
            // SAFETY: kill takes no pointers; the mark says that the process is of this test.
            pid.map(|pid| unsafe { libc::kill(pid, libc::SIGKILL) });
        }
    }
}

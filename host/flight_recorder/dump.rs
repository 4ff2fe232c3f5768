//! Files of records: when a communicator of this process fails, and when a signal comes.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::Signal;
use tracing::{info, warn};

use super::{ProcessRecord, trace};
use crate::error::{Error, Result};
use crate::log;

/// The most files that a process writes by itself: one that fails again and again must not fill a disk.
const MOST_FILES: u32 = 16;

/// Where records are written (`FERROCCL_DUMP_FILE`).
#[derive(Clone, Debug)]
pub(crate) struct DumpFile {
    /// With `%h` for the host and `%p` for the process, as `NCCL_DEBUG_FILE`.
    pub pattern: String,
}

impl DumpFile {
    /// The next file's path. The second of a process has `.2` behind its name, and so on.
    fn next(&self) -> Option<PathBuf> {
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed) + 1;
        let path = log::expand(&self.pattern, &log::host_name(), std::process::id());
        match number {
            1 => Some(path.into()),
            2..=MOST_FILES => Some(format!("{path}.{number}").into()),
            _ => None,
        }
    }

    /// Writes the records of this process.
    fn write(&self, why: &str) {
        // One at a time, so that each is whole.
        static WRITING: Mutex<()> = Mutex::new(());
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = self.next() else {
            warn!(target: log::INIT, "{why}: no record is written, {MOST_FILES} are there already");
            return;
        };
        let shown = path.display().to_string();
        match log::create(&shown).and_then(|file| write(file, &[ProcessRecord::here()])) {
            Ok(()) => info!(target: log::INIT, "{why}: the last calls are in {shown}"),
            Err(error) => {
                warn!(target: log::INIT, "{why}: cannot write the last calls to {shown}: {error}");
            }
        }
    }
}

fn write(file: File, processes: &[ProcessRecord]) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    trace::write(&mut out, processes)?;
    out.flush()
}

/// A communicator has failed, for the first time.
pub(crate) fn on_failure(file: &DumpFile, rank: u32) {
    file.write(&format!("rank {rank} has failed"));
}

/// A signal that asks for records (`FERROCCL_DUMP_SIGNAL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpSignal(Signal);

impl DumpSignal {
    pub(crate) const FORM: &'static str = "SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT or SIGPROF";
    /// Signals that a program can do without.
    const LEGAL: [Signal; 5] =
        [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPROF];
}

impl Display for DumpSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_str().fmt(f)
    }
}

impl FromStr for DumpSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let signal = Self::LEGAL.into_iter().find(|signal| &signal.as_str()[3..] == name);
        signal.map(DumpSignal).ok_or_else(|| "no signal that may be used".to_owned())
    }
}

/// Writes the records whenever the signal comes, as long as the process lives; once in the process. What the program has
/// done at that signal before is done, too.
///
/// # Errors
/// [`Error::System`] when there can be no thread, or no handler.
pub(crate) fn watch_signal(signal: DumpSignal, file: &DumpFile) -> Result<()> {
    static WATCHED: Mutex<bool> = Mutex::new(false);
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if *watched {
        return Ok(());
    }
    let failed = |e: io::Error| Error::system(format!("handler of {signal}"), e);
    let (read, wake) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)
            .map_err(|e| failed(e.into()))?;
    let file = file.clone();
    let thread = std::thread::Builder::new().name("ferroccl-dump".to_owned());
    thread.spawn(move || dump_when_woken(&read, &file, signal)).map_err(failed)?;
    let action = move || {
        // SAFETY: a system call that handlers of signals may make, on a descriptor that is never closed. A full pipe has
        // woken the thread already.
        unsafe { libc::write(wake.as_raw_fd(), [0_u8].as_ptr().cast(), 1) };
    };
    // SAFETY: the action makes one system call, which signal-safety(7) lists, and changes no memory.
    unsafe { signal_hook_registry::register(signal.0 as libc::c_int, action) }.map_err(failed)?;
    *watched = true;
    Ok(())
}

fn dump_when_woken(read: &OwnedFd, file: &DumpFile, signal: DumpSignal) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    loop {
        let mut ready = [PollFd::new(read.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return, // no descriptor of ours can be polled: nothing will come
        }
        // Signals that came together are one.
        while matches!(nix::unistd::read(read, &mut [0; 64]), Ok(1..)) {}
        file.write(&format!("{signal} has come"));
    }
}

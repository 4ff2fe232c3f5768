//! Forks. A child has copies of all that its parent has made: communicators whose connections, shared memory and threads
//! are the parent's. The child must not touch them, above all not when it ends and drops its copies.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// How many forks lie between the process that counts from 0 and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that something was made by. Comparing costs a load, where a process id costs a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    forks: u32,
    pid: u32,
}

impl Maker {
    /// This process.
    ///
    /// # Errors
    /// [`Error::System`] when the system cannot note that forks are to be counted.
    pub(crate) fn this() -> Result<Self> {
        static COUNTED: OnceLock<i32> = OnceLock::new();
        extern "C" fn forked() {
            // Relaxed: the child has one thread.
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the function may run in the child of a process with several threads: it changes an atomic, and nothing else.
        match COUNTED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) }) {
            0 => Ok(Maker { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }),
            &errno => Err(Error::system(
                "pthread_atfork, which counts forks",
                io::Error::from_raw_os_error(errno),
            )),
        }
    }

    /// Whether it is this process.
    pub(crate) fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// The error of a call on what another process has made.
    pub(crate) fn elsewhere(self) -> Error {
        let reason = format!(
            "process {} has made it, and this one, {}, is a fork: make another one here",
            self.pid,
            std::process::id()
        );
        Error::argument("self", reason)
    }
}

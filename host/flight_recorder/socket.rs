//! Asking a process for its records, by a Unix socket.
//!
//! The socket has an abstract name (unix(7)), `ferroccl-status-PID`, so that no file is left behind; it is there as long as
//! the process has a communicator. Both ends look at who the other is: a process answers its own user and root, and who asks
//! believes the process's owner. Nothing is read from who connects. Abstract names belong to a network namespace: a process
//! in another one is asked from there (`nsenter --net --target PID`).

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::geteuid;
use std::os::fd::AsRawFd;
use tracing::{debug, warn};

use super::ProcessRecord;
use crate::error::{Error, Result};
use crate::{local_socket, log};

/// What the names of all such sockets begin with; the process's number follows.
const PREFIX: &str = "ferroccl-status-";
/// How long other ranks may take to say how far they are.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long who asks may take to read an answer, and a process to give one.
const TIME: Duration = Duration::from_secs(5);
/// The most bytes of an answer that are read: some 100 ranks' records of 128 calls.
const MOST_BYTES: u64 = 256 << 20;

/// The socket of this process, and the process: a fork has a copy, which it must leave alone.
static OPEN: Mutex<Option<(u32, Arc<UnixListener>)>> = Mutex::new(None);

fn open() -> MutexGuard<'static, Option<(u32, Arc<UnixListener>)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers who asks, until [`close_unless`].
///
/// # Errors
/// [`Error::System`] when there can be no socket or no thread.
pub(crate) fn serve() -> Result<()> {
    let mut open = open();
    let pid = std::process::id();
    if open.as_ref().is_some_and(|(of, _)| *of == pid) {
        return Ok(());
    }
    let failed = |e| Error::system("socket for `ferroccl status`", e);
    let listener = match local_socket::bind(&format!("{PREFIX}{pid}")) {
        // Somebody else has the name: a process of another PID namespace, or one that plays us.
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let number = getrandom::u32().unwrap_or_default();
            local_socket::bind(&format!("{PREFIX}{pid}-{number:08x}"))
        }
        result => result,
    };
    let listener = Arc::new(listener.map_err(failed)?);
    let ours = Arc::clone(&listener);
    let thread = std::thread::Builder::new().name("ferroccl-status".to_owned());
    thread.spawn(move || answer_all(&ours)).map_err(failed)?;
    *open = Some((pid, listener));
    Ok(())
}

/// Closes the socket unless a communicator is left, as `in_use` says.
pub(crate) fn close_unless(in_use: impl FnOnce() -> bool) {
    let mut open = open();
    let ours = open.as_ref().is_some_and(|(of, _)| *of == std::process::id());
    if ours
        && !in_use()
        && let Some((_, listener)) = open.take()
    {
        // Ends the thread's accept(2), which fails with EINVAL from then on.
        let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
    }
}

/// The thread: ends when the socket is shut down.
fn answer_all(listener: &UnixListener) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(error) = answer(stream) {
                    debug!(target: log::INIT, "somebody asked for this process's status: {error}");
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINVAL) => return,
                // No descriptor is left, or the like: it may come back.
                _ => std::thread::sleep(Duration::from_millis(100)),
            },
        }
    }
}

fn answer(mut stream: UnixStream) -> io::Result<()> {
    let peer = local_socket::peer(&stream)?;
    let user = geteuid().as_raw();
    if peer.uid() != user && peer.uid() != 0 {
        warn!(target: log::INIT, "user {} asked for this process's status, which is user {user}'s", peer.uid());
        return Ok(());
    }
    stream.set_write_timeout(Some(TIME))?;
    let record = ProcessRecord::ask(PATIENCE);
    stream.write_all(&serde_json::to_vec(&record)?)
}

/// Why a process gives no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// It has no socket here.
    #[error(
        "process {pid} has no communicator, or is not asked (FERROCCL_STATUS=0), or is in another network namespace"
    )]
    Absent {
        /// The process.
        pid: u32,
    },
    /// It belongs to somebody else.
    #[error("process {pid} is user {owner}'s, who alone may ask, besides root")]
    Owner {
        /// The process.
        pid: u32,
        /// Its user.
        owner: u32,
    },
    /// It does not answer, or not with a record.
    #[error("process {pid}: {reason}")]
    Failed {
        /// The process.
        pid: u32,
        /// Why.
        reason: String,
    },
}

/// The processes that can be asked, in order. Those of other users are among them.
///
/// # Errors
/// When `/proc/net/unix` cannot be read.
pub fn processes() -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> = names()?.into_iter().map(|(pid, _)| pid).collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The names of all sockets, with the process that each names.
fn names() -> io::Result<Vec<(u32, String)>> {
    let names = local_socket::names(PREFIX)?;
    Ok(names.into_iter().filter_map(|name| Some((pid_of(&name)?, name))).collect())
}

fn pid_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// The record of process `pid` of this host.
///
/// # Errors
/// [`QueryError`].
pub fn query(pid: u32) -> Result<ProcessRecord, QueryError> {
    let failed = |reason: String| QueryError::Failed { pid, reason };
    let names = names().map_err(|e| failed(format!("reading /proc/net/unix: {e}")))?;
    let mut error = QueryError::Absent { pid };
    for (_, name) in names.into_iter().filter(|(of, _)| *of == pid) {
        let stream =
            local_socket::connect(&name).map_err(|e| failed(format!("connecting: {e}")))?;
        let peer = local_socket::peer(&stream).map_err(|e| failed(e.to_string()))?;
        // As this namespace numbers it.
        if peer.pid() as u32 != pid {
            continue;
        }
        let user = geteuid().as_raw();
        if user != 0 && peer.uid() != user {
            error = QueryError::Owner { pid, owner: peer.uid() };
            continue;
        }
        return receive(stream).map_err(|e| failed(e.to_string()));
    }
    Err(error)
}

fn receive(mut stream: UnixStream) -> io::Result<ProcessRecord> {
    stream.set_read_timeout(Some(TIME))?;
    let mut bytes = Vec::new();
    let read = (&mut stream).take(MOST_BYTES).read_to_end(&mut bytes);
    read.map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other("it does not answer: it may be stopped")
        }
        _ => e,
    })?;
    if bytes.is_empty() {
        return Err(io::Error::other("it has closed the connection without an answer"));
    }
    serde_json::from_slice(&bytes)
        .map_err(|e| io::Error::other(format!("it answers what is no record: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_after_their_processes() {
        assert_eq!(pid_of("ferroccl-status-77"), Some(77));
        assert_eq!(pid_of("ferroccl-status-77-0a1b2c3d"), Some(77), "somebody else had the name");
        assert_eq!(pid_of("ferroccl-status-x"), None);
        assert_eq!(pid_of("ferroccl-77"), None);
    }
}

//! Asking a process for its records, by a Unix socket.
//!
//! The socket has an abstract name (unix(7)), `ferroccl-status-PID`, so that no file is left behind; it is there as long as
//! the process has a communicator. Both ends look at who the other is: a process answers its own user and root, and who asks
//! believes the process's owner. Nothing is read from who connects. Abstract names belong to a network namespace: a process
//! in another one is asked from there (`nsenter --net --target PID`).

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::socket::{Shutdown, UnixCredentials, getsockopt, shutdown, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use std::os::fd::AsRawFd;
use tracing::{debug, warn};

use super::ProcessRecord;
use crate::error::{Error, Result};
use crate::log;

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
    let listener = match bind(&format!("{PREFIX}{pid}")) {
        // Somebody else has the name: a process of another PID namespace, or one that plays us.
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let number = getrandom::u32().unwrap_or_default();
            bind(&format!("{PREFIX}{pid}-{number:08x}"))
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

fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
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
    let peer = credentials(&stream)?;
    let user = geteuid().as_raw();
    if peer.uid() != user && peer.uid() != 0 {
        warn!(target: log::INIT, "user {} asked for this process's status, which is user {user}'s", peer.uid());
        return Ok(());
    }
    stream.set_write_timeout(Some(TIME))?;
    let record = ProcessRecord::ask(PATIENCE);
    stream.write_all(&serde_json::to_vec(&record)?)
}

fn credentials(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, PeerCredentials)?)
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
    let list = std::fs::read_to_string("/proc/net/unix")?;
    Ok(list.lines().filter_map(name_of).collect())
}

/// The socket of a line of `/proc/net/unix` (proc(5)): its last field is the path, where `@` stands for the zero byte that
/// an abstract name begins with. Connections that were accepted have the same name, and another state than 01, listening.
fn name_of(line: &str) -> Option<(u32, String)> {
    let mut fields = line.split_whitespace();
    let (flags, name) = (fields.nth(3)?, fields.next_back()?.strip_prefix('@')?);
    let pid = name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()?;
    let accepts = u32::from_str_radix(flags, 16).ok()? & LISTENING != 0;
    accepts.then(|| (pid, name.to_owned()))
}

/// `__SO_ACCEPTCON` of Linux's include/uapi/linux/net.h.
const LISTENING: u32 = 1 << 16;

/// The record of process `pid` of this host.
///
/// # Errors
/// [`QueryError`].
pub fn query(pid: u32) -> Result<ProcessRecord, QueryError> {
    let failed = |reason: String| QueryError::Failed { pid, reason };
    let names = names().map_err(|e| failed(format!("reading /proc/net/unix: {e}")))?;
    let mut error = QueryError::Absent { pid };
    for (_, name) in names.into_iter().filter(|(of, _)| *of == pid) {
        let stream = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map_err(|e| failed(format!("connecting: {e}")))?;
        let peer = credentials(&stream).map_err(|e| failed(e.to_string()))?;
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
    fn listening_sockets_of_ours_are_found_by_their_names() {
        let line = |flags: &str, name: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0001 01 12345 {name}")
        };
        let found = |flags, name| name_of(&line(flags, name));
        let ours = "ferroccl-status-77".to_owned();
        assert_eq!(found("00010000", "@ferroccl-status-77"), Some((77, ours)));
        let other = "ferroccl-status-77-0a1b2c3d".to_owned();
        assert_eq!(found("00010000", "@ferroccl-status-77-0a1b2c3d"), Some((77, other)));
        assert_eq!(found("00000000", "@ferroccl-status-77"), None, "an accepted connection");
        assert_eq!(found("00010000", "/tmp/ferroccl-status-77"), None, "a file");
        assert_eq!(found("00010000", "@ferroccl-status-x"), None);
        assert_eq!(name_of("Num RefCount Protocol Flags Type St Inode Path"), None);
        assert_eq!(name_of("0000: 00000002 00000000 00010000 0001 01 12345"), None, "no name");
    }
}

//! The side of who wants a descriptor: asks its owner, by the owner's socket.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, send};
use nix::unistd::geteuid;

use super::{GIVEN, Token, UNKNOWN, socket_name};
use crate::local_socket;

/// How long all of it may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two tries to connect to a process that many others are about to ask.
const PAUSE: Duration = Duration::from_millis(5);

/// Why the owner has given nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("it does not listen ({0}): it is gone, or is in another network namespace")]
    Absent(io::Error),
    #[error("user {0} listens in its place")]
    Stranger(u32),
    #[error("it has not answered within {0:?}")]
    Silent(Duration),
    #[error(
        "it has closed the connection without an answer: it answers nobody but its user and root"
    )]
    Closed,
    /// The one that says that the descriptor is not to be had in any way.
    #[error("it does not offer that, or no longer")]
    Withdrawn,
    #[error("its answer makes no sense")]
    Malformed,
    #[error("its answer was cut short: this process may have no more open files (ulimit -n)")]
    Truncated,
    #[error("{0}")]
    Failed(io::Error),
}

impl AskError {
    /// An error of a call on the connection, for which there was so much time.
    fn of_call(error: io::Error, patience: Duration) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Silent(patience),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => AskError::Closed,
            _ => AskError::Failed(error),
        }
    }
}

/// The descriptor of a token, from who listens at a name, within `patience`.
pub(super) fn ask(name: &Token, token: &Token, patience: Duration) -> Result<OwnedFd, AskError> {
    let end = Instant::now() + patience;
    let failed = |e| AskError::of_call(e, patience);
    let stream = connect(name, end).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => failed(e),
        _ => AskError::Absent(e),
    })?;
    let user = local_socket::peer(&stream).map_err(failed)?.uid();
    if user != geteuid().as_raw() && user != 0 {
        return Err(AskError::Stranger(user));
    }
    // At once: an empty socket has room for a token.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let sent = send(stream.as_raw_fd(), token, flags).map_err(|e| failed(e.into()))?;
    if sent != token.len() {
        return Err(AskError::Silent(patience));
    }
    let Answer { byte, mut files, truncated } = loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AskError::Silent(patience));
        }
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match receive(&stream) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other.map_err(failed)?,
        }
    };
    match (byte, files.pop()) {
        (None, _) => Err(AskError::Closed),
        (Some(UNKNOWN), None) => Err(AskError::Withdrawn),
        (Some(GIVEN), _) if truncated => Err(AskError::Truncated),
        (Some(GIVEN), Some(file)) if files.is_empty() => Ok(file),
        _ => Err(AskError::Malformed),
    }
}

fn connect(name: &Token, end: Instant) -> io::Result<UnixStream> {
    let name = socket_name(name);
    loop {
        match local_socket::connect(&name) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}

/// What has come.
struct Answer {
    /// None when the other end has closed the connection.
    byte: Option<u8>,
    files: Vec<OwnedFd>,
    /// There were more than there was room for.
    truncated: bool,
}

/// A byte, and the descriptors that came with it; these are ours, whatever they are, and are closed unless they are used.
fn receive(stream: &UnixStream) -> io::Result<Answer> {
    let mut byte = 0_u8;
    // For a header and one descriptor: another one may fit in what is there for alignment.
    let mut control = [0_u64; 3];
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: a struct of integers and pointers, of which all may be 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: places of the sizes that are given, aligned as control messages are.
    let read =
        unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut files = Vec::new();
    // SAFETY: the system has written the control messages, and their size; the macros stay within it. The descriptors are new,
    // and so nobody else's.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = next.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                #[allow(clippy::unnecessary_cast, reason = "a u32 with musl")]
                let bytes = (header.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(next).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    files.push(OwnedFd::from_raw_fd(first.add(i).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(&raw const message, next);
        }
    }
    let truncated = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(Answer { byte: (read > 0).then_some(byte), files, truncated })
}
const _: () = {
    // SAFETY: it computes a size.
    let room = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) };
    assert!(room as usize <= size_of::<[u64; 3]>());
};

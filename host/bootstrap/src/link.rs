//! One connection: frames with deadlines.
//!
//! Sockets never block; all waiting is in [`wait`], which sleeps until something can move or the time is up.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ferroccl_handshake::{AuthError, Connected, Connector, Key, Session, Subject};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockRef, TcpKeepalive};

use super::limit::Deadline;
use super::rounds::KEEP_ALIVE_LIMIT;
use super::wire::{Decoder, Frame, Malformed, Message, Phase};

/// What is read at a time; a socket's buffer holds about this much.
const READ_BYTES: usize = 64 << 10;

/// How long until a peer that had no room is tried again. Not measured: some round trips.
const BUSY: Duration = Duration::from_millis(5);

/// Why a link gives no frame.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The time is up.
    Timeout,
    /// The other side closed the connection, between frames or in one.
    Closed {
        /// In the middle of a frame.
        midway: bool,
    },
    /// The system says no.
    Io(io::Error),
    /// What came is no frame.
    Malformed(Malformed),
    /// What came is not what the other side sent next.
    Forged,
}

impl std::fmt::Display for LinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkError::Timeout => f.write_str("the time is up"),
            LinkError::Closed { midway: false } => f.write_str("it closed the connection"),
            LinkError::Closed { midway: true } => {
                f.write_str("it closed the connection in the middle of a message")
            }
            LinkError::Io(e) => e.fmt(f),
            LinkError::Malformed(e) => e.fmt(f),
            LinkError::Forged => f.write_str(
                "a message has a wrong seal: somebody on the way has changed, repeated or left out messages",
            ),
        }
    }
}

/// A connection that carries sealed frames.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    /// The other side's address.
    pub(super) address: SocketAddr,
    decoder: Decoder,
    session: Session,
}

impl Link {
    /// On a connection whose ends are authenticated.
    pub(super) fn new(
        stream: TcpStream,
        address: SocketAddr,
        session: Session,
        phase: Phase,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?; // frames are small and somebody waits for each
        Ok(Link { stream, address, decoder: Decoder::new(phase), session })
    }

    /// Connects to an acceptor, and authenticates both ends to each other; one attempt.
    pub(super) fn connect(
        address: SocketAddr,
        key: &Key,
        deadline: &Deadline,
    ) -> Result<Self, AuthError> {
        let mut connector = Connector::new(address, None, Subject::default(), key)?.once();
        loop {
            if let Some(Connected { socket, session }) = connector.step()? {
                return Ok(Self::new(socket.into(), address, session, Phase::Joining)?);
            }
            let mut fds: Vec<_> = connector
                .interest()
                .map(|(fd, write)| PollFd::new(fd, poll_flags(write)))
                .into_iter()
                .collect();
            if !wait(&mut fds, Some(deadline))? {
                return Err(io::Error::new(ErrorKind::TimedOut, connector.missing()).into());
            }
        }
    }

    /// The same to a peer, which may have no room for a moment.
    pub(super) fn connect_to_peer(
        address: SocketAddr,
        key: &Key,
        deadline: &Deadline,
    ) -> Result<Self, AuthError> {
        loop {
            match Link::connect(address, key, deadline) {
                Err(AuthError::Rejected(reason))
                    if reason.is_temporary() && !deadline.is_over() =>
                {
                    deadline.pause(BUSY)?;
                }
                result => return result,
            }
        }
    }

    /// From now on this connection is a known rank's.
    pub(super) fn open(&mut self) {
        self.decoder.phase = Phase::Open;
    }

    /// Lets the system notice a host that is gone without a word, within [`KEEP_ALIVE_LIMIT`].
    pub(super) fn keep_alive(&self) -> io::Result<()> {
        const RETRIES: u32 = 5;
        let every = KEEP_ALIVE_LIMIT / (RETRIES + 1);
        let keepalive =
            TcpKeepalive::new().with_time(every).with_interval(every).with_retries(RETRIES);
        SockRef::from(&self.stream).set_tcp_keepalive(&keepalive)
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// The bytes of the next message: they must be sent whole, and before those of the message that is sealed next.
    pub(super) fn seal(&mut self, message: &Message) -> Vec<u8> {
        message.seal(&mut self.session.ours)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &Message, deadline: &Deadline) -> Result<(), LinkError> {
        let frame = self.seal(message);
        self.write_all(&frame, deadline)
    }

    /// Sends a message without waiting: what the system does not take at once is lost, and the connection with it.
    pub(super) fn send_last(&mut self, message: &Message) {
        let frame = self.seal(message);
        // Whether the other side hears it is up to that.
        let _ = self.write_some(&frame);
    }

    /// Writes what the system takes at once; gives the number of bytes.
    pub(super) fn write_some(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        loop {
            match self.stream.write(bytes) {
                Ok(written) => return Ok(written),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(LinkError::Io(e)),
            }
        }
    }

    pub(super) fn write_all(
        &mut self,
        mut bytes: &[u8],
        deadline: &Deadline,
    ) -> Result<(), LinkError> {
        loop {
            bytes = &bytes[self.write_some(bytes)?..];
            if bytes.is_empty() {
                return Ok(());
            }
            if !self.wait(PollFlags::POLLOUT, deadline)? {
                return Err(LinkError::Timeout);
            }
        }
    }

    /// The next frame of what has come; `None` when it is not whole yet.
    pub(super) fn read_some(&mut self) -> Result<Option<Frame>, LinkError> {
        loop {
            if let Some(sealed) = self.decoder.next_frame().map_err(LinkError::Malformed)? {
                let frame = sealed.open(&mut self.session.theirs);
                return frame.map(Some).ok_or(LinkError::Forged);
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(LinkError::Closed { midway: self.decoder.is_midway() }),
                Ok(count) => self.decoder.push(&bytes[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(LinkError::Io(e)),
            }
        }
    }

    pub(super) fn read(&mut self, deadline: &Deadline) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = self.read_some()? {
                return Ok(frame);
            }
            if !self.wait(PollFlags::POLLIN, deadline)? {
                return Err(LinkError::Timeout);
            }
        }
    }

    fn wait(&self, what: PollFlags, deadline: &Deadline) -> Result<bool, LinkError> {
        let mut fds = [PollFd::new(self.as_fd(), what)];
        wait(&mut fds, Some(deadline)).map_err(LinkError::Io)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sleeps until one of `fds` is ready or the time is up: `false`. Without a deadline it may sleep for ever.
///
/// # Errors
/// Those of `poll`, and when somebody wants it to end.
pub(super) fn wait(fds: &mut [PollFd<'_>], deadline: Option<&Deadline>) -> io::Result<bool> {
    loop {
        deadline.map_or(Ok(()), Deadline::look)?;
        let timeout = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                // Rounded up: a poll that ends a little early would be made again and again.
                PollTimeout::try_from(deadline.nap().as_micros().div_ceil(1000))
                    .unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(fds, timeout) {
            Ok(0) if deadline.is_none_or(|deadline| !deadline.is_over()) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// What to wait for on a socket.
pub(super) fn poll_flags(write: bool) -> PollFlags {
    if write { PollFlags::POLLOUT } else { PollFlags::POLLIN }
}

/// Whether `poll` found something for `fd`.
pub(super) fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.any() != Some(false)
}

#[cfg(test)]
#[path = "link/tests.rs"]
pub(super) mod tests;

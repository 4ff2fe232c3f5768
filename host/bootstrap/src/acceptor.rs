//! A listening socket that anybody can reach, and only the group gets through.
//!
//! Who connects has to authenticate itself ([`ferroccl_handshake`]) and then to say which rank it is, both within a time.
//! Connections are served side by side by one thread that sleeps in `poll`, so that a stranger costs nobody else any time.
//! Who is turned away is told why, if it can listen, and the reason is logged.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ferroccl_handshake::{Acceptor, Event, Key, LogLimit, MAX_PENDING};
use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};

use super::limit::Deadline;
use super::link::{Link, LinkError, is_ready, poll_flags, wait};
use super::wire::{Malformed, Message, Phase, Refusal, VERSION};
use crate::settings::LOG_TARGET;

/// How long a peer may take to authenticate itself and to say who it is.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Listens on `address`; port 0 is any free one.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A port whose last connections are still fading out is free; one that somebody listens on is not.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(4096)?; // the system cuts it to net.core.somaxconn
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A member that has connected: its connection and its first message.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) link: Link,
    pub(super) message: Message,
}

/// A listening socket, the peers that authenticate themselves, and the members that have not said who they are.
#[derive(Debug)]
pub(super) struct MemberAcceptor {
    acceptor: Acceptor,
    patience: Duration,
    /// Each with the end of its time.
    unidentified: Vec<(Link, Instant)>,
    log: LogLimit,
    /// Whose acceptor, for the log.
    name: String,
}

impl MemberAcceptor {
    pub(super) fn new(listener: TcpListener, key: Key, patience: Duration, name: String) -> Self {
        let acceptor = Acceptor::new(listener.into(), key, patience);
        MemberAcceptor {
            acceptor,
            patience,
            unidentified: Vec::new(),
            log: LogLimit::default(),
            name,
        }
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.acceptor.local_addr()
    }

    /// Changes the key, when the group has its session.
    pub(super) fn set_key(&mut self, key: Key) {
        self.acceptor.set_key(key);
    }

    /// Waits until somebody moves: members that have come, and for each of `others` whether it can be read.
    /// Empty and all `false` when the time is up.
    pub(super) fn serve(
        &mut self,
        others: &[BorrowedFd<'_>],
        deadline: Option<&Deadline>,
    ) -> io::Result<(Vec<Arrival>, Vec<bool>)> {
        let identified = self.unidentified.iter().map(|(_, until)| *until).min();
        let first = [self.acceptor.wake_at(), identified].into_iter().flatten().min();
        let until = match (deadline, first) {
            (Some(deadline), Some(first)) => Some(deadline.or_at(first)),
            (Some(deadline), None) => Some(deadline.clone()),
            (None, first) => first.map(Deadline::at),
        };
        let ready = {
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let links = self.unidentified.iter().map(|(link, _)| link.as_fd());
            let pending =
                self.acceptor.interests().map(|(fd, write)| PollFd::new(fd, poll_flags(write)));
            let mut fds: Vec<_> =
                others.iter().copied().chain(links).map(readable).chain(pending).collect();
            wait(&mut fds, until.as_ref())?;
            fds.iter().take(others.len()).map(is_ready).collect()
        };
        // A bound, so that strangers that come without end do not keep us.
        for _ in 0..MAX_PENDING {
            match self.acceptor.poll()? {
                None => break,
                Some(Event::Authenticated(one)) => {
                    match Link::new(one.socket.into(), one.peer, one.session, Phase::Joining) {
                        Ok(link) => self.unidentified.push((link, one.since + self.patience)),
                        Err(e) => self.log(one.peer, &e),
                    }
                }
                Some(Event::Refused { peer, error }) => self.log(peer, &error),
            }
        }
        Ok((self.identify(), ready))
    }

    /// Reads the first messages of members, and turns away who is too slow.
    fn identify(&mut self) -> Vec<Arrival> {
        let now = Instant::now();
        let mut arrivals = Vec::new();
        for (mut link, until) in std::mem::take(&mut self.unidentified) {
            let refusal = match link.read_some() {
                Ok(None) if now < until => {
                    self.unidentified.push((link, until));
                    continue;
                }
                Ok(None) => Refusal::TooSlow,
                Ok(Some(frame)) => match frame.message() {
                    Ok(message) => {
                        arrivals.push(Arrival { link, message });
                        continue;
                    }
                    Err(_) => Refusal::Malformed,
                },
                Err(LinkError::Malformed(Malformed::Version(_))) => {
                    Refusal::WrongVersion { ours: VERSION }
                }
                Err(LinkError::Malformed(_)) => Refusal::Malformed,
                Err(gone) => {
                    self.log(link.address, &gone);
                    continue;
                }
            };
            self.refuse(&mut link, refusal);
        }
        arrivals
    }

    /// Turns a member away: tells it and logs it.
    pub(super) fn refuse(&mut self, link: &mut Link, refusal: Refusal) {
        self.log(link.address, &refusal);
        // Who does not read it does not matter here.
        link.send_last(&Message::Refused(refusal));
    }

    pub(super) fn log(&mut self, address: SocketAddr, reason: &dyn std::fmt::Display) {
        if let Some(unlogged) = self.log.line(Instant::now()) {
            let name = &self.name;
            tracing::warn!(target: LOG_TARGET, "{name} turned away {address}: {reason}{unlogged}");
        }
    }
}

//! A listening socket that anybody can reach, and only the group gets through.
//!
//! Connections are served side by side by one thread that sleeps in `poll`: each stranger has a buffer of a
//! handshake's size and a deadline, and costs nobody else any time. There are never more than
//! [`MAX_PENDING`]; when more knock, the one that has been silent longest goes. Who is turned away is told
//! why, if it can listen, and the reason is logged.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Socket, Type};

use super::auth::{Key, NO_CHALLENGE, Unproven, nonce};
use super::limit::Deadline;
use super::link::{Link, LinkError, is_ready, wait};
use super::wire::{Malformed, Message, Nonce, Phase, Refusal, VERSION};
use crate::log::BOOTSTRAP;

/// Strangers served at a time. A member is a stranger for a round trip only; a few hundred suffice for
/// thousands of them, since those who wait in the system's queue are not counted.
const MAX_PENDING: usize = 256;
/// How long a stranger may take to say who it is.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Reasons logged one by one; then only every time their number doubles, so that a flood fills no disk.
const LOGGED: u64 = 64;

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

/// Somebody who has connected and not yet said who it is.
#[derive(Debug)]
struct Stranger {
    link: Link,
    challenge: Nonce,
    until: Instant,
}

/// A member at the door: its connection and its first message.
pub(super) struct Arrival {
    pub(super) link: Link,
    pub(super) message: Message,
}

#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    key: Key,
    /// Challenge who connects; otherwise members begin.
    greet: bool,
    patience: Duration,
    strangers: Vec<Stranger>,
    turned_away: u64,
    /// Whose door, for the log.
    name: String,
}

impl Door {
    pub(super) fn new(
        listener: TcpListener,
        key: Key,
        greet: bool,
        patience: Duration,
        name: String,
    ) -> Self {
        Door { listener, key, greet, patience, strangers: Vec::new(), turned_away: 0, name }
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Changes the key, when the group has its session.
    pub(super) fn set_key(&mut self, key: Key) {
        self.key = key;
    }

    /// Waits until somebody moves: members that have come, and for each of `others` whether it can be read.
    /// Empty and all `false` when the time is up.
    pub(super) fn serve(
        &mut self,
        others: &[BorrowedFd<'_>],
        deadline: Option<&Deadline>,
    ) -> io::Result<(Vec<Arrival>, Vec<bool>)> {
        let first = self.strangers.iter().map(|s| s.until).min();
        let until = match (deadline, first) {
            (Some(deadline), Some(first)) => Some(deadline.or_at(first)),
            (Some(deadline), None) => Some(deadline.clone()),
            (None, first) => first.map(Deadline::at),
        };
        let (knock, said, ready) = {
            let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            let strangers = self.strangers.iter().map(|s| s.link.as_fd());
            fds.extend(
                strangers
                    .chain(others.iter().copied())
                    .map(|fd| PollFd::new(fd, PollFlags::POLLIN)),
            );
            wait(&mut fds, until.as_ref())?;
            let ready: Vec<bool> = fds.iter().map(is_ready).collect();
            let (said, ready) = ready[1..].split_at(self.strangers.len());
            (is_ready(&fds[0]), said.to_vec(), ready.to_vec())
        };
        let arrivals = self.listen_to_strangers(&said)?;
        if knock {
            self.let_in()?;
        }
        Ok((arrivals, ready))
    }

    /// Reads what strangers said, and shows out who is too slow.
    fn listen_to_strangers(&mut self, said: &[bool]) -> io::Result<Vec<Arrival>> {
        let now = Instant::now();
        let mut arrivals = Vec::new();
        for (mut stranger, said) in std::mem::take(&mut self.strangers).into_iter().zip(said) {
            let frame = if *said { stranger.link.read_some() } else { Ok(None) };
            let refusal = match frame {
                Ok(None) if now < stranger.until => {
                    self.strangers.push(stranger);
                    continue;
                }
                Ok(None) => Refusal::TooSlow,
                Ok(Some(frame)) => match self.key.open(&stranger.challenge, &frame) {
                    Ok(message) => {
                        arrivals.push(Arrival { link: stranger.link, message });
                        continue;
                    }
                    Err(Unproven::WrongSecret) => Refusal::WrongSecret,
                    Err(Unproven::Malformed(_)) => Refusal::Malformed,
                },
                Err(LinkError::Malformed(Malformed::Version(_))) => {
                    Refusal::WrongVersion { ours: VERSION }
                }
                Err(LinkError::Malformed(_)) => Refusal::Malformed,
                Err(gone) => {
                    self.log(stranger.link.address, &gone);
                    continue;
                }
            };
            self.refuse(&mut stranger.link, &NO_CHALLENGE, refusal);
        }
        Ok(arrivals)
    }

    /// Takes in everybody who has connected.
    fn let_in(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, address)) => self.welcome_stranger(stream, address),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // It was there and is gone.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(e) if out_of_files(&e) => {
                    // The knock stays: make room, or at least do not spin.
                    if self.strangers.is_empty() {
                        std::thread::sleep(Duration::from_millis(10));
                    } else {
                        self.dismiss_oldest();
                    }
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn welcome_stranger(&mut self, stream: std::net::TcpStream, address: SocketAddr) {
        let challenge = if self.greet { nonce().ok() } else { Some(NO_CHALLENGE) };
        let link = Link::new(stream, address, Phase::Handshake);
        let (Some(challenge), Ok(mut link)) = (challenge, link) else {
            return self.log(address, &"its connection could not be set up");
        };
        if self.greet {
            // A new connection's buffer is empty; a greeting that does not fit meets nobody.
            let _ = link.write_some(&Message::Greeting { challenge }.encode_plain());
        }
        if self.strangers.len() >= MAX_PENDING {
            self.dismiss_oldest();
        }
        self.strangers.push(Stranger { link, challenge, until: Instant::now() + self.patience });
    }

    fn dismiss_oldest(&mut self) {
        // They stand in the order they came.
        let mut oldest = self.strangers.remove(0);
        self.refuse(&mut oldest.link, &NO_CHALLENGE, Refusal::Busy);
    }

    /// Turns somebody away: tells it and logs it. `challenge` is what it asked us to sign.
    pub(super) fn refuse(&mut self, link: &mut Link, challenge: &Nonce, refusal: Refusal) {
        self.log(link.address, &refusal);
        // Told once, without waiting: who does not read it does not matter here.
        let _ = link.write_some(&self.key.seal(challenge, &Message::Refused(refusal)));
    }

    pub(super) fn log(&mut self, address: SocketAddr, reason: &dyn std::fmt::Display) {
        self.turned_away += 1;
        if self.turned_away <= LOGGED || self.turned_away.is_power_of_two() {
            tracing::warn!(target: BOOTSTRAP, "{} turned away {address}: {reason} ({} so far)",
                self.name, self.turned_away);
        }
    }
}

fn out_of_files(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

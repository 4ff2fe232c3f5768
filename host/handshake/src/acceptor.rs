//! A listening socket that anybody can reach, and its pending peers.
//!
//! ```text
//! accept ─► pending: a step of the handshake at a time ─► authenticated
//!               └► rejected: told why, then closed
//! ```
//!
//! Nothing blocks: [`Acceptor::poll`] takes every peer as far as it goes. A caller that sleeps in between waits for
//! [`Acceptor::interests`] until [`Acceptor::wake_at`].

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use socket2::{SockAddr, Socket};

use crate::error::{AuthError, Rejection};
use crate::key::{Key, Side};
use crate::session::Session;
use crate::stream;
use crate::talk::Talk;
use crate::wire::{self, CHALLENGE_COVERED, HELLO, Hello, PROOF, Subject};

/// Pending peers at most; more wait in the system's queue. A member is pending for two round trips, so that this suffices for
/// thousands of them. Not measured; a part of the files that a process may have open, which are 1024 as a rule.
pub const MAX_PENDING: usize = 256;

/// When there is no room, a peer that has not sent a sealed hello for so long makes room. Not measured: far longer than the
/// way over a network.
const SILENCE: Duration = Duration::from_millis(200);

/// How often one poll accepts and makes steps, so that peers that come without end do not keep it.
const ROUNDS: usize = 4;

/// A peer that has proven that it knows the secret.
#[derive(Debug)]
pub struct Authenticated {
    /// Its connection. No byte behind the handshake has been read.
    pub socket: Socket,
    /// Its address.
    pub peer: SocketAddr,
    /// What it says that the connection is.
    pub subject: Subject,
    /// Seals what follows.
    pub session: Session,
    /// When it was accepted.
    pub since: Instant,
}

/// What came of a peer.
#[derive(Debug)]
pub enum Event {
    /// It is authenticated.
    Authenticated(Authenticated),
    /// It is turned away.
    Refused {
        /// Its address.
        peer: SocketAddr,
        /// Why.
        error: AuthError,
    },
}

/// A listening socket and the peers that have connected and are not authenticated yet.
#[derive(Debug)]
pub struct Acceptor {
    listener: Socket,
    key: Key,
    timeout: Duration,
    pending: VecDeque<PendingPeer>,
    events: VecDeque<Event>,
    /// The process has no file left for another peer.
    out_of_files: bool,
}

impl Acceptor {
    /// An acceptor on a socket that listens and never blocks. `timeout` is for each peer.
    #[must_use]
    pub fn new(listener: Socket, key: Key, timeout: Duration) -> Acceptor {
        let (pending, events) = (VecDeque::new(), VecDeque::new());
        Acceptor { listener, key, timeout, pending, events, out_of_files: false }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        stream::internet(&self.listener.local_addr()?)
    }

    /// Uses another key from now on.
    pub fn set_key(&mut self, key: Key) {
        self.key = key;
    }

    /// The next peer that is authenticated or turned away, if there is one.
    ///
    /// # Errors
    /// When the listening socket is broken.
    pub fn poll(&mut self) -> io::Result<Option<Event>> {
        for _ in 0..ROUNDS {
            if !self.events.is_empty() {
                break;
            }
            self.step_pending();
            if !self.accept_new()? {
                break;
            }
        }
        Ok(self.events.pop_front())
    }

    /// The sockets to wait for before the next poll, each with whether to wait until it can be written to, instead of read.
    pub fn interests(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let may_accept = self.pending.len() < MAX_PENDING && !self.out_of_files;
        let listener = may_accept.then(|| (self.listener.as_fd(), false));
        let pending =
            self.pending.iter().map(|peer| (peer.talk.socket.as_fd(), peer.talk.has_queued()));
        listener.into_iter().chain(pending)
    }

    /// When to poll again at the latest; `None` if only what [`Acceptor::interests`] has can change anything.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let timeout = self.pending.iter().map(|peer| peer.since + self.timeout).min();
        let is_full = self.pending.len() >= MAX_PENDING;
        let makes_room = self.pending.iter().filter(|peer| is_full && !peer.is_sealed());
        let makes_room = makes_room.map(|peer| peer.since + SILENCE).min();
        // Somebody else of this process may close a file.
        let retry = self.out_of_files.then(|| Instant::now() + Duration::from_millis(10));
        [timeout, makes_room, retry].into_iter().flatten().min()
    }

    /// Makes a step of each handshake.
    fn step_pending(&mut self) {
        for _ in 0..self.pending.len() {
            let Some(mut peer) = self.pending.pop_front() else { break };
            // The clock is last: a proof that has come in time counts, even if we read it late.
            let step = match peer.step(&self.key) {
                Step::Pending if peer.since.elapsed() >= self.timeout => {
                    if peer.is_leaving() {
                        continue;
                    }
                    Step::Refused(AuthError::TooSlow(self.timeout))
                }
                step => step,
            };
            match step {
                Step::Pending => self.pending.push_back(peer),
                Step::Authenticated(subject, session) => {
                    let PendingPeer { talk, address, since, .. } = peer;
                    let socket = talk.socket;
                    let one = Authenticated { socket, peer: address, subject, session, since };
                    self.events.push_back(Event::Authenticated(one));
                }
                Step::Refused(error) => {
                    let stays = error.rejection().is_some_and(|reason| peer.reject(reason));
                    let address = peer.address;
                    if stays && !matches!(error, AuthError::TooSlow(_)) {
                        self.pending.push_back(peer);
                    }
                    self.events.push_back(Event::Refused { peer: address, error });
                }
                Step::Gone => {}
            }
        }
    }

    /// Accepts connections as long as there is room; whether there was one.
    fn accept_new(&mut self) -> io::Result<bool> {
        self.out_of_files = false;
        let mut accepted = false;
        loop {
            if self.pending.len() >= MAX_PENDING && !self.make_room(SILENCE, || AuthError::Busy) {
                return Ok(accepted);
            }
            match self.listener.accept() {
                Ok((socket, address)) => {
                    // A connection that cannot be set up is gone already.
                    if let Ok(peer) = PendingPeer::new(socket, &address) {
                        self.pending.push_back(peer);
                        accepted = true;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(accepted),
                Err(e) if is_of_the_connection(&e) => {}
                Err(e) if is_out_of_files(&e) => {
                    // A large group has more ranks than the 1024 files that a process may have as a rule.
                    if e.raw_os_error() == Some(libc::EMFILE) && raise_limit() {
                        continue;
                    }
                    if !self.make_room(Duration::ZERO, || AuthError::OutOfFiles) {
                        self.out_of_files = true;
                        return Ok(accepted);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Turns the oldest peer away, for this reason, that has been silent for so long; whether there was one.
    fn make_room(&mut self, silence: Duration, why: impl Fn() -> AuthError) -> bool {
        let is_silent = |peer: &PendingPeer| !peer.is_sealed() && peer.since.elapsed() >= silence;
        let Some(place) = self.pending.iter().position(is_silent) else { return false };
        if let Some(mut peer) = self.pending.remove(place)
            && !peer.is_leaving()
        {
            peer.reject(why().rejection().unwrap_or(Rejection::Busy));
            let event = Event::Refused { peer: peer.address, error: why() };
            self.events.push_back(event);
        }
        true
    }
}

/// A peer that has connected and is not authenticated.
#[derive(Debug)]
struct PendingPeer {
    talk: Talk,
    address: SocketAddr,
    since: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its hello has not come.
    Connected,
    /// It has sent a sealed hello, and gets our challenge.
    Challenged([u8; HELLO], [u8; CHALLENGE_COVERED]),
    /// It is rejected and reads why.
    Leaving,
}

/// What a step came to.
enum Step {
    Pending,
    Authenticated(Subject, Session),
    Refused(AuthError),
    /// A peer that was leaving has left.
    Gone,
}

impl PendingPeer {
    fn new(socket: Socket, address: &SockAddr) -> io::Result<PendingPeer> {
        stream::prepare(&socket)?;
        let (talk, address) = (Talk::new(socket), stream::internet(address)?);
        Ok(PendingPeer { talk, address, since: Instant::now(), state: State::Connected })
    }

    /// Whether its hello has a seal of our key. It may be a recording.
    fn is_sealed(&self) -> bool {
        matches!(self.state, State::Challenged(..))
    }

    fn is_leaving(&self) -> bool {
        matches!(self.state, State::Leaving)
    }

    fn step(&mut self, key: &Key) -> Step {
        match self.state {
            State::Leaving => self.leave().unwrap_or(Step::Gone),
            _ => self.authenticate(key).unwrap_or_else(Step::Refused),
        }
    }

    fn authenticate(&mut self, key: &Key) -> Result<Step, AuthError> {
        if let State::Connected = self.state {
            let hello = self.talk.receive::<HELLO>();
            // As soon as it cannot be a hello, not when there is enough of it, nor that the stranger has hung up.
            wire::check_hello(self.talk.received())?;
            let Some(hello) = hello? else { return Ok(Step::Pending) };
            if !key.is_sealed(&hello) {
                return Err(AuthError::WrongSecret);
            }
            let challenge = wire::challenge(&crate::nonce()?);
            self.talk.next_message();
            self.talk.queue(&challenge);
            self.talk.queue(&key.prove(Side::Acceptor, &hello, &challenge));
            self.state = State::Challenged(hello, challenge);
        }
        if !self.talk.flush()? {
            return Ok(Step::Pending);
        }
        let State::Challenged(hello, challenge) = &self.state else { return Ok(Step::Pending) };
        let Some(proof) = self.talk.receive::<PROOF>()? else { return Ok(Step::Pending) };
        if !key.proven(Side::Connector, hello, challenge, &proof) {
            return Err(AuthError::WrongSecret);
        }
        let session = Session::new(key, Side::Acceptor, hello, challenge);
        Ok(Step::Authenticated(Hello::decode(hello)?.subject, session))
    }

    /// Tells it why it is rejected, as far as that can be sent at once; whether it is worth waiting until it has read that.
    fn reject(&mut self, reason: Rejection) -> bool {
        self.state = State::Leaving;
        self.talk.queue(&wire::reject(reason));
        self.leave().is_ok()
    }

    /// Reads on until the peer closes: a socket that is closed with unread bytes would take back what was sent last.
    fn leave(&mut self) -> io::Result<Step> {
        if self.talk.flush()? {
            // It is shut down already from the second time on.
            let _ = self.talk.socket.shutdown(Shutdown::Write);
            self.talk.next_message();
            self.talk.receive::<1024>()?;
        }
        Ok(Step::Pending)
    }
}

/// Whether an error of `accept` is one of the connection that it was to give, as of accept(2).
fn is_of_the_connection(error: &io::Error) -> bool {
    let codes = [
        libc::ECONNABORTED,
        libc::EINTR,
        libc::EPERM,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::ENONET,
        libc::EOPNOTSUPP,
    ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Lets this process have as many files as it may give itself (setrlimit(2)); whether these are more than before.
fn raise_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it writes a structure that is there.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0
        || limit.rlim_cur >= limit.rlim_max
    {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: it reads a structure that is there.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}

/// Whether an error of `accept` says that the process or the system has no room for another file.
fn is_out_of_files(error: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// What fuzzing needs of a pending peer.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// A pending peer on any socket.
    pub(crate) struct Stranger(PendingPeer);

    /// What a step came to.
    #[derive(Debug)]
    pub(crate) enum Turn {
        Pending,
        Authenticated { subject: Subject, socket: Socket },
        Over,
    }

    impl Stranger {
        pub(crate) fn new(socket: Socket, address: SocketAddr) -> Stranger {
            let (talk, since) = (Talk::new(socket), Instant::now());
            Stranger(PendingPeer { talk, address, since, state: State::Connected })
        }

        /// As [`Acceptor::step_pending`] goes on with a peer.
        pub(crate) fn step(&mut self, key: &Key) -> Turn {
            match self.0.step(key) {
                Step::Pending => Turn::Pending,
                Step::Authenticated(subject, _) => {
                    let socket = self.0.talk.socket.try_clone().unwrap();
                    Turn::Authenticated { subject, socket }
                }
                Step::Refused(error) => {
                    if let Some(reason) = error.rejection() {
                        self.0.reject(reason);
                    }
                    Turn::Over
                }
                Step::Gone => Turn::Over,
            }
        }
    }
}

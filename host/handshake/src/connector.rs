//! A socket that is being connected to an acceptor.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::error::{AuthError, Rejection};
use crate::key::{Key, Side};
use crate::session::Session;
use crate::stream::{self, internet};
use crate::talk::Talk;
use crate::wire::{self, CHALLENGE, HELLO, Hello, Malformed, PREFIX, REJECT, Subject};

/// How long until a refused connection is tried again. Not measured: a small part of what starting a process takes.
const RETRY: Duration = Duration::from_millis(5);

/// Ports that are tried at most. An address that is not this host's is refused each time.
const PORTS: usize = 16;

/// Makes another attempt when the system says that an address is not available.
fn another_if_taken<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..PORTS {
        match attempt() {
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {}
            result => return result,
        }
    }
    attempt()
}

/// A connection to an acceptor that has proven itself.
#[derive(Debug)]
pub struct Connected {
    /// It. No byte behind the handshake has been read.
    pub socket: Socket,
    /// Seals what follows.
    pub session: Session,
}

/// The connecting end of a handshake.
#[derive(Debug)]
pub struct Connector {
    /// Where to, and from where if that matters.
    to: SocketAddr,
    from: Option<SocketAddr>,
    key: Key,
    hello: [u8; HELLO],
    retries: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// To be connected from then on.
    Waiting(Instant),
    Connecting(Socket),
    /// Connected; the hello is on its way, the answer awaited.
    Greeting(Talk),
    /// The acceptor has proven itself; our proof is on its way.
    Proving(Talk, Session),
    Over,
}

impl Connector {
    /// A connector to the acceptor at `to`, through the address `from` if there is one.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(
        to: SocketAddr,
        from: Option<SocketAddr>,
        subject: Subject,
        key: &Key,
    ) -> io::Result<Connector> {
        let hello = Hello { subject, nonce: crate::nonce()? };
        let hello = hello.encode(|covered| key.seal(covered));
        let state = State::Waiting(Instant::now());
        Ok(Connector { to, from, key: key.clone(), hello, retries: true, state })
    }

    /// One attempt only: by default, an attempt that finds nobody, or no room, is made again.
    #[must_use]
    pub fn once(self) -> Connector {
        Connector { retries: false, ..self }
    }

    /// What is missing, for an error message when the caller's time is up.
    #[must_use]
    pub fn missing(&self) -> &'static str {
        match self.state {
            State::Waiting(_) => "nobody listens there, or has room for us",
            State::Connecting(_) => "it does not answer",
            State::Greeting(_) | State::Proving(..) | State::Over => "it does not greet us",
        }
    }

    /// The socket to wait for before the next step, with whether to wait until it can be written to, instead of read; `None`
    /// while there is none.
    #[must_use]
    pub fn interest(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.state {
            State::Waiting(_) | State::Over => None,
            State::Connecting(socket) => Some((socket.as_fd(), true)),
            State::Greeting(talk) | State::Proving(talk, _) => {
                Some((talk.socket.as_fd(), talk.has_queued()))
            }
        }
    }

    /// Does what can be done at once. The connection, once the acceptor has proven itself and our proof is sent.
    ///
    /// # Errors
    /// When there will be no connection.
    pub fn step(&mut self) -> Result<Option<Connected>, AuthError> {
        loop {
            self.state = match std::mem::replace(&mut self.state, State::Over) {
                State::Waiting(then) if Instant::now() < then => {
                    self.state = State::Waiting(then);
                    return Ok(None);
                }
                State::Waiting(_) => match self.connect() {
                    Ok(socket) => State::Connecting(socket),
                    Err(error) => self.retry(AuthError::Io(error))?,
                },
                State::Connecting(socket) => match is_connected(&socket) {
                    Ok(true) => {
                        stream::prepare(&socket)?;
                        let mut talk = Talk::new(socket);
                        talk.queue(&self.hello);
                        State::Greeting(talk)
                    }
                    Ok(false) => {
                        self.state = State::Connecting(socket);
                        return Ok(None);
                    }
                    Err(error) => self.retry(AuthError::Io(error))?,
                },
                State::Greeting(mut talk) => match self.answer(&mut talk) {
                    Ok(Some(session)) => State::Proving(talk, session),
                    Ok(None) => {
                        self.state = State::Greeting(talk);
                        return Ok(None);
                    }
                    // Closed without a word: the acceptor has no room, or has just begun to listen.
                    Err(error @ AuthError::Io(_)) if talk.received().is_empty() => {
                        self.retry(error)?
                    }
                    Err(AuthError::Rejected(reason)) => self.retry(AuthError::Rejected(reason))?,
                    Err(error) => return Err(error),
                },
                State::Proving(mut talk, session) => {
                    if talk.flush()? {
                        return Ok(Some(Connected { socket: talk.socket, session }));
                    }
                    self.state = State::Proving(talk, session);
                    return Ok(None);
                }
                State::Over => return Ok(None),
            };
        }
    }

    /// Begins to connect. A port is chosen before it is known where to; if an earlier connection had the same two ports and is
    /// not forgotten yet (`TIME_WAIT`), another port may do (connect(2), `EADDRNOTAVAIL`).
    fn connect(&self) -> io::Result<Socket> {
        another_if_taken(|| {
            let socket = stream::new(&self.to)?;
            if let Some(from) = self.from {
                socket.bind(&from.into())?;
            }
            match socket.connect(&self.to.into()) {
                Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
                _ => Ok(socket),
            }
        })
    }

    /// Sends the hello and reads the answer; the session, if the acceptor has proven itself and our proof is queued.
    fn answer(&self, talk: &mut Talk) -> Result<Option<Session>, AuthError> {
        // An acceptor may have turned us away before it has read the hello: then its answer counts, not that we cannot send.
        let flushed = talk.flush();
        let prefix = talk.receive::<PREFIX>();
        // As soon as it cannot be an answer, not when there is enough of it.
        wire::check_answer(talk.received())?;
        let Some(prefix) = prefix? else {
            flushed?;
            return Ok(None);
        };
        if wire::is_reject(&prefix) {
            let Some(reject) = talk.receive::<REJECT>()? else { return Ok(None) };
            return Err(AuthError::Rejected(wire::decode_reject(&reject)?));
        }
        let Some(challenge) = talk.receive::<CHALLENGE>()? else { return Ok(None) };
        let (covered, proof) =
            challenge.split_first_chunk().ok_or(Malformed::Length(challenge.len()))?;
        if !self.key.proven(Side::Acceptor, &self.hello, covered, proof) {
            return Err(AuthError::WrongSecret);
        }
        talk.queue(&self.key.prove(Side::Connector, &self.hello, covered));
        Ok(Some(Session::new(&self.key, Side::Connector, &self.hello, covered)))
    }

    /// The state after an attempt that failed so, if another may succeed.
    fn retry(&self, error: AuthError) -> Result<State, AuthError> {
        let may_succeed = match &error {
            AuthError::Io(error) => matches!(
                error.kind(),
                ErrorKind::ConnectionRefused
                    | ErrorKind::TimedOut
                    | ErrorKind::Interrupted
                    | ErrorKind::UnexpectedEof
                    | ErrorKind::ConnectionReset
                    | ErrorKind::BrokenPipe
            ),
            AuthError::Rejected(Rejection::Busy | Rejection::TooSlow) => true,
            _ => false,
        };
        if may_succeed && self.retries {
            return Ok(State::Waiting(Instant::now() + RETRY));
        }
        Err(error)
    }
}

/// Whether a socket is connected by now.
fn is_connected(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let peer = match socket.peer_addr() {
        Ok(peer) => peer,
        Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(false),
        Err(e) => return Err(e),
    };
    if internet(&peer)? == internet(&socket.local_addr()?)? {
        // A port that nobody listens at was free to connect from, too: TCP connects it to itself.
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(true)
}

/// What fuzzing needs of a connector that waits for its answer.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// A connector on any socket.
    pub(crate) struct Greeting(Connector, Talk);

    impl Greeting {
        pub(crate) fn new(socket: Socket, key: &Key) -> Greeting {
            let hello = Hello { subject: Subject::default(), nonce: [5; 16] };
            let hello = hello.encode(|covered| key.seal(covered));
            let to = SocketAddr::from(([192, 0, 2, 1], 1));
            let (key, state) = (key.clone(), State::Over);
            let mut talk = Talk::new(socket);
            talk.queue(&hello);
            Greeting(Connector { to, from: None, key, hello, retries: false, state }, talk)
        }

        /// Whether the acceptor has proven itself.
        pub(crate) fn answer(&mut self) -> Result<bool, AuthError> {
            self.0.answer(&mut self.1).map(|session| session.is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_not_the_end() {
        let attempts = |taken: usize| {
            let mut tried = 0;
            let result = another_if_taken(|| {
                tried += 1;
                if tried <= taken { Err(ErrorKind::AddrNotAvailable.into()) } else { Ok(()) }
            });
            (tried, result.is_ok())
        };
        assert_eq!(attempts(0), (1, true));
        assert_eq!(attempts(3), (4, true));
        assert_eq!(attempts(100), (PORTS, false));
        let refused = another_if_taken(|| -> io::Result<()> { Err(ErrorKind::NotFound.into()) });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

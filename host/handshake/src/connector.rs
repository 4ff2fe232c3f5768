//! How two ends of a socket come to trust each other, a step at a time. What is said is in [`auth`](super::auth).

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{SockAddr, Socket};

use super::auth::{Key, Side};
use super::stream::{self, internet, lost};
use super::wire::{
    self, CHALLENGE, CHALLENGE_COVERED, HELLO, Hello, Malformed, Nonce, PREFIX, PROOF,
};

/// Why an end is not trusted.
#[derive(Debug)]
pub(super) enum Refusal {
    Io(io::Error),
    Malformed(Malformed),
    /// It does not know the secret.
    Unproven,
    /// It is silent for so long.
    Silent(Duration),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Io(error)
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Refusal::Malformed(malformed)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Io(error) => f.write_str(&lost(error)),
            Refusal::Malformed(malformed) => write!(f, "it {malformed}"),
            Refusal::Unproven => f.write_str("it does not know the secret"),
            Refusal::Silent(time) => write!(f, "it said too little for {time:?}"),
        }
    }
}

/// A random number.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// A socket with what is to be said on it, and what has been heard.
struct Talk {
    socket: Socket,
    heard: Vec<u8>,
    say: Vec<u8>,
}

impl Talk {
    fn new(socket: Socket) -> Talk {
        Talk { socket, heard: Vec::new(), say: Vec::new() }
    }

    /// Whether all is said.
    fn speak(&mut self) -> io::Result<bool> {
        while !self.say.is_empty() {
            match stream::send(&self.socket, &self.say)? {
                Some(said) => drop(self.say.drain(..said)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The first `N` bytes, once they have come. Nothing behind them is taken off the socket: that may be a message.
    fn hear<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        while let missing @ 1.. = N.saturating_sub(self.heard.len()) {
            let mut place = [0; N];
            let room = &mut place[..missing];
            // SAFETY: these bytes are ours.
            match unsafe { stream::recv(&self.socket, room.as_mut_ptr(), room.len()) }? {
                Some(bytes) => self.heard.extend_from_slice(&room[..bytes]),
                None => return Ok(None),
            }
        }
        Ok(self.heard.first_chunk().copied())
    }

    fn hush(&mut self) {
        self.heard.clear();
    }
}

/// What a step of [`Incoming`] came to.
pub(super) enum Step {
    /// Ask again.
    Pending,
    /// It is trusted: this is its socket.
    Proven(Hello),
    /// It is not. Ask again nevertheless if it is to be told so ([`Incoming::takes_leave`]).
    Refused(Refusal),
    /// A refused one has been told.
    Gone,
}

/// A socket that somebody has connected to a listener.
pub(super) struct Incoming {
    talk: Talk,
    pub(super) peer: SocketAddr,
    pub(super) since: Instant,
    state: Heard,
}

enum Heard {
    /// Nothing yet, or a part of a hello.
    Nothing,
    /// A hello, sealed or not; it has our challenge.
    Hello([u8; HELLO], bool, [u8; CHALLENGE_COVERED]),
    /// Another version: it reads ours and goes.
    OtherVersion,
}

impl Incoming {
    pub(super) fn new(socket: Socket, peer: &SockAddr) -> io::Result<Incoming> {
        stream::prepare(&socket)?;
        let (talk, peer) = (Talk::new(socket), internet(peer)?);
        Ok(Incoming { talk, peer, since: Instant::now(), state: Heard::Nothing })
    }

    /// Whether it has said nothing that only one of ours could have said.
    pub(super) fn is_nobody(&self) -> bool {
        !matches!(self.state, Heard::Hello(_, true, _))
    }

    /// Whether it is refused, and is being told why.
    pub(super) fn takes_leave(&self) -> bool {
        matches!(self.state, Heard::OtherVersion)
    }

    pub(super) fn into_socket(self) -> Socket {
        self.talk.socket
    }

    pub(super) fn step(&mut self, key: &Key) -> Step {
        match self.state {
            Heard::OtherVersion => self.leave().unwrap_or(Step::Gone),
            _ => self.greet(key).unwrap_or_else(|refusal| {
                if let Refusal::Malformed(Malformed::Version(_)) = refusal {
                    self.talk.say = wire::challenge_prefix().to_vec();
                    self.state = Heard::OtherVersion;
                }
                Step::Refused(refusal)
            }),
        }
    }

    fn greet(&mut self, key: &Key) -> Result<Step, Refusal> {
        if let Heard::Nothing = self.state {
            // As soon as it cannot be one of ours, not when there is enough of it.
            if let Some(prefix) = self.talk.hear::<PREFIX>()? {
                Hello::check_prefix(&prefix)?;
            }
            let Some(hello) = self.talk.hear::<HELLO>()? else { return Ok(Step::Pending) };
            let challenge = wire::challenge(&nonce()?);
            let proof = key.prove(Side::Listener, &hello, &challenge);
            self.talk.hush();
            self.talk.say = [&challenge[..], &proof].concat();
            self.state = Heard::Hello(hello, key.is_sealed(&hello), challenge);
        }
        if !self.talk.speak()? {
            return Ok(Step::Pending);
        }
        let Heard::Hello(hello, _, challenge) = self.state else { return Ok(Step::Pending) };
        let Some(proof) = self.talk.hear::<PROOF>()? else { return Ok(Step::Pending) };
        if !key.proven(Side::Connector, &hello, &challenge, &proof) {
            return Err(Refusal::Unproven);
        }
        Ok(Step::Proven(Hello::decode(&hello)?))
    }

    /// Says our version and reads on until the other end closes: a socket closed with something unread in it would take
    /// back what was said last.
    fn leave(&mut self) -> io::Result<Step> {
        if self.talk.speak()? {
            self.talk.socket.shutdown(std::net::Shutdown::Write)?;
            self.talk.hush();
            self.talk.hear::<1024>()?;
        }
        Ok(Step::Pending)
    }
}

/// A socket that is being connected to a listener.
pub(super) struct Outgoing {
    /// Where to, and from where if that matters.
    to: SocketAddr,
    from: Option<SocketAddr>,
    hello: [u8; HELLO],
    state: Dial,
}

enum Dial {
    /// Nobody listened; once more from then on.
    Later(Instant),
    Calling(Socket),
    /// Connected, and the hello on its way.
    Greeting(Talk),
    /// All is heard; the proof on its way.
    Proving(Talk),
    Done,
}

/// How long until a refused connection is tried again. Not measured: a small part of what starting a process takes.
const RETRY: Duration = Duration::from_millis(5);

impl Outgoing {
    pub(super) fn new(
        to: SocketAddr,
        from: Option<SocketAddr>,
        hello: &Hello,
        key: &Key,
    ) -> Outgoing {
        let hello = hello.encode(|covered| key.seal(covered));
        Outgoing { to, from, hello, state: Dial::Later(Instant::now()) }
    }

    /// Why there is no socket yet.
    pub(super) fn missing(&self) -> &'static str {
        match self.state {
            Dial::Later(_) => "nobody listens there, or has room for us",
            Dial::Calling(_) => "it does not answer",
            Dial::Greeting(_) | Dial::Proving(_) | Dial::Done => "it does not greet us",
        }
    }

    /// The socket, once the other end has proven itself and heard our proof.
    pub(super) fn step(&mut self, key: &Key) -> Result<Option<Socket>, Refusal> {
        loop {
            self.state = match std::mem::replace(&mut self.state, Dial::Done) {
                Dial::Later(then) if Instant::now() < then => {
                    self.state = Dial::Later(then);
                    return Ok(None);
                }
                Dial::Later(_) => match self.call() {
                    Ok(socket) => Dial::Calling(socket),
                    Err(error) => retry(error)?,
                },
                Dial::Calling(socket) => match connected(&socket) {
                    Ok(true) => {
                        stream::prepare(&socket)?;
                        let mut talk = Talk::new(socket);
                        talk.say = self.hello.to_vec();
                        Dial::Greeting(talk)
                    }
                    Ok(false) => {
                        self.state = Dial::Calling(socket);
                        return Ok(None);
                    }
                    Err(error) => retry(error)?,
                },
                Dial::Greeting(mut talk) => match challenge(&mut talk) {
                    Ok(Some(challenge)) => {
                        self.answer(key, &mut talk, &challenge)?;
                        Dial::Proving(talk)
                    }
                    Ok(None) => {
                        self.state = Dial::Greeting(talk);
                        return Ok(None);
                    }
                    // A listener that has no room closes without a word.
                    Err(Refusal::Io(error)) if talk.heard.is_empty() => retry(error)?,
                    Err(refusal) => return Err(refusal),
                },
                Dial::Proving(mut talk) => {
                    if talk.speak()? {
                        return Ok(Some(talk.socket));
                    }
                    self.state = Dial::Proving(talk);
                    return Ok(None);
                }
                Dial::Done => return Ok(None),
            };
        }
    }

    fn call(&self) -> io::Result<Socket> {
        let socket = stream::new(&self.to)?;
        if let Some(from) = self.from {
            socket.bind(&from.into())?;
        }
        match socket.connect(&self.to.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
            _ => Ok(socket),
        }
    }

    fn answer(
        &self,
        key: &Key,
        talk: &mut Talk,
        challenge: &[u8; CHALLENGE],
    ) -> Result<(), Refusal> {
        let (covered, proof) =
            challenge.split_first_chunk().ok_or(Malformed::Length(challenge.len()))?;
        if !key.proven(Side::Listener, &self.hello, covered, proof) {
            return Err(Refusal::Unproven);
        }
        talk.say = key.prove(Side::Connector, &self.hello, covered).to_vec();
        Ok(())
    }
}

/// What a listener says to our hello, once it is there.
fn challenge(talk: &mut Talk) -> Result<Option<[u8; CHALLENGE]>, Refusal> {
    talk.speak()?;
    // As soon as it cannot be a listener of ours, not when there is enough of it.
    if let Some(prefix) = talk.hear::<PREFIX>()? {
        wire::check_challenge(&prefix)?;
    }
    Ok(talk.hear()?)
}

/// Whether a socket is connected by now.
fn connected(socket: &Socket) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let peer = match socket.peer_addr() {
        Ok(peer) => peer,
        Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(false),
        Err(e) => return Err(e),
    };
    if internet(&peer)? == internet(&socket.local_addr()?)? {
        // A port that nobody listens at was free to call from, too: TCP connects it to itself.
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(true)
}

/// Whether an attempt that failed so may succeed later.
fn retry(error: io::Error) -> Result<Dial, Refusal> {
    match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::TimedOut
        | ErrorKind::Interrupted
        | ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe => Ok(Dial::Later(Instant::now() + RETRY)),
        _ => Err(Refusal::Io(error)),
    }
}

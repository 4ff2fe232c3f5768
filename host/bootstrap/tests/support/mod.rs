//! What several tests of the bootstrap share.
#![allow(dead_code)] // each test program uses a part

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl_bootstrap::wire::{Decoder, Message, Phase};
use ferroccl_bootstrap::{Bootstrap, Refusal, Result, Settings, UniqueId};
use ferroccl_handshake::{Connected, Connector, Key, Session, Subject, wire};

/// The defaults with another bootstrap time-out.
pub(crate) fn settings(seconds: f64) -> Settings {
    Settings { timeout: Duration::from_secs_f64(seconds), ..Settings::default() }
}

/// An id whose root listens on loopback.
pub(crate) fn loopback() -> UniqueId {
    UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap()
}

/// Runs every rank of a group in a thread; what each returned, in the order of ranks.
pub(crate) fn group<T: Send>(
    id: &UniqueId,
    nranks: u32,
    settings: &Settings,
    body: impl Fn(Bootstrap) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = (0..nranks)
            .map(|rank| scope.spawn(move || body(Bootstrap::connect(id, rank, nranks, settings)?)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Tries until it is so; a minute is for ever.
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < deadline, "it never came to be");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The key of a root's connections, as the bootstrap derives it; the secret's place is as `UniqueId` documents it.
fn key(id: &UniqueId) -> Key {
    let secret = id.to_bytes()[40..72].try_into().unwrap();
    Key::derive(&secret, "bootstrap root", &[0; 16])
}

/// Who knows the secret: authenticated, and has said nothing yet.
pub(crate) fn member(id: &UniqueId) -> Speaker {
    let mut connector = Connector::new(id.address(), None, Subject::default(), &key(id)).unwrap();
    let mut connected = None;
    until(|| {
        connected = connector.step().unwrap();
        connected.is_some()
    });
    let Connected { socket, session } = connected.unwrap();
    socket.set_nonblocking(false).unwrap();
    Speaker { session: Some(session), ..Speaker::of(socket.into()) }
}

/// A rank's first message.
pub(crate) fn hello(rank: u32, world_size: u32) -> Message {
    let listener = ([127, 0, 0, 1], 9).into();
    Message::Hello { rank, world_size, wait_ms: 60_000, listener }
}

/// The hello of the handshake, whole and sealed, as a connector sends it.
pub(crate) fn handshake_hello(id: &UniqueId) -> Vec<u8> {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = trap.local_addr().unwrap();
    let mut connector = Connector::new(to, None, Subject::default(), &key(id)).unwrap();
    let mut end = None;
    trap.set_nonblocking(true).unwrap();
    let mut hello = vec![0; wire::HELLO];
    until(|| {
        assert!(connector.step().unwrap().is_none());
        end = end.take().or_else(|| trap.accept().ok());
        end.as_ref().is_some_and(|(end, _)| end.peek(&mut hello).is_ok_and(|n| n == wire::HELLO))
    });
    hello
}

/// Somebody who speaks to a root by hand.
pub(crate) struct Speaker {
    stream: TcpStream,
    /// Of a member.
    session: Option<Session>,
}

impl Speaker {
    /// A stranger.
    pub(crate) fn meet(root: SocketAddr) -> Self {
        Self::of(TcpStream::connect(root).unwrap())
    }

    /// On a connection.
    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Speaker { stream, session: None }
    }

    /// Sends bytes. The root may hang up in the middle of nonsense.
    pub(crate) fn say(mut self, bytes: &[u8]) -> Self {
        let _ = self.stream.write_all(bytes);
        self
    }

    /// Sends a member's message.
    pub(crate) fn tell(mut self, message: &Message) -> Self {
        let frame = message.seal(&mut self.session.as_mut().unwrap().ours);
        self.say(&frame)
    }

    /// The refusal that the root sends to a member, by a byte at a time.
    pub(crate) fn hear_refusal(mut self) -> Refusal {
        let mut decoder = Decoder::new(Phase::Joining);
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            decoder.push(&byte);
            if let Some(sealed) = decoder.next_frame().unwrap() {
                let theirs = &mut self.session.as_mut().unwrap().theirs;
                let frame = sealed.open(theirs).expect("the root's own word");
                match frame.message().unwrap() {
                    Message::Refused(refusal) => return refusal,
                    other => panic!("{other:?} instead of a refusal"),
                }
            }
        }
    }

    /// The code of the reject that the root sends to a stranger.
    pub(crate) fn hear_reject(mut self) -> u8 {
        let mut reject = [0; wire::REJECT];
        self.stream.read_exact(&mut reject).unwrap();
        assert_eq!(reject[..12], *b"FerroHsR\x03\0\0\0");
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0, "nothing behind it");
        reject[12]
    }

    /// The next bytes of the root.
    pub(crate) fn hear<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The bare connection.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

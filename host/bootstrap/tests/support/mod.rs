//! What several tests of the bootstrap share.
#![allow(dead_code)] // each test program uses a part

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use ferroccl::Result;
use ferroccl::bootstrap::wire::{Decoder, Message, Nonce, Phase};
use ferroccl::bootstrap::{Bootstrap, Refusal, UniqueId};
use ferroccl::config::Config;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The defaults with another bootstrap time-out.
pub(crate) fn config(seconds: f64) -> Config {
    let mut config = Config::default();
    config.bootstrap_timeout = Duration::from_secs_f64(seconds);
    config
}

/// An id whose root listens on loopback.
pub(crate) fn loopback() -> UniqueId {
    UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap()
}

/// Runs every rank of a group in a thread; what each returned, in the order of ranks.
pub(crate) fn group<T: Send>(
    id: &UniqueId,
    nranks: u32,
    config: &Config,
    body: impl Fn(Bootstrap) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = (0..nranks)
            .map(|rank| scope.spawn(move || body(Bootstrap::connect(id, rank, nranks, config)?)))
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

/// Somebody who speaks to a root by hand.
pub(crate) struct Speaker {
    stream: TcpStream,
    challenge: Nonce,
}

impl Speaker {
    /// Connects and hears the greeting.
    pub(crate) fn meet(root: SocketAddr) -> Self {
        let mut speaker = Self::of(TcpStream::connect(root).unwrap());
        match speaker.hear() {
            Message::Greeting { challenge } => speaker.challenge = challenge,
            other => panic!("{other:?} instead of a greeting"),
        }
        speaker
    }

    /// On a connection whose greeting is not yet read.
    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Speaker { stream, challenge: Nonce::default() }
    }

    /// A hello that proves to know the id's secret; its bytes are as `UniqueId` and `wire` document them.
    pub(crate) fn hello(&mut self, id: &UniqueId, rank: u32, world_size: u32) -> Vec<u8> {
        let secret = &id.to_bytes()[40..72];
        let message = Message::Hello {
            rank,
            world_size,
            wait_ms: 60_000,
            challenge: [7; 16],
            listener: ([127, 0, 0, 1], 9).into(),
        };
        message.encode(|covered| {
            let mut hmac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
            hmac.update(&self.challenge);
            hmac.update(covered);
            hmac.finalize().into_bytes().into()
        })
    }

    /// Sends bytes. The root may hang up in the middle of nonsense.
    pub(crate) fn say(mut self, bytes: &[u8]) -> Self {
        let _ = self.stream.write_all(bytes);
        self
    }

    /// The next message of the root, by a byte at a time.
    pub(crate) fn hear(&mut self) -> Message {
        let mut decoder = Decoder::new(Phase::Handshake);
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            decoder.push(&byte);
            if let Some(frame) = decoder.next_frame().unwrap() {
                return frame.message().unwrap();
            }
        }
    }

    /// The refusal that the root sends.
    pub(crate) fn hear_refusal(mut self) -> Refusal {
        match self.hear() {
            Message::Refused(refusal) => refusal,
            other => panic!("{other:?} instead of a refusal"),
        }
    }

    /// The bare connection.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

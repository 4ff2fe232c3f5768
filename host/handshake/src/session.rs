//! Seals of what is sent after the handshake.

use hmac::Mac as _;

use crate::key::{Key, Side, hmac};
use crate::wire::{CHALLENGE_COVERED, HELLO};

/// Bytes of a seal.
pub const SEAL: usize = 32;

/// What the two ends of one connection share after their handshake: a key for each direction. Both nonces of the handshake
/// are in the keys, so they are those of this connection and of no other.
///
/// A caller that wants its messages protected sends the seal of [`Session::ours`] with each, and takes no message that
/// [`Session::theirs`] does not accept. Then nobody on the way can change, repeat, leave out, reorder or return one without
/// being noticed. What is sent can still be read.
#[derive(Debug)]
pub struct Session {
    /// Of what this end sends.
    pub ours: Seals,
    /// Of what the peer sends.
    pub theirs: Seals,
}

impl Session {
    /// The one of `side`, after an exchange.
    pub(crate) fn new(
        key: &Key,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
    ) -> Session {
        let from = |side| Seals { key: key.session(side, hello, challenge), next: 0 };
        let (connector, acceptor) = (from(Side::Connector), from(Side::Acceptor));
        match side {
            Side::Connector => Session { ours: connector, theirs: acceptor },
            Side::Acceptor => Session { ours: acceptor, theirs: connector },
        }
    }
}

/// The seals of one direction: HMAC-SHA256 of each message's number and bytes.
pub struct Seals {
    key: [u8; 32],
    /// The number of the next message.
    next: u64,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seals(..., next {})", self.next) // a secret does not belong in a log
    }
}

impl Seals {
    /// Those of a known key, for tests and fuzzing of what is sealed; of no use to anybody else.
    #[doc(hidden)]
    #[must_use]
    pub fn fuzzed(key: [u8; 32]) -> Seals {
        Seals { key, next: 0 }
    }

    /// The seal of the next message.
    #[must_use]
    pub fn seal(&mut self, message: &[u8]) -> [u8; SEAL] {
        let seal = hmac(&self.key, &[&self.next.to_le_bytes(), message]);
        self.next += 1;
        seal.finalize().into_bytes().into()
    }

    /// Whether this is the next message; if not, nothing that comes later is.
    #[must_use]
    pub fn accept(&mut self, message: &[u8], seal: &[u8; SEAL]) -> bool {
        let expected = hmac(&self.key, &[&self.next.to_le_bytes(), message]);
        // In constant time. A message that is not accepted does not count: the same number is expected again.
        let accepted = expected.verify_slice(seal).is_ok();
        self.next += u64::from(accepted);
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(nonce: u8) -> (Session, Session) {
        let key = Key::derive(&[1; 32], "A", &[2; 16]);
        let (hello, challenge) = ([3; HELLO], [nonce; CHALLENGE_COVERED]);
        let session = |side| Session::new(&key, side, &hello, &challenge);
        (session(Side::Connector), session(Side::Acceptor))
    }

    #[test]
    fn each_message_is_accepted_once_in_its_place_and_direction() {
        let (mut ours, mut theirs) = sessions(4);
        let messages: [&[u8]; 3] = [b"one", b"two", b"two"];
        let seals = messages.map(|message| ours.ours.seal(message));
        assert_ne!(seals[1], seals[2], "the same message twice has two seals");
        assert!(!theirs.theirs.accept(messages[1], &seals[1]), "one is left out");
        assert!(!ours.theirs.accept(messages[0], &seals[0]), "one is returned");
        assert!(!sessions(5).1.theirs.accept(messages[0], &seals[0]), "of another connection");
        assert!(!theirs.theirs.accept(b"onE", &seals[0]), "changed");
        for (message, seal) in messages.iter().zip(&seals) {
            assert!(theirs.theirs.accept(message, seal));
            assert!(!theirs.theirs.accept(message, seal), "repeated");
        }
        let answer = theirs.ours.seal(b"one");
        assert_ne!(answer, seals[0]);
        assert!(ours.theirs.accept(b"one", &answer));
    }
}

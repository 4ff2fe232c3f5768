//! Who knows the secret: proofs by HMAC-SHA256.
//!
//! ```text
//! connector                                              listener
//!    ── hello: version, which socket, nonce c, seal ────────►
//!    ◄──────── challenge: version, nonce l, proof over both ──    "I know the secret"
//!    ── proof over both ────────────────────────────────────►    "so do I"
//! ```
//!
//! Each end's proof covers a nonce of the other, so that a recording proves nothing a second time; the ends' proofs begin
//! with different words, so that neither can be sent back as the other. The key is made of the secret and the listener's
//! cookie: what is proven to one listener proves nothing to another.
//!
//! The seal of a hello proves less, for it may be a recording; but whoever has not even that, must go first where there is
//! no room for all.
//!
//! This decides who may take part. It does not hide or protect what is said afterwards from somebody who can rewrite
//! packets: that is the network's business, as with NCCL.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::wire::{CHALLENGE_COVERED, HELLO, HELLO_COVERED, Nonce, PROOF};

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Connector,
    Listener,
}

/// What both ends of the connections to one listener know.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(...)") // a secret does not belong in a log
    }
}

impl Key {
    /// For a network's connections alone: to another of the same ranks it proves nothing.
    pub(super) fn new(net: &str, secret: &[u8; 32], cookie: &Nonce) -> Key {
        Key(hmac(secret, &[b"connection of network ", net.as_bytes(), cookie])
            .finalize()
            .into_bytes()
            .into())
    }

    /// The seal of a hello.
    pub(super) fn seal(&self, hello: &[u8; HELLO_COVERED]) -> [u8; PROOF] {
        hmac(&self.0, &[b"hello....", hello]).finalize().into_bytes().into()
    }

    pub(super) fn is_sealed(&self, hello: &[u8; HELLO]) -> bool {
        let (covered, seal) = hello.split_at(HELLO_COVERED);
        hmac(&self.0, &[b"hello....", covered]).verify_slice(seal).is_ok()
    }

    fn over(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
    ) -> Hmac<Sha256> {
        let who: &[u8] = match side {
            Side::Connector => b"connector",
            Side::Listener => b"listener.",
        };
        hmac(&self.0, &[who, hello, challenge])
    }

    pub(super) fn prove(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
    ) -> [u8; PROOF] {
        self.over(side, hello, challenge).finalize().into_bytes().into()
    }

    pub(super) fn proven(
        &self,
        side: Side,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE_COVERED],
        proof: &[u8],
    ) -> bool {
        // In constant time: how much of a guess was right must not show.
        self.over(side, hello, challenge).verify_slice(proof).is_ok()
    }
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC fills a short key up with zeros to SHA-256's block; done here, no length can be wrong.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    let mut hmac = Hmac::<Sha256>::new(&block.into());
    parts.iter().for_each(|part| hmac.update(part));
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_side_secret_cookie_and_exchange() {
        let key = Key::new("A", &[1; 32], &[2; 16]);
        let (hello, challenge) = ([3; HELLO], [4; CHALLENGE_COVERED]);
        let proof = key.prove(Side::Connector, &hello, &challenge);
        let proves = |key: &Key, side, hello, challenge| key.proven(side, hello, challenge, &proof);
        assert!(proves(&key, Side::Connector, &hello, &challenge));
        assert!(!proves(&key, Side::Listener, &hello, &challenge));
        assert!(!proves(&key, Side::Connector, &[0; HELLO], &challenge));
        assert!(!proves(&key, Side::Connector, &hello, &[0; CHALLENGE_COVERED]));
        assert!(!proves(&Key::new("A", &[0; 32], &[2; 16]), Side::Connector, &hello, &challenge));
        assert!(!proves(&Key::new("A", &[1; 32], &[0; 16]), Side::Connector, &hello, &challenge));
        assert!(!proves(&Key::new("B", &[1; 32], &[2; 16]), Side::Connector, &hello, &challenge));
        assert!(!key.proven(Side::Connector, &hello, &challenge, &proof[1..]));
        let covered = [3; HELLO_COVERED];
        let mut hello = [3; HELLO];
        hello[HELLO_COVERED..].copy_from_slice(&key.seal(&covered));
        assert!(key.is_sealed(&hello) && !Key::new("A", &[0; 32], &[2; 16]).is_sealed(&hello));
        hello[0] = 0;
        assert!(!key.is_sealed(&hello));
        assert!(!format!("{key:?}").contains('1'));
    }
}

//! Who knows the secret: handshakes signed with HMAC-SHA256.
//!
//! A signature covers the other side's challenge and the whole frame before it, so that a recorded handshake
//! proves nothing a second time, and one message cannot stand for another. Ranks greet each other under a
//! key of their own, made from the id's secret and a nonce of the root, so that two groups of one secret
//! (one `NCCL_COMM_ID` after the other) do not mix.
//!
//! This decides who may take part. It does not hide or protect what is said afterwards from somebody who
//! can rewrite packets: that is the network's business, as with NCCL.

use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;

use super::wire::{Frame, Mac, Malformed, Message, Nonce};
use crate::{Error, Result};

/// The challenge of a message that answers none.
pub(super) const NO_CHALLENGE: Nonce = [0; 16];

/// A key that both sides know.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(...)") // a secret does not belong in a log
    }
}

/// Why a signed frame is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unproven {
    /// The signer does not know the key, or answers another challenge.
    WrongSecret,
    /// It is no message, or one that is never signed.
    Malformed(Malformed),
}

impl Key {
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Key(secret)
    }

    /// The key of one group's ranks.
    pub(super) fn of_session(&self, session: &Nonce) -> Key {
        Key(self.hmac(&[b"session", session]).finalize().into_bytes().into())
    }

    fn hmac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC fills a short key up with zeros to SHA-256's block; done here, no length can be wrong.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut hmac = Hmac::<Sha256>::new(&block.into());
        parts.iter().for_each(|part| hmac.update(part));
        hmac
    }

    /// The frame of `message`, signed if it is of those that are.
    pub(super) fn seal(&self, challenge: &Nonce, message: &Message) -> Vec<u8> {
        message.encode(|covered| -> Mac {
            self.hmac(&[challenge, covered]).finalize().into_bytes().into()
        })
    }

    /// The message of a frame that answers `challenge`.
    pub(super) fn open(&self, challenge: &Nonce, frame: &Frame) -> Result<Message, Unproven> {
        let message = frame.message().map_err(Unproven::Malformed)?;
        let (covered, mac) = frame.signed().ok_or(Unproven::WrongSecret)?;
        // In constant time: how much of a guess was right must not show.
        let proof = self.hmac(&[challenge, covered]).verify_slice(mac);
        proof.map(|()| message).map_err(|_| Unproven::WrongSecret)
    }
}

/// A fresh nonce.
pub(super) fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce)
        .map_err(|e| Error::system("random nonce", std::io::Error::other(e)))?;
    Ok(nonce)
}

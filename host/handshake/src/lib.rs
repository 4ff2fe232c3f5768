//! TCP connections between ends that prove to each other that they know a secret.
//!
//! The bootstrap and the networks of FerroCCL listen on ports that anybody can reach. This crate decides who gets through: a
//! challenge-response handshake with HMAC-SHA256, the same for all of them.
//!
//! ```text
//! connector                                                   acceptor
//!    ── hello: version, subject, nonce c, seal ───────────────►   not sealed: rejected at once
//!    ◄──────── challenge: version, nonce a, acceptor's proof ──   "I know the secret"
//!    ── connector's proof ────────────────────────────────────►   "so do I"
//!    ◄──────── reject: version, reason ───────────────────────    instead of either, to a stranger
//! ```
//!
//! What holds, and is tested:
//!
//! * **Each end's proof covers the nonces of both**, so a recording proves nothing a second time.
//! * **The two proofs begin with different words**, so neither can be sent back as the other.
//! * **The key is derived** from the secret, what the connection is for, and a number of the acceptor: a proof for one acceptor
//!   proves nothing to another.
//! * **The seal** is a MAC of the hello. A recorded hello has one, so it authenticates nobody; but who has none is turned away
//!   before it gets anything that was computed with the key.
//! * **MACs are compared in constant time.**
//! * **Messages have fixed lengths**, and nothing behind them is read: what follows on the socket is the caller's.
//! * **Strangers make nobody wait.** Sockets never block. At most [`MAX_PENDING`] peers are pending, each for a limited time;
//!   when there is no room, the oldest one that has not even sent a sealed hello is turned away.
//! * **Who is turned away is told why**, if it reads: by a [`Rejection`].
//!
//! The handshake decides who may take part. It also leaves both ends a [`Session`], with which a caller can seal what it sends
//! afterwards. Callers that do not are not protected from somebody who can rewrite packets, and nothing is encrypted: that is
//! the network's business, as with NCCL.
//!
//! A reject is not authenticated: who sends it does not know the secret, or has not been asked for it. A caller that may yet
//! meet the right acceptor at the same place must not take it as the last word.
//!
//! ```text
//! key        keys, seals and proofs          acceptor   a listening socket and its pending peers
//! wire       the messages as bytes (pure)    connector  a socket that is being connected
//! session    seals of what follows          log_limit  how many refusals are logged
//! stream     sockets that never block        talk       messages on a socket, as far as they have come
//! ```

mod acceptor;
mod connector;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod key;
mod log_limit;
mod session;
pub mod stream;
mod talk;
pub mod wire;

pub use acceptor::{Acceptor, Authenticated, Event, MAX_PENDING};
pub use connector::{Connected, Connector};
pub use error::{AuthError, Rejection};
pub use key::Key;
pub use log_limit::{LogLimit, Unlogged};
pub use session::{SEAL, Seals, Session};
pub use wire::{Nonce, SUBJECT_BYTES, Subject};

/// A random nonce.
///
/// # Errors
/// When the system has no random numbers.
pub fn nonce() -> std::io::Result<Nonce> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(std::io::Error::other)?;
    Ok(nonce)
}

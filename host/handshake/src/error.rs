//! Why a peer is not authenticated.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::stream::lost;
use crate::wire::{Malformed, VERSION};

/// Why an acceptor turns a peer away, as it tells the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// What it sent is not the handshake.
    Malformed,
    /// It speaks another version of the handshake.
    WrongVersion {
        /// The acceptor's version.
        theirs: u32,
    },
    /// It does not know the secret.
    WrongSecret,
    /// It did not prove itself in time.
    TooSlow,
    /// Too many peers are pending. Trying again may help.
    Busy,
    /// Its process, or its host, has no descriptor left for another connection. Trying again may help.
    OutOfFiles,
}

impl Rejection {
    pub(crate) fn code(self) -> u32 {
        match self {
            Rejection::Malformed => 1,
            Rejection::WrongVersion { .. } => 2,
            Rejection::WrongSecret => 3,
            Rejection::TooSlow => 4,
            Rejection::Busy => 5,
            Rejection::OutOfFiles => 6,
        }
    }

    pub(crate) fn from_code(code: u32, theirs: u32) -> Option<Rejection> {
        Some(match code {
            1 => Rejection::Malformed,
            2 => Rejection::WrongVersion { theirs },
            3 => Rejection::WrongSecret,
            4 => Rejection::TooSlow,
            5 => Rejection::Busy,
            6 => Rejection::OutOfFiles,
            _ => return None,
        })
    }

    /// Whether another attempt may succeed.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Rejection::TooSlow | Rejection::Busy | Rejection::OutOfFiles)
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::Malformed => f.write_str("it does not understand us"),
            Rejection::WrongVersion { theirs } => {
                write!(f, "it is of version {theirs} of the handshake, we of {VERSION}")
            }
            Rejection::WrongSecret => f.write_str("its secret is not ours"),
            Rejection::TooSlow => f.write_str("we did not prove ourselves in time"),
            Rejection::Busy => f.write_str("it has too many pending connections"),
            Rejection::OutOfFiles => f.write_str(
                "it has no descriptor left for another connection (EMFILE; ulimit -n there)",
            ),
        }
    }
}

/// Why a peer is not authenticated, or does not authenticate us.
#[derive(Debug)]
#[non_exhaustive]
pub enum AuthError {
    /// The connection failed.
    Io(io::Error),
    /// What it sent is not the handshake, or of another version.
    Malformed(Malformed),
    /// It does not know the secret.
    WrongSecret,
    /// It has not proven itself for so long.
    TooSlow(Duration),
    /// It made room for others: it has sent nothing that only a peer could have sent.
    Busy,
    /// It made room, because this process or host has no descriptor left.
    OutOfFiles,
    /// It turned us away.
    Rejected(Rejection),
}

impl AuthError {
    /// What the peer is told.
    pub(crate) fn rejection(&self) -> Option<Rejection> {
        match self {
            AuthError::Io(_) | AuthError::Rejected(_) => None,
            AuthError::Malformed(Malformed::Version(_)) => {
                Some(Rejection::WrongVersion { theirs: VERSION })
            }
            AuthError::Malformed(_) => Some(Rejection::Malformed),
            AuthError::WrongSecret => Some(Rejection::WrongSecret),
            AuthError::TooSlow(_) => Some(Rejection::TooSlow),
            AuthError::Busy => Some(Rejection::Busy),
            AuthError::OutOfFiles => Some(Rejection::OutOfFiles),
        }
    }
}

impl From<io::Error> for AuthError {
    fn from(error: io::Error) -> Self {
        AuthError::Io(error)
    }
}

impl From<Malformed> for AuthError {
    fn from(malformed: Malformed) -> Self {
        AuthError::Malformed(malformed)
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthError::Io(error) => f.write_str(&lost(error)),
            AuthError::Malformed(malformed) => write!(f, "it {malformed}"),
            AuthError::WrongSecret => f.write_str("it does not know the secret"),
            AuthError::TooSlow(time) => write!(f, "it did not prove itself in {time:?}"),
            AuthError::Busy => f.write_str("it was silent while too many others were pending"),
            AuthError::OutOfFiles => {
                f.write_str("no descriptor is left for another connection (EMFILE; ulimit -n)")
            }
            AuthError::Rejected(rejection) => write!(f, "it turned us away: {rejection}"),
        }
    }
}

impl std::error::Error for AuthError {}

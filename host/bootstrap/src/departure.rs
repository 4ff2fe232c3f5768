//! A rank that is no longer there.

use crate::error::BootstrapError;

/// A rank is no longer there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It ended without a goodbye, or cannot be reached.
    Lost {
        /// The rank.
        peer: u32,
        /// How it was noticed, by this rank or another.
        reason: String,
    },
    /// It left as it should. What still waits for it waits in vain.
    Left {
        /// The rank.
        peer: u32,
    },
}

impl Departure {
    /// The rank.
    #[must_use]
    pub fn peer(&self) -> u32 {
        match self {
            Departure::Lost { peer, .. } | Departure::Left { peer } => *peer,
        }
    }

    /// As an error of `rank`.
    #[must_use]
    pub fn into_error(self, rank: u32) -> BootstrapError {
        match self {
            Departure::Lost { peer, reason } => BootstrapError::PeerLost { rank, peer, reason },
            Departure::Left { peer } => {
                BootstrapError::PeerLost { rank, peer, reason: "it has left the group".to_owned() }
            }
        }
    }
}

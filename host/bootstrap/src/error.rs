//! Why ranks did not find each other, or lost each other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::{MissingRanks, Refusal};

/// The result of every fallible call of this crate.
pub type Result<T, E = BootstrapError> = std::result::Result<T, E>;

/// Why ranks did not become a group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A unique id was cut off, mistyped or made by another version.
    #[error("this is not a unique id: {0}")]
    InvalidId(String),
    /// No network interface is as the settings want it.
    #[error("no network interface is allowed by {wanted}; there are: {found}")]
    NoInterface {
        /// The settings.
        wanted: String,
        /// The interfaces of this machine that are up.
        found: String,
    },
    /// The root cannot be reached.
    #[error(
        "no root at {address} within {:.1} s ({trouble}): has the process that made the unique id ended, \
         or is its group complete already?", waited.as_secs_f64()
    )]
    NoRoot {
        /// Where it should be.
        address: SocketAddr,
        /// How long it was tried.
        waited: Duration,
        /// What was wrong the last time.
        trouble: String,
    },
    /// Something else listens where the root should.
    #[error("what listens at {address} is not a root of this library: {what}")]
    NotARoot {
        /// Where.
        address: SocketAddr,
        /// How one can tell.
        what: String,
    },
    /// The root turned this rank away.
    #[error("the root at {root} turned this rank away: {refusal}")]
    Refused {
        /// The root.
        root: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// This rank came, others did not.
    #[error("{0}")]
    MissingRanks(MissingRanks),
    /// Something took longer than `FERROCCL_BOOTSTRAP_TIMEOUT`.
    #[error("{what} took longer than {:.1} s", limit.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// Ranks do not do the same thing at the same time.
    #[error("ranks disagree: {0}")]
    Mismatch(String),
    /// What a member of the group sent makes no sense.
    #[error("{0}")]
    Malformed(String),
    /// An argument of a call makes no sense; nothing was started.
    #[error("invalid argument {argument}: {reason}")]
    InvalidArgument {
        /// The argument's name in the call.
        argument: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried, with its object.
        what: String,
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
    /// A peer is gone.
    #[error("rank {rank}: lost rank {peer}: {reason}")]
    PeerLost {
        /// The rank that noticed.
        rank: u32,
        /// The rank that is gone.
        peer: u32,
        /// How it was noticed.
        reason: String,
    },
}

impl BootstrapError {
    /// A [`BootstrapError::System`] from an operating-system error.
    pub fn system(what: impl Into<String>, source: io::Error) -> Self {
        BootstrapError::System { what: what.into(), source: Arc::new(source) }
    }

    /// A [`BootstrapError::InvalidArgument`].
    pub fn argument(argument: &'static str, reason: impl Into<String>) -> Self {
        BootstrapError::InvalidArgument { argument, reason: reason.into() }
    }
}

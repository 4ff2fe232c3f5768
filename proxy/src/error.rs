//! What goes wrong on a network.

use std::fmt;

/// An error of a network: which, in what it was doing, with whom.
///
/// ```
/// use ferroccl_proxy::NetError;
///
/// let error = NetError::new("software", "iallreduce", "the ranks' calls differ").with_peer(3);
/// assert_eq!(error.to_string(), "software: iallreduce with rank 3: the ranks' calls differ");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetError {
    /// The network's name.
    pub net: String,
    /// What it was to do.
    pub operation: &'static str,
    /// The other rank, where there is one.
    pub peer: Option<u32>,
    /// Why it failed.
    pub reason: String,
}

impl NetError {
    /// An error that no single peer has to do with.
    pub fn new(
        net: impl Into<String>,
        operation: &'static str,
        reason: impl Into<String>,
    ) -> NetError {
        NetError { net: net.into(), operation, peer: None, reason: reason.into() }
    }

    /// The same with a peer.
    #[must_use]
    pub fn with_peer(self, peer: u32) -> NetError {
        NetError { peer: Some(peer), ..self }
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.net, self.operation)?;
        if let Some(peer) = self.peer {
            write!(f, " with rank {peer}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for NetError {}

//! What an end of a connection has in every network of ours: the numbers of its requests, and why it is broken.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{MAX_REQUESTS, Request};
use crate::NetError;

/// Bits of a request that are the number of its message; a million messages a second last nine years.
const SEQUENCE_BITS: u32 = 48;

/// An end of a connection.
#[derive(Debug)]
pub(super) struct CommBase {
    /// The network's name.
    net: &'static str,
    pub(super) peer: SocketAddr,
    /// Tells the requests of this process's connections apart.
    id: u64,
    /// The number of the next message.
    pub(super) next: u64,
    broken: Option<String>,
    /// The caller has been told that it is broken.
    told: bool,
}

impl CommBase {
    pub(super) fn new(net: &'static str, peer: SocketAddr) -> CommBase {
        static ENDS: AtomicU64 = AtomicU64::new(0);
        // Numbers, and nothing else is ordered by them.
        let id = ENDS.fetch_add(1, Ordering::Relaxed) << SEQUENCE_BITS;
        CommBase { net, peer, id, next: 0, broken: None, told: false }
    }

    /// The place of a message among those that are under way.
    pub(super) fn slot(sequence: u64) -> usize {
        (sequence % MAX_REQUESTS as u64) as usize
    }

    /// The request of a message.
    pub(super) fn request(&self, sequence: u64) -> Request {
        Request(self.id | sequence)
    }

    /// The message of a request, of those that may be under way.
    pub(super) fn sequence(&self, request: Request) -> Result<u64, NetError> {
        let sequence = request.0 ^ self.id;
        if sequence < self.next && self.next - sequence <= MAX_REQUESTS as u64 {
            return Ok(sequence);
        }
        Err(self.no_such(request))
    }

    pub(super) fn no_such(&self, request: Request) -> NetError {
        let reason = format!("request {:#x} is not under way to or from {}", request.0, self.peer);
        NetError::new(self.net, "test", reason)
    }

    /// Breaks it; whether it was not broken before.
    pub(super) fn breaks(&mut self, reason: String) -> bool {
        let first = self.broken.is_none();
        self.broken.get_or_insert(reason);
        first
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// An error if it is broken. From then on the caller has been told.
    pub(super) fn check(&mut self, operation: &'static str) -> Result<(), NetError> {
        let Some(reason) = &self.broken else { return Ok(()) };
        self.told = true;
        let reason = format!("the connection with {} is broken: {reason}", self.peer);
        Err(NetError::new(self.net, operation, reason))
    }

    /// The same, but only if the caller has been told: before that, messages that are done can still be tested.
    pub(super) fn check_told(&mut self, operation: &'static str) -> Result<(), NetError> {
        if self.told { self.check(operation) } else { Ok(()) }
    }
}

//! The memory orders with which a proxy reads and writes what it shares with kernels, each with its partner in the
//! device's `prims`.
//!
//! `tests/fifo_model` explores a model that is made with these constants, and shows that none of them can be weaker.

use std::sync::atomic::Ordering;

/// A word that nobody else writes.
pub const OWN: Ordering = Ordering::Relaxed;

/// Of [`Sending`](super::Sending), which plays the receiver.
pub mod sending {
    use super::Ordering;

    /// The step FIFO. Speaks for itself: nothing is read because of it but what has its own order.
    pub const ENTRY: Ordering = Ordering::Relaxed;
    /// The tail, before what is in a Simple slot is sent. Pairs with the release in `publish`.
    pub const TAIL: Ordering = Ordering::Acquire;
    /// The flags of lines: [`LINES`] comes after them.
    pub const FLAG: Ordering = Ordering::Relaxed;
    /// A fence once the flags are right, before the lines are sent. Pairs with the release of each flag in `st_line`
    /// (LL128); where data and flag are one word (LL), none is needed.
    pub const LINES: Ordering = Ordering::Acquire;
    /// The head: a slot is sent, and the kernel's again. Pairs with the acquire in `has_credit`.
    pub const HEAD: Ordering = Ordering::Release;
    /// The tail of the signatures, before one is sent. Pairs with the release in `write_signature`.
    pub const SIGNATURES: Ordering = Ordering::Acquire;
    /// What is acknowledged of them: a signature is sent. Pairs with the acquire in `can_tell`.
    pub const ACKNOWLEDGED: Ordering = Ordering::Release;
}

/// Of [`Receiving`](super::Receiving), which plays the sender.
pub mod receiving {
    use super::Ordering;

    /// The head, before a slot is filled again. Pairs with the release in `give_credit`: the kernel's reads are over.
    pub const HEAD: Ordering = Ordering::Acquire;
    /// The tail: a slot is filled, whatever the protocol. Pairs with the acquire in `has_tail`.
    pub const TAIL: Ordering = Ordering::Release;
    /// What is acknowledged of the signatures, before an entry is filled again. Pairs with the release in `compare`: the
    /// kernel has read what was there.
    pub const ACKNOWLEDGED: Ordering = Ordering::Acquire;
    /// The tail of the signatures: one has come. Pairs with the acquire in `can_hear`.
    pub const SIGNATURES: Ordering = Ordering::Release;
}

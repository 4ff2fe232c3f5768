//! The memory orders with which a proxy reads and writes what it shares with kernels, each with its partner in the
//! device's `prims`.
//!
//! `tests/fifo_model` explores a model that is made with these constants, and shows that none of them can be weaker.

use std::sync::atomic::Ordering;

/// A word that only the proxy writes.
pub const OWN: Ordering = Ordering::Relaxed;

/// Orders of [`Sending`](super::Sending), which plays the receiver towards the kernel.
pub mod sending {
    use super::Ordering;

    /// The load of a step FIFO entry. It orders nothing: what is read after it has an order of its own.
    pub const ENTRY: Ordering = Ordering::Relaxed;
    /// The load of the tail, before a Simple slot is sent. Pairs with the release in `post_tail`.
    pub const TAIL: Ordering = Ordering::Acquire;
    /// The loads of the lines' flags, which the fence [`LINES`] follows.
    pub const FLAG: Ordering = Ordering::Relaxed;
    /// The fence after all flags are right, before the lines are sent. Pairs with the release of each flag in `st_line`
    /// (LL128); where data and flag are one word (LL), none is needed.
    pub const LINES: Ordering = Ordering::Acquire;
    /// The store of the head, after a slot is sent: it gives the slot back to the kernel. Pairs with the acquire in `has_credit`.
    pub const HEAD: Ordering = Ordering::Release;
    /// The load of the signatures' tail, before one is sent. Pairs with the release in `write_signature`.
    pub const SIGNATURES: Ordering = Ordering::Acquire;
    /// The store of the acknowledged signatures, after one is sent. Pairs with the acquire in `has_signature_room`.
    pub const ACKNOWLEDGED: Ordering = Ordering::Release;
}

/// Orders of [`Receiving`](super::Receiving), which plays the sender towards the kernel.
pub mod receiving {
    use super::Ordering;

    /// The load of the head, before a slot is filled again. Pairs with the release in `post_head`: the kernel has read the slot.
    pub const HEAD: Ordering = Ordering::Acquire;
    /// The store of the tail, after a slot is filled, in every protocol. Pairs with the acquire in `has_tail`.
    pub const TAIL: Ordering = Ordering::Release;
    /// The load of the acknowledged signatures, before an entry is filled again. Pairs with the release in `check_signature`: the
    /// kernel has read the entry.
    pub const ACKNOWLEDGED: Ordering = Ordering::Acquire;
    /// The store of the signatures' tail, after one has arrived. Pairs with the acquire in `has_signature`.
    pub const SIGNATURES: Ordering = Ordering::Release;
}

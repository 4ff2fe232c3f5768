//! The memory orders with which the proxy reads and writes what it shares with users' kernels, each with its partner in the device's
//! `device_comm`.
//!
//! `tests/fifo_model` explores a model that is made with these constants, and shows that none of them can be weaker.

use std::sync::atomic::Ordering;

/// A word that only the proxy writes.
pub const OWN: Ordering = Ordering::Relaxed;
/// The load of a request's number. Pairs with the release in `BlockComm::request`: the rest of the request and the data that it names are
/// there.
pub const REQUEST: Ordering = Ordering::Acquire;
/// The loads of the rest of a request, which [`REQUEST`] orders.
pub const FIELD: Ordering = Ordering::Relaxed;
/// The store of how many requests are done. Pairs with the acquires in `BlockComm::request` and `BlockComm::flush`: the request has been
/// read, and its data sent.
pub const DONE: Ordering = Ordering::Release;
/// The store of a signal's or a barrier's word. Pairs with the acquires in `BlockComm::wait_for` and `BlockComm::meet`: the data before it
/// is in its window.
pub const WORD: Ordering = Ordering::Release;

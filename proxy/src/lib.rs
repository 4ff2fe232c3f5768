//! The proxy thread and its networks: what moves data that no kernel can.
//!
//! ```text
//! thread      Proxy: one thread that makes steps of operations, round-robin, and sleeps when there are none
//! connection  what it does with a kernel's slots: steps, credits, and how connections are made
//! net         Net: a network that moves messages: over sockets, by RDMA, by a plugin, in the process; with faults
//! puts        what users' kernels put to ranks on other nodes
//! collnet     CollNet: a network that reduces; in software for tests
//! error       what goes wrong on a network
//! ```
//!
//! This crate does not know communicators: an operation is whatever [`Operation::progress`] does.

pub mod collnet;
pub mod connection;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod net;
pub mod puts;
mod sync;
mod thread;

pub use error::NetError;
pub use thread::{Operation, Progress, Proxy, round};

//! Connections over TCP between ends that prove that they know the group's secret.
//!
//! ```text
//! door      where others call             greeting  the way to trust, in steps
//! call      the same from the other side  auth      proofs
//! stream    sockets that never wait       wire      what is said, as bytes
//! ```
//!
//! A connection has a first socket, its control socket, and as many more as the door's handle says. Networks that move data
//! by other means have only the first: to tell each other where, and to learn that the other end is gone.

mod auth;
#[path = "connector.rs"]
mod call;
#[path = "acceptor.rs"]
mod door;
#[path = "../../../../host/handshake/src/connector.rs"]
mod greeting;
pub(in crate::net) mod stream;
#[path = "../../../../host/handshake/src/wire.rs"]
mod wire;

use std::net::{IpAddr, SocketAddr};

use socket2::Socket;

pub(in crate::net) use call::Call;
pub(in crate::net) use door::Door;
pub(in crate::net) use wire::{Handle, Malformed, Reader, fields};

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As in `/sys/class/net`.
    pub name: String,
    /// The address that others reach it at.
    pub address: IpAddr,
    /// The interface's number, for an IPv6 address that is good on its link only; else 0.
    pub scope_id: u32,
}

/// The sockets of a connection, both ends of which have proven themselves.
pub(in crate::net) struct Sockets {
    pub(in crate::net) peer: SocketAddr,
    pub(in crate::net) control: Socket,
    /// As many as the handle says.
    pub(in crate::net) more: Vec<Socket>,
}

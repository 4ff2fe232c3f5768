//! Connections over TCP of networks: several sockets each, all of which are authenticated.
//!
//! ```text
//! acceptor   a listener: the sockets of its connections     handle  what a listener tells connectors
//! connector  the sockets of a connection that is being made
//! ```
//!
//! How two ends prove themselves on a socket is [`ferroccl_handshake`]'s. A connection has a first socket, its control socket,
//! and as many more as the listener's handle says. Networks that move data by other means have only the control socket: to
//! exchange what the connection needs, and to notice that the peer is gone.

mod acceptor;
mod connector;
mod handle;

use std::net::{IpAddr, SocketAddr};

use ferroccl_handshake::{Key, Nonce, Subject};
use socket2::Socket;

pub(in crate::net) use acceptor::SocketsAcceptor;
pub(in crate::net) use connector::SocketsConnector;
pub(in crate::net) use ferroccl_handshake::stream;
pub(in crate::net) use ferroccl_handshake::wire::{Malformed, Reader, fields};
pub(in crate::net) use handle::Handle;

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

/// Which socket of which connection a socket is: the subject of its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketId {
    /// 0 is the control socket.
    socket: u16,
    /// How many sockets the connection has.
    sockets: u16,
    /// The connection: a random number.
    connection: u64,
}

impl SocketId {
    fn encode(self) -> Subject {
        let SocketId { socket, sockets, connection } = self;
        fields(&[&socket.to_le_bytes(), &sockets.to_le_bytes(), &connection.to_le_bytes()])
    }

    fn decode(subject: &Subject) -> Result<SocketId, Malformed> {
        let mut reader = Reader(subject);
        Ok(SocketId { socket: reader.u16()?, sockets: reader.u16()?, connection: reader.u64()? })
    }
}

/// The key of connections to one listener of a network.
fn key(net: &str, secret: &[u8; 32], handle: &Nonce) -> Key {
    Key::derive(secret, &format!("network {net}"), handle)
}

/// What fuzzing gives the formats of connections over TCP.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::{Handle, SocketId};
    use crate::net::MAX_HANDLE;

    /// Bytes as a handle, and as the subject of a handshake.
    pub(crate) fn hellos(data: &[u8]) {
        if let Ok(handle) = Handle::decode(data) {
            let bytes = handle.encode();
            assert!(bytes.len() <= MAX_HANDLE);
            assert_eq!(bytes, data[..bytes.len()], "one handle, one spelling");
        }
        if let Some(subject) = data.first_chunk() {
            let id = SocketId::decode(subject).unwrap();
            assert_eq!(id.encode(), *subject);
        }
    }
}

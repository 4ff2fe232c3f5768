//! The sockets of a connection that is being made.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferroccl_handshake::Connector;
use socket2::Socket;

use super::handle::Handle;
use super::{Interface, SocketId, Sockets, key, stream};

/// The connecting end of a connection.
pub(in crate::net) struct SocketsConnector {
    peer: SocketAddr,
    /// The control socket, and then the others.
    sockets: Vec<(Connector, Option<Socket>)>,
    timeout: Duration,
    since: Instant,
}

impl SocketsConnector {
    /// A connection of a network to the listener that has this handle; through an interface, if it leads there.
    pub(in crate::net) fn new(
        net: &'static str,
        mut handle: Handle,
        interface: &Interface,
        secret: &[u8; 32],
        timeout: Duration,
    ) -> io::Result<SocketsConnector> {
        // The listener does not know which of our interfaces leads to its link.
        if let (SocketAddr::V6(to), 1..) = (&mut handle.address, interface.scope_id)
            && to.ip().is_unicast_link_local()
        {
            to.set_scope_id(interface.scope_id);
        }
        let peer = handle.address;
        let from = stream::with_scope(interface.address, 0, interface.scope_id);
        let leads =
            from.is_ipv4() == peer.is_ipv4() && from.ip().is_loopback() == peer.ip().is_loopback();
        let from = leads.then_some(from);
        let connection = getrandom::u64().map_err(io::Error::other)?;
        let n = handle.more as u16 + 1;
        let key = key(net, secret, &handle.nonce);
        let sockets = (0..n)
            .map(|socket| {
                let id = SocketId { socket, sockets: n, connection };
                Ok((Connector::new(peer, from, id.encode(), &key)?, None))
            })
            .collect::<io::Result<_>>()?;
        Ok(SocketsConnector { peer, sockets, timeout, since: Instant::now() })
    }

    /// The sockets, once all are authenticated; else why there will be none.
    pub(in crate::net) fn poll(&mut self) -> Result<Option<Sockets>, String> {
        let peer = self.peer;
        for (connector, socket) in &mut self.sockets {
            if socket.is_none() {
                let connected = connector.step().map_err(|error| format!("to {peer}: {error}"))?;
                *socket = connected.map(|connected| connected.socket);
            }
        }
        if let Some((missing, _)) = self.sockets.iter().find(|(_, socket)| socket.is_none()) {
            if self.since.elapsed() < self.timeout {
                return Ok(None);
            }
            return Err(format!("to {peer}: {}, for {:?}", missing.missing(), self.timeout));
        }
        let mut sockets = std::mem::take(&mut self.sockets).into_iter().filter_map(|(_, s)| s);
        let control = sockets.next().ok_or("is over")?;
        Ok(Some(Sockets { peer, control, more: sockets.collect() }))
    }
}

//! A call: the sockets of a connection that is being made.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::auth::Key;
use super::greeting::{Outgoing, nonce};
use super::wire::{Handle, Hello};
use super::{Interface, Sockets, stream};

/// The calling end.
pub(in crate::net) struct Call {
    peer: SocketAddr,
    key: Key,
    /// The control socket, and then the others.
    sockets: Vec<(Outgoing, Option<Socket>)>,
    patience: Duration,
    since: Instant,
}

impl Call {
    /// Of a network, at the door that has this handle; through an interface, if it leads there.
    pub(in crate::net) fn new(
        net: &'static str,
        mut handle: Handle,
        interface: &Interface,
        secret: &[u8; 32],
        patience: Duration,
    ) -> io::Result<Call> {
        // Which of our interfaces leads to a link, the other end does not know.
        if let (SocketAddr::V6(to), 1..) = (&mut handle.address, interface.scope_id)
            && to.ip().is_unicast_link_local()
        {
            to.set_scope_id(interface.scope_id);
        }
        let peer = handle.address;
        let from = stream::with_scope(interface.address, 0, interface.scope_id);
        let leads =
            from.is_ipv4() == peer.is_ipv4() && from.ip().is_loopback() == peer.ip().is_loopback();
        let (connection, n) = (random()?, handle.more as u16 + 1);
        let key = Key::new(net, secret, &handle.cookie);
        let mut sockets = Vec::with_capacity(n.into());
        for socket in 0..n {
            let hello = Hello { socket, sockets: n, connection, nonce: nonce()? };
            sockets.push((Outgoing::new(peer, leads.then_some(from), &hello, &key), None));
        }
        Ok(Call { peer, key, sockets, patience, since: Instant::now() })
    }

    /// The sockets, once all are here and trusted; else why there will be none.
    pub(in crate::net) fn poll(&mut self) -> Result<Option<Sockets>, String> {
        let peer = self.peer;
        for (outgoing, socket) in &mut self.sockets {
            if socket.is_none() {
                *socket =
                    outgoing.step(&self.key).map_err(|refusal| format!("to {peer}: {refusal}"))?;
            }
        }
        if let Some((missing, _)) = self.sockets.iter().find(|(_, socket)| socket.is_none()) {
            if self.since.elapsed() < self.patience {
                return Ok(None);
            }
            return Err(format!("to {peer}: {}, for {:?}", missing.missing(), self.patience));
        }
        let mut sockets = std::mem::take(&mut self.sockets).into_iter().filter_map(|(_, s)| s);
        let control = sockets.next().ok_or("is over")?;
        Ok(Some(Sockets { peer, control, more: sockets.collect() }))
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

//! A connection that is being made.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::auth::Key;
use super::error;
use super::greeting::{Outgoing, nonce};
use super::lanes::Way;
use super::line::Line;
use super::send::Sender;
use super::wire::{Handle, Hello};
use crate::NetError;
use crate::net::{self, SendComm};

pub(super) struct Connecting {
    peer: SocketAddr,
    key: Key,
    /// The control socket, and then the data sockets.
    sockets: Vec<(Outgoing, Option<Socket>)>,
    threads: usize,
    patience: Duration,
    since: Instant,
}

impl Connecting {
    /// To this listener; from an address if that matters.
    pub(super) fn new(
        handle: &Handle,
        from: Option<SocketAddr>,
        secret: &[u8; 32],
        threads: usize,
        patience: Duration,
    ) -> io::Result<Connecting> {
        let peer = handle.address;
        let (connection, n) = (random()?, handle.sockets as u16 + 1);
        let key = Key::new(secret, &handle.cookie);
        let mut sockets = Vec::with_capacity(n.into());
        for socket in 0..n {
            let hello = Hello { socket, sockets: n, connection, nonce: nonce()? };
            sockets.push((Outgoing::new(peer, from, &hello, &key), None));
        }
        Ok(Connecting { peer, key, sockets, threads, patience, since: Instant::now() })
    }
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

impl net::Connecting for Connecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let peer = self.peer;
        for (outgoing, socket) in &mut self.sockets {
            if socket.is_none() {
                *socket = outgoing
                    .step(&self.key)
                    .map_err(|refusal| error("connect", format!("to {peer}: {refusal}")))?;
            }
        }
        if let Some((missing, _)) = self.sockets.iter().find(|(_, socket)| socket.is_none()) {
            if self.since.elapsed() < self.patience {
                return Ok(None);
            }
            let reason = format!("to {peer}: {}, for {:?}", missing.missing(), self.patience);
            return Err(error("connect", reason));
        }
        let mut sockets = std::mem::take(&mut self.sockets).into_iter().filter_map(|(_, s)| s);
        let Some(control) = sockets.next() else {
            return Err(error("connect", "is over"));
        };
        let line = Line::new(peer, control, sockets.collect(), self.threads, Way::Out);
        Ok(Some(Box::new(Sender::new(line))))
    }
}

//! A listener: authenticated sockets become connections.
//!
//! ```text
//! authenticated sockets ─► gathering: the sockets of a connection ─► ready
//!                              └► given up, logged
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferroccl_handshake::{Acceptor, Authenticated, Event, LogLimit, MAX_PENDING, nonce};
use socket2::Socket;
use tracing::{debug, warn};

use super::handle::{BYTES, Handle};
use super::{Interface, SocketId, Sockets, key, stream};

/// Connections that wait to be accepted by the system: NCCL's (`misc/socket.cc`); the system may have a lower limit.
const BACKLOG: i32 = 16384;

/// A listening socket, and the connections whose sockets have not all come.
pub(in crate::net) struct SocketsAcceptor {
    /// The network's name, for the log.
    net: &'static str,
    acceptor: Acceptor,
    handle: [u8; BYTES],
    /// Sockets of a connection beyond the first.
    more: usize,
    /// How long it may take to make a connection.
    timeout: Duration,
    gathering: HashMap<u64, Gathering>,
    ready: VecDeque<Sockets>,
    log: LogLimit,
}

/// The sockets of a connection that have come so far.
struct Gathering {
    sockets: Vec<Option<Socket>>,
    peer: SocketAddr,
    since: Instant,
}

impl SocketsAcceptor {
    /// A listener for connections of `1 + more` sockets, between ends that know the `secret`; making one may take `timeout`.
    pub(in crate::net) fn new(
        net: &'static str,
        interface: &Interface,
        secret: &[u8; 32],
        more: usize,
        timeout: Duration,
    ) -> io::Result<SocketsAcceptor> {
        let address = stream::with_scope(interface.address, 0, interface.scope_id);
        let socket = stream::new(&address)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let (nonce, address) = (nonce()?, stream::internet(&socket.local_addr()?)?);
        debug!("NET/{net}: listens at {address}");
        Ok(SocketsAcceptor {
            net,
            acceptor: Acceptor::new(socket, key(net, secret, &nonce), timeout),
            handle: Handle { address, more: more as u32, nonce }.encode(), // at most 64
            more,
            timeout,
            gathering: HashMap::new(),
            ready: VecDeque::new(),
            log: LogLimit::default(),
        })
    }

    /// What connectors need to know.
    pub(in crate::net) fn handle(&self) -> &[u8] {
        &self.handle
    }

    /// The sockets of a connection, once all are authenticated.
    pub(in crate::net) fn poll(&mut self) -> io::Result<Option<Sockets>> {
        let timeout = self.timeout;
        // A bound, so that strangers that come without end do not keep us.
        for _ in 0..MAX_PENDING {
            let Some(event) = self.acceptor.poll()? else { break };
            match event {
                Event::Authenticated(one) => self.gather(one),
                Event::Refused { peer, error } => {
                    self.warn(format_args!("refused {peer}: {error}"));
                }
            }
        }
        let is_over = |_: &u64, gathering: &mut Gathering| gathering.since.elapsed() >= timeout;
        let over: Vec<_> = self.gathering.extract_if(is_over).collect();
        for (_, Gathering { sockets, peer, .. }) in over {
            let (came, n) = (sockets.iter().flatten().count(), sockets.len());
            self.warn(format_args!("gave up {peer}: {came} of {n} sockets came in {timeout:?}"));
        }
        Ok(self.ready.pop_front())
    }

    /// Logs who is turned away, as far as there is room for it.
    fn warn(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(unlogged) = self.log.line(Instant::now()) {
            warn!("NET/{}: {what}{unlogged}", self.net);
        }
    }

    /// Puts a socket to the others of its connection.
    fn gather(&mut self, Authenticated { socket, peer, subject, since, .. }: Authenticated) {
        let n = self.more + 1;
        let id = match SocketId::decode(&subject) {
            Ok(id) if usize::from(id.sockets) == n => id,
            Ok(id) => {
                let sockets = id.sockets;
                return self.warn(format_args!("refused {peer}: it has {sockets} sockets, we {n}"));
            }
            Err(error) => {
                return self.warn(format_args!("refused {peer}: its subject {error}"));
            }
        };
        let new = || Gathering { sockets: (0..n).map(|_| None).collect(), peer, since };
        let gathering = self.gathering.entry(id.connection).or_insert_with(new);
        let refused = match gathering.sockets.get_mut(usize::from(id.socket)) {
            Some(place @ None) => {
                *place = Some(socket);
                None
            }
            Some(Some(_)) => Some(format!("socket {} came twice", id.socket)),
            None => Some(format!("socket {} of {n}", id.socket)),
        };
        let is_whole = gathering.sockets.iter().all(Option::is_some);
        if let Some(why) = refused {
            self.warn(format_args!("refused {peer}: {why}"));
        }
        if is_whole && let Some(gathering) = self.gathering.remove(&id.connection) {
            let mut sockets = gathering.sockets.into_iter().flatten();
            if let Some(control) = sockets.next() {
                let (peer, more) = (gathering.peer, sockets.collect());
                self.ready.push_back(Sockets { peer, control, more });
            }
        }
    }
}

//! Where others call.
//!
//! ```text
//! accept ─► half-open: greeted a step at a time ─► gathering: the sockets of a connection ─► ready
//!               └► refused, logged                      └► given up, logged
//! ```
//!
//! Nobody is waited for: each call takes every socket as far as it goes. A stranger takes one of [`HALF_OPEN`] places until
//! a connection must have been made, or for [`HUSH`] when others wait for it.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket;
use tracing::{debug, warn};

use super::auth::Key;
use super::greeting::{Incoming, Refusal, Step, nonce};
use super::stream;
use super::wire::{HANDLE, Handle, Hello};
use super::{Interface, Sockets};

/// Sockets that are being greeted, at most; more wait in the system's queue. Not measured: the sockets of some ranks that
/// connect at once, and a part of the files that a process may have open, which are 1024 as a rule.
pub(super) const HALF_OPEN: usize = 256;

/// When all places are taken, one that has said nothing of ours for so long makes room; one of ours tries again. Not
/// measured: far longer than the way over a network.
const HUSH: Duration = Duration::from_secs(1);

/// Connections that wait to be accepted by the system: NCCL's (`misc/socket.cc`); the system may have a lower limit.
const BACKLOG: i32 = 16384;

/// A listening socket, and who has called.
pub(in crate::net) struct Door {
    /// The network's name, for the log.
    net: &'static str,
    socket: Socket,
    handle: [u8; HANDLE],
    key: Key,
    /// Sockets of a connection beyond the first.
    more: usize,
    /// How long it may take to make a connection.
    patience: Duration,
    half_open: VecDeque<Incoming>,
    gathering: HashMap<u64, Gathering>,
    ready: VecDeque<Sockets>,
}

/// The sockets of a connection that have come so far.
struct Gathering {
    sockets: Vec<Option<Socket>>,
    peer: SocketAddr,
    since: Instant,
}

impl Door {
    /// Opens one for connections of `1 + more` sockets, between ends that know the `secret`; how long one may take is the
    /// `patience`.
    pub(in crate::net) fn new(
        net: &'static str,
        interface: &Interface,
        secret: &[u8; 32],
        more: usize,
        patience: Duration,
    ) -> io::Result<Door> {
        let address = stream::with_scope(interface.address, 0, interface.scope_id);
        let socket = stream::new(&address)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let (cookie, address) = (nonce()?, stream::internet(&socket.local_addr()?)?);
        debug!("NET/{net}: listens at {address}");
        Ok(Door {
            net,
            socket,
            handle: Handle { address, more: more as u32, cookie }.encode(), // at most 64
            key: Key::new(net, secret, &cookie),
            more,
            patience,
            half_open: VecDeque::new(),
            gathering: HashMap::new(),
            ready: VecDeque::new(),
        })
    }

    /// What callers need to know.
    pub(in crate::net) fn handle(&self) -> &[u8] {
        &self.handle
    }

    /// The sockets of a connection, once all are here and trusted.
    pub(in crate::net) fn answer(&mut self) -> io::Result<Option<Sockets>> {
        self.take()?;
        self.greet();
        let (net, patience) = (self.net, self.patience);
        self.gathering.retain(|_, gathering| {
            let keep = gathering.since.elapsed() < patience;
            if !keep {
                let came = gathering.sockets.iter().flatten().count();
                let (peer, n) = (gathering.peer, gathering.sockets.len());
                warn!("NET/{net}: gave up {peer}: {came} of {n} sockets came in {patience:?}");
            }
            keep
        });
        Ok(self.ready.pop_front())
    }

    /// Takes sockets from the system, as long as there is room.
    fn take(&mut self) -> io::Result<()> {
        loop {
            if self.half_open.len() >= HALF_OPEN && !self.make_room() {
                return Ok(());
            }
            match self.socket.accept() {
                Ok((socket, peer)) => match Incoming::new(socket, &peer) {
                    Ok(incoming) => self.half_open.push_back(incoming),
                    Err(e) => {
                        debug!("NET/{}: {peer:?} is gone before it was greeted: {e}", self.net);
                    }
                },
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if is_the_connections(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Refuses the first that has been nobody for long.
    fn make_room(&mut self) -> bool {
        let nobody = |one: &Incoming| one.is_nobody() && one.since.elapsed() >= HUSH;
        let Some(place) = self.half_open.iter().position(nobody) else { return false };
        if let Some(one) = self.half_open.remove(place) {
            refused(self.net, one.peer, &Refusal::Silent(one.since.elapsed()));
        }
        true
    }

    /// Takes each greeting a step on.
    fn greet(&mut self) {
        for _ in 0..self.half_open.len() {
            let Some(mut one) = self.half_open.pop_front() else { break };
            // Whoever came late to ask must still hear what has come in time: the clock is last.
            match one.step(&self.key) {
                Step::Proven(hello) => self.gather(&hello, one),
                Step::Refused(refusal) => {
                    refused(self.net, one.peer, &refusal);
                    if one.takes_leave() {
                        self.half_open.push_back(one);
                    }
                }
                Step::Pending if one.since.elapsed() < self.patience => {
                    self.half_open.push_back(one);
                }
                Step::Pending if !one.takes_leave() => {
                    refused(self.net, one.peer, &Refusal::Silent(self.patience));
                }
                Step::Pending | Step::Gone => {}
            }
        }
    }

    /// Puts a socket to the others of its connection.
    fn gather(&mut self, hello: &Hello, one: Incoming) {
        let (net, peer, n) = (self.net, one.peer, self.more + 1);
        if usize::from(hello.sockets) != n {
            warn!("NET/{net}: refused {peer}: it has {} sockets, we {n}", hello.sockets);
            return;
        }
        let since = one.since;
        let fresh = || Gathering { sockets: (0..n).map(|_| None).collect(), peer, since };
        let gathering = self.gathering.entry(hello.connection).or_insert_with(fresh);
        match gathering.sockets.get_mut(usize::from(hello.socket)) {
            Some(place @ None) => *place = Some(one.into_socket()),
            Some(Some(_)) => {
                warn!("NET/{net}: refused {peer}: socket {} came twice", hello.socket);
            }
            None => warn!("NET/{net}: refused {peer}: socket {} of {n}", hello.socket),
        }
        if gathering.sockets.iter().all(Option::is_some)
            && let Some(gathering) = self.gathering.remove(&hello.connection)
        {
            let mut sockets = gathering.sockets.into_iter().flatten();
            if let Some(control) = sockets.next() {
                let (peer, more) = (gathering.peer, sockets.collect());
                self.ready.push_back(Sockets { peer, control, more });
            }
        }
    }
}

fn refused(net: &str, peer: SocketAddr, refusal: &Refusal) {
    warn!("NET/{net}: refused {peer}: {refusal}");
}

/// Whether an error of `accept` is one of the connection that it was to give; as of accept(2).
fn is_the_connections(error: &io::Error) -> bool {
    let system = [
        libc::ECONNABORTED,
        libc::EINTR,
        libc::EPERM,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::ENONET,
        libc::EOPNOTSUPP,
    ];
    error.raw_os_error().is_some_and(|code| system.contains(&code))
}

//! Where others connect to.
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
use super::lanes::Way;
use super::line::Line;
use super::recv::Receiver;
use super::wire::{HANDLE, Handle, Hello};
use super::{error, stream};
use crate::NetError;
use crate::net::{self, RecvComm};

/// Sockets that are being greeted, at most; more wait in the system's queue. Not measured: the sockets of some ranks that
/// connect at once, and a part of the files that a process may have open, which are 1024 as a rule.
pub(super) const HALF_OPEN: usize = 256;

/// When all places are taken, one that has said nothing of ours for so long makes room; one of ours tries again. Not
/// measured: far longer than the way over a network.
const HUSH: Duration = Duration::from_secs(1);

/// Connections that wait to be accepted by the system: NCCL's (`misc/socket.cc`); the system may have a lower limit.
const BACKLOG: i32 = 16384;

pub(super) struct Listener {
    socket: Socket,
    handle: [u8; HANDLE],
    key: Key,
    /// Data sockets of a connection.
    data: usize,
    threads: usize,
    /// How long it may take to make a connection.
    patience: Duration,
    half_open: VecDeque<Incoming>,
    gathering: HashMap<u64, Gathering>,
    ready: VecDeque<Line>,
}

/// The sockets of a connection that have come so far.
struct Gathering {
    sockets: Vec<Option<Socket>>,
    peer: SocketAddr,
    since: Instant,
}

impl Listener {
    pub(super) fn new(
        address: SocketAddr,
        secret: &[u8; 32],
        (data, threads): (usize, usize),
        patience: Duration,
    ) -> io::Result<Listener> {
        let socket = stream::new(&address)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let (cookie, address) = (nonce()?, stream::internet(&socket.local_addr()?)?);
        debug!("NET/Socket: listens at {address}");
        let sockets = data as u32; // at most 64
        Ok(Listener {
            socket,
            handle: Handle { address, sockets, cookie }.encode(),
            key: Key::new(secret, &cookie),
            data,
            threads,
            patience,
            half_open: VecDeque::new(),
            gathering: HashMap::new(),
            ready: VecDeque::new(),
        })
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
                    Err(e) => debug!("NET/Socket: {peer:?} is gone before it was greeted: {e}"),
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
            refused(one.peer, &Refusal::Silent(one.since.elapsed()));
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
                    refused(one.peer, &refusal);
                    if one.takes_leave() {
                        self.half_open.push_back(one);
                    }
                }
                Step::Pending if one.since.elapsed() < self.patience => {
                    self.half_open.push_back(one);
                }
                Step::Pending if !one.takes_leave() => {
                    refused(one.peer, &Refusal::Silent(self.patience));
                }
                Step::Pending | Step::Gone => {}
            }
        }
    }

    /// Puts a socket to the others of its connection.
    fn gather(&mut self, hello: &Hello, one: Incoming) {
        let (peer, n) = (one.peer, self.data + 1);
        if usize::from(hello.sockets) != n {
            warn!("NET/Socket: refused {peer}: it has {} sockets, we {n}", hello.sockets);
            return;
        }
        let since = one.since;
        let fresh = || Gathering { sockets: (0..n).map(|_| None).collect(), peer, since };
        let gathering = self.gathering.entry(hello.connection).or_insert_with(fresh);
        match gathering.sockets.get_mut(usize::from(hello.socket)) {
            Some(place @ None) => *place = Some(one.into_socket()),
            Some(Some(_)) => {
                warn!("NET/Socket: refused {peer}: socket {} came twice", hello.socket);
            }
            None => warn!("NET/Socket: refused {peer}: socket {} of {n}", hello.socket),
        }
        if gathering.sockets.iter().all(Option::is_some)
            && let Some(gathering) = self.gathering.remove(&hello.connection)
        {
            let mut sockets = gathering.sockets.into_iter().flatten();
            if let Some(control) = sockets.next() {
                let (peer, data) = (gathering.peer, sockets.collect());
                let line = Line::new(peer, control, data, self.threads, Way::In);
                self.ready.push_back(line);
            }
        }
    }
}

fn refused(peer: SocketAddr, refusal: &Refusal) {
    warn!("NET/Socket: refused {peer}: {refusal}");
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

impl net::Listener for Listener {
    fn handle(&self) -> &[u8] {
        &self.handle
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        self.take().map_err(|e| error("accept", e.to_string()))?;
        self.greet();
        let patience = self.patience;
        self.gathering.retain(|_, gathering| {
            let keep = gathering.since.elapsed() < patience;
            if !keep {
                let came = gathering.sockets.iter().flatten().count();
                let (peer, n) = (gathering.peer, gathering.sockets.len());
                warn!("NET/Socket: gave up {peer}: {came} of {n} sockets came in {patience:?}");
            }
            keep
        });
        Ok(self.ready.pop_front().map(|line| Box::new(Receiver::new(line)) as _))
    }
}

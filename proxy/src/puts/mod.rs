//! Puts: what a kernel of the user's asks the proxy to send to ranks on other nodes.
//!
//! The kernel writes requests into words of the host's memory, and waits in other words of it for what other ranks have told
//! ([`DeviceComm::network`]). [`Puts`] takes the requests, and plays the other ranks' part in those words:
//!
//! ```text
//! kernel ─ request ─► Puts ─► Outgoing ═ headers ═► Incoming ─► window, then signal or arrival ─► kernel
//!        ◄─ done ──────┘               ═ data ════►
//! ```
//!
//! A rank has two connections to each rank that it puts to. By the first it sends a [`PutHeader`] for each request; by the other the
//! data, in pieces. The receiver has buffers for several headers at any time. When a header has come, the receiver gives the network the
//! place in the window as the next buffer of the other connection, so that data needs no copy. Signals are told in the order of the
//! headers, each when all data before it has arrived. So the order of a rank's requests to one rank is kept; between ranks there is none.
//!
//! What a header says is looked at before anything is written: an impossible one is an error of the connection. A rank that ends in good
//! order says so by a last header ([`Puts::close`]): a connection that ends without is an error, too.
//!
//! ```text
//! header      what goes over the first connection       outgoing, incoming   the two ends of a rank's connections
//! windows     the memory of windows, registered         orders               the memory orders, each with its partner
//! ```

mod header;
mod incoming;
pub mod orders;
mod outgoing;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::abi::{DeviceComm, PutRequest};
use tracing::warn;

pub use header::{PUT_HEADER_BYTES, PutHeader, PutKind};
pub use windows::{FindWindow, PutAccess, PutWindow, StagedMemory};

use self::incoming::Incoming;
use self::outgoing::{Outgoing, Payload};
use crate::connection::{Hello, HelloRecv};
use crate::net::{Listener, Net};
use crate::{NetError, Progress};

/// Headers under way on a connection, at most: what a receiver has buffers for.
const HEADERS: usize = 16;
/// Accepted connections whose hello has not come, at most.
const MAX_UNIDENTIFIED: usize = 64;
/// Requests that are taken in one step, at most: other operations have their turn.
const MAX_TAKEN: u32 = 64;

/// Who a [`Puts`] is of, and how its connections are made.
pub struct PutsConfig {
    /// The network.
    pub net: Arc<dyn Net>,
    /// The communicator: a number that its ranks share, and no other.
    pub group: u64,
    /// Accepts the other ranks' connections.
    pub listener: Box<dyn Listener>,
    /// Our device.
    pub device: usize,
    /// By rank, the handle of its listener; `None` where the rank's memory is reached.
    pub routes: Vec<Option<Vec<u8>>>,
    /// What kernels have; its words are in the host's memory.
    pub comm: DeviceComm,
    /// Bytes of a piece of data: on all ranks the same.
    pub piece: usize,
    /// Finds a window of this rank by its number.
    pub find: FindWindow,
    /// How many windows are gone by now.
    pub gone: Arc<AtomicU64>,
}

impl fmt::Debug for PutsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutsConfig").field("comm", &self.comm).finish_non_exhaustive()
    }
}

/// The puts of one rank's device communicator.
pub struct Puts {
    config: PutsConfig,
    outgoing: BTreeMap<u32, Outgoing>,
    incoming: BTreeMap<u32, Incoming>,
    unidentified: Vec<HelloRecv>,
    /// Requests that have been taken.
    taken: u64,
    /// Requests that are done, without a gap.
    done: u64,
    /// Those behind that have been taken, each with whether it is done.
    open: VecDeque<bool>,
    /// How many windows were gone when connections last let go of them.
    gone: u64,
    /// What is wrong with a request of a kernel, or the listener.
    failed: Option<PutFailure>,
    closing: bool,
}

impl fmt::Debug for Puts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Puts")
            .field("config", &self.config)
            .field("taken", &self.taken)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// What is wrong with the puts of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutFailure {
    /// A kernel of this rank asks for something that cannot be.
    Request(String),
    /// The connection with a rank is broken, or what it has sent is impossible.
    Peer(u32, NetError),
    /// The listener is broken.
    Listener(NetError),
}

impl fmt::Display for PutFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutFailure::Request(reason) => f.write_str(reason),
            PutFailure::Peer(_, error) | PutFailure::Listener(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PutFailure {}

impl Puts {
    /// # Safety
    /// At [`DeviceComm::network`] there are [`DeviceComm::network_words`] words of the host's memory, zero in the beginning, for as long as
    /// the value lives. Kernels access them as `DeviceComm` says. What [`PutsConfig::find`] names is memory of the kind that it says, for
    /// as long as the [`PutWindow`] lives.
    #[must_use]
    pub unsafe fn new(config: PutsConfig) -> Self {
        Puts {
            config,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            unidentified: Vec::new(),
            taken: 0,
            done: 0,
            open: VecDeque::new(),
            gone: 0,
            failed: None,
            closing: false,
        }
    }

    /// Kernels ask for nothing any more, and what others send is of no interest: what was asked for is still sent, and then those that this
    /// rank has connections with are told. All is told when [`Puts::progress`] says [`Progress::Done`].
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        // No kernel runs any more, and what they have asked for last need not be sent yet. What is wrong with it nobody waits for.
        while matches!(self.take(), Ok(true)) {}
        let connected = self.incoming.iter().filter(|(_, link)| !link.has_left());
        let connected: Vec<u32> = connected.map(|(peer, _)| *peer).collect();
        for peer in connected {
            // Who cannot be reached any more need not be told.
            let _ = self.connect(peer);
        }
        self.outgoing.values_mut().for_each(Outgoing::say_bye);
    }

    /// Does what can be done at once. [`Progress::Done`] only once it is [closed](Puts::close).
    ///
    /// # Errors
    /// The first failure, each time again: it goes on with other ranks. That a connection is broken is no failure any more once its rank
    /// has told that it leaves; so who calls this may wait a little for that.
    pub fn progress(&mut self) -> Result<Progress, PutFailure> {
        if self.closing {
            return Ok(self.say_byes());
        }
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        let taken = self.accept().and_then(|accepted| Ok(accepted | self.take()?));
        let mut moved = taken.inspect_err(|failure| self.failed = Some(failure.clone()))?;
        let Puts { config, outgoing, incoming, open, done, .. } = self;
        for link in outgoing.values_mut() {
            moved |= link.progress(&mut |number| {
                if let Some(entry) = open.get_mut(number.wrapping_sub(*done) as usize) {
                    *entry = true;
                }
            });
        }
        for link in incoming.values_mut() {
            moved |= link.progress(config);
        }
        self.look_at_failures()?;
        self.complete();
        self.forget();
        Ok(if moved { Progress::Moved } else { Progress::Idle })
    }

    /// The first connection that is broken though its rank has not left.
    fn look_at_failures(&mut self) -> Result<(), PutFailure> {
        let Puts { outgoing, incoming, open, done, .. } = self;
        for (peer, link) in outgoing {
            let Some(error) = link.failure() else { continue };
            if !incoming.get(peer).is_some_and(Incoming::has_left) {
                return Err(PutFailure::Peer(*peer, error.clone().with_peer(*peer)));
            }
            // It does not want what is left.
            link.give_up(&mut |number| {
                if let Some(entry) = open.get_mut(number.wrapping_sub(*done) as usize) {
                    *entry = true;
                }
            });
        }
        for (peer, link) in incoming {
            if let Some(error) = link.failure() {
                return Err(PutFailure::Peer(*peer, error.clone().with_peer(*peer)));
            }
        }
        Ok(())
    }

    /// Sends what is left to those that are still there.
    fn say_byes(&mut self) -> Progress {
        let mut moved = false;
        self.outgoing.retain(|_, link| {
            moved |= link.progress(&mut |_| {});
            // Who is gone need not be told.
            !link.is_idle() && link.failure().is_none()
        });
        match (self.outgoing.is_empty(), moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            _ => Progress::Idle,
        }
    }

    /// Lets go of windows that are not there any more.
    fn forget(&mut self) {
        // Relaxed: a hint. What is gone is asked for.
        let gone = self.config.gone.load(Ordering::Relaxed);
        if gone == self.gone {
            return;
        }
        self.gone = gone;
        let is_gone = |number| (self.config.find)(number).is_none();
        self.outgoing.values_mut().for_each(|link| link.forget(&is_gone));
        self.incoming.values_mut().for_each(|link| link.forget(&is_gone));
    }

    /// Tells the kernels which requests are done.
    fn complete(&mut self) {
        let before = self.done;
        while self.open.front() == Some(&true) {
            self.open.pop_front();
            self.done += 1;
        }
        if self.done > before {
            // SAFETY: `new`'s contract.
            unsafe { self.config.word(DeviceComm::DONE) }.store(self.done, orders::DONE);
        }
    }

    /// Takes requests of kernels.
    fn take(&mut self) -> Result<bool, PutFailure> {
        let mut taken = 0;
        while taken < MAX_TAKEN {
            let at = self.config.comm.request(self.taken);
            // SAFETY: `new`'s contract.
            let number = unsafe { self.config.word(at) }.load(orders::REQUEST);
            if number != self.taken + 1 {
                break;
            }
            // SAFETY: as above; the kernel does not write them again before they are done.
            let word = |i: usize| unsafe { self.config.word(at + i) }.load(orders::FIELD);
            let (who, index) = (word(1), word(7) as u32);
            let request = PutRequest {
                number,
                kind: who as u32,
                peer: (who >> 32) as u32,
                window: word(2),
                offset: word(3),
                bytes: word(4),
                from: word(5),
                from_offset: word(6),
                index,
                pad: 0,
            };
            self.begin(&request).map_err(|reason| {
                let rank = self.config.comm.rank;
                PutFailure::Request(format!(
                    "a kernel of rank {rank} asks the proxy for what cannot be: {reason}"
                ))
            })??;
            self.taken += 1;
            self.open.push_back(false);
            taken += 1;
        }
        Ok(taken > 0)
    }

    /// Begins with a request; the outer error is what is wrong with it.
    fn begin(&mut self, request: &PutRequest) -> Result<Result<(), PutFailure>, String> {
        let config = &self.config;
        let PutRequest { kind, peer, bytes, from, from_offset, .. } = *request;
        let header = PutHeader::of(request)?;
        header.check_index(&config.comm)?;
        if config.route(peer).is_none() {
            return Err(format!("rank {peer} is not reached by the network"));
        }
        let payload = match kind & (PutRequest::DATA | PutRequest::VALUE) {
            PutRequest::DATA if bytes > 0 => {
                let window =
                    (config.find)(from).ok_or_else(|| format!("there is no window {from}"))?;
                window.check(from, from_offset, bytes)?;
                Payload::Window { number: from, offset: from_offset, window }
            }
            PutRequest::VALUE => Payload::Value(from_offset.to_ne_bytes()),
            _ => Payload::None,
        };
        if let Err(error) = self.connect(peer) {
            return Ok(Err(PutFailure::Peer(peer, error.with_peer(peer))));
        }
        if let Some(link) = self.outgoing.get_mut(&peer) {
            link.push(self.taken, header, payload);
        }
        Ok(Ok(()))
    }

    /// Begins to connect with a rank, if that has not been done.
    fn connect(&mut self, peer: u32) -> Result<(), NetError> {
        let config = &self.config;
        if let (Some(route), Entry::Vacant(vacant)) =
            (config.route(peer), self.outgoing.entry(peer))
        {
            let hello = Hello { group: config.group, from: config.comm.rank, to: peer, index: 0 };
            let route = (config.device, route);
            vacant.insert(Outgoing::new(&config.net, route, hello, config.piece)?);
        }
        Ok(())
    }

    /// Accepts connections and reads their hellos, while there are ranks that have not connected.
    fn accept(&mut self) -> Result<bool, PutFailure> {
        let others = self.config.routes.iter().flatten().count();
        if self.incoming.values().filter(|link| link.is_open()).count() == others {
            return Ok(false);
        }
        let mut moved = false;
        while self.unidentified.len() < MAX_UNIDENTIFIED {
            let Some(comm) = self.config.listener.accept().map_err(PutFailure::Listener)? else {
                break;
            };
            moved = true;
            match HelloRecv::new(comm) {
                Ok(unidentified) => self.unidentified.push(unidentified),
                Err(error) => warn!("{error}"),
            }
        }
        let mut still = Vec::new();
        for mut unidentified in std::mem::take(&mut self.unidentified) {
            match unidentified.progress() {
                Ok(None) => still.push(unidentified),
                Ok(Some(hello)) => {
                    moved = true;
                    if let Err(error) = self.opened(hello, unidentified) {
                        warn!("refused a connection of rank {} for puts: {error}", hello.from);
                    }
                }
                Err(error) => warn!("refused a connection for puts: {error}"),
            }
        }
        self.unidentified = still;
        Ok(moved)
    }

    /// The hello of a connection has come.
    fn opened(&mut self, hello: Hello, unidentified: HelloRecv) -> Result<(), NetError> {
        let name = self.config.net.name();
        let refused = |reason: String| Err(NetError::new(name, "accept", reason));
        if hello.group != self.config.group || hello.to != self.config.comm.rank {
            return refused(format!("it is for rank {} of another group", hello.to));
        }
        if self.config.route(hello.from).is_none() {
            return refused("the rank is not reached by the network".to_owned());
        }
        let piece = self.config.piece;
        let link =
            self.incoming.entry(hello.from).or_insert_with(|| Incoming::new(hello.from, piece));
        link.open(hello.index, unidentified.open()?)
    }
}

impl PutsConfig {
    /// The handle of a rank's listener.
    fn route(&self, rank: u32) -> Option<&[u8]> {
        self.routes.get(rank as usize)?.as_deref()
    }

    /// A word that kernels and the proxy talk by.
    ///
    /// # Safety
    /// [`Puts::new`]'s.
    unsafe fn word(&self, index: usize) -> &AtomicU64 {
        let first = self.comm.network as *mut u64;
        // SAFETY: the caller's; the words are only accessed atomically.
        unsafe { AtomicU64::from_ptr(first.wrapping_add(index)) }
    }
}

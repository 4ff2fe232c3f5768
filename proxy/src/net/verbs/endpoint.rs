//! What both ends of a connection have.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::VerbsConfig;
use super::context::EventSource;
use super::control::{ConnectionInfo, ControlMessage, ControlSocket};
use super::device::{LinkLayer, Port, PortAddress};
use super::memory::{self, MemoryRegion};
use super::queue_pair::{CompletionQueue, QueuePair, WorkCompletion, WrId};
use super::sys;
use super::{NAME, error};
use crate::NetError;
use crate::net::comm_base::CommBase;
use crate::net::registered_memory::RegisteredMemory;
use crate::net::{MemoryHandle, MemoryKind};

/// How often a waiting end reads the control socket, to learn whether its peer is there: a system call, which takes as long
/// as several polls of the completion queue. Not measured; a part of what people notice.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// How long to wait, after the peer has closed, for completions of what the peer has counted as done: they are in the device
/// by then, or on their way back.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes of one write at most, whatever the device would take: half of what a length of 32 bits allows.
const MAX_WRITE: u32 = 1 << 31;

/// The queue pairs of a connection that is being made.
pub(super) struct UnconnectedEndpoint {
    pub(super) port: Arc<Port>,
    pub(super) config: Arc<VerbsConfig>,
    address: PortAddress,
    psn: u32,
    completions: Arc<CompletionQueue>,
    pairs: Vec<QueuePair>,
}

impl UnconnectedEndpoint {
    /// With `pairs` queue pairs, and a completion queue that has room for `spare` more.
    pub(super) fn new(
        port: &Arc<Port>,
        config: &Arc<VerbsConfig>,
        pairs: usize,
        spare: usize,
    ) -> Result<UnconnectedEndpoint, String> {
        let name = port.name();
        let address = port.address(config.gid_index)?;
        let psn = getrandom::u32().map_err(|e| e.to_string())? & 0xff_ffff;
        let completions = CompletionQueue::new(&port.context, pairs + spare)
            .map_err(|e| format!("{name}: no completion queue: {e}"))?;
        let pairs = (0..pairs)
            .map(|_| QueuePair::new(port, &completions, config))
            .collect::<io::Result<_>>()
            .map_err(|e| format!("{name}: no queue pair: {e}"))?;
        let (port, config) = (Arc::clone(port), Arc::clone(config));
        Ok(UnconnectedEndpoint { port, config, address, psn, completions, pairs })
    }

    /// What the peer needs to know; it may write to `memory`.
    pub(super) fn connection_info(&self, split: bool, memory: (u64, u32)) -> ConnectionInfo {
        ConnectionInfo {
            link: self.port.link,
            address: self.address,
            psn: self.psn,
            split,
            memory,
            pairs: self.pairs.iter().map(|pair| pair.number).collect(),
        }
    }

    /// Connects the queue pairs with those of the other end.
    pub(super) fn connect(&self, theirs: &ConnectionInfo) -> Result<(), String> {
        let (name, ours) = (self.port.name(), (&*self.port, &self.address));
        if theirs.link != self.port.link {
            let (a, b) = (self.port.link, theirs.link);
            return Err(format!("{name} is of {a:?}, the other port of {b:?}"));
        }
        if theirs.pairs.len() != self.pairs.len() {
            let (a, b) = (self.pairs.len(), theirs.pairs.len());
            return Err(format!("{a} queue pairs are to meet {b}"));
        }
        for (pair, &number) in self.pairs.iter().zip(&theirs.pairs) {
            let psns = (self.psn, theirs.psn);
            pair.connect(ours, (&theirs.address, number), psns, &self.config).map_err(|e| {
                format!("{name}: queue pair {} cannot be connected: {e}", pair.number)
            })?;
        }
        Ok(())
    }

    /// A queue pair that is connected with itself, for flushes.
    pub(super) fn own(
        port: &Port,
        config: &VerbsConfig,
        completions: &Arc<CompletionQueue>,
    ) -> Result<QueuePair, String> {
        let address = port.address(config.gid_index)?;
        let name = port.name();
        let fails = |e: io::Error| format!("{name}: no queue pair to flush with: {e}");
        let pair = QueuePair::new(port, completions, config).map_err(fails)?;
        pair.connect((port, &address), (&address, pair.number), (0, 0), config).map_err(fails)?;
        Ok(pair)
    }

    pub(super) fn into_endpoint(
        self,
        control: ControlSocket,
        peer: SocketAddr,
        theirs: &ConnectionInfo,
    ) -> Endpoint {
        let UnconnectedEndpoint { port, config, address, completions, pairs, .. } = self;
        let max_write = address.max_message.min(theirs.address.max_message).clamp(1, MAX_WRITE);
        Endpoint {
            pairs,
            completions,
            memory: RegisteredMemory::new(NAME),
            port,
            config,
            control,
            base: CommBase::new(NAME, peer),
            theirs: theirs.memory,
            max_write,
            filled: 0,
            peer_closed: None,
            done: VecDeque::new(),
            look: Instant::now(),
        }
    }
}

/// The peer has closed the connection.
#[derive(Debug)]
struct PeerClosed {
    /// Requests of the receiver that are filled, as far as the peer knew.
    filled: u64,
    reason: String,
    since: Instant,
}

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Dropped first, so that no memory is touched any more; gone when it is broken.
    pub(super) pairs: Vec<QueuePair>,
    pub(super) completions: Arc<CompletionQueue>,
    /// What is empty is not registered.
    pub(super) memory: RegisteredMemory<Option<Arc<MemoryRegion>>>,
    pub(super) port: Arc<Port>,
    pub(super) config: Arc<VerbsConfig>,
    control: ControlSocket,
    pub(super) base: CommBase,
    /// The peer's FIFO or sizes: address and key.
    pub(super) theirs: (u64, u32),
    /// Bytes of a write at most.
    pub(super) max_write: u32,
    /// Requests of the receiver that are filled, as far as this end knows.
    pub(super) filled: u64,
    peer_closed: Option<PeerClosed>,
    /// Completions that have been polled.
    done: VecDeque<WorkCompletion>,
    /// When to read the control socket next.
    look: Instant,
}

impl Endpoint {
    /// Registers memory.
    ///
    /// # Safety
    /// As [`SendComm::register`](crate::net::SendComm::register).
    pub(super) unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        let region = match (bytes, kind) {
            (0, MemoryKind::Host) => None,
            _ => {
                let place = (address as usize, bytes);
                let relaxed = self.config.relaxed_ordering;
                // SAFETY: the caller's.
                Some(unsafe { memory::register(&self.port.context, place, kind, relaxed)? })
            }
        };
        Ok(self.memory.add(address, bytes, region))
    }

    /// Breaks the connection: the peer is told the reason, and no buffer is touched any more.
    pub(super) fn fail(&mut self, reason: String) {
        if !self.base.is_broken() {
            self.control.end(self.filled, &reason);
            self.base.breaks(reason);
            self.pairs.clear();
            self.done.clear();
        }
    }

    /// Whether switches may route each packet by itself, so that a long message's bytes get a write of their own.
    pub(super) fn adapts(&self) -> bool {
        self.config.adaptive_routing.unwrap_or(self.port.link == LinkLayer::InfiniBand)
    }

    /// The queue pairs that a request's messages go over: all, or one in turn.
    pub(super) fn pairs_of(&mut self, sequence: u64, split: bool) -> &mut [QueuePair] {
        match self.pairs.len() {
            0 => &mut [],
            _ if split => &mut self.pairs,
            n => {
                let one = (sequence % n as u64) as usize;
                &mut self.pairs[one..=one]
            }
        }
    }

    /// Posts what waits, as far as the queue pairs have room.
    pub(super) fn post_waiting(&mut self) {
        // SAFETY: what is posted is of messages and buffers that are under way, which nobody else touches, or words.
        let failed = self.pairs.iter_mut().find_map(|pair| unsafe { pair.post_waiting() }.err());
        if let Some(failed) = failed {
            self.fail(format!("{}: a work request is refused: {failed}", self.port.name()));
        }
    }

    /// The next completion. One that failed ends the connection.
    pub(super) fn next(&mut self) -> Option<WorkCompletion> {
        if self.done.is_empty()
            && let Err(failed) = self.completions.poll(&mut self.done)
        {
            self.fail(format!("{}: completions cannot be polled: {failed}", self.port.name()));
        }
        let done = self.done.pop_front()?;
        if done.failed.is_some() {
            let cause = self.cause(done);
            let mut reason = self.explain(&cause);
            // The peer may have sent the reason.
            self.receive();
            if let (true, Some(peer_closed)) = (is_flushed(&cause), &self.peer_closed) {
                reason += &format!("; {}", peer_closed.reason);
            }
            self.fail(reason);
            return None;
        }
        if !matches!(done.work, WrId::Arrived(_)) {
            let pair = self.pairs.iter_mut().find(|pair| pair.number == done.pair);
            pair.into_iter().for_each(QueuePair::completed);
        }
        Some(done)
    }

    /// The completion that has the cause: when a queue pair fails, its other work requests complete as flushed, and may come
    /// first.
    fn cause(&mut self, failed: WorkCompletion) -> WorkCompletion {
        if !is_flushed(&failed) {
            return failed;
        }
        // The connection is broken in any case.
        let _ = self.completions.poll(&mut self.done);
        let behind = self.done.iter().find(|done| done.failed.is_some() && !is_flushed(done));
        behind.copied().unwrap_or(failed)
    }

    fn explain(&self, done: &WorkCompletion) -> String {
        let (name, what) = (self.port.name(), done.work.what());
        let (status, vendor) = done.failed.unwrap_or_default();
        let text = self.port.context.library.status(status);
        let mut reason = format!(
            "{name}, queue pair {}: {what} failed: {text} (status {status}, vendor error {vendor:#x})",
            done.pair
        );
        if let Some(event) = self.event() {
            reason += &format!("; {event}");
        }
        if self.port.context.events.is_down(self.port.number) {
            reason += "; the port is down";
        }
        reason
    }

    /// An asynchronous event after which this connection cannot go on.
    fn event(&self) -> Option<String> {
        self.port.context.events.fatal(|of| match of {
            EventSource::Device => true,
            EventSource::QueuePair(number) => self.pairs.iter().any(|pair| pair.number == number),
            EventSource::CompletionQueue(address) => self.completions.address() == address,
        })
    }

    /// After the peer has closed: breaks the connection once everything is done here that the peer counts as done. So messages
    /// that have arrived are delivered, and messages that were sent count as sent. Otherwise reads the control socket now and
    /// then. Called after the completion queue was polled; `moved` is whether there were completions.
    pub(super) fn settle(&mut self, moved: bool) {
        if let Some(peer_closed) = &mut self.peer_closed {
            if self.filled >= peer_closed.filled || peer_closed.since.elapsed() > GRACE {
                let reason = std::mem::take(&mut peer_closed.reason);
                self.fail(reason);
            }
        } else if !moved {
            self.look();
        }
    }

    /// Checks, every [`CHECK_EVERY`], for events of the device and for a peer that has closed.
    fn look(&mut self) {
        let now = Instant::now();
        if now < self.look || self.base.is_broken() {
            return;
        }
        self.look = now + CHECK_EVERY;
        if let Some(event) = self.event() {
            return self.fail(format!("{}: {event}", self.port.name()));
        }
        self.receive();
    }

    /// Reads the control socket, on which the peer only ever closes.
    fn receive(&mut self) {
        if self.peer_closed.is_some() {
            return;
        }
        let (filled, reason) = match self.control.receive() {
            Ok(None) => return,
            Ok(Some(ControlMessage::Close { filled, reason })) if reason.is_empty() => {
                (filled, "it closed the connection".to_owned())
            }
            Ok(Some(ControlMessage::Close { filled, reason })) => {
                (filled, format!("it ended the connection: {reason}"))
            }
            Ok(Some(said)) => {
                return self.fail(format!("it sent {said:?} on an open connection"));
            }
            Err(reason) => (0, reason),
        };
        self.peer_closed = Some(PeerClosed { filled, reason, since: Instant::now() });
    }

    /// An error that leaves the connection as it is.
    pub(super) fn error(&self, operation: &'static str, reason: impl Into<String>) -> NetError {
        error(operation, reason)
    }
}

/// Whether it failed only because the queue pair was in the error state.
fn is_flushed(done: &WorkCompletion) -> bool {
    done.failed.is_some_and(|(status, _)| status == sys::IBV_WC_WR_FLUSH_ERR)
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.base.is_broken() {
            self.control.end(self.filled, "");
        }
    }
}

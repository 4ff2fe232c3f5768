//! What both ends of a connection have.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::VerbsConfig;
use super::context::EventSource;
use super::control::{ConnectionInfo, ControlMessage, ControlSocket, PairInfo, PortInfo};
use super::device::{LinkLayer, Port, PortAddress, VerbsDevice};
use super::memory::{self, Keys, Regions, RemoteMemory};
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

/// How long to wait, after what the peer's device has refused, for the peer to close. Not measured: closing takes a process some milliseconds, and
/// the connection is broken in any case.
const CLOSING: Duration = Duration::from_millis(100);

/// Bytes of one write at most, whatever the device would take: half of what a length of 32 bits allows.
const MAX_WRITE: u32 = 1 << 31;

/// The queue pairs of a connection that is being made.
pub(super) struct UnconnectedEndpoint {
    pub(super) device: Arc<VerbsDevice>,
    pub(super) config: Arc<VerbsConfig>,
    /// Those of the device's ports.
    addresses: Vec<PortAddress>,
    psn: u32,
    /// By port.
    completions: Vec<Arc<CompletionQueue>>,
    /// Of the ports in turn.
    pairs: Vec<QueuePair>,
}

impl UnconnectedEndpoint {
    /// With `pairs` queue pairs, which are of the ports in turn from number `first` on, and completion queues that have room for
    /// `spare` more.
    pub(super) fn new(
        device: &Arc<VerbsDevice>,
        config: &Arc<VerbsConfig>,
        (pairs, first): (usize, usize),
        spare: usize,
    ) -> Result<UnconnectedEndpoint, String> {
        let ports = &device.ports;
        let addresses = ports.iter().map(|port| port.address(config.gid_index));
        let addresses = addresses.collect::<Result<_, _>>()?;
        let psn = getrandom::u32().map_err(|e| e.to_string())? & 0xff_ffff;
        let room = pairs.div_ceil(ports.len()) + spare;
        let queue = |(i, port): (usize, &Arc<Port>)| {
            CompletionQueue::new(&port.context, i, room)
                .map_err(|e| format!("{}: no completion queue: {e}", port.name()))
        };
        let completions = ports.iter().enumerate().map(queue).collect::<Result<Vec<_>, _>>()?;
        let pair = |i: usize| {
            let port = (first + i) % ports.len();
            QueuePair::new(&ports[port], &completions[port], config)
                .map_err(|e| format!("{}: no queue pair: {e}", ports[port].name()))
        };
        let pairs = (0..pairs).map(pair).collect::<Result<_, _>>()?;
        let (device, config) = (Arc::clone(device), Arc::clone(config));
        Ok(UnconnectedEndpoint { device, config, addresses, psn, completions, pairs })
    }

    /// What the peer needs to know; it may write to memory that begins there and has these keys.
    pub(super) fn connection_info(&self, split: bool, memory: (u64, Keys)) -> ConnectionInfo {
        let ports = self.addresses.iter().zip(memory.1);
        let pair = |pair: &QueuePair| PairInfo { number: pair.number, port: pair.port() as u8 };
        ConnectionInfo {
            link: self.device.link(),
            ports: ports.map(|(address, key)| PortInfo { address: *address, key }).collect(),
            psn: self.psn,
            split,
            memory: memory.0,
            pairs: self.pairs.iter().map(pair).collect(),
        }
    }

    /// Connects the queue pairs with those of the other end.
    pub(super) fn connect(&mut self, theirs: &ConnectionInfo) -> Result<(), String> {
        if theirs.link != self.device.link() {
            let (name, a, b) = (self.device.name(), self.device.link(), theirs.link);
            return Err(format!("{name} is of {a:?}, the other port of {b:?}"));
        }
        if theirs.pairs.len() != self.pairs.len() {
            let (a, b) = (self.pairs.len(), theirs.pairs.len());
            return Err(format!("{a} queue pairs are to meet {b}"));
        }
        for (pair, PairInfo { number, port: to }) in self.pairs.iter_mut().zip(&theirs.pairs) {
            let port = &self.device.ports[pair.port()];
            let ours = (&**port, &self.addresses[pair.port()]);
            let to = usize::from(*to);
            let address = &theirs.ports.get(to).ok_or("a queue pair of no port")?.address;
            let psns = (self.psn, theirs.psn);
            pair.theirs = to;
            pair.connect(ours, (address, *number), psns, &self.config).map_err(|e| {
                let name = port.name();
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
        let UnconnectedEndpoint { device, config, addresses, completions, pairs, .. } = self;
        let of_theirs = theirs.ports.iter().map(|port| port.address.max_message);
        let longest = addresses.iter().map(|address| address.max_message).chain(of_theirs).min();
        let mut keys = Keys::default();
        keys.iter_mut().zip(&theirs.ports).for_each(|(key, port)| *key = port.key);
        Endpoint {
            lanes: device.ports.len().max(theirs.ports.len()).min(pairs.len()).max(1),
            pairs,
            completions,
            memory: RegisteredMemory::new(NAME),
            device,
            config,
            control,
            base: CommBase::new(NAME, peer),
            theirs: RemoteMemory { address: theirs.memory, keys },
            max_write: longest.unwrap_or(MAX_WRITE).clamp(1, MAX_WRITE),
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
    /// Queue pairs that each message goes over: those of all ports of the end that has more.
    lanes: usize,
    /// By port.
    pub(super) completions: Vec<Arc<CompletionQueue>>,
    /// What is empty is not registered.
    pub(super) memory: RegisteredMemory<Regions>,
    pub(super) device: Arc<VerbsDevice>,
    pub(super) config: Arc<VerbsConfig>,
    control: ControlSocket,
    pub(super) base: CommBase,
    /// The peer's FIFO or sizes.
    pub(super) theirs: RemoteMemory,
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
        let (place, relaxed) = ((address as usize, bytes), self.config.relaxed_ordering);
        let region = |port: &Arc<Port>| {
            // SAFETY: the caller's.
            unsafe { memory::register(&port.context, place, kind, relaxed) }
        };
        let regions = match (bytes, kind) {
            (0, MemoryKind::Host) => Vec::new(),
            _ => self.device.ports.iter().map(region).collect::<Result<_, _>>()?,
        };
        Ok(self.memory.add(address, bytes, regions))
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
        self.config.adaptive_routing.unwrap_or(self.device.link() == LinkLayer::InfiniBand)
    }

    /// The queue pairs that a request's messages go over: all, or some in turn, of which each port has one.
    pub(super) fn pairs_of(&mut self, sequence: u64, split: bool) -> &mut [QueuePair] {
        match self.pairs.len() / self.lanes {
            0 => &mut [],
            _ if split => &mut self.pairs,
            n => {
                let first = (sequence % n as u64) as usize * self.lanes;
                &mut self.pairs[first..first + self.lanes]
            }
        }
    }

    /// The port of a queue pair or a completion.
    fn port(&self, place: usize) -> &Port {
        &self.device.ports[place]
    }

    /// Posts what waits, as far as the queue pairs have room.
    pub(super) fn post_waiting(&mut self) {
        // SAFETY: what is posted is of messages and buffers that are under way, which nobody else touches, or words.
        let post =
            |pair: &mut QueuePair| Some((unsafe { pair.post_waiting() }.err()?, pair.port()));
        if let Some((failed, port)) = self.pairs.iter_mut().find_map(post) {
            let name = self.port(port).name();
            self.fail(format!("{name}: a work request is refused: {failed}"));
        }
    }

    /// The next completion. One that failed ends the connection.
    pub(super) fn next(&mut self) -> Option<WorkCompletion> {
        if self.done.is_empty()
            && let Some((port, failed)) = self.poll()
        {
            let name = self.port(port).name();
            self.fail(format!("{name}: completions cannot be polled: {failed}"));
        }
        let done = self.done.pop_front()?;
        if done.failed.is_some() {
            let cause = self.cause(done);
            let mut reason = self.explain(&cause);
            // The peer may have sent the reason.
            self.receive();
            let of_peer = is_of_peer(&cause);
            if of_peer {
                self.wait_for_close();
            }
            if let (true, Some(peer_closed)) = (of_peer || is_flushed(&cause), &self.peer_closed) {
                reason += &format!("; {}", peer_closed.reason);
            }
            self.fail(reason);
            return None;
        }
        if !matches!(done.work, WrId::Arrived(_)) {
            let pair = self.pairs.iter_mut().find(|pair| pair.is_of(&done));
            pair.into_iter().for_each(QueuePair::completed);
        }
        Some(done)
    }

    /// Polls the queues of all ports; the first that cannot be polled.
    fn poll(&mut self) -> Option<(usize, io::Error)> {
        let queues = self.completions.iter().enumerate();
        let mut polled = queues.map(|(port, queue)| (port, queue.poll(&mut self.done).err()));
        polled.find_map(|(port, failed)| Some((port, failed?)))
    }

    /// The completion that has the cause: when a queue pair fails, its other work requests complete as flushed, and may come
    /// first.
    fn cause(&mut self, failed: WorkCompletion) -> WorkCompletion {
        if !is_flushed(&failed) {
            return failed;
        }
        // The connection is broken in any case.
        let _ = self.poll();
        let behind = self.done.iter().find(|done| done.failed.is_some() && !is_flushed(done));
        behind.copied().unwrap_or(failed)
    }

    fn explain(&self, done: &WorkCompletion) -> String {
        let port = self.port(done.port);
        let (name, what) = (port.name(), done.work.what());
        let (status, vendor) = done.failed.unwrap_or_default();
        let text = port.context.library.status(status);
        let mut reason = format!(
            "{name}, queue pair {}: {what} failed: {text} (status {status}, vendor error {vendor:#x})",
            done.pair
        );
        if let Some(event) = self.event(done.port) {
            reason += &format!("; {event}");
        }
        if port.context.events.is_down(port.number) {
            reason += "; the port is down";
        }
        reason
    }

    /// An asynchronous event of a port's device after which this connection cannot go on.
    fn event(&self, port: usize) -> Option<String> {
        let pairs = self.pairs.iter().filter(|pair| pair.port() == port);
        self.port(port).context.events.fatal(|of| match of {
            EventSource::Device => true,
            EventSource::QueuePair(number) => pairs.clone().any(|pair| pair.number == number),
            EventSource::CompletionQueue(address) => self.completions[port].address() == address,
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
        let mut ports = 0..self.device.ports.len();
        if let Some((port, event)) = ports.find_map(|port| Some((port, self.event(port)?))) {
            return self.fail(format!("{}: {event}", self.port(port).name()));
        }
        self.receive();
    }

    /// After the peer's device has refused something, or answers no more: the memory and the queue pairs of a process that is killed are gone a
    /// moment before its sockets are closed.
    fn wait_for_close(&mut self) {
        let since = Instant::now();
        while self.peer_closed.is_none() && !self.base.is_broken() && since.elapsed() < CLOSING {
            std::thread::sleep(CHECK_EVERY);
            self.receive();
        }
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

/// Whether the peer's device has refused it, or has not answered.
fn is_of_peer(done: &WorkCompletion) -> bool {
    let of_peer = [
        sys::IBV_WC_REM_INV_REQ_ERR,
        sys::IBV_WC_REM_ACCESS_ERR,
        sys::IBV_WC_REM_OP_ERR,
        sys::IBV_WC_RETRY_EXC_ERR,
    ];
    done.failed.is_some_and(|(status, _)| of_peer.contains(&status))
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if !self.base.is_broken() {
            self.control.end(self.filled, "");
        }
    }
}

//! PXN: a rank's data that another rank of its host sends, because that one's GPU is nearer to the card
//! ([`crate::comm::graphs`] says which).
//!
//! ```text
//! client                                             server, another rank of the host
//! submit ─► RelayClient ─ steps ─► ring ─► RelayServer ─► Connections as the client ═══► receiver
//! kernel ─ slots ─► the client's edges ◄── shared ──┘                                    (does not notice)
//! ```
//!
//! The client's edges to other hosts are in memory that the server has mapped, and so the server's proxy plays the part of the
//! client's: it sends what the client's kernels write, and gives the slots back. The receiver gets the client's hello. All that
//! a server has to be told are the steps of each launch, and where in its edge the connection is. With GPU Direct RDMA, the
//! slots of Simple are in memory of the server's GPU, which the client's kernels reach ([`crate::comm::gdr`]).
//!
//! A server is busy with its own calls, or is not. It looks at its rings as long as its own operation runs. Otherwise a thread
//! sleeps at the wake word, and starts the operation.
//!
//! A rank stays until those that it sends for have left, as in NCCL (`ncclProxyStop`). Ranks of one process may be dropped one
//! after the other, so only the last one of a process waits.

mod memory;
mod setup;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ferroccl_proxy::connection::{ConnMemory, ConnectionFailure, ConnectionId, Connections, Steps};
use ferroccl_proxy::net::Net;
use ferroccl_proxy::{NetError, Progress};
use tracing::{info, warn};

use self::memory::{RelayedSteps, RingFrom, RingTo, WakeWord};
pub(in crate::comm) use self::setup::{MappedRelays, OpenRelayMemory};
use super::progress::NetProgressOp;
use super::{Cards, DROP_LIMIT, EdgeMemory, NetConnections, NetState};
use crate::channel::{ConnLayout, EdgeEnd};
use crate::comm::gdr::ServedSlots;
use crate::comm::shared::SharedComm;
use crate::comm::state::CommState;
use crate::error::{Error, Result};
use crate::log;

/// How long the server's thread sleeps at most, until it looks whether the communicator has failed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// What others send for this rank.
#[derive(Debug, Default)]
pub(super) struct RelayClient {
    rings: BTreeMap<u32, RingTo>,
    /// The connections with steps that are not sent yet.
    due: BTreeMap<ConnectionId, Due>,
    /// By connection, who sends on it instead of this rank, and from where; found once, since launches are many.
    found: HashMap<ConnectionId, Option<Relayed>>,
}

/// A connection that another rank sends on.
#[derive(Clone, Copy, Debug)]
struct Relayed {
    by: u32,
    memory: ConnMemory,
    /// Where the connection's header is in its edge.
    offset: usize,
    /// What the other rank has been given in all: signatures, and steps from the connection's first on.
    given: (u64, u64),
}

/// A connection of which not everything is sent.
#[derive(Debug)]
struct Due {
    by: u32,
    memory: ConnMemory,
    signatures: u64,
    steps: u64,
    seq: u64,
}

impl RelayClient {
    /// The client's end of `rank`.
    pub(super) fn new(rank: u32, relays: &MappedRelays, cards: &Cards) -> Self {
        let servers = relays.partners.iter().filter(|(by, _)| cards.sends_for(**by, rank));
        let ring = |(by, memory): (&u32, _)| (*by, RingTo::new(memory, relays.layout, rank));
        RelayClient { rings: servers.map(ring).collect(), ..RelayClient::default() }
    }

    /// Has another rank send these steps of a connection, if there is one that does; whether there is.
    pub(super) fn send(
        &mut self,
        key: ConnectionId,
        steps: Steps,
        (cards, edges): (&Cards, &EdgeMemory),
    ) -> bool {
        let rings = &mut self.rings;
        if rings.is_empty() {
            return false;
        }
        let found = self.found.entry(key).or_insert_with(|| {
            let (by, _) = cards.relay(key)?;
            let memory = edges.find(key, true).filter(|_| rings.contains_key(&by))?;
            let offset = edges.header_offset(key)?;
            Some(Relayed { by, memory, offset, given: (0, edges.first_step) })
        });
        let Some(Relayed { by, memory, offset, given }) = found else { return false };
        let Some(ring) = rings.get_mut(by) else { return false };
        given.0 += steps.signatures;
        given.1 += steps.steps;
        let (signatures, all) = *given;
        let due = Due { by: *by, memory: *memory, signatures, steps: all, seq: steps.seq };
        self.due.insert(key, due);
        ring.push(RelayedSteps::new(key, steps, *offset));
        true
    }

    /// Hands over what had no room, and looks what has been sent.
    pub(super) fn progress(&mut self) -> Progress {
        if self.due.is_empty() {
            return Progress::Done;
        }
        let mut moved = false;
        for ring in self.rings.values_mut() {
            moved |= ring.go_on();
        }
        let before = self.due.len();
        self.due.retain(|_, due| {
            // SAFETY: the memory is that of our edges, which the communicator keeps.
            let (signatures, steps) = unsafe { due.memory.sent() };
            signatures < due.signatures || steps < due.steps
        });
        moved |= self.due.len() < before;
        match (self.due.is_empty(), moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            _ => Progress::Idle,
        }
    }

    /// Rank `by` has left.
    ///
    /// # Errors
    /// When it still had something to send for us.
    pub(super) fn left(
        &self,
        by: u32,
        network: &str,
    ) -> std::result::Result<(), ConnectionFailure> {
        match self.due.iter().find(|(_, due)| due.by == by) {
            None => Ok(()),
            Some((key, due)) => {
                let reason =
                    format!("rank {by}, which sends for this rank (PXN), has left the group");
                let error = NetError::new(network, "isend", reason).with_peer(by);
                let key = ConnectionId { peer: by, ..*key };
                Err(ConnectionFailure { key, sending: true, seq: due.seq, error })
            }
        }
    }

    /// Tells all servers that there will be nothing more.
    fn leave(&self) {
        self.rings.values().for_each(RingTo::leave);
    }
}

/// What this rank sends for others.
#[derive(Default)]
pub(super) struct RelayServer {
    clients: Vec<Client>,
    /// Whether the thread has ended, or never began.
    ended: bool,
    /// Whether this communicator is counted among those of its process.
    counted: bool,
}

struct Client {
    rank: u32,
    ring: RingFrom,
    connections: Connections,
    /// Where the headers of its connections are in their edges.
    offsets: Offsets,
}

type Offsets = Arc<Mutex<HashMap<ConnectionId, usize>>>;

fn locked(offsets: &Offsets) -> MutexGuard<'_, HashMap<ConnectionId, usize>> {
    offsets.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for RelayServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<u32> = self.clients.iter().map(|client| client.rank).collect();
        f.debug_struct("RelayServer").field("clients", &ranks).finish_non_exhaustive()
    }
}

/// A connection that has failed, and for whom it was made, where that is another rank.
#[derive(Debug)]
pub(super) struct BrokenConnection {
    pub failure: ConnectionFailure,
    pub client: Option<u32>,
}

impl From<ConnectionFailure> for BrokenConnection {
    fn from(failure: ConnectionFailure) -> Self {
        BrokenConnection { failure, client: None }
    }
}

impl RelayServer {
    /// The server's end of `rank` in the communicator `group`.
    pub(super) fn new(
        net: &Arc<dyn Net>,
        (group, rank): (u64, u32),
        relays: &MappedRelays,
        cards: &Cards,
        (layout, first_step): (ConnLayout, u64),
        slots: &Arc<ServedSlots>,
    ) -> Self {
        let clients = relays.partners.iter().filter(|(client, _)| cards.sends_for(rank, **client));
        let client = |(client, theirs): (&u32, &crate::transport::HostRegion)| {
            let (client, of_relay, theirs) = (*client, relays.layout, theirs.clone());
            let routes = Cards { rank: client, ..cards.clone() };
            let offsets = Offsets::default();
            let (slots, of_connections) = (Arc::clone(slots), Arc::clone(&offsets));
            let find = move |key: ConnectionId, sending: bool| {
                let known = sending && (key.peer as usize) < of_relay.ranks;
                let offset = *locked(&of_connections).get(&key).filter(|_| known)?;
                let region = theirs.part(of_relay.edge(key.peer), of_relay.edge_bytes);
                let end = EdgeEnd::remote_send(region, key.peer);
                end.conn_memory_at(&layout, offset, slots.get(&(client, key)), first_step)
            };
            // SAFETY: the client's edges are laid out so, and the closure keeps them as long as it lives. Their other user is
            // the client's kernel: for what it has another rank send, its own proxy does nothing.
            let connections = unsafe {
                Connections::new(
                    Arc::clone(net),
                    (group, client),
                    first_step,
                    Vec::new(),
                    Box::new(move |key| routes.relayed_route(key)),
                    Box::new(find),
                )
            };
            let ring = RingFrom::new(&relays.own, of_relay, client);
            Client { rank: client, ring, connections, offsets }
        };
        RelayServer { clients: clients.map(client).collect(), ended: true, counted: false }
    }

    /// Whether a thread sends for others.
    pub(super) fn is_running(&self) -> bool {
        !self.ended
    }

    /// Takes over what clients have handed over.
    fn take(&mut self) -> std::result::Result<bool, BrokenConnection> {
        let mut moved = false;
        for Client { rank, ring, connections, offsets } in &mut self.clients {
            while let Some(entry) = ring.pop() {
                moved = true;
                let Some((key, steps)) = entry.steps() else {
                    warn!(target: log::NET, "rank {rank} has handed over steps that make no sense");
                    continue;
                };
                let broken = |failure| BrokenConnection { failure, client: Some(*rank) };
                locked(offsets).insert(key, entry.offset());
                connections.send(key, steps).map_err(broken)?;
            }
        }
        Ok(moved)
    }

    /// Makes progress on all connections.
    pub(super) fn progress(&mut self) -> std::result::Result<Progress, BrokenConnection> {
        let moved = self.take()?;
        let mut progress = if moved { Progress::Moved } else { Progress::Done };
        for Client { rank, connections, .. } in &mut self.clients {
            let broken = |failure| BrokenConnection { failure, client: Some(*rank) };
            progress = both(progress, connections.progress().map_err(broken)?);
        }
        Ok(progress)
    }

    /// Whether a client has handed over something.
    pub(super) fn has_more(&self) -> bool {
        self.clients.iter().any(|client| client.ring.has_more())
    }

    /// Whether all clients have left, and all their data is sent.
    fn is_over(&self) -> bool {
        self.clients.iter().all(|client| client.ring.is_over() && client.connections.is_idle())
    }
}

/// The progress of two that go on beside each other.
pub(super) fn both(one: Progress, other: Progress) -> Progress {
    match (one, other) {
        (Progress::Done, Progress::Done) => Progress::Done,
        (Progress::Moved, _) | (_, Progress::Moved) => Progress::Moved,
        _ => Progress::Idle,
    }
}

/// The wake word of a rank that may send for others, and what waits for the end of that.
#[derive(Debug)]
pub(super) struct RelayWaker {
    pub(super) wake: WakeWord,
    /// The server's thread has ended; beside the state's lock.
    ended: Condvar,
}

impl RelayWaker {
    pub(super) fn new(relays: &MappedRelays) -> Self {
        RelayWaker { wake: WakeWord::new(&relays.own), ended: Condvar::new() }
    }
}

/// By group, the communicators of this process that take part, and those of them that send for others.
static IN_PROCESS: Mutex<BTreeMap<u64, InProcess>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct InProcess {
    ranks: usize,
    servers: Vec<Weak<NetConnections>>,
}

fn in_process() -> MutexGuard<'static, BTreeMap<u64, InProcess>> {
    IN_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NetConnections {
    /// Begins to send for other ranks, if there are such.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(in crate::comm) fn serve(self: &Arc<Self>, comm: &SharedComm) -> Result<()> {
        if self.relay.is_none() {
            return Ok(());
        }
        let mut in_process = in_process();
        let group = in_process.entry(comm.group).or_default();
        group.ranks += 1;
        let mut state = self.lock();
        state.server.counted = true;
        if state.server.clients.is_empty() {
            return Ok(());
        }
        let (comm, net) = (comm.clone(), Arc::clone(self));
        let thread = std::thread::Builder::new().name("ferroccl-pxn".to_owned());
        let thread = thread.spawn(move || {
            net.serve_until_all_have_left(&comm);
            net.wait_for_operations();
            // First, because with it the rank says good-bye to the group: whoever waits for the end may end the process.
            drop(comm);
            net.lock().server.ended = true;
            net.relay.iter().for_each(|relay| relay.ended.notify_all());
        });
        thread.map_err(|e| Error::system("starting the thread that sends for other ranks", e))?;
        state.server.ended = false;
        group.servers.push(Arc::downgrade(self));
        Ok(())
    }

    /// Waits until no operation keeps the communicator any more: the last one has just ended, or sees that all has failed.
    fn wait_for_operations(&self) {
        let begun = Instant::now();
        // Pairs with the release in `ProgressGuard`.
        while self.running_ops.load(Ordering::Acquire) > 0 && begun.elapsed() < DROP_LIMIT {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The operation has nothing more to do. Whether it may end: not, where a client has handed over something meanwhile.
    pub(super) fn stop_looking(&self, state: &mut NetState) -> bool {
        if let Some(relay) = &self.relay {
            relay.wake.set_looking(false);
            if state.server.has_more() {
                relay.wake.set_looking(true);
                return false;
            }
            if state.released_at.is_some() {
                // It may have been the last thing to send, for which the thread waits.
                relay.wake.call();
            }
        }
        state.progressing = false;
        true
    }

    fn serve_until_all_have_left(self: &Arc<Self>, comm: &SharedComm) {
        let Some(relay) = &self.relay else { return };
        loop {
            let calls = relay.wake.calls();
            let mut state = self.lock();
            if comm.control.fault().is_some()
                || state.released_at.is_some() && state.server.is_over() && !state.progressing
            {
                return;
            }
            if state.server.has_more() && !std::mem::replace(&mut state.progressing, true) {
                relay.wake.set_looking(true);
                drop(state);
                if let Err(error) = NetProgressOp::start(comm, self) {
                    comm.on_launch_failed(&error);
                }
                continue;
            }
            drop(state);
            relay.wake.sleep(calls, LONGEST_SLEEP);
        }
    }

    /// This rank makes no more calls, and all of its data is sent. The last one of a process waits until those have left that it
    /// and the other ranks of the process send for.
    pub(in crate::comm) fn leave(&self, comm: &CommState) {
        let Some(relay) = &self.relay else { return };
        let mut state = self.lock();
        state.client.leave();
        let counted = std::mem::take(&mut state.server.counted);
        drop(state);
        relay.wake.call();
        if !counted {
            return;
        }
        let limit = comm.control.timeout().unwrap_or(DROP_LIMIT);
        if comm.control.fault().is_some() {
            self.wait_for_clients(limit);
        }
        let servers = {
            let mut in_process = in_process();
            let Some(group) = in_process.get_mut(&comm.group) else { return };
            group.ranks = group.ranks.saturating_sub(1);
            if group.ranks > 0 {
                return;
            }
            in_process.remove(&comm.group).map(|group| group.servers).unwrap_or_default()
        };
        for server in servers.iter().filter_map(Weak::upgrade) {
            server.wait_for_clients(limit);
        }
    }

    fn wait_for_clients(&self, limit: Duration) {
        let Some(relay) = &self.relay else { return };
        let (begun, mut told) = (Instant::now(), false);
        let mut state = self.lock();
        while !state.server.ended {
            if begun.elapsed() > limit {
                let rank = self.cards.rank;
                warn!(target: log::NET, "rank {rank}: left before ranks that it sends for (PXN): they have not left");
                return;
            }
            if begun.elapsed() > DROP_LIMIT && !std::mem::replace(&mut told, true) {
                let rank = self.cards.rank;
                info!(target: log::NET, "rank {rank}: waits for ranks that it sends for (PXN)");
            }
            let waited = relay.ended.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

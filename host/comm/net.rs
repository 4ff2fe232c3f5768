//! The connections with ranks on other hosts.
//!
//! ```text
//! launch ─► StepCounter: the launch's steps on each connection ─► submit ─► Connections (ferroccl_proxy)
//!            (proxy_work, step_count)                                          ▲ progress
//!                                                                          NetProgressOp, on the proxy's thread (progress)
//!                                                                              └─► broken: CommState::on_net_broken (faults)
//! ```
//!
//! A communicator has one [`Connections`] for all its peers on other hosts. Every launch adds its steps. An operation moves
//! them on for as long as there are some.

mod cards;
mod events;
mod progress;
mod proxy_work;
mod relay;
mod step_count;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ferroccl_device::abi::ProtocolId;
use ferroccl_proxy::connection::{ConnMemory, ConnectionFailure, ConnectionId, Connections, Steps};
use ferroccl_proxy::net::{Listener, Net};
use ferroccl_proxy::{NetError, Progress};
use tracing::warn;

pub(super) use self::cards::{Cards, NetHandles, NetListeners};
use self::events::ProxyEvents;
use self::progress::NetProgressOp;
pub(super) use self::proxy_work::ProxyWork;
use self::proxy_work::StepCounter;
use self::relay::{BrokenConnection, RelayClient, RelayServer, RelayWaker, both};
pub(super) use self::relay::{MappedRelays, OpenRelayMemory};
use super::gdr::ServedSlots;
use super::shared::SharedComm;
use super::state::CommState;
use crate::channel::{ConnLayout, Edges};
use crate::error::{Error, Result};
use crate::profiler::{Parent, Profiler};

/// How long dropping a communicator waits for data that is still to be sent.
pub(super) const DROP_LIMIT: Duration = Duration::from_secs(10);

/// A network, a device of it, and a listener on that.
pub(super) type NetListener = (Arc<dyn Net>, usize, Box<dyn Listener>);

/// A communicator's connections with ranks on other hosts.
#[derive(Debug)]
pub(super) struct NetConnections {
    net: Arc<dyn Net>,
    /// The network in logs and errors, as `NET/Socket`.
    name: String,
    cards: Cards,
    /// The names of the network's devices.
    devices: Vec<String>,
    channels: u32,
    /// Counts the steps of launches.
    pub(super) counter: StepCounter,
    state: Mutex<NetState>,
    /// The memory of a connection, by its id and whether we send.
    memory: Arc<EdgeMemory>,
    /// What a profiler is told of.
    events: OnceLock<ProxyEvents>,
    slot_bytes: [u32; ProtocolId::MOST],
    /// Where ranks of this host send for each other.
    relay: Option<RelayWaker>,
    /// Operations that have not let go of the communicator.
    running_ops: AtomicUsize,
}

/// Finds the memory of the connections with other hosts.
#[derive(Debug)]
struct EdgeMemory {
    ends: Vec<Option<Edges>>,
    layout: ConnLayout,
    channels: usize,
    first_step: u64,
}

impl EdgeMemory {
    fn find(&self, key: ConnectionId, sending: bool) -> Option<ConnMemory> {
        let edges = self.ends.get(key.peer as usize)?.as_ref().filter(|e| e.send.remote)?;
        let end = if sending { &edges.send } else { &edges.recv };
        end.conn_memory(&self.layout, self.channels, key.index as usize, self.first_step)
    }

    /// Where the header of a connection that sends is in its edge.
    fn header_offset(&self, key: ConnectionId) -> Option<usize> {
        let edges = self.ends.get(key.peer as usize)?.as_ref()?;
        Some(edges.send.header_offset(&self.layout, key.index as usize))
    }
}

#[derive(Debug)]
struct NetState {
    connections: Connections,
    /// What others send for us.
    client: RelayClient,
    /// What we send for others.
    server: RelayServer,
    /// Whether an operation moves them on.
    progressing: bool,
    /// The connection that broke first, and when.
    failed: Option<(BrokenConnection, Instant)>,
    /// When the user has dropped or finalized the communicator, or when data moved last since then.
    released_at: Option<Instant>,
}

impl NetState {
    /// Notes a broken connection, if it is the first.
    fn fail(&mut self, result: std::result::Result<(), ConnectionFailure>) {
        if let Err(failure) = result {
            self.failed.get_or_insert((failure.into(), Instant::now()));
        }
    }

    /// Makes progress on everything, without waiting.
    fn progress(&mut self) -> std::result::Result<Progress, BrokenConnection> {
        let own = self.connections.progress()?;
        let served = self.server.progress()?;
        Ok(both(both(own, served), self.client.progress()))
    }
}

impl NetConnections {
    /// For a rank's `edges`, by peer, some of which are remote.
    pub(super) fn new(
        NetListeners { net, listeners }: NetListeners,
        group: u64,
        edges: &[Option<Edges>],
        layout: ConnLayout,
        first_step: u64,
        mut cards: Cards,
        relays: Option<&MappedRelays>,
        served: &Arc<ServedSlots>,
    ) -> Self {
        let (rank, channels) = (cards.rank, cards.channels as usize);
        let remote = |edges: &Option<Edges>| edges.as_ref().is_some_and(|e| e.send.remote);
        let is_remote: Vec<bool> = edges.iter().map(remote).collect();
        for (listeners, remote) in cards.listeners.iter_mut().zip(&is_remote) {
            if !remote {
                listeners.clear();
            }
        }
        let device_name =
            |device| net.properties(device).map_or_else(|_| format!("[{device}]"), |p| p.name);
        let devices = (0..net.devices()).map(device_name).collect();
        let routes = cards.clone();
        let name = format!("NET/{}", net.name());
        let memory = EdgeMemory { ends: edges.to_vec(), layout, channels, first_step };
        let memory = Arc::new(memory);
        let client = relays
            .map_or_else(RelayClient::default, |relays| RelayClient::new(rank, relays, &cards));
        let server = relays.map_or_else(RelayServer::default, |relays| {
            RelayServer::new(&net, (group, rank), relays, &cards, (layout, first_step), served)
        });
        let of_connections = Arc::clone(&memory);
        let find = move |key: ConnectionId, sending: bool| of_connections.find(key, sending);
        let of_puts = Arc::clone(&net);
        // SAFETY: the edges' memory is laid out so, and the closure keeps it as long as it lives.
        let connections = unsafe {
            Connections::new(
                net,
                (group, rank),
                first_step,
                listeners.into_iter().map(|(_, listener)| listener).collect(),
                Box::new(move |key| routes.route(key)),
                Box::new(find),
            )
        };
        let state = NetState {
            connections,
            client,
            server,
            progressing: false,
            failed: None,
            released_at: None,
        };
        let channels = channels as u32;
        NetConnections {
            net: of_puts,
            name,
            cards,
            devices,
            channels,
            counter: StepCounter::new(channels, layout.slot_bytes, is_remote),
            state: Mutex::new(state),
            memory,
            events: OnceLock::new(),
            slot_bytes: layout.slot_bytes,
            relay: relays.map(RelayWaker::new),
            running_ops: AtomicUsize::new(0),
        }
    }

    /// The network, this rank's own card, and a listener on that.
    pub(super) fn listen(&self) -> std::result::Result<NetListener, NetError> {
        let device = self.cards.own;
        Ok((Arc::clone(&self.net), device, self.net.listen(device)?))
    }

    /// Adds a launch's steps to the connections, and has an operation move them on.
    ///
    /// A peer that cannot be reached fails the communicator some time later, so that the peer's own failure can be reported
    /// instead.
    ///
    /// # Errors
    /// When there can be no proxy thread.
    pub(super) fn submit(self: &Arc<Self>, comm: &SharedComm, work: ProxyWork) -> Result<()> {
        if work.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        for (i, &(key, sending, steps)) in work.steps.iter().enumerate() {
            if sending {
                if !state.client.send(key, steps, (&self.cards, &self.memory)) {
                    self.tell((key, true), steps, work.parent(i));
                    let sent = state.connections.send(key, steps);
                    state.fail(sent);
                }
            } else {
                self.tell((key, false), steps, work.parent(i));
                state.connections.recv(key, steps);
            }
        }
        let is_first = !std::mem::replace(&mut state.progressing, true);
        if let Some(relay) = self.relay.as_ref().filter(|_| is_first) {
            relay.wake.set_looking(true);
        }
        drop(state);
        if is_first { NetProgressOp::start(comm, self) } else { Ok(()) }
    }

    /// Has a profiler told of what the proxy does for this rank.
    pub(super) fn observe(&self, profiler: &Profiler) {
        let events = ProxyEvents::new(profiler, self.channels, self.slot_bytes);
        self.lock().connections.observe(events.observer());
        // Nobody else sets it: a communicator is made once.
        let _ = self.events.set(events);
    }

    /// Tells the profiler of steps that the proxy is given.
    fn tell(&self, connection: (ConnectionId, bool), steps: Steps, parent: Parent) {
        if let Some(events) = self.events.get() {
            events.add(connection, steps, parent);
        }
    }

    /// A rank on another host has left in good order.
    pub(super) fn on_peer_left(&self, rank: u32) {
        let mut state = self.lock();
        state.connections.on_peer_left(rank);
        let left = state.client.left(rank, &self.name);
        state.fail(left);
    }

    /// Sends what the communicator's kernels have sent, because the process may end next. Returns when all of it has been
    /// sent or given up, or after `limit`.
    pub(super) fn drain(&self, comm: &CommState, limit: Option<Duration>) {
        let begun = Instant::now();
        self.lock().released_at = Some(begun);
        if !comm.device.runtime().is_driven() {
            return; // nothing moves unless this thread waits for a stream
        }
        // Pairs with the release in `ProgressGuard`: the operation has let go of the communicator.
        while self.running_ops.load(Ordering::Acquire) > 0 {
            if limit.is_some_and(|limit| begun.elapsed() > limit) {
                warn!(target: crate::log::NET, "rank {}: left with data still to be sent", comm.rank);
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// How many of its operations and threads own the communicator.
    pub(super) fn owners(&self) -> usize {
        let relays = self.relay.is_some() && self.lock().server.is_running();
        self.running_ops.load(Ordering::Acquire) + usize::from(relays)
    }

    fn lock(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the connection of this number is for.
    fn describe(&self, index: u32) -> String {
        let channels = self.channels;
        match index.checked_sub(channels) {
            None => format!("channel {index:02}"),
            Some(channel) => format!("channel {channel:02} of sends and receives"),
        }
    }

    /// A broken connection as an error of this rank.
    fn error(&self, rank: u32, BrokenConnection { failure, client }: &BrokenConnection) -> Error {
        let ConnectionFailure { key, sending, seq, error } = failure;
        let to = if *sending { "to" } else { "from" };
        let (device, whose) = match client {
            None => (self.cards.device(*key), String::new()),
            Some(client) => {
                let cards = Cards { rank: *client, ..self.cards.clone() };
                let device = cards.relay(*key).map_or(self.cards.own, |(_, device)| device);
                (device, format!(" for rank {client} (PXN)"))
            }
        };
        let device = self.devices.get(device).map_or("", String::as_str);
        let what = self.describe(key.index) + &whose;
        let mut reason = format!("{}: {what} {to} it, on {device}: {error}", self.name);
        if *seq > 0 {
            reason += &format!(" (call {seq})");
        }
        Error::PeerLost { rank, peer: key.peer, reason }
    }
}

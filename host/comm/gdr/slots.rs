//! Slots of connections over the network that are in a GPU's memory.
//!
//! ```text
//! GdrCards ─► own connections ─────────► one allocation ─► EdgeEnd::slots ─► kernels, proxy
//!         └─► connections of the ranks ► one allocation ─► RelayServer: the proxy sends from it
//!             that this one sends for       └─ CUDA IPC ─► EdgeEnd::slots of those ranks ─► their kernels
//! ```
//!
//! There is room for some connections only: every rank on another host has many, and the application wants the memory. First
//! come neighbours in rings and trees, then messages, then collectives between ranks that are no neighbours. All others have
//! their slots in the host's memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ferroccl_proxy::connection::ConnectionId;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{Gdr, GdrAccess, GdrCards, SHARE};
use crate::channel::{DeviceSlots, SlotMemory};
use crate::comm::builder::CommBuilder;
use crate::comm::device_memory::MemoryFor;
use crate::comm::graphs::CommGraphs;
use crate::comm::net::{Cards, MappedRelays, OpenRelayMemory};
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::Memory;
use crate::transport::exported::{Exported, Importer};
use crate::transport::{PeerInfo, device};

/// By peer, by connection.
type SlotsByPeer = BTreeMap<u32, BTreeMap<u32, DeviceSlots>>;

/// The slots of what a rank sends for others, by the other rank and its connection.
pub(in crate::comm) type ServedSlots = HashMap<(u32, ConnectionId), DeviceSlots>;

/// What is in a rank's GPU's memory.
#[derive(Debug, Default)]
pub(in crate::comm) struct SlotPlacement {
    /// Slots of its own connections.
    received: SlotsByPeer,
    sent: SlotsByPeer,
    /// What it sends for others, and by what they find that.
    pub served: ServedSlots,
    pub handle: Option<RelayedSlotsHandle>,
}

impl SlotPlacement {
    /// Those of the edge from a rank.
    pub(in crate::comm) fn from(&self, rank: u32) -> BTreeMap<u32, DeviceSlots> {
        self.received.get(&rank).cloned().unwrap_or_default()
    }

    /// Those of the edge to a rank, beside what others send for this one.
    pub(in crate::comm) fn to(&self, rank: u32) -> BTreeMap<u32, DeviceSlots> {
        self.sent.get(&rank).cloned().unwrap_or_default()
    }
}

/// By what the ranks that a rank sends for find their slots.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::comm) struct RelayedSlotsHandle {
    memory: device::DeviceMemoryHandle,
    /// Bytes of the allocation, and where slots begin in it.
    bytes: usize,
    start: usize,
    /// The devices of the network that read them.
    cards: Vec<usize>,
    /// Each rank, the number of its first slots among all, and of how many of its connections there are slots.
    clients: Vec<(u32, usize, usize)>,
}

/// A connection that may have its slots in the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// The rank that this one sends for; `None` for its own connections.
    client: Option<u32>,
    key: ConnectionId,
    receiving: bool,
    /// The network's device that reads or writes the slots.
    card: usize,
    bytes: usize,
}

/// An allocation for slots, which are given out one after the other.
struct Places {
    memory: Arc<SlotMemory>,
    next: usize,
}

impl Places {
    fn of(memory: SlotMemory) -> Self {
        Places { memory: Arc::new(memory), next: 0 }
    }

    fn take(&mut self, candidate: &Candidate, gdr: Gdr) -> DeviceSlots {
        let offset = self.next;
        self.next += candidate.bytes;
        let (by_address, flush) = (gdr.by == GdrAccess::Address, gdr.flush);
        DeviceSlots { memory: Arc::clone(&self.memory), offset, by_address, flush }
    }
}

impl CommBuilder<'_> {
    /// Memory for slots; `remote` says for each rank whether the edge from it and the edge to it are over the network. What
    /// finds no room, and all if the driver refuses, is in the host's memory.
    pub(in crate::comm) fn place_slots(
        &self,
        (cards, gdr): (&Cards, &GdrCards),
        peers: &[PeerInfo],
        remote: &[(bool, bool)],
        relays: Option<&OpenRelayMemory>,
    ) -> SlotPlacement {
        let mut placement = SlotPlacement::default();
        if gdr.most == 0 {
            return placement;
        }
        let clients = self.clients(peers, relays);
        let chosen = self.choose_connections((cards, gdr), remote, relays, &clients);
        let (own, served): (Vec<Candidate>, Vec<Candidate>) =
            chosen.into_iter().partition(|candidate| candidate.client.is_none());
        if let Err(error) = self.place_own(gdr, &own, &mut placement) {
            self.warn_without(&error);
        }
        if let (Some(relays), false) = (relays, served.is_empty())
            && let Err(error) =
                self.place_served((gdr, relays), peers, &clients, &served, &mut placement)
        {
            self.warn_without(&error);
        }
        placement
    }

    fn warn_without(&self, error: &Error) {
        warn!(target: log::NET, "rank {}: GPU Direct RDMA Disabled, slots are in the host's memory: {error}", self.rank);
    }

    /// The ranks that this one sends for, as far as their kernels reach its GPU's memory.
    fn clients(&self, peers: &[PeerInfo], relays: Option<&OpenRelayMemory>) -> Vec<u32> {
        let (Some(graphs), Some(relays)) = (self.graphs, relays) else { return Vec::new() };
        let me = &peers[self.rank as usize];
        let is_client = |rank: &u32| {
            let reaches = device::reaches(&peers[*rank as usize], me, self.allowed());
            graphs.sends_for(self.rank, *rank) && reaches
        };
        relays.partners().iter().copied().filter(is_client).collect()
    }

    /// Which connections get slots: as many as there is room for, the most important ones first.
    fn choose_connections(
        &self,
        (cards, gdr): (&Cards, &GdrCards),
        remote: &[(bool, bool)],
        relays: Option<&OpenRelayMemory>,
        clients: &[u32],
    ) -> Vec<Candidate> {
        let channels = self.channels;
        // Collectives of neighbours, messages, all other collectives.
        let parts = [(0..channels, true), (channels..2 * channels, true), (0..channels, false)];
        let (mut left, mut chosen) = (gdr.most, Vec::new());
        for (part, (indices, neighbours)) in parts.into_iter().enumerate() {
            for index in indices {
                let mut candidates =
                    self.own_candidates((cards, gdr), remote, relays, (index, neighbours));
                if neighbours {
                    candidates.extend(
                        clients.iter().flat_map(|rank| self.served_candidates(*rank, gdr, index)),
                    );
                }
                for candidate in candidates {
                    let Some(rest) = left.checked_sub(candidate.bytes) else {
                        self.tell_of_full_memory(part == 0);
                        return chosen;
                    };
                    left = rest;
                    chosen.push(candidate);
                }
            }
        }
        chosen
    }

    fn tell_of_full_memory(&self, concerns_neighbours: bool) {
        let why =
            format!("slots take 1/{SHARE} of the GPU's memory (NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS)");
        let rank = self.rank;
        if concerns_neighbours {
            warn!(target: log::NET, "rank {rank}: GPU Direct RDMA Disabled for some neighbours in rings and trees: {why}");
        } else {
            info!(target: log::NET, "rank {rank}: GPU Direct RDMA Disabled for ranks that are no neighbours: {why}");
        }
    }

    /// This rank's own connections of a channel: with its neighbours in rings and trees, or with others.
    fn own_candidates(
        &self,
        (cards, gdr): (&Cards, &GdrCards),
        remote: &[(bool, bool)],
        relays: Option<&OpenRelayMemory>,
        (index, neighbours): (u32, bool),
    ) -> Vec<Candidate> {
        let ring = self.rings.get(index as usize % self.rings.len().max(1));
        let is_neighbour = |key: ConnectionId| {
            let in_ring = ring.is_some_and(|r| r.next() == key.peer || r.prev() == key.peer);
            index >= self.channels || in_ring || cards.is_named(key)
        };
        let of_peer = |(peer, (from, to)): (u32, &(bool, bool))| {
            let key = ConnectionId { peer, index };
            let card = cards.device(key);
            let here = (*from || *to) && is_neighbour(key) == neighbours;
            let by_other =
                || cards.relay(key).is_some_and(|(by, _)| relays.is_some_and(|r| r.has(by)));
            let receives = here && *from && gdr.of(card).is_some();
            let sends = here && *to && gdr.reads(card) && !by_other();
            let candidate = |receiving| {
                let bytes = self.layout.slots_bytes(receiving);
                Candidate { client: None, key, receiving, card, bytes }
            };
            [receives.then(|| candidate(true)), sends.then(|| candidate(false))]
                .into_iter()
                .flatten()
        };
        (0..).zip(remote).flat_map(of_peer).collect()
    }

    /// The connections of a channel that this rank sends on for `client`.
    fn served_candidates(&self, client: u32, gdr: &GdrCards, index: u32) -> Vec<Candidate> {
        let connections = self.relayed_to(self.rank, client, index);
        let candidate = |(key, card): (ConnectionId, usize)| {
            let bytes = self.layout.slots_bytes(false);
            gdr.reads(card).then_some(Candidate {
                client: Some(client),
                key,
                receiving: false,
                card,
                bytes,
            })
        };
        connections.into_iter().filter_map(candidate).collect()
    }

    /// The connections of a channel that rank `by` sends on for `client`, and by which card.
    fn relayed_to(&self, by: u32, client: u32, index: u32) -> Vec<(ConnectionId, usize)> {
        let relayed = |graphs: &Arc<CommGraphs>| graphs.relayed(client, index, self.channels);
        let relayed = self.graphs.map(relayed).unwrap_or_default().into_iter();
        relayed.filter(|c| c.by == by).map(|c| (c.key, c.device as usize)).collect()
    }

    /// Allocates the slots of this rank's own connections.
    fn place_own(
        &self,
        gdr: &GdrCards,
        own: &[Candidate],
        placement: &mut SlotPlacement,
    ) -> Result<()> {
        if own.is_empty() {
            return Ok(());
        }
        let mut places = Places::of(self.allocate(gdr, own)?);
        for candidate in own {
            let Some(card) = gdr.of(candidate.card) else { continue };
            let slots = places.take(candidate, card);
            let edges =
                if candidate.receiving { &mut placement.received } else { &mut placement.sent };
            edges.entry(candidate.key.peer).or_default().insert(candidate.key.index, slots);
        }
        Ok(())
    }

    /// Allocates the slots of the connections that this rank sends on for others, in the order in which these look for them.
    fn place_served(
        &self,
        (gdr, relays): (&GdrCards, &OpenRelayMemory),
        peers: &[PeerInfo],
        clients: &[u32],
        served: &[Candidate],
        placement: &mut SlotPlacement,
    ) -> Result<()> {
        let SlotMemory { memory, start, dma_buf } = self.allocate(gdr, served)?;
        let me = &peers[self.rank as usize];
        let importer =
            |rank: &u32| Importer::new(relays.mapping_word(*rank), &peers[*rank as usize], me);
        let others = clients.iter().filter(|rank| peers[**rank as usize].process != me.process);
        let importers: Vec<Importer> = others.map(importer).collect();
        let ipc = match importers.is_empty() {
            true => None,
            false => Some(self.device.runtime().export(&memory)?),
        };
        let bytes = memory.len();
        let memory: Arc<dyn Memory> = Arc::new(Exported::new(memory, importers));
        let handle = device::offer(&memory, ipc);
        let mut places = Places::of(SlotMemory { memory, start, dma_buf });
        let mut ranks = Vec::new();
        for client in clients {
            let mine = served.iter().filter(|candidate| candidate.client == Some(*client));
            let first = placement.served.len();
            for candidate in mine {
                let Some(card) = gdr.of(candidate.card) else { continue };
                placement.served.insert((*client, candidate.key), places.take(candidate, card));
            }
            ranks.push((*client, first, placement.served.len() - first));
        }
        let cards = gdr.that_read().collect();
        placement.handle =
            Some(RelayedSlotsHandle { memory: handle, bytes, start, cards, clients: ranks });
        Ok(())
    }

    /// Memory for these slots.
    fn allocate(&self, gdr: &GdrCards, candidates: &[Candidate]) -> Result<SlotMemory> {
        let bytes: usize = candidates.iter().map(|candidate| candidate.bytes).sum();
        let used = || candidates.iter().filter_map(|candidate| gdr.of(candidate.card));
        // SAFETY: no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let bytes = bytes.next_multiple_of(page);
        let runtime = self.device.runtime();
        let memory = runtime.allocate_shared(bytes.saturating_add(page))?;
        let memory = self.memory.counted(MemoryFor::Calls, memory);
        let address = usize::try_from(memory.address()).unwrap_or(0);
        let start = address.next_multiple_of(page) - address;
        let mut dma_buf = None;
        if used().any(|gdr| gdr.by != GdrAccess::Address) {
            match runtime.dma_buf(&memory, start, bytes) {
                Ok(file) => dma_buf = Some(file),
                Err(error) if used().all(Gdr::has_address) => {
                    info!(target: log::NET, "rank {}: no DMA buffer, by the address: {error}", self.rank);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(SlotMemory { memory, start, dma_buf })
    }

    /// The slots of this rank's connections that other ranks send on, in memory of those ranks' GPUs. `handles` finds what a
    /// rank has told of its own.
    ///
    /// # Errors
    /// When such memory cannot be mapped, and when what a rank tells makes no sense.
    pub(in crate::comm) fn relayed_slots<'h>(
        &self,
        relays: Option<&MappedRelays>,
        peers: &[PeerInfo],
        handles: impl Fn(u32) -> Option<&'h RelayedSlotsHandle>,
    ) -> Result<SlotsByPeer> {
        let mut slots = SlotsByPeer::new();
        let Some(MappedRelays { partners, layout, .. }) = relays else { return Ok(slots) };
        for (by, partner) in partners {
            let Some(handle) = handles(*by) else { continue };
            let mine = handle.clients.iter().find(|(client, ..)| *client == self.rank);
            let Some((_, first, count)) = mine.filter(|(.., count)| *count > 0) else { continue };
            let (RelayedSlotsHandle { bytes, start, .. }, each) =
                (handle, self.layout.slots_bytes(false));
            let end =
                first.checked_add(*count).and_then(|n| n.checked_mul(each)?.checked_add(*start));
            if end.is_none_or(|end| end > *bytes) {
                return Err(Error::malformed(format!(
                    "rank {by} has no such slots to send for rank {}",
                    self.rank
                )));
            }
            let me = &peers[self.rank as usize];
            let same = peers[*by as usize].process == me.process;
            let runtime = &**self.device.runtime();
            let word = partner.part(layout.mapping_word(self.rank), size_of::<u64>());
            let memory = device::accept(&handle.memory, same, *bytes, &word, runtime)
                .map_err(|error| self.cannot_map(*by, error))?;
            let memory = Arc::new(SlotMemory { memory, start: *start, dma_buf: None });
            let of_channel = |index| self.relayed_to(*by, self.rank, index);
            let connections = (0..2 * self.channels).flat_map(of_channel);
            let read = connections.filter(|(_, card)| handle.cards.contains(card));
            let mut places = *first..first + count;
            for ((key, _), number) in read.zip(places.by_ref()) {
                let (memory, offset) = (Arc::clone(&memory), number * each);
                let place = DeviceSlots { memory, offset, by_address: true, flush: false };
                slots.entry(key.peer).or_default().insert(key.index, place);
            }
            if !places.is_empty() {
                let left = places.len();
                let text =
                    format!("rank {by} has slots for {left} connections that it does not send on");
                return Err(Error::malformed(text));
            }
        }
        Ok(slots)
    }
}

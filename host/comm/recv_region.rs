//! The memory of a rank's edges: its own, in which it receives, and the parts of its peers' in which it sends.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use ferroccl_device::abi::TreeLinks;
use ferroccl_proxy::net::Net;
use serde::{Deserialize, Serialize};
use tracing::info;

use super::builder::CommBuilder;
use super::device_memory::MemoryFor;
use super::exchange::exchange;
use super::gdr::{self, GdrCards, RelayedSlotsHandle, SlotPlacement};
use super::net::{Cards, MappedRelays, NetConnections, NetHandles, NetListeners, OpenRelayMemory};
use super::nodes::Nodes;
use super::trees::Trees;
use crate::channel::{DeviceSlots, EdgeEnd, Edges, MAPPING_WORD};
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::Memory;
use crate::transport::exported::{Exported, Importer};
use crate::transport::{
    self, AllowedTransports, HostRegion, OfferedRegion, PeerInfo, Transport, device,
};
use ferroccl_bootstrap::{Bootstrap, BootstrapError};

impl CommBuilder<'_> {
    /// Makes the edges with all peers. Handles travel through the bootstrap, and with them where this rank listens for `meeting`.
    pub(super) fn connect(
        &self,
        bootstrap: &Bootstrap,
        peers: &[PeerInfo],
        meeting: SocketAddr,
    ) -> Result<ConnectedEdges> {
        let mut region = self.open_recv_region(peers)?;
        region.handles.meeting = Some(meeting);
        let handles = exchange::<_, Vec<PeerHandles>>(bootstrap, &region.handles)?;
        let (edges, relays) = match self.map_peers(&region, peers, &handles) {
            // A rank whose memory is gone may have given up because of another: the bootstrap tells of the first.
            Err(lost @ Error::PeerLost { .. }) => {
                return Err(bootstrap.barrier().err().map_or(lost, Error::from));
            }
            mapped => mapped?,
        };
        let net = self.net_connections(&mut region, &edges, &handles, relays.as_ref())?;
        let address = |(rank, handles): (usize, &PeerHandles)| {
            let none = || Error::malformed(format!("rank {rank} does not say where to meet"));
            handles.meeting.ok_or_else(none)
        };
        let addresses = handles.iter().enumerate().map(address).collect::<Result<_>>()?;
        Ok(ConnectedEdges { edges, net, addresses, open: region })
    }

    /// Maps the memory of all peers: this rank's edges, and what ranks of this host send for each other by.
    pub(super) fn map_peers(
        &self,
        region: &OpenRecvRegion,
        peers: &[PeerInfo],
        handles: &[PeerHandles],
    ) -> Result<(Vec<Option<Edges>>, Option<MappedRelays>)> {
        let relays = self.map_relays(region, peers, |rank| &handles[rank as usize])?;
        let edges = self.edges(region, relays.as_ref(), peers, handles)?;
        Ok((edges, relays))
    }

    /// The connections with ranks on other hosts, if there are such ranks.
    pub(super) fn net_connections(
        &self,
        region: &mut OpenRecvRegion,
        edges: &[Option<Edges>],
        handles: &[PeerHandles],
        relays: Option<&MappedRelays>,
    ) -> Result<Option<NetConnections>> {
        let Some((mine, mut cards)) = region.network.take() else { return Ok(None) };
        let name = mine.net.name();
        let mut listeners = Vec::with_capacity(handles.len());
        for (rank, handles) in handles.iter().enumerate() {
            listeners.push(match &handles.network {
                None => Vec::new(),
                Some(theirs) if theirs.network == name => theirs.listeners.clone(),
                Some(NetHandles { network: theirs, .. }) => {
                    let text = format!(
                        "the network (NCCL_NET) of rank {} is {name}, of rank {rank} {theirs}: all ranks need the same",
                        self.rank
                    );
                    return Err(BootstrapError::Mismatch(text).into());
                }
            });
        }
        cards.listeners = listeners;
        let (group, first_step) = (self.token.group, self.config.first_step);
        let (layout, served) = (self.layout, Arc::new(std::mem::take(&mut region.slots.served)));
        let net =
            NetConnections::new(mine, group, edges, layout, first_step, cards, relays, &served);
        Ok(Some(net))
    }

    /// Listens for ranks on other hosts, on the network device that is chosen for this rank and on those of its channels.
    fn listen(
        &self,
        net: &Arc<dyn Net>,
        peers: &[PeerInfo],
    ) -> Result<(NetListeners, Cards, GdrCards)> {
        // Ranks of a host take its devices in turn, or the devices that are nearest to their GPUs.
        let me = &peers[self.rank as usize];
        let before = peers[..self.rank as usize].iter().filter(|peer| peer.host == me.host);
        let rdma = self.device.runtime().rdma()?;
        let gpu = (me.device.as_ref(), rdma.as_ref());
        let graphs = self.graphs.map(|graphs| &**graphs);
        let named = graphs.map(|graphs| graphs.cards(self.rank)).unwrap_or_default();
        let turn = (before.count(), &named);
        let gdr::NetCard { device, gdr } = gdr::choose(&**net, gpu, turn, self.env)?;
        let listeners = NetListeners::open(Arc::clone(net), device, self.rank, graphs)?;
        for (device, _) in &listeners.listeners {
            let properties = net.properties(*device)?;
            info!(target: log::NET, "NET/{} : Using [{device}]{}", net.name(), properties.name);
        }
        let cards = Cards {
            rank: self.rank,
            channels: self.channels,
            graphs: self.graphs.cloned(),
            own: device,
            devices: net.devices(),
            listeners: Vec::new(),
        };
        Ok((listeners, cards, gdr))
    }

    /// Bytes of an edge.
    pub(super) fn edge_bytes(&self) -> usize {
        self.layout.edge_bytes(self.channels as usize)
    }

    /// Bytes of a receive region: an edge from each rank. Of the rank's own part at most the mesh's slots are touched, which have what it
    /// gives all others.
    fn recv_region_bytes(&self) -> Result<usize> {
        let bytes = self.layout.recv_region_bytes(self.channels as usize, self.nranks as usize);
        bytes.ok_or_else(|| {
            let (ranks, bytes) = (self.nranks, self.edge_bytes());
            let reason = format!("{ranks} connections of {bytes} bytes are more than memory has");
            Error::argument("nranks", reason)
        })
    }

    /// Where the edge from `sender` is in a receive region.
    fn edge_offset(&self, sender: u32) -> usize {
        self.layout.edge_offset(self.channels as usize, self.nranks as usize, sender)
    }

    /// Address of the header of the edge between these two over `transport`, of which `region` is the part of a receive region.
    fn header(
        &self,
        (sender, receiver): (&PeerInfo, &PeerInfo),
        transport: &dyn Transport,
        region: &HostRegion,
    ) -> u64 {
        // Of a shared file the sender has mapped its own part alone.
        if !on_cpu(sender, receiver) || transport.is_remote() || transport.needs_shared_memory() {
            return region.address();
        }
        let (channels, ranks) = (self.channels as usize, self.nranks as usize);
        region.address() - self.layout.header_distance(channels, ranks, sender.rank) as u64
    }

    /// Allocates the memory that this rank receives in, with a handle for each transport that its peers use.
    pub(super) fn open_recv_region(&self, peers: &[PeerInfo]) -> Result<OpenRecvRegion> {
        let me = &peers[self.rank as usize];
        let mut used: Vec<&'static dyn Transport> = Vec::new();
        for (rank, peer) in (0..).zip(peers) {
            if rank != self.rank {
                let transport = transport::select(peer, me, self.allowed())?;
                if used.iter().all(|other| other.name() != transport.name()) {
                    used.push(transport);
                }
            }
        }
        let shared = used.iter().any(|transport| transport.needs_shared_memory());
        let recv_region = OfferedRegion::new(self.recv_region_bytes()?, shared)?;
        let on_device = self.open_device_recv_region(peers, &recv_region)?;
        let handles = used
            .iter()
            .map(|transport| Ok((transport.name().to_owned(), transport.offer(&recv_region)?)));
        let recv_regions = handles.collect::<Result<_>>()?;
        let relays = self.open_relay_memory(peers)?;
        let (mut network, mut slots) = (None, SlotPlacement::default());
        if let Some(net) = self.net {
            let (listeners, cards, gdr) = self.listen(net, peers)?;
            let remote = self.remote_edges(peers)?;
            slots = self.place_slots((&cards, &gdr), peers, &remote, relays.as_ref());
            network = Some((listeners, cards));
        }
        let of_network = network.as_ref().map(|(listeners, _)| listeners.handles());
        let device = on_device.as_ref().map(|(_, handle)| handle.clone());
        let on_device = on_device.map(|(memory, _)| memory);
        let of_relays = relays.as_ref().map(|relays| relays.handles.clone()).unwrap_or_default();
        let handles = PeerHandles {
            recv_regions,
            device,
            network: of_network,
            relays: of_relays,
            relayed_slots: slots.handle.take(),
            meeting: None,
        };
        Ok(OpenRecvRegion { handles, recv_region, on_device, network, slots, relays })
    }

    /// For each rank whether the edge from it is over the network, and whether the edge to it is.
    fn remote_edges(&self, peers: &[PeerInfo]) -> Result<Vec<(bool, bool)>> {
        let (me, allowed) = (&peers[self.rank as usize], self.allowed());
        let remote = |from: &PeerInfo, to: &PeerInfo| -> Result<bool> {
            Ok(from.rank != to.rank && transport::select(from, to, allowed)?.is_remote())
        };
        peers.iter().map(|peer| Ok((remote(peer, me)?, remote(me, peer)?))).collect()
    }

    /// Allocates the connections that are in memory of our device, for senders whose kernels reach it.
    fn open_device_recv_region(
        &self,
        peers: &[PeerInfo],
        recv_region: &OfferedRegion,
    ) -> Result<Option<(Arc<dyn Memory>, device::DeviceMemoryHandle)>> {
        let (me, allowed) = (&peers[self.rank as usize], self.allowed());
        let bytes = self.device_bytes(me, peers, allowed);
        if bytes == 0 {
            return Ok(None);
        }
        let runtime = &**self.device.runtime();
        let memory = self.memory.counted(MemoryFor::Calls, runtime.allocate_shared(bytes)?);
        let other =
            |peer: &&PeerInfo| peer.process != me.process && device::reaches(peer, me, allowed);
        let importer = |peer: &PeerInfo| {
            let word = self.edge_offset(peer.rank) + MAPPING_WORD;
            let word = recv_region.part(word, size_of::<u64>());
            Importer::new(word, peer, me)
        };
        let importers: Vec<_> = peers.iter().filter(other).map(importer).collect();
        let ipc = match importers.is_empty() {
            true => None,
            false => Some(runtime.export(&memory)?),
        };
        let memory: Arc<dyn Memory> = Arc::new(Exported::new(memory, importers));
        let handle = device::offer(&memory, ipc);
        Ok(Some((memory, handle)))
    }

    /// Bytes of a receiver's connections in device memory.
    fn device_bytes(
        &self,
        receiver: &PeerInfo,
        peers: &[PeerInfo],
        allowed: AllowedTransports<'_>,
    ) -> usize {
        let senders = device::sender_index(None, receiver, peers, allowed);
        senders * self.layout.conns_bytes(self.channels as usize)
    }

    /// The offset of the connections from `sender` in the receiver's device memory, if they are there.
    fn device_offset(
        &self,
        sender: &PeerInfo,
        receiver: &PeerInfo,
        peers: &[PeerInfo],
    ) -> Option<usize> {
        let allowed = self.allowed();
        device::reaches(sender, receiver, allowed).then(|| {
            let place = device::sender_index(Some(sender.rank), receiver, peers, allowed);
            place * self.layout.conns_bytes(self.channels as usize)
        })
    }

    /// This rank's ends of its edges, by peer.
    fn edges(
        &self,
        mine: &OpenRecvRegion,
        relays: Option<&MappedRelays>,
        peers: &[PeerInfo],
        handles: &[PeerHandles],
    ) -> Result<Vec<Option<Edges>>> {
        let of_server = |rank: u32| handles[rank as usize].relayed_slots.as_ref();
        let mut relayed = self.relayed_slots(relays, peers, of_server)?;
        let me = &peers[self.rank as usize];
        let (bytes, len) = (self.edge_bytes(), self.recv_region_bytes()?);
        let tree_links = self.tree_links(peers);
        // Most edges have no slots of their own, and share one empty table.
        let none = Arc::default();
        let shared = |slots: BTreeMap<u32, DeviceSlots>| {
            if slots.is_empty() { Arc::clone(&none) } else { Arc::new(slots) }
        };
        let edges = (0..).zip(peers).map(|(rank, peer)| {
            if rank == self.rank {
                return Ok(None);
            }
            let to = transport::select(me, peer, self.allowed())?;
            let from = transport::select(peer, me, self.allowed())?;
            let handle =
                handles[rank as usize].recv_regions.iter().find(|(name, _)| name == to.name());
            let (_, handle) = handle.ok_or_else(|| {
                Error::malformed(format!("rank {rank} offers no memory through {}", to.name()))
            })?;
            let (to_direct, from_direct) = (to.direct(me, peer), from.direct(peer, me));
            let region = match &mine.relays {
                Some(relays) if to.is_remote() => relays.edge(rank),
                _ => to
                    .accept(handle, len, self.edge_offset(self.rank), bytes)
                    .map_err(|error| self.cannot_map(rank, error))?,
            };
            let there = match (&handles[rank as usize].device, self.device_offset(me, peer, peers))
            {
                (Some(handle), Some(offset)) if !to.is_remote() => {
                    let bytes = self.device_bytes(peer, peers, self.allowed());
                    let same = peer.process == me.process;
                    let word = region.part(MAPPING_WORD, size_of::<u64>());
                    let memory =
                        device::accept(handle, same, bytes, &word, &**self.device.runtime())
                            .map_err(|error| self.cannot_map(rank, error))?;
                    Some((memory, offset))
                }
                _ => None,
            };
            let here = match (&mine.on_device, self.device_offset(peer, me, peers)) {
                (Some(memory), Some(offset)) if !from.is_remote() => {
                    Some((Arc::clone(memory), offset))
                }
                _ => None,
            };
            let remote = to.is_remote();
            let mut slots = mine.slots.to(rank);
            slots.extend(relayed.remove(&rank).unwrap_or_default());
            let send = EdgeEnd {
                header: self.header((me, peer), to, &region),
                region,
                on_device: there,
                peer: rank,
                direct: to_direct,
                receiving: false,
                remote,
                slots: shared(slots),
            };
            let region = mine.recv_region.part(self.edge_offset(rank), bytes);
            let remote = from.is_remote();
            let recv = EdgeEnd {
                header: self.header((peer, me), from, &region),
                region,
                on_device: here,
                peer: rank,
                direct: from_direct,
                receiving: true,
                remote,
                slots: shared(mine.slots.from(rank)),
            };
            let same_process = peer.process == me.process;
            self.log_transport((from, same_process), &recv, mine, &tree_links);
            self.log_transport((to, same_process), &send, mine, &tree_links);
            // A rank reads there what a peer has for all.
            let has_shared = on_cpu(me, peer) && self.layout.mesh_slot_bytes != [0; 3];
            let shared = has_shared.then(|| {
                let part = to.accept(handle, len, self.edge_offset(rank), bytes);
                part.map_err(|error| self.cannot_map(rank, error))
            });
            Ok(Some(Edges { send, recv, shared: shared.transpose()? }))
        });
        edges.collect()
    }

    /// The error of memory of `peer` that cannot be mapped: the process that has it may have ended meanwhile.
    pub(super) fn cannot_map(&self, peer: u32, error: Error) -> Error {
        match error {
            Error::System { what, source } if source.kind() == ErrorKind::NotFound => {
                let reason = format!("its memory is gone: {what}: {source}");
                Error::PeerLost { rank: self.rank, peer, reason }
            }
            Error::System { what, source } => {
                Error::System { what: format!("memory of rank {peer}: {what}"), source }
            }
            error => error,
        }
    }

    /// This rank's place in the tree of each channel, where there are graphs.
    fn tree_links(&self, peers: &[PeerInfo]) -> Vec<TreeLinks> {
        let Some(graphs) = self.graphs else { return Vec::new() };
        let nodes = Nodes::new(self.rank, peers, self.config.ranks_per_node);
        Trees::new(self.rank, self.channels, &nodes, Some(graphs)).own().to_vec()
    }

    /// Logs the transports of the channels' edges, in NCCL's words: of rings all, of trees those to other hosts.
    fn log_transport(
        &self,
        (transport, same_process): (&dyn Transport, bool),
        end: &EdgeEnd,
        mine: &OpenRecvRegion,
        tree_links: &[TreeLinks],
    ) {
        let (rank, peer, remote) = (self.rank, end.peer, transport.is_remote());
        for (channel, ring) in (0..self.channels).zip(self.rings.iter().cycle()) {
            let path = || match &mine.network {
                Some((listeners, _)) if remote => self.net_path(listeners, end, channel, mine),
                _ if end.on_device.is_some() && !same_process => "P2P/IPC".to_owned(),
                _ if end.on_device.is_some() && !end.direct => "P2P/peer access".to_owned(),
                _ => transport.name().to_owned() + if end.direct { "/direct pointer" } else { "" },
            };
            let neighbour = if end.receiving { ring.prev() } else { ring.next() };
            let links = tree_links.get(channel as usize).filter(|_| remote);
            let in_tree = links.is_some_and(|links| links.up == peer || links.down.contains(&peer));
            match (peer == neighbour || in_tree, end.receiving) {
                (true, true) if remote => {
                    info!(target: log::INIT, "Channel {channel:02} : {peer} -> {rank} [receive] via {}", path());
                }
                (true, false) => {
                    let send = if remote { " [send]" } else { "" };
                    info!(target: log::INIT, "Channel {channel:02} : {rank} -> {peer}{send} via {}", path());
                }
                _ => {}
            }
        }
    }

    /// The network, the device and, in brackets, the rank that sends by it instead of this one.
    fn net_path(
        &self,
        NetListeners { net, listeners }: &NetListeners,
        end: &EdgeEnd,
        channel: u32,
        mine: &OpenRecvRegion,
    ) -> String {
        let gdr = if end.slots.contains_key(&channel) { "/GDRDMA" } else { "" };
        let relay = self.graphs.filter(|_| !end.receiving);
        let relay = relay.and_then(|g| g.relay(self.rank, end.peer, channel, self.channels));
        if let (Some((by, device)), Some(relays)) = (relay, &mine.relays)
            && relays.has(by)
        {
            return format!("NET/{}/{device}({by}){gdr}", net.name());
        }
        let named = self.graphs.and_then(|g| g.card(self.rank, end.peer, channel, self.channels));
        let own = listeners.first().map_or(0, |(device, _)| *device);
        let device = named.map(|device| device as usize).filter(|d| *d < net.devices());
        format!("NET/{}/{}{gdr}", net.name(), device.unwrap_or(own))
    }
}

/// Whether two ranks are on CPU devices.
fn on_cpu(one: &PeerInfo, other: &PeerInfo) -> bool {
    one.device.is_none() && other.device.is_none()
}

/// What a rank's peers need to connect with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PeerHandles {
    /// Its receive region: a handle for each transport, by name.
    recv_regions: Vec<(String, Vec<u8>)>,
    /// Its connections in device memory.
    device: Option<device::DeviceMemoryHandle>,
    /// Its listeners, for ranks on other hosts.
    network: Option<NetHandles>,
    /// The memory by which ranks of its host send for each other: a handle for each transport, by name.
    pub relays: Vec<(String, Vec<u8>)>,
    /// What it sends from for ranks of its host, in its GPU's memory.
    relayed_slots: Option<RelayedSlotsHandle>,
    /// Where it listens for those that are left after a failure.
    meeting: Option<SocketAddr>,
}

/// A rank's edges with all peers, when it has mapped their memory, and they may still be about to map its own.
pub(super) struct ConnectedEdges {
    /// By peer.
    pub edges: Vec<Option<Edges>>,
    pub net: Option<NetConnections>,
    /// Where the ranks meet after a failure.
    pub addresses: Vec<SocketAddr>,
    /// To be dropped when all peers have mapped it.
    pub open: OpenRecvRegion,
}

/// A rank's receive region, before its peers have mapped it.
pub(super) struct OpenRecvRegion {
    recv_region: OfferedRegion,
    on_device: Option<Arc<dyn Memory>>,
    pub handles: PeerHandles,
    pub network: Option<(NetListeners, Cards)>,
    slots: SlotPlacement,
    pub relays: Option<OpenRelayMemory>,
}

//! How the ranks of a host share the memory by which they send for each other.

use std::collections::BTreeMap;

use super::memory::RelayLayout;
use crate::comm::builder::CommBuilder;
use crate::comm::recv_region::{OpenRecvRegion, PeerHandles};
use crate::error::{Error, Result};
use crate::transport::{self, HostRegion, OfferedRegion, PeerInfo, Transport};

/// A rank's memory, before the others have mapped it.
pub(in crate::comm) struct OpenRelayMemory {
    region: OfferedRegion,
    layout: RelayLayout,
    partners: Vec<u32>,
    /// A handle for each transport, by name.
    pub handles: Vec<(String, Vec<u8>)>,
}

/// A rank's own memory, and that of those which it sends for or which send for it.
#[derive(Debug)]
pub(in crate::comm) struct MappedRelays {
    pub own: HostRegion,
    pub layout: RelayLayout,
    pub partners: BTreeMap<u32, HostRegion>,
}

impl OpenRelayMemory {
    /// The memory of the edge to a rank of another host.
    pub(in crate::comm) fn edge(&self, peer: u32) -> HostRegion {
        self.region.part(self.layout.edge(peer), self.layout.edge_bytes)
    }

    /// The ranks that send for this one or that this one sends for, and that share memory with it.
    pub(in crate::comm) fn partners(&self) -> &[u32] {
        &self.partners
    }

    /// The word by which `client` says whether it has the slots mapped that this rank sends from for it.
    pub(in crate::comm) fn mapping_word(&self, client: u32) -> HostRegion {
        self.region.part(self.layout.mapping_word(client), size_of::<u64>())
    }

    /// Whether this rank and `rank` share memory.
    pub(in crate::comm) fn has(&self, rank: u32) -> bool {
        self.partners.contains(&rank)
    }
}

impl CommBuilder<'_> {
    /// The ranks that send for this one or that this one sends for, each with the transport by which it reaches this one's
    /// memory. Both of two find each other.
    fn relay_partners(&self, peers: &[PeerInfo]) -> Result<Vec<(u32, &'static dyn Transport)>> {
        let Some(graphs) = self.graphs else { return Ok(Vec::new()) };
        let me = &peers[self.rank as usize];
        let mut partners = Vec::new();
        for (rank, peer) in (0..).zip(peers).filter(|(_, peer)| peer.host == me.host) {
            let either = graphs.sends_for(rank, self.rank) || graphs.sends_for(self.rank, rank);
            if rank == self.rank || !either {
                continue;
            }
            let to = transport::select(me, peer, self.allowed())?;
            let from = transport::select(peer, me, self.allowed())?;
            // Two that share no memory send for themselves.
            if !to.is_remote() && !from.is_remote() {
                partners.push((rank, from));
            }
        }
        Ok(partners)
    }

    /// Allocates this rank's memory, if there are others to share it with.
    pub(in crate::comm) fn open_relay_memory(
        &self,
        peers: &[PeerInfo],
    ) -> Result<Option<OpenRelayMemory>> {
        let mut used: Vec<&'static dyn Transport> = Vec::new();
        let partners = self.relay_partners(peers)?;
        for (_, transport) in &partners {
            if used.iter().all(|other| other.name() != transport.name()) {
                used.push(*transport);
            }
        }
        if used.is_empty() {
            return Ok(None);
        }
        let layout = self.relay_layout();
        let too_large = || Error::argument("nranks", "the connections are more than memory has");
        let bytes = layout.bytes().ok_or_else(too_large)?;
        let shared = used.iter().any(|transport| transport.needs_shared_memory());
        let region = OfferedRegion::new(bytes, shared)?;
        let handle = |transport: &&dyn Transport| {
            Ok((transport.name().to_owned(), transport.offer(&region)?))
        };
        let handles = used.iter().map(handle).collect::<Result<_>>()?;
        let partners = partners.iter().map(|(rank, _)| *rank).collect();
        Ok(Some(OpenRelayMemory { region, layout, partners, handles }))
    }

    fn relay_layout(&self) -> RelayLayout {
        RelayLayout { ranks: self.nranks as usize, edge_bytes: self.edge_bytes() }
    }

    /// Maps the others' memory; `handles` finds a rank's.
    pub(in crate::comm) fn map_relays<'h>(
        &self,
        region: &OpenRecvRegion,
        peers: &[PeerInfo],
        handles: impl Fn(u32) -> &'h PeerHandles,
    ) -> Result<Option<MappedRelays>> {
        let Some(mine) = &region.relays else { return Ok(None) };
        let bytes = mine.layout.bytes().unwrap_or(0);
        let (mut partners, me) = (BTreeMap::new(), &peers[self.rank as usize]);
        for (rank, _) in self.relay_partners(peers)? {
            let to = transport::select(me, &peers[rank as usize], self.allowed())?;
            let handle = handles(rank).relays.iter().find(|(name, _)| name == to.name());
            let (_, handle) = handle.ok_or_else(|| {
                let text =
                    format!("rank {rank} offers no memory to send for it through {}", to.name());
                Error::malformed(text)
            })?;
            let memory = to.accept(handle, bytes, 0, bytes);
            partners.insert(rank, memory.map_err(|error| self.cannot_map(rank, error))?);
        }
        let own = mine.region.part(0, bytes);
        Ok(Some(MappedRelays { own, layout: mine.layout, partners }))
    }
}

//! The memory of an edge, and the connections in it.
//!
//! An edge leads from one rank to another. It has two connections for each channel: one for collectives, and one for sends
//! and receives, so that both may run at the same time. The edge's header is in the host's memory, a part of the receiver's
//! receive region. The connections follow it, or are in memory of the receiver's device if the sender's kernels reach that.
//! Both ends compute the same layout from the same numbers.
//!
//! A rank that leaves writes into the headers of all its edges. Between ranks on the CPU of one process, which may be a thousand, the
//! headers are therefore beside each other, at the beginning of the receive region. In a page each they would be a million pages,
//! and as many pages of page tables.
//!
//! ```text
//! headers (faults) of a process's ranks
//! header (faults) | signatures | collectives: channel 0, 1, ... | sends and receives: channel 0, 1, ... | mesh: channel 0, 1, ...
//!                                       connection: header, slots of LL, LL128, Simple and others, step FIFO
//! ```
//!
//! What the receiver of a connection says to its sender (credit, addresses, acknowledgements) it writes into the same connection
//! of the edge the other way, which is near the sender: whoever polls a word has it in its own memory.
//!
//! If the edge is over a network, each end has memory of its own, and proxies move the data between them. Of each connection,
//! the slots of some protocols may then be in memory of a device ([`DeviceSlots`]): the end's own, or the one of the rank that
//! sends for it (PXN). The layout in the host's memory leaves no gap for them.

mod layout;

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::abi::{
    Conn, ConnHeader, EdgeHeader, Fault, MESH_DIGEST_BYTES, Peer, Poison, ProtocolId,
};
use ferroccl_proxy::connection::{ConnMemory, GpuSlots};
use ferroccl_proxy::net::MemoryKind;

use crate::error::Result;
use crate::runtime::{Memory, Runtime};
use crate::transport::HostRegion;

pub(crate) use layout::{ConnLayout, HEADER_BYTES, MAPPING_WORD};
use layout::{HEADER_IN_TABLE, PAGE, SIGNATURE_BYTES};

/// The two sets of an edge's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnSet {
    /// The connections of collectives.
    Collective = 0,
    /// The connections of sends and receives.
    P2p = 1,
}

/// One end of an edge.
#[derive(Clone, Debug)]
pub(crate) struct EdgeEnd {
    /// The host's memory that both ends share: the header, unless that is among others, and the connections if they are not on a
    /// device.
    pub region: HostRegion,
    /// Address of the header, in the mapping that `region` is a part of.
    pub header: u64,
    /// The connections in memory of the receiver's device: the allocation, and their offset in it.
    pub on_device: Option<(Arc<dyn Memory>, usize)>,
    /// The rank at the other end.
    pub peer: u32,
    /// Whether the sender's kernels reach the receiver's buffers.
    pub direct: bool,
    /// Whether this end is the receiver's.
    pub receiving: bool,
    /// Whether the edge is over a network: the other end has memory of its own, and proxies move the data.
    pub remote: bool,
    /// For an edge over a network: by connection, the slots that are in memory of a device.
    pub slots: Arc<BTreeMap<u32, DeviceSlots>>,
}

/// Slots of a connection over a network, in memory of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSlots {
    /// The allocation, which many connections share.
    pub memory: Arc<SlotMemory>,
    /// The offset of the slots behind its start, a multiple of a page.
    pub offset: usize,
    /// Whether the network reaches the memory by its address, although there is a DMA buffer.
    pub by_address: bool,
    /// Whether the network's writes have to be flushed.
    pub flush: bool,
}

/// Memory of a device that the network card reaches.
#[derive(Debug)]
pub(crate) struct SlotMemory {
    /// The allocation.
    pub memory: Arc<dyn Memory>,
    /// The offset of the slots in it, at a page.
    pub start: usize,
    /// The slots as a DMA buffer; `None` for networks that reach the memory by its address.
    pub dma_buf: Option<OwnedFd>,
}

impl DeviceSlots {
    fn address(&self) -> u64 {
        self.memory.memory.address() + (self.memory.start + self.offset) as u64
    }

    /// The slots for the network.
    fn for_network(&self, bytes: usize) -> GpuSlots {
        let file = self.memory.dma_buf.as_ref().filter(|_| !self.by_address);
        let kind = file.map_or(MemoryKind::Cuda, |file| MemoryKind::DmaBuf {
            fd: file.as_raw_fd(),
            offset: self.offset as u64,
        });
        GpuSlots { memory: (self.address(), bytes), kind, flush: self.flush }
    }
}

/// A rank's two edges with a peer.
#[derive(Clone, Debug)]
pub(crate) struct Edges {
    pub send: EdgeEnd,
    pub recv: EdgeEnd,
    /// Between CPU devices that have a mesh, the part of the peer's receive region where an edge from itself would be: in that edge's
    /// slots of the mesh it writes what it has for all others.
    pub shared: Option<HostRegion>,
}

impl Edges {
    /// The two connections of a channel, for kernels.
    pub(crate) fn peer(
        &self,
        layout: &ConnLayout,
        channels: usize,
        set: ConnSet,
        channel: usize,
        first_step: u64,
    ) -> Peer {
        let index = set as usize * channels + channel;
        let conn = |end: &EdgeEnd, other: &EdgeEnd| {
            let near_sender = if end.remote { end } else { other };
            let reply = near_sender.place(layout, index).header;
            let conn = end.place(layout, index).conn(layout, first_step);
            let calls = |header: u64| header + offset_of!(ConnHeader, calls) as u64;
            let (calls, calls_reply) = match set {
                ConnSet::Collective => (end.conns(), near_sender.conns()),
                ConnSet::P2p => (calls(conn.header), calls(reply)),
            };
            Conn { reply, calls, calls_reply, ..conn }
        };
        Peer { send: conn(&self.send, &self.recv), recv: conn(&self.recv, &self.send) }
    }

    /// The steps that are published and taken in connection number `index`, of those that this rank sends and of those that it
    /// receives: the tail and the head of each. `None` for a connection in a device's memory, which the host does not read,
    /// and for one that nobody has touched yet.
    pub(crate) fn steps(&self, layout: &ConnLayout, index: usize) -> [Option<[u64; 2]>; 2] {
        [(&self.send, &self.recv), (&self.recv, &self.send)].map(|(end, other)| {
            let near_sender = if end.remote { end } else { other };
            let tail = end.word(layout, index, offset_of!(ConnHeader, tail));
            let head = near_sender.word(layout, index, offset_of!(ConnHeader, head));
            match (tail, head) {
                (None, None) => None,
                (tail, head) => Some([tail.unwrap_or(0), head.unwrap_or(0)]),
            }
        })
    }
}

/// What lies at an address of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EdgePart {
    /// The header, with the faults.
    Header,
    /// The signatures of collective calls.
    Signatures,
    /// So many bytes into the header of a connection.
    ConnHeader { channel: u32, p2p: bool, offset: usize },
    /// So many bytes into a slot of a protocol, which is named by its index.
    Slot { channel: u32, p2p: bool, protocol: usize, slot: u32, byte: u32 },
}

/// Where a connection's parts are.
struct ConnPlace<'a> {
    end: &'a EdgeEnd,
    /// Address of the header, which what is in the host's memory follows.
    header: u64,
    /// The slots that are in memory of a device.
    slots: Option<&'a DeviceSlots>,
}

impl ConnPlace<'_> {
    /// The layout of what is beside the header.
    fn layout(&self, layout: &ConnLayout) -> ConnLayout {
        self.slots.map_or(*layout, |_| layout.parts(self.end.receiving).0)
    }

    /// For kernels, and for the proxy: as of an edge over a network, of which one host has all.
    fn conn(&self, layout: &ConnLayout, first_step: u64) -> Conn {
        let (end, here) = (self.end, self.layout(layout));
        let mut at = self.header + size_of::<ConnHeader>() as u64;
        let mut there = self.slots.map_or(0, DeviceSlots::address);
        let mut buffers = [0; ProtocolId::MOST];
        for (i, buffer) in buffers.iter_mut().enumerate() {
            let next = if here.slot_bytes[i] > 0 { &mut at } else { &mut there };
            *buffer = *next;
            *next += u64::from(layout.slot_bytes[i]) * u64::from(layout.slots);
        }
        Conn {
            header: self.header,
            reply: self.header,
            buffers,
            slot_bytes: layout.slot_bytes,
            slots: layout.slots,
            peer: end.peer,
            direct: end.direct.into(),
            pad: 0,
            step: first_step,
            edge: end.header,
            calls: end.conns(),
            calls_reply: end.conns(),
            fifo: if end.remote && !end.receiving { at } else { 0 },
            wait_tail_first: (end.remote && end.receiving).into(),
            failed: 0,
            credit: first_step + u64::from(layout.slots),
            told: 0,
            settled: 0,
            room: 0,
        }
    }

    /// For the proxy.
    fn memory(&self, layout: &ConnLayout, first_step: u64) -> ConnMemory {
        let bytes = self.layout(layout).conn_bytes();
        let ring = self.end.conns();
        // The signatures of collectives, of all channels, go with the steps of the first connection, behind whose ring it lies: a
        // call's signature and its first step are then one message of the network.
        let (calls, memory) = if self.header == ring + SIGNATURE_BYTES as u64 {
            (ring, (ring, SIGNATURE_BYTES + bytes))
        } else {
            (self.header + offset_of!(ConnHeader, calls) as u64, (self.header, bytes))
        };
        let bytes = layout.slots_bytes(self.end.receiving);
        let on_gpu = self.slots.map(|slots| slots.for_network(bytes));
        ConnMemory { calls, conn: self.conn(layout, first_step), memory, on_gpu }
    }
}

impl EdgeEnd {
    /// The sender's end of an edge over a network, as the rank that sends for it sees it: in the host's `region`.
    pub(crate) fn remote_send(region: HostRegion, peer: u32) -> Self {
        let (direct, receiving, remote, header) = (false, false, true, region.address());
        let (on_device, slots) = (None, Arc::default());
        EdgeEnd { region, header, on_device, peer, direct, receiving, remote, slots }
    }

    /// Connection number `index`.
    fn place(&self, layout: &ConnLayout, index: usize) -> ConnPlace<'_> {
        let slots = u32::try_from(index).ok().and_then(|index| self.slots.get(&index));
        let header = self.conns() + self.conn_offset(layout, index) as u64;
        ConnPlace { end: self, header, slots }
    }

    /// Where connection number `index` begins, or all of them end, behind the edge's header.
    fn conn_offset(&self, layout: &ConnLayout, index: usize) -> usize {
        if self.slots.is_empty() {
            return SIGNATURE_BYTES + index * layout.conn_bytes();
        }
        let (here, _) = layout.parts(self.receiving);
        let elsewhere = self.slots.keys().take_while(|conn| (**conn as usize) < index).count();
        SIGNATURE_BYTES + elsewhere * here.conn_bytes() + (index - elsewhere) * layout.conn_bytes()
    }

    /// Where the header of connection number `index` is in the region of an edge over a network.
    pub(crate) fn header_offset(&self, layout: &ConnLayout, index: usize) -> usize {
        HEADER_BYTES + self.conn_offset(layout, index)
    }

    /// The memory that the proxy reads or writes for a connection whose header is at `offset` in the region and whose device
    /// slots are `slots`; `None` when it is not inside.
    pub(crate) fn conn_memory_at(
        &self,
        layout: &ConnLayout,
        offset: usize,
        slots: Option<&DeviceSlots>,
        first_step: u64,
    ) -> Option<ConnMemory> {
        let place = ConnPlace { end: self, header: self.region.address() + offset as u64, slots };
        let known = offset >= HEADER_BYTES + SIGNATURE_BYTES && offset.is_multiple_of(PAGE);
        let end = offset.checked_add(place.layout(layout).conn_bytes())?;
        (known && end <= self.region.len()).then(|| place.memory(layout, first_step))
    }

    /// Address of the connections.
    fn conns(&self) -> u64 {
        match &self.on_device {
            Some((memory, offset)) => memory.address() + *offset as u64,
            None => self.region.address() + HEADER_BYTES as u64,
        }
    }

    /// Address of the mesh's slots of a channel, before which the digests lie, in memory that both ends reach. The edge is not
    /// over a network.
    pub(crate) fn mesh(&self, layout: &ConnLayout, channels: usize, channel: usize) -> u64 {
        let offset = self.conn_offset(layout, 2 * channels) + channel * layout.mesh_bytes();
        self.conns() + (offset + MESH_DIGEST_BYTES) as u64
    }

    /// Sets the counters of all connections to the first step, if that is for this end to do.
    ///
    /// # Errors
    /// When the device's memory cannot be written.
    pub(crate) fn set_first_step(
        &self,
        layout: &ConnLayout,
        channels: usize,
        first_step: u64,
        runtime: &dyn Runtime,
    ) -> Result<()> {
        if first_step == 0 || !(self.receiving || self.remote) {
            return Ok(());
        }
        for index in 0..2 * channels {
            for counter in [offset_of!(ConnHeader, tail), offset_of!(ConnHeader, head)] {
                let at = self.conn_offset(layout, index) + counter;
                match &self.on_device {
                    Some((memory, offset)) => {
                        // SAFETY: it is the runtime's, and ours until the sender is told.
                        unsafe { runtime.write(memory, offset + at, &first_step.to_ne_bytes())? };
                    }
                    None => {
                        let at = (self.conns() + at as u64) as *mut u64;
                        // SAFETY: the region is ours until the sender is told, or ours alone.
                        unsafe { AtomicU64::from_ptr(at).store(first_step, Ordering::Relaxed) };
                    }
                }
            }
        }
        Ok(())
    }

    /// The host's memory that kernels access: address and bytes of the region's, and of the header if that is elsewhere.
    pub(crate) fn host_memory(
        &self,
        layout: &ConnLayout,
        channels: usize,
    ) -> impl Iterator<Item = (u64, usize)> + use<> {
        let elsewhere = self.header != self.region.address();
        let header = elsewhere.then_some((self.header, HEADER_IN_TABLE));
        [self.region_memory(layout, channels)].into_iter().chain(header)
    }

    fn region_memory(&self, layout: &ConnLayout, channels: usize) -> (u64, usize) {
        let bytes = match self.on_device {
            Some(_) => HEADER_BYTES,
            None => {
                HEADER_BYTES
                    + self.conn_offset(layout, 2 * channels)
                    + channels * layout.mesh_bytes()
            }
        };
        (self.region.address(), bytes.min(self.region.len()))
    }

    /// The memory that the proxy reads or writes for connection number `index`; with the first one, the edge's ring of signatures.
    /// `None` when there is no such connection.
    pub(crate) fn conn_memory(
        &self,
        layout: &ConnLayout,
        channels: usize,
        index: usize,
        first_step: u64,
    ) -> Option<ConnMemory> {
        (index < 2 * channels).then(|| self.place(layout, index).memory(layout, first_step))
    }

    /// A word of the header of connection number `index`. `None` for a connection in a device's memory, which the host does not
    /// read, and for one that nobody has touched yet: looking would make its page.
    fn word(&self, layout: &ConnLayout, index: usize, word: usize) -> Option<u64> {
        let offset = self.header_offset(layout, index);
        if self.on_device.is_some() || !self.region.is_resident(offset) {
            return None;
        }
        let at = (self.region.address() + (offset + word) as u64) as *mut u64;
        // SAFETY: the region has room for all connections of its layout, and lives as long as `self`; kernels and proxies
        // access these words as atomics. Relaxed: it is looked at, and publishes nothing here.
        Some(unsafe { AtomicU64::from_ptr(at).load(Ordering::Relaxed) })
    }

    /// What lies at an address, if it is in this edge: the channel and set of a connection, and the part of it.
    pub(crate) fn part_at(
        &self,
        layout: &ConnLayout,
        channels: usize,
        address: u64,
    ) -> Option<EdgePart> {
        for (start, bytes) in
            [(self.header, HEADER_IN_TABLE), (self.region.address(), HEADER_BYTES)]
        {
            if (start..start + bytes as u64).contains(&address) {
                return Some(EdgePart::Header);
            }
        }
        let signatures = self.conns()..self.conns() + SIGNATURE_BYTES as u64;
        if signatures.contains(&address) {
            return Some(EdgePart::Signatures);
        }
        (0..2 * channels).find_map(|index| {
            let place = self.place(layout, index);
            let conn = place.conn(layout, 0);
            let (channel, p2p) = ((index % channels) as u32, index >= channels);
            let header = conn.header..conn.header + size_of::<ConnHeader>() as u64;
            if header.contains(&address) {
                let offset = (address - conn.header) as usize;
                return Some(EdgePart::ConnHeader { channel, p2p, offset });
            }
            (0..ProtocolId::MOST).find_map(|i| {
                let (start, slot) = (conn.buffers[i], u64::from(layout.slot_bytes[i]));
                let end = start + slot * u64::from(layout.slots);
                (start..end).contains(&address).then(|| EdgePart::Slot {
                    channel,
                    p2p,
                    protocol: i,
                    slot: ((address - start) / slot) as u32,
                    byte: ((address - start) % slot) as u32,
                })
            })
        })
    }

    /// The fault that the other end has left, and its kind, [`Poison::SET`] or [`Poison::LEFT`].
    pub(crate) fn peer_fault(&self) -> Option<(Fault, u64)> {
        let header = self.header as *mut EdgeHeader;
        // SAFETY: the mapping that the header is in lives as long as `self`; a word of these two means a written fault, which stays as it is.
        unsafe {
            let at: *mut Poison = if self.receiving {
                &raw mut (*header).from_sender
            } else {
                &raw mut (*header).from_receiver
            };
            // Pairs with the releases of `poison`, here and in a kernel.
            let set = AtomicU64::from_ptr(&raw mut (*at).set).load(Ordering::Acquire);
            matches!(set, Poison::SET | Poison::LEFT).then(|| ((*at).fault, set))
        }
    }

    /// Leaves `fault` for the other end, unless there is one. `kind` is [`Poison::SET`] or [`Poison::LEFT`].
    pub(crate) fn poison(&self, fault: &Fault, kind: u64) {
        let header = self.header as *mut EdgeHeader;
        // SAFETY: the mapping that the header is in lives as long as `self`. A kernel of ours may write the same cell: it takes it by the
        // same word, 0 -> BUSY -> 1, so only one of us writes the fault.
        unsafe {
            let at: *mut Poison = if self.receiving {
                &raw mut (*header).from_receiver
            } else {
                &raw mut (*header).from_sender
            };
            let set = AtomicU64::from_ptr(&raw mut (*at).set);
            if set.compare_exchange(0, Poison::BUSY, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                (*at).fault = *fault;
                // Pairs with the acquire of `ConnState::poisoned`.
                set.store(kind, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_receive_region_is_in_another() {
        let layout =
            ConnLayout { slots: 2, slot_bytes: [256; ProtocolId::MOST], mesh_slot_bytes: [0; 3] };
        for (channels, ranks) in [(1, 1), (1, 2), (2, 7), (3, 8), (1, 9), (2, 1025)] {
            let bytes = layout.recv_region_bytes(channels, ranks).unwrap();
            let edge = |rank| layout.edge_offset(channels, ranks, rank);
            let header = |rank| edge(rank) - layout.header_distance(channels, ranks, rank);
            for rank in 0..ranks as u32 {
                assert_eq!(header(rank), rank as usize * HEADER_IN_TABLE);
                assert!(header(rank) + HEADER_IN_TABLE <= edge(0), "{rank} of {ranks}");
                assert!(edge(rank).is_multiple_of(PAGE), "a part of a file is mapped");
                let end = edge(rank) + layout.edge_bytes(channels);
                assert!(end <= bytes && end == edge(rank + 1), "{rank} of {ranks}");
            }
        }
        assert_eq!(layout.recv_region_bytes(1, usize::MAX / 4096), None);
    }
}

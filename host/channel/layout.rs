//! Where the parts of an edge are: the same on both ends, which compute it from the same numbers.

use ferroccl_device::abi::{
    CACHE_LINE, ConnHeader, EdgeHeader, MESH_DIGEST_BYTES, MESH_SLOTS, ProtocolId, SignatureRing,
};

/// Slots and their sizes: equal on all ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ConnLayout {
    /// Slots of a buffer, at least 2.
    pub slots: u32,
    /// Bytes of one slot, by [`ProtocolId::index`]; multiples of 256, and 0 where there is no such protocol.
    pub slot_bytes: [u32; ProtocolId::MOST],
    /// Bytes of one slot of the mesh, of LL, LL128 and Simple; multiples of 256, or 0 where there is no mesh.
    pub mesh_slot_bytes: [u32; 3],
}

/// Edges and connections begin at multiples of this, so that pages of an unused connection are never touched.
pub(super) const PAGE: usize = 4096;
/// Bytes of an edge's header, in the host's memory.
pub(crate) const HEADER_BYTES: usize = size_of::<EdgeHeader>().next_multiple_of(PAGE);
/// The offset, in an edge's header, of the word by which a sender in another process says that it has the receiver's device
/// memory mapped; behind what kernels look at.
pub(crate) const MAPPING_WORD: usize = size_of::<EdgeHeader>();
/// The protocols whose slots to receive may be in memory of a device. LL's are the host's, as in NCCL (`net.cc`).
const RECEIVED: &[ProtocolId] = &[ProtocolId::Ll128, ProtocolId::Simple];
/// The protocols whose slots to send may be there. The proxy has to read the lines of LL and LL128.
const SENT: &[ProtocolId] = &[ProtocolId::Simple];
/// What the mesh's slots of a rank are in all, for each channel, in slots of a connection; and what one of them is at most.
/// A round of a large call is as long for 2 ranks as for 8, so that as much of it is waiting.
const MESH_SHARES: u32 = 8;
const MOST_MESH_SHARES: u32 = 4;
/// What a slot of plain data of the mesh is at most, in bytes: larger calls have faster ways.
const MOST_PLAIN: u32 = 64 << 10;
/// Bytes of an edge's header where many are beside each other.
pub(super) const HEADER_IN_TABLE: usize = size_of::<EdgeHeader>();
/// Bytes of the ring of signatures of an edge, before its connections.
pub(super) const SIGNATURE_BYTES: usize = size_of::<SignatureRing>().next_multiple_of(PAGE);

impl ConnLayout {
    /// Bytes of one connection.
    pub(super) fn conn_bytes(&self) -> usize {
        (size_of::<ConnHeader>() + self.buffer_bytes() + self.fifo_bytes()).next_multiple_of(PAGE)
    }

    /// Bytes of the buffers of one connection.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.slot_bytes.iter().map(|&b| b as usize * self.slots as usize).sum()
    }

    /// The same layout with the buffers of some protocols only.
    pub(super) fn with_protocols(&self, which: impl Fn(usize) -> bool) -> Self {
        let slot_bytes = std::array::from_fn(|i| if which(i) { self.slot_bytes[i] } else { 0 });
        ConnLayout { slot_bytes, ..*self }
    }

    /// The layout of what is beside the headers of connections whose slots are in memory of a device, and the layout of those
    /// slots.
    pub(super) fn parts(&self, receiving: bool) -> (Self, Self) {
        let protocols = if receiving { RECEIVED } else { SENT };
        let there = |i| protocols.iter().any(|p| p.index() == i);
        (self.with_protocols(|i| !there(i)), self.with_protocols(there))
    }

    /// Bytes of a connection's slots in memory of a device, at its receiver's end or at its sender's.
    pub(crate) fn slots_bytes(&self, receiving: bool) -> usize {
        self.parts(receiving).1.buffer_bytes().next_multiple_of(PAGE)
    }

    /// Bytes of a step FIFO: an entry for each slot, on cache lines of its own.
    pub(super) fn fifo_bytes(&self) -> usize {
        (self.slots as usize * size_of::<u64>()).next_multiple_of(CACHE_LINE)
    }

    /// The same for so many ranks, which all reach each other's memory: the fewer they are, the larger are the mesh's slots.
    pub(crate) fn with_mesh(mut self, ranks: u32) -> Self {
        let times = (MESH_SHARES / ranks.saturating_sub(1).max(1)).clamp(1, MOST_MESH_SHARES);
        let of = |protocol: ProtocolId| self.slot_bytes[protocol.index()].saturating_mul(times);
        let [ll, ll128, simple] = [ProtocolId::Ll, ProtocolId::Ll128, ProtocolId::Simple].map(of);
        self.mesh_slot_bytes = [ll, ll128, simple.min(MOST_PLAIN)];
        self
    }

    /// Bytes of the mesh's slots of one channel, from one rank to another.
    pub(super) fn mesh_bytes(&self) -> usize {
        let slots: usize = self.mesh_slot_bytes.iter().map(|b| *b as usize).sum();
        let digests = if slots == 0 { 0 } else { MESH_DIGEST_BYTES };
        (digests + MESH_SLOTS as usize * slots).next_multiple_of(PAGE)
    }

    /// Where the mesh's slots of a channel are in an edge that is in the host's memory as a whole, before which the digests lie.
    pub(crate) fn mesh_offset(&self, channels: usize, channel: usize) -> usize {
        let conns = SIGNATURE_BYTES + 2 * channels * self.conn_bytes();
        HEADER_BYTES + conns + channel * self.mesh_bytes() + MESH_DIGEST_BYTES
    }

    /// Bytes of an edge's connections, and of the mesh behind them.
    pub(crate) fn conns_bytes(&self, channels: usize) -> usize {
        SIGNATURE_BYTES + channels * (2 * self.conn_bytes() + self.mesh_bytes())
    }

    /// Bytes of the headers, beside each other, of edges from so many ranks.
    pub(super) fn headers_bytes(ranks: usize) -> Option<usize> {
        ranks.checked_mul(HEADER_IN_TABLE)?.checked_next_multiple_of(PAGE)
    }

    /// Bytes of a receive region with edges from so many ranks; `None` where these are more than memory has.
    pub(crate) fn recv_region_bytes(&self, channels: usize, ranks: usize) -> Option<usize> {
        let edges = self.edge_bytes(channels).checked_mul(ranks)?;
        edges.checked_add(Self::headers_bytes(ranks)?).filter(|n| *n <= isize::MAX as usize)
    }

    /// Where the edge from `sender` is in a receive region.
    pub(crate) fn edge_offset(&self, channels: usize, ranks: usize, sender: u32) -> usize {
        let headers = Self::headers_bytes(ranks).unwrap_or(0);
        headers + sender as usize * self.edge_bytes(channels)
    }

    /// Bytes from where the header of the edge from `sender` is, among others, to where the edge is.
    pub(crate) fn header_distance(&self, channels: usize, ranks: usize, sender: u32) -> usize {
        self.edge_offset(channels, ranks, sender) - sender as usize * HEADER_IN_TABLE
    }

    /// Bytes of an edge that is in the host's memory as a whole.
    pub(crate) fn edge_bytes(&self, channels: usize) -> usize {
        HEADER_BYTES + self.conns_bytes(channels)
    }
}

//! The memory of an edge, and the connections that a kernel sees.
//!
//! An edge leads from one rank to another. It has a connection for each channel, twice: collectives use one set, sends
//! and receives the other, so that both may be under way at a time. Its header is in the host's memory, a part of the
//! receiver's inbox. Its connections follow there, or are in memory of the receiver's device, where the sender reaches
//! that. Both ends compute the same layout from the same numbers.
//!
//! Where proxies carry what is in it, each end has memory of its own, and slots may be in that of its device, if the
//! network reaches it ([`Slots`]). Then there is a gap for them nowhere in the host's.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::abi::{
    CACHE_LINE, Conn, ConnHeader, EdgeHeader, Fault, Peer, Poison, ProtocolId, SignatureRing,
};
use ferroccl_proxy::connection::{Ends, GpuSlots};
use ferroccl_proxy::net::MemoryKind;

use crate::Result;
use crate::runtime::{Memory, Runtime};
use crate::transport::Region;

/// Slots and their sizes: equal on all ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ConnLayout {
    /// Slots of a buffer, at least 2.
    pub slots: u32,
    /// Bytes of one slot, by protocol; multiples of 256.
    pub slot_bytes: [u32; 3],
}

/// The connections of an edge on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// Of collectives.
    Collective = 0,
    /// Of sends and receives.
    P2p = 1,
}

/// Edges, and their connections, begin at multiples of this: what is mapped for itself, and not touched together.
const PAGE: usize = 4096;
/// Bytes of an edge's header, in the host's memory.
pub(crate) const HEADER_BYTES: usize = size_of::<EdgeHeader>().next_multiple_of(PAGE);
/// Bytes of an edge's roll, before its connections.
const ROLL_BYTES: usize = size_of::<SignatureRing>().next_multiple_of(PAGE);

impl ConnLayout {
    /// Bytes of one connection.
    fn conn_bytes(&self) -> usize {
        (size_of::<ConnHeader>() + self.buffer_bytes() + self.fifo_bytes()).next_multiple_of(PAGE)
    }

    /// Bytes of the buffers of one connection.
    fn buffer_bytes(&self) -> usize {
        self.slot_bytes.iter().map(|&b| b as usize * self.slots as usize).sum()
    }

    /// With the buffers of some protocols, by number.
    fn only(&self, which: impl Fn(usize) -> bool) -> Self {
        let slot_bytes = std::array::from_fn(|i| if which(i) { self.slot_bytes[i] } else { 0 });
        ConnLayout { slot_bytes, ..*self }
    }

    /// Bytes of the slots that an edge of so many channels has in memory of a device.
    pub(crate) fn slots_bytes(&self, protocols: &[ProtocolId], channels: usize) -> usize {
        let there = self.only(|i| protocols.iter().any(|p| *p as usize == i));
        2 * channels * there.buffer_bytes().next_multiple_of(PAGE)
    }

    /// Bytes of a step FIFO: an entry for each slot, on cache lines of its own.
    fn fifo_bytes(&self) -> usize {
        (self.slots as usize * size_of::<u64>()).next_multiple_of(CACHE_LINE)
    }

    /// Bytes of the connections of an edge of so many channels.
    pub(crate) fn conns_bytes(&self, channels: usize) -> usize {
        ROLL_BYTES + 2 * channels * self.conn_bytes()
    }

    /// Bytes of an edge of so many channels, all of it in the host's memory.
    pub(crate) fn edge_bytes(&self, channels: usize) -> usize {
        HEADER_BYTES + self.conns_bytes(channels)
    }
}

/// One end of an edge.
#[derive(Clone, Debug)]
pub(crate) struct EdgeEnd {
    /// The host's memory that both ends share: the header, and the connections where they are not on a device.
    pub region: Region,
    /// Where the receiving device has the connections: its memory, and where in it they begin.
    pub on_device: Option<(Arc<dyn Memory>, usize)>,
    /// The rank at the other end.
    pub peer: u32,
    /// Whether the sender reaches the receiver's buffers.
    pub direct: bool,
    /// Whether we are the receiver.
    pub receiving: bool,
    /// Whether the other end has memory of its own, and proxies carry what is in it.
    pub remote: bool,
    /// Of such an edge: slots in memory of our device.
    pub slots: Option<Slots>,
}

/// Slots of an edge in memory of our device, from which or to which the network moves them.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// What all edges have of it.
    pub memory: Arc<SlotMemory>,
    /// Where in it those of this edge begin: at a page.
    pub offset: usize,
    /// The protocols that have their slots there.
    pub protocols: &'static [ProtocolId],
}

/// Memory of our device that the network reaches.
#[derive(Debug)]
pub(crate) struct SlotMemory {
    /// The allocation.
    pub memory: Arc<dyn Memory>,
    /// Where in it the slots begin: at a page.
    pub start: usize,
    /// From there on, for networks that take it; others reach the memory by its address.
    pub dma_buf: Option<OwnedFd>,
    /// Whether what the network writes has to be flushed.
    pub flush: bool,
}

impl Slots {
    fn has(&self, protocol: usize) -> bool {
        self.protocols.iter().any(|p| *p as usize == protocol)
    }

    /// Those of a connection, of `bytes` bytes.
    fn of(&self, index: usize, bytes: usize) -> GpuSlots {
        let SlotMemory { memory, start, dma_buf, flush } = &*self.memory;
        let offset = self.offset + index * bytes;
        let kind = dma_buf.as_ref().map_or(MemoryKind::Cuda, |file| MemoryKind::DmaBuf {
            fd: file.as_raw_fd(),
            offset: offset as u64,
        });
        let at = memory.address() + (start + offset) as u64;
        GpuSlots { memory: (at, bytes), kind, flush: *flush }
    }
}

/// A rank's two edges with a peer.
#[derive(Clone, Debug)]
pub(crate) struct Edges {
    pub send: EdgeEnd,
    pub recv: EdgeEnd,
}

impl Edges {
    /// The kernel's view of a channel.
    pub(crate) fn peer(
        &self,
        layout: &ConnLayout,
        channels: usize,
        set: Set,
        channel: usize,
        first_step: u64,
    ) -> Peer {
        let conn = |end: &EdgeEnd| end.conn(layout, set as usize * channels + channel, first_step);
        Peer { send: conn(&self.send), recv: conn(&self.recv) }
    }
}

impl EdgeEnd {
    /// What of the layout is where the connections' headers are, and what is elsewhere.
    fn parts(&self, layout: &ConnLayout) -> (ConnLayout, ConnLayout) {
        let elsewhere = |i| self.slots.as_ref().is_some_and(|slots| slots.has(i));
        (layout.only(|i| !elsewhere(i)), layout.only(elsewhere))
    }

    /// Address of the connections.
    fn conns(&self) -> u64 {
        match &self.on_device {
            Some((memory, offset)) => memory.address() + *offset as u64,
            None => self.region.address() + HEADER_BYTES as u64,
        }
    }

    /// Has the counters of all connections start where the steps do, if it is for this end to do.
    ///
    /// # Errors
    /// When the device's memory cannot be written.
    pub(crate) fn start_at(
        &self,
        layout: &ConnLayout,
        channels: usize,
        first_step: u64,
        runtime: &dyn Runtime,
    ) -> Result<()> {
        if first_step == 0 || !(self.receiving || self.remote) {
            return Ok(());
        }
        let (layout, _) = self.parts(layout);
        for index in 0..2 * channels {
            for counter in [offset_of!(ConnHeader, tail), offset_of!(ConnHeader, head)] {
                let at = ROLL_BYTES + index * layout.conn_bytes() + counter;
                match &self.on_device {
                    Some((memory, offset)) => {
                        runtime.write(memory, offset + at, &first_step.to_ne_bytes())?;
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

    /// The host's memory that kernels touch: address, and bytes.
    pub(crate) fn shared(&self, layout: &ConnLayout, channels: usize) -> (u64, usize) {
        let (here, _) = self.parts(layout);
        let bytes = if self.on_device.is_some() { HEADER_BYTES } else { here.edge_bytes(channels) };
        (self.region.address(), bytes.min(self.region.len()))
    }

    /// The kernel's view of a connection, which is number `index` of the edge.
    fn conn(&self, layout: &ConnLayout, index: usize, first_step: u64) -> Conn {
        let (here, _) = self.parts(layout);
        let conns = self.conns();
        let header = conns + (ROLL_BYTES + index * here.conn_bytes()) as u64;
        let mut at = header + size_of::<ConnHeader>() as u64;
        let mut there = self.gpu_slots(layout, index).map_or(0, |slots| slots.memory.0);
        let mut buffers = [0; 3];
        for (i, buffer) in buffers.iter_mut().enumerate() {
            let next = if here.slot_bytes[i] > 0 { &mut at } else { &mut there };
            *buffer = *next;
            *next += u64::from(layout.slot_bytes[i]) * u64::from(layout.slots);
        }
        Conn {
            header,
            buffers,
            slot_bytes: layout.slot_bytes,
            slots: layout.slots,
            peer: self.peer,
            direct: self.direct.into(),
            step: first_step,
            edge: self.region.address(),
            roll: conns,
            fifo: if self.remote && !self.receiving { at } else { 0 },
            gated: (self.remote && self.receiving).into(),
            pad: 0,
        }
    }

    /// The slots of a connection that are in memory of our device.
    fn gpu_slots(&self, layout: &ConnLayout, index: usize) -> Option<GpuSlots> {
        let (_, there) = self.parts(layout);
        let bytes = there.buffer_bytes().next_multiple_of(PAGE);
        self.slots.as_ref().map(|slots| slots.of(index, bytes))
    }

    /// What the proxy carries of a connection: of number `index`, or, behind the last of them, of the roll. `None` when
    /// there is no such connection.
    pub(crate) fn ends(
        &self,
        layout: &ConnLayout,
        channels: usize,
        index: usize,
        first_step: u64,
    ) -> Option<Ends> {
        if index < 2 * channels {
            let conn = self.conn(layout, index, first_step);
            let calls = conn.header + offset_of!(ConnHeader, calls) as u64;
            let memory = (conn.header, self.parts(layout).0.conn_bytes());
            let on_gpu = self.gpu_slots(layout, index);
            return Some(Ends { calls, conn: Some(conn), memory, on_gpu });
        }
        let calls = self.conns();
        let memory = (calls, size_of::<SignatureRing>());
        (index == 2 * channels).then_some(Ends { calls, conn: None, memory, on_gpu: None })
    }

    /// What the other end has left for us, and whether as [`Poison::SET`] or [`Poison::LEFT`].
    pub(crate) fn left(&self) -> Option<(Fault, u64)> {
        let header = self.region.address() as *mut EdgeHeader;
        // SAFETY: the region lives as long as `self`; a word of these two means a written fault, which stays as it is.
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

    /// Leaves `fault` for the other end; the first one stays. `kind` is [`Poison::SET`] or [`Poison::LEFT`].
    pub(crate) fn poison(&self, fault: &Fault, kind: u64) {
        let header = self.region.address() as *mut EdgeHeader;
        // SAFETY: the region lives as long as `self`. A kernel of ours may write the same cell: it takes it by the
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
                // Pairs with the acquire of `Edge::poisoned`.
                set.store(kind, Ordering::Release);
            }
        }
    }
}

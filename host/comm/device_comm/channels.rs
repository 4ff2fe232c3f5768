//! The channels of a device communicator: what primitives in users' kernels find their connections by.
//!
//! Each rank receives in its own memory, behind the words of its device communicator. Where the memory of a sender and a receiver is
//! each rank computes from the same numbers and the distances between the ranks' windows:
//!
//! ```text
//! place       of ring neighbours one for each channel; else one for each channel and rank of the node
//! header      at the receiver: the tail, which its sender writes
//!             at the sender, in the place that it receives by from the same rank, or of a ring in its only one: the head, which
//!             its receiver writes
//! slots       at the receiver, behind the header: those of LL, LL128, Simple and others
//! ```

use std::sync::Arc;

use ferroccl_device::abi::{Channel, Comm, Conn, ConnHeader, DeviceComm, Peer, ProtocolId, Work};
use serde::{Deserialize, Serialize};

use crate::comm::shared::SharedComm;
use crate::comm::window::WindowState;
use crate::error::{Error, Result};
use crate::runtime::Memory;

/// The most channels. A kernel with more blocks than a GPU has at a time cannot use more.
const MOST_CHANNELS: u32 = 1 << 10;
/// The most slots of a connection, and the most bytes of a slot.
const MOST_SLOTS: u32 = 1 << 10;
const MOST_SLOT_BYTES: u32 = 1 << 26;
/// What bytes of a slot are a multiple of ([`Conn::slot_bytes`]).
const SLOT_UNIT: u32 = 256;

/// The ranks that a channel of a [`DeviceCommunicator`](crate::DeviceCommunicator) has connections with, in both directions if nothing
/// else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ChannelPeers {
    /// The neighbours in the channel's ring of all ranks: from the previous rank, and to the next.
    Ring,
    /// All ranks.
    All,
    /// The ranks that reach each other's memory: those of this rank's node.
    Node,
}

/// The channels of a [`DeviceCommunicator`](crate::DeviceCommunicator): connections with other ranks, by which its kernels have the
/// primitives that the library's own are written in
/// ([`BlockComm::prims`](crate::device::device_comm::BlockComm::prims)).
///
/// A connection takes `slots` times the bytes of the slots of all protocols, in the receiver's memory: with the defaults 896 KiB.
///
/// ```
/// use ferroccl::device::abi::DeviceComm;
/// use ferroccl::device::gpu;
/// use ferroccl::device::prims::Simple;
/// use ferroccl::device::reduce::Sum;
/// use ferroccl::{Communicator, Device, DeviceChannels, DeviceCommConfig, Grid};
///
/// ferroccl::device::kernel_argument! {
///     struct SumAlong { comm: DeviceComm, values: u64, count: u64 }
/// }
///
/// /// Sums go along the ring from rank 0, chunk after chunk, each block with a half of the values: the last rank has the sums of all.
/// #[inline(always)]
/// unsafe fn sum_along(my: SumAlong) {
///     // SAFETY: the value is of this rank, whose buffer has `count` elements. A block has a channel of its own.
///     unsafe {
///         let mut comm = my.comm.open();
///         let channel = gpu::block_idx_x();
///         let ring = comm.ring(channel);
///         let half = my.count as usize / 2;
///         let values = (my.values as *mut f32).add(channel as usize * half);
///         let (from, to) = ([ring.prev], [ring.next]);
///         let mut prims = comm.prims::<f32, Sum, Simple, 1, 1>(channel, (from, to), (values, values));
///         let mut at = 0;
///         while at < half && !prims.stopped() {
///             let n = prims.chunk().min(half - at);
///             if ring.index == 0 {
///                 prims.send(at, n);
///             } else if ring.index + 1 < comm.ranks() {
///                 prims.recv_reduce_send(at, n);
///             } else {
///                 prims.recv_reduce_copy(at, at, n);
///             }
///             at += n;
///         }
///         comm.close(prims);
///     }
/// }
///
/// ferroccl::device::user_kernels! {
///     SUM_ALONG = "sum_along": 512, sum_along, SumAlong;
/// }
///
/// let device = Device::cpu();
/// let ranks = Communicator::init_all(&device, 3)?;
/// let mut config = DeviceCommConfig::default();
/// config.channels = DeviceChannels::rings(2);
/// let comms = Communicator::device_comms(&ranks, &config)?;
/// let streams = [device.stream()?, device.stream()?, device.stream()?];
/// let buffers = [device.upload(&[1.0f32; 1000])?, device.upload(&[2.0; 1000])?, device.upload(&[3.0; 1000])?];
/// for ((comm, values), stream) in comms.iter().zip(&buffers).zip(&streams) {
///     let argument = SumAlong { comm: comm.value(), values: values.address(), count: 1000 };
///     // SAFETY: the buffers have 1000 elements, and are kept until the streams are waited for.
///     unsafe { comm.launch(&SUM_ALONG, Grid { blocks: 2, threads: 128 }, &argument, stream)? };
/// }
/// assert_eq!(buffers[2].to_vec(&streams[2])?, [6.0; 1000]);
/// # streams.iter().try_for_each(|stream| stream.synchronize())?;
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceChannels {
    /// How many: as many as blocks of a kernel use primitives at the same time. 1024 at most.
    pub count: u32,
    /// Whom they are with.
    pub peers: ChannelPeers,
    /// Slots of a connection: steps that a sender may be ahead. 2 to 1024. With more than twice the slices of a chunk, the next is
    /// made while the last is read.
    pub slots: u32,
    /// Bytes of a slot, by [`ProtocolId::index`]: 64 MiB at most. They are rounded up to multiples of 256. 0 for a protocol that kernels
    /// do not use.
    pub slot_bytes: [u32; ProtocolId::MOST],
}

/// None.
impl Default for DeviceChannels {
    fn default() -> Self {
        DeviceChannels::new(0, ChannelPeers::Ring)
    }
}

impl DeviceChannels {
    /// So many, with 8 slots (NCCL's `NCCL_STEPS`) of the library's three protocols: 8 KiB of data in LL, 30 KiB in LL128, 64 KiB in
    /// Simple. The sizes are not measured.
    #[must_use]
    pub fn new(count: u32, peers: ChannelPeers) -> Self {
        let mut slot_bytes = [0; ProtocolId::MOST];
        for (protocol, bytes) in [
            (ProtocolId::Ll, 16 << 10),
            (ProtocolId::Ll128, 32 << 10),
            (ProtocolId::Simple, 64 << 10),
        ] {
            slot_bytes[protocol.index()] = bytes;
        }
        DeviceChannels { count, peers, slots: 8, slot_bytes }
    }

    /// So many rings of all ranks: [`DeviceChannels::new`] with [`ChannelPeers::Ring`].
    #[must_use]
    pub fn rings(count: u32) -> Self {
        DeviceChannels::new(count, ChannelPeers::Ring)
    }

    /// The same with slots of so many bytes for a protocol.
    #[must_use]
    pub fn with_slot_bytes(mut self, protocol: ProtocolId, bytes: u32) -> Self {
        self.slot_bytes[protocol.index()] = bytes;
        self
    }

    /// What cannot be is an error that names the argument.
    pub(super) fn check(&self) -> Result<()> {
        let DeviceChannels { count, slots, slot_bytes, .. } = *self;
        let wrong = |name, reason: String| Err(Error::argument(name, reason));
        if count > MOST_CHANNELS {
            return wrong(
                "config.channels.count",
                format!("{count} are more than {MOST_CHANNELS}"),
            );
        }
        if !(2..=MOST_SLOTS).contains(&slots) {
            return wrong("config.channels.slots", format!("{slots} is none of 2 to {MOST_SLOTS}"));
        }
        if let Some(bytes) = slot_bytes.iter().find(|bytes| **bytes > MOST_SLOT_BYTES) {
            return wrong(
                "config.channels.slot_bytes",
                format!("{bytes} are more than {MOST_SLOT_BYTES}"),
            );
        }
        if count > 0 && slot_bytes.iter().all(|bytes| *bytes == 0) {
            return wrong("config.channels.slot_bytes", "no protocol has slots".to_owned());
        }
        Ok(())
    }

    /// A connection without memory.
    fn shape(&self) -> Conn {
        let slot_bytes = self.slot_bytes.map(|bytes| bytes.next_multiple_of(SLOT_UNIT));
        Conn { slots: self.slots, slot_bytes, credit: u64::from(self.slots), ..Conn::default() }
    }

    /// Places that a rank receives by on each channel.
    fn places(&self, node_ranks: u32) -> usize {
        match self.peers {
            ChannelPeers::Ring => 1,
            ChannelPeers::All | ChannelPeers::Node => node_ranks as usize,
        }
    }

    /// Bytes of all connections that a rank receives by.
    pub(super) fn bytes(&self, node_ranks: u32) -> Result<usize> {
        let bytes = DeviceComm::conn_bytes(&self.shape())
            .and_then(|bytes| bytes.checked_mul(self.places(node_ranks)))
            .and_then(|bytes| bytes.checked_mul(self.count as usize))
            .filter(|bytes| *bytes <= isize::MAX as usize / 2);
        bytes.ok_or_else(|| {
            Error::argument("config.channels", "its connections are larger than memory")
        })
    }
}

impl std::fmt::Display for DeviceChannels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DeviceChannels { count, peers, slots, slot_bytes } = self;
        let with = match peers {
            ChannelPeers::Ring => "ring neighbours",
            ChannelPeers::All => "all ranks",
            ChannelPeers::Node => "the node's ranks",
        };
        let last = slot_bytes.iter().rposition(|bytes| *bytes > 0).map_or(0, |last| last + 1);
        let sizes = &slot_bytes[..last];
        write!(f, "{count} channels with {with}, of {slots} slots of {sizes:?} bytes")
    }
}

/// Why there can be none with ranks on another node; the same on all ranks.
pub(super) fn possible(comm: &SharedComm, channels: &DeviceChannels) -> Result<()> {
    let reached = &comm.windows.teams;
    if channels.count == 0 || channels.peers == ChannelPeers::Node || reached.is_one() {
        return Ok(());
    }
    let whom = match channels.peers {
        ChannelPeers::Ring => "the ring has ranks",
        _ => "there are ranks",
    };
    Err(Error::Unavailable {
        what: format!("config.channels: {channels}"),
        reason: format!(
            "{whom} that do not reach each other's memory, and primitives of a user's kernel do not go over a network, whose proxy \
             would have to know their steps before; ChannelPeers::Node has those of rank {}'s node, and put_to goes to all ranks",
            comm.rank
        ),
    })
}

/// Writes what primitives take into the memory of a device communicator, behind its words, where nobody has used it yet.
pub(super) fn write(
    comm: &SharedComm,
    value: &DeviceComm,
    channels: &DeviceChannels,
    (memory, window): (&Arc<dyn Memory>, &WindowState),
) -> Result<()> {
    let address = |offset: usize| value.words + offset as u64;
    let (of_comm, of_channels, _) = comm.control.tables(0);
    let work = Work { comm: address(value.comm_offset()), ..bytemuck::Zeroable::zeroed() };
    let own_comm = Comm { channels: address(value.channels_offset()), ..*of_comm };
    let mut rows = Vec::with_capacity(value.channel_rows());
    let mut peers = Vec::with_capacity(value.channel_rows() * value.ranks as usize);
    for (channel, ring) in (0..value.channel_rows()).zip(of_channels.iter().cycle()) {
        let first = address(value.peers_offset() + size_of::<Peer>() * peers.len());
        let (scratch, scratch_bytes, progress) = (0, 0, 0);
        rows.push(Channel { peers: first, p2p: first, scratch, scratch_bytes, progress, ..*ring });
        let ends = Ends { comm, value, channels, window, channel, ring };
        peers.extend((0..value.ranks).map(|rank| ends.with(rank)));
    }
    let runtime = comm.device.runtime();
    for (offset, bytes) in [
        (value.work_offset(), bytemuck::bytes_of(&work)),
        (value.comm_offset(), bytemuck::bytes_of(&own_comm)),
        (value.channels_offset(), bytemuck::cast_slice(&rows)),
        (value.peers_offset(), bytemuck::cast_slice(&peers)),
    ] {
        // SAFETY: the memory is the communicator's, has these parts, and no kernel uses them yet.
        unsafe { runtime.write(memory, offset, bytes)? };
    }
    Ok(())
}

/// This rank's ends of the connections of a channel.
struct Ends<'a> {
    comm: &'a SharedComm,
    value: &'a DeviceComm,
    channels: &'a DeviceChannels,
    window: &'a WindowState,
    channel: usize,
    ring: &'a Channel,
}

impl Ends<'_> {
    /// Those with a rank: where there is no connection, an end without memory, whose slots have some bytes so that a kernel that asks
    /// for it all the same ends.
    fn with(&self, rank: u32) -> Peer {
        let (mut send, mut recv) = (self.missing(rank), self.missing(rank));
        if rank == self.comm.rank {
            return Peer { send, recv };
        }
        // The faults of the two ranks, and of the neighbours of the communicator's ring, are at the communicator's edges.
        let edges = self.comm.edges.iter().find(|edges| edges.send.peer == rank);
        let (to, from) = edges.map_or((0, 0), |edges| (edges.send.header, edges.recv.header));
        (send.edge, recv.edge) = (to, from);
        if self.channel >= self.channels.count as usize {
            return Peer { send, recv };
        }
        let (sends, receives) = match self.channels.peers {
            ChannelPeers::Ring => (self.ring.next == rank, self.ring.prev == rank),
            _ => (true, true),
        };
        let node = self.comm.windows.teams.node();
        let place_of = |rank: u32| node.iter().position(|one| *one == rank);
        let (Some(mine), Some(theirs)) = (place_of(self.comm.rank), place_of(rank)) else {
            return Peer { send, recv };
        };
        let distance = self.window.distances[rank as usize];
        // Where this rank's place for a sender is, and the other's for this rank.
        let here = self.place(theirs);
        let there = self.place(mine).wrapping_add(distance);
        if sends {
            send = self.conn(send, there, here);
        }
        if receives {
            recv = self.conn(recv, here, there);
        }
        Peer { send, recv }
    }

    fn missing(&self, peer: u32) -> Conn {
        let slot_bytes = [SLOT_UNIT; ProtocolId::MOST];
        Conn { peer, slot_bytes, ..self.channels.shape() }
    }

    /// The address in this rank's memory by which the rank at a place of the node sends to it.
    fn place(&self, of: usize) -> u64 {
        let shape = self.channels.shape();
        let places = self.channels.places(self.value.node_ranks);
        let of = if self.channels.peers == ChannelPeers::Ring { 0 } else { of };
        let bytes = DeviceComm::conn_bytes(&shape).unwrap_or(0);
        let offset = (self.channel * places + of) * bytes;
        self.value.words + (self.value.conns_offset() + offset) as u64
    }

    /// The end of a connection whose header is at the receiver, and whose head is at the sender.
    fn conn(&self, missing: Conn, header: u64, reply: u64) -> Conn {
        let shape = self.channels.shape();
        let mut conn = Conn { header, reply, ..missing };
        let mut at = header + size_of::<ConnHeader>() as u64;
        for (i, bytes) in shape.slot_bytes.into_iter().enumerate() {
            if bytes > 0 {
                (conn.buffers[i], conn.slot_bytes[i]) = (at, bytes);
                at += u64::from(bytes) * u64::from(shape.slots);
            }
        }
        conn
    }
}

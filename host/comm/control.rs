//! The control block of a communicator: the tables that its kernels read, and the flags that kernels and host share.
//!
//! The flags (the word that stops kernels, the first fault) are in the host's memory, because both sides write them. The
//! tables are in the device's memory. Those of peers are written when they are needed ([`peer_rows`](super::peer_rows)), and the others
//! once:
//!
//! ```text
//! | peers, by set, channel and rank | for each group of ranks: ring's order | channels | Comm |
//! ```
//!
//! Groups are all ranks, in the orders of the channels' rings and in their own order, the ranks of the node, and the nodes'
//! leaders.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferroccl_device::abi::{CACHE_LINE, Channel, Comm, Conn, Fault, FaultCell, Peer};

use super::device_memory::{MemoryCount, MemoryFor};
use super::peer_rows::{PeerRows, TableImage};
use crate::channel::ConnSet;
use crate::error::Result;
use crate::runtime::Runtime;
use crate::transport::HostRegion;

/// The memory of a communicator's tables and flags. Addresses stay the same for as long as it lives.
#[derive(Debug)]
pub(super) struct ControlBlock {
    /// A [`HostFlags`].
    flags: HostRegion,
    /// The table of peers, with which the memory of all tables begins.
    rows: PeerRows,
    /// Ranks of the communicator.
    nranks: u32,
    groups: Vec<GroupTables>,
    /// A connection as it is before the first call.
    shape: Conn,
}

/// The words by which host and kernels tell each other of a failure (NCCL's `abortFlag`, `asyncError`).
#[repr(C)]
struct HostFlags {
    abort: u64,
    fault: FaultCell,
}

/// The tables of one group of ranks (NCCL's `ncclDevComm`), as they were written. Kernels change their own copy.
#[derive(Debug)]
struct GroupTables {
    /// Address of the kernels' copy of `comm`.
    address: u64,
    comm: Comm,
    channels: Box<[Channel]>,
    /// By channel, what `Channel::order` is the kernels' copy of.
    orders: Box<[Arc<[u32]>]>,
}

/// The order of a group's ranks around the ring.
#[derive(Clone, Debug)]
pub(super) struct RankOrder {
    /// The ranks in the ring's order.
    pub ranks: Vec<u32>,
    /// This rank's position.
    pub index: u32,
}

impl RankOrder {
    /// The rank so many positions behind this one.
    fn ahead(&self, by: usize) -> u32 {
        self.ranks[(self.index as usize + by) % self.ranks.len()]
    }

    /// The rank behind this one.
    pub(super) fn next(&self) -> u32 {
        self.ahead(1)
    }

    /// The rank before this one.
    pub(super) fn prev(&self) -> u32 {
        self.ahead(self.ranks.len() - 1)
    }
}

/// What the tables of all groups have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupParams {
    pub rank: u32,
    /// Ranks of the communicator.
    pub nranks: u32,
    pub channels: u32,
    pub timeout_ns: u64,
    /// Address of the channels' scratch memory, and bytes of one channel's.
    pub scratch: (u64, u64),
}

impl ControlBlock {
    /// The budget of a kernel's wait; `None` is no limit.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let ns = self.groups.first().map_or(0, |group| group.comm.timeout_ns);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// The control block of a rank: the rings of each group of ranks that it is in. The first group is of all ranks; channels take a
    /// group's rings in turn. `shape` is any of its connections. The rows of the table of peers are still to be written.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn new(
        params: GroupParams,
        shape: Conn,
        groups: &[Vec<RankOrder>],
        (runtime, memory): (&dyn Runtime, &MemoryCount),
    ) -> Result<Self> {
        let flags = HostRegion::anonymous(size_of::<HostFlags>().next_multiple_of(4096))?;
        let channels = params.channels as usize;
        let peers = PeerRows::count(params.channels, params.nranks) * size_of::<Peer>();
        let mut sizes = vec![peers];
        for rings in groups {
            sizes.extend(rings.iter().map(|ring| ring.ranks.len() * size_of::<u32>()));
            sizes.extend([channels * size_of::<Channel>(), size_of::<Comm>()]);
        }
        let bytes = sizes.iter().map(|size| size.next_multiple_of(CACHE_LINE)).sum();
        let tables = memory.counted(MemoryFor::Calls, runtime.allocate(bytes)?);
        let rows = PeerRows::new(Arc::clone(&tables), params.channels, params.nranks);
        let mut image = TableImage::at(&tables, runtime, peers.next_multiple_of(CACHE_LINE));
        let of_set =
            |set, channel: u64| rows.address(set, channel as usize, params.nranks as usize, 0);
        let groups = groups.iter().map(|rings| -> Result<GroupTables> {
            let k = rings.first().map_or(0, |ring| ring.ranks.len() as u32);
            // In a group of some of the ranks, data blocks are numbered from 0.
            let order = |ring: &RankOrder| -> Result<(u64, Arc<[u32]>)> {
                let order: Arc<[u32]> = match k == params.nranks {
                    true => ring.ranks.as_slice().into(),
                    false => (0..k).collect(),
                };
                Ok((image.push(&order[..])?, order))
            };
            let by_ring: Vec<(u64, Arc<[u32]>)> = rings.iter().map(order).collect::<Result<_>>()?;
            let of_channels = by_ring.iter().cycle().take(channels);
            let orders = of_channels.map(|(_, order)| Arc::clone(order)).collect();
            let in_turn = by_ring.iter().map(|(at, _)| at).zip(rings).cycle();
            let channels: Box<[Channel]> = (0..u64::from(params.channels))
                .zip(in_turn)
                .map(|(channel, (order, ring))| Channel {
                    peers: of_set(ConnSet::Collective, channel),
                    p2p: of_set(ConnSet::P2p, channel),
                    order: *order,
                    scratch: params.scratch.0 + channel * params.scratch.1,
                    scratch_bytes: params.scratch.1,
                    index: ring.index,
                    prev: ring.prev(),
                    next: ring.next(),
                    pad: 0,
                    progress: 0,
                })
                .collect();
            let comm = Comm {
                rank: params.rank,
                nranks: k,
                channels: image.push(&channels)?,
                abort: flags.address() + offset_of!(HostFlags, abort) as u64,
                fault: flags.address() + offset_of!(HostFlags, fault) as u64,
                timeout_ns: params.timeout_ns,
            };
            Ok(GroupTables { address: image.push(&[comm])?, comm, channels, orders })
        });
        let groups = groups.collect::<Result<_>>()?;
        image.write()?;
        Ok(ControlBlock { flags, rows, nranks: params.nranks, groups, shape })
    }

    /// The memory that kernels and host share: address, and bytes.
    pub(super) fn shared(&self) -> (u64, usize) {
        (self.flags.address(), self.flags.len())
    }

    /// Address of the [`Comm`] of a group; the first is that of all ranks.
    pub(super) fn comm_address(&self, group: usize) -> u64 {
        self.groups[group].address
    }

    /// Whether the [`Comm`] at this address is of one of the groups.
    pub(super) fn has(&self, comm: u64) -> bool {
        self.groups.iter().any(|group| group.address == comm)
    }

    /// Ranks of the communicator.
    pub(super) fn ranks(&self) -> usize {
        self.nranks as usize
    }

    /// The rows of the table of peers.
    pub(super) fn rows(&self) -> &PeerRows {
        &self.rows
    }

    /// The ranks beside this one in any group's ring.
    pub(super) fn neighbours(&self) -> Vec<u32> {
        let channels = self.groups.iter().flat_map(|group| &group.channels);
        channels.flat_map(|channel| [channel.prev, channel.next]).collect()
    }

    /// A connection with the slots that all connections have.
    pub(super) fn conn_shape(&self) -> Conn {
        self.shape
    }

    /// The tables of a group as they were written, and by channel its ring's order. Addresses in them are the kernels'.
    pub(super) fn tables(&self, group: usize) -> (&Comm, &[Channel], &[Arc<[u32]>]) {
        let GroupTables { comm, channels, orders, .. } = &self.groups[group];
        (comm, channels, orders)
    }

    /// Address of a connection for sends and receives: on a channel, from us to `peer` or the other way.
    pub(super) fn p2p_conn(&self, channel: u32, peer: u32, sending: bool) -> u64 {
        let group = &self.groups[0];
        let first = group.channels[channel as usize].p2p;
        let at = first + u64::from(peer) * size_of::<Peer>() as u64;
        let offset = if sending {
            std::mem::offset_of!(Peer, send)
        } else {
            std::mem::offset_of!(Peer, recv)
        };
        at + offset as u64
    }

    /// The channel and the peer of the connection for sends and receives at this address, if there is one.
    pub(super) fn p2p_of(&self, conn: u64) -> Option<(u32, u32)> {
        let first = self.rows.address(ConnSet::P2p, 0, self.ranks(), 0);
        let index = (conn.checked_sub(first)? / size_of::<Peer>() as u64) as usize;
        let channels = self.groups.first().map_or(0, |group| group.channels.len());
        let ranks = self.ranks();
        (index < channels * ranks).then(|| ((index / ranks) as u32, (index % ranks) as u32))
    }

    fn flags(&self) -> *mut HostFlags {
        std::ptr::with_exposed_provenance_mut(self.flags.address() as usize)
    }

    fn state(&self) -> &AtomicU64 {
        // SAFETY: the word is aligned, lives as long as `self`, and is only accessed atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.flags()).fault.state) }
    }

    /// The first failure.
    pub(super) fn fault(&self) -> Option<Fault> {
        // Pairs with the release in `fail`, here and in the device's `Context`.
        if self.state().load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: in state 2 nobody writes the fault any more.
        Some(unsafe { (*self.flags()).fault.fault })
    }

    /// The first failure, for who has to know whether there is one: one that another thread is just writing is waited for. A kernel that was
    /// stopped by it has left none of its own, and looks like one that has ended well.
    ///
    /// # Errors
    /// There is one, which has not been written in time.
    pub(super) fn settled_fault(&self) -> std::result::Result<Option<Fault>, Unwritten> {
        // Pairs with the release in `fail`, as in `fault`. Who takes the state to 1 has a fault to write and nothing to wait for.
        let begun = Instant::now();
        while self.state().load(Ordering::Acquire) == 1 {
            if begun.elapsed() > WRITING {
                return Err(Unwritten);
            }
            std::thread::yield_now();
        }
        Ok(self.fault())
    }

    /// Records `fault` unless there is one, and stops our kernels.
    pub(super) fn fail(&self, fault: &Fault) {
        if self.state().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: only the thread or kernel that takes the state from 0 to 1 writes the fault.
            unsafe { (*self.flags()).fault.fault = *fault };
            // Pairs with the acquire in `fault`.
            self.state().store(2, Ordering::Release);
        }
        // SAFETY: the word is aligned, lives as long as `self`, and is only accessed atomically.
        let abort = unsafe { AtomicU64::from_ptr(&raw mut (*self.flags()).abort) };
        // Pairs with the acquire in `Context::aborted`.
        abort.store(1, Ordering::Release);
    }
}

/// How long a failure that is being written is waited for: far longer than a busy machine keeps a thread from going on.
const WRITING: Duration = Duration::from_secs(1);

/// A failure that has not been written.
#[derive(Debug)]
pub(super) struct Unwritten;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use crate::comm::Communicator;
    use crate::{Device, ReduceOp};

    /// A thread is taken off its core in the middle of writing a failure: a call that has ended waits for it, and does not end well.
    #[test]
    fn a_failure_that_is_being_written_is_one() {
        for is_written in [true, false] {
            let device = Device::cpu();
            let ranks = Communicator::init_all(&device, 2).unwrap();
            let streams = [0, 1].map(|_| device.stream().unwrap());
            let state = ranks[0].0.clone();
            state.control.state().store(1, Ordering::Relaxed);
            let writer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                if is_written {
                    state.control.state().store(2, Ordering::Release);
                }
            });
            for (rank, stream) in ranks.iter().zip(&streams) {
                let buffer = device.upload(&[1_f32]).unwrap();
                rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, stream).unwrap();
            }
            assert!(streams[0].synchronize().is_err(), "written: {is_written}");
            let _ = streams[1].synchronize();
            writer.join().unwrap();
        }
    }
}

//! The control block of a communicator: what its kernels read, and where they leave a failure.
//!
//! What both sides write (the word that stops kernels, the first fault) is in the host's memory. What only kernels use is
//! in a memory of the runtime, one block of tables that is written once:
//!
//! ```text
//! | peers, by set, channel and rank | of each view: ring's order | channels | Comm |
//! ```

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferroccl_device::abi::{CACHE_LINE, Channel, Comm, Conn, Fault, FaultCell, Peer};

use crate::Result;
use crate::runtime::{Memory, Runtime};
use crate::transport::Region;

/// Memory that kernels use, at fixed addresses for as long as the communicator lives.
#[derive(Debug)]
pub(super) struct Control {
    /// A [`Cells`].
    cells: Region,
    _tables: Arc<dyn Memory>,
    /// Address of the peers, and how many there are.
    peers: (u64, usize),
    views: Vec<View>,
    /// A connection, before any kernel has used it.
    shape: Conn,
}

/// What host and kernels tell each other.
#[repr(C)]
struct Cells {
    abort: u64,
    fault: FaultCell,
}

/// A group of ranks as kernels see it: all of the communicator, or a part that does a part of a call. As it was when it
/// was made: kernels have their own.
#[derive(Debug)]
struct View {
    /// Where kernels find `comm`.
    address: u64,
    comm: Comm,
    channels: Box<[Channel]>,
}

/// What a view is made of.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// The ranks in the ring's order.
    pub ranks: Vec<u32>,
    /// This rank's position.
    pub index: u32,
}

/// Sizes and places that all views share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub rank: u32,
    /// Ranks of the communicator.
    pub nranks: u32,
    pub channels: u32,
    pub timeout_ns: u64,
    /// Address of the channels' scratch memory, and bytes of one channel's.
    pub scratch: (u64, u64),
}

impl Control {
    /// How long a wait may last; `None` is for ever.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let ns = self.views.first().map_or(0, |view| view.comm.timeout_ns);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// The control block of a rank: its connections by set, channel and rank, and the rings it is in, of which the
    /// first is that of all ranks.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn new(
        frame: Frame,
        peers: &[Peer],
        rings: &[Ring],
        runtime: &dyn Runtime,
    ) -> Result<Self> {
        let cells = Region::anonymous(size_of::<Cells>().next_multiple_of(4096))?;
        // With oneself there is none.
        let shape =
            peers.iter().find(|peer| peer.send.slots > 0).map_or_else(Conn::default, |p| p.send);
        let channels = frame.channels as usize;
        let mut sizes = vec![size_of_val(peers)];
        for ring in rings {
            let order = ring.ranks.len() * size_of::<u32>();
            sizes.extend([order, channels * size_of::<Channel>(), size_of::<Comm>()]);
        }
        let bytes = sizes.iter().map(|size| size.next_multiple_of(CACHE_LINE)).sum();
        let tables = runtime.allocate(bytes)?;
        let mut image = Image { base: tables.address(), bytes: Vec::with_capacity(bytes) };

        let peers_at = image.push(peers);
        let of_set = |set: u64, channel: u64| {
            let index = (set * u64::from(frame.channels) + channel) * u64::from(frame.nranks);
            peers_at + index * size_of::<Peer>() as u64
        };
        let views = rings.iter().map(|ring| {
            let k = ring.ranks.len() as u32;
            // The blocks of a part of the ranks are numbered for themselves.
            let order_at = if k == frame.nranks {
                image.push(&ring.ranks)
            } else {
                image.push(&(0..k).collect::<Vec<u32>>())
            };
            let neighbour = |by: u32| ring.ranks[((ring.index + by) % k) as usize];
            let channels: Box<[Channel]> = (0..u64::from(frame.channels))
                .map(|channel| Channel {
                    peers: of_set(0, channel),
                    p2p: of_set(1, channel),
                    order: order_at,
                    scratch: frame.scratch.0 + channel * frame.scratch.1,
                    scratch_bytes: frame.scratch.1,
                    index: ring.index,
                    prev: neighbour(k - 1),
                    next: neighbour(1),
                    pad: 0,
                    progress: 0,
                })
                .collect();
            let comm = Comm {
                rank: frame.rank,
                nranks: k,
                channels: image.push(&channels),
                abort: cells.address() + offset_of!(Cells, abort) as u64,
                fault: cells.address() + offset_of!(Cells, fault) as u64,
                timeout_ns: frame.timeout_ns,
            };
            View { address: image.push(&[comm]), comm, channels }
        });
        let views = views.collect();
        runtime.write(&tables, 0, &image.bytes)?;
        Ok(Control { cells, _tables: tables, peers: (peers_at, peers.len()), views, shape })
    }

    /// What kernels and host share: address, and bytes.
    pub(super) fn shared(&self) -> (u64, usize) {
        (self.cells.address(), self.cells.len())
    }

    /// Address of the [`Comm`] of a view; the first is that of all ranks.
    pub(super) fn comm_address(&self, view: usize) -> u64 {
        self.views[view].address
    }

    /// Ranks of the communicator.
    pub(super) fn ranks(&self) -> usize {
        let channels = self.views.first().map_or(0, |view| view.channels.len());
        self.peers.1 / (2 * channels).max(1)
    }

    /// Slots and their sizes, as of all connections.
    pub(super) fn conn_shape(&self) -> Conn {
        self.shape
    }

    /// A view's group and channels, as its kernels find them at first.
    pub(super) fn view(&self, view: usize) -> (&Comm, &[Channel]) {
        let View { comm, channels, .. } = &self.views[view];
        (comm, channels)
    }

    /// Address of a connection for sends and receives: on a channel, from us to `peer` or the other way.
    pub(super) fn p2p_conn(&self, channel: u32, peer: u32, sending: bool) -> u64 {
        let view = &self.views[0];
        let first = view.channels[channel as usize].p2p;
        let at = first + u64::from(peer) * size_of::<Peer>() as u64;
        let offset = if sending {
            std::mem::offset_of!(Peer, send)
        } else {
            std::mem::offset_of!(Peer, recv)
        };
        at + offset as u64
    }

    /// The channel and the peer of a connection for sends and receives; `None` when the address is none's.
    pub(super) fn p2p_of(&self, conn: u64) -> Option<(u32, u32)> {
        let half = self.peers.1 / 2;
        let first = self.peers.0 + (half * size_of::<Peer>()) as u64;
        let index = (conn.checked_sub(first)? / size_of::<Peer>() as u64) as usize;
        let ranks = self.ranks();
        (index < half).then(|| ((index / ranks) as u32, (index % ranks) as u32))
    }

    fn cells(&self) -> *mut Cells {
        std::ptr::with_exposed_provenance_mut(self.cells.address() as usize)
    }

    fn state(&self) -> &AtomicU64 {
        // SAFETY: the word is aligned, lives as long as `self`, and is only accessed atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.cells()).fault.state) }
    }

    /// The first failure.
    pub(super) fn fault(&self) -> Option<Fault> {
        // Pairs with the release in `fail`, here and in the device's `Context`.
        if self.state().load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: in state 2 nobody writes the fault any more.
        Some(unsafe { (*self.cells()).fault.fault })
    }

    /// Records `fault` unless there is one, and stops our kernels.
    pub(super) fn fail(&self, fault: &Fault) {
        if self.state().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: who takes the state from 0 to 1 is the only writer.
            unsafe { (*self.cells()).fault.fault = *fault };
            // Pairs with the acquire in `fault`.
            self.state().store(2, Ordering::Release);
        }
        // SAFETY: the word is aligned, lives as long as `self`, and is only accessed atomically.
        let abort = unsafe { AtomicU64::from_ptr(&raw mut (*self.cells()).abort) };
        // Pairs with the acquire in `Context::aborted`.
        abort.store(1, Ordering::Release);
    }
}

/// Tables one behind the other, each on cache lines of its own.
struct Image {
    /// Where it will be.
    base: u64,
    bytes: Vec<u8>,
}

impl Image {
    /// Adds a table; gives its address.
    fn push<T: bytemuck::Pod>(&mut self, table: &[T]) -> u64 {
        let at = self.base + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytemuck::cast_slice(table));
        self.bytes.resize(self.bytes.len().next_multiple_of(CACHE_LINE), 0);
        at
    }
}

//! The control block of a communicator: what its kernels read, and where they leave a failure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferroccl_device::abi::{Channel, Comm, Conn, Fault, FaultCell, Peer};

/// Memory that kernels and host share, at fixed addresses for as long as the communicator lives.
#[derive(Debug)]
pub(super) struct Control {
    cells: Box<Cells>,
    /// By set, channel and rank. Read and written by kernels only, as are `views`' channels.
    peers: Box<[Peer]>,
    views: Vec<View>,
    /// A connection, before any kernel has used it.
    shape: Conn,
}

#[derive(Debug)]
#[repr(C)]
struct Cells {
    abort: AtomicU64,
    fault: std::cell::UnsafeCell<FaultCell>,
}

/// A group of ranks as kernels see it: all of the communicator, or a part that does a part of a call.
#[derive(Debug)]
struct View {
    comm: Box<Comm>,
    channels: Box<[Channel]>,
    order: Box<[u32]>,
}

// SAFETY: `fault` is accessed under its state word (0 -> 1 -> 2, see `FaultCell`); `abort` is atomic.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

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
    pub(super) fn new(frame: Frame, mut peers: Box<[Peer]>, rings: &[Ring]) -> Self {
        let cells =
            Box::new(Cells { abort: AtomicU64::new(0), fault: FaultCell::default().into() });
        // With oneself there is none.
        let shape =
            peers.iter().find(|peer| peer.send.slots > 0).map_or_else(Conn::default, |p| p.send);
        let peers_at = peers.as_mut_ptr().expose_provenance() as u64;
        let of_set = |set: u64, channel: u64| {
            let index = (set * u64::from(frame.channels) + channel) * u64::from(frame.nranks);
            peers_at + index * size_of::<Peer>() as u64
        };
        let views = rings.iter().map(|ring| {
            let k = ring.ranks.len() as u32;
            let mut order: Box<[u32]> = ring.ranks.clone().into();
            if k != frame.nranks {
                // The blocks of a part of the ranks are numbered for themselves.
                order = (0..k).collect();
            }
            let order_at = order.as_mut_ptr().expose_provenance() as u64;
            let neighbour = |by: u32| ring.ranks[((ring.index + by) % k) as usize];
            let mut channels: Box<[Channel]> = (0..u64::from(frame.channels))
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
            let comm = Box::new(Comm {
                rank: frame.rank,
                nranks: k,
                channels: channels.as_mut_ptr().expose_provenance() as u64,
                abort: (&raw const cells.abort).expose_provenance() as u64,
                fault: cells.fault.get().expose_provenance() as u64,
                timeout_ns: frame.timeout_ns,
            });
            View { comm, channels, order }
        });
        let views = views.collect();
        Control { cells, peers, views, shape }
    }

    /// What kernels touch: address, bytes, and what it is.
    pub(super) fn memory(&self) -> Vec<(u64, usize, &'static str)> {
        let at = |address: usize| address as u64;
        let cells = (&raw const *self.cells).expose_provenance();
        let mut memory = vec![
            (at(cells), size_of::<Cells>(), "a communicator's control block"),
            (
                at(self.peers.as_ptr().expose_provenance()),
                size_of_val(&*self.peers),
                "a communicator's connections",
            ),
        ];
        for view in &self.views {
            let comm = (&raw const *view.comm).expose_provenance();
            memory.extend([
                (at(comm), size_of::<Comm>(), "a communicator"),
                (
                    at(view.channels.as_ptr().expose_provenance()),
                    size_of_val(&*view.channels),
                    "a communicator's channels",
                ),
                (
                    at(view.order.as_ptr().expose_provenance()),
                    size_of_val(&*view.order),
                    "a communicator's ring",
                ),
            ]);
        }
        memory.retain(|(_, bytes, _)| *bytes > 0);
        memory
    }

    /// Address of the [`Comm`] of a view; the first is that of all ranks.
    pub(super) fn comm_address(&self, view: usize) -> u64 {
        (&raw const *self.views[view].comm).expose_provenance() as u64
    }

    /// Ranks of the communicator.
    pub(super) fn ranks(&self) -> usize {
        let channels = self.views.first().map_or(0, |view| view.channels.len());
        self.peers.len() / (2 * channels).max(1)
    }

    /// Slots and their sizes, as of all connections.
    pub(super) fn conn_shape(&self) -> Conn {
        self.shape
    }

    /// A view's group and channels, as its kernels see them.
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
        let half = self.peers.len() / 2;
        let first = self.peers.get(half..)?.as_ptr().expose_provenance() as u64;
        let index = (conn.checked_sub(first)? / size_of::<Peer>() as u64) as usize;
        let ranks = self.ranks();
        (index < half).then(|| ((index / ranks) as u32, (index % ranks) as u32))
    }

    fn state(&self) -> &AtomicU64 {
        // SAFETY: the word is aligned, lives as long as `self`, and is only accessed atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.cells.fault.get()).state) }
    }

    /// The first failure.
    pub(super) fn fault(&self) -> Option<Fault> {
        // Pairs with the release in `fail`, here and in the device's `Context`.
        if self.state().load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: in state 2 nobody writes the fault any more.
        Some(unsafe { (*self.cells.fault.get()).fault })
    }

    /// Records `fault` unless there is one, and stops our kernels.
    pub(super) fn fail(&self, fault: &Fault) {
        if self.state().compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: who takes the state from 0 to 1 is the only writer.
            unsafe { (*self.cells.fault.get()).fault = *fault };
            // Pairs with the acquire in `fault`.
            self.state().store(2, Ordering::Release);
        }
        // Pairs with the acquire in `Context::aborted`.
        self.cells.abort.store(1, Ordering::Release);
    }
}

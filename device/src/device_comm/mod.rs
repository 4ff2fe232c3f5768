//! Collectives inside a user's own kernel: barriers, signals, and the other ranks' memory.
//!
//! A kernel gets a [`DeviceComm`] and [`DeviceWindow`]s by value in its argument ([`user_kernels!`](crate::user_kernels!)). It
//! [opens](DeviceComm::open) the communicator once, and from then on its blocks talk to those of the other ranks:
//!
//! | | |
//! |---|---|
//! | [`DeviceWindow::peer`] | the address of a rank's buffer |
//! | [`BlockComm::barrier`], [`BlockComm::barrier_of`] | all ranks have come here, or those of a [`Team`] |
//! | [`BlockComm::put`] | copies to a peer whose memory is reached, or within the rank |
//! | [`BlockComm::put_to`], [`BlockComm::put_value_to`] | copies to any rank's buffer, also over a network |
//! | [`BlockComm::flush`], [`BlockComm::wait_sent`] | what was put may be overwritten: all of it, or up to a [put](BlockComm::last_put) |
//! | [`BlockComm::signal`], [`BlockComm::put_with_signal`], [`BlockComm::put_to_with_signal`] | tells a rank that what came before is there |
//! | [`BlockComm::wait_signal`], [`BlockComm::wait_signal_of`] | waits for signals of any ranks, or of one |
//! | [`BlockComm::put_packets`], [`BlockComm::wait_packets`] | data that says by itself that it is there, for the least time |
//! | [`BlockComm::prims`], [`BlockComm::close`] | the library's own verbs (`send`, `recv_reduce_send`, ...) over Simple, LL or LL128, on a [channel](BlockComm::channels) |
//! | [`BlockComm::put_to_all`] | copies to the same place of all ranks' buffers |
//! | [`BlockComm::reduce`], [`BlockComm::reduce_to_all`] | combines the same place of all ranks' buffers, for this rank or for all |
//! | [`BlockComm::multimem_sum`], [`BlockComm::multimem_sum_to_all`], [`BlockComm::multimem_put_to_all`], [`BlockComm::multimem`] | sums and copies by a switch that joins the ranks' GPUs (NVLS) |
//! | [`BlockComm::put_to_node`], [`BlockComm::reduce_node`], [`BlockComm::reduce_node_to_all`] | the same of the node's ranks |
//!
//! All lanes of a block make the same calls; or those of a warp, or a thread alone ([`DeviceComm::open_as`]). A barrier and a signal are of one block of each rank at a time: blocks that run beside each
//! other use others. Signals may be sent by several blocks.
//!
//! **When something goes wrong** (a rank is gone, time is up, the communicator is aborted), waits return `false`, then and ever after, and
//! the kernel ends as soon as it can; the host has the reason, as for a call.
//!
//! **Ranks on other nodes.** The ranks that reach each other's memory are a [node](Team::Node). What is for a rank of another node a block
//! writes as a request where the proxy reads it, and the proxy sends it over the network (`network`). Barriers, signals and
//! [`BlockComm::put_to`] find the way by themselves. What uses addresses ([`DeviceWindow::peer`], [`BlockComm::put`]) is for ranks of the
//! node alone, and what does something with all ranks' buffers for communicators of one node.
//!
//! NCCL's device API has the same in `ncclLsaBarrierSession`, `ncclGetLsaPointer` and `ncclGin` (`nccl_device.h`, NCCL 2.28); MSCCL++ in
//! its memory channels and port channels.

mod channels;
mod coop;
mod multimem;
mod network;
mod node;
mod packets;
mod signals;
mod teams;

pub use channels::RingPlace;
pub use coop::{Block, Coop, Thread, Warp, Warps};
pub use multimem::{Multimem, fence_aliases};
pub use network::LastPut;
pub use packets::packet_bytes;
pub use teams::{Strided, Team};

use core::marker::PhantomData;

use crate::abi::{Channel, Comm, Conn, DeviceComm, DeviceWindow, Peer, WaitKind, WindowPeers};
use crate::copy::{Lanes, MAX_ENDS, ReduceCopy, Shape};
use crate::element::Element;
use crate::gpu::{self, Waiting};
use crate::peers::{self, Among, Combined, Peers};
use crate::prims::{AbortCheck, CommFaults, ConnState, HasComm, StopReason};
use crate::reduce::{Reducer, Reduction, Sum};

impl DeviceComm {
    /// This lane's view of the communicator, in calls that all lanes of a block make together. Once in a kernel.
    ///
    /// # Safety
    /// It is the value of a `DeviceCommunicator` of this rank, on the device that it is of, and that lives until the kernel has ended.
    #[inline(always)]
    #[must_use]
    pub unsafe fn open(self) -> BlockComm {
        // SAFETY: the caller's.
        unsafe { self.open_as() }
    }

    /// [`DeviceComm::open`] for calls that the lanes of a [`Warp`] make together, or a [`Thread`] alone (NCCL's `ncclCoopWarp`,
    /// `ncclCoopThread`). What [`BlockComm`] says of a block is then of these: barriers, signals and channels are of one warp or thread of
    /// each rank at a time.
    ///
    /// ```text
    /// block    warp 0: open_as::<Warp>() ── barrier(0) ─ put ─ signal(..)
    ///          warp 1: open_as::<Warp>() ── barrier(1) ─ put ─ signal(..)       neither waits for the other
    /// ```
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[must_use]
    pub unsafe fn open_as<C: Coop>(self) -> GroupComm<C> {
        GroupComm { comm: self, stopped: false, asked: 0, group: PhantomData }
    }

    /// A word of this rank.
    #[inline(always)]
    fn word(self, index: usize) -> *mut u64 {
        (self.words as *mut u64).wrapping_add(index)
    }

    /// The same word of any rank.
    ///
    /// # Safety
    /// [`DeviceComm::open`]'s; the rank is one.
    #[inline(always)]
    unsafe fn word_of(self, rank: u32, index: usize) -> *mut u64 {
        // SAFETY: the caller's.
        unsafe { Peers(self.peers as *const WindowPeers).of(rank as usize, self.word(index)) }
    }
}

impl DeviceWindow {
    /// The address of a rank's buffer in this rank's kernels, `offset` bytes from its beginning (NCCL's `ncclGetLsaPointer`). What is read
    /// and written there is plain data: barriers and signals order it.
    ///
    /// ```text
    /// rank 0   kernel ──┬─► [ buffer of rank 0 ]   peer(0, offset)
    ///                   └─► [ buffer of rank 1 ]   peer(1, offset)     loads and stores go there directly
    /// ```
    ///
    /// # Safety
    /// It is the value of a window that lives until the kernel has ended, and has such a rank. Within [`DeviceWindow::bytes`] there is
    /// memory, if the rank is of this rank's node; the address of another rank's is of no memory, and an access there is a fault of the
    /// kernel ([`DeviceWindow::try_peer`] tells).
    #[inline(always)]
    #[must_use]
    pub unsafe fn peer<T>(self, rank: u32, offset: usize) -> *mut T {
        let own = (self.address as *mut u8).wrapping_add(offset);
        // SAFETY: the caller's.
        unsafe { self.peers().of(rank as usize, own).cast() }
    }

    #[inline(always)]
    fn peers(self) -> Peers {
        Peers(self.peers as *const WindowPeers)
    }
}

/// What [`CommFaults`] asks of a kernel that is no call.
impl HasComm for DeviceComm {
    #[inline(always)]
    fn comm(self) -> *const Comm {
        self.comm as *const Comm
    }
    #[inline(always)]
    fn seq(self) -> u64 {
        0
    }
    #[inline(always)]
    unsafe fn call_differs(self, _: *const Conn) -> bool {
        false
    }
}

/// One lane's view of a [`DeviceComm`] in a block. All lanes of the block make the same calls of it.
pub type BlockComm = GroupComm<Block>;

/// One lane's view of a [`DeviceComm`] in a group of lanes: a [`Block`], a [`Warp`] or a [`Thread`]. All lanes of the group make the same
/// calls of it. The functions speak of a block, which is most often the group.
#[derive(Clone, Copy, Debug)]
pub struct GroupComm<C> {
    comm: DeviceComm,
    stopped: bool,
    /// Of lane 0: one more than the number of the last request of this group.
    asked: u64,
    group: PhantomData<C>,
}

impl<C: Warps> Among for GroupComm<C> {
    #[inline(always)]
    fn rank(&self) -> usize {
        self.comm.rank as usize
    }
    #[inline(always)]
    fn nranks(&self) -> usize {
        self.comm.ranks as usize
    }
    #[inline(always)]
    fn lanes(&self) -> (usize, usize) {
        C::lanes()
    }
}

impl<C: Coop> GroupComm<C> {
    /// This rank.
    #[inline(always)]
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.comm.rank
    }

    /// Ranks of the communicator.
    #[inline(always)]
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.comm.ranks
    }

    /// Whether this lane has given up: the kernel ends as soon as it can, and what it was to have is not there.
    #[inline(always)]
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// This lane, and how many share the work of the block: a loop over data goes from the first in steps of the second.
    #[inline(always)]
    #[must_use]
    pub fn lanes(&self) -> (usize, usize) {
        C::lanes()
    }

    /// Copies `n` elements, of this rank's or of another's memory, to there. [`BlockComm::signal`] tells who waits for them.
    ///
    /// ```text
    /// rank 0   from [1 2 3] ──┐
    /// rank 1                  └─► to [1 2 3]
    /// ```
    ///
    /// # Safety
    /// All lanes call it with equal arguments. The elements are readable and writable, aligned to an element, and nobody else uses
    /// them meanwhile; the two places are apart.
    #[inline(always)]
    pub unsafe fn put<T: Element>(&self, to: *mut T, from: *const T, n: usize) {
        let (index, count) = self.lanes();
        if !C::WARPS {
            for i in 0..n {
                // SAFETY: the caller's.
                unsafe {
                    let value = gpu::ld_data(from.wrapping_add(i));
                    gpu::st_data(to.wrapping_add(i), value, size_of::<T>());
                }
            }
            return;
        }
        let shape = const {
            Shape { sources: 1, destinations: 1, optional: false, own: false, last: false }
        };
        let copy = ReduceCopy::<u8, Sum> {
            sources: [from.cast(); MAX_ENDS],
            destinations: [to.cast(); MAX_ENDS],
            there: [1; 2],
            reducer: Reducer::without_scalar(),
            lanes: Lanes { index, count },
        };
        // SAFETY: the caller's.
        unsafe { copy.run(shape, n * size_of::<T>()) }
    }
}

impl<C: Warps> GroupComm<C> {
    /// Copies `n` elements to the same place of all ranks' buffers, `offset` bytes from their beginning; `from` may be that place in this
    /// rank's.
    ///
    /// ```text
    /// rank 0   from [1 2 3] ──┬─► [1 2 3]
    /// rank 1                  ├─► [1 2 3]
    /// rank 2                  └─► [1 2 3]
    /// ```
    ///
    /// # Safety
    /// As [`BlockComm::put`], of all ranks' buffers: all ranks are of this rank's node.
    #[inline(always)]
    pub unsafe fn put_to_all<T: Element>(
        &self,
        window: DeviceWindow,
        offset: usize,
        from: *const T,
        n: usize,
    ) {
        let to = (window.address as *mut T).wrapping_byte_add(offset);
        // SAFETY: the caller's.
        unsafe { peers::spread(self, window.peers(), (from, to), n * size_of::<T>()) }
    }

    /// Combines the same place of all ranks' buffers, in the order of the ranks, into `to`: `n` elements, `offset` bytes from the
    /// beginning of the buffers. `to` may be that place in this rank's buffer, if no other rank reads it. The reduction is one without a
    /// scalar: no average, no pre-multiplied sum.
    ///
    /// ```text
    /// rank 0   [1 2 3] ──┐
    /// rank 1   [4 5 6] ──┼──► rank 1: to [12 15 18]
    /// rank 2   [7 8 9] ──┘
    /// ```
    ///
    /// # Safety
    /// As [`BlockComm::put`], of all ranks' buffers: all ranks are of this rank's node.
    #[inline(always)]
    pub unsafe fn reduce<T: Element, R: Reduction>(
        &self,
        window: DeviceWindow,
        offset: usize,
        to: *mut T,
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            combine::<T, R, _, false>(
                self,
                (window, window.peers()),
                offset,
                (window.peers(), to),
                n,
            );
        }
    }

    /// [`BlockComm::reduce`] into the same place of all ranks' buffers of a window: where each rank does a part of them, that is an
    /// all-reduce. It may be the very place that is read.
    ///
    /// ```text
    /// rank 0   [1 . .] ──┐         ┌─► [12 . .]
    /// rank 1   [4 . .] ──┼─ rank 0 ┼─► [12 . .]     ranks 1 and 2 do the other parts
    /// rank 2   [7 . .] ──┘         └─► [12 . .]
    /// ```
    ///
    /// # Safety
    /// As [`BlockComm::put`], of all ranks' buffers of both windows: all ranks are of this rank's node.
    #[inline(always)]
    pub unsafe fn reduce_to_all<T: Element, R: Reduction>(
        &self,
        from: (DeviceWindow, usize),
        to: (DeviceWindow, usize),
        n: usize,
    ) {
        let own = (to.0.address as *mut T).wrapping_byte_add(to.1);
        // SAFETY: the caller's.
        unsafe {
            combine::<T, R, _, true>(
                self,
                (from.0, from.0.peers()),
                from.1,
                (to.0.peers(), own),
                n,
            );
        }
    }
}

impl<C: Coop> GroupComm<C> {
    /// Waits for `ready`, which `peer` will make true; each lane on its own. `false`, now and ever after, when that will not happen.
    ///
    /// # Safety
    /// [`DeviceComm::open`]'s.
    #[inline(always)]
    unsafe fn wait(
        &mut self,
        kind: WaitKind,
        (peer, index): (u32, u32),
        step: u64,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if self.stopped {
            return false;
        }
        if ready() {
            return true;
        }
        let mut watch = AbortCheck::default();
        loop {
            let verdict = gpu::pause(|| self.waiting(kind, (peer, index), step));
            if ready() {
                return true;
            }
            // SAFETY: the caller's: a communicator's channels and connections live as long as it does.
            let (faults, conn) = unsafe { (self.faults(), || self.edge_from(peer)) };
            let reason = watch.look(faults, conn, kind.receiving(), verdict);
            // What was told before the failure still counts.
            if reason == StopReason::None {
                continue;
            }
            if ready() {
                return true;
            }
            self.stopped = true;
            let waiting = self.waiting(kind, (peer, index), step);
            if let StopReason::Verdict(kind) = reason {
                faults.fail(
                    #[inline(always)]
                    // SAFETY: a zeroed cell.
                    |at| unsafe { faults.describe(at, kind, &waiting) },
                );
            }
            faults.pass_on();
            return false;
        }
    }

    #[inline(always)]
    fn waiting(&self, kind: WaitKind, (peer, index): (u32, u32), step: u64) -> Waiting {
        Waiting { kind, rank: self.comm.rank, peer, channel: index, step }
    }

    /// # Safety
    /// [`DeviceComm::open`]'s.
    #[inline(always)]
    unsafe fn faults(&self) -> CommFaults<DeviceComm> {
        // SAFETY: the caller's.
        unsafe { CommFaults::new(self.comm, false) }
    }

    /// The edge from a rank, to look whether that has failed. `None` where it may be any rank, or this one.
    ///
    /// # Safety
    /// [`DeviceComm::open`]'s.
    #[inline(always)]
    unsafe fn edge_from(&self, peer: u32) -> Option<ConnState> {
        if peer >= self.comm.ranks || peer == self.comm.rank {
            return None;
        }
        // SAFETY: the caller's: the table has an entry for each rank, and a connection with each other rank.
        unsafe {
            let first = (*(self.comm.comm as *const Comm)).channels as *const Channel;
            let conn = ((*first).peers as *mut Peer).wrapping_add(peer as usize);
            Some(ConnState::named(&raw mut (*conn).recv, 0))
        }
    }
}

/// Combines the same place of the buffers of some ranks, into `output`, or with `SPREAD` into the same place of theirs.
///
/// # Safety
/// As [`BlockComm::reduce`], or with `SPREAD` [`BlockComm::reduce_to_all`].
#[inline(always)]
unsafe fn combine<T: Element, R: Reduction, S: Among, const SPREAD: bool>(
    side: &S,
    (window, from): (DeviceWindow, Peers),
    offset: usize,
    (to, output): (Peers, *mut T),
    n: usize,
) {
    let all = Combined::<T, R, S, SPREAD> {
        side,
        reducer: Reducer::without_scalar(),
        from,
        to,
        input: (window.address as *const T).wrapping_byte_add(offset),
        output,
    };
    // SAFETY: the caller's.
    unsafe { all.run(n) }
}

/// Of a wait that any rank may end.
const ANY: u32 = crate::abi::NO_RANK;

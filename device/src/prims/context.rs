//! One lane's view of the call it is in: who it is, how it waits, how it gives up.
//!
//! Every spin of the device code is [`Context::wait`]: it has a condition with a name, a budget, and it
//! ends when the communicator is aborted or the neighbour has failed. The first fault of a communicator is
//! kept in its [`FaultCell`](crate::abi::FaultCell) for the host, sets the abort word for the
//! communicator's other blocks, and is left at the edges as poison, so that it travels round the ring
//! without any host's help.

use crate::abi::{
    Channel, ChannelWork, Comm, EdgeHeader, Fault, FaultKind, Peer, Poison, WaitKind, Work,
};
use crate::gpu::{self, SPINS_PER_CHECK, Waiting};
use crate::prims::edge::leave;
use crate::prims::{Call, Edge};

/// One lane in one block of one call.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    call: Call,
    /// Blocks of a channel, as a power of two.
    shift: u32,
    /// Whether this lane has given up.
    pub stopped: bool,
}

impl Context {
    /// The running lane's context.
    ///
    /// # Safety
    /// As [`Call::new`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(work: *const Work) -> Self {
        // SAFETY: the caller's.
        Context { call: unsafe { Call::new(work) }, shift: 0, stopped: false }
    }

    /// As [`Context::new`], for a kernel that has two blocks for each channel.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of_pair(work: *const Work) -> Self {
        // SAFETY: the caller's.
        Context { call: unsafe { Call::new(work) }, shift: 1, stopped: false }
    }

    // Asked for each time, of the machine or of memory: kept in variables, they and what is computed from
    // them would fill registers from one end of a kernel to the other.

    /// This lane in its block.
    #[inline(always)]
    #[must_use]
    pub fn tid(&self) -> usize {
        gpu::thread_idx_x() as usize
    }

    /// Lanes of the block.
    #[inline(always)]
    #[must_use]
    pub fn lanes(&self) -> usize {
        gpu::block_dim_x() as usize
    }

    /// The channel that this block works on.
    #[inline(always)]
    #[must_use]
    pub fn channel(&self) -> u32 {
        gpu::block_idx_x() >> self.shift
    }

    /// Which of the channel's two blocks this is, with [`Context::of_pair`].
    #[inline(always)]
    #[must_use]
    pub fn half(&self) -> u32 {
        gpu::block_idx_x() & 1
    }

    /// This rank's side of the channel.
    #[inline(always)]
    #[must_use]
    pub fn links(&self) -> *const Channel {
        // SAFETY: `new`'s contract; the host launches no more blocks than there are channels.
        unsafe { ((*self.comm()).channels as *const Channel).wrapping_add(self.channel() as usize) }
    }

    /// The channel's connections with a rank of the communicator.
    #[inline(always)]
    #[must_use]
    pub fn peer(&self, rank: u32) -> *mut Peer {
        // SAFETY: `new`'s contract.
        unsafe { ((*self.links()).peers as *mut Peer).wrapping_add(rank as usize) }
    }

    /// The call.
    #[inline(always)]
    #[must_use]
    pub fn call(&self) -> Call {
        self.call
    }

    /// The communicator.
    #[inline(always)]
    #[must_use]
    pub fn comm(&self) -> *const Comm {
        self.call.comm()
    }

    /// This channel's part of the call.
    #[inline(always)]
    #[must_use]
    pub fn part(&self) -> ChannelWork {
        self.call.part(self.channel())
    }

    /// Elements of this channel's part.
    #[inline(always)]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.part().count
    }

    #[inline(always)]
    fn rank(&self) -> u32 {
        // SAFETY: `new`'s contract.
        unsafe { (*self.comm()).rank }
    }

    /// Waits until the receiver has consumed what is in the current slot.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn wait_credit(&mut self, edge: &Edge) -> bool {
        self.wait(edge, WaitKind::Credit, edge.step, || edge.has_credit())
    }

    /// Waits until the sender has published the current step.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn wait_tail(&mut self, edge: &Edge) -> bool {
        self.wait(edge, WaitKind::Tail, edge.step, || edge.has_tail())
    }

    /// Waits for `ready` on an edge; returns `false`, now and ever after, if that will not happen.
    /// Each lane on its own.
    ///
    /// `step` is what is waited for, for reports.
    #[inline(always)]
    pub fn wait(
        &mut self,
        edge: &Edge,
        kind: WaitKind,
        step: u64,
        ready: impl FnMut() -> bool,
    ) -> bool {
        self.wait_for::<false>(edge, kind, step, ready)
    }

    /// [`Context::wait`] by a whole warp: `ready` holds a vote, so that its lanes go on, or give up,
    /// together. None of them has [`Context::stopped`] before.
    #[inline(always)]
    pub fn wait_together(
        &mut self,
        edge: &Edge,
        kind: WaitKind,
        step: u64,
        ready: impl FnMut() -> bool,
    ) -> bool {
        self.wait_for::<true>(edge, kind, step, ready)
    }

    #[inline(always)]
    fn wait_for<const TOGETHER: bool>(
        &mut self,
        edge: &Edge,
        kind: WaitKind,
        step: u64,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if !TOGETHER && self.stopped {
            return false;
        }
        if ready() {
            return true;
        }
        let waiting =
            Waiting { kind, rank: self.rank(), peer: edge.peer(), channel: self.channel(), step };
        let mut watch = Watch::default();
        loop {
            let verdict = gpu::pause(&waiting);
            if ready() {
                return true;
            }
            let reason = watch.look(self, edge, kind.receiving(), verdict);
            let go_on = if TOGETHER {
                gpu::warp_vote_all(reason == Reason::None)
            } else {
                reason == Reason::None
            };
            if go_on {
                continue;
            }
            // What the peer published before it failed or left still counts.
            if ready() {
                return true;
            }
            self.give_up(reason, &waiting);
            return false;
        }
    }

    /// What a lane does that has several things to wait for, when none of them is ready: gives way, and stops if there
    /// is a reason to and `ready`, of one of them, is not true after all.
    #[inline(always)]
    pub(crate) fn idle(
        &mut self,
        edge: &Edge,
        kind: WaitKind,
        step: u64,
        watch: &mut Watch,
        ready: impl Fn() -> bool,
    ) {
        let waiting =
            Waiting { kind, rank: self.rank(), peer: edge.peer(), channel: self.channel(), step };
        let verdict = gpu::pause(&waiting);
        if ready() {
            return;
        }
        let reason = watch.look(self, edge, kind.receiving(), verdict);
        // What the peer published before it failed or left still counts.
        if reason != Reason::None && !ready() {
            self.give_up(reason, &waiting);
        }
    }

    /// Stops this lane. Little code, as every wait has a copy: a neighbour's fault is taken over when the
    /// call is closed, an abort has been recorded by who caused it.
    #[inline(always)]
    fn give_up(&mut self, reason: Reason, waiting: &Waiting) {
        self.stopped = true;
        if let Reason::Verdict(kind) = reason {
            let cx = *self;
            self.fail(
                #[inline(always)]
                // SAFETY: a zeroed cell.
                |at| unsafe { cx.describe(at, kind, waiting) },
            );
        }
    }

    /// Has `write` record a fault, unless there is one already, and stops the communicator's blocks. The
    /// cell is zero before.
    #[inline(always)]
    pub fn fail(&mut self, write: impl FnOnce(*mut Fault)) {
        self.stopped = true;
        // SAFETY: the communicator's cells live as long as it does. The cell's `state` goes 0 -> 1 -> 2;
        // only who took it from 0 to 1 writes the fault. The release pairs with the acquire in `fault`.
        unsafe {
            let cell = (*self.comm()).fault as *mut crate::abi::FaultCell;
            if gpu::cas_acq_rel(&raw mut (*cell).state, 0, 1) == 0 {
                write(&raw mut (*cell).fault);
                gpu::st_release(&raw mut (*cell).state, 2);
            }
            gpu::st_release((*self.comm()).abort as *mut u64, 1);
        }
    }

    /// Whether the host or another block has stopped the communicator.
    #[inline(always)]
    pub fn aborted(&self) -> bool {
        // SAFETY: the word lives as long as the communicator.
        unsafe { gpu::ld_acquire((*self.comm()).abort as *const u64) != 0 }
    }

    /// Whether one of the ring's neighbours has left a fault at our edge to it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn neighbour_failed(&self) -> bool {
        let [previous, next] = self.ring_edges();
        // SAFETY: the headers of the edges live as long as the communicator. A rank alone has none.
        unsafe {
            !previous.is_null()
                && (gpu::ld_acquire(&raw const (*previous).from_sender.set) == Poison::SET
                    || gpu::ld_acquire(&raw const (*next).from_receiver.set) == Poison::SET)
        }
    }

    /// The edges from the previous rank of the ring, and to the next; null for a rank alone.
    #[inline(always)]
    fn ring_edges(&self) -> [*mut EdgeHeader; 2] {
        // SAFETY: the communicator's channels and connections live as long as it does.
        unsafe {
            let first = (*self.comm()).channels as *const Channel;
            let peers = (*first).peers as *const Peer;
            [
                (*peers.wrapping_add((*first).prev as usize)).recv.edge as *mut EdgeHeader,
                (*peers.wrapping_add((*first).next as usize)).send.edge as *mut EdgeHeader,
            ]
        }
    }

    /// A call has stopped: takes over what stopped us, if that was a neighbour of the ring, unless there is a fault
    /// already (no call that has stopped is without one), and leaves it for both neighbours. So a fault goes around the
    /// ring, kernel to kernel, whatever connections a call uses; all others are told by the host.
    ///
    /// # Safety
    /// One lane of a block calls it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub(crate) unsafe fn pass_on_fault(&mut self) {
        let [previous, next] = self.ring_edges();
        // SAFETY: the headers of the edges live as long as the communicator; each side writes its own cell.
        unsafe {
            if !previous.is_null() {
                self.adopt(&raw const (*previous).from_sender);
                self.adopt(&raw const (*next).from_receiver);
            }
            let rank = self.rank();
            // A zeroed cell.
            self.fail(|to| {
                (*to).kind = FaultKind::Aborted as u32;
                (*to).rank = rank;
            });
            // Where another block is just writing it, that one passes it on, or the host.
            if let Some(fault) = self.fault()
                && !previous.is_null()
            {
                leave(&raw mut (*previous).from_receiver, fault);
                leave(&raw mut (*next).from_sender, fault);
            }
        }
    }

    /// Takes over what a neighbour has left, if it has.
    #[inline(always)]
    fn adopt(&mut self, at: *const Poison) {
        // SAFETY: as in `neighbour_failed`; a set word means a written fault, which stays as it is.
        unsafe {
            if gpu::ld_acquire(&raw const (*at).set) == Poison::SET {
                self.fail(|to| copy_fault(to, &(*at).fault));
            }
        }
    }

    /// The communicator's first fault, once it is recorded.
    #[inline(always)]
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        // SAFETY: the cell lives as long as the communicator; state 2 was released after the fault, which
        // nobody changes from then on.
        unsafe {
            let cell = (*self.comm()).fault as *const crate::abi::FaultCell;
            (gpu::ld_acquire(&raw const (*cell).state) == 2).then(|| &(*cell).fault)
        }
    }

    /// Writes a fault of this lane.
    ///
    /// # Safety
    /// `at` is ours to write, and zero.
    #[inline(always)]
    pub unsafe fn describe(&self, at: *mut Fault, kind: FaultKind, waiting: &Waiting) {
        // SAFETY: the caller's; `new`'s contract.
        unsafe {
            (*at).kind = kind as u32;
            (*at).rank = waiting.rank;
            (*at).peer = waiting.peer;
            (*at).channel = waiting.channel;
            (*at).wait = waiting.kind as u32;
            (*at).step = waiting.step;
            (*at).seq = self.call.signature().seq;
        }
    }
}

/// Copies a fault, word by word: a copy as a whole would be byte by byte, as the GPU has nothing longer
/// that is right for every alignment.
///
/// # Safety
/// `to` is writable.
#[inline(always)]
pub(super) unsafe fn copy_fault(to: *mut Fault, from: &Fault) {
    let from = (&raw const *from).cast::<u64>();
    // A loop it stays: there are many copies of it, and none is ever in a hurry.
    for i in 0..gpu::fresh(size_of::<Fault>() / 8) {
        // SAFETY: the caller's; a fault is words without padding.
        unsafe { gpu::st_relaxed(to.cast::<u64>().add(i), *from.add(i)) }
    }
}

/// Why a waiting lane gives up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    None,
    /// The communicator is being stopped.
    Aborted,
    /// The neighbour has left its fault at the edge.
    Poisoned,
    /// The scheduler or the clock says so.
    Verdict(FaultKind),
}

/// The looks that a waiting lane takes around, now and then.
#[derive(Default)]
pub(crate) struct Watch {
    spins: u32,
    started: u64,
}

impl Watch {
    /// Why to give up, if there is a reason.
    #[inline(always)]
    fn look(
        &mut self,
        cx: &Context,
        edge: &Edge,
        receiving: bool,
        verdict: gpu::Verdict,
    ) -> Reason {
        if let Some(kind) = verdict {
            return Reason::Verdict(kind);
        }
        self.spins += 1;
        if self.spins < SPINS_PER_CHECK {
            return Reason::None;
        }
        self.spins = 0;
        self.look_around(cx, edge, receiving)
    }

    #[inline(always)]
    fn look_around(&mut self, cx: &Context, edge: &Edge, receiving: bool) -> Reason {
        if cx.aborted() {
            return Reason::Aborted;
        }
        // A failure of any neighbour, not only of the one waited for: its own wait may be for us.
        if edge.poisoned(receiving) || cx.neighbour_failed() {
            return Reason::Poisoned;
        }
        // SAFETY: the communicator lives as long as its kernels.
        let budget = unsafe { (*cx.comm()).timeout_ns };
        if budget != 0 {
            let now = gpu::globaltimer().max(1);
            if self.started == 0 {
                self.started = now;
            } else if now.saturating_sub(self.started) > budget {
                return Reason::Verdict(FaultKind::Timeout);
            }
        }
        Reason::None
    }
}

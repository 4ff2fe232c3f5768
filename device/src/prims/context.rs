//! One lane's view of the call it is in: who it is, how it waits, how it gives up.
//!
//! Every spin of the device code is [`KernelContext::wait`]: it has a condition with a name, a budget, and it
//! ends when the communicator is aborted or the neighbour has failed. The first fault of a communicator is
//! kept in its [`FaultCell`](crate::abi::FaultCell) for the host, sets the abort word for the
//! communicator's other blocks, and is left at the edges as poison, so that it travels round the ring
//! without any host's help.

use crate::abi::{Channel, ChannelWork, Comm, Conn, Fault, FaultKind, Peer, WaitKind, Work};
use crate::args::KernelArgs;
use crate::gpu::{self, Waiting};
use crate::prims::abort::{AbortCheck, CommFaults, StopReason};
use crate::prims::conn_state::ConnState;
use crate::prims::signature;

/// One lane in one block of one call. It is made once in a kernel ([`KernelContext::new`]), which then vouches for all that
/// is reached through it; it is a `Copy`, and borrows nothing.
#[derive(Clone, Copy, Debug)]
pub struct KernelContext {
    args: KernelArgs,
    /// Blocks of a channel, as a power of two.
    shift: u32,
    /// The channel, in a user's kernel: it has named one.
    channel: u32,
    /// Whether calls are compared in this kernel.
    comparing: bool,
    /// Whether this lane has given up.
    pub stopped: bool,
}

impl KernelContext {
    /// The running lane's context, in a kernel that has so many blocks for each channel: 1 or 2.
    ///
    /// # Safety
    /// The launch's contract, which all that the context hands out relies on:
    /// * `work` is the kernel's argument, as [`KernelArgs::new`] wants it, and has a part for each channel that is launched;
    /// * what it leads to is valid until all blocks have returned: the communicator with its channels, their connections
    ///   and what they share with the peers, the call's buffers, and [`Work::extra`] as the kernel's documentation says;
    /// * this block is the only one on this side that uses its channel's connections, and all its lanes make the same calls.
    #[inline(always)]
    #[must_use]
    pub unsafe fn new(work: *const Work, blocks: u32) -> Self {
        // SAFETY: the first point of the contract.
        let args = unsafe { KernelArgs::new(work) };
        KernelContext { args, shift: blocks - 1, channel: 0, comparing: false, stopped: false }
    }

    /// The running lane's context in a user's kernel, whose argument is another: on a channel of its communicator. Calls are not
    /// compared.
    ///
    /// # Safety
    /// As [`KernelContext::new`], but that `work` is in memory, and has nothing that matters but the communicator.
    #[inline(always)]
    pub(crate) unsafe fn of_user(work: *const Work, channel: u32, stopped: bool) -> Self {
        // SAFETY: the caller's.
        let args = unsafe { KernelArgs::in_memory(work) };
        KernelContext { args, shift: 0, channel, comparing: false, stopped }
    }

    /// Tells the ring's next rank which call this is. From here on the call is compared with the previous rank's, until
    /// [`KernelContext::finish_call`].
    ///
    /// # Safety
    /// All lanes call it, in a communicator of more than one rank, once.
    #[inline(always)]
    pub(crate) unsafe fn begin_call(&mut self) {
        self.comparing = true;
        // The last lane, which has least to do in a call of few bytes.
        if self.compares() && self.tid() + 1 == self.lanes() {
            // SAFETY: the caller's.
            unsafe { signature::tell_call(self) }
        }
    }

    /// Compares the call with the ring's previous rank's, unless that has been done: what a rank does before it hands on what it
    /// has received. An algorithm that does not go around the ring calls it before its first verb; of one that does, the verbs' order has
    /// the comparison behind the first send ([`Prims::settle`](super::Prims::settle)).
    ///
    /// # Safety
    /// All lanes call it, in [`KernelCode::run_block`](crate::collectives::KernelCode::run_block) of an algorithm that compares. One may have stopped afterwards, of which the others learn at
    /// the next verb's barrier.
    #[inline(always)]
    pub unsafe fn settle(&mut self) {
        if self.compares() && self.tid() + 1 == self.lanes() {
            // SAFETY: the caller's.
            unsafe { signature::settle_call(self) }
        }
    }

    /// The end of a call, which has been compared then.
    ///
    /// # Safety
    /// All lanes call it, after [`KernelContext::begin_call`], when none of the block's waits any more.
    #[inline(always)]
    pub(crate) unsafe fn finish_call(&mut self) {
        if self.compares() && self.tid() == 0 {
            // SAFETY: the caller's.
            unsafe {
                signature::settle_call(self);
                if self.stopped {
                    self.pass_on_fault();
                } else {
                    signature::end_call(signature::told(self));
                }
            }
        }
    }

    /// To wait for what tells why the call has stopped.
    #[inline(always)]
    pub(crate) fn without_comparing(&self) -> Self {
        KernelContext { comparing: false, stopped: false, ..*self }
    }

    /// Whether this block compares its call with the previous rank's: one does for all.
    #[inline(always)]
    pub(crate) fn compares(&self) -> bool {
        self.comparing && gpu::block_idx_x() == 0
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
        if self.args.is_in_memory() { self.channel } else { gpu::block_idx_x() >> self.shift }
    }

    /// Which of the channel's blocks this is.
    #[inline(always)]
    #[must_use]
    pub fn half(&self) -> u32 {
        gpu::block_idx_x() & self.shift
    }

    /// This rank's side of the channel.
    #[inline(always)]
    #[must_use]
    pub fn links(&self) -> *const Channel {
        // SAFETY: the contract of `new`; the host launches no more blocks than there are channels.
        unsafe { ((*self.comm()).channels as *const Channel).wrapping_add(self.channel() as usize) }
    }

    /// The channel's connections with a rank of the communicator.
    #[inline(always)]
    #[must_use]
    pub fn peer(&self, rank: u32) -> *mut Peer {
        // SAFETY: the contract of `new`.
        unsafe { ((*self.links()).peers as *mut Peer).wrapping_add(rank as usize) }
    }

    /// The connections of the channel's ring: to receive from the previous rank, and to send to the next.
    ///
    /// # Safety
    /// The communicator has more than one rank.
    #[inline(always)]
    #[must_use]
    pub unsafe fn ring(&self) -> ([*mut Conn; 1], [*mut Conn; 1]) {
        // SAFETY: the caller's; the contract of `new`.
        unsafe {
            let links = self.links();
            (
                [&raw mut (*self.peer((*links).prev)).recv],
                [&raw mut (*self.peer((*links).next)).send],
            )
        }
    }

    /// What the kernel was called with.
    #[inline(always)]
    #[must_use]
    pub fn args(&self) -> KernelArgs {
        self.args
    }

    /// The communicator.
    #[inline(always)]
    #[must_use]
    pub fn comm(&self) -> *const Comm {
        self.args.comm()
    }

    /// This channel's part of the call.
    #[inline(always)]
    #[must_use]
    pub fn part(&self) -> ChannelWork {
        self.args.part(self.channel())
    }

    /// Elements of this channel's part.
    #[inline(always)]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.part().count
    }

    /// This rank.
    #[inline(always)]
    #[must_use]
    pub fn rank(&self) -> u32 {
        // SAFETY: the contract of `new`.
        unsafe { (*self.comm()).rank }
    }

    /// Ranks of the communicator.
    #[inline(always)]
    #[must_use]
    pub fn ranks(&self) -> u32 {
        // SAFETY: the contract of `new`.
        unsafe { (*self.comm()).nranks }
    }

    /// The channel's connections with a rank as [`Prims::open`](super::Prims::open) takes them: to receive from it, and to send to it.
    #[inline(always)]
    #[must_use]
    pub fn connections(&self, rank: u32) -> (*mut Conn, *mut Conn) {
        let peer = self.peer(rank);
        // SAFETY: the contract of `new`: a table with an entry for each rank.
        unsafe { (&raw mut (*peer).recv, &raw mut (*peer).send) }
    }

    /// Waits until the receiver has consumed what is in the current slot.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn wait_credit(&mut self, conn: &ConnState) -> bool {
        self.wait(conn, WaitKind::Credit, conn.step, || conn.has_credit())
    }

    /// Waits until the sender has published the current step.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn wait_tail(&mut self, conn: &ConnState) -> bool {
        self.wait(conn, WaitKind::Tail, conn.step, || conn.has_tail())
    }

    /// Waits for `ready` on an edge; returns `false`, now and ever after, if that will not happen.
    /// Each lane on its own.
    ///
    /// `step` is what is waited for, for reports.
    #[inline(always)]
    pub fn wait(
        &mut self,
        conn: &ConnState,
        kind: WaitKind,
        step: u64,
        ready: impl FnMut() -> bool,
    ) -> bool {
        self.wait_for::<false>(conn, kind, step, ready)
    }

    /// [`KernelContext::wait`] by a whole warp: `ready` holds a vote, so that its lanes go on, or give up,
    /// together. None of them has [`KernelContext::stopped`] before.
    #[inline(always)]
    pub fn wait_together(
        &mut self,
        conn: &ConnState,
        kind: WaitKind,
        step: u64,
        ready: impl FnMut() -> bool,
    ) -> bool {
        self.wait_for::<true>(conn, kind, step, ready)
    }

    #[inline(always)]
    fn wait_for<const TOGETHER: bool>(
        &mut self,
        conn: &ConnState,
        kind: WaitKind,
        step: u64,
        ready: impl FnMut() -> bool,
    ) -> bool {
        self.wait_for_any::<TOGETHER>(
            #[inline(always)]
            |_| *conn,
            kind,
            step,
            ready,
        )
    }

    /// [`KernelContext::wait`], or with `TOGETHER` [`KernelContext::wait_together`], on several edges: `conn` says, where it
    /// takes long, one that is still waited for.
    #[inline(always)]
    pub(crate) fn wait_for_any<const TOGETHER: bool>(
        &mut self,
        conn: impl Fn(&Self) -> ConnState,
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
        let mut watch = AbortCheck::default();
        loop {
            let verdict = gpu::pause(|| self.waiting(&conn(self), kind, step));
            if ready() {
                return true;
            }
            let reason = watch.look(self.faults(), || Some(conn(self)), kind.receiving(), verdict);
            let go_on = if TOGETHER {
                gpu::warp_vote_all(reason == StopReason::None)
            } else {
                reason == StopReason::None
            };
            if go_on {
                continue;
            }
            // What the peer published before it failed or left still counts.
            if ready() {
                return true;
            }
            self.give_up(reason, &self.waiting(&conn(self), kind, step));
            return false;
        }
    }

    /// What this lane waits for, for who wants to know.
    #[inline(always)]
    pub(crate) fn waiting(&self, conn: &ConnState, kind: WaitKind, step: u64) -> Waiting {
        Waiting { kind, rank: self.rank(), peer: conn.peer(), channel: self.channel(), step }
    }

    /// What a lane does that has several things to wait for, when none of them is ready: gives way, and stops if there
    /// is a reason to and `ready`, of one of them, is not true after all. `shown` is what the scheduler is told: the same as
    /// long as nothing has moved.
    #[inline(always)]
    pub(crate) fn idle(
        &mut self,
        conn: &ConnState,
        (kind, step): (WaitKind, u64),
        watch: &mut AbortCheck,
        ready: impl Fn() -> bool,
        shown: impl FnOnce(&Self) -> Waiting,
    ) {
        let verdict = gpu::pause(|| shown(self));
        if ready() {
            return;
        }
        let reason = watch.look(self.faults(), || Some(*conn), kind.receiving(), verdict);
        // What the peer published before it failed or left still counts.
        if reason != StopReason::None && !ready() {
            self.give_up(reason, &self.waiting(conn, kind, step));
        }
    }

    /// Stops this lane. Little code, as every wait has a copy: a neighbour's fault is taken over when the
    /// call is closed, an abort has been recorded by who caused it.
    #[inline(always)]
    fn give_up(&mut self, reason: StopReason, waiting: &Waiting) {
        self.stopped = true;
        if let StopReason::Verdict(kind) = reason {
            let faults = self.faults();
            faults.fail(
                #[inline(always)]
                // SAFETY: a zeroed cell.
                |at| unsafe { faults.describe(at, kind, waiting) },
            );
        }
    }

    /// Has `write` record a fault, unless there is one already, and stops the communicator's blocks. The
    /// cell is zero before.
    #[inline(always)]
    pub fn fail(&mut self, write: impl FnOnce(*mut Fault)) {
        self.stopped = true;
        self.faults().fail(write);
    }

    /// Writes a fault of this lane.
    ///
    /// # Safety
    /// `at` is ours to write, and zero.
    #[inline(always)]
    pub unsafe fn describe(&self, at: *mut Fault, kind: FaultKind, waiting: &Waiting) {
        // SAFETY: the caller's.
        unsafe { self.faults().describe(at, kind, waiting) }
    }

    /// A call has stopped: leaves the fault for the ring's neighbours. One lane of a block calls it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub(crate) fn pass_on_fault(&mut self) {
        self.stopped = true;
        if self.compares() {
            // SAFETY: the contract of `new`; who compares has a previous rank.
            unsafe { signature::report_difference(self) }
        }
        self.faults().pass_on();
    }

    #[inline(always)]
    fn faults(&self) -> CommFaults<KernelArgs> {
        // SAFETY: the contract of `new`.
        unsafe { CommFaults::new(self.args, self.compares()) }
    }
}

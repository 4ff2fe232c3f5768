//! A rank's side of the mesh: who it is, where its memory and that of the others is, and which call it is in.

use crate::abi::MeshLinks;
use crate::gpu;
use crate::peers::Among;
use crate::prims::{self, ConnState, KernelContext};

/// A block's side of the mesh during one call.
#[derive(Debug)]
pub struct MeshSide {
    pub(in crate::collectives) cx: KernelContext,
    pub(super) links: *mut MeshLinks,
    /// This rank.
    pub(in crate::collectives) rank: usize,
    /// Ranks.
    pub(in crate::collectives) nranks: usize,
    /// Whether ranks read what one has for all in that one's memory; a GPU's stand-in runs these kernels where they do not.
    reads_peers: bool,
}

/// Counters of calls before a call's end, in the lane that writes them. They are loaded while others wait, so that no load lies
/// between the last barrier and the kernel's end.
#[derive(Clone, Copy, Debug)]
pub(in crate::collectives) struct Counters {
    /// The mesh's calls.
    calls: u64,
    /// As [`prims::told`] says, in a block that compares.
    told: Option<(*mut u64, u64)>,
}

impl Among for MeshSide {
    #[inline(always)]
    fn rank(&self) -> usize {
        self.rank
    }
    #[inline(always)]
    fn nranks(&self) -> usize {
        self.nranks
    }
}

impl MeshSide {
    /// Opens the mesh. The ring's next rank is told which call this is.
    ///
    /// # Safety
    /// As [`MeshCode::run`](super::MeshCode::run). All lanes call it.
    #[inline(always)]
    pub(in crate::collectives) unsafe fn open(mut cx: KernelContext) -> Self {
        let links = cx.args().extra_of(cx.channel()) as *mut MeshLinks;
        // SAFETY: the caller's.
        unsafe {
            cx.begin_call();
            cx.stopped |= (*links).failed != 0;
            let (rank, nranks) = ((*links).rank as usize, (*links).nranks as usize);
            let mut side = MeshSide { cx, links, rank, nranks, reads_peers: false };
            side.reads_peers = gpu::READS_PEERS && !side.shared(rank, 0).is_null();
            side
        }
    }

    /// Whether an earlier call has stopped in the middle of its steps. All lanes find the same.
    #[inline(always)]
    pub(in crate::collectives) fn has_failed(&self) -> bool {
        // SAFETY: the contract of `open`.
        unsafe { (*self.links).failed != 0 }
    }

    /// Whether this lane counts the call: the last one, which is the first to have nothing more to do.
    #[inline(always)]
    fn counts(&self) -> bool {
        self.cx.tid() + 1 == self.cx.lanes()
    }

    /// What the call's end is to count on. All lanes call it, before the last that the block waits for.
    #[inline(always)]
    pub(in crate::collectives) fn counters(&self) -> Counters {
        if !self.counts() {
            return Counters { calls: 0, told: None };
        }
        // SAFETY: the contract of `open`; until the call's end nobody writes these.
        unsafe {
            let told = if self.cx.compares() { Some(prims::told(&self.cx)) } else { None };
            Counters { calls: (*self.links).calls, told }
        }
    }

    /// The end of a call, whose next step is `step`. All lanes call it when none of the block's waits any more.
    #[inline(always)]
    pub(in crate::collectives) fn close(mut self, step: u64, counters: Counters) {
        self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
        if self.counts() {
            // SAFETY: the contract of `open`; one lane writes the links, behind a barrier.
            unsafe {
                (*self.links).step = step;
                (*self.links).calls = counters.calls + 1;
                if self.cx.stopped {
                    (*self.links).failed = 1;
                    self.cx.pass_on_fault();
                } else if let Some(told) = counters.told {
                    prims::end_call(told);
                }
            }
        }
    }

    /// The next step of the slots.
    #[inline(always)]
    pub(in crate::collectives) fn step(&self) -> u64 {
        // SAFETY: the contract of `open`.
        unsafe { (*self.links).step }
    }

    /// Where memory of the rank that is `by + 1` behind this one is, `offset` bytes from this rank's slots there.
    #[inline(always)]
    pub(super) fn to(&self, by: usize, offset: usize) -> *mut u8 {
        // SAFETY: the contract of `open`: the tables follow the links.
        unsafe { (*self.links.add(1).cast::<*mut u8>().add(by)).wrapping_add(offset) }
    }

    /// Where this rank's memory is, `offset` bytes from a rank's slots.
    #[inline(always)]
    pub(super) fn from(&self, rank: usize, offset: usize) -> *mut u8 {
        let table = MeshLinks::table_len(self.nranks as u32);
        // SAFETY: as above.
        unsafe { (*self.links.add(1).cast::<*mut u8>().add(table + rank)).wrapping_add(offset) }
    }

    /// Where the slots are that a rank gives all others, `offset` bytes behind their address; on CPU devices.
    #[inline(always)]
    fn shared(&self, rank: usize, offset: usize) -> *mut u8 {
        let table = 2 * MeshLinks::table_len(self.nranks as u32);
        // SAFETY: as above.
        unsafe { (*self.links.add(1).cast::<*mut u8>().add(table + rank)).wrapping_add(offset) }
    }

    /// Where a rank's memory is that all others look at, `offset` bytes from its slots: what it has for all of them.
    #[inline(always)]
    pub(super) fn of_all(&self, rank: usize, offset: usize) -> *mut u8 {
        if gpu::READS_PEERS && self.reads_peers {
            self.shared(rank, offset)
        } else {
            self.from(rank, offset)
        }
    }

    /// Where a rank's memory is, `offset` bytes from its slots: of what it has for this rank alone, or with `ALL` for all.
    #[inline(always)]
    pub(super) fn of<const ALL: bool>(&self, rank: usize, offset: usize) -> *mut u8 {
        if ALL { self.of_all(rank, offset) } else { self.from(rank, offset) }
    }

    /// Calls `body` with each place that something for all others is to be written to, `offset` bytes from this rank's slots there: in
    /// the memory of each, from the one on that is `first + 1` behind this rank, and of those each `by`-th; or, where ranks read each
    /// other's memory, the one place that all look at, if `first` is 0.
    #[inline(always)]
    pub(super) fn for_all(
        &self,
        (first, by): (usize, usize),
        offset: usize,
        mut body: impl FnMut(*mut u8),
    ) {
        if gpu::READS_PEERS && self.reads_peers {
            if first == 0 {
                body(self.shared(self.rank, offset));
            }
            return;
        }
        let mut next = first;
        while next + 1 < self.nranks {
            body(self.to(next, offset));
            next += by;
        }
    }

    /// A rank that something of number `step` is waited for from, for reports.
    #[inline(always)]
    pub(super) fn conn(&self, rank: usize, step: u64) -> ConnState {
        // SAFETY: the contract of `open`: there is a connection with each of the others.
        unsafe { ConnState::named(&raw mut (*self.cx.peer(rank as u32)).recv, step) }
    }

    /// A barrier; whether the call goes on.
    #[inline(always)]
    pub(in crate::collectives) fn barrier(&mut self) -> bool {
        self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
        !self.cx.stopped
    }
}

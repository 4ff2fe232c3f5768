//! Barriers over all ranks, for kernels that work on each other's buffers.
//!
//! ```text
//! begin_together   every rank: I am in this call, its digest is ...   | wait for all others to say the same
//! end_together     every rank: I have done my part                    | wait for all others
//! ```
//!
//! A rank says so by a word in each of the others' memory, and polls its own; on CPU devices by one that all poll. NCCL's are the LSA barriers of its symmetric kernels
//! (`ncclLsaBarrierSession`).

use super::MeshSide;
use crate::abi::{LL_LINE, MESH_BEGUN, MESH_DIGEST_BYTES, MESH_ENDED, SignatureLines, WaitKind};
use crate::gpu;
use crate::orders;
use crate::peers::Among;
use crate::prims::{ConnState, KernelContext};

impl MeshSide {
    /// Waits until all others are in the same call on this channel; whether the call goes on. From then on their buffers may be
    /// used, and what they have written there before is there.
    ///
    /// # Safety
    /// All lanes call it, once in a call, after [`MeshSide::open`].
    #[inline(always)]
    pub(in crate::collectives) unsafe fn begin_together(&mut self) -> bool {
        // SAFETY: the contract of `open`: the words are in the mesh, and each has one writer. Why a digest's line has been read
        // before it is written again says the module of the mesh: who has ended call `n - 1` with its barrier has read all of `n - 2`.
        unsafe {
            let calls = (*self.links).calls;
            let line = SignatureLines::halves_of(self.cx.args().digest(), calls);
            let digest = LL_LINE * (calls % 2) as usize;
            let at = |word: usize| word.wrapping_sub(MESH_DIGEST_BYTES);
            let lanes = (self.cx.tid(), self.cx.lanes());
            self.for_all(lanes, at(0), |place| {
                let (theirs, word) = (place.wrapping_add(digest), place.wrapping_add(MESH_BEGUN));
                // Before the stores to another rank, for which it would wait.
                gpu::release_fence(orders::BEGUN);
                gpu::st_halves(theirs.cast(), line);
                gpu::store_fenced(orders::BEGUN, word.cast(), calls + 1);
            });
            self.for_others(|side, by| {
                let rank = side.behind(by);
                let word: *const u64 = side.of_all(rank, at(MESH_BEGUN)).cast();
                let theirs: *const u64 = side.of_all(rank, at(digest)).cast();
                // Of a rank in another call the ring's next rank learns which it is in, and stops all.
                let same =
                    || gpu::acquire(orders::BEGUN, word) > calls && gpu::ld_halves(theirs) == line;
                side.wait(rank, WaitKind::Begun, calls, same);
            });
        }
        self.barrier()
    }

    /// Tells all others that this rank has read and written all that it does of theirs, and waits until they have.
    ///
    /// # Safety
    /// All lanes call it, after [`MeshSide::begin_together`].
    #[inline(always)]
    pub(in crate::collectives) unsafe fn end_together(&mut self) {
        if !self.barrier() {
            return;
        }
        // SAFETY: the contract of `open`.
        unsafe {
            let calls = (*self.links).calls;
            let at = MESH_ENDED.wrapping_sub(MESH_DIGEST_BYTES);
            let lanes = (self.cx.tid(), self.cx.lanes());
            self.for_all(lanes, at, |word| gpu::release(orders::ENDED, word.cast(), calls + 1));
            self.for_others(|side, by| {
                let rank = side.behind(by);
                let word: *const u64 = side.of_all(rank, at).cast();
                let ended = || gpu::acquire(orders::ENDED, word) > calls;
                side.wait(rank, WaitKind::Ended, calls, ended);
            });
        }
    }

    /// Waits for `ready`, which is up to a rank.
    #[inline(always)]
    pub(super) fn wait(
        &mut self,
        rank: usize,
        kind: WaitKind,
        step: u64,
        ready: impl FnMut() -> bool,
    ) {
        // SAFETY: the contract of `open`: there is a connection with each of the others.
        let conn = |cx: &KernelContext| unsafe {
            ConnState::named(&raw mut (*cx.peer(rank as u32)).recv, step)
        };
        self.cx.wait_for_any::<false>(conn, kind, step, ready);
    }

    /// Calls `body` for each of the others, which the block's lanes share: with how far behind this rank it is, less one.
    #[inline(always)]
    pub(super) fn for_others(&mut self, mut body: impl FnMut(&mut Self, usize)) {
        let (mut by, lanes) = (self.cx.tid(), self.cx.lanes());
        while by + 1 < self.nranks {
            body(self, by);
            by += lanes;
        }
    }
}

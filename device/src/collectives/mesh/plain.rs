//! Plain data over the mesh: Simple. A slot of a step is a tail, and the data behind it.
//!
//! ```text
//! sender     data into the slot | barrier | which call it is; the tail, with release
//! receiver   the tails of all others, with acquire; whether they are in the same call | barrier | the data of all
//! ```
//!
//! Nothing is looked at line by line, so on CPU devices whole buffers are copied and combined by vector code, and memory of another
//! core comes as fast as it can be asked for.

use super::{Mesh, MeshProtocol, MeshSide, RankBlocks};
use crate::abi::{MESH_CALL, MESH_CORE, MESH_TAIL_BYTES, WaitKind};
use crate::collectives::local_copy;
use crate::element::Element;
use crate::gpu;
use crate::orders;
use crate::peers::{Among, Combined, Inputs, Peers};
use crate::prims::{Rules, Simple};
use crate::reduce::Reduction;

/// Looks at the tail of a rank on another core before this core is given away: a microsecond or two, about as long as it takes to get the
/// core back (`benches/records/2026-11-28-who-is-waited-for.md`).
const LOOKS: u32 = 50;
/// Looks of one wait at all such ranks together. A rank that comes so late may come much later: this core goes to others then.
const MAX_LOOKS: u32 = 16 * LOOKS;

impl<L: Rules> MeshProtocol for Simple<L> {
    const BUFFER: usize = 2;
    const TELLS_CALL: bool = true;

    #[inline(always)]
    fn mesh_capacity(slot_bytes: usize) -> usize {
        slot_bytes - MESH_TAIL_BYTES
    }

    #[inline(always)]
    unsafe fn spread<T: Element, R: Reduction>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        input: *const T,
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            mesh.write_to_all::<true>(step, input, n);
            mesh.publish::<true>(step);
        }
    }

    #[inline(always)]
    unsafe fn scatter<T: Element, R: Reduction>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        input: RankBlocks<*const T>,
        n: impl Fn(usize) -> usize,
        _: usize,
    ) {
        let at = mesh.slot(step) + MESH_TAIL_BYTES;
        for by in 0..mesh.nranks() - 1 {
            let peer = mesh.side.behind(by);
            let data = input.first.wrapping_add(peer * input.stride);
            // SAFETY: the caller's; the block fits the slot, which has been read.
            unsafe {
                let to = mesh.side.to(by, at).cast();
                local_copy::<T, R, true, false>(&mesh.side.cx, data, to, n(peer));
            }
        }
        // SAFETY: all lanes have written the blocks.
        unsafe { mesh.publish::<false>(step) }
    }

    #[inline(always)]
    unsafe fn reduce<T: Element, R: Reduction, const ALL: bool, const SEND: bool>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        (input, output): (*const T, *mut T),
        n: usize,
        _: usize,
    ) {
        // SAFETY: the caller's; when all others have published the step, the data is in the slots.
        unsafe {
            if !mesh.wait_for_all::<ALL>(step) {
                return;
            }
            let at = mesh.slot(step) + MESH_TAIL_BYTES;
            let (side, reducer) = (&mesh.side, mesh.reducer);
            let from = InSlots::<ALL> { side, at };
            let to = Peers(core::ptr::null());
            let combined =
                Combined::<T, R, MeshSide, false, _> { side, reducer, from, to, input, output };
            combined.run(n);
            if SEND {
                // Other lanes send what these have stored.
                if !mesh.barrier() {
                    return;
                }
                mesh.write_to_all::<false>(step + 1, output, n);
                mesh.publish::<true>(step + 1);
            }
        }
    }

    #[inline(always)]
    unsafe fn gather<T: Element, R: Reduction, const ALL: bool>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        output: RankBlocks<*mut T>,
        n: impl Fn(usize) -> usize,
        _: usize,
    ) {
        // SAFETY: the caller's; when all others have published the step, the data is in the slots.
        unsafe {
            if !mesh.wait_for_all::<ALL>(step) {
                return;
            }
            let at = mesh.slot(step) + MESH_TAIL_BYTES;
            for by in 0..mesh.nranks() - 1 {
                let peer = mesh.side.behind(by);
                let from = mesh.side.of::<ALL>(peer, at).cast::<T>().cast_const();
                let to = output.first.wrapping_add(peer * output.stride);
                local_copy::<T, R, false, false>(&mesh.side.cx, from, to, n(peer));
            }
        }
    }
}

impl<T: Element, R: Reduction, L: Rules> Mesh<T, R, Simple<L>> {
    /// Writes `n` elements into the slots of a step that all others read, with `OWN` scaled if that is what the reduction does.
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are readable and fit a slot, which has been read.
    #[inline(always)]
    unsafe fn write_to_all<const OWN: bool>(&self, step: u64, input: *const T, n: usize) {
        let at = self.slot(step) + MESH_TAIL_BYTES;
        // SAFETY: the caller's.
        self.side.for_all((0, 1), at, |to| unsafe {
            local_copy::<T, R, OWN, false>(&self.side.cx, input, to.cast(), n);
        });
    }

    /// Says that this rank's slots of a step have their data: those for all, or those for each.
    ///
    /// # Safety
    /// All lanes call it when they have written their part.
    #[inline(always)]
    unsafe fn publish<const ALL: bool>(&mut self, step: u64) {
        if !self.barrier() {
            return;
        }
        let (at, lanes) = (self.slot(step), (self.side.cx.tid(), self.side.cx.lanes()));
        let core = if gpu::KNOWS_CORES { gpu::core_number() } else { 0 };
        let call = self.args().digest();
        // SAFETY: the words are in the mesh, and this rank's; the barrier has ordered the lanes' data before them.
        let tell = |tail: *mut u8| unsafe {
            if core != 0 {
                gpu::st_relaxed(tail.add(MESH_CORE).cast(), core);
            }
            gpu::st_relaxed(tail.add(MESH_CALL).cast(), call);
            gpu::release(orders::MESH_TAIL, tail.cast(), step + 1);
        };
        if ALL {
            self.side.for_all(lanes, at, tell);
        } else {
            let mut by = lanes.0;
            while by + 1 < self.nranks() {
                tell(self.side.to(by, at));
                by += lanes.1;
            }
        }
    }

    /// Waits until all others have published a step of this call; whether the call goes on.
    ///
    /// # Safety
    /// All lanes call it. `ALL` is as they have published it.
    #[inline(always)]
    unsafe fn wait_for_all<const ALL: bool>(&mut self, step: u64) -> bool {
        if gpu::KNOWS_CORES {
            // SAFETY: the caller's.
            unsafe {
                if !self.are_there::<ALL>(step) {
                    self.wait_for_missing::<ALL>(step);
                }
            }
        } else {
            self.for_tails::<ALL>(step, |side, rank, tail| {
                // SAFETY: the tail is in the mesh.
                side.wait(rank, WaitKind::Tail, step, || unsafe { is_published(tail, step) });
            });
            self.compare_calls::<ALL>(step);
        }
        self.barrier()
    }

    /// Calls `body` for each of the others, which the block's lanes share: with its rank, and the tail of its slot of a step.
    #[inline(always)]
    fn for_tails<const ALL: bool>(
        &mut self,
        step: u64,
        mut body: impl FnMut(&mut MeshSide, usize, *const u64),
    ) {
        let at = self.slot(step);
        self.side.for_others(
            #[inline(always)]
            |side, by| {
                let rank = side.behind(by);
                let tail = side.of::<ALL>(rank, at).cast_const().cast();
                body(side, rank, tail);
            },
        );
    }

    /// Whether all others have published a step, of this call. A call that does not wait has this short loop alone.
    ///
    /// # Safety
    /// As [`Mesh::wait_for_all`].
    #[inline(always)]
    unsafe fn are_there<const ALL: bool>(&mut self, step: u64) -> bool {
        let (compares, call) = (self.side.cx.compares(), self.args().digest());
        let mut all = true;
        self.for_tails::<ALL>(step, |_, _, tail| {
            // SAFETY: tail and call are in the mesh.
            all &= unsafe { is_published(tail, step) && (!compares || is_in(tail, call)) };
        });
        all
    }

    /// Waits on a CPU device for the ranks that have not published a step, last for those that run on other cores: what these have left to
    /// do they do now, and most often in less time than it takes to give this core away and to get it back. So each is looked for some
    /// times before that. For a rank of this core that would be time lost: it comes only when it has the core.
    ///
    /// # Safety
    /// As [`Mesh::wait_for_all`].
    #[inline(never)]
    unsafe fn wait_for_missing<const ALL: bool>(&mut self, step: u64) {
        let (mut elsewhere, mut looks) = (false, MAX_LOOKS);
        // SAFETY: the tails are in the mesh.
        unsafe {
            self.for_tails::<ALL>(step, |side, rank, tail| {
                if !is_published(tail, step) {
                    elsewhere |= !side.wait_here(rank, tail, step);
                }
            });
            if elsewhere {
                self.for_tails::<ALL>(step, |side, rank, tail| {
                    if !is_published(tail, step) {
                        side.wait_elsewhere(rank, tail, step, &mut looks);
                    }
                });
            }
            if !self.are_there::<ALL>(step) {
                self.compare_calls::<ALL>(step);
            }
        }
    }

    /// Waits until all others are in the same call in this step, which they have published. Of one that is in another call the ring's next
    /// rank learns which it is in, and stops all.
    #[inline(always)]
    fn compare_calls<const ALL: bool>(&mut self, step: u64) {
        if !self.side.cx.compares() {
            return;
        }
        let call = self.args().digest();
        self.for_tails::<ALL>(step, |side, rank, tail| {
            // SAFETY: the tail is in the mesh; this lane has waited for it.
            let same = || unsafe { is_in(tail, call) };
            side.wait(rank, WaitKind::Signature, step, same);
        });
    }
}

impl MeshSide {
    /// Waits until a rank has published a step, if it runs on this core; otherwise returns `false`.
    ///
    /// # Safety
    /// `tail` is that of the rank's slot.
    #[inline(never)]
    unsafe fn wait_here(&mut self, rank: usize, tail: *const u64, step: u64) -> bool {
        // SAFETY: the core lies behind the tail, in the mesh. It may be of an earlier call: a rank seldom changes its core.
        let core = unsafe { gpu::ld_relaxed(tail.byte_add(MESH_CORE)) };
        if core != 0 && core != gpu::core_number() {
            return false;
        }
        // SAFETY: the caller's.
        self.wait(rank, WaitKind::Tail, step, || unsafe { is_published(tail, step) });
        true
    }

    /// Waits until a rank of another core has published a step. It is looked for some times before this core is given away, as long as
    /// `looks` are left.
    ///
    /// # Safety
    /// As [`MeshSide::wait_here`].
    #[inline(never)]
    unsafe fn wait_elsewhere(&mut self, rank: usize, tail: *const u64, step: u64, looks: &mut u32) {
        let there_soon = || {
            let end = looks.saturating_sub(LOOKS);
            // SAFETY: the caller's.
            while !unsafe { is_published(tail, step) } {
                if *looks == end {
                    return false;
                }
                *looks -= 1;
                core::hint::spin_loop();
            }
            true
        };
        self.wait(rank, WaitKind::Tail, step, there_soon);
    }
}

/// Whether the slot with this tail has the data of a step.
///
/// # Safety
/// The tail is in the mesh.
#[inline(always)]
unsafe fn is_published(tail: *const u64, step: u64) -> bool {
    // SAFETY: the caller's.
    unsafe { gpu::acquire(orders::MESH_TAIL, tail) > step }
}

/// Whether what was published with this tail is of the call with this digest.
///
/// # Safety
/// The tail is in the mesh, and [published](is_published).
#[inline(always)]
unsafe fn is_in(tail: *const u64, call: u64) -> bool {
    // SAFETY: the caller's: the digest lies behind the tail.
    unsafe { gpu::ld_relaxed(tail.byte_add(MESH_CALL)) == call }
}

/// What all ranks have in their slots of a step, `at` bytes behind the addresses of the mesh's tables; of this rank its own input.
#[derive(Clone, Copy)]
struct InSlots<'s, const ALL: bool> {
    side: &'s MeshSide,
    at: usize,
}

impl<const ALL: bool> Inputs for InSlots<'_, ALL> {
    #[inline(always)]
    unsafe fn input_of<T>(self, rank: usize, own: *const T) -> *const T {
        if rank == self.side.rank { own } else { self.side.of::<ALL>(rank, self.at).cast() }
    }

    /// Slots are aligned to packs.
    #[inline(always)]
    unsafe fn bits(self) -> usize {
        0
    }

    #[inline(always)]
    fn is_prepared(self, rank: usize) -> bool {
        rank != self.side.rank
    }
}

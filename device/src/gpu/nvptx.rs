//! The NVIDIA face: a lane is a thread of a thread block, its machine is the GPU.
//!
//! Every machine instruction that the project asks for by name is in this file, in [`lines`], in [`units`] and in
//! [`units_fp8`]. Two rules keep it right:
//!
//! * What makes lanes meet (barriers, votes) is an LLVM intrinsic, never `asm!`. Such an operation must
//!   not be moved into or copied between divergent branches, and only an intrinsic is marked so
//!   (`convergent`); to LLVM an `asm!` is an ordinary instruction.
//! * What other agents see (the flags, counters and slots of a connection) is `asm!`. It says state space,
//!   scope and width in one place; rustc's own atomics are right for loads and stores only, and never
//!   wider than 8 bytes.
//!
//! Every pointer that comes in here is to global memory, and says so to the assembler (`ld.global`, not a
//! generic `ld`). A generic address outside the windows of the other spaces is the global one (6.4.1.1),
//! so no conversion is written.
//!
//! Section numbers are those of NVIDIA's "Parallel Thread Execution ISA", version 8.x and 9.0.
#![allow(unsafe_code)]

use core::arch::asm;

use super::{Verdict, Waiting};
use crate::abi::Work;
use crate::arith::{BinOp, Unit};
use crate::orders::Published;

mod lines;
mod multicast;
mod units;
mod units_fp8;

pub use lines::{ld_data, ld_flag, ld_halves, ld_line, st_data, st_halves, st_line};
pub(crate) use multicast::{HAS_MULTICAST, MulticastAddress, fence_aliases, ld_sum, st_all};
pub use units::{Bf16Unit, F16Unit, I8Unit, U8Unit, max_f32, max_f64, min_f32, min_f64};
pub use units_fp8::{F8E4M3Unit, F8E5M2Unit};

/// Lanes of a warp.
pub const WARP: u32 = 32;
/// Lanes that hold one LL128 line.
pub const LANES_PER_LINE: usize = 8;
/// Bytes of the widest access.
pub const PACK_BYTES: usize = 16;
/// Packs in flight per lane in the bulk loop: 4 x 16 B x 2 sources are 32 registers, so that a block of
/// 512 lanes keeps within 128 registers a lane with room for addresses. Not measured yet.
pub const UNROLL: usize = 4;
/// Whether packs may be loaded and stored at any address (a vector access must be aligned to its size).
pub const UNALIGNED_PACKS: bool = false;
/// Whether a rank polls memory of another's: each look would cross a link.
pub const READS_PEERS: bool = false;
/// Whether a lane knows which core it runs on.
pub(crate) const KNOWS_CORES: bool = false;
/// Whether loads that do not depend on each other are under way together, so that all are asked for before one is looked at.
pub const LOADS_TOGETHER: bool = true;
/// Spins between looks at abort flags and the clock: a spin is a round trip to memory (about a
/// microsecond where it crosses a link), so that an abort is seen within milliseconds. Not measured yet.
pub const SPINS_PER_CHECK: u32 = 1000;

/// The core that this lane runs on, counted from 1; 0 where it is not to act by it.
#[inline(always)]
#[must_use]
pub(crate) fn core_number() -> u64 {
    0
}

/// The language wants one; the build turns every panic into a trap before it gets here.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the grid with an error.
    unsafe { core::arch::nvptx::trap() }
}

// "unadjusted" is the ABI of LLVM's own intrinsics: arguments pass as they are, `bool` is an `i1`.
unsafe extern "unadjusted" {
    /// `bar.sync id` (9.7.13.1): every lane of the block, in convergence.
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn bar_sync(id: i32);
    /// `bar.red.or.pred` (9.7.13.1).
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn bar_red_or(id: i32, predicate: bool) -> bool;
    /// `bar.warp.sync` (9.7.13.2).
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(mask: i32);
    /// `vote.sync.all.pred` (9.7.13.6).
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all(mask: i32, predicate: bool) -> bool;
    /// `%globaltimer` (10.27): nanoseconds; its resolution is up to a microsecond.
    #[link_name = "llvm.nvvm.read.ptx.sreg.globaltimer"]
    safe fn sreg_globaltimer() -> i64;
}

/// Promises the assembler that no block of this kernel has more than `MAX` lanes, so that it fits the
/// registers of that many, and that one block a multiprocessor is enough: it would rather spill than keep a
/// second one out. The comments stand in the kernel's body; the crate `ferroccl-build` moves them to the
/// header, where PTX wants them (11.4.3 and 11.4.6), as rustc has no attributes for them.
#[inline(always)]
pub fn launch_bounds<const MAX: u32>() {
    // SAFETY: comments.
    unsafe {
        asm!("//@maxntid {}", "//@minnctapersm 1", const MAX,
            options(nomem, nostack, preserves_flags));
    }
}

/// The same value, of which the compiler knows nothing: what is computed from it is computed where it is
/// used. Without it, all that is the same in each round of a kernel is computed before the first and held in
/// registers throughout, more of them than a lane has.
#[inline(always)]
#[must_use]
pub fn opaque(mut value: usize) -> usize {
    // SAFETY: a comment.
    unsafe { asm!("// {}", inlateout(reg64) value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Index of this lane in its block.
#[inline(always)]
#[must_use]
pub fn thread_idx_x() -> u32 {
    let value;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {}, %tid.x;", out(reg32) value, options(nomem, nostack, preserves_flags))
    }
    value
}

/// Lanes of the block.
#[inline(always)]
#[must_use]
pub fn block_dim_x() -> u32 {
    let value;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {}, %ntid.x;", out(reg32) value, options(nomem, nostack, preserves_flags))
    }
    value
}

/// Index of this block in its grid.
#[inline(always)]
#[must_use]
pub fn block_idx_x() -> u32 {
    let value;
    // SAFETY: reads a special register.
    unsafe {
        asm!("mov.u32 {}, %ctaid.x;", out(reg32) value, options(nomem, nostack, preserves_flags));
    }
    value
}

/// Index of this lane in its warp.
#[inline(always)]
#[must_use]
pub fn lane_id() -> u32 {
    let value;
    // SAFETY: reads a special register (10.2).
    unsafe {
        asm!("mov.u32 {}, %laneid;", out(reg32) value, options(nomem, nostack, preserves_flags))
    }
    value
}

/// Barrier over the block: every lane calls it, in the same place. It orders the block's memory accesses.
#[inline(always)]
pub fn sync_threads() {
    // SAFETY: the facade's rule that all lanes of the block come here together; barrier 0 is the only one.
    unsafe { bar_sync(0) }
}

/// [`sync_threads`] that returns whether any lane brought `true`.
#[inline(always)]
#[must_use]
pub fn sync_threads_or(predicate: bool) -> bool {
    // SAFETY: as in `sync_threads`.
    unsafe { bar_red_or(0, predicate) }
}

/// Barrier over the warp: all 32 lanes call it. They leave it together, so that what comes right after it is
/// one access of the warp; until a branch they may take differently.
#[inline(always)]
pub fn sync_warp() {
    // SAFETY: the facade's rule that all lanes of the warp come here together.
    unsafe { bar_warp_sync(-1) }
}

/// Whether every lane of the warp brought `true`; all 32 must call it together.
#[inline(always)]
#[must_use]
pub fn warp_vote_all(predicate: bool) -> bool {
    // SAFETY: the facade's rule that all lanes of the warp come here together.
    unsafe { vote_all(-1, predicate) }
}

/// Nanoseconds since an arbitrary moment.
#[inline(always)]
#[must_use]
pub fn globaltimer() -> u64 {
    sreg_globaltimer() as u64
}

/// Nothing to do: the hardware interleaves warps, and a block never has to give way.
#[inline(always)]
#[must_use]
pub fn pause(_: impl FnOnce() -> Waiting) -> Verdict {
    None
}

/// The word of the kernel's argument that begins `OFFSET` bytes behind its beginning. The argument is a parameter: loads of
/// those need no address in registers. An address that the compiler makes of it is that of a copy on each lane's stack.
///
/// # Safety
/// It runs in a kernel whose parameter is called `work`, as the build has it, and has such a word.
#[inline(always)]
pub(crate) unsafe fn argument<const OFFSET: usize>(_: *const Work) -> u64 {
    let value;
    // SAFETY: the caller's. 9.7.9.8, `ld.param`.
    unsafe {
        asm!("ld.param.b64 {}, [work+{}];", out(reg64) value, const OFFSET,
            options(pure, readonly, nostack, preserves_flags));
    }
    value
}

/// [`argument`], where only a running kernel knows which word it is.
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn argument_at(_: *const Work, offset: usize) -> u64 {
    let value;
    // SAFETY: the caller's. 9.7.9.8, `ld.param`, at an address that `mov` takes of a kernel's parameter (5.1.6.2).
    unsafe {
        asm!("{{ .reg .b64 %at; mov.b64 %at, work; add.s64 %at, %at, {}; ld.param.b64 {}, [%at]; }}",
            in(reg64) offset, out(reg64) value, options(pure, readonly, nostack, preserves_flags));
    }
    value
}

// Orderings. The memory model is chapter 8; `.sys` includes the host and the other GPUs.

/// Loads with acquire.
///
/// # Safety
/// `p` is aligned and readable global memory; other agents access it only atomically.
#[inline(always)]
pub unsafe fn ld_acquire(p: *const u64) -> u64 {
    let value;
    // SAFETY: the caller's. 9.7.9.8, `ld`.
    unsafe {
        asm!("ld.acquire.sys.global.u64 {}, [{}];", out(reg64) value, in(reg64) p,
            options(nostack, preserves_flags));
    }
    value
}

/// Stores with release.
///
/// # Safety
/// `p` is aligned and writable global memory; other agents access it only atomically.
#[inline(always)]
pub unsafe fn st_release(p: *mut u64, value: u64) {
    // SAFETY: the caller's. 9.7.9.11, `st`.
    unsafe {
        asm!("st.release.sys.global.u64 [{}], {};", in(reg64) p, in(reg64) value,
            options(nostack, preserves_flags));
    }
}

/// Stores at once but in no order.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn st_relaxed(p: *mut u64, value: u64) {
    // SAFETY: the caller's. 9.7.9.11, `st`.
    unsafe {
        asm!("st.relaxed.sys.global.u64 [{}], {};", in(reg64) p, in(reg64) value,
            options(nostack, preserves_flags));
    }
}

/// Fence: what was stored or read before it stays before what is stored or read after it.
#[inline(always)]
pub fn fence() {
    // SAFETY: orders memory, nothing else. 9.7.13.4, `fence`.
    unsafe { asm!("fence.acq_rel.sys;", options(nostack, preserves_flags)) }
}

/// Compare and swap with acquire and release; returns the old value.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn cas_acq_rel(p: *mut u64, expected: u64, new: u64) -> u64 {
    let old;
    // SAFETY: the caller's. 9.7.13.5, `atom`.
    unsafe {
        asm!("atom.acq_rel.sys.global.cas.b64 {}, [{}], {}, {};", out(reg64) old,
            in(reg64) p, in(reg64) expected, in(reg64) new,
            options(nostack, preserves_flags));
    }
    old
}

/// Loads a published word.
///
/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
pub unsafe fn acquire(_: Published, p: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { ld_acquire(p) }
}

/// Publishes a word.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn release(_: Published, p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { st_release(p, value) }
}

/// The first half of [`release`]: what comes before it is there for who loads the word that
/// [`store_fenced`] publishes. Stores between the two are not waited for.
#[inline(always)]
pub fn release_fence(_: Published) {
    fence();
}

/// The second half of [`release`], after [`release_fence`]: publishes a word.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn store_fenced(_: Published, p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { st_relaxed(p, value) }
}

/// Publishes a word by compare and swap; returns the old value.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn claim(_: Published, p: *mut u64, expected: u64, new: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { cas_acq_rel(p, expected, new) }
}

/// Adds to a word that several publish: what comes before it is there for who loads the sum.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn add_release(_: Published, p: *mut u64, n: u64) {
    // SAFETY: the caller's. 9.7.13.7, `red`.
    unsafe {
        asm!("red.release.sys.global.add.u64 [{}], {};", in(reg64) p, in(reg64) n,
            options(nostack, preserves_flags));
    }
}

/// Adds to a word that this device's blocks number things by; returns the old value. It orders nothing.
///
/// # Safety
/// As [`st_release`]; the word is accessed by this function alone.
#[inline(always)]
pub unsafe fn fetch_add(p: *mut u64, n: u64) -> u64 {
    let old;
    // SAFETY: the caller's. 9.7.13.5, `atom`.
    unsafe {
        asm!("atom.relaxed.gpu.global.add.u64 {}, [{}], {};", out(reg64) old, in(reg64) p,
            in(reg64) n, options(nostack, preserves_flags));
    }
    old
}

/// Loads a word that is there because a published one says so.
///
/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
pub unsafe fn ld_guarded(p: *const u64) -> u64 {
    let value;
    // SAFETY: the caller's. 9.7.9.8, `ld`.
    unsafe {
        asm!("ld.relaxed.sys.global.u64 {}, [{}];", out(reg64) value, in(reg64) p,
            options(nostack, preserves_flags));
    }
    value
}

/// Loads a word that says for itself what it is.
///
/// # Safety
/// As [`ld_acquire`].
#[inline(always)]
pub unsafe fn ld_relaxed(p: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { ld_guarded(p) }
}

/// Stores a word before a published one says that it is there.
///
/// # Safety
/// As [`st_release`].
#[inline(always)]
pub unsafe fn st_guarded(p: *mut u64, value: u64) {
    // SAFETY: the caller's.
    unsafe { st_relaxed(p, value) }
}

/// Whether the running block only counts steps: a GPU's never does.
#[inline(always)]
#[must_use]
pub const fn counting() -> bool {
    false
}

/// Bulk data moves pack by pack, all lanes together: there is nothing that works on whole buffers.
#[inline(always)]
#[must_use]
pub const fn whole_buffers() -> bool {
    false
}

/// Never called: [`whole_buffers`] is false.
///
/// # Safety
/// None.
#[inline(always)]
pub unsafe fn mem_copy<T>(_: *mut T, _: *const T, _: usize) {}

/// Never called: [`whole_buffers`] is false.
///
/// # Safety
/// None.
#[inline(always)]
pub unsafe fn mem_zip<U: Unit, O: BinOp>(_: *mut U, _: *const U, _: *const U, _: usize) {}

/// Never called: [`whole_buffers`] is false.
///
/// # Safety
/// None.
#[inline(always)]
pub unsafe fn mem_gather<U: Unit, O: BinOp>(_: *mut U, _: &[*const U], _: usize) {}

/// Never called: [`whole_buffers`] is false.
///
/// # Safety
/// None.
#[inline(always)]
pub unsafe fn mem_map<U: Unit>(_: *mut U, _: *const U, _: usize, _: impl Fn(U) -> U) {}

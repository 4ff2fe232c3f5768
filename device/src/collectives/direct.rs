//! Direct collectives: on buffers of which every rank has mapped the others' (windows).
//!
//! ```text
//! all-reduce      rank r: read part r of all inputs, combine, write the result to part r of all outputs
//! reduce-scatter  rank r: read block r of all inputs, combine, keep it
//! all-gather      rank r: write its block to block r of all outputs
//! ```
//!
//! Nothing passes through slots, and nothing is copied twice. Before and behind lies a barrier of all ranks
//! ([`MeshSide::begin_together`], [`MeshSide::end_together`]): a rank's buffers belong to all from its kernel's beginning to its end.
//! What has been read is combined in the order of the ranks, so all ranks get the same bits, and the same as along a
//! [`Chain`](super::Chain). An all-reduce may be in place: a rank alone reads a part of the inputs, and writes it when it has.
//!
//! NCCL's kernels of this kind are `AllReduce_RSxLD_AGxST`, `ReduceScatter_LD` and `AllGather_ST` (`src/device/symmetric`), also for
//! memory that is registered as a window.

use crate::abi::Work;
use crate::collectives::mesh::MeshSide;
use crate::element::Element;
use crate::peers::{Combined, Peers, spread};
use crate::prims::{KernelContext, Protocol};
use crate::reduce::Reduction;

/// A direct collective: one kernel for each reduction and type. It moves plain data; the protocol's type is of no use to it.
pub trait DirectCode {
    /// Threads of a block at most; see [`KernelCode::THREADS`](super::KernelCode::THREADS).
    const THREADS: u32 = 512;

    /// The kernel. All blocks of a rank run it; block = channel. [`Work::extra`] is the address of channel 0's
    /// [`MeshLinks`](crate::abi::MeshLinks); [`Work::input_peers`] and [`Work::output_peers`] are there as
    /// [`DirectCode::run_block`] needs them.
    ///
    /// # Safety
    /// As [`KernelCode::run`](super::KernelCode::run); the communicator has several ranks, and all share a mesh.
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut side = MeshSide::open(KernelContext::new(work, 1));
            let (step, counters) = (side.step(), side.counters());
            // All lanes find the same.
            if !side.has_failed() && side.begin_together() {
                Self::run_block::<T, R>(&side);
                side.end_together();
            }
            side.close(step, counters);
        }
    }

    /// What a block does between the barriers.
    ///
    /// # Safety
    /// As [`DirectCode::run`]; all lanes of the block call it.
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide);
}

/// All-reduce. Both buffers are in windows.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceDirect;

impl DirectCode for AllReduceDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let args = side.cx.args();
        let (start, n) = part_of_rank::<T>(side);
        let input = args.input::<T>().wrapping_add(start);
        let output = args.output::<T>().wrapping_add(start);
        // SAFETY: the caller's; the part is inside the buffers, and another rank's is another one.
        unsafe { Combined::<T, R, MeshSide, true>::of(side, args, (input, output)).run(n) }
    }
}

/// Of the block's part of an all-reduce, what this rank combines: its first element, and how many.
#[inline(always)]
pub(super) fn part_of_rank<T: Element>(side: &MeshSide) -> (usize, usize) {
    let part = side.cx.part();
    let count = part.count as usize;
    // Parts begin on a line of a well-aligned buffer.
    let line = 128 / size_of::<T>();
    let each = count.div_ceil(side.nranks).next_multiple_of(line);
    let from = (each * side.rank).min(count);
    (part.offset as usize + from, each.min(count - from))
}

/// Of a reduce-scatter, the block's part of this rank's block of the input, where the result of it goes, and its elements.
#[inline(always)]
pub(super) fn part_of_input_block<T: Element>(side: &MeshSide) -> ((*const T, *mut T), usize) {
    let (part, args) = (side.cx.part(), side.cx.args());
    let start = part.offset as usize;
    let input = args.input::<T>().wrapping_add(side.rank * args.count() as usize + start);
    ((input, args.output::<T>().wrapping_add(start)), part.count as usize)
}

/// Of an all-gather, the block's part of the input, where that is in this rank's block of the output, and its elements.
#[inline(always)]
pub(super) fn part_of_output_block<T: Element>(side: &MeshSide) -> ((*const T, *mut T), usize) {
    let (part, args) = (side.cx.part(), side.cx.args());
    let start = part.offset as usize;
    let output = args.output::<T>().wrapping_add(side.rank * args.count() as usize + start);
    ((args.input::<T>().wrapping_add(start), output), part.count as usize)
}

/// Reduce-scatter. The input is in a window.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterDirect;

impl DirectCode for ReduceScatterDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (buffers, n) = part_of_input_block::<T>(side);
        // SAFETY: the caller's; the part is inside the block.
        unsafe { Combined::<T, R, MeshSide, false>::of(side, side.cx.args(), buffers).run(n) }
    }
}

/// All-gather. The output is in a window.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherDirect;

impl DirectCode for AllGatherDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (buffers, n) = part_of_output_block::<T>(side);
        // SAFETY: the caller's; the part is inside the block.
        unsafe { spread(side, Peers::of_output(side.cx.args()), buffers, n * size_of::<T>()) }
    }
}

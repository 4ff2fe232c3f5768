//! Collectives on windows by a switch that sends what is stored to all ranks, and sums what it loads from all (NVLink SHARP).
//!
//! ```text
//! all-reduce      rank r: load the sums of part r of all inputs, store them to part r of all outputs
//! reduce-scatter  rank r: load the sums of block r of all inputs, keep them
//! all-gather      rank r: store its block to block r of all outputs
//! ```
//!
//! They are [direct](super::DirectCode) collectives, with the same barriers before and behind, whose 16-byte packs go to one address,
//! that of a multicast object: a rank's link carries a part of the data once, and not once for each other rank. The elements before
//! the first and behind the last pack go to each rank by itself. No place is accessed both ways in a call; before and behind it lie
//! the ends of kernels. So there is no need for a `fence.proxy.alias` (PTX ISA 9.0, 9.7.13.4), and NCCL's kernels have none.
//!
//! The switch sums in an order of its own, so the bits of a sum of floats are not those of [`Direct`](super::AllReduceDirect), and the
//! deterministic mode has no use for it. All ranks get the same bits, as each part is summed once.
//!
//! NCCL's kernels of this kind are `AllReduce_RSxLDMC_AGxSTMC`, `ReduceScatter_LDMC` and `AllGather_STMC`.

use super::direct::{DirectCode, part_of_input_block, part_of_output_block, part_of_rank};
use super::mesh::MeshSide;
use crate::element::Element;
use crate::peers::{Combined, Peers, spread_by_switch};
use crate::reduce::Reduction;

/// All-reduce, a sum or an average. Both buffers are in windows with multicast objects.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceNvls;

impl DirectCode for AllReduceNvls {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let args = side.cx.args();
        let (start, n) = part_of_rank::<T>(side);
        let input = args.input::<T>().wrapping_add(start);
        let output = args.output::<T>().wrapping_add(start);
        // SAFETY: the caller's; the part is inside the buffers, and another rank's is another one.
        unsafe { Combined::<T, R, MeshSide, true>::of(side, args, (input, output)).by_switch(n) }
    }
}

/// Reduce-scatter, a sum or an average. The input is in a window with a multicast object.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterNvls;

impl DirectCode for ReduceScatterNvls {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (buffers, n) = part_of_input_block::<T>(side);
        // SAFETY: the caller's; the part is inside the block.
        unsafe { Combined::<T, R, MeshSide, false>::of(side, side.cx.args(), buffers).by_switch(n) }
    }
}

/// All-gather. The output is in a window with a multicast object.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherNvls;

impl DirectCode for AllGatherNvls {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let ((input, output), n) = part_of_output_block::<T>(side);
        let buffers = (input.cast(), output.cast());
        // SAFETY: the caller's; the part is inside the block.
        unsafe {
            let peers = Peers::of_output(side.cx.args());
            spread_by_switch(side, peers, buffers, n * size_of::<T>());
        }
    }
}

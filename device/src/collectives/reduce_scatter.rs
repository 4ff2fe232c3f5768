//! Ring reduce-scatter.
//!
//! With `k` ranks in a ring, each block starts at the rank behind its owner, travels once around the ring, collects
//! every rank's part, and ends at its owner: the first half of a ring all-reduce.
//!
//! ```text
//! rank r:  send               block r - 1                 start it
//!          recv_reduce_send   block r - 2, ..., r + 1     add mine, pass on
//!          recv_reduce_copy   block r                     add mine: finished, keep
//! ```
//!
//! Source: NCCL's documentation of `ncclReduceScatter` for the layout: the input is the ranks' blocks in their order.

use crate::abi::{Algorithm, Collective};
use crate::collectives::{KernelCode, RingPosition, THROUGH_SLOTS, stride};
use crate::element::Element;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterRing;

impl KernelCode for ReduceScatterRing {
    const COLLECTIVE: Collective = Collective::ReduceScatter;
    const ALGORITHM: Algorithm = Algorithm::Ring;

    /// With 96 registers LL128's would spill.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let ring = RingPosition::of(&cx);
            let count = cx.count() as usize;
            let mut prims = Prims::<T, R, P, 1, 1>::open(cx, cx.ring(), THROUGH_SLOTS);

            let max = prims.chunk();
            let mut done = 0;
            while done < count {
                let n = max.min(count - done);
                // Where the block of the rank `back` before this one is.
                let block = |back| ring.block(back) * stride(&cx) + done;
                prims.send(block(1), n);
                prims.settle();
                for back in 2..ring.k {
                    prims.recv_reduce_send(block(back), n);
                }
                prims.recv_reduce_copy(block(ring.k), done, n);
                done += n;
            }
            prims.close();
        }
    }
}

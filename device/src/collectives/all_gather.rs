//! Ring all-gather.
//!
//! With `k` ranks in a ring, each rank's block travels `k - 1` steps around it. What a rank receives it keeps, and
//! passes on unless the next one has it.
//!
//! ```text
//! rank r:  send (and keep)   block r
//!          recv_copy_send    block r - 1, ..., r - (k - 2)     keep and pass on
//!          recv              block r - (k - 1) = r + 1         keep
//! ```
//!
//! Source: NCCL's documentation of `ncclAllGather` for the layout: the output is the ranks' inputs in their order.

use crate::abi::{Algorithm, Collective};
use crate::collectives::{DIRECT, KernelCode, RingPosition, input, output, stride};
use crate::element::Element;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherRing;

impl KernelCode for AllGatherRing {
    const COLLECTIVE: Collective = Collective::AllGather;
    const ALGORITHM: Algorithm = Algorithm::Ring;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let ring = RingPosition::of(&cx);
            let count = cx.count() as usize;
            let own = output::<T>(&cx).wrapping_add(ring.block(0) * stride(&cx));
            let in_place = core::ptr::eq(input(&cx), own);
            let mut prims = Prims::<T, R, P, 1, 1>::open(cx, cx.ring(), DIRECT);

            let max = prims.chunk();
            let mut done = 0;
            while done < count {
                let n = max.min(count - done);
                // Where the block of the rank `back` before this one goes.
                let block = |back| ring.block(back) * stride(&cx) + done;
                if in_place {
                    prims.direct_send(done, block(0), n);
                } else {
                    prims.direct_copy_send(done, block(0), n);
                }
                prims.settle();
                for back in 1..ring.k - 1 {
                    prims.direct_recv_copy_send(block(back), n);
                }
                prims.direct_recv(block(ring.k - 1), n);
                done += n;
            }
            prims.close();
        }
    }
}

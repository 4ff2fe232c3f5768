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

use crate::abi::Work;
use crate::collectives::{KernelCode, Place, alone, input, output, stride};
use crate::element::Element;
use crate::prims::{self, Context, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherRing;

impl KernelCode for AllGatherRing {
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let cx = Context::new(work);
            let place = Place::of(&cx);
            if place.k == 1 {
                return alone::<T, R>(&cx);
            }
            let count = cx.count() as usize;
            let own = output::<T>(&cx).wrapping_add(place.block(0) * stride(&cx));
            let in_place = core::ptr::eq(input(&cx), own);
            let (recv, send) = prims::ring(&cx);
            let mut prims = Prims::<T, R, P, 1, 1>::open_ring(cx, recv, send, true);

            let max = prims.chunk();
            let mut done = 0;
            while done < count {
                let n = max.min(count - done);
                // Where the block of the rank `back` before this one goes.
                let block = |back| place.block(back) * stride(&cx) + done;
                if in_place {
                    prims.direct_send(done, block(0), n);
                } else {
                    prims.direct_copy_send(done, block(0), n);
                }
                for back in 1..place.k - 1 {
                    prims.direct_recv_copy_send(block(back), n);
                }
                prims.direct_recv(block(place.k - 1), n);
                done += n;
            }
            prims.close();
        }
    }
}

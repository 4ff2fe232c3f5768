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

use crate::abi::Work;
use crate::collectives::{KernelCode, Place, alone, stride};
use crate::element::Element;
use crate::prims::{self, Context, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterRing;

impl KernelCode for ReduceScatterRing {
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
            let (recv, send) = prims::ring(&cx);
            let mut prims = Prims::<T, R, P, 1, 1>::open_ring(cx, recv, send, false);

            let max = prims.chunk();
            let mut done = 0;
            while done < count {
                let n = max.min(count - done);
                // Where the block of the rank `back` before this one is.
                let block = |back| place.block(back) * stride(&cx) + done;
                prims.send(block(1), n);
                for back in 2..place.k {
                    prims.recv_reduce_send(block(back), n);
                }
                prims.recv_reduce_copy(block(place.k), done, n);
                done += n;
            }
            prims.close();
        }
    }
}

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

use crate::abi::{Channel, Work};
use crate::collectives::{Reducing, alone};
use crate::element::Element;
use crate::gpu;
use crate::prims::{self, Context, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherRing;

impl Reducing for AllGatherRing {
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let cx = Context::new(work);
            let comm = cx.comm();
            let k = (*comm).nranks;
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            if k == 1 {
                return alone::<T, R>(&cx, start, count);
            }
            let channel = ((*comm).channels as *mut Channel).add(cx.channel() as usize);
            let r = (*channel).index as u32;
            let input = (*work).input as *const T;
            let own =
                ((*work).output as *const T).wrapping_add(r as usize * (*work).count as usize);
            let in_place = core::ptr::eq(input, own);
            let (recv, send) = prims::ring(channel);
            let mut prims = Prims::<T, R, P, 1, 1>::open(cx, recv, send);

            let max = prims.chunk();
            let mut done = 0;
            while done < count {
                let n = max.min(count - done);
                // Where the block of the rank `back` before this one goes, for 0 <= back < k. Computed where it is
                // used.
                let block = |back: u32| {
                    let i = r + k - gpu::fresh(back as usize) as u32;
                    let rank = if i >= k { i - k } else { i };
                    rank as usize * (*work).count as usize + done
                };
                if in_place {
                    prims.direct_send(done, block(0), n);
                } else {
                    prims.direct_copy_send(done, block(0), n);
                }
                for back in 1..k - 1 {
                    prims.direct_recv_copy_send(block(back), n);
                }
                prims.direct_recv(block(k - 1), n);
                done += n;
            }
            prims.close();
        }
    }
}

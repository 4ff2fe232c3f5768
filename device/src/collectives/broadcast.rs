//! Ring broadcast: a pipeline from the root to the rank before it.
//!
//! ```text
//! root:             send (and keep)
//! the others:       recv_copy_send      keep and pass on
//! before the root:  recv                keep
//! ```

use crate::abi::Work;
use crate::collectives::{KernelCode, Place, alone, for_chunks, from_root, roll_call};
use crate::element::Element;
use crate::prims::{self, Context, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. `Work::root` is a block of the ring's order.
#[derive(Clone, Copy, Debug)]
pub struct BroadcastRing;

impl KernelCode for BroadcastRing {
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let cx = Context::new(work);
            let place = Place::of(&cx);
            if place.k == 1 {
                return alone::<T, R>(&cx);
            }
            let mut cx = cx;
            roll_call(&mut cx, true);
            let root = cx.call().root() as usize;
            let (recv, send) = prims::ring(&cx);
            if place.block(0) == root {
                from_root(Prims::<T, R, P, 0, 1>::open(cx, [], send));
            } else if place.block(place.k - 1) == root {
                let mut prims = Prims::<T, R, P, 1, 0>::open(cx, recv, []);
                for_chunks(
                    cx.count() as usize,
                    prims.chunk(),
                    #[inline(always)]
                    |at, n| prims.direct_recv(at, n),
                );
                prims.close();
            } else {
                let mut prims = Prims::<T, R, P, 1, 1>::open(cx, recv, send);
                for_chunks(
                    cx.count() as usize,
                    prims.chunk(),
                    #[inline(always)]
                    |at, n| prims.direct_recv_copy_send(at, n),
                );
                prims.close();
            }
        }
    }
}

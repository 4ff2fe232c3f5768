//! Ring broadcast: a pipeline from the root to the rank before it.
//!
//! ```text
//! root:             send (and keep)
//! the others:       recv_copy_send      keep and pass on
//! before the root:  recv                keep
//! ```

use crate::abi::{Algorithm, Collective};
use crate::collectives::{DIRECT, KernelCode, RingPosition, root_broadcast, run_chunks};
use crate::element::Element;
use crate::prims::{KernelContext, Prims, Protocol, verbs};
use crate::reduce::Reduction;

/// The kernel: block = channel. `Work::root` is a block of the ring's order.
#[derive(Clone, Copy, Debug)]
pub struct BroadcastRing;

impl KernelCode for BroadcastRing {
    const COLLECTIVE: Collective = Collective::Broadcast;
    const ALGORITHM: Algorithm = Algorithm::Ring;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let ring = RingPosition::of(&cx);
            let root = cx.args().root() as usize;
            let (recv, send) = cx.ring();
            if ring.block(0) == root {
                root_broadcast(Prims::<T, R, P, 0, 1>::open(cx, ([], send), DIRECT));
            } else if ring.block(ring.k - 1) == root {
                let mut prims = Prims::<T, R, P, 1, 0>::open(cx, (recv, []), DIRECT);
                run_chunks::<verbs::DirectRecv, _, _, _, _, _>(&mut prims);
                prims.close();
            } else {
                let mut prims = Prims::<T, R, P, 1, 1>::open(cx, (recv, send), DIRECT);
                prims.settle();
                run_chunks::<verbs::DirectRecvCopySend, _, _, _, _, _>(&mut prims);
                prims.close();
            }
        }
    }
}

//! All-reduce by recursive doubling: in as many steps as the number of ranks has binary digits.
//!
//! In the step of distance `d` = 1, 2, 4, ... a rank exchanges with rank `r ^ d` all that it has, and adds what it gets. Then it has the
//! sum of `2 d` ranks. Where the number of ranks is no power of two, the ranks beyond the largest one that fits give their values to a
//! partner before, and get the sum from it behind.
//!
//! ```text
//! 5 ranks:   4 ─► 0      0 ◄─► 1   2 ◄─► 3      0 ◄─► 2   1 ◄─► 3      0 ─► 4
//! ```
//!
//! Each step sends all bytes: for few bytes it is fast, as a ring has `2 (k - 1)` steps; for many a ring sends less.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", International Journal of High
//! Performance Computing Applications 19 (2005), section 4.5.

use ferroccl_device::abi::{Algorithm, Collective};
use ferroccl_device::collectives::KernelCode;
use ferroccl_device::element::Element;
use ferroccl_device::gpu;
use ferroccl_device::prims::{KernelContext, Prims, Protocol};
use ferroccl_device::reduce::Reduction;

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceDoubling;

/// Connections that are opened without a way straight into the peer's output.
const THROUGH_SLOTS: bool = false;

impl KernelCode for AllReduceDoubling {
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::own(0, "Doubling");
    /// More of its state is in registers than 96 hold.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        let (k, r) = (cx.ranks(), cx.rank());
        let mut power = 1;
        while power * 2 <= k {
            power *= 2;
        }
        // SAFETY: the caller's: each block is the only user of its channel's connections, and the call's buffers hold the part.
        unsafe {
            // What goes out first is not for the ring's next rank.
            cx.settle();
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            let own = cx.args().input::<T>().wrapping_add(start);
            let sum = cx.args().output::<T>().wrapping_add(start);
            let mut at = 0;
            while at < count {
                // As much as a slot holds, which is alike on all connections.
                let mut n = count - at;
                let (input, output) = (own.wrapping_add(at), sum.wrapping_add(at));
                // Whether `output` has what this rank has so far; before, it is in `input`.
                let mut summed = false;
                if r >= power {
                    let mut prims = open::<T, R, P>(cx, r - power);
                    n = n.min(prims.chunk());
                    prims.send_from(input, n);
                    prims.recv_into(output, n);
                    prims.close_round(&mut cx);
                    at += n;
                    continue;
                }
                let has_extra = r + power < k;
                if has_extra {
                    let mut prims = open::<T, R, P>(cx, r + power);
                    n = n.min(prims.chunk());
                    prims.reduce_partial_into(input, output, n);
                    prims.close_round(&mut cx);
                    summed = true;
                }
                let mut d = 1;
                while d < power {
                    let mut prims = open::<T, R, P>(cx, r ^ d);
                    n = n.min(prims.chunk());
                    let last = d * 2 == power;
                    if summed {
                        prims.send_partial_from(output, n);
                    } else {
                        prims.send_from(input, n);
                    }
                    match (summed, last) {
                        (false, false) => prims.reduce_partial_into(input, output, n),
                        (false, true) => prims.reduce_into(input, output, n),
                        (true, false) => prims.add_partial_into(output, output, n),
                        (true, true) => prims.add_final_into(output, output, n),
                    }
                    prims.close_round(&mut cx);
                    summed = true;
                    d *= 2;
                }
                if has_extra {
                    let mut prims = open::<T, R, P>(cx, r + power);
                    prims.send_partial_from(output, n);
                    prims.close_round(&mut cx);
                }
                at += n;
            }
        }
        if cx.count() == 0 {
            // A round's end is a barrier; there was none.
            gpu::sync_threads();
        }
    }
}

/// The connections with one rank, both ways.
///
/// # Safety
/// As [`Prims::open`].
#[inline(always)]
unsafe fn open<T: Element, R: Reduction, P: Protocol>(
    cx: KernelContext,
    peer: u32,
) -> Prims<T, R, P, 1, 1> {
    let (recv, send) = cx.connections(peer);
    // SAFETY: the caller's.
    unsafe { Prims::open(cx, ([recv], [send]), THROUGH_SLOTS) }
}

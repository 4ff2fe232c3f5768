//! All-reduce by recursive halving and doubling: in twice as many steps as the number of ranks has binary digits, a ring's bytes.
//!
//! In the step of distance `d` = ..., 4, 2, 1 a rank cuts what it works on in two. It gives one half to rank `r ^ d`, and adds that one's
//! part of the other. At the end it has the sum of one part, which then grows on the same way back:
//!
//! ```text
//! 4 ranks, what each works on:   0123 0123 0123 0123 │ 01-- 01-- --23 --23 │ 0--- -1-- --2- ---3 │ 01-- 01-- --23 --23 │ 0123 ...
//! ```
//!
//! Where the number of ranks is no power of two, the ranks beyond the largest one that fits give their values to a partner before,
//! and get the sum from it behind.
//!
//! Source: Rabenseifner's algorithm, as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", International Journal of High Performance Computing Applications 19 (2005), section 4.5.

use ferroccl_device::abi::{Algorithm, Collective};
use ferroccl_device::collectives::KernelCode;
use ferroccl_device::element::Element;
use ferroccl_device::gpu;
use ferroccl_device::prims::{KernelContext, Prims, Protocol};
use ferroccl_device::reduce::Reduction;

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceHalving;

/// Connections that are opened without a way straight into the peer's output.
const THROUGH_SLOTS: bool = false;

impl KernelCode for AllReduceHalving {
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::own(0, "Halving");
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
                if r >= power {
                    let mut prims = open::<T, R, P>(cx, r - power);
                    n = n.min(prims.chunk());
                    prims.send_from(input, n);
                    prims.recv_into(output, n);
                    prims.close_round(&mut cx);
                    at += n;
                    continue;
                }
                // Whether `output` has what this rank has so far; before, it is in `input`.
                let mut summed = false;
                if r + power < k {
                    let mut prims = open::<T, R, P>(cx, r + power);
                    n = n.min(prims.chunk());
                    prims.reduce_partial_into(input, output, n);
                    prims.close_round(&mut cx);
                    summed = true;
                }
                let mut d = power / 2;
                while d > 0 {
                    let mut prims = open::<T, R, P>(cx, r ^ d);
                    n = n.min(prims.chunk());
                    let ((to, gives), (from, keeps)) =
                        (range::<T>(r ^ d, power, d, n), range::<T>(r, power, d, n));
                    let (mine, kept) = (input.wrapping_add(from), output.wrapping_add(from));
                    if summed {
                        prims.send_partial_from(output.wrapping_add(to), gives);
                    } else {
                        prims.send_from(input.wrapping_add(to), gives);
                    }
                    match (summed, d == 1) {
                        (false, false) => prims.reduce_partial_into(mine, kept, keeps),
                        (false, true) => prims.reduce_into(mine, kept, keeps),
                        (true, false) => prims.add_partial_into(kept, kept, keeps),
                        (true, true) => prims.add_final_into(kept, kept, keeps),
                    }
                    prims.close_round(&mut cx);
                    summed = true;
                    d /= 2;
                }
                d = 1;
                while d < power {
                    let mut prims = open::<T, R, P>(cx, r ^ d);
                    let ((to, gets), (from, has)) =
                        (range::<T>(r ^ d, power, d, n), range::<T>(r, power, d, n));
                    prims.send_partial_from(output.wrapping_add(from), has);
                    prims.recv_into(output.wrapping_add(to), gets);
                    prims.close_round(&mut cx);
                    d *= 2;
                }
                if r + power < k {
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

/// Of `n` elements, where the part of rank `r` begins after the step of distance `until`, and how many it has. It begins at a pack.
#[inline(always)]
fn range<T>(r: u32, power: u32, until: u32, n: usize) -> (usize, usize) {
    let pack = (16 / size_of::<T>()).max(1);
    let (mut from, mut count) = (0, n);
    let mut d = power / 2;
    while d >= until {
        let lower = count.div_ceil(2 * pack).wrapping_mul(pack).min(count);
        if r & d == 0 {
            count = lower;
        } else {
            from += lower;
            count -= lower;
        }
        d /= 2;
    }
    (from, count)
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

//! All-reduce by recursive doubling: in as many rounds as the number of ranks has binary digits.
//!
//! All numbers are positions in the channel's ring. In the round of distance `d` = 1, 2, 4, ... position `p` exchanges with position
//! `p ^ d` all that it has, and adds what it gets. Then it has the sum of `2 d` ranks. Where the number of ranks is no power of two,
//! those beyond the largest one that fits give their values to a partner before, and get the sum from it behind.
//!
//! ```text
//! 5 ranks:   4 ─► 0      0 ◄─► 1   2 ◄─► 3      0 ◄─► 2   1 ◄─► 3      0 ─► 4
//! ```
//!
//! Each round sends all bytes: it is for few of them, where the rounds are the cost. A ring has `2 (k - 1)` of them, a tree up and
//! down two for each of its levels. Both partners of a round add the same two values, so all ranks get the same bits.
//!
//! # Comparing calls
//!
//! A rank does not wait for the comparison with the previous rank of the ring before it sends its own values, but before it hands on
//! those of others ([`KernelContext::settle`]). So the first round is a single message each way, signature and data, also over a
//! network.
//!
//! If a single rank `x` is in another call, nobody ends its own: `x` and the next position find the difference, and hand nothing on. One
//! of these two is even, the other odd. From the second round on a position exchanges with positions of its own parity, and needs what
//! each of them hands on; with two ranks there are only these two. The positions beyond the power of two, and their partners, wait
//! for the comparison before they send anything: a partner hands on what it has got from beyond, and the last position of those within
//! is compared by the first beyond.
//!
//! Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", International Journal of High
//! Performance Computing Applications 19 (2005), section 4.5.

use crate::abi::{Algorithm, Collective};
use crate::collectives::{KernelCode, RingPosition, THROUGH_SLOTS, input, output};
use crate::element::Element;
use crate::gpu;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceDoubling;

impl KernelCode for AllReduceDoubling {
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::Doubling;
    /// More of its state is in registers than 96 hold.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        let ring = RingPosition::of(&cx);
        let (k, p) = (ring.k, ring.index);
        let power = 1 << k.ilog2();
        // SAFETY: the caller's: each block is the only user of its channel's connections, and the call's buffers hold the part.
        unsafe {
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            let own = input::<T>(&cx).wrapping_add(start);
            let sum = output::<T>(&cx).wrapping_add(start);
            // Beyond, or with a partner there.
            if p >= power || p + power < k {
                cx.settle();
            }
            let mut at = 0;
            while at < count {
                // As much as a slot holds, which is alike on all connections.
                let mut n = count - at;
                let (input, output) = (own.wrapping_add(at), sum.wrapping_add(at));
                if p >= power {
                    let mut prims = open::<T, R, P>(cx, ring.at(p - power));
                    n = n.min(prims.chunk());
                    prims.send_from(input, n);
                    prims.recv_into(output, n);
                    prims.close_round(&mut cx);
                    at += n;
                    continue;
                }
                // Whether `output` has what this rank has so far; before, it is in `input`.
                let mut summed = false;
                if p + power < k {
                    let mut prims = open::<T, R, P>(cx, ring.at(p + power));
                    n = n.min(prims.chunk());
                    prims.reduce_partial_into(input, output, n);
                    prims.close_round(&mut cx);
                    summed = true;
                }
                let mut d = 1;
                while d < power {
                    let mut prims = open::<T, R, P>(cx, ring.at(p ^ d));
                    n = n.min(prims.chunk());
                    if summed {
                        prims.send_partial_from(output, n);
                    } else {
                        prims.send_from(input, n);
                        prims.settle();
                    }
                    match (summed, d * 2 == power) {
                        (false, false) => prims.reduce_partial_into(input, output, n),
                        (false, true) => prims.reduce_into(input, output, n),
                        (true, false) => prims.add_partial_into(output, output, n),
                        (true, true) => prims.add_final_into(output, output, n),
                    }
                    prims.close_round(&mut cx);
                    summed = true;
                    d *= 2;
                }
                if p + power < k {
                    let mut prims = open::<T, R, P>(cx, ring.at(p + power));
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

//! Bruck's algorithms: all-gather and reduce-scatter in as many steps as the number of ranks has binary digits.
//!
//! With `k` ranks, in the round of distance `d` = 1, 2, 4, ... < `k` a rank has the blocks of the ranks `r` to
//! `r + d - 1` (all numbers are modulo `k`), gives them to rank `r - d` and gets those from `r + d` on:
//!
//! ```text
//! all-gather of 5 ranks, what rank 0 has:    0 | 0 1 | 0 1 2 3 | 0 1 2 3 4
//! ```
//!
//! The reduce-scatter is the same backwards. Rank `r` holds a partial value for the block of each rank `r + j`; in the
//! round of distance `d`, the largest first, it gives the partial values with `d <= j < 2 d` to rank `r + d`, to which
//! they are the ones with `j - d`. What has been combined is kept in scratch memory.
//!
//! Within a round blocks go chunk by chunk, one sent, one received, so that no rank fills its slots before another
//! empties them. The order of additions is not that of the ranks.
//!
//! Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems", IEEE Transactions on Parallel and Distributed Systems 8 (1997).

use core::ptr;

use crate::abi::{Algorithm, Collective};
use crate::collectives::{KernelCode, THROUGH_SLOTS, input, local_copy, output, pack, stride};
use crate::element::Element;
use crate::gpu;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// All-gather: block = channel. `Work::count` is that of one rank, and the parts are parts of that.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherBruck;

/// Reduce-scatter: block = channel. `Work::count` is that of one rank, and the parts are parts of that. Needs scratch.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterBruck;

impl KernelCode for AllGatherBruck {
    const COLLECTIVE: Collective = Collective::AllGather;
    const ALGORITHM: Algorithm = Algorithm::Bruck;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let (k, r) = ((*cx.comm()).nranks, (*cx.comm()).rank);
            // What goes out first is handed on by ranks that are not in the ring's order.
            cx.settle();
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            let to = output::<T>(&cx);
            let own = input::<T>(&cx).wrapping_add(start);
            let place = to.wrapping_add(r as usize * stride(&cx) + start);
            if !ptr::eq(own, place) {
                local_copy::<T, R, true, false>(&cx, own, place, count);
                gpu::sync_threads();
            }
            let mut d = 1;
            while d < k {
                let (from, next) = (&raw mut (*cx.peer(after(r, d, k))).recv, (r + k - d) % k);
                let conn = &raw mut (*cx.peer(next)).send;
                let mut prims = Prims::<T, R, P, 1, 1>::open(cx, ([from], [conn]), THROUGH_SLOTS);
                let chunk = prims.chunk();
                for i in 0..d.min(k - d) {
                    let mine = to.wrapping_add(after(r, i, k) as usize * stride(&cx) + start);
                    let theirs = to.wrapping_add(after(r, d + i, k) as usize * stride(&cx) + start);
                    let mut at = 0;
                    while at < count {
                        let n = chunk.min(count - at);
                        prims.send_from(mine.wrapping_add(at), n);
                        prims.recv_into(theirs.wrapping_add(at), n);
                        at += n;
                    }
                }
                prims.close_round(&mut cx);
                d *= 2;
            }
        }
    }
}

impl KernelCode for ReduceScatterBruck {
    const COLLECTIVE: Collective = Collective::ReduceScatter;
    const ALGORITHM: Algorithm = Algorithm::Bruck;

    /// More of its state is in registers than 96 hold.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let (k, r) = ((*cx.comm()).nranks, (*cx.comm()).rank);
            // What goes out first is handed on by ranks that are not in the ring's order.
            cx.settle();
            let part = cx.part();
            let (start, count) = (part.offset as usize, part.count as usize);
            let own = input::<T>(&cx).wrapping_add(start);
            let to = output::<T>(&cx).wrapping_add(start);
            let scratch = (*cx.links()).scratch as *mut T;
            let mut largest = 1;
            while largest * 2 < k {
                largest *= 2;
            }
            // Partial values are kept for `largest` blocks at a time.
            let room = (*cx.links()).scratch_bytes as usize / size_of::<T>() / largest as usize;
            let room = (room / pack::<T>() * pack::<T>()).max(1);
            let mut done = 0;
            // Once also when there is nothing to send: the calls are compared.
            loop {
                let mut n = room.min(count - done);
                let mut d = largest;
                while d > 0 {
                    let (from, next) = ((r + k - d) % k, after(r, d, k));
                    let (from, next) =
                        (&raw mut (*cx.peer(from)).recv, &raw mut (*cx.peer(next)).send);
                    let mut prims =
                        Prims::<T, R, P, 1, 1>::open(cx, ([from], [next]), THROUGH_SLOTS);
                    n = n.min(prims.chunk());
                    for j in d..(2 * d).min(k) {
                        // What has come in an earlier round, from a larger distance, is in scratch.
                        let combined = |j: u32| j + 2 * d < k;
                        let kept = |j: u32| {
                            scratch.wrapping_add(j as usize * n.next_multiple_of(pack::<T>()))
                        };
                        let input =
                            |j: u32| own.wrapping_add(after(r, j, k) as usize * stride(&cx) + done);
                        if combined(j) {
                            prims.send_partial_from(kept(j), n);
                        } else {
                            prims.send_from(input(j), n);
                        }
                        let i = j - d;
                        match (d == 1, combined(i)) {
                            (false, false) => {
                                prims.reduce_partial_into(input(i), kept(i), n);
                            }
                            (false, true) => {
                                prims.add_partial_into(kept(i), kept(i), n);
                            }
                            (true, false) => {
                                let to = to.wrapping_add(done);
                                prims.reduce_into(input(i), to, n);
                            }
                            (true, true) => {
                                let to = to.wrapping_add(done);
                                prims.add_final_into(kept(i), to, n);
                            }
                        }
                    }
                    prims.close_round(&mut cx);
                    d /= 2;
                }
                done += n;
                if done >= count {
                    break;
                }
            }
        }
    }
}

/// The rank `d` behind `r`, for `d < k`.
#[inline(always)]
const fn after(r: u32, d: u32, k: u32) -> u32 {
    let rank = r + d;
    if rank >= k { rank - k } else { rank }
}

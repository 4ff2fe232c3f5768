//! One-shot all-reduce: every rank sends its part to every other, and each combines them all.
//!
//! ```text
//! rank r:   send   to r + 1, ..., r + k - 1
//!           recv   from 0, 1, ..., k - 1 (its own part in its place), combined in that order
//! ```
//!
//! One step instead of a ring's `2 (k - 1)`, for `k - 1` times the data: for messages of which the steps are the cost,
//! among ranks that reach each other directly. All ranks combine in the order of the ranks, so all get the same bits,
//! and the same as along a [`Chain`](super::Chain).

use crate::collectives::{
    KernelCode, check_call_signature, input, local_combine, local_copy, output, through_slots,
};
use crate::element::Element;
use crate::gpu;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. Needs scratch for two chunks, or makes them smaller.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceOneShot;

impl KernelCode for AllReduceOneShot {
    /// More of its state is in registers than 96 hold.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let k = (*cx.comm()).nranks;
            check_call_signature(&mut cx);
            let (part, r) = (cx.part(), (*cx.comm()).rank);
            let (start, count) = (part.offset as usize, part.count as usize);
            let scratch = (*cx.links()).scratch as *mut T;
            // Two halves: what has been combined, and the own value.
            let room = (*cx.links()).scratch_bytes as usize / size_of::<T>() / 2;
            let (own, to) = (input::<T>(&cx), output::<T>(&cx));
            let mut done = 0;
            // Once also when there is nothing to send: the calls are compared.
            loop {
                let mut n = count - done;
                for i in 1..k {
                    let peer = if r + i >= k { r + i - k } else { r + i };
                    let conn = &raw mut (*cx.peer(peer)).send;
                    let mut prims =
                        Prims::<T, R, P, 0, 1>::open(cx, ([], [conn]), through_slots(done > 0));
                    n = n.min(prims.chunk()).min(room);
                    prims.send_from(own.wrapping_add(start + done), n);
                    prims.close_round(&mut cx);
                }
                let (own, to) = (own.wrapping_add(start + done), to.wrapping_add(start + done));
                for peer in 0..k {
                    // Not the loop's variable: no round is to be taken out of the loop.
                    let first = gpu::opaque(peer as usize) == 0;
                    let last = gpu::opaque(peer as usize + 1) == k as usize;
                    if peer == r {
                        // Scaled first, and apart: in place the result goes where it is. The first is there alone.
                        let scaled = if first { scratch } else { scratch.wrapping_add(room) };
                        gpu::sync_threads();
                        local_copy::<T, R, false>(&cx, own, scaled, n);
                        gpu::sync_threads();
                        if last {
                            local_combine::<T, R, true>(&cx, scratch, scaled, to, n);
                        } else if !first {
                            local_combine::<T, R, false>(&cx, scratch, scaled, scratch, n);
                        }
                        gpu::sync_threads();
                        continue;
                    }
                    let conn = &raw mut (*cx.peer(peer)).recv;
                    let mut prims =
                        Prims::<T, R, P, 1, 0>::open(cx, ([conn], []), through_slots(done > 0));
                    if first {
                        prims.recv_into(scratch, n);
                    } else if last {
                        prims.add_final_into(scratch, to, n);
                    } else {
                        prims.add_partial_into(scratch, scratch, n);
                    }
                    prims.close_round(&mut cx);
                }
                done += n;
                if done >= count {
                    break;
                }
            }
        }
    }
}

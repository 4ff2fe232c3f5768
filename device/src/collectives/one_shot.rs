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

use core::ptr;

use crate::abi::Work;
use crate::collectives::{KernelCode, alone, input, local, local_combine, output, roll_call};
use crate::element::Element;
use crate::gpu;
use crate::prims::{Context, Prims, Protocol, verbs};
use crate::reduce::Reduction;

/// The kernel: block = channel. Needs scratch for two chunks, or makes them smaller.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceOneShot;

impl KernelCode for AllReduceOneShot {
    /// More of its state is in registers than 96 hold.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut cx = Context::new(work);
            let k = (*cx.comm()).nranks;
            if k == 1 {
                return alone::<T, R>(&cx);
            }
            roll_call(&mut cx, true);
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
                    let mut prims = if done == 0 {
                        Prims::<T, R, P, 0, 1>::open_slots(cx, [], [conn])
                    } else {
                        Prims::<T, R, P, 0, 1>::attach(cx, [], [conn])
                    };
                    n = n.min(prims.chunk()).min(room);
                    prims.op_at::<verbs::Send>(
                        own.wrapping_add(start + done),
                        ptr::null_mut(),
                        0,
                        n,
                    );
                    cx.stopped |= prims.stopped();
                    prims.close();
                    // The steps are kept before a lane opens the connection again.
                    gpu::sync_threads();
                }
                let (own, to) = (own.wrapping_add(start + done), to.wrapping_add(start + done));
                for peer in 0..k {
                    // Not the loop's variable: no round is to be taken out of the loop.
                    let first = gpu::fresh(peer as usize) == 0;
                    let last = gpu::fresh(peer as usize + 1) == k as usize;
                    if peer == r {
                        // Scaled first, and apart: in place the result goes where it is. The first is there alone.
                        let scaled = if first { scratch } else { scratch.wrapping_add(room) };
                        gpu::sync_threads();
                        local::<T, R, false>(&cx, own, scaled, n);
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
                    let mut prims = if done == 0 {
                        Prims::<T, R, P, 1, 0>::open_slots(cx, [conn], [])
                    } else {
                        Prims::<T, R, P, 1, 0>::attach(cx, [conn], [])
                    };
                    if first {
                        prims.op_at::<verbs::Recv>(ptr::null(), scratch, 0, n);
                    } else if last {
                        prims.op_at::<verbs::RecvAddFinal>(scratch, to, 0, n);
                    } else {
                        prims.op_at::<verbs::RecvAddPartial>(scratch, scratch, 0, n);
                    }
                    cx.stopped |= prims.stopped();
                    prims.close();
                    // The steps are kept before a lane opens the connection again.
                    gpu::sync_threads();
                }
                done += n;
                if done >= count {
                    break;
                }
            }
        }
    }
}

//! Ring all-reduce.
//!
//! With `k` ranks in a ring, a round of `k` chunks takes `2k - 1` steps on each rank. First the chunks
//! travel once round the ring and collect every rank's part (a reduce-scatter): chunk `i` starts at rank
//! `i + 1` and is finished by rank `i`. Then the finished chunks travel once more (an all-gather).
//!
//! ```text
//! rank r:  send                    chunk r - 1                 start a chunk
//!          recv_reduce_send        chunk r - 2, ..., r + 1     add mine, pass on
//!          recv_reduce_copy_send   chunk r                     add mine: finished, keep and pass on
//!          recv_copy_send          chunk r - 1, ..., r + 2     keep and pass on
//!          recv                    chunk r + 1                 keep
//! ```
//!
//! Each rank sends `2 (k - 1) / k` of the data, which is optimal.
//! Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

use crate::abi::{Algorithm, Collective};
use crate::collectives::chunks::RingChunks;
use crate::collectives::{DIRECT, KernelCode, pack};
use crate::element::Element;
use crate::gpu;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceRing;

impl KernelCode for AllReduceRing {
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::Ring;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let k = (*cx.comm()).nranks;
            let count = cx.count() as usize;
            let r = (*cx.links()).index;
            let mut prims = Prims::<T, R, P, 1, 1>::open(cx, cx.ring(), DIRECT);

            let chunks = RingChunks::new(count, k as usize, prims.chunk(), pack::<T>());
            let mut round = chunks.round(0);
            while !round.is_empty() {
                // Chunk r - back, for 0 <= back <= k: where it starts, and its size. Computed where it is used.
                let chunk = |back: u32| {
                    let i = r + k - gpu::opaque(back as usize) as u32;
                    let range = round.chunk(if i >= k { i - k } else { i } as usize);
                    (range.start, range.end - range.start)
                };

                let (at, n) = chunk(1);
                prims.send(at, n);
                prims.settle();
                for back in 2..k {
                    let (at, n) = chunk(back);
                    prims.recv_reduce_send(at, n);
                }
                let (at, n) = chunk(k);
                prims.direct_recv_reduce_copy_send(at, at, n);
                for back in 1..k - 1 {
                    let (at, n) = chunk(back);
                    prims.direct_recv_copy_send(at, n);
                }
                let (at, n) = chunk(k - 1);
                prims.direct_recv(at, n);
                round = chunks.next(&round);
            }
            prims.close();
        }
    }
}

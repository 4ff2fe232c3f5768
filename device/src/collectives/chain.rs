//! The chain: values are combined along the ring from one rank to the one before it, and travel on from there.
//!
//! With `k` ranks, position `q` counts from the rank where the chain begins. Chunks are combined from 0 to `k - 1`
//! (the way in); what has been finished there goes on to 0, 1, ... as far as somebody wants it (the way out).
//!
//! ```text
//!            q = 0           0 < q < k - 1       q = k - 1
//! way in     send            recv_reduce_send    recv_reduce_copy_send
//! way out    recv_copy_send  recv_copy_send           (to q = 0)
//! ```
//!
//! | | begins at | who wants a chunk |
//! |---|---|---|
//! | reduce | behind the root, so that it ends there: there is no way out | the root |
//! | in the order of the ranks: all-reduce | rank 0 | all |
//! | in the order of the ranks: reduce, reduce-scatter | rank 0 | the root, the block's owner |
//!
//! So the order in which values are combined depends on nothing but the ranks: not on the size, the channel or the
//! protocol. That is what the deterministic mode is made of; it costs each link what a ring all-reduce costs it,
//! `2 (k - 1)` steps of the whole buffer one behind the other.
//!
//! Both ways use the same connections. Every rank takes them in the same order: at time `t` chunk `t - q` on its way
//! in, then chunk `t - k - q` on its way out; a rank's neighbour does the same one unit of time later. Slots hold two
//! chunks: with one, a rank that sends on its way in would wait for a rank that waits for it on the way out.

#[cfg(doc)]
use crate::abi::Work;
use crate::abi::{Algorithm, Collective};
use crate::collectives::{KernelCode, RingPosition, THROUGH_SLOTS, input, output, stride};
use crate::element::Element;
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The kernel: block = channel. [`Work::extra`] is a [`Chain::ALL_REDUCE`] and so on.
#[derive(Clone, Copy, Debug)]
pub struct Chain;

impl Chain {
    /// Reduce, ending at the root.
    pub const REDUCE: u64 = 0;
    /// All-reduce, in the order of the ring.
    pub const ALL_REDUCE: u64 = 1;
    /// Reduce, in the order of the ring, and on to the root.
    pub const ORDERED_REDUCE: u64 = 2;
    /// Reduce-scatter, in the order of the ring.
    pub const REDUCE_SCATTER: u64 = 3;
}

/// What a rank's chunks are, and where they are wanted.
#[derive(Clone, Copy)]
struct Chunks {
    mode: u64,
    /// Elements of this channel's part of a block.
    count: usize,
    /// Elements of a chunk.
    max: usize,
    /// Chunks of a block.
    each: usize,
    /// Chunks in all.
    all: usize,
    /// Positions from the end of the way in to the one rank that wants a chunk; all do in an all-reduce.
    wanted: u32,
}

impl KernelCode for Chain {
    const COLLECTIVE: Collective = Collective::Reduce;
    const ALGORITHM: Algorithm = Algorithm::Chain;

    /// With 96 registers LL128's would spill.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let ring = RingPosition::of(&cx);
            let (k, mode) = (ring.k, cx.args().extra());
            // Where the root is, as a position.
            let mut root = 0;
            if mode == Chain::REDUCE || mode == Chain::ORDERED_REDUCE {
                while root + 1 < k && ring.at(root) != cx.args().root() {
                    root += 1;
                }
            }
            let begin = if mode == Chain::REDUCE { (root + 1) % k } else { 0 };
            let q = (ring.index + k - begin) % k;
            let mut prims = Prims::<T, R, P, 1, 1>::open(cx, cx.ring(), THROUGH_SLOTS);
            prims.hold_chunks(2);
            // What the first one sends is handed on by the others, up to the last, before anything comes out.
            if q > 0 {
                prims.settle();
            }
            let (count, max) = (cx.count() as usize, prims.chunk());
            let each = count.div_ceil(max);
            let all = if mode == Chain::REDUCE_SCATTER { each * k as usize } else { each };
            let wanted = if mode == Chain::REDUCE { k - 1 } else { root };
            let chunks = Chunks { mode, count, max, each, all, wanted };
            both_ways(&mut prims, q, &chunks);
            prims.close();
        }
    }
}

/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn both_ways<T: Element, R: Reduction, P: Protocol>(
    prims: &mut Prims<T, R, P, 1, 1>,
    q: u32,
    chunks: &Chunks,
) {
    // SAFETY: the caller's.
    unsafe {
        let mut t = 0;
        while t < chunks.all + 2 * (*prims.cx.comm()).nranks as usize {
            // Asked for in each round: kept, they would fill registers.
            let (ring, to_all) = (RingPosition::of(&prims.cx), chunks.mode == Chain::ALL_REDUCE);
            let k = ring.k;
            // The way in.
            let c = t.wrapping_sub(q as usize);
            if c < chunks.all {
                let (from, at, n, wanted) = chunk(chunks, &ring, &prims.cx, c);
                let (own, to) = (input::<T>(&prims.cx), output::<T>(&prims.cx));
                let own = own.wrapping_add(from);
                if q == 0 {
                    prims.send_from(own, n);
                } else if q < k - 1 || !(to_all || wanted == k - 1 || prims.reducer.divides()) {
                    prims.reduce_send_from(own, n);
                } else if to_all {
                    prims.reduce_send_into(own, to.wrapping_add(at), n);
                } else if wanted == k - 1 {
                    // Its own: it goes no further.
                    prims.reduce_into(own, to.wrapping_add(at), n);
                } else if prims.reducer.divides() {
                    prims.reduce_send_final_from(own, n);
                }
            }
            // The way out.
            let c = t.wrapping_sub(k as usize + q as usize);
            if c < chunks.all && q < k - 1 {
                let (_, at, n, wanted) = chunk(chunks, &ring, &prims.cx, c);
                let to = output::<T>(&prims.cx).wrapping_add(at);
                if to_all && q + 2 < k {
                    prims.recv_copy_send_into(to, n);
                } else if to_all || wanted == q {
                    prims.recv_into(to, n);
                } else if q < wanted && wanted < k - 1 {
                    prims.recv_send(n);
                }
            }
            t += 1;
        }
    }
}

/// Chunk `c`: where it is in the input and in the output, its elements, and the position that wants it.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn chunk(
    chunks: &Chunks,
    ring: &RingPosition,
    cx: &KernelContext,
    c: usize,
) -> (usize, usize, usize, u32) {
    let (block, c) = if chunks.mode == Chain::REDUCE_SCATTER {
        (c / chunks.each, c % chunks.each)
    } else {
        (0, c)
    };
    let at = cx.part().offset as usize + c * chunks.max;
    let n = chunks.max.min(chunks.count - c * chunks.max);
    if chunks.mode == Chain::REDUCE_SCATTER {
        // SAFETY: the caller's.
        let (owner, stride) = unsafe { (ring.at(block as u32) as usize, stride(cx)) };
        (owner * stride + at, at, n, block as u32)
    } else {
        (at, at, n, chunks.wanted)
    }
}

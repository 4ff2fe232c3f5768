//! Trees: to the root and back in a number of steps that grows with the logarithm of the ranks.
//!
//! ```text
//! up                                       down
//!   leaf:    send                            root:    (see up)
//!   others:  recv_reduce_send                others:  recv_copy_send
//!   root:    recv_reduce_copy_send           leaf:    recv
//! ```
//!
//! A channel has two blocks: one goes up, the other down, so that chunks flow in both directions at once. The root's
//! block for up sends what it has finished down at once. Channels take turns between the two trees of a double binary
//! tree, in which hardly any rank is an inner node of both: each link then carries half of the data each way.
//!
//! In place, the block for down writes what the block for up has read. What comes down is made of what went up, but LL
//! and LL128 say so by their data alone, which is no order to the memory model: so the block for up tells the other how
//! far it has read ([`Channel::progress`]).
//!
//! Which rank is where is the host's business: [`TreeLinks`] at `Work::extra`, one for each channel.
//!
//! Source: Sanders, Speck and Larsson Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 35 (2009).

use core::ptr;

#[cfg(doc)]
use crate::abi::Channel;
use crate::abi::{Algorithm, Collective, Conn, NO_RANK, TreeLinks, WaitKind};
use crate::collectives::{DIRECT, KernelCode, for_chunks, root_broadcast, run_chunks};
use crate::element::Element;
use crate::gpu;
use crate::orders;
use crate::prims::verbs::{self, Verb};
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// The children of a rank at most: two in the tree, and the next of its host's chain.
const ARITY: usize = 3;

/// All-reduce; with a `Work::root` that is not [`NO_RANK`] a reduce, which only goes up. Two blocks a channel.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceTree;

/// Broadcast, down. Block = channel.
#[derive(Clone, Copy, Debug)]
pub struct BroadcastTree;

impl KernelCode for AllReduceTree {
    const COLLECTIVE: Collective = Collective::AllReduce;
    const ALGORITHM: Algorithm = Algorithm::Tree;

    /// The root has six connections: with 96 registers it would spill.
    const THREADS: u32 = 512;
    const BLOCKS: u32 = 2;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            let only_up = cx.args().root() != NO_RANK;
            if cx.half() == 0 {
                // Leaves too: of their previous rank in the ring nothing else may be on the way to the root.
                cx.settle();
                up::<T, R, P>(cx, only_up);
            } else if !only_up && links(&cx).up != NO_RANK {
                down::<T, R, P, true>(cx);
            }
        }
    }
}

impl KernelCode for BroadcastTree {
    const COLLECTIVE: Collective = Collective::Broadcast;
    const ALGORITHM: Algorithm = Algorithm::Tree;

    /// As above.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(mut cx: KernelContext) {
        // SAFETY: the caller's.
        unsafe {
            if links(&cx).down[0] != NO_RANK {
                cx.settle();
            }
            if links(&cx).up == NO_RANK {
                let peers = ([], to_children(&cx));
                root_broadcast(Prims::<T, R, P, 0, ARITY>::open(cx, peers, DIRECT));
            } else {
                down::<T, R, P, false>(cx);
            }
        }
    }
}

/// The way up; `only`: nothing comes down again.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn up<T: Element, R: Reduction, P: Protocol>(cx: KernelContext, only: bool) {
    // SAFETY: the caller's.
    unsafe {
        let links = links(&cx);
        if links.up == NO_RANK && only {
            let peers = (from_children(&cx), []);
            let mut prims = Prims::<T, R, P, ARITY, 0>::open(cx, peers, DIRECT);
            run_chunks::<verbs::RecvReduceCopy, _, _, _, _, _>(&mut prims);
            prims.close();
        } else if links.up == NO_RANK {
            let peers = (from_children(&cx), to_children(&cx));
            let mut prims = Prims::<T, R, P, ARITY, ARITY>::open(cx, peers, DIRECT);
            run_chunks::<verbs::DirectRecvReduceCopySend, _, _, _, _, _>(&mut prims);
            prims.close();
        } else if links.down[0] == NO_RANK {
            let parent = &raw mut (*cx.peer(links.up)).send;
            let prims = Prims::<T, R, P, 0, 1>::open(cx, ([], [parent]), DIRECT);
            to_parent::<verbs::Send, _, _, _, _>(prims, only);
        } else {
            let parent = &raw mut (*cx.peer(links.up)).send;
            let peers = (from_children(&cx), [parent]);
            let prims = Prims::<T, R, P, ARITY, 1>::open(cx, peers, DIRECT);
            to_parent::<verbs::RecvReduceSend, _, _, _, _>(prims, only);
        }
    }
}

/// All chunks, each told to the other block once it is read, unless this is the `only` block.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn to_parent<V: Verb, T: Element, R: Reduction, P: Protocol, const NR: usize>(
    mut prims: Prims<T, R, P, NR, 1>,
    only: bool,
) {
    // SAFETY: the caller's.
    unsafe {
        let cx = prims.cx;
        let mut read = 0;
        for_chunks(
            cx.count() as usize,
            prims.chunk(),
            #[inline(always)]
            |at, n| {
                prims.generic_op::<V>(at, at, n);
                read += 1;
                if !only {
                    tell_progress(&cx, read);
                }
            },
        );
        prims.close();
    }
}

/// The way down, of all but the root. `PAIRED`: another block goes up.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn down<T: Element, R: Reduction, P: Protocol, const PAIRED: bool>(cx: KernelContext) {
    // SAFETY: the caller's.
    unsafe {
        let links = links(&cx);
        let parent = &raw mut (*cx.peer(links.up)).recv;
        if links.down[0] == NO_RANK {
            let prims = Prims::<T, R, P, 1, 0>::open(cx, ([parent], []), DIRECT);
            from_parent::<verbs::DirectRecv, _, _, _, _, PAIRED>(prims);
        } else {
            let peers = ([parent], to_children(&cx));
            let prims = Prims::<T, R, P, 1, ARITY>::open(cx, peers, DIRECT);
            from_parent::<verbs::DirectRecvCopySend, _, _, _, _, PAIRED>(prims);
        }
        if PAIRED {
            forget_progress(&cx);
        }
    }
}

/// All chunks; with `PAIRED` each once the other block has read what it is written over.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn from_parent<V: Verb, T, R, P, const NS: usize, const PAIRED: bool>(
    mut prims: Prims<T, R, P, 1, NS>,
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    // SAFETY: the caller's.
    unsafe {
        let mut read = 0;
        for_chunks(
            prims.cx.count() as usize,
            prims.chunk(),
            #[inline(always)]
            |at, n| {
                read += 1;
                if PAIRED {
                    wait_for_progress(&mut prims, read);
                }
                prims.generic_op::<V>(at, at, n);
            },
        );
        prims.close();
    }
}

/// Whether the two blocks of a channel use one buffer.
#[inline(always)]
fn in_place(cx: &KernelContext) -> bool {
    cx.args().input::<u8>() == cx.args().output::<u8>().cast_const()
}

/// The word of [`Channel::progress`] for so many chunks of this call.
#[inline(always)]
fn progress(cx: &KernelContext, chunks: u32) -> u64 {
    cx.args().signature().seq << 32 | u64::from(chunks)
}

/// Tells the channel's other block that so many chunks have been read.
#[inline(always)]
fn tell_progress(cx: &KernelContext, chunks: u32) {
    // SAFETY: what the context leads to is valid. This block alone writes the word; the release pairs with the acquire in
    // `wait_for_progress`, and the barrier has all lanes' reads before it.
    unsafe {
        if in_place(cx) {
            gpu::sync_threads();
            if cx.tid() == 0 {
                let word = &raw mut (*cx.links().cast_mut()).progress;
                gpu::release(orders::PROGRESS, word, progress(cx, chunks));
            }
        }
    }
}

/// Waits until the channel's other block has read so many chunks.
#[inline(always)]
fn wait_for_progress<T: Element, R: Reduction, P: Protocol, const NS: usize>(
    prims: &mut Prims<T, R, P, 1, NS>,
    chunks: u32,
) {
    // SAFETY: what the context leads to is valid.
    unsafe {
        let Prims { cx, recv, .. } = prims;
        if in_place(cx) {
            let wanted = progress(cx, chunks);
            if cx.tid() == 0 {
                let word = &raw const (*cx.links()).progress;
                // Pairs with the release in `tell_progress`.
                let there = || gpu::acquire(orders::PROGRESS, word) >= wanted;
                cx.wait(&recv[0], WaitKind::Progress, recv[0].step, there);
            }
            cx.stopped = gpu::sync_threads_or(cx.stopped);
        }
    }
}

/// All chunks have been waited for: a graph may launch this very call again.
#[inline(always)]
fn forget_progress(cx: &KernelContext) {
    // SAFETY: what the context leads to is valid. The other block has told of its last chunk, and writes the word no more in this launch.
    unsafe {
        if in_place(cx) && cx.tid() == 0 {
            gpu::st_relaxed(&raw mut (*cx.links().cast_mut()).progress, 0);
        }
    }
}

/// This rank's place in the channel's tree.
#[inline(always)]
fn links(cx: &KernelContext) -> TreeLinks {
    // SAFETY: what the context leads to is valid: `extra` has an entry for each channel.
    unsafe { *(cx.args().extra() as *const TreeLinks).wrapping_add(cx.channel() as usize) }
}

/// The connections to this rank's children; null where there is none.
#[inline(always)]
fn to_children(cx: &KernelContext) -> [*mut Conn; ARITY] {
    // SAFETY: children are ranks of the communicator; only addresses are computed.
    unsafe {
        let conn = |i: usize| {
            let child = links(cx).down[i];
            if child == NO_RANK { ptr::null_mut() } else { &raw mut (*cx.peer(child)).send }
        };
        // Written out: a loop over an array has it in memory.
        [conn(0), conn(1), conn(2)]
    }
}

/// The connections from this rank's children; null where there is none.
#[inline(always)]
fn from_children(cx: &KernelContext) -> [*mut Conn; ARITY] {
    // SAFETY: children are ranks of the communicator; only addresses are computed.
    unsafe {
        let conn = |i: usize| {
            let child = links(cx).down[i];
            if child == NO_RANK { ptr::null_mut() } else { &raw mut (*cx.peer(child)).recv }
        };
        // Written out: a loop over an array has it in memory.
        [conn(0), conn(1), conn(2)]
    }
}

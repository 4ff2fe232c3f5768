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
use crate::abi::{Conn, NO_RANK, TreeLinks, WaitKind, Work};
use crate::collectives::{KernelCode, alone, for_chunks, from_root, roll_call};
use crate::element::Element;
use crate::gpu;
use crate::prims::{Context, Prims, Protocol};
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
    /// The root has six edges: with 96 registers it would spill.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut cx = Context::of_pair(work);
            if (*cx.comm()).nranks == 1 {
                if cx.half() == 0 {
                    alone::<T, R>(&cx);
                }
                return;
            }
            if cx.half() == 0 {
                roll_call(&mut cx, true);
                up::<T, R, P>(cx, cx.call().root() != NO_RANK);
            } else if cx.call().root() == NO_RANK && links(&cx).up != NO_RANK {
                down::<T, R, P, true>(cx);
            }
        }
    }
}

impl KernelCode for BroadcastTree {
    /// As above.
    const THREADS: u32 = 512;

    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut cx = Context::new(work);
            if (*cx.comm()).nranks == 1 {
                return alone::<T, R>(&cx);
            }
            roll_call(&mut cx, true);
            if links(&cx).up == NO_RANK {
                from_root(Prims::<T, R, P, 0, ARITY>::open(cx, [], to_children(&cx)));
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
unsafe fn up<T: Element, R: Reduction, P: Protocol>(cx: Context, only: bool) {
    // SAFETY: the caller's.
    unsafe {
        let links = links(&cx);
        let count = cx.count() as usize;
        if links.up == NO_RANK && only {
            let mut prims = Prims::<T, R, P, ARITY, 0>::open(cx, from_children(&cx), []);
            for_chunks(
                count,
                prims.chunk(),
                #[inline(always)]
                |at, n| prims.recv_reduce_copy(at, at, n),
            );
            prims.close();
        } else if links.up == NO_RANK {
            let (recv, send) = (from_children(&cx), to_children(&cx));
            let mut prims = Prims::<T, R, P, ARITY, ARITY>::open(cx, recv, send);
            for_chunks(
                count,
                prims.chunk(),
                #[inline(always)]
                |at, n| prims.direct_recv_reduce_copy_send(at, at, n),
            );
            prims.close();
        } else if links.down[0] == NO_RANK {
            let parent = &raw mut (*cx.peer(links.up)).send;
            let mut prims = Prims::<T, R, P, 0, 1>::open(cx, [], [parent]);
            let mut read = 0;
            for_chunks(
                count,
                prims.chunk(),
                #[inline(always)]
                |at, n| {
                    prims.send(at, n);
                    read += 1;
                    if !only {
                        tell_progress(&cx, read);
                    }
                },
            );
            prims.close();
        } else {
            let parent = &raw mut (*cx.peer(links.up)).send;
            let mut prims = Prims::<T, R, P, ARITY, 1>::open(cx, from_children(&cx), [parent]);
            let mut read = 0;
            for_chunks(
                count,
                prims.chunk(),
                #[inline(always)]
                |at, n| {
                    prims.recv_reduce_send(at, n);
                    read += 1;
                    if !only {
                        tell_progress(&cx, read);
                    }
                },
            );
            prims.close();
        }
    }
}

/// The way down, of all but the root. `PAIRED`: another block goes up.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn down<T: Element, R: Reduction, P: Protocol, const PAIRED: bool>(cx: Context) {
    // SAFETY: the caller's.
    unsafe {
        let links = links(&cx);
        let count = cx.count() as usize;
        let parent = &raw mut (*cx.peer(links.up)).recv;
        let mut read = 0;
        if links.down[0] == NO_RANK {
            let mut prims = Prims::<T, R, P, 1, 0>::open(cx, [parent], []);
            for_chunks(
                count,
                prims.chunk(),
                #[inline(always)]
                |at, n| {
                    read += 1;
                    if PAIRED {
                        wait_for_progress(&mut prims, read);
                    }
                    prims.direct_recv(at, n);
                },
            );
            prims.close();
        } else {
            let mut prims = Prims::<T, R, P, 1, ARITY>::open(cx, [parent], to_children(&cx));
            for_chunks(
                count,
                prims.chunk(),
                #[inline(always)]
                |at, n| {
                    read += 1;
                    if PAIRED {
                        wait_for_progress(&mut prims, read);
                    }
                    prims.direct_recv_copy_send(at, n);
                },
            );
            prims.close();
        }
        if PAIRED {
            forget_progress(&cx);
        }
    }
}

/// Whether the two blocks of a channel use one buffer.
#[inline(always)]
fn in_place(cx: &Context) -> bool {
    cx.call().input::<u8>() == cx.call().output::<u8>().cast_const()
}

/// The word of [`Channel::progress`] for so many chunks of this call.
#[inline(always)]
fn progress(cx: &Context, chunks: u32) -> u64 {
    cx.call().signature().seq << 32 | u64::from(chunks)
}

/// Tells the channel's other block that so many chunks have been read.
///
/// # Safety
/// As [`KernelCode::run`]; all lanes call it.
#[inline(always)]
unsafe fn tell_progress(cx: &Context, chunks: u32) {
    // SAFETY: the caller's. This block alone writes the word; the release pairs with the acquire in
    // `wait_for_progress`, and the barrier has all lanes' reads before it.
    unsafe {
        if in_place(cx) {
            gpu::sync_threads();
            if cx.tid() == 0 {
                let word = &raw mut (*cx.links().cast_mut()).progress;
                gpu::st_release(word, progress(cx, chunks));
            }
        }
    }
}

/// Waits until the channel's other block has read so many chunks.
///
/// # Safety
/// As [`KernelCode::run`]; all lanes call it.
#[inline(always)]
unsafe fn wait_for_progress<T: Element, R: Reduction, P: Protocol, const NS: usize>(
    prims: &mut Prims<T, R, P, 1, NS>,
    chunks: u32,
) {
    // SAFETY: the caller's.
    unsafe {
        let Prims { cx, recv, .. } = prims;
        if in_place(cx) {
            let wanted = progress(cx, chunks);
            if cx.tid() == 0 {
                let word = &raw const (*cx.links()).progress;
                // Pairs with the release in `tell_progress`.
                let there = || gpu::ld_acquire(word) >= wanted;
                cx.wait(&recv[0], WaitKind::Progress, recv[0].step, there);
            }
            cx.stopped = gpu::sync_threads_or(cx.stopped);
        }
    }
}

/// All chunks have been waited for: a graph may launch this very call again.
///
/// # Safety
/// As [`KernelCode::run`]; all lanes call it.
#[inline(always)]
unsafe fn forget_progress(cx: &Context) {
    // SAFETY: the caller's. The other block has told of its last chunk, and writes the word no more in this launch.
    unsafe {
        if in_place(cx) && cx.tid() == 0 {
            gpu::st_relaxed(&raw mut (*cx.links().cast_mut()).progress, 0);
        }
    }
}

/// This rank's place in the channel's tree.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn links(cx: &Context) -> TreeLinks {
    // SAFETY: the caller's: `extra` has an entry for each channel.
    unsafe { *(cx.call().extra() as *const TreeLinks).wrapping_add(cx.channel() as usize) }
}

/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn to_children(cx: &Context) -> [*mut Conn; ARITY] {
    // SAFETY: the caller's.
    unsafe {
        let conn = |i: usize| {
            let child = links(cx).down[i];
            if child == NO_RANK { ptr::null_mut() } else { &raw mut (*cx.peer(child)).send }
        };
        // Written out: a loop over an array has it in memory.
        [conn(0), conn(1), conn(2)]
    }
}

/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn from_children(cx: &Context) -> [*mut Conn; ARITY] {
    // SAFETY: the caller's.
    unsafe {
        let conn = |i: usize| {
            let child = links(cx).down[i];
            if child == NO_RANK { ptr::null_mut() } else { &raw mut (*cx.peer(child)).recv }
        };
        // Written out: a loop over an array has it in memory.
        [conn(0), conn(1), conn(2)]
    }
}

//! The collectives, in verbs.
//!
//! | file | algorithm | who does it |
//! |---|---|---|
//! | `all_reduce` | ring | all-reduce |
//! | `all_gather`, `reduce_scatter`, `broadcast` | ring | they |
//! | `chain` | along the ranks and on | reduce, and all that reduces when the order counts |
//! | `tree` | up and down | all-reduce, reduce, broadcast |
//! | `doubling` | in pairs, at distances of 1, 2, 4, ... | all-reduce of few bytes |
//! | `bruck` | distances of 1, 2, 4, ... | all-gather and reduce-scatter of few bytes |
//! | `linear` | to all, one after the other | broadcast, all-gather, reduce-scatter, all-to-all |
//! | `one_shot` | all to all, through the [`mesh`] | all-reduce, all-gather and reduce-scatter of few bytes |
//! | `two_shot` | all to all, and once more | all-reduce |
//! | `direct` | into and out of the others' buffers | all-reduce, all-gather, reduce-scatter |
//! | `nvls` | the same, by a switch | all-reduce, all-gather, reduce-scatter |
//! | `all_to_all` | into the others' buffers | all-to-all |
//! | `send_recv` | whoever is ready | sends and receives |
//!
//! Each is a type that implements [`KernelCode`]. How many elements go when is [`chunks`]' business, or the kernel's own.
//! `placement` has what goes straight into outputs in `linear`.
//! Whatever connections they use, ranks compare their calls with those of the ring's neighbours ([`KernelCode::COMPARES`]): a
//! rank in another call would wait elsewhere.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod broadcast;
mod bruck;
mod chain;
pub mod chunks;
mod direct;
mod doubling;
mod linear;
mod mesh;
mod nvls;
mod one_shot;
mod placement;
mod reduce_scatter;
mod send_recv;
mod tree;
mod two_shot;

pub use all_gather::AllGatherRing;
pub use all_reduce::AllReduceRing;
pub use all_to_all::AllToAllDirect;
pub use broadcast::BroadcastRing;
pub use bruck::{AllGatherBruck, ReduceScatterBruck};
pub use chain::Chain;
pub use direct::{AllGatherDirect, AllReduceDirect, DirectCode, ReduceScatterDirect};
pub use doubling::AllReduceDoubling;
pub use linear::{AllGatherLinear, AllToAllLinear, BroadcastLinear, ReduceScatterLinear};
pub use mesh::{Mesh, MeshCode, MeshProtocol, MeshSide, RankBlocks};
pub use nvls::{AllGatherNvls, AllReduceNvls, ReduceScatterNvls};
pub use one_shot::{AllGatherOneShot, AllReduceOneShot, AllToAllOneShot, ReduceScatterOneShot};
pub use reduce_scatter::ReduceScatterRing;
pub use send_recv::SendRecv;
pub use tree::{AllReduceTree, BroadcastTree};
pub use two_shot::AllReduceTwoShot;

use crate::abi::{Algorithm, Collective, Work};
use crate::copy::{Lanes, MAX_ENDS, ReduceCopy, Shape};
use crate::element::Element;
use crate::gpu;
use crate::prims::verbs::{self, Verb};
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::{Reducer, Reduction};

/// An algorithm of a collective: a kernel for every protocol, and where it reduces for every reduction and type. What
/// only moves data is made for bytes, and for a reduction that it does not use.
///
/// Another crate implements its own over the public items of [`prims`](crate::prims); `examples/lab` in the repository has two, with their
/// tests. What it has to keep, and what it can rely on:
///
/// * All blocks of all ranks run [`KernelCode::run_block`], each on a channel of its own ([`KernelContext::channel`]), with the same number
///   of ranks and counts that fit together. A block's part of the buffers is [`KernelContext::part`]: it touches no other.
/// * A channel has a connection to and one from every rank ([`KernelContext::connections`]), and around the ring
///   ([`KernelContext::ring`]). [`Prims::open`] opens some of them, [`Prims::close_round`] closes them while the call goes on over others, and
///   [`Prims::close`] at its end. Steps of a connection are taken in order: what one rank sends, the other receives, in the same chunks.
/// * Data goes in chunks of at most [`Prims::chunk`], which is the same on all connections that are opened alike. A rank that sends more
///   than its slots hold before the other receives waits for ever if that one does the same.
/// * With [`KernelCode::COMPARES`] an algorithm that does not go around the ring calls [`KernelContext::settle`] before its first verb; one
///   that does, [`Prims::settle`] behind its first send.
/// * After a failure verbs return at once ([`Prims::stopped`]), so that loops end by themselves.
/// * A kernel runs twice: for the data, and over a network in the host, where only its steps are counted. What it does must depend on
///   nothing but the call, so that both count the same.
pub trait KernelCode {
    /// The collective that it does.
    const COLLECTIVE: Collective;
    /// Which algorithm it is: one of the library's, or [`Algorithm::own`] for another crate's.
    const ALGORITHM: Algorithm;

    /// Threads of a block at most, and [`MAX_THREADS`](crate::kernels::MAX_THREADS) at least. NCCL's most, 640, leaves 96
    /// registers for each; the assembler takes what it is given.
    const THREADS: u32 = 640;

    /// Blocks of a channel: 1, or 2 where one goes each way.
    const BLOCKS: u32 = 1;
    /// Whether it is for several ranks only: a rank without others has its input for the result.
    const NEEDS_PEERS: bool = true;
    /// Whether the call is compared with that of the previous rank of channel 0's ring: ranks that are called with different
    /// arguments get an error that says so. All ranks of the communicator are in the call then.
    const COMPARES: bool = true;

    /// The kernel. All blocks of a rank run it.
    ///
    /// # Safety
    /// `work` is valid until all blocks have returned: its communicator, its channels and their connections,
    /// and the call's buffers. On a GPU it is null, and the kernel's parameter is what it would point to: what
    /// an algorithm needs of it, it asks [`KernelContext::args`] for.
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut cx = KernelContext::new(work, Self::BLOCKS);
            let alone = (*cx.comm()).nranks == 1;
            if Self::NEEDS_PEERS && alone {
                if cx.half() == 0 {
                    single_rank::<T, R>(&cx);
                }
                return;
            }
            let compares = Self::COMPARES && (Self::NEEDS_PEERS || !alone);
            if compares {
                cx.begin_call();
            }
            Self::run_block::<T, R, P>(cx);
            if compares {
                cx.finish_call();
            }
        }
    }

    /// What a block does, with [`KernelCode::NEEDS_PEERS`] in a communicator of several ranks. With [`KernelCode::COMPARES`] no
    /// lane waits for anything behind a barrier of the block at its end, as [`Prims::close`] has one.
    ///
    /// # Safety
    /// As [`KernelCode::run`]; all lanes of the block call it.
    unsafe fn run_block<T: Element, R: Reduction, P: Protocol>(cx: KernelContext);
}

/// How connections are opened for verbs that write into the receiver's output.
const DIRECT: bool = true;
/// How connections are opened for verbs that do not.
const THROUGH_SLOTS: bool = false;

/// Elements of a pack: what parts of buffers are cut at.
const fn pack<T>() -> usize {
    let pack = 16 / size_of::<T>();
    if pack == 0 { 1 } else { pack }
}

/// A rank's place in the ring of its channel.
#[derive(Clone, Copy)]
struct RingPosition {
    /// Ranks in the ring.
    k: u32,
    /// This rank's position.
    index: u32,
    order: *const u32,
}

impl RingPosition {
    #[inline(always)]
    fn of(cx: &KernelContext) -> Self {
        // SAFETY: what the context leads to is valid.
        unsafe {
            let links = cx.links();
            RingPosition {
                k: (*cx.comm()).nranks,
                index: (*links).index,
                order: (*links).order as *const u32,
            }
        }
    }

    /// The block of the rank at a position.
    ///
    /// # Safety
    /// The order is valid, and the position in it.
    #[inline(always)]
    unsafe fn at(&self, position: u32) -> u32 {
        // SAFETY: the caller's.
        unsafe { *self.order.add(position as usize) }
    }

    /// The block of the rank `back` positions before this one, for `back` up to the number of ranks.
    ///
    /// # Safety
    /// The order is valid.
    #[inline(always)]
    unsafe fn block(&self, back: u32) -> usize {
        // Computed where it is used: kept, it is a register for every verb.
        let i = self.index + self.k - gpu::opaque(back as usize) as u32;
        let position = if i >= self.k { i - self.k } else { i };
        // SAFETY: the caller's; the position is in the ring.
        unsafe { *self.order.add(position as usize) as usize }
    }
}

/// Calls `body` with the start and the size of each chunk of `count` elements.
#[inline(always)]
fn for_chunks(count: usize, chunk: usize, mut body: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < count {
        let n = chunk.min(count - at);
        body(at, n);
        at += n;
    }
}

/// The verb on every chunk of the channel's part, in the same place of input and output.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn run_chunks<V: Verb, T, R, P, const NR: usize, const NS: usize>(
    prims: &mut Prims<T, R, P, NR, NS>,
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    for_chunks(
        prims.cx.count() as usize,
        prims.chunk(),
        #[inline(always)]
        // SAFETY: the caller's.
        |at, n| unsafe { prims.generic_op::<V>(at, at, n) },
    );
}

/// The root's part of a broadcast: it sends, and keeps what it sends.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn root_broadcast<T: Element, R: Reduction, P: Protocol, const NS: usize>(
    mut prims: Prims<T, R, P, 0, NS>,
) {
    // SAFETY: the caller's.
    unsafe {
        if core::ptr::eq(input::<T>(&prims.cx), output::<T>(&prims.cx)) {
            run_chunks::<verbs::DirectSend, _, _, _, _, _>(&mut prims);
        } else {
            run_chunks::<verbs::DirectCopySend, _, _, _, _, _>(&mut prims);
        }
        prims.close();
    }
}

/// The call's input.
#[inline(always)]
fn input<T>(cx: &KernelContext) -> *const T {
    cx.args().input()
}

/// The call's output.
#[inline(always)]
fn output<T>(cx: &KernelContext) -> *mut T {
    cx.args().output()
}

/// Elements from one rank's block to the next.
#[inline(always)]
fn stride(cx: &KernelContext) -> usize {
    cx.args().count() as usize
}

/// A copy of `n` elements. `OWN`: they are this rank's own values, scaled if that is what the reduction does. `LAST`: it is the final value.
///
/// # Safety
/// All lanes call it. The buffers hold `n` elements, and nobody else touches them; `to` may be `from`. A barrier lies
/// before and behind it.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn local_copy<T: Element, R: Reduction, const OWN: bool, const LAST: bool>(
    cx: &KernelContext,
    from: *const T,
    to: *mut T,
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe { local_reduce_copy::<T, R, 1, OWN, LAST>(cx, [from; MAX_ENDS], to, n) }
}

/// # Safety
/// As [`local_copy`].
#[inline(always)]
unsafe fn local_reduce_copy<
    T: Element,
    R: Reduction,
    const SOURCES: usize,
    const OWN: bool,
    const LAST: bool,
>(
    cx: &KernelContext,
    sources: [*const T; MAX_ENDS],
    to: *mut T,
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let copy = ReduceCopy::<T, R> {
            sources,
            destinations: [to; MAX_ENDS],
            there: [1; 2],
            reducer: Reducer::of(cx.args()),
            lanes: Lanes { index: cx.tid(), count: cx.lanes() },
        };
        let shape = const {
            Shape { sources: SOURCES, destinations: 1, optional: false, own: OWN, last: LAST }
        };
        if !gpu::counting() {
            copy.run(shape, n);
        }
    }
}

/// One rank: its input is the result.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
fn single_rank<T: Element, R: Reduction>(cx: &KernelContext) {
    // SAFETY: the call's buffers hold the part, and no other block has it.
    unsafe {
        let part = cx.part();
        let start = part.offset as usize;
        let own = input::<T>(cx).wrapping_add(start);
        let to = output::<T>(cx).wrapping_add(start);
        local_copy::<T, R, true, true>(cx, own, to, part.count as usize);
    }
}

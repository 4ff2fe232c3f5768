//! The collectives, in verbs.
//!
//! | file | algorithm | who does it |
//! |---|---|---|
//! | `all_reduce` | ring | all-reduce |
//! | `all_gather`, `reduce_scatter`, `broadcast` | ring | they |
//! | `chain` | along the ranks and on | reduce, and all that reduces when the order counts |
//! | `tree` | up and down | all-reduce, reduce, broadcast |
//! | `bruck` | distances of 1, 2, 4, ... | all-gather and reduce-scatter of few bytes |
//! | `one_shot` | all to all | all-reduce of few bytes |
//! | `send_recv` | whoever is ready | sends and receives |
//!
//! Each is a type that implements [`KernelCode`]. How many elements go when is [`chunks`]' business, or the kernel's own.
//! Ranks that use other connections than the ring's compare their calls with their neighbours' all the same
//! (`roll_call`): a rank in another call would wait elsewhere.

mod all_gather;
mod all_reduce;
mod broadcast;
mod bruck;
mod chain;
pub mod chunks;
mod one_shot;
mod reduce_scatter;
mod send_recv;
mod tree;

pub use all_gather::AllGatherRing;
pub use all_reduce::AllReduceRing;
pub use broadcast::BroadcastRing;
pub use bruck::{AllGatherBruck, ReduceScatterBruck};
pub use chain::Chain;
pub use one_shot::AllReduceOneShot;
pub use reduce_scatter::ReduceScatterRing;
pub use send_recv::SendRecv;
pub use tree::{AllReduceTree, BroadcastTree};

use crate::abi::Work;
use crate::copy::{Lanes, MAX_ENDS, ReduceCopy, Shape};
use crate::element::Element;
use crate::gpu;
use crate::prims::{self, Context, Prims, Protocol};
use crate::reduce::{Reducer, Reduction};

/// An algorithm of a collective: a kernel for every protocol, and where it reduces for every reduction and type. What
/// only moves data is made for bytes, and for a reduction that it does not use.
pub trait KernelCode {
    /// Threads of a block at most, and [`MAX_THREADS`](crate::kernels::MAX_THREADS) at least. NCCL's most, 640, leaves 96
    /// registers for each; the assembler takes what it is given.
    const THREADS: u32 = 640;

    /// The kernel. All blocks of a rank run it.
    ///
    /// # Safety
    /// `work` is valid until all blocks have returned: its communicator, its channels and their connections,
    /// and the call's buffers. On a GPU it is null, and the kernel's parameter is what it would point to: what
    /// an algorithm needs of it, it asks [`Context::call`] for.
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work);
}

/// Elements of a pack: what parts of buffers are cut at.
const fn pack<T>() -> usize {
    let pack = 16 / size_of::<T>();
    if pack == 0 { 1 } else { pack }
}

/// A rank's place in the ring of its channel.
#[derive(Clone, Copy)]
struct Place {
    /// Ranks in the ring.
    k: u32,
    /// This rank's position.
    index: u32,
    order: *const u32,
}

impl Place {
    /// # Safety
    /// The context's work is valid.
    #[inline(always)]
    unsafe fn of(cx: &Context) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let links = cx.links();
            Place {
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
        let i = self.index + self.k - gpu::fresh(back as usize) as u32;
        let position = if i >= self.k { i - self.k } else { i };
        // SAFETY: the caller's; the position is in the ring.
        unsafe { *self.order.add(position as usize) as usize }
    }
}

/// Compares this call with the ring's neighbours', by one block of it; see [`prims::roll_call`].
///
/// # Safety
/// All lanes of the block call it, in a communicator of more than one rank.
#[inline(always)]
unsafe fn roll_call(cx: &mut Context, block: bool) {
    // SAFETY: the caller's.
    unsafe {
        if block && cx.channel() == 0 && cx.tid() == 0 {
            prims::roll_call(cx);
        }
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

/// The root's part of a broadcast: it sends, and keeps what it sends.
///
/// # Safety
/// As [`KernelCode::run`].
#[inline(always)]
unsafe fn from_root<T: Element, R: Reduction, P: Protocol, const NS: usize>(
    mut prims: Prims<T, R, P, 0, NS>,
) {
    // SAFETY: the caller's.
    unsafe {
        let (count, chunk) = (prims.cx.count() as usize, prims.chunk());
        if core::ptr::eq(input::<T>(&prims.cx), output::<T>(&prims.cx)) {
            for_chunks(
                count,
                chunk,
                #[inline(always)]
                |at, n| prims.direct_send(at, at, n),
            );
        } else {
            for_chunks(
                count,
                chunk,
                #[inline(always)]
                |at, n| prims.direct_copy_send(at, at, n),
            );
        }
        prims.close();
    }
}

/// The call's input.
#[inline(always)]
fn input<T>(cx: &Context) -> *const T {
    cx.call().input()
}

/// The call's output.
#[inline(always)]
fn output<T>(cx: &Context) -> *mut T {
    cx.call().output()
}

/// Elements from one rank's block to the next.
#[inline(always)]
fn stride(cx: &Context) -> usize {
    cx.call().count() as usize
}

/// A step within the rank: `to = own`, scaled if that is what the reduction does. `LAST`: it is the final value.
///
/// # Safety
/// All lanes call it. The buffers hold `n` elements, and nobody else touches them; `to` may be `own`. A barrier lies
/// before and behind it.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn local<T: Element, R: Reduction, const LAST: bool>(
    cx: &Context,
    own: *const T,
    to: *mut T,
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe { within::<T, R, 1, true, LAST>(cx, [own; MAX_ENDS], to, n) }
}

/// A step within the rank: `to = partial op other`, neither of which is scaled.
///
/// # Safety
/// As [`local`]; `to` may be `partial`, and does not overlap `other`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn local_combine<T: Element, R: Reduction, const LAST: bool>(
    cx: &Context,
    partial: *const T,
    other: *const T,
    to: *mut T,
    n: usize,
) {
    let mut sources = [partial; MAX_ENDS];
    sources[1] = other;
    // SAFETY: the caller's.
    unsafe { within::<T, R, 2, false, LAST>(cx, sources, to, n) }
}

/// # Safety
/// As [`local`].
#[inline(always)]
unsafe fn within<
    T: Element,
    R: Reduction,
    const SOURCES: usize,
    const OWN: bool,
    const LAST: bool,
>(
    cx: &Context,
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
            reducer: Reducer::of(cx.call()),
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
///
/// # Safety
/// As [`KernelCode::run`].
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn alone<T: Element, R: Reduction>(cx: &Context) {
    // SAFETY: the caller's.
    unsafe {
        let part = cx.part();
        let start = part.offset as usize;
        let own = input::<T>(cx).wrapping_add(start);
        let to = output::<T>(cx).wrapping_add(start);
        local::<T, R, true>(cx, own, to, part.count as usize);
    }
}

//! The primitives: verbs over protocols.
//!
//! A collective is written in verbs: `recv_reduce_send` takes what arrived from the previous rank,
//! combines it with the own input and hands it on. Each verb is one instance of [`Prims::generic_op`],
//! chosen by a type ([`verbs`]) and not by run-time flags, so that it becomes straight-line code. A verb
//! moves up to a chunk; a chunk is up to [`Protocol::SLICES`] slices; a slice fills one slot: one step.
//!
//! ```text
//!      previous rank                    this rank                          next rank
//!   ... slot s % slots  ==recv==>  (reduce with input)  ==send==>  slot s % slots ...
//!                                          |copy
//!                                          v
//!                                        output
//! ```
//!
//! What a step is on the wire is the [`Protocol`]'s: [`Simple`], [`Ll`], [`Ll128`], or your own: a type that
//! implements the trait, whose kernels [`kernel_fn`](crate::kernels::kernel_fn) makes. The notation
//! (step, tail, head, flag) is that of [`ConnHeader`](crate::abi::ConnHeader).
//!
//! Sources: the roles and orders follow NCCL's documented behaviour and "Demystifying NCCL" (arXiv 2507.04786).

mod context;
mod edge;
mod ll;
mod ll128;
mod rules;
mod simple;
pub mod verbs;

pub use context::Context;
pub use edge::Edge;
pub use ll::Ll;
pub use ll128::Ll128;
pub use rules::{Rules, Sound};
pub use simple::Simple;

use crate::abi::{Channel, Conn, Fault, ProtocolId};
use crate::copy::{Lanes, MAX_ENDS};
use crate::element::Element;
use crate::gpu;
use crate::reduce::{Reducer, Reduction};
use verbs::Verb;

/// How a step crosses an edge.
pub trait Protocol: Sized + 'static {
    /// Which buffers of a connection it uses, and how it is called.
    const ID: ProtocolId;
    /// Slices of a chunk, so that the next rank starts on the first while the second is made. Where an
    /// edge has not more slots than that, a chunk is one slice: see [`Prims::open`].
    const SLICES: usize;
    /// Whether a sender may write straight into its receiver's user buffer.
    const DIRECT: bool = false;

    /// Bytes of data that a slot of `slot_bytes` carries; a multiple of 16.
    fn capacity(slot_bytes: usize) -> usize;

    /// Moves one slice of `n` elements from `input` (when the verb has a source) and the received slots
    /// to `output` (when the verb has a destination) and the slots to send. `n` may be 0; the step counts
    /// all the same. Advances the step of every edge used.
    ///
    /// # Safety
    /// All lanes of the block call it with equal arguments; `input` and `output` hold `n` elements;
    /// `n` elements fit a slot of every edge used.
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    );
}

/// What one step works on.
#[derive(Clone, Copy, Debug)]
pub struct Slice<T> {
    /// The own input, where the verb has a source.
    pub input: *const T,
    /// The own output, where the verb has a destination.
    pub output: *mut T,
    /// The output's first element as an index: where a direct write goes in the peer's buffer.
    pub index: usize,
    /// Elements.
    pub n: usize,
}

/// A block's end of `NR` edges to receive from and `NS` to send to, during one call.
#[derive(Debug)]
pub struct Prims<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize> {
    pub(crate) cx: Context,
    pub(crate) recv: [Edge; NR],
    pub(crate) send: [Edge; NS],
    pub(crate) reducer: Reducer<T, R>,
    input: *const T,
    output: *mut T,
    /// Whether a chunk is one slice, as an edge has not more slots than [`Protocol::SLICES`].
    one_slice: bool,
    protocol: core::marker::PhantomData<P>,
}

impl<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize>
    Prims<T, R, P, NR, NS>
{
    /// Opens the edges for a call: the neighbours compare what they were called with, and receivers
    /// offer their output for direct writes. The verbs' elements are those of this channel's part.
    ///
    /// # Safety
    /// All lanes call it. The context's work and the connections are valid, this block is their only
    /// user on this side, and `input` and `output` are the call's buffers.
    #[inline(always)]
    pub unsafe fn open(cx: Context, recv: [*mut Conn; NR], send: [*mut Conn; NS]) -> Self {
        const { assert!(NR < MAX_ENDS && NS < MAX_ENDS) };
        // SAFETY: the caller's.
        unsafe {
            let work = cx.work();
            let start = cx.part().offset as usize;
            let mut prims = Prims {
                recv: recv.map(
                    #[inline(always)]
                    |conn| Edge::open(conn, P::ID),
                ),
                send: send.map(
                    #[inline(always)]
                    |conn| Edge::open(conn, P::ID),
                ),
                reducer: Reducer::of(work),
                input: ((*work).input as *const T).wrapping_add(start),
                output: ((*work).output as *mut T).wrapping_add(start),
                one_slice: false,
                cx,
                protocol: core::marker::PhantomData,
            };
            // In a ring every rank fills slots with a chunk before it empties any: one slot must stay
            // free for the next slice, or all wait for credit.
            for edge in &prims.recv {
                prims.one_slice |= edge.slots as usize <= P::SLICES;
            }
            for edge in &prims.send {
                prims.one_slice |= edge.slots as usize <= P::SLICES;
            }
            let offers = P::DIRECT && prims.cx.count() > 0;
            if prims.cx.tid() == 0 {
                edge::exchange_signatures(&mut prims.cx, &prims.recv, &prims.send);
                if offers {
                    let output = prims.output as u64;
                    edge::exchange_offers(&mut prims.cx, output, &prims.recv, &prims.send);
                }
            }
            prims.cx.stopped = gpu::sync_threads_or(prims.cx.stopped);
            if offers && !prims.cx.stopped {
                for edge in &mut prims.recv {
                    edge.take_own_offer(prims.output.cast());
                }
                for edge in &mut prims.send {
                    edge.take_offer();
                }
            }
            prims
        }
    }

    /// Elements of the largest chunk that all edges carry.
    #[inline(always)]
    pub fn chunk(&self) -> usize {
        let mut slot = usize::MAX;
        for edge in &self.recv {
            slot = slot.min(edge.slot_bytes());
        }
        for edge in &self.send {
            slot = slot.min(edge.slot_bytes());
        }
        P::capacity(slot) / size_of::<T>() * if self.one_slice { 1 } else { P::SLICES }
    }

    /// Whether the call has failed: verbs do nothing from then on.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        self.cx.stopped
    }

    /// Closes the edges: the steps are kept for the next call, a failure is left for the neighbours.
    ///
    /// # Safety
    /// All lanes call it, after their last verb.
    #[inline(always)]
    pub unsafe fn close(mut self) {
        // A lane may have stopped alone in the last verb.
        self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
        if self.cx.tid() != 0 {
            return;
        }
        // SAFETY: the only lane that writes; `open`'s contract.
        unsafe {
            for edge in &self.recv {
                edge.keep_step();
            }
            for edge in &self.send {
                edge.keep_step();
            }
            if self.cx.stopped {
                // A neighbour's fault is ours, unless we have one; and what is ours is the neighbours'.
                for edge in &self.recv {
                    if let Some(fault) = edge.poison(true) {
                        self.cx.fail(|at| context::copy_fault(at, fault));
                    }
                }
                for edge in &self.send {
                    if let Some(fault) = edge.poison(false) {
                        self.cx.fail(|at| context::copy_fault(at, fault));
                    }
                }
                // Told from one place or the other, not through a pointer to either: that one would have to
                // point to the stack.
                match self.cx.fault() {
                    Some(fault) => self.tell_neighbours(fault),
                    None => self.tell_neighbours(&self.cx.aborted_fault()),
                }
            }
        }
    }

    /// # Safety
    /// As [`Prims::close`], by one lane.
    #[inline(always)]
    unsafe fn tell_neighbours(&self, fault: &Fault) {
        // SAFETY: the caller's.
        unsafe {
            for edge in &self.recv {
                edge.poison_sender(fault);
            }
            for edge in &self.send {
                edge.poison_receiver(fault);
            }
        }
    }

    /// The one operation that all verbs are instances of: `n` elements, slice by slice.
    ///
    /// # Safety
    /// All lanes call it with equal arguments. `from + n` elements of the input and `to + n` of the
    /// output are valid where the verb uses them, and `n` is at most [`Prims::chunk`].
    #[inline(always)]
    pub unsafe fn generic_op<V: Verb>(&mut self, from: usize, to: usize, n: usize) {
        // Slices of whole packs, so that a slot's data is aligned as its chunk is.
        let pack = (16 / size_of::<T>()).max(1);
        let whole = P::SLICES == 1 || self.one_slice;
        let slice = if whole { n } else { n.div_ceil(P::SLICES * pack) * pack };
        let mut done = 0;
        // Never unrolled: a step is hundreds of instructions.
        for _ in 0..P::SLICES {
            let n = slice.min(n - done);
            // SAFETY: the caller's; `wrapping_add`, as a verb without a source has no input.
            unsafe {
                P::step::<V, T, R, NR, NS>(
                    self,
                    Slice {
                        input: self.input.wrapping_add(from + done),
                        output: self.output.wrapping_add(to + done),
                        index: to + done,
                        n,
                    },
                );
            }
            if whole {
                break;
            }
            done += n;
        }
    }

    /// This lane among the block's.
    #[inline(always)]
    pub(crate) fn lanes(&self) -> Lanes {
        Lanes { index: self.cx.tid(), count: self.cx.lanes() }
    }
}

/// The verbs of a collective. `from` and `to` are elements of the channel's part of input and output.
macro_rules! verb_methods {
    ($($(#[$m:meta])* $name:ident($($arg:ident),*) = $verb:ident($from:expr, $to:expr);)*) => {
        impl<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize> Prims<T, R, P, NR, NS> {
            $(
                $(#[$m])*
                ///
                /// # Safety
                /// As [`Prims::generic_op`].
                #[inline(always)]
                pub unsafe fn $name(&mut self, $($arg: usize,)* n: usize) {
                    // SAFETY: the caller's.
                    unsafe { self.generic_op::<verbs::$verb>($from, $to, n) }
                }
            )*
        }
    };
}
verb_methods! {
    /// Sends input.
    send(from) = Send(from, 0);
    /// Receives into the output.
    recv(to) = Recv(0, to);
    /// Receives into the output and sends it on.
    recv_copy_send(to) = RecvCopySend(0, to);
    /// Receives, combines with the input, sends on.
    recv_reduce_send(from) = RecvReduceSend(from, 0);
    /// Receives, combines with the input, finishes the value into the output.
    recv_reduce_copy(from, to) = RecvReduceCopy(from, to);
    /// Receives, combines with the input, finishes the value into the output and sends it on.
    recv_reduce_copy_send(from, to) = RecvReduceCopySend(from, to);
    /// [`Prims::send`], straight into the peer's output at `to` where it can be reached.
    direct_send(from, to) = DirectSend(from, to);
    /// Sends input, straight into the peer's output at `to` where it can be reached, and keeps it in the own output
    /// there.
    direct_copy_send(from, to) = DirectCopySend(from, to);
    /// [`Prims::recv`], where the sender may have put the data into the output already.
    direct_recv(to) = DirectRecv(0, to);
    /// [`Prims::recv_copy_send`], straight from output to output where that can be reached.
    direct_recv_copy_send(to) = DirectRecvCopySend(0, to);
    /// [`Prims::recv_reduce_copy_send`], straight into the peer's output where it can be reached.
    direct_recv_reduce_copy_send(from, to) = DirectRecvReduceCopySend(from, to);
}

/// The connections of a ring channel: receive from the previous rank, send to the next.
///
/// # Safety
/// `channel` is valid.
#[inline(always)]
pub unsafe fn ring(channel: *mut Channel) -> ([*mut Conn; 1], [*mut Conn; 1]) {
    // SAFETY: the caller's.
    unsafe { ([&raw mut (*channel).recv], [&raw mut (*channel).send]) }
}

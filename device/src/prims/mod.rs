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

/// Runs `$body` for each edge of `$n` that is `$there`, `$i` being its place: written out, as an index that is no constant
/// has the whole array in memory, which on a GPU is local memory.
macro_rules! each {
    ($n:expr, $there:expr, $i:ident => $body:expr) => {
        if $n == 1 || $n > 1 && $there > 0 {
            let $i = 0;
            $body
        }
        if $n > 1 && $there > 1 {
            let $i = 1;
            $body
        }
        if $n > 2 && $there > 2 {
            let $i = 2;
            $body
        }
        const { assert!($n <= 3) };
    };
}

mod call;
mod context;
#[cfg(not(target_arch = "nvptx64"))]
mod counted;
#[path = "conn_state.rs"]
mod edge;
mod ll;
mod ll128;
mod rules;
mod simple;
pub mod verbs;

pub use call::Call;
pub use context::Context;
pub(crate) use context::Watch;
#[cfg(not(target_arch = "nvptx64"))]
pub use counted::Counted;
pub use edge::Edge;
pub(crate) use edge::{can_hear, can_tell, compare, write_signature};
pub use ll::Ll;
pub use ll128::Ll128;
pub use rules::{Rules, Sound};
pub use simple::Simple;

use core::ptr;

use crate::abi::{Conn, ProtocolId};
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

    /// Whether the sender has begun the current step, so that a receiver need not wait long for all of it.
    fn has_begun(edge: &Edge) -> bool;

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

/// The slots of a step: null where an edge is missing, or the verb does not use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots<const NR: usize, const NS: usize> {
    pub(crate) recv: [*mut u8; NR],
    pub(crate) send: [*mut u8; NS],
}

/// A block's end of edges to receive from, up to `NR` of them, and to send to, up to `NS`, during one call.
///
/// With one edge of a kind it is always there; of more the last may be missing, as the children of a tree are.
#[derive(Debug)]
pub struct Prims<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize> {
    pub(crate) cx: Context,
    pub(crate) recv: [Edge; NR],
    pub(crate) send: [Edge; NS],
    /// Edges that are there, where `NR` or `NS` is more than one.
    present: [u32; 2],
    pub(crate) reducer: Reducer<T, R>,
    input: *const T,
    output: *mut T,
    /// Whether a chunk is one slice, as an edge has too few slots for more.
    one_slice: bool,
    protocol: core::marker::PhantomData<P>,
}

impl<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize>
    Prims<T, R, P, NR, NS>
{
    /// Opens the edges for a call: the neighbours compare what they were called with, and receivers
    /// offer their output for direct writes. The verbs' elements are those of this channel's part. Connections that
    /// are missing are null, and come last. A call that has elements moves some on each of them: an offer that nobody
    /// takes would be mistaken for the next call's.
    ///
    /// # Safety
    /// All lanes call it. The context's work and the connections are valid, this block is their only
    /// user on this side, and `input` and `output` are the call's buffers.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn open(cx: Context, recv: [*mut Conn; NR], send: [*mut Conn; NS]) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let mut prims = Self::attach(cx, recv, send);
            prims.meet(P::DIRECT, false);
            prims
        }
    }

    /// As [`Prims::open`] (`direct`) or [`Prims::open_slots`], for the edges of the ring: the neighbours of a call compare
    /// their calls here or in a roll call, in the same place.
    ///
    /// # Safety
    /// As there.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn open_ring(
        cx: Context,
        recv: [*mut Conn; NR],
        send: [*mut Conn; NS],
        direct: bool,
    ) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let mut prims = Self::attach(cx, recv, send);
            prims.meet(direct && P::DIRECT, cx.channel() == 0);
            prims
        }
    }

    /// As [`Prims::open`], for verbs that are not direct: nobody offers memory, and an edge may stay unused.
    ///
    /// # Safety
    /// As there.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn open_slots(cx: Context, recv: [*mut Conn; NR], send: [*mut Conn; NS]) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let mut prims = Self::attach(cx, recv, send);
            prims.meet(false, false);
            prims
        }
    }

    /// Opens the edges a second time in a call, or where the neighbours compare their calls otherwise: nobody
    /// compares anything or offers memory.
    ///
    /// # Safety
    /// As [`Prims::open`].
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn attach(cx: Context, recv: [*mut Conn; NR], send: [*mut Conn; NS]) -> Self {
        const { assert!(NR < MAX_ENDS && NS < MAX_ENDS) };
        // SAFETY: the caller's.
        unsafe {
            let call = cx.call();
            let start = cx.part().offset as usize;
            let (mut receiving, mut sending) = ([Edge::NONE; NR], [Edge::NONE; NS]);
            let mut present = [0; 2];
            each!(NR, usize::MAX, i => {
                receiving[i] = Edge::open(recv[i], P::ID, NR > 1);
                present[0] += u32::from(!recv[i].is_null());
            });
            each!(NS, usize::MAX, i => {
                sending[i] = Edge::open(send[i], P::ID, NS > 1);
                present[1] += u32::from(!send[i].is_null());
            });
            let mut prims = Prims {
                recv: receiving,
                send: sending,
                present,
                reducer: Reducer::of(call),
                input: call.input::<T>().wrapping_add(start),
                output: call.output::<T>().wrapping_add(start),
                one_slice: false,
                cx,
                protocol: core::marker::PhantomData,
            };
            // In a ring every rank fills slots with a chunk before it empties any: one slot must stay
            // free for the next slice, or all wait for credit.
            prims.one_slice = prims.slots() <= P::SLICES;
            prims
        }
    }

    /// Makes sure that the slots hold so many chunks at a time: they have fewer slices if need be.
    #[inline(always)]
    pub fn hold_chunks(&mut self, chunks: usize) {
        self.one_slice |= self.slots() < chunks * P::SLICES;
    }

    /// The fewest slots of an edge.
    #[inline(always)]
    fn slots(&self) -> usize {
        let mut slots = u32::MAX;
        each!(NR, self.receiving(), i => slots = slots.min(self.recv[i].slots()));
        each!(NS, self.sending(), i => slots = slots.min(self.send[i].slots()));
        slots as usize
    }

    /// # Safety
    /// As [`Prims::open`].
    #[inline(always)]
    unsafe fn meet(&mut self, direct: bool, roll: bool) {
        // SAFETY: the caller's.
        unsafe {
            let offers = direct && self.cx.count() > 0;
            if self.cx.tid() == 0 {
                let there = (self.receiving(), self.sending());
                let (recv, send) = (&self.recv, &self.send);
                edge::exchange_signatures(&mut self.cx, (recv, send), there, roll);
                if offers {
                    let output = self.output as u64;
                    edge::exchange_offers(&mut self.cx, output, (recv, send), there);
                }
            }
            self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
            if offers && !self.cx.stopped {
                let output = self.output.cast();
                each!(NR, self.receiving(), i => self.recv[i].take_own_offer(output));
                each!(NS, self.sending(), i => self.send[i].take_offer());
            }
        }
    }

    /// Edges to receive from.
    #[inline(always)]
    pub(crate) fn receiving(&self) -> usize {
        if NR <= 1 { NR } else { self.present[0] as usize }
    }

    /// Edges to send to.
    #[inline(always)]
    pub(crate) fn sending(&self) -> usize {
        if NS <= 1 { NS } else { self.present[1] as usize }
    }

    /// The slots of the current step. Asked for once a step.
    #[inline(always)]
    pub(crate) fn step_slots<V: Verb>(&self) -> Slots<NR, NS> {
        let mut slots = Slots { recv: [ptr::null_mut(); NR], send: [ptr::null_mut(); NS] };
        if V::RECV {
            each!(NR, self.receiving(), i => slots.recv[i] = self.recv[i].slot());
        }
        if V::SEND {
            each!(NS, self.sending(), i => slots.send[i] = self.send[i].slot());
        }
        slots
    }

    /// Elements of the largest chunk that all edges carry.
    #[inline(always)]
    pub fn chunk(&self) -> usize {
        self.slice() * if self.one_slice { 1 } else { P::SLICES }
    }

    /// Elements of the largest slice that all edges carry.
    #[inline(always)]
    pub(crate) fn slice(&self) -> usize {
        let mut slot = usize::MAX;
        each!(NR, self.receiving(), i => slot = slot.min(self.recv[i].slot_bytes()));
        each!(NS, self.sending(), i => slot = slot.min(self.send[i].slot_bytes()));
        P::capacity(slot) / size_of::<T>()
    }

    /// Keeps the steps for the next call.
    ///
    /// # Safety
    /// One lane calls it.
    #[inline(always)]
    pub(crate) unsafe fn keep_steps(&self) {
        // SAFETY: the caller's.
        unsafe {
            each!(NR, self.receiving(), i => self.recv[i].keep_step());
            each!(NS, self.sending(), i => self.send[i].keep_step());
        }
    }

    /// Whether the call has failed: verbs do nothing from then on.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        self.cx.stopped
    }

    /// Closes the edges: the steps are kept for the next call, a failure is left for the ring's neighbours. The host tells
    /// all others.
    ///
    /// # Safety
    /// All lanes call it, after their last verb.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn close(mut self) {
        // A lane may have stopped alone in the last verb.
        self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
        if self.cx.tid() != 0 {
            return;
        }
        // SAFETY: the only lane that writes; `open`'s contract.
        unsafe {
            self.keep_steps();
            if self.cx.stopped {
                self.cx.pass_on_fault();
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
        let (input, output) = (self.input.wrapping_add(from), self.output.wrapping_add(to));
        // SAFETY: the caller's.
        unsafe { self.op_at::<V>(input, output, to, n) }
    }

    /// [`Prims::generic_op`] on any memory; `index` is where direct data goes in a receiver's output.
    ///
    /// # Safety
    /// As [`Prims::generic_op`], for `n` elements of `input` and of `output`.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn op_at<V: Verb>(
        &mut self,
        input: *const T,
        output: *mut T,
        index: usize,
        n: usize,
    ) {
        // Slices of whole packs, so that a slot's data is aligned as its chunk is.
        let pack = (16 / size_of::<T>()).max(1);
        let whole = P::SLICES == 1 || self.one_slice;
        let slice = if whole { n } else { n.div_ceil(P::SLICES * pack) * pack };
        let mut done = 0;
        // Not a constant: a step is hundreds of instructions, and is not to be there twice.
        let slices = if P::SLICES == 1 { 1 } else { gpu::fresh(P::SLICES) };
        for _ in 0..slices {
            let n = slice.min(n - done);
            // SAFETY: the caller's; `wrapping_add`, as a verb without a source has no input.
            unsafe {
                P::step::<V, T, R, NR, NS>(
                    self,
                    Slice {
                        input: input.wrapping_add(done),
                        output: output.wrapping_add(done),
                        index: index + done,
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
    /// Sends input and keeps it in the output.
    copy_send(from, to) = CopySend(from, to);
    /// Receives and sends on.
    recv_send() = RecvSend(0, 0);
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

/// Compares this call with those of the ring's neighbours, apart from the connections: for calls that use others.
///
/// # Safety
/// One lane of one block calls it; the context's work is valid, and its communicator has more than one rank.
#[inline(always)]
pub(crate) unsafe fn roll_call(cx: &mut Context) {
    // SAFETY: the caller's.
    unsafe {
        let ([recv], [send]) = ring(cx);
        let (recv, send) =
            (Edge::open(recv, ProtocolId::Ll, false), Edge::open(send, ProtocolId::Ll, false));
        edge::roll_call(cx, &recv, &send);
    }
}

/// The connections of a ring channel: receive from the previous rank, send to the next.
///
/// # Safety
/// The context's work is valid, and its communicator has more than one rank.
#[inline(always)]
pub unsafe fn ring(cx: &Context) -> ([*mut Conn; 1], [*mut Conn; 1]) {
    // SAFETY: the caller's.
    unsafe {
        let links = cx.links();
        ([&raw mut (*cx.peer((*links).prev)).recv], [&raw mut (*cx.peer((*links).next)).send])
    }
}

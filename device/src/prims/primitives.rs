//! [`Protocol`]: how a step crosses a connection. [`Prims`]: the verbs of a block during one call, over any protocol.

use core::ptr;

use crate::abi::{Conn, ProtocolId};
use crate::copy::{Lanes, MAX_ENDS};
use crate::element::Element;
use crate::gpu;
use crate::prims::conn_state::ConnState;
use crate::prims::context::KernelContext;
use crate::prims::lines::{finish, wait_for_slots};
use crate::prims::rules::Rules;
use crate::prims::signature;
use crate::prims::verbs::Verb;
use crate::reduce::{Reducer, Reduction};

/// How a step crosses a connection.
///
/// [`Simple`](super::Simple), [`Ll`](super::Ll) and [`Ll128`](super::Ll128) are the library's. Another crate implements its own over the
/// public items of this module; `examples/lab` in the repository has one with its tests. What it can rely on:
///
/// * All lanes of a block run [`Protocol::step`] together. On a GPU there are up to 640 of them in warps of 32, on a CPU one.
/// * Between [`Prims::begin_step`] and [`Prims::end_step`] the slots of the step ([`Prims::step_slots`]) are this block's: those to send
///   have been read by the receiver, and nobody else reads or writes them. A receiver's slot is written by its sender meanwhile, so each
///   unit of it needs a flag, and an order that has the unit's data be there when the flag is.
/// * Slots are in buffers of the protocol's own, where its [`Protocol::ID`] is [`ProtocolId::own`]. They are zero at first, and then hold
///   what this protocol stored there: in the steps before, `slots` steps ago at the latest or, where a slice was shorter, longer ago.
///   [`ConnState::step`] counts from the communicator's beginning and is the same at both ends.
/// * A wait goes through [`KernelContext::wait`], so that it has a budget, and can say whom it waits for. When it gives up, the lane does
///   nothing more in the step but to end it.
/// * Stores of flags and loads of them are system-wide: [`gpu::st_release`](crate::gpu::st_release) and
///   [`gpu::ld_acquire`](crate::gpu::ld_acquire), or relaxed. Data goes by [`gpu::st_data`](crate::gpu::st_data) and
///   [`gpu::ld_data`](crate::gpu::ld_data), which the adversary of the CPU and the emulator watch for races.
pub trait Protocol: Sized + 'static {
    /// Which buffers of a connection it uses, and how it is called.
    const ID: ProtocolId;
    /// Slices of a chunk, so that the next rank starts on the first while the second is made. Where a
    /// connection has not more slots than that, a chunk is one slice: see [`Prims::open`].
    const SLICES: usize;
    /// Bytes of a line, of which a slot has many, for reports: "slot 1, line 3". 0 where a slot has no lines.
    const LINE: usize = 0;
    /// Whether a sender may write straight into its receiver's user buffer.
    const DIRECT: bool = false;

    /// Bytes of data that a slot of `slot_bytes` carries; a multiple of 16.
    fn capacity(slot_bytes: usize) -> usize;

    /// Whether the sender has begun the current step, so that a receiver need not wait long for all of it.
    fn has_begun(conn: &ConnState) -> bool;

    /// Moves one slice of `n` elements from `input` (when the verb has a source) and the received slots
    /// to `output` (when the verb has a destination) and the slots to send. `n` may be 0; the step counts
    /// all the same. Advances the step of every connection used.
    ///
    /// # Safety
    /// All lanes of the block call it with equal arguments; `input` and `output` hold `n` elements;
    /// `n` elements fit a slot of every connection used.
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

/// The slots of a step: null where a connection is missing, or the verb does not use it.
#[derive(Clone, Copy, Debug)]
pub struct Slots<const NR: usize, const NS: usize> {
    /// To receive from, by edge.
    pub recv: [*mut u8; NR],
    /// To send to, by edge.
    pub send: [*mut u8; NS],
}

/// A block's end of connections to receive from, up to `NR` of them, and to send to, up to `NS`, during one call.
///
/// A single connection of a kind is always there. Of several the last may be missing, as the children of a tree are.
#[derive(Debug)]
pub struct Prims<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize> {
    pub(crate) cx: KernelContext,
    pub(crate) recv: [ConnState; NR],
    pub(crate) send: [ConnState; NS],
    /// Edges that are there, where `NR` or `NS` is more than one.
    present: [u32; 2],
    pub(crate) reducer: Reducer<T, R>,
    input: *const T,
    output: *mut T,
    /// Whether a chunk is one slice, as a connection has too few slots for more.
    one_slice: bool,
    protocol: core::marker::PhantomData<P>,
}

impl<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize>
    Prims<T, R, P, NR, NS>
{
    /// Opens the connections with `peers`, those to receive from and those to send to. Missing ones are null, and come last.
    /// The verbs' elements are those of this channel's part.
    ///
    /// With `direct` receivers give their senders the address of their output, for verbs that write there. An address that no
    /// sender takes would be mistaken for the next call's.
    ///
    /// # Safety
    /// All lanes call it. The context's work and the connections are valid, this block is their only
    /// user on this side, and `input` and `output` are the call's buffers. With `direct` a call that has elements
    /// moves some over each of the connections.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn open(
        cx: KernelContext,
        (recv, send): ([*mut Conn; NR], [*mut Conn; NS]),
        direct: bool,
    ) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let args = cx.args();
            let start = cx.part().offset as usize;
            let mut prims = Self::open_on(
                cx,
                (recv, send),
                #[inline(always)]
                || {
                    let reducer = Reducer::of(args);
                    let input = args.input::<T>().wrapping_add(start);
                    let output = args.output::<T>().wrapping_add(start);
                    (reducer, input, output)
                },
            );
            if direct && P::DIRECT && prims.cx.count() > 0 {
                prims.exchange();
            }
            prims
        }
    }

    /// [`Prims::open`] with what `of_call` says when the connections are open: the reducer, and the buffers that the verbs' elements
    /// are of.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn open_on(
        cx: KernelContext,
        (recv, send): ([*mut Conn; NR], [*mut Conn; NS]),
        of_call: impl FnOnce() -> (Reducer<T, R>, *const T, *mut T),
    ) -> Self {
        const { assert!(NR < MAX_ENDS && NS < MAX_ENDS) };
        // SAFETY: the caller's.
        unsafe {
            let (mut receiving, mut sending) = ([ConnState::NONE; NR], [ConnState::NONE; NS]);
            let mut present = [0; 2];
            unroll_peers!(NR, usize::MAX, i => {
                receiving[i] = ConnState::open(recv[i], P::ID, NR > 1);
                present[0] += u32::from(!recv[i].is_null());
            });
            unroll_peers!(NS, usize::MAX, i => {
                sending[i] = ConnState::open(send[i], P::ID, NS > 1);
                present[1] += u32::from(!send[i].is_null());
            });
            let (reducer, input, output) = of_call();
            let mut prims = Prims {
                recv: receiving,
                send: sending,
                present,
                reducer,
                input,
                output,
                one_slice: false,
                cx,
                protocol: core::marker::PhantomData,
            };
            // Credit and flags could be there already, of steps that the other end counts differently.
            unroll_peers!(NR, prims.nrecv(), i => prims.cx.stopped |= prims.recv[i].has_failed());
            unroll_peers!(NS, prims.nsend(), i => prims.cx.stopped |= prims.send[i].has_failed());
            // In a ring every rank fills slots with a chunk before it empties any: one slot must stay
            // free for the next slice, or all wait for credit.
            prims.one_slice = prims.slots() <= P::SLICES;
            prims
        }
    }

    /// Exchanges the addresses of outputs.
    ///
    /// # Safety
    /// As [`Prims::open`].
    #[inline(always)]
    unsafe fn exchange(&mut self) {
        // SAFETY: the caller's.
        unsafe {
            if self.cx.tid() == 0 {
                let there = (self.nrecv(), self.nsend());
                let output = self.output as u64;
                let ends = (&self.recv, &self.send);
                signature::exchange_ptrs(&mut self.cx, output, ends, there);
            }
            self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
            if !self.cx.stopped {
                let output = self.output.cast();
                unroll_peers!(NR, self.nrecv(), i => self.recv[i].take_own_ptr(output));
                unroll_peers!(NS, self.nsend(), i => self.send[i].take_ptr());
            }
        }
    }

    /// Where the receiver's data goes, in a call in which it says so. The `first` time that the connection is opened in a call this
    /// waits for it.
    ///
    /// # Safety
    /// All lanes call it, after [`Prims::open`] without an exchange.
    #[inline(always)]
    pub(crate) unsafe fn take_offer(&mut self, first: bool) {
        // SAFETY: the caller's.
        unsafe {
            if first && self.cx.tid() == 0 && !self.cx.stopped {
                let there = (0, self.nsend());
                signature::exchange_ptrs(&mut self.cx, 0, (&[], &self.send), there);
            }
            self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
            if !self.cx.stopped {
                unroll_peers!(NS, self.nsend(), i => self.send[i].take_ptr());
            }
        }
    }

    /// As [`KernelContext::settle`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn settle(&mut self) {
        // SAFETY: the caller's.
        unsafe { self.cx.settle() }
    }

    /// Makes sure that the slots hold so many chunks at a time: they have fewer slices if need be.
    #[inline(always)]
    pub fn hold_chunks(&mut self, chunks: usize) {
        self.one_slice |= self.slots() < chunks * P::SLICES;
    }

    /// The fewest slots of a connection that a sender can always use.
    #[inline(always)]
    fn slots(&self) -> usize {
        let mut slots = u32::MAX;
        unroll_peers!(NR, self.nrecv(), i => slots = slots.min(self.recv[i].usable()));
        unroll_peers!(NS, self.nsend(), i => slots = slots.min(self.send[i].usable()));
        slots as usize
    }

    /// Edges to receive from.
    #[inline(always)]
    #[must_use]
    pub fn nrecv(&self) -> usize {
        if NR <= 1 { NR } else { self.present[0] as usize }
    }

    /// Edges to send to.
    #[inline(always)]
    #[must_use]
    pub fn nsend(&self) -> usize {
        if NS <= 1 { NS } else { self.present[1] as usize }
    }

    /// The slots of the current step. Asked for once a step, as each asks memory where they are.
    #[inline(always)]
    #[must_use]
    pub fn step_slots<V: Verb>(&self) -> Slots<NR, NS> {
        let mut slots = Slots { recv: [ptr::null_mut(); NR], send: [ptr::null_mut(); NS] };
        if V::RECV {
            unroll_peers!(NR, self.nrecv(), i => slots.recv[i] = self.recv[i].slot());
        }
        if V::SEND {
            unroll_peers!(NS, self.nsend(), i => slots.send[i] = self.send[i].slot());
        }
        slots
    }

    /// Elements of the largest chunk that all connections carry.
    #[inline(always)]
    pub fn chunk(&self) -> usize {
        self.slice() * if self.one_slice { 1 } else { P::SLICES }
    }

    /// Elements of the largest slice that all connections carry.
    #[inline(always)]
    pub(crate) fn slice(&self) -> usize {
        let mut slot = usize::MAX;
        unroll_peers!(NR, self.nrecv(), i => slot = slot.min(self.recv[i].slot_bytes()));
        unroll_peers!(NS, self.nsend(), i => slot = slot.min(self.send[i].slot_bytes()));
        P::capacity(slot) / size_of::<T>()
    }

    /// Keeps the steps for the next call. One lane calls it.
    #[inline(always)]
    pub(crate) fn keep_steps(&self) {
        unroll_peers!(NR, self.nrecv(), i => self.recv[i].keep_step());
        unroll_peers!(NS, self.nsend(), i => self.send[i].keep_step());
    }

    /// Whether the call has failed: verbs do nothing from then on.
    #[inline(always)]
    pub fn stopped(&self) -> bool {
        self.cx.stopped
    }

    /// Closes the connections, after the last verb: the steps are kept for the next call, and a failure is left for the ring's
    /// neighbours. The host tells all others. Whether all went well, of which all lanes hear.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn close(mut self) -> bool {
        // A lane may have stopped alone in the last verb.
        self.cx.stopped = gpu::sync_threads_or(self.cx.stopped);
        if self.cx.tid() != 0 {
            return !self.cx.stopped;
        }
        self.keep_steps();
        if self.cx.stopped {
            unroll_peers!(NR, self.nrecv(), i => self.recv[i].set_failed());
            unroll_peers!(NS, self.nsend(), i => self.send[i].set_failed());
            self.cx.pass_on_fault();
        }
        !self.cx.stopped
    }

    /// Closes the connections while the call goes on over others, or over these again: `cx` stops if a verb has.
    #[inline(always)]
    pub fn close_round(self, cx: &mut KernelContext) {
        cx.stopped |= self.stopped();
        self.close();
        // The steps are kept before a lane opens the connections again.
        gpu::sync_threads();
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
        let slices = if P::SLICES == 1 { 1 } else { gpu::opaque(P::SLICES) };
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

    /// What all verbs of the call have in common: the lane, the arguments, waits.
    #[inline(always)]
    pub fn context(&mut self) -> &mut KernelContext {
        &mut self.cx
    }

    /// The end of edge `i` to receive from, one of [`Prims::nrecv`].
    #[inline(always)]
    #[must_use]
    pub fn receiver(&self, i: usize) -> &ConnState {
        &self.recv[i]
    }

    /// The end of edge `i` to send to, one of [`Prims::nsend`].
    #[inline(always)]
    #[must_use]
    pub fn sender(&self, i: usize) -> &ConnState {
        &self.send[i]
    }

    /// What is done with values.
    #[inline(always)]
    #[must_use]
    pub fn reducer(&self) -> &Reducer<T, R> {
        &self.reducer
    }

    /// Begins a step: waits for credit on every connection to send on (without [`Rules::WAIT_FOR_CREDIT`] only on those over a network,
    /// whose proxy needs it), and over a network for the step to receive. `bytes` is what
    /// the slot to send will have. Whether the call goes on, of which all lanes hear; a barrier lies in it.
    ///
    /// All lanes of the block call it, once in a step, before any of them touches a slot.
    #[inline(always)]
    pub fn begin_step<V: Verb, L: Rules>(&mut self, bytes: impl Fn(&ConnState) -> usize) -> bool {
        wait_for_slots::<V, L, T, R, P, NR, NS>(self, bytes);
        !self.cx.stopped
    }

    /// Ends a step of a protocol whose receivers wait for flags of its own: tells the proxies, where there are some, that the slots
    /// are full, gives the received slots back, and goes on to the next step.
    ///
    /// All lanes of the block call it, once in a step, also after a stop, when they have read and written what they do of the slots. A
    /// barrier lies in it where the verb receives, and where there are proxies. A receiver's loads before it are over when the sender
    /// stores again.
    #[inline(always)]
    pub fn end_step<V: Verb>(&mut self) {
        if V::SEND {
            let mut proxies = false;
            unroll_peers!(NS, self.nsend(), i => proxies |= self.send[i].has_proxy());
            // All lanes find the same.
            if proxies {
                gpu::sync_threads();
                if self.cx.tid() == 0 && !self.cx.stopped {
                    unroll_peers!(NS, self.nsend(), i => {
                        if self.send[i].has_proxy() {
                            self.send[i].post_tail();
                        }
                    });
                }
            }
        }
        finish::<V, T, R, P, NR, NS>(self);
    }

    /// This lane among the block's.
    #[inline(always)]
    pub(crate) fn lanes(&self) -> Lanes {
        Lanes { index: self.cx.tid(), count: self.cx.lanes() }
    }
}

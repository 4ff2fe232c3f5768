//! Simple: slots of plain data, a step counter published after it.
//!
//! ```text
//! sender:    wait head + slots > s | data -> slot s % slots | fence | tail = s + 1
//! receiver:  wait tail > s         | slot s % slots -> use  |       | head = s + 1
//! ```
//!
//! One lane of one warp per edge waits and publishes; a barrier lies between it and the lanes that move
//! the data. The whole bandwidth of the slot is data, at the price of two barriers and a fence a step.
//!
//! Where the receiver has offered its output (see [`Offer`](crate::abi::Offer)), a direct verb writes there
//! and leaves the slot unused; the steps are counted, waited for and published all the same.

use core::marker::PhantomData;

use crate::abi::ProtocolId;
use crate::copy::{MAX_ENDS, ReduceCopy, Shape};
use crate::element::Element;
use crate::gpu::{self, WARP};
use crate::prims::verbs::Verb;
use crate::prims::{Edge, Prims, Protocol, Rules, Slice, Sound};
use crate::reduce::Reduction;

/// The Simple protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Simple<L = Sound>(PhantomData<L>);

/// The lane that waits and publishes for edge `i`: each on a warp of its own where there are enough.
#[inline(always)]
fn keeper(i: usize, lanes: usize) -> usize {
    let lane = i * WARP as usize;
    if lane < lanes { lane } else { 0 }
}

impl<L: Rules> Protocol for Simple<L> {
    const ID: ProtocolId = ProtocolId::Simple;
    const SLICES: usize = 2;
    const DIRECT: bool = true;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes
    }

    #[inline(always)]
    fn has_begun(edge: &Edge) -> bool {
        edge.has_tail()
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        let (nr, ns) = (prims.receiving(), prims.sending());
        let Prims { cx, recv, send, .. } = prims;
        if V::RECV {
            each!(NR, nr, i => {
                if cx.tid() == keeper(i, cx.lanes()) {
                    cx.wait_tail(&recv[i]);
                }
            });
        }
        if V::SEND {
            each!(NS, ns, i => {
                if L::WAIT_FOR_CREDIT && cx.tid() == keeper(NR + i, cx.lanes()) {
                    cx.wait_credit(&send[i]);
                }
                if !L::DATA_BEFORE_TAIL && cx.tid() == 0 {
                    send[i].publish();
                }
            });
        }
        // Also carries the keepers' acquires to all lanes.
        cx.stopped = gpu::sync_threads_or(cx.stopped);
        if !cx.stopped && slice.n > 0 {
            // SAFETY: `step`'s contract; slots and offers are valid for a slice, and ours for this step.
            unsafe { prims.copy_slice::<V>(slice) }
        }
        // All lanes are done with the slots before they are published and given back.
        gpu::sync_threads();
        let Prims { cx, recv, send, .. } = prims;
        if V::RECV {
            each!(NR, nr, i => {
                if cx.tid() == keeper(i, cx.lanes()) && !cx.stopped {
                    recv[i].give_credit();
                }
                recv[i].advance();
            });
        }
        if V::SEND {
            each!(NS, ns, i => {
                if L::DATA_BEFORE_TAIL && cx.tid() == keeper(NR + i, cx.lanes()) && !cx.stopped {
                    send[i].announce(slice.n * size_of::<T>());
                    send[i].publish();
                }
                send[i].advance();
            });
        }
    }
}

impl<T: Element, R: Reduction, L: Rules, const NR: usize, const NS: usize>
    Prims<T, R, Simple<L>, NR, NS>
{
    /// # Safety
    /// As [`Protocol::step`]; the edges' slots are ours.
    #[inline(always)]
    unsafe fn copy_slice<V: Verb>(&self, slice: Slice<T>) {
        // One receiver at most uses direct data: with several, what arrives is combined, not placed.
        let placed = V::DIRECT_RECV && V::OUTPUT && NR == 1 && !self.recv[0].direct.is_null();
        // SAFETY: the caller's.
        unsafe {
            if !placed {
                if V::OUTPUT {
                    self.reduce_copy::<V, true>(slice, false);
                } else {
                    self.reduce_copy::<V, false>(slice, false);
                }
            } else if V::SEND {
                self.reduce_copy::<V, false>(slice, true);
            }
        }
    }

    /// `OUT`: the own output is written here; `placed`: what is received is there already.
    ///
    /// # Safety
    /// As [`Prims::copy_slice`].
    #[inline(always)]
    unsafe fn reduce_copy<V: Verb, const OUT: bool>(&self, slice: Slice<T>, placed: bool) {
        let mut sources = [slice.input; MAX_ENDS];
        let mut destinations = [slice.output; MAX_ENDS];
        if V::RECV {
            each!(NR, self.receiving(), i => {
                let slot = self.recv[i].slot().cast_const().cast();
                sources[V::INPUT as usize + i] =
                    if placed { slice.output.cast_const() } else { slot };
            });
        }
        if V::SEND {
            each!(NS, self.sending(), i => {
                let edge = &self.send[i];
                let direct = V::DIRECT_SEND && !edge.direct.is_null();
                destinations[OUT as usize + i] = if direct {
                    edge.direct.cast::<T>().wrapping_add(slice.index)
                } else {
                    edge.slot().cast()
                };
            });
        }
        let copy = ReduceCopy {
            sources,
            destinations,
            there: [
                V::INPUT as usize + if V::RECV { self.receiving() } else { 0 },
                OUT as usize + if V::SEND { self.sending() } else { 0 },
            ],
            reducer: self.reducer,
            lanes: self.lanes(),
        };
        let shape = const {
            Shape {
                sources: V::INPUT as usize + if V::RECV { NR } else { 0 },
                destinations: OUT as usize + if V::SEND { NS } else { 0 },
                optional: NR > 1 || NS > 1,
                own: V::OWN,
                last: V::FINAL,
            }
        };
        // SAFETY: the caller's.
        unsafe { copy.run(shape, slice.n) }
    }
}

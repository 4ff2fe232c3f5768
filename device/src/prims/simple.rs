//! Simple: slots of plain data, a step counter published after it.
//!
//! ```text
//! sender:    wait head + slots > s | data -> slot s % slots | fence | tail = s + 1
//! receiver:  wait tail > s         | slot s % slots -> use  |       | head = s + 1
//! ```
//!
//! One lane of one warp per connection waits and publishes; a barrier lies between it and the lanes that move
//! the data. The whole bandwidth of the slot is data, at the price of two barriers and a fence a step.
//!
//! Where the receiver has offered its output (see [`PtrExchange`](crate::abi::PtrExchange)), a direct verb writes there
//! and leaves the slot unused; the steps are counted, waited for and published all the same.

use core::marker::PhantomData;

use crate::abi::ProtocolId;
use crate::copy::{MAX_ENDS, ReduceCopy, Shape};
use crate::element::Element;
use crate::gpu::{self, WARP};
use crate::prims::conn_state::ConnState;
use crate::prims::primitives::{Prims, Protocol, Slice};
use crate::prims::rules::{Correct, Rules};
use crate::prims::verbs::Verb;
use crate::reduce::Reduction;

/// The Simple protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Simple<L = Correct>(PhantomData<L>);

/// The lane that waits and publishes for connection `i`. Each is in a warp of its own, if there are enough.
#[inline(always)]
fn sync_lane(i: usize, lanes: usize) -> usize {
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
    fn has_begun(conn: &ConnState) -> bool {
        conn.has_tail()
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        let (nr, ns) = (prims.nrecv(), prims.nsend());
        let Prims { cx, recv, send, .. } = prims;
        if V::RECV {
            unroll_peers!(NR, nr, i => {
                if cx.tid() == sync_lane(i, cx.lanes()) {
                    cx.wait_tail(&recv[i]);
                }
            });
        }
        if V::SEND {
            unroll_peers!(NS, ns, i => {
                if L::WAIT_FOR_CREDIT && cx.tid() == sync_lane(NR + i, cx.lanes()) {
                    cx.wait_credit(&send[i]);
                }
            });
        }
        // Also carries the sync lanes' acquires to all lanes.
        cx.stopped = gpu::sync_threads_or(cx.stopped);
        if !cx.stopped && slice.n > 0 {
            // SAFETY: `step`'s contract; slots and offers are valid for a slice, and ours for this step.
            unsafe { prims.copy_slice::<V>(slice) }
        }
        // All lanes are done with the slots before they are published and given back.
        gpu::sync_threads();
        let Prims { cx, recv, send, .. } = prims;
        if V::RECV {
            unroll_peers!(NR, nr, i => {
                if cx.tid() == sync_lane(i, cx.lanes()) && !cx.stopped {
                    recv[i].post_head();
                }
                recv[i].advance();
            });
        }
        if V::SEND {
            unroll_peers!(NS, ns, i => {
                if cx.tid() == sync_lane(NR + i, cx.lanes()) && !cx.stopped {
                    send[i].post_fifo(slice.n * size_of::<T>());
                    send[i].post_tail();
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
    /// As [`Protocol::step`]; the slots of the step are this block's.
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
            unroll_peers!(NR, self.nrecv(), i => {
                let slot = self.recv[i].slot().cast_const().cast();
                sources[V::INPUT as usize + i] =
                    if placed { slice.output.cast_const() } else { slot };
            });
        }
        if V::SEND {
            unroll_peers!(NS, self.nsend(), i => {
                let conn = &self.send[i];
                let direct = V::DIRECT_SEND && !conn.direct.is_null();
                destinations[OUT as usize + i] = if direct {
                    conn.direct.cast::<T>().wrapping_add(slice.index)
                } else {
                    conn.slot().cast()
                };
            });
        }
        let copy = ReduceCopy {
            sources,
            destinations,
            there: [
                V::INPUT as usize + if V::RECV { self.nrecv() } else { 0 },
                OUT as usize + if V::SEND { self.nsend() } else { 0 },
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

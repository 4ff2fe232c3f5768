//! LL: every 8 bytes carry their own flag, so that nothing else is needed to know they have arrived.
//!
//! ```text
//! line (16 bytes):  | data 0..4 | flag | data 4..8 | flag |      flag = 2 step + 1, 32 bits
//! ```
//!
//! Each half of a line is stored at once, the two in any order: a receiver spins until both flags are
//! right. No fence and no barrier between data and flag: latency is one trip, bandwidth at most one half.
//!
//! Flags are odd, so that memory that was never written (zeros) holds none, and repeat after 2^31 steps. A
//! line that a short slice left untouched keeps an old flag, which would then become right again; so every
//! [`CLEAN`] steps each slot is filled whole.

use core::marker::PhantomData;

use crate::abi::{LL_LINE, ProtocolId, WaitKind};
use crate::element::Element;
use crate::gpu::{self, UNALIGNED_PACKS};
use crate::prims::verbs::Verb;
use crate::prims::{Context, Edge, Prims, Protocol, Rules, Slice, Sound};
use crate::reduce::{Reducer, Reduction};

/// The LL protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Ll<L = Sound>(PhantomData<L>);

/// Bytes of data in a line.
const DATA: usize = LL_LINE / 2;
/// Every slot is filled whole once in this many steps, well below the 2^31 after which flags repeat.
const CLEAN: u64 = 1 << 30;

impl<L: Rules> Protocol for Ll<L> {
    const ID: ProtocolId = ProtocolId::Ll;
    const SLICES: usize = 1;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes / 2
    }

    #[inline(always)]
    fn has_begun(edge: &Edge) -> bool {
        // SAFETY: a slot has a line.
        let halves = unsafe { gpu::ld_halves(edge.slot().cast_const().cast()) };
        halves[0] >> 32 == flag(edge.step) && halves[1] >> 32 == flag(edge.step)
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        wait_for_credit::<V, L, T, R, Self, NR, NS>(prims);
        if !prims.cx.stopped {
            // SAFETY: `step`'s contract.
            unsafe { prims.lines::<V>(slice) }
        }
        finish::<V, T, R, Self, NR, NS>(prims);
    }
}

/// Waits until every slot to send in is free; all lanes know afterwards whether to go on.
#[inline(always)]
pub(super) fn wait_for_credit<V: Verb, L: Rules, T, R, P, const NR: usize, const NS: usize>(
    prims: &mut Prims<T, R, P, NR, NS>,
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    let ns = prims.sending();
    let Prims { cx, send, .. } = prims;
    if V::SEND && L::WAIT_FOR_CREDIT && cx.tid() == 0 {
        each!(NS, ns, i => {
            cx.wait_credit(&send[i]);
        });
    }
    cx.stopped = gpu::sync_threads_or(cx.stopped);
}

/// Gives the received slots back once all lanes have read them, and goes to the next step.
#[inline(always)]
pub(super) fn finish<V: Verb, T, R, P, const NR: usize, const NS: usize>(
    prims: &mut Prims<T, R, P, NR, NS>,
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    let nr = prims.receiving();
    let Prims { cx, recv, send, .. } = prims;
    if V::RECV {
        gpu::sync_threads();
        each!(NR, nr, i => {
            if cx.tid() == 0 && !cx.stopped {
                recv[i].give_credit();
            }
            recv[i].advance();
        });
    }
    if V::SEND {
        // Missing ones, too: nobody looks at them.
        each!(NS, usize::MAX, i => send[i].advance());
    }
}

impl<T: Element, R: Reduction, L: Rules, const NR: usize, const NS: usize>
    Prims<T, R, Ll<L>, NR, NS>
{
    /// Lines of a slice, one at a time per lane.
    ///
    /// # Safety
    /// As [`Protocol::step`].
    #[inline(always)]
    unsafe fn lines<V: Verb>(&mut self, slice: Slice<T>) {
        const { assert!(DATA == 8) };
        let per_line = DATA / size_of::<T>();
        let whole_words = UNALIGNED_PACKS
            || ((!V::INPUT || slice.input.addr().is_multiple_of(DATA))
                && (!V::OUTPUT || slice.output.addr().is_multiple_of(DATA)));
        let lines = slice.n.div_ceil(per_line);
        let mut line = self.cx.tid();
        while line < lines {
            let left = slice.n - line * per_line;
            let whole = whole_words && left >= per_line;
            let (input, output) = (
                slice.input.wrapping_add(line * per_line),
                slice.output.wrapping_add(line * per_line),
            );
            // SAFETY: the caller's; the line is inside the slots, as a slice fits one.
            unsafe {
                let mut value = 0;
                if V::INPUT {
                    let own = if whole {
                        gpu::ld_data(input.cast::<u64>())
                    } else {
                        load_elements(input, left)
                    };
                    value = if V::OWN { self.reducer.pre_word(own) } else { own };
                }
                if V::RECV && NR > 1 && Reducer::<T, R>::WIDE {
                    let mut wide = [self.reducer.widen_word(value)];
                    each!(NR, self.receiving(), i => {
                        let received =
                            read_line(&mut self.cx, &self.recv[i], line, L::CHECK_BOTH_FLAGS);
                        if !V::INPUT && i == 0 {
                            self.reducer.widen_words(&mut wide, &[received]);
                        } else {
                            self.reducer.gather_words(&mut wide, &[received]);
                        }
                    });
                    self.reducer.narrow_words(core::slice::from_mut(&mut value), &wide);
                } else if V::RECV {
                    each!(NR, self.receiving(), i => {
                        let received =
                            read_line(&mut self.cx, &self.recv[i], line, L::CHECK_BOTH_FLAGS);
                        let first = !V::INPUT && i == 0;
                        value = if first {
                            received
                        } else {
                            self.reducer.combine_word(value, received)
                        };
                    });
                }
                if V::RECV && self.cx.stopped {
                    // What was read is not data: it must not be passed on under a valid flag.
                    return;
                }
                if V::FINAL {
                    value = self.reducer.post_word(value);
                }
                if V::SEND {
                    each!(NS, self.sending(), i => {
                    let edge = &self.send[i];
                            write_line(edge.slot(), line, value, edge.step);
                        });
                }
                if V::OUTPUT {
                    if whole {
                        gpu::st_data(output.cast::<u64>(), value, size_of::<T>());
                    } else {
                        store_elements(output, value, left);
                    }
                }
            }
            line += self.cx.lanes();
        }
        if V::SEND {
            each!(NS, self.sending(), i => {
                let edge = &self.send[i];
                self.clean(edge, lines);
            });
        }
    }

    /// Once every [`CLEAN`] steps: the lines behind the slice get the step's flag too.
    #[inline(always)]
    fn clean(&self, edge: &Edge, lines: usize) {
        if edge.step % CLEAN < u64::from(edge.slots) {
            let mut line = lines + self.cx.tid();
            while line < edge.slot_bytes() / LL_LINE {
                // SAFETY: the line is inside the slot, which the receiver has given back.
                unsafe { write_line(edge.slot(), line, 0, edge.step) };
                line += self.cx.lanes();
            }
        }
    }
}

/// The data of a line, once both flags are right (or, against the rules, one); 0 after a stop.
///
/// # Safety
/// The line is inside the slot.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn read_line(cx: &mut Context, edge: &Edge, line: usize, both: bool) -> u64 {
    let at = edge.slot().wrapping_add(line * LL_LINE).cast::<u64>();
    let flag = flag(edge.step);
    let mut halves = [0; 2];
    cx.wait(
        edge,
        WaitKind::LlFlag,
        edge.step,
        #[inline(always)]
        || {
            // SAFETY: the caller's.
            halves = unsafe { gpu::ld_halves(at) };
            halves[0] >> 32 == flag && (halves[1] >> 32 == flag || !both)
        },
    );
    halves[0] & 0xffff_ffff | halves[1] << 32
}

/// The flag of a step.
#[inline(always)]
fn flag(step: u64) -> u64 {
    (step << 1 | 1) & 0xffff_ffff
}

/// # Safety
/// The line is inside the slot, which the receiver has given back.
#[inline(always)]
unsafe fn write_line(slot: *mut u8, line: usize, data: u64, step: u64) {
    let flag = flag(step) << 32;
    // SAFETY: the caller's.
    unsafe {
        gpu::st_halves(
            slot.wrapping_add(line * LL_LINE).cast(),
            [data & 0xffff_ffff | flag, data >> 32 | flag],
        );
    }
}

/// Up to 8 bytes of elements as a word, the first in the low bits; `n` may be more than fit.
///
/// # Safety
/// `min(n, 8 / size)` elements are readable at `p`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(super) unsafe fn load_elements<T: Element>(p: *const T, n: usize) -> u64 {
    let mut word = 0;
    for i in 0..n.min(8 / size_of::<T>()) {
        // SAFETY: the caller's.
        word |= unsafe { gpu::ld_data(p.add(i)) }.to_bits() << (8 * size_of::<T>() * i);
    }
    word
}

/// The reverse of [`load_elements`].
///
/// # Safety
/// `min(n, 8 / size)` elements are writable at `p`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(super) unsafe fn store_elements<T: Element>(p: *mut T, word: u64, n: usize) {
    for i in 0..n.min(8 / size_of::<T>()) {
        // SAFETY: the caller's.
        unsafe {
            gpu::st_data(p.add(i), T::of_bits(word >> (8 * size_of::<T>() * i)), size_of::<T>());
        }
    }
}

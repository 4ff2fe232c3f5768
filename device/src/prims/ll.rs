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
use crate::gpu::{self, UNALIGNED_PACKS, WARP};
use crate::prims::verbs::Verb;
use crate::prims::{Context, Edge, Prims, Protocol, Rules, Slice, Slots, Sound};
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
        if edge.gated() {
            return edge.has_tail();
        }
        // SAFETY: a slot has a line.
        let halves = unsafe { gpu::ld_halves(edge.slot().cast_const().cast()) };
        (halves[0] >> 32) as u32 == flag(edge.step) && (halves[1] >> 32) as u32 == flag(edge.step)
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        wait_for_slots::<V, L, T, R, Self, NR, NS>(
            prims,
            #[inline(always)]
            |edge| {
                if is_cleaned(edge) {
                    return edge.slot_bytes();
                }
                // Computed again by all lanes where the lines are moved: not to be kept for that.
                gpu::fresh(slice.n).div_ceil(DATA / size_of::<T>()) * LL_LINE
            },
        );
        if !prims.cx.stopped {
            // SAFETY: `step`'s contract.
            unsafe { prims.lines::<V>(slice) }
        }
        finish::<V, T, R, Self, NR, NS>(prims);
    }
}

/// Waits until every slot to send in is free, and every slot to receive is there whose flags do not say so; all lanes know
/// afterwards whether to go on. `bytes` is what a slot to send will have.
#[inline(always)]
pub(super) fn wait_for_slots<V: Verb, L: Rules, T, R, P, const NR: usize, const NS: usize>(
    prims: &mut Prims<T, R, P, NR, NS>,
    bytes: impl Fn(&Edge) -> usize,
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    let (nr, ns) = (prims.receiving(), prims.sending());
    let Prims { cx, recv, send, .. } = prims;
    if V::RECV && cx.tid() == 0 {
        each!(NR, nr, i => {
            if recv[i].gated() {
                cx.wait_tail(&recv[i]);
            }
        });
    }
    if V::SEND && L::WAIT_FOR_CREDIT && cx.tid() == 0 {
        each!(NS, ns, i => {
            cx.wait_credit(&send[i]);
            send[i].announce(bytes(&send[i]));
        });
    }
    // Also carries lane 0's acquires to all lanes.
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
    let (nr, ns) = (prims.receiving(), prims.sending());
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
        each!(NS, ns, i => send[i].advance());
    }
}

/// Lines that a lane has in flight, one in each of as many rows of a warp.
const ROWS: usize = 2;

impl<T: Element, R: Reduction, L: Rules, const NR: usize, const NS: usize>
    Prims<T, R, Ll<L>, NR, NS>
{
    /// Lines of a slice. A warp takes [`ROWS`] rows of lines at a time, as long as the data of each is 8 bytes at one
    /// address; what is left, or all where buffers are not aligned to 8 bytes, goes line by line.
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
        // Lines are counted in 32 bits, which a slot's always fit.
        let lines = slice.n.div_ceil(per_line) as u32;
        let whole = if whole_words { (slice.n / per_line) as u32 } else { 0 };
        let in_rows = whole / (ROWS as u32 * WARP) * (ROWS as u32 * WARP);
        let slots = self.step_slots::<V>();
        let (tid, lanes) = (self.cx.tid() as u32, self.cx.lanes() as u32);
        // SAFETY: the caller's; the lines are inside the slots, as a slice fits one. Hunks of rows are whole.
        unsafe {
            let mut line = tid / WARP * (ROWS as u32 * WARP) + gpu::lane_id();
            while line < in_rows {
                if !self.rows::<V, ROWS, true>(slice, &slots, line) {
                    return;
                }
                line += lanes * ROWS as u32;
            }
            let mut line = in_rows + tid;
            while line < lines {
                if !self.rows::<V, 1, false>(slice, &slots, line) {
                    return;
                }
                line += lanes;
            }
        }
        if V::SEND {
            each!(NS, self.sending(), i => self.clean(&self.send[i], lines as usize));
        }
    }

    /// `N` lines, [`WARP`] apart; `WHOLE`: the data of each is 8 bytes at one address. `false` after a stop.
    ///
    /// # Safety
    /// As [`Protocol::step`]; the lines are of the slice.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
    unsafe fn rows<V: Verb, const N: usize, const WHOLE: bool>(
        &mut self,
        slice: Slice<T>,
        slots: &Slots<NR, NS>,
        line: u32,
    ) -> bool {
        let per_line = DATA / size_of::<T>();
        let at = line as usize * per_line;
        // SAFETY: the caller's.
        unsafe {
            let mut values = [0; N];
            if V::INPUT {
                for row in 0..N {
                    let at = at + row * WARP as usize * per_line;
                    let input = slice.input.wrapping_add(at);
                    values[row] = if WHOLE {
                        gpu::ld_data(input.cast::<u64>())
                    } else {
                        load_elements(input, slice.n - at)
                    };
                }
                if V::OWN {
                    for row in 0..N {
                        values[row] = self.reducer.pre_word(values[row]);
                    }
                }
            }
            if V::RECV && NR > 1 && Reducer::<T, R>::WIDE {
                let mut wide = [self.reducer.widen_word(0); N];
                self.reducer.widen_words(&mut wide, &values);
                each!(NR, self.receiving(), i => {
                    let at = slots.recv[i].wrapping_add(line as usize * LL_LINE);
                    let both = L::CHECK_BOTH_FLAGS;
                    let received: [u64; N] =
                        read_lines(&mut self.cx, &self.recv[i], at.cast(), both);
                    if !V::INPUT && i == 0 {
                        self.reducer.widen_words(&mut wide, &received);
                    } else {
                        self.reducer.gather_words(&mut wide, &received);
                    }
                });
                self.reducer.narrow_words(&mut values, &wide);
            } else if V::RECV {
                each!(NR, self.receiving(), i => {
                    let at = slots.recv[i].wrapping_add(line as usize * LL_LINE);
                    let received = read_lines::<N>(
                        &mut self.cx,
                        &self.recv[i],
                        at.cast(),
                        L::CHECK_BOTH_FLAGS,
                    );
                    for row in 0..N {
                        values[row] = if !V::INPUT && i == 0 {
                            received[row]
                        } else {
                            self.reducer.combine_word(values[row], received[row])
                        };
                    }
                });
            }
            if V::RECV && self.cx.stopped {
                // What was read is not data: it must not be passed on under a valid flag.
                return false;
            }
            if V::FINAL {
                for row in 0..N {
                    values[row] = self.reducer.post_word(values[row]);
                }
            }
            if V::SEND {
                each!(NS, self.sending(), i => {
                    let at = slots.send[i].wrapping_add(line as usize * LL_LINE);
                    for row in 0..N {
                        write_line(row_of(at.cast(), row), values[row], self.send[i].step);
                    }
                });
            }
            if V::OUTPUT {
                for row in 0..N {
                    let at = at + row * WARP as usize * per_line;
                    let output = slice.output.wrapping_add(at);
                    if WHOLE {
                        gpu::st_data(output.cast::<u64>(), values[row], size_of::<T>());
                    } else {
                        store_elements(output, values[row], slice.n - at);
                    }
                }
            }
        }
        true
    }

    /// Once every [`CLEAN`] steps: the lines behind the slice get the step's flag too.
    #[inline(always)]
    fn clean(&self, edge: &Edge, lines: usize) {
        if is_cleaned(edge) {
            let mut line = lines + self.cx.tid();
            while line < edge.slot_bytes() / LL_LINE {
                // SAFETY: the line is inside the slot, which the receiver has given back.
                unsafe {
                    write_line(edge.slot().wrapping_add(line * LL_LINE).cast(), 0, edge.step);
                };
                line += self.cx.lanes();
            }
        }
    }
}

/// Whether the current step fills its slot whole.
#[inline(always)]
fn is_cleaned(edge: &Edge) -> bool {
    edge.step % CLEAN < u64::from(edge.slots())
}

/// The line at the same place in a later row.
#[inline(always)]
fn row_of(line: *mut u64, row: usize) -> *mut u64 {
    line.wrapping_add(row * WARP as usize * LL_LINE / size_of::<u64>())
}

/// The data of a line and of those at its place in later rows, once both flags of each are right (or, against the
/// rules, one); 0 after a stop.
///
/// # Safety
/// `at` is a line of the slot, and the others are, too.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
#[expect(clippy::needless_range_loop, reason = "as there")]
unsafe fn read_lines<const N: usize>(
    cx: &mut Context,
    edge: &Edge,
    at: *mut u64,
    both: bool,
) -> [u64; N] {
    let flag = flag(edge.step);
    let mut lines = [[0; 2]; N];
    cx.wait(
        edge,
        WaitKind::LlFlag,
        edge.step,
        #[inline(always)]
        || {
            for row in 0..N {
                // SAFETY: the caller's.
                lines[row] = unsafe { gpu::ld_halves(row_of(at, row)) };
            }
            // All are looked at, so that no way out lies between two loads.
            let mut ready = true;
            for row in 0..N {
                let right = |half: u64| (half >> 32) as u32 == flag;
                ready &= right(lines[row][0]) & (right(lines[row][1]) | !both);
            }
            ready
        },
    );
    lines.map(
        #[inline(always)]
        |halves| halves[0] & 0xffff_ffff | halves[1] << 32,
    )
}

/// The flag of a step.
#[inline(always)]
fn flag(step: u64) -> u32 {
    (step << 1 | 1) as u32
}

/// # Safety
/// `at` is a line of a slot that the receiver has given back.
#[inline(always)]
unsafe fn write_line(at: *mut u64, data: u64, step: u64) {
    let flag = u64::from(flag(step)) << 32;
    // SAFETY: the caller's.
    unsafe { gpu::st_halves(at, [data & 0xffff_ffff | flag, data >> 32 | flag]) }
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

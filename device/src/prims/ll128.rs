//! LL128: lines of 120 bytes of data and an 8-byte flag, moved by 8 lanes that store 16 bytes each.
//!
//! ```text
//! a pair of lines carries 240 bytes = 15 units of 16 bytes of user data:
//!
//!   unit (16 B)   0  1  2  3  4  5  6   7             line A: units 0..7 and the first half of unit 7
//!   line A       [0][1][2][3][4][5][6][7.lo|flag]     line B: units 8..15 and the second half of unit 7
//!   line B       [8][9][10]....... [14][7.hi|flag]    flag = step + 1
//! ```
//!
//! So every user access is 16 bytes wide and aligned as the buffer is, and only the lane that holds the
//! flags (the last of the line) moves a word between its two registers.
//!
//! The protocol relies on a 128-byte line becoming visible whole, or its flag last. On the GPU that is a
//! property of how a warp's 16-byte stores to one line travel over NVLink (NCCL enables LL128 only where
//! the hardware keeps the promise); on the CPU one lane writes the line, and the flag with release.

use core::marker::PhantomData;

use crate::abi::{LL128_LINE, LL128_LINE_DATA, ProtocolId, WaitKind};
use crate::element::Element;
use crate::gpu::{self, LANES_PER_LINE, LINE_UNITS, LINE_WORDS, UNALIGNED_PACKS, WARP};
use crate::prims::ll::{finish, load_elements, store_elements, wait_for_credit};
use crate::prims::verbs::Verb;
use crate::prims::{Context, Edge, Prims, Protocol, Rules, Slice, Sound};
use crate::reduce::{Reducer, Reduction};

/// The LL128 protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Ll128<L = Sound>(PhantomData<L>);

/// Bytes of data in a pair of lines.
const PAIR_DATA: usize = 2 * LL128_LINE_DATA;
/// 16-byte units in a line, the flag's included.
const UNITS: usize = LL128_LINE / 16;

impl<L: Rules> Protocol for Ll128<L> {
    const ID: ProtocolId = ProtocolId::Ll128;
    const SLICES: usize = 1;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes / (2 * LL128_LINE) * PAIR_DATA
    }

    #[inline(always)]
    fn has_begun(edge: &Edge) -> bool {
        let last = edge.slot().wrapping_add(LL128_LINE - LL128_LINE / LANES_PER_LINE);
        // SAFETY: a slot has a line; this is the part of it that has the flag.
        let words = unsafe { gpu::ld_line(last.cast_const().cast(), edge.step + 1) };
        words[LINE_WORDS - 1] == edge.step + 1
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        wait_for_credit::<V, L, T, R, Self, NR, NS>(prims);
        if !prims.cx.stopped {
            // SAFETY: `step`'s contract.
            unsafe { prims.pairs::<V>(slice) }
        }
        finish::<V, T, R, Self, NR, NS>(prims);
    }
}

/// One lane's part of a pair of lines: `[line A, line B]`.
type Pair = [[u64; LINE_WORDS]; 2];

impl<T: Element, R: Reduction, L: Rules, const NR: usize, const NS: usize>
    Prims<T, R, Ll128<L>, NR, NS>
{
    /// Pairs of lines of a slice, `WARP / LANES_PER_LINE` at a time per warp. The lanes of a warp stay
    /// together: all of them vote on the flags, also those that have no pair left.
    ///
    /// # Safety
    /// As [`Protocol::step`].
    #[inline(always)]
    unsafe fn pairs<V: Verb>(&mut self, slice: Slice<T>) {
        let per_pair = PAIR_DATA / size_of::<T>();
        let per_warp = WARP as usize / LANES_PER_LINE;
        let aligned = UNALIGNED_PACKS
            || ((!V::INPUT || slice.input.addr().is_multiple_of(16))
                && (!V::OUTPUT || slice.output.addr().is_multiple_of(16)));
        let pairs = slice.n.div_ceil(per_pair);
        let warps = self.cx.lanes() / WARP as usize;
        let mut first = self.cx.tid() / WARP as usize * per_warp;
        while first < pairs {
            let pair = first + gpu::lane_id() as usize / LANES_PER_LINE;
            let mine = pair < pairs;
            let left = if mine { slice.n - pair * per_pair } else { 0 };
            let whole = aligned && left >= per_pair;
            let (input, output) = (
                slice.input.wrapping_add(pair * per_pair),
                slice.output.wrapping_add(pair * per_pair),
            );
            // SAFETY: the caller's; the pair is inside the slots, as a slice fits one.
            unsafe {
                let mut value: Pair = [[0; LINE_WORDS]; 2];
                if V::INPUT && mine {
                    value = load_pair(input, left, whole);
                    if V::OWN {
                        self.reducer.pre_words(value.as_flattened_mut());
                    }
                }
                if V::RECV && NR > 1 && Reducer::<T, R>::WIDE {
                    let mut wide = [self.reducer.widen_word(0); 2 * LINE_WORDS];
                    self.reducer.widen_words(&mut wide, value.as_flattened());
                    each!(NR, self.receiving(), i => {
                        let received = read_pair(&mut self.cx, &self.recv[i], pair, mine);
                        if !V::INPUT && i == 0 {
                            self.reducer.widen_words(&mut wide, received.as_flattened());
                        } else {
                            self.reducer.gather_words(&mut wide, received.as_flattened());
                        }
                    });
                    self.reducer.narrow_words(value.as_flattened_mut(), &wide);
                } else if V::RECV {
                    each!(NR, self.receiving(), i => {
                        let received = read_pair(&mut self.cx, &self.recv[i], pair, mine);
                        if !V::INPUT && i == 0 {
                            value = received;
                        } else {
                            self.reducer
                                .combine_words(value.as_flattened_mut(), received.as_flattened());
                        }
                    });
                }
                if V::RECV && self.cx.stopped {
                    // What was read is not data: it must not be passed on under a valid flag. All lanes of
                    // the warp have stopped (`wait_together`).
                    return;
                }
                if V::FINAL {
                    self.reducer.post_words(value.as_flattened_mut());
                }
                if V::SEND {
                    // Lanes that took different branches so far store together from here on: a line is whole
                    // only if it is one store of the warp.
                    gpu::sync_warp();
                }
                if V::SEND && mine {
                    each!(NS, self.sending(), i => {
                    let edge = &self.send[i];
                            write_pair(edge, pair, &value, L::FLAG_LAST);
                        });
                }
                if V::OUTPUT && mine {
                    store_pair(output, value, left, whole);
                }
            }
            first += warps * per_warp;
        }
    }
}

/// This lane's part of a pair, once the flags of all the warp's pairs are right; anything after a stop.
///
/// # Safety
/// All lanes of the warp call it; where `mine`, the pair is inside the slot.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn read_pair(cx: &mut Context, edge: &Edge, pair: usize, mine: bool) -> Pair {
    let at = line_part(edge.slot(), pair).cast_const();
    let flag = edge.step + 1;
    let mut words: Pair = [[0; LINE_WORDS]; 2];
    let there = cx.wait_together(
        edge,
        WaitKind::Ll128Flag,
        edge.step,
        #[inline(always)]
        || {
            let mut ready = true;
            if mine {
                // SAFETY: the caller's.
                words =
                    unsafe { [gpu::ld_line(at, flag), gpu::ld_line(at.add(LL128_LINE / 8), flag)] };
                let right = words[0][LINE_WORDS - 1] == flag && words[1][LINE_WORDS - 1] == flag;
                ready = right || !holds_flag();
            }
            gpu::warp_vote_all(ready)
        },
    );
    if LANES_PER_LINE > 1 && there && mine {
        // The lanes of a line need not have loaded it at one time: they may come here from different
        // branches, and only a vote makes them meet. One that was early has old data beside a later lane's
        // right flag. Since the vote the line is there for all of them.
        // SAFETY: the caller's.
        words = unsafe { [gpu::ld_line(at, flag), gpu::ld_line(at.add(LL128_LINE / 8), flag)] };
    }
    words
}

/// Stores this lane's part of a pair, with the step's flags.
///
/// # Safety
/// The pair is inside the slot, which the receiver has given back.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn write_pair(edge: &Edge, pair: usize, value: &Pair, flag_last: bool) {
    let at = line_part(edge.slot(), pair);
    for (half, mut words) in value.iter().copied().enumerate() {
        if holds_flag() {
            words[LINE_WORDS - 1] = edge.step + 1;
        }
        // SAFETY: the caller's.
        unsafe { gpu::st_line(at.add(half * LL128_LINE / 8), words, flag_last) };
    }
}

/// Whether this lane holds the flags of its lines.
#[inline(always)]
fn holds_flag() -> bool {
    gpu::line_lane() == LANES_PER_LINE - 1
}

/// This lane's part of line A of a pair.
#[inline(always)]
fn line_part(slot: *mut u8, pair: usize) -> *mut u64 {
    let lane = gpu::line_lane();
    slot.wrapping_add(pair * 2 * LL128_LINE + lane * (LL128_LINE / LANES_PER_LINE)).cast()
}

/// Loads this lane's share of the 240 bytes of a pair; the words of the flags hold nothing.
///
/// # Safety
/// `min(left, 240 / size)` elements are readable at `p`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn load_pair<T: Element>(p: *const T, left: usize, whole: bool) -> Pair {
    let mut pair: Pair = [[0; LINE_WORDS]; 2];
    for k in 0..LINE_UNITS {
        let unit = gpu::line_lane() * LINE_UNITS + k;
        // SAFETY: the caller's: units up to 14 are inside the pair.
        unsafe {
            let a = load_unit(p, unit, left, whole);
            if unit == UNITS - 1 {
                (pair[0][2 * k], pair[1][2 * k]) = (a[0], a[1]);
            } else {
                let b = load_unit(p, UNITS + unit, left, whole);
                (pair[0][2 * k], pair[0][2 * k + 1]) = (a[0], a[1]);
                (pair[1][2 * k], pair[1][2 * k + 1]) = (b[0], b[1]);
            }
        }
    }
    pair
}

/// The reverse of [`load_pair`].
///
/// # Safety
/// `min(left, 240 / size)` elements are writable at `p`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn store_pair<T: Element>(p: *mut T, pair: Pair, left: usize, whole: bool) {
    for k in 0..LINE_UNITS {
        let unit = gpu::line_lane() * LINE_UNITS + k;
        // SAFETY: the caller's.
        unsafe {
            if unit == UNITS - 1 {
                store_unit(p, unit, [pair[0][2 * k], pair[1][2 * k]], left, whole);
            } else {
                store_unit(p, unit, [pair[0][2 * k], pair[0][2 * k + 1]], left, whole);
                store_unit(p, UNITS + unit, [pair[1][2 * k], pair[1][2 * k + 1]], left, whole);
            }
        }
    }
}

/// Unit `u` of the data at `p`: 16 bytes, or as many of them as are `left`.
///
/// # Safety
/// As [`load_pair`].
#[inline(always)]
unsafe fn load_unit<T: Element>(p: *const T, u: usize, left: usize, whole: bool) -> [u64; 2] {
    let per_word = 8 / size_of::<T>();
    let at = p.wrapping_add(u * 2 * per_word);
    // SAFETY: the caller's.
    unsafe {
        if whole {
            return gpu::ld_data(at.cast());
        }
        let left = left.saturating_sub(u * 2 * per_word);
        [
            load_elements(at, left),
            load_elements(at.wrapping_add(per_word), left.saturating_sub(per_word)),
        ]
    }
}

/// The reverse of [`load_unit`].
///
/// # Safety
/// As [`store_pair`].
#[inline(always)]
unsafe fn store_unit<T: Element>(p: *mut T, u: usize, words: [u64; 2], left: usize, whole: bool) {
    let per_word = 8 / size_of::<T>();
    let at = p.wrapping_add(u * 2 * per_word);
    // SAFETY: the caller's.
    unsafe {
        if whole {
            return gpu::st_data(at.cast(), words, size_of::<T>());
        }
        let left = left.saturating_sub(u * 2 * per_word);
        store_elements(at, words[0], left);
        store_elements(at.wrapping_add(per_word), words[1], left.saturating_sub(per_word));
    }
}

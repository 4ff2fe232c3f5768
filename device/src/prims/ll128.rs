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
use crate::prims::ll::{finish, load_elements, store_elements, wait_for_slots};
use crate::prims::verbs::Verb;
use crate::prims::{Context, Edge, Prims, Protocol, Rules, Slice, Slots, Sound};
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
        if edge.gated() {
            return edge.has_tail();
        }
        let last = edge.slot().wrapping_add(LL128_LINE - size_of::<u64>()).cast_const();
        // SAFETY: a slot has a line; this is its last word.
        unsafe { gpu::ld_flag(last.cast()) == flag(edge.step) }
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        wait_for_slots::<V, L, T, R, Self, NR, NS>(
            prims,
            #[inline(always)]
            |_| {
                // Computed again by all lanes where the lines are moved: not to be kept for that.
                let n = gpu::fresh(slice.n);
                2 * n.div_ceil(PAIR_DATA / size_of::<T>()) * LL128_LINE
            },
        );
        if !prims.cx.stopped {
            // SAFETY: `step`'s contract.
            unsafe { prims.pairs::<V>(slice) }
        }
        finish::<V, T, R, Self, NR, NS>(prims);
    }
}

/// One lane's part of a pair of lines: `[line A, line B]`.
type Pair = [[u64; LINE_WORDS]; 2];

/// This lane's place in its line. Asked for once a step: were it asked for in each place, all that follows from it would
/// fill registers from one end of a kernel to the other.
#[derive(Clone, Copy)]
struct Lane(usize);

impl Lane {
    #[inline(always)]
    fn new() -> Self {
        Lane(gpu::line_lane())
    }

    #[inline(always)]
    fn index(self) -> usize {
        // A constant where a line has one lane.
        if LANES_PER_LINE == 1 { 0 } else { self.0 }
    }

    /// Where its part of a line is in the line.
    #[inline(always)]
    fn part(self) -> usize {
        self.index() * (LL128_LINE / LANES_PER_LINE)
    }

    /// Its first unit of line A.
    #[inline(always)]
    fn unit(self) -> usize {
        self.index() * LINE_UNITS
    }

    /// The bits of the last word of its part of a line that are data: all, or none where it holds the flag.
    #[inline(always)]
    fn data_bits(self) -> u64 {
        let holds_flag = self.index() == LANES_PER_LINE - 1;
        // Both halves in one register.
        let half = gpu::fresh(if holds_flag { 0 } else { usize::MAX }) as u32;
        u64::from(half) << 32 | u64::from(half)
    }

    /// How many words behind its part of line A of the first row the `i`th flag is that it looks at, of `N` rows.
    #[inline(always)]
    fn flag_of<const N: usize>(self, i: usize) -> isize {
        let line = (self.index() + i) % (2 * N);
        let words = (line / 2 * ROW as usize * 2 + line % 2 + 1) * LL128_LINE / size_of::<u64>();
        words as isize - 1 - (self.index() * LINE_WORDS) as isize
    }
}

/// Pairs that a warp moves together: a row.
const ROW: u32 = WARP / LANES_PER_LINE as u32;
/// Rows that a warp has in flight, where there is one edge to receive from: several would not fit the registers with as much
/// of each.
const ROWS: usize = 2;

/// Where a lane's parts of pair 0 are: in the data its first unit of line A, in a slot its part of line A. Added up once for
/// all pairs.
struct Ours<T, const NR: usize, const NS: usize> {
    input: *const T,
    output: *mut T,
    /// Elements of the slice.
    n: usize,
    slots: Slots<NR, NS>,
}

impl<T: Element, R: Reduction, L: Rules, const NR: usize, const NS: usize>
    Prims<T, R, Ll128<L>, NR, NS>
{
    const PER_PAIR: usize = PAIR_DATA / size_of::<T>();

    /// Pairs of lines of a slice. A warp takes several rows of them at a time, as long as their data is whole and aligned
    /// to 16 bytes; what is left, or all where buffers are not aligned, goes row by row.
    ///
    /// # Safety
    /// As [`Protocol::step`].
    #[inline(always)]
    unsafe fn pairs<V: Verb>(&mut self, slice: Slice<T>) {
        let aligned = UNALIGNED_PACKS
            || ((!V::INPUT || slice.input.addr().is_multiple_of(16))
                && (!V::OUTPUT || slice.output.addr().is_multiple_of(16)));
        // Pairs are counted in 32 bits, which a slot's always fit.
        let pairs = slice.n.div_ceil(Self::PER_PAIR) as u32;
        let whole = if aligned { (slice.n / Self::PER_PAIR) as u32 } else { 0 };
        let hunk = if NR > 1 { ROW } else { ROWS as u32 * ROW };
        let in_hunks = if NR > 1 { 0 } else { whole / hunk * hunk };
        let ours = self.ours::<V>(slice);
        // SAFETY: the caller's; the pairs are inside the slots, as a slice fits one.
        unsafe {
            if NR > 1 || self.hunks::<V, ROWS, true>(&ours, 0, in_hunks) {
                self.hunks::<V, 1, false>(&ours, in_hunks, pairs);
            }
        }
    }

    #[inline(always)]
    fn ours<V: Verb>(&self, slice: Slice<T>) -> Ours<T, NR, NS> {
        let (lane, mut slots) = (Lane::new(), self.step_slots::<V>());
        if V::RECV {
            each!(NR, self.receiving(), i => slots.recv[i] = slots.recv[i].wrapping_add(lane.part()));
        }
        if V::SEND {
            each!(NS, self.sending(), i => slots.send[i] = slots.send[i].wrapping_add(lane.part()));
        }
        let units = 16 * lane.unit();
        let input = slice.input.wrapping_byte_add(units);
        Ours { input, output: slice.output.wrapping_byte_add(units), n: slice.n, slots }
    }

    /// The pairs from `from` up to `end`, `N` rows at a time, which with `WHOLE` there are. `false` after a stop.
    ///
    /// # Safety
    /// As for [`Prims::rows`].
    #[inline(always)]
    unsafe fn hunks<V: Verb, const N: usize, const WHOLE: bool>(
        &mut self,
        ours: &Ours<T, NR, NS>,
        from: u32,
        end: u32,
    ) -> bool {
        let (lane, in_row) = (Lane::new(), gpu::lane_id() / LANES_PER_LINE as u32);
        let data_bits = lane.data_bits();
        let (warp, warps) = (self.cx.tid() as u32 / WARP, self.cx.lanes() as u32 / WARP);
        let hunk = N as u32 * ROW;
        let mut pair = from + warp * hunk + in_row;
        // All lanes of the warp come along.
        while pair < end + in_row {
            // SAFETY: the caller's.
            if !unsafe { self.rows::<V, N, WHOLE>(ours, (lane, data_bits), pair, end) } {
                return false;
            }
            pair += warps * hunk;
        }
        true
    }

    /// This lane's part of `pair` and of those at its place in later rows, `N` in all, if it is before `end`; `WHOLE`: all
    /// are, and hold as much as they can, at addresses that are aligned. The lanes of a warp stay together: all of them
    /// vote on the flags, also those that have no pair left. `false` after a stop, of all lanes of the warp.
    ///
    /// # Safety
    /// As [`Protocol::step`]; all lanes of the warp call it, and the pairs are of the slice.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
    unsafe fn rows<V: Verb, const N: usize, const WHOLE: bool>(
        &mut self,
        ours: &Ours<T, NR, NS>,
        (lane, data_bits): (Lane, u64),
        pair: u32,
        end: u32,
    ) -> bool {
        let mine = WHOLE || pair < end;
        let (of_pair, of_data) = (pair as usize * 2 * LL128_LINE, pair as usize * PAIR_DATA);
        let left = if mine { ours.n - pair as usize * Self::PER_PAIR } else { 0 };
        let here = |slot: *mut u8| slot.wrapping_add(of_pair).cast();
        // SAFETY: the caller's.
        unsafe {
            let mut rows: [Pair; N] = [[[0; LINE_WORDS]; 2]; N];
            if V::INPUT && mine {
                let input = ours.input.wrapping_byte_add(of_data);
                for row in 0..N {
                    let input = input.wrapping_byte_add(row * ROW as usize * PAIR_DATA);
                    rows[row] = load_pair::<T, WHOLE>(lane, input, left);
                }
                if V::OWN {
                    self.reducer.pre_words(rows.as_flattened_mut().as_flattened_mut());
                }
            }
            if V::RECV && NR > 1 && Reducer::<T, R>::WIDE {
                let mut wide = [[self.reducer.widen_word(0); 2 * LINE_WORDS]; N];
                let wide = wide.as_flattened_mut();
                self.reducer.widen_words(wide, rows.as_flattened().as_flattened());
                each!(NR, self.receiving(), i => {
                    let (edge, from) = (&self.recv[i], here(ours.slots.recv[i]));
                    if !wait_for_rows::<N>(&mut self.cx, edge, lane, from, mine) {
                        return false;
                    }
                    let received = read_rows::<N>(from, mine);
                    let received = received.as_flattened().as_flattened();
                    if !V::INPUT && i == 0 {
                        self.reducer.widen_words(wide, received);
                    } else {
                        self.reducer.gather_words(wide, received);
                    }
                });
                self.reducer.narrow_words(rows.as_flattened_mut().as_flattened_mut(), wide);
            } else if V::RECV {
                each!(NR, self.receiving(), i => {
                    let (edge, from) = (&self.recv[i], here(ours.slots.recv[i]));
                    if !wait_for_rows::<N>(&mut self.cx, edge, lane, from, mine) {
                        return false;
                    }
                    let received = read_rows::<N>(from, mine);
                    if !V::INPUT && i == 0 {
                        rows = received;
                    } else {
                        let received = received.as_flattened().as_flattened();
                        let rows = rows.as_flattened_mut().as_flattened_mut();
                        self.reducer.combine_words(rows, received);
                    }
                });
            }
            if V::FINAL {
                self.reducer.post_words(rows.as_flattened_mut().as_flattened_mut());
            }
            if V::SEND {
                // Lanes that took different branches so far store together from here on: a line is whole
                // only if it is one store of the warp.
                gpu::sync_warp();
            }
            if V::SEND && mine {
                each!(NS, self.sending(), i => {
                    let to: *mut u64 = here(ours.slots.send[i]);
                    let flag = flag(self.send[i].step);
                    for row in 0..N {
                        write_pair(row_of(to, row), rows[row], data_bits, flag, L::FLAG_LAST);
                    }
                });
            }
            if V::OUTPUT && mine {
                let output = ours.output.wrapping_byte_add(of_data);
                for row in 0..N {
                    let output = output.wrapping_byte_add(row * ROW as usize * PAIR_DATA);
                    store_pair::<T, WHOLE>(lane, output, rows[row], left);
                }
            }
        }
        true
    }
}

/// The flag of a step.
#[inline(always)]
fn flag(step: u64) -> u64 {
    step + 1
}

/// The same lane's part of the pair at the same place in a later row.
#[inline(always)]
fn row_of(part: *mut u64, row: usize) -> *mut u64 {
    part.wrapping_add(row * ROW as usize * 2 * LL128_LINE / size_of::<u64>())
}

/// Waits until the flags of all the warp's pairs in `N` rows are right; `false` after a stop.
///
/// # Safety
/// All lanes of the warp call it; where `mine`, `at` is this lane's part of line A of a pair, and there are so many rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn wait_for_rows<const N: usize>(
    cx: &mut Context,
    edge: &Edge,
    lane: Lane,
    at: *mut u64,
    mine: bool,
) -> bool {
    cx.wait_together(
        edge,
        WaitKind::Ll128Flag,
        edge.step,
        #[inline(always)]
        || {
            let mut ready = true;
            if mine {
                // Added up in each round: kept, it fills two registers more.
                let flag = flag(gpu::fresh(edge.step as usize) as u64);
                // Each lane of a line looks at the flag of another line of the rows, as far as there are so many.
                const { assert!(LANES_PER_LINE == 1 || 2 * N <= LANES_PER_LINE) };
                let each = if LANES_PER_LINE == 1 { 2 * N } else { 1 };
                for i in 0..each {
                    // SAFETY: the caller's.
                    ready &= unsafe { gpu::ld_flag(at.offset(lane.flag_of::<N>(i))) } == flag;
                }
            }
            gpu::warp_vote_all(ready)
        },
    )
}

/// This lane's part of pairs in `N` rows. It is not loaded before the vote on the flags: the lanes of a line may come there
/// from different branches, and one that is early has old data beside a later lane's right flag.
///
/// # Safety
/// As [`wait_for_rows`], which was true.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
#[expect(clippy::needless_range_loop, reason = "as there")]
unsafe fn read_rows<const N: usize>(at: *mut u64, mine: bool) -> [Pair; N] {
    let mut rows: [Pair; N] = [[[0; LINE_WORDS]; 2]; N];
    if mine {
        for row in 0..N {
            for half in 0..2 {
                let line = row_of(at, row).wrapping_add(half * LL128_LINE / size_of::<u64>());
                // SAFETY: the caller's.
                rows[row][half] = unsafe { gpu::ld_line(line) };
            }
        }
    }
    rows
}

/// Stores this lane's part of a pair, with the step's flags where it has other bits than data. There is no branch in it,
/// and none for a compiler to make: all lanes of a line store together.
///
/// # Safety
/// `at` is this lane's part of line A of a pair, in a slot that the receiver has given back.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
#[expect(clippy::needless_range_loop, reason = "as there")]
unsafe fn write_pair(at: *mut u64, pair: Pair, data_bits: u64, flag: u64, flag_last: bool) {
    for half in 0..2 {
        let mut words = pair[half];
        words[LINE_WORDS - 1] = words[LINE_WORDS - 1] & data_bits | flag & !data_bits;
        // SAFETY: the caller's.
        unsafe { gpu::st_line(at.add(half * LL128_LINE / 8), words, flag_last) };
    }
}

/// How far behind a unit of line A the same lane's unit of line B is. Unit 15 is not there: who has the flags takes the
/// unit that both lines share a second time, which costs no branch.
#[inline(always)]
fn second_unit(shared: bool) -> usize {
    if shared { 0 } else { LL128_LINE }
}

/// Loads this lane's share of the 240 bytes of a pair; the words of the flags hold nothing.
///
/// # Safety
/// `p` is this lane's first unit of line A in the data of a pair, of which `left` elements are readable, if there are so
/// many. With `WHOLE` there are, and `p` is a multiple of 16.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn load_pair<T: Element, const WHOLE: bool>(lane: Lane, p: *const T, left: usize) -> Pair {
    let whole = WHOLE || is_whole(p, left);
    let mut pair: Pair = [[0; LINE_WORDS]; 2];
    for k in 0..LINE_UNITS {
        let unit = lane.unit() + k;
        let shared = unit == UNITS - 1;
        let at = p.wrapping_byte_add(16 * k);
        // SAFETY: the caller's: units up to 14 are inside the pair.
        unsafe {
            let a = load_unit(at, unit, left, whole);
            let second = at.wrapping_byte_add(second_unit(shared));
            let b = load_unit(second, unit + second_unit(shared) / 16, left, whole);
            (pair[0][2 * k], pair[0][2 * k + 1]) = (a[0], a[1]);
            (pair[1][2 * k], pair[1][2 * k + 1]) = (if shared { b[1] } else { b[0] }, b[1]);
        }
    }
    pair
}

/// The reverse of [`load_pair`].
///
/// # Safety
/// As there, for writing.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn store_pair<T: Element, const WHOLE: bool>(
    lane: Lane,
    p: *mut T,
    pair: Pair,
    left: usize,
) {
    let whole = WHOLE || is_whole(p, left);
    for k in 0..LINE_UNITS {
        let unit = lane.unit() + k;
        let shared = unit == UNITS - 1;
        let at = p.wrapping_byte_add(16 * k);
        let a = [pair[0][2 * k], if shared { pair[1][2 * k] } else { pair[0][2 * k + 1] }];
        // SAFETY: the caller's.
        unsafe {
            store_unit(at, unit, a, left, whole);
            if !shared {
                let b = [pair[1][2 * k], pair[1][2 * k + 1]];
                store_unit(at.wrapping_byte_add(LL128_LINE), unit + UNITS, b, left, whole);
            }
        }
    }
}

/// Whether all of a pair's data is there, in units that are aligned.
#[inline(always)]
fn is_whole<T>(p: *const T, left: usize) -> bool {
    left >= PAIR_DATA / size_of::<T>() && (UNALIGNED_PACKS || p.addr().is_multiple_of(16))
}

/// The unit at `at`, number `u` of a pair: 16 bytes, or as many of them as are `left` in the pair.
///
/// # Safety
/// As [`load_pair`].
#[inline(always)]
unsafe fn load_unit<T: Element>(at: *const T, u: usize, left: usize, whole: bool) -> [u64; 2] {
    let per_word = 8 / size_of::<T>();
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
unsafe fn store_unit<T: Element>(at: *mut T, u: usize, words: [u64; 2], left: usize, whole: bool) {
    let per_word = 8 / size_of::<T>();
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

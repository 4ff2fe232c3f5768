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
use crate::prims::conn_state::ConnState;
use crate::prims::context::KernelContext;
use crate::prims::lines::{
    LineFormat, PEERS, finish, load_elements, row_bytes, store_elements, wait_for_slots,
};
use crate::prims::primitives::{Prims, Protocol, Slice};
use crate::prims::rules::{Correct, Rules};
use crate::prims::verbs::Verb;
use crate::reduce::Reduction;

/// The LL128 protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Ll128<L = Correct>(PhantomData<L>);

/// Bytes of data in a pair of lines.
const PAIR_DATA: usize = 2 * LL128_LINE_DATA;
/// 16-byte units in a line, the flag's included.
const UNITS: usize = LL128_LINE / 16;

impl<L: Rules> Protocol for Ll128<L> {
    const ID: ProtocolId = ProtocolId::Ll128;
    const SLICES: usize = 1;
    const LINE: usize = LL128_LINE;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes / (2 * LL128_LINE) * PAIR_DATA
    }

    #[inline(always)]
    fn has_begun(conn: &ConnState) -> bool {
        if conn.wait_tail_first() {
            return conn.has_tail();
        }
        let last = conn.slot().wrapping_add(LL128_LINE - size_of::<u64>()).cast_const();
        // SAFETY: a slot has a line; this is its last word.
        unsafe { gpu::ld_flag(last.cast()) == flag(conn.step) }
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
                let n = gpu::opaque(slice.n);
                2 * n.div_ceil(PAIR_DATA / size_of::<T>()) * LL128_LINE
            },
        );
        if !prims.cx.stopped {
            // SAFETY: `step`'s contract.
            unsafe { prims.lines::<V>(slice) }
        }
        finish::<V, T, R, Self, NR, NS>(prims);
    }
}

/// One lane's part of a pair of lines: `[line A, line B]`.
type LinePair = [[u64; LINE_WORDS]; 2];

/// This lane's place in its line.
#[derive(Clone, Copy)]
pub struct LineLane(usize);

impl LineLane {
    #[inline(always)]
    fn new() -> Self {
        LineLane(gpu::line_lane())
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
        let half = gpu::opaque(if holds_flag { 0 } else { usize::MAX }) as u32;
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

/// Flags that a lane looks at for the lines of [`PEERS`] ranks.
const FLAGS: usize = 2 * PEERS / LANES_PER_LINE;

/// `look` at each of the flags. They are few on a GPU, so that the loop is unrolled.
#[inline(always)]
fn each_flag(flags: &mut [*mut u64; FLAGS], mut look: impl FnMut(usize, &mut *mut u64)) {
    let mut i = 0;
    while i < FLAGS {
        look(i, &mut flags[i]);
        i += 1;
    }
}

/// Pairs that a warp moves together: a row.
const ROW: u32 = WARP / LANES_PER_LINE as u32;
impl<L: Rules> LineFormat for Ll128<L> {
    const DATA: usize = PAIR_DATA;
    const BYTES: usize = 2 * LL128_LINE;
    const LANES: usize = LANES_PER_LINE;
    const ALIGN: usize = 16;
    /// They would not fit the registers.
    const WIDE_ROWS: bool = false;

    type Part = LinePair;
    type Wide<X: Copy> = [X; 2 * LINE_WORDS];
    /// With the bits of the last word that are data.
    type Lane = (LineLane, u64);
    /// The flags that this lane looks at.
    type Watch = [*mut u64; FLAGS];

    const EMPTY: LinePair = [[0; LINE_WORDS]; 2];

    #[inline(always)]
    fn lane() -> Self::Lane {
        let lane = LineLane::new();
        (lane, lane.data_bits())
    }

    #[inline(always)]
    fn offsets() -> (usize, usize) {
        let lane = LineLane::new();
        (16 * lane.unit(), lane.part())
    }

    #[inline(always)]
    fn words(parts: &[LinePair]) -> &[u64] {
        parts.as_flattened().as_flattened()
    }

    #[inline(always)]
    fn words_mut(parts: &mut [LinePair]) -> &mut [u64] {
        parts.as_flattened_mut().as_flattened_mut()
    }

    #[inline(always)]
    fn splat<X: Copy>(value: X) -> Self::Wide<X> {
        [value; 2 * LINE_WORDS]
    }

    #[inline(always)]
    fn wide_words<X: Copy>(parts: &mut [Self::Wide<X>]) -> &mut [X] {
        parts.as_flattened_mut()
    }

    #[inline(always)]
    unsafe fn load<T: Element, const WHOLE: bool>(
        (lane, _): Self::Lane,
        p: *const T,
        left: usize,
    ) -> LinePair {
        // SAFETY: the caller's.
        unsafe { load_pair::<T, WHOLE>(lane, p, left) }
    }

    #[inline(always)]
    unsafe fn store<T: Element, const WHOLE: bool>(
        (lane, _): Self::Lane,
        p: *mut T,
        part: LinePair,
        left: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { store_pair::<T, WHOLE>(lane, p, part, left) }
    }

    /// No line is loaded before the vote on the flags: the lanes of a line may come there from different branches, and
    /// one that is early has old data beside a later lane's right flag.
    #[inline(always)]
    unsafe fn receive<const N: usize>(
        cx: &mut KernelContext,
        conn: &ConnState,
        (lane, _): Self::Lane,
        at: *mut u64,
        mine: bool,
        parts: &mut [LinePair; N],
    ) -> bool {
        // SAFETY: the caller's.
        unsafe {
            if !wait_for_rows::<N>(cx, conn, lane, at, mine) {
                return false;
            }
            if mine {
                *parts = read_rows::<L, N>(at);
            }
        }
        true
    }

    #[inline(always)]
    fn watch((lane, _): Self::Lane, n: usize, of: impl Fn(usize) -> *mut u64) -> Self::Watch {
        // A flag for each line of each rank; the lanes of a line share them.
        let mut flags = [core::ptr::null_mut(); FLAGS];
        let back = (lane.index() * LINE_WORDS) as isize;
        each_flag(&mut flags, |i, flag| {
            let line = i * LANES_PER_LINE + lane.index();
            let end = ((line % 2 + 1) * LL128_LINE / size_of::<u64>()) as isize;
            if line / 2 < n {
                *flag = of(line / 2).wrapping_offset(end - 1 - back);
            }
        });
        flags
    }

    #[inline(always)]
    unsafe fn look(
        step: u64,
        _: usize,
        _: impl Fn(usize) -> *mut u64,
        flags: &mut Self::Watch,
        mine: bool,
    ) -> bool {
        let mut ready = true;
        each_flag(flags, |_, at| {
            if mine && !at.is_null() {
                // SAFETY: the caller's.
                ready &= unsafe { gpu::ld_flag(at.cast_const()) } == flag(step);
            }
        });
        gpu::warp_vote_all(ready)
    }

    /// No line is loaded before the vote on the flags, as in [`LineFormat::receive`].
    #[inline(always)]
    unsafe fn take(_: &Self::Watch, _: usize, at: *mut u64) -> LinePair {
        // SAFETY: the caller's.
        unsafe { read_rows::<L, 1>(at)[0] }
    }

    #[inline(always)]
    unsafe fn has_arrived(step: u64, at: *mut u64) -> bool {
        let back = (LineLane::new().index() * LINE_WORDS) as isize;
        let line = (LL128_LINE / size_of::<u64>()) as isize;
        // SAFETY: the caller's; a line's last word is its flag.
        let right = |end: isize| unsafe { gpu::ld_flag(at.offset(end - 1 - back)) } == flag(step);
        right(line) && right(2 * line)
    }

    #[inline(always)]
    unsafe fn send(step: u64, (_, data_bits): Self::Lane, at: *mut u64, part: LinePair) {
        // SAFETY: the caller's.
        unsafe { write_pair(at, part, data_bits, flag(step)) }
    }
}

/// The flag of a step.
#[inline(always)]
fn flag(step: u64) -> u64 {
    step + 1
}

/// Waits until the flags of all the warp's pairs in `N` rows are right; `false` after a stop.
///
/// # Safety
/// All lanes of the warp call it; where `mine`, `at` is this lane's part of line A of a pair, and there are so many rows.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
unsafe fn wait_for_rows<const N: usize>(
    cx: &mut KernelContext,
    conn: &ConnState,
    lane: LineLane,
    at: *mut u64,
    mine: bool,
) -> bool {
    cx.wait_together(
        conn,
        WaitKind::Ll128Flag,
        conn.step,
        #[inline(always)]
        || {
            let mut ready = true;
            if mine {
                // Added up in each round: kept, it fills two registers more.
                let flag = flag(gpu::opaque(conn.step as usize) as u64);
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

/// This lane's part of pairs in `N` rows.
///
/// # Safety
/// As [`wait_for_rows`], which was true; the pairs are this lane's.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
#[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
unsafe fn read_rows<L: Rules, const N: usize>(at: *mut u64) -> [LinePair; N] {
    let mut rows: [LinePair; N] = [[[0; LINE_WORDS]; 2]; N];
    for row in 0..N {
        for half in 0..2 {
            let line = at.wrapping_byte_add(row * row_bytes::<Ll128<L>>() + half * LL128_LINE);
            // SAFETY: the caller's.
            rows[row][half] = unsafe { gpu::ld_line(line) };
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
#[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
unsafe fn write_pair(at: *mut u64, pair: LinePair, data_bits: u64, flag: u64) {
    for half in 0..2 {
        let mut words = pair[half];
        words[LINE_WORDS - 1] = words[LINE_WORDS - 1] & data_bits | flag & !data_bits;
        // SAFETY: the caller's.
        unsafe { gpu::st_line(at.add(half * LL128_LINE / 8), words) };
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
unsafe fn load_pair<T: Element, const WHOLE: bool>(
    lane: LineLane,
    p: *const T,
    left: usize,
) -> LinePair {
    let whole = WHOLE || is_whole(p, left);
    let mut pair: LinePair = [[0; LINE_WORDS]; 2];
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
    lane: LineLane,
    p: *mut T,
    pair: LinePair,
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

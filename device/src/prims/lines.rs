//! Lines: what LL and LL128 have in common, which say with flags among the data that it has arrived.
//!
//! Both move units of a line format: a line of LL, a pair of lines of LL128. A warp takes a row of units at a time, or
//! several rows, so that as many loads are in flight; what is left, or not aligned, goes row by row.
//!
//! | | LL | LL128 |
//! |---|---|---|
//! | a unit | a line: 8 bytes of data in 16 | a pair of lines: 240 bytes of data in 256 |
//! | a lane has | a unit | a [part](crate::gpu::LANES_PER_LINE) of each line of the pair |
//! | the flag of step `s` | 32 bits of `2 s + 1`, twice in a line | `s + 1`, once in a line |
//! | a lane waits | on its own | with its warp, that votes |

use crate::element::Element;
use crate::gpu::{self, WARP};
use crate::prims::conn_state::ConnState;
use crate::prims::context::KernelContext;
use crate::prims::primitives::{Prims, Protocol, Slice, Slots};
use crate::prims::rules::Rules;
use crate::prims::verbs::Verb;
use crate::reduce::{Reducer, Reduction, WideWord};

/// Units that a lane has in flight at most, one in each of as many rows.
pub(super) const ROWS: usize = 2;

/// Ranks whose lines a lane looks at together: their loads are in flight at the same time.
pub const PEERS: usize = 8;

/// How data and flags share the bytes of a slot.
pub trait LineFormat: Protocol {
    /// Bytes of data in a unit.
    const DATA: usize;
    /// Bytes of a slot that a unit takes.
    const BYTES: usize;
    /// Lanes that a unit is moved by.
    const LANES: usize;
    /// What data has to be aligned to, that whole units are loaded and stored at once.
    const ALIGN: usize;
    /// Whether several rows are in flight also where there are several connections to receive from.
    const WIDE_ROWS: bool;

    /// A lane's part of a unit.
    type Part: Copy;
    /// As many words of another type as a part has.
    type Wide<X: Copy>: Copy;
    /// What a lane knows of its place in a unit.
    type Lane: Copy;
    /// What a lane needs to look at the units of several ranks, and what it has seen.
    type Watch;

    /// A part without data.
    const EMPTY: Self::Part;

    /// This lane's place. Asked for once a step: were it asked for in each place, all that follows from it would fill
    /// registers from one end of a kernel to the other.
    fn lane() -> Self::Lane;
    /// Bytes from the beginning of a unit's data, and of a unit in a slot, to this lane's part.
    fn offsets() -> (usize, usize);

    /// The words of parts.
    fn words(parts: &[Self::Part]) -> &[u64];
    /// The words of parts.
    fn words_mut(parts: &mut [Self::Part]) -> &mut [u64];
    /// The same value in all words.
    fn splat<X: Copy>(value: X) -> Self::Wide<X>;
    /// The words of wide parts.
    fn wide_words<X: Copy>(parts: &mut [Self::Wide<X>]) -> &mut [X];

    /// Loads this lane's part of the data of a unit, of which `left` elements are readable, if it has so many.
    ///
    /// # Safety
    /// `p` is where this lane's part begins. With `WHOLE` the unit has all its elements, and `p` is aligned.
    unsafe fn load<T: Element, const WHOLE: bool>(
        lane: Self::Lane,
        p: *const T,
        left: usize,
    ) -> Self::Part;

    /// The reverse of [`LineFormat::load`].
    ///
    /// # Safety
    /// As there, for writing.
    unsafe fn store<T: Element, const WHOLE: bool>(
        lane: Self::Lane,
        p: *mut T,
        part: Self::Part,
        left: usize,
    );

    /// Waits for the flags of the units at `at` and at the same place in later rows, and takes this lane's parts of them,
    /// where they are `mine`; `false` after a stop.
    ///
    /// # Safety
    /// All lanes of the warp call it; where `mine`, `at` is this lane's part of a unit of the current slot, and there are
    /// so many rows.
    unsafe fn receive<const N: usize>(
        cx: &mut KernelContext,
        conn: &ConnState,
        lane: Self::Lane,
        at: *mut u64,
        mine: bool,
        parts: &mut [Self::Part; N],
    ) -> bool;

    /// Prepares to look at the units of `n` ranks, up to [`PEERS`], all at the same place in their slots: `of` says where this
    /// lane's part of each is.
    fn watch(lane: Self::Lane, n: usize, of: impl Fn(usize) -> *mut u64) -> Self::Watch;

    /// Looks whether the units of step `step` have arrived, of the ranks that [`LineFormat::watch`] was given.
    ///
    /// # Safety
    /// All lanes of the warp call it with the same ranks; where `mine`, the addresses are of slots.
    unsafe fn look(
        step: u64,
        n: usize,
        of: impl Fn(usize) -> *mut u64,
        watch: &mut Self::Watch,
        mine: bool,
    ) -> bool;

    /// This lane's part of the unit of rank `i` of those that have arrived.
    ///
    /// # Safety
    /// The last look was true, `at` is the address that the watch was given for the rank, and the unit is this lane's.
    unsafe fn take(watch: &Self::Watch, i: usize, at: *mut u64) -> Self::Part;

    /// Whether the unit at `at` has arrived: what is asked when a wait takes long, to say for whom.
    ///
    /// # Safety
    /// `at` is a lane's part of a unit, in a slot.
    unsafe fn has_arrived(step: u64, at: *mut u64) -> bool;

    /// Whether the step has to fill its slots whole, so that no line is left with an old flag that becomes right again.
    fn fills_slot(_step: u64, _slots: u32) -> bool {
        false
    }

    /// Stores this lane's part of a unit, with the flags of a step.
    ///
    /// # Safety
    /// All lanes of the unit call it together; `at` is this lane's part of a unit, in a slot that the receiver has given
    /// back.
    unsafe fn send(step: u64, lane: Self::Lane, at: *mut u64, part: Self::Part);
}

/// Bytes from a unit in a slot to the one at the same place in the next row.
pub(super) const fn row_bytes<P: LineFormat>() -> usize {
    row::<P>() as usize * P::BYTES
}

/// Units that a warp moves together: a row.
const fn row<P: LineFormat>() -> u32 {
    WARP / P::LANES as u32
}

/// Where a lane's parts of unit 0 are, in the data and in the slots. Added up once for all units.
struct LaneView<T, const NR: usize, const NS: usize> {
    input: *const T,
    output: *mut T,
    /// Elements of the slice.
    n: usize,
    slots: Slots<NR, NS>,
}

impl<T: Element, R: Reduction, P: LineFormat, const NR: usize, const NS: usize>
    Prims<T, R, P, NR, NS>
{
    /// Elements of a unit.
    const PER_UNIT: usize = P::DATA / size_of::<T>();

    /// The units of a slice.
    ///
    /// # Safety
    /// As [`Protocol::step`].
    #[inline(always)]
    pub(super) unsafe fn lines<V: Verb>(&mut self, slice: Slice<T>) {
        let aligned = gpu::UNALIGNED_PACKS
            || ((!V::INPUT || slice.input.addr().is_multiple_of(P::ALIGN))
                && (!V::OUTPUT || slice.output.addr().is_multiple_of(P::ALIGN)));
        // Units are counted in 32 bits, which a slot's always fit.
        let units = slice.n.div_ceil(Self::PER_UNIT) as u32;
        let whole = if aligned { (slice.n / Self::PER_UNIT) as u32 } else { 0 };
        let several = NR <= 1 || P::WIDE_ROWS;
        let hunk = ROWS as u32 * row::<P>();
        let in_hunks = if several { whole / hunk * hunk } else { 0 };
        let view = self.view::<V>(slice);
        // SAFETY: the caller's; the units are inside the slots, as a slice fits one.
        unsafe {
            if !several || self.hunks::<V, ROWS, true>(&view, 0, in_hunks) {
                self.hunks::<V, 1, false>(&view, in_hunks, units);
            }
        }
    }

    #[inline(always)]
    fn view<V: Verb>(&self, slice: Slice<T>) -> LaneView<T, NR, NS> {
        let mut slots = self.step_slots::<V>();
        let (data, part) = P::offsets();
        if V::RECV {
            unroll_peers!(NR, self.nrecv(), i => slots.recv[i] = slots.recv[i].wrapping_add(part));
        }
        if V::SEND {
            unroll_peers!(NS, self.nsend(), i => slots.send[i] = slots.send[i].wrapping_add(part));
        }
        LaneView {
            input: slice.input.wrapping_byte_add(data),
            output: slice.output.wrapping_byte_add(data),
            n: slice.n,
            slots,
        }
    }

    /// The units from `from` up to `end`, `N` rows at a time, which with `WHOLE` there are. `false` after a stop.
    ///
    /// # Safety
    /// As for [`Prims::rows`].
    #[inline(always)]
    unsafe fn hunks<V: Verb, const N: usize, const WHOLE: bool>(
        &mut self,
        view: &LaneView<T, NR, NS>,
        from: u32,
        end: u32,
    ) -> bool {
        let (lane, in_row) = (P::lane(), gpu::lane_id() / P::LANES as u32);
        let (warp, warps) = (self.cx.tid() as u32 / WARP, self.cx.lanes() as u32 / WARP);
        let hunk = N as u32 * row::<P>();
        let mut unit = from + warp * hunk + in_row;
        // Where lanes vote, all lanes of the warp come along.
        let past = if P::LANES > 1 { end + in_row } else { end };
        while unit < past {
            let mine = WHOLE || P::LANES == 1 || unit < end;
            // SAFETY: the caller's.
            if !unsafe { self.rows::<V, N, WHOLE>(view, lane, unit, mine) } {
                return false;
            }
            unit += warps * hunk;
        }
        true
    }

    /// This lane's part of a unit and of those at its place in later rows, `N` in all, if it is `mine`; `WHOLE`: all
    /// are, and hold as much as they can, at addresses that are aligned. `false` after a stop.
    ///
    /// # Safety
    /// As [`Protocol::step`]; the units are of the slice. Where lanes vote, all lanes of the warp call it, also those that
    /// have no unit left.
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
    unsafe fn rows<V: Verb, const N: usize, const WHOLE: bool>(
        &mut self,
        view: &LaneView<T, NR, NS>,
        lane: P::Lane,
        unit: u32,
        mine: bool,
    ) -> bool {
        let (in_slot, in_data) = (unit as usize * P::BYTES, unit as usize * P::DATA);
        let left = if mine { view.n - unit as usize * Self::PER_UNIT } else { 0 };
        let here = |slot: *mut u8| slot.wrapping_add(in_slot).cast::<u64>();
        let row_data = row::<P>() as usize * P::DATA;
        // SAFETY: the caller's.
        unsafe {
            let mut parts = [P::EMPTY; N];
            if V::INPUT && mine {
                let input = view.input.wrapping_byte_add(in_data);
                for row in 0..N {
                    let input = input.wrapping_byte_add(row * row_data);
                    parts[row] = P::load::<T, WHOLE>(lane, input, left);
                }
                if V::OWN {
                    self.reducer.pre_words(P::words_mut(&mut parts));
                }
            }
            if V::RECV && NR > 1 && Reducer::<T, R>::WIDE {
                let mut wide = [P::splat(self.reducer.widen_word(0)); N];
                let wide: &mut [WideWord<T>] = P::wide_words(&mut wide);
                self.reducer.widen_words(wide, P::words(&parts));
                unroll_peers!(NR, self.nrecv(), i => {
                    let (conn, from) = (&self.recv[i], here(view.slots.recv[i]));
                    let mut received = [P::EMPTY; N];
                    if !P::receive(&mut self.cx, conn, lane, from, mine, &mut received) {
                        return false;
                    }
                    if !V::INPUT && i == 0 {
                        self.reducer.widen_words(wide, P::words(&received));
                    } else {
                        self.reducer.gather_words(wide, P::words(&received));
                    }
                });
                self.reducer.narrow_words(P::words_mut(&mut parts), wide);
            } else if V::RECV {
                unroll_peers!(NR, self.nrecv(), i => {
                    let (conn, from) = (&self.recv[i], here(view.slots.recv[i]));
                    let mut received = [P::EMPTY; N];
                    // What has been read after a stop is not data: it must not be passed on under a valid flag.
                    if !P::receive(&mut self.cx, conn, lane, from, mine, &mut received) {
                        return false;
                    }
                    if !V::INPUT && i == 0 {
                        parts = received;
                    } else {
                        self.reducer.combine_words(P::words_mut(&mut parts), P::words(&received));
                    }
                });
            }
            if V::FINAL {
                self.reducer.post_words(P::words_mut(&mut parts));
            }
            if V::SEND && P::LANES > 1 {
                // Lanes that took different branches so far store together from here on: a line is whole
                // only if it is one store of the warp.
                gpu::sync_warp();
            }
            if V::SEND && mine {
                unroll_peers!(NS, self.nsend(), i => {
                    let (conn, to) = (&self.send[i], here(view.slots.send[i]));
                    for row in 0..N {
                        P::send(conn.step, lane, to.wrapping_byte_add(row * row_bytes::<P>()), parts[row]);
                    }
                });
            }
            if V::OUTPUT && mine {
                let output = view.output.wrapping_byte_add(in_data);
                for row in 0..N {
                    let output = output.wrapping_byte_add(row * row_data);
                    P::store::<T, WHOLE>(lane, output, parts[row], left);
                }
            }
        }
        true
    }
}

/// Waits for credit on every connection to send on. Of connections from another host it waits for the tail as well, because
/// RDMA may deliver a flag before its data. All lanes know afterwards whether to go on. `bytes` is what a slot to send
/// will have.
#[inline(always)]
pub(super) fn wait_for_slots<V: Verb, L: Rules, T, R, P, const NR: usize, const NS: usize>(
    prims: &mut Prims<T, R, P, NR, NS>,
    bytes: impl Fn(&ConnState) -> usize,
) where
    T: Element,
    R: Reduction,
    P: Protocol,
{
    let (nr, ns) = (prims.nrecv(), prims.nsend());
    let Prims { cx, recv, send, .. } = prims;
    if V::RECV && cx.tid() == 0 {
        unroll_peers!(NR, nr, i => {
            if recv[i].wait_tail_first() {
                cx.wait_tail(&recv[i]);
            }
        });
    }
    if V::SEND && cx.tid() == 0 {
        unroll_peers!(NS, ns, i => {
            if L::WAIT_FOR_CREDIT || send[i].has_proxy() {
                cx.wait_credit(&send[i]);
            }
            send[i].post_fifo(bytes(&send[i]));
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
    let (nr, ns) = (prims.nrecv(), prims.nsend());
    let Prims { cx, recv, send, .. } = prims;
    if V::RECV {
        gpu::sync_threads();
        unroll_peers!(NR, nr, i => {
            if cx.tid() == 0 && !cx.stopped {
                recv[i].post_head();
            }
            recv[i].advance();
        });
    }
    if V::SEND {
        unroll_peers!(NS, ns, i => send[i].advance());
    }
}

/// Up to 8 bytes of elements as a word, the first in the low bits; `n` may be more than fit.
///
/// # Safety
/// `min(n, 8 / size)` elements are readable at `p`.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub unsafe fn load_elements<T: Element>(p: *const T, n: usize) -> u64 {
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
pub unsafe fn store_elements<T: Element>(p: *mut T, word: u64, n: usize) {
    for i in 0..n.min(8 / size_of::<T>()) {
        // SAFETY: the caller's.
        unsafe {
            gpu::st_data(p.add(i), T::of_bits(word >> (8 * size_of::<T>() * i)), size_of::<T>());
        }
    }
}

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
use crate::gpu;
use crate::prims::conn_state::ConnState;
use crate::prims::context::KernelContext;
use crate::prims::lines::{
    LineFormat, PEERS, finish, load_elements, row_bytes, store_elements, wait_for_slots,
};
use crate::prims::primitives::{Prims, Protocol, Slice};
use crate::prims::rules::{Correct, Rules};
use crate::prims::verbs::Verb;
use crate::reduce::Reduction;

/// The LL protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Ll<L = Correct>(PhantomData<L>);

/// Bytes of data in a line.
const DATA: usize = LL_LINE / 2;
/// Every slot is filled whole once in this many steps, well below the 2^31 after which flags repeat.
const CLEAN: u64 = 1 << 30;

impl<L: Rules> Protocol for Ll<L> {
    const ID: ProtocolId = ProtocolId::Ll;
    const SLICES: usize = 1;
    const LINE: usize = LL_LINE;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes / 2
    }

    #[inline(always)]
    fn has_begun(conn: &ConnState) -> bool {
        if conn.wait_tail_first() {
            return conn.has_tail();
        }
        // SAFETY: a slot has a line.
        let halves = unsafe { gpu::ld_halves(conn.slot().cast_const().cast()) };
        (halves[0] >> 32) as u32 == flag(conn.step) && (halves[1] >> 32) as u32 == flag(conn.step)
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        wait_for_slots::<V, L, T, R, Self, NR, NS>(
            prims,
            #[inline(always)]
            |conn| {
                if is_cleaned(conn) {
                    return conn.slot_bytes();
                }
                // Computed again by all lanes where the lines are moved: not to be kept for that.
                gpu::opaque(slice.n).div_ceil(DATA / size_of::<T>()) * LL_LINE
            },
        );
        if !prims.cx.stopped {
            // SAFETY: `step`'s contract.
            unsafe { prims.lines::<V>(slice) }
            if V::SEND && !prims.cx.stopped {
                let lines = gpu::opaque(slice.n).div_ceil(DATA / size_of::<T>());
                unroll_peers!(NS, prims.nsend(), i => prims.clean(&prims.send[i], lines));
            }
        }
        finish::<V, T, R, Self, NR, NS>(prims);
    }
}

/// Whether `n` elements at `p` begin with a word that one access takes. Loaded one by one, each element would wait for the one before.
/// Lines of LL128 have no such case: their kernels have no registers left for it.
#[inline(always)]
fn is_word<T>(p: *const T, n: usize) -> bool {
    n >= DATA / size_of::<T>() && p.addr().is_multiple_of(DATA)
}

impl<L: Rules> LineFormat for Ll<L> {
    const DATA: usize = DATA;
    const BYTES: usize = LL_LINE;
    const LANES: usize = 1;
    const ALIGN: usize = DATA;
    const WIDE_ROWS: bool = true;

    type Part = u64;
    type Wide<X: Copy> = X;
    type Lane = ();
    /// The lines.
    type Watch = [[u64; 2]; PEERS];

    const EMPTY: u64 = 0;

    #[inline(always)]
    fn lane() {}

    #[inline(always)]
    fn offsets() -> (usize, usize) {
        (0, 0)
    }

    #[inline(always)]
    fn words(parts: &[u64]) -> &[u64] {
        parts
    }

    #[inline(always)]
    fn words_mut(parts: &mut [u64]) -> &mut [u64] {
        parts
    }

    #[inline(always)]
    fn splat<X: Copy>(value: X) -> X {
        value
    }

    #[inline(always)]
    fn wide_words<X: Copy>(parts: &mut [X]) -> &mut [X] {
        parts
    }

    #[inline(always)]
    unsafe fn load<T: Element, const WHOLE: bool>((): (), p: *const T, left: usize) -> u64 {
        // SAFETY: the caller's.
        unsafe {
            if WHOLE || is_word(p, left) {
                gpu::ld_data(p.cast::<u64>())
            } else {
                load_elements(p, left)
            }
        }
    }

    #[inline(always)]
    unsafe fn store<T: Element, const WHOLE: bool>((): (), p: *mut T, part: u64, left: usize) {
        // SAFETY: the caller's.
        unsafe {
            if WHOLE || is_word(p, left) {
                gpu::st_data(p.cast::<u64>(), part, size_of::<T>());
            } else {
                store_elements(p, part, left);
            }
        }
    }

    /// Both flags of each line are looked at or, against the rules, one.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    #[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
    unsafe fn receive<const N: usize>(
        cx: &mut KernelContext,
        conn: &ConnState,
        (): (),
        at: *mut u64,
        _: bool,
        parts: &mut [u64; N],
    ) -> bool {
        let flag = flag(conn.step);
        let mut lines = [[0; 2]; N];
        cx.wait(
            conn,
            WaitKind::LlFlag,
            conn.step,
            #[inline(always)]
            || {
                for row in 0..N {
                    let line = at.wrapping_byte_add(row * row_bytes::<Self>());
                    // SAFETY: the caller's.
                    lines[row] = unsafe { gpu::ld_halves(line) };
                }
                // All are looked at, so that no way out lies between two loads.
                let mut ready = true;
                for row in 0..N {
                    let right = |half: u64| (half >> 32) as u32 == flag;
                    ready &= right(lines[row][0]) & (right(lines[row][1]) | !L::CHECK_BOTH_FLAGS);
                }
                ready
            },
        );
        for row in 0..N {
            parts[row] = lines[row][0] & 0xffff_ffff | lines[row][1] << 32;
        }
        // Not what `wait` says: that no lane has stopped is known in the next round, too.
        !cx.stopped
    }

    #[inline(always)]
    fn watch((): (), _: usize, _: impl Fn(usize) -> *mut u64) -> Self::Watch {
        [[0; 2]; PEERS]
    }

    #[inline(always)]
    unsafe fn look(
        step: u64,
        n: usize,
        of: impl Fn(usize) -> *mut u64,
        lines: &mut Self::Watch,
        _: bool,
    ) -> bool {
        let flag = flag(step);
        // SAFETY: the caller's.
        unroll_8!(n, i => lines[i] = unsafe { gpu::ld_halves(of(i)) });
        // All are looked at, so that no way out lies between two loads.
        let mut ready = true;
        let right = |half: u64| (half >> 32) as u32 == flag;
        unroll_8!(n, i => {
            let [first, second] = lines[i];
            ready &= right(first) & (right(second) | !L::CHECK_BOTH_FLAGS);
        });
        ready
    }

    #[inline(always)]
    unsafe fn take(lines: &Self::Watch, i: usize, _: *mut u64) -> u64 {
        let [first, second] = lines[i];
        first & 0xffff_ffff | second << 32
    }

    #[inline(always)]
    unsafe fn has_arrived(step: u64, at: *mut u64) -> bool {
        // SAFETY: the caller's.
        let halves = unsafe { gpu::ld_halves(at) };
        halves.iter().all(|half| (half >> 32) as u32 == flag(step))
    }

    #[inline(always)]
    fn fills_slot(step: u64, slots: u32) -> bool {
        // Before, nothing but zeros can be left.
        step >= CLEAN && step % CLEAN < u64::from(slots)
    }

    #[inline(always)]
    unsafe fn send(step: u64, (): (), at: *mut u64, part: u64) {
        // SAFETY: the caller's.
        unsafe { write_line(at, part, step) }
    }
}

impl<T: Element, R: Reduction, L: Rules, const NR: usize, const NS: usize>
    Prims<T, R, Ll<L>, NR, NS>
{
    /// Once every [`CLEAN`] steps: the lines behind the slice get the step's flag too.
    #[inline(always)]
    fn clean(&self, conn: &ConnState, lines: usize) {
        if is_cleaned(conn) {
            let mut line = lines + self.cx.tid();
            while line < conn.slot_bytes() / LL_LINE {
                // SAFETY: the line is inside the slot, which the receiver has given back.
                unsafe {
                    write_line(conn.slot().wrapping_add(line * LL_LINE).cast(), 0, conn.step);
                };
                line += self.cx.lanes();
            }
        }
    }
}

/// Whether the current step fills its slot whole.
#[inline(always)]
fn is_cleaned(conn: &ConnState) -> bool {
    <Ll as LineFormat>::fills_slot(conn.step, conn.slots())
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

//! LL64: lines of 64 bytes, of which a release stores the last 8, and an acquire loads them.
//!
//! ```text
//! line (64 bytes):  | 7 words of data | flag |      flag = step + 1, 64 bits
//! ```
//!
//! A lane stores a line's data and then its flag, by a release; whoever loads the flag, by an acquire, and finds it right may load the
//! data. So a line needs no memory that keeps stores of 128 bytes whole, as LL128 does, and seven eighths of it are data, where LL has
//! half. The price is a release and an acquire for each line.
//!
//! Flags never repeat: 2^64 steps take longer than any machine lives. A line that a short slice leaves alone keeps an older flag, which
//! is smaller than any that is still to come.

use core::marker::PhantomData;

use ferroccl_device::abi::{ProtocolId, WaitKind};
use ferroccl_device::element::Element;
use ferroccl_device::prims::verbs::Verb;
use ferroccl_device::prims::{
    ConnState, Correct, Prims, Protocol, Rules, Slice, load_elements, store_elements,
};
use ferroccl_device::reduce::Reduction;
use ferroccl_device::{gpu, unroll_peers};

/// Which protocol it is: the first of other crates' in a communicator.
pub const LL64: ProtocolId = ProtocolId::own(0, "LL64");

/// Words of data in a line; the flag is behind them.
const WORDS: usize = 7;
/// Bytes of a line, and of its data.
const LINE: usize = 64;
const DATA: usize = 8 * WORDS;

/// The rules that keep LL64 right, as a type: a test breaks one, and sees the adversary notice. Nothing is left of them in the code.
pub trait Ll64Rules: Rules {
    /// The flag is stored behind its data.
    const FLAG_LAST: bool = true;
    /// It is stored by a release.
    const RELEASE: bool = true;
    /// It is loaded by an acquire.
    const ACQUIRE: bool = true;
}

impl Ll64Rules for Correct {}

/// The LL64 protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Ll64<L = Correct>(PhantomData<L>);

/// Lines of `n` elements.
fn lines<T>(n: usize) -> usize {
    n.div_ceil(DATA / size_of::<T>())
}

impl<L: Ll64Rules> Protocol for Ll64<L> {
    const ID: ProtocolId = LL64;
    const SLICES: usize = 1;
    const LINE: usize = LINE;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes / LINE * DATA
    }

    #[inline(always)]
    fn has_begun(conn: &ConnState) -> bool {
        if conn.wait_tail_first() {
            return conn.has_tail();
        }
        // SAFETY: a slot has a line.
        unsafe { has_flag::<L>(conn.slot(), conn.step) }
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        let lines = lines::<T>(slice.n);
        if prims.begin_step::<V, L>(|_| lines * LINE) {
            let cx = prims.context();
            let (mut line, lanes) = (cx.tid(), cx.lanes());
            // SAFETY: `step`'s contract; the lines are of the slice, which fits a slot.
            while line < lines && unsafe { move_line::<V, T, R, L, NR, NS>(prims, slice, line) } {
                line += lanes;
            }
        }
        prims.end_step::<V>();
    }
}

/// Moves one line of a slice; `false` after a stop.
///
/// # Safety
/// As [`Protocol::step`]; one lane calls it for a line that the slice has.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "iterators would put the arrays into memory")]
unsafe fn move_line<
    V: Verb,
    T: Element,
    R: Reduction,
    L: Ll64Rules,
    const NR: usize,
    const NS: usize,
>(
    prims: &mut Prims<T, R, Ll64<L>, NR, NS>,
    slice: Slice<T>,
    line: usize,
) -> bool {
    let in_word = 8 / size_of::<T>();
    let first = line * WORDS * in_word;
    // Elements from a word of the line on.
    let left = |word: usize| (slice.n - first).saturating_sub(word * in_word);
    let slots = prims.step_slots::<V>();
    let mut value = [0; WORDS];
    // SAFETY: the caller's. No address is computed behind the elements but by wrapping.
    unsafe {
        if V::INPUT {
            let input = slice.input.wrapping_add(first);
            for word in 0..WORDS {
                value[word] = load_elements(input.wrapping_add(word * in_word), left(word));
            }
            if V::OWN {
                prims.reducer().pre_words(&mut value);
            }
        }
        if V::RECV {
            unroll_peers!(NR, prims.nrecv(), i => {
                let at = slots.recv[i].wrapping_add(line * LINE);
                let conn = *prims.receiver(i);
                let ready = || has_flag::<L>(at, conn.step);
                if !prims.context().wait(&conn, WaitKind::OwnFlag, conn.step, ready) {
                    return false;
                }
                let mut received = [0; WORDS];
                for word in 0..WORDS {
                    received[word] = gpu::ld_data(at.cast::<u64>().wrapping_add(word));
                }
                if V::INPUT || i > 0 {
                    prims.reducer().combine_words(&mut value, &received);
                } else {
                    value = received;
                }
            });
        }
        if V::FINAL {
            prims.reducer().post_words(&mut value);
        }
        if V::SEND {
            unroll_peers!(NS, prims.nsend(), i => {
                let at = slots.send[i].wrapping_add(line * LINE).cast::<u64>();
                let flag = prims.sender(i).step + 1;
                if !L::FLAG_LAST {
                    set_flag::<L>(at, flag);
                }
                for word in 0..WORDS {
                    gpu::st_data(at.wrapping_add(word), value[word], 8);
                }
                if L::FLAG_LAST {
                    set_flag::<L>(at, flag);
                }
            });
        }
        if V::OUTPUT {
            let output = slice.output.wrapping_add(first);
            for word in 0..WORDS {
                store_elements(output.wrapping_add(word * in_word), value[word], left(word));
            }
        }
    }
    true
}

/// Says that a line has its data. The release pairs with the acquire in [`has_flag`].
///
/// # Safety
/// `at` is a line of a slot to send.
#[inline(always)]
unsafe fn set_flag<L: Ll64Rules>(at: *mut u64, flag: u64) {
    let at = at.wrapping_add(WORDS);
    // SAFETY: the caller's.
    unsafe { if L::RELEASE { gpu::st_release(at, flag) } else { gpu::st_relaxed(at, flag) } }
}

/// Whether the line at `at` is of a step. The acquire pairs with the release in [`set_flag`].
///
/// # Safety
/// `at` is a line of a slot to receive from.
#[inline(always)]
unsafe fn has_flag<L: Ll64Rules>(at: *const u8, step: u64) -> bool {
    let at = at.cast::<u64>().wrapping_add(WORDS);
    // SAFETY: the caller's.
    let flag = unsafe { if L::ACQUIRE { gpu::ld_acquire(at) } else { gpu::ld_relaxed(at) } };
    flag == step + 1
}

//! Stamped: plain data in a slot, and a stamp at the slot's beginning that says whose turn it is. No tail, no credit.
//!
//! ```text
//! slot:  | stamp | 0 | data ...      stamp = step + 1: the receiver's turn;  0: the sender's
//! ```
//!
//! The sender waits for a stamp of 0, fills the slot and stamps it with the step. The receiver waits for the step's stamp, reads the slot
//! and stamps it with 0. So a slot's own first word is all that the two ends say to each other: where Simple has a tail and a head beside
//! the slots, each polled in another place, here is one word in the memory of the receiver, which the sender polls across the link. That
//! is its price.
//!
//! Over a network the two ends have slots of their own, of which no stamp comes back: there the step's frame waits for credit.

use core::marker::PhantomData;

use ferroccl_device::abi::{ProtocolId, WaitKind};
use ferroccl_device::element::Element;
use ferroccl_device::prims::verbs::Verb;
use ferroccl_device::prims::{
    ConnState, Correct, Prims, Protocol, Rules, Slice, load_elements, store_elements,
};
use ferroccl_device::reduce::Reduction;
use ferroccl_device::{gpu, unroll_peers};

/// Which protocol it is: the second of other crates' in a communicator.
pub const STAMPED: ProtocolId = ProtocolId::own(1, "Stamped");

/// Bytes before the data, which stays aligned.
const HEADER: usize = 16;

/// The rules that keep it right.
pub trait StampRules: 'static {
    /// A sender waits for its turn.
    const WAIT_FOR_TURN: bool = true;
    /// A stamp is stored by a release, behind what it is about.
    const RELEASE: bool = true;
    /// A stamp is loaded by an acquire.
    const ACQUIRE: bool = true;
}

impl StampRules for Correct {}

/// The protocol, under the given rules.
#[derive(Clone, Copy, Debug)]
pub struct Stamped<L = Correct>(PhantomData<L>);

/// The step's frame without its credit: the stamp takes its place.
struct NoCredit;

impl Rules for NoCredit {
    const WAIT_FOR_CREDIT: bool = false;
}

impl<L: StampRules> Protocol for Stamped<L> {
    const ID: ProtocolId = STAMPED;
    const SLICES: usize = 1;

    #[inline(always)]
    fn capacity(slot_bytes: usize) -> usize {
        slot_bytes - HEADER
    }

    #[inline(always)]
    fn has_begun(conn: &ConnState) -> bool {
        if conn.wait_tail_first() {
            return conn.has_tail();
        }
        // SAFETY: a slot has a stamp.
        unsafe { stamp::<L>(conn.slot()) == conn.step + 1 }
    }

    #[inline(always)]
    unsafe fn step<V: Verb, T: Element, R: Reduction, const NR: usize, const NS: usize>(
        prims: &mut Prims<T, R, Self, NR, NS>,
        slice: Slice<T>,
    ) {
        let bytes = HEADER + slice.n.div_ceil(8 / size_of::<T>()) * 8;
        let mut go_on = prims.begin_step::<V, NoCredit>(|_| bytes);
        if go_on {
            let waits = prims.context().tid() == 0;
            // SAFETY: `step`'s contract; one lane.
            let ready = !waits || unsafe { wait_for_turns::<V, T, R, L, NR, NS>(prims) };
            go_on = !gpu::sync_threads_or(!ready);
            prims.context().stopped |= !go_on;
        }
        if go_on {
            let cx = prims.context();
            let (mut word, lanes) = (cx.tid(), cx.lanes());
            let words = slice.n.div_ceil(8 / size_of::<T>());
            while word < words {
                // SAFETY: `step`'s contract; the words are of the slice, which fits a slot.
                unsafe { move_word::<V, T, R, L, NR, NS>(prims, slice, word) };
                word += lanes;
            }
            // All lanes have read and written before one stamps.
            gpu::sync_threads();
            if prims.context().tid() == 0 {
                // SAFETY: the slots are this block's until they are stamped.
                unsafe { pass_turns::<V, T, R, L, NR, NS>(prims) };
            }
        }
        prims.end_step::<V>();
    }
}

/// Waits until the slots are this block's; `false` after a stop.
///
/// # Safety
/// As [`Protocol::step`]; one lane calls it.
#[inline(always)]
unsafe fn wait_for_turns<
    V: Verb,
    T: Element,
    R: Reduction,
    L: StampRules,
    const NR: usize,
    const NS: usize,
>(
    prims: &mut Prims<T, R, Stamped<L>, NR, NS>,
) -> bool {
    let slots = prims.step_slots::<V>();
    // SAFETY: the slots are the step's.
    unsafe {
        if V::SEND {
            unroll_peers!(NS, prims.nsend(), i => {
                let conn = *prims.sender(i);
                let free = || stamp::<L>(slots.send[i]) == 0;
                let waits = L::WAIT_FOR_TURN && !conn.has_proxy();
                if waits && !prims.context().wait(&conn, WaitKind::Credit, conn.step, free) {
                    return false;
                }
            });
        }
        if V::RECV {
            unroll_peers!(NR, prims.nrecv(), i => {
                let conn = *prims.receiver(i);
                let ready = || stamp::<L>(slots.recv[i]) == conn.step + 1;
                if !prims.context().wait(&conn, WaitKind::OwnFlag, conn.step, ready) {
                    return false;
                }
            });
        }
    }
    true
}

/// Gives the received slots back, and the filled ones to their receivers.
///
/// # Safety
/// As [`wait_for_turns`], when all lanes have read and written.
#[inline(always)]
unsafe fn pass_turns<
    V: Verb,
    T: Element,
    R: Reduction,
    L: StampRules,
    const NR: usize,
    const NS: usize,
>(
    prims: &mut Prims<T, R, Stamped<L>, NR, NS>,
) {
    let slots = prims.step_slots::<V>();
    // SAFETY: the slots are the step's.
    unsafe {
        if V::RECV {
            unroll_peers!(NR, prims.nrecv(), i => {
                set_stamp::<L>(slots.recv[i], 0);
            });
        }
        if V::SEND {
            unroll_peers!(NS, prims.nsend(), i => {
                set_stamp::<L>(slots.send[i], prims.sender(i).step + 1);
            });
        }
    }
}

/// Moves 8 bytes of a slice.
///
/// # Safety
/// As [`Protocol::step`]; one lane calls it for a word that the slice has, in slots that are this block's.
#[inline(always)]
unsafe fn move_word<
    V: Verb,
    T: Element,
    R: Reduction,
    L: StampRules,
    const NR: usize,
    const NS: usize,
>(
    prims: &mut Prims<T, R, Stamped<L>, NR, NS>,
    slice: Slice<T>,
    word: usize,
) {
    let first = word * (8 / size_of::<T>());
    let left = slice.n - first;
    let slots = prims.step_slots::<V>();
    let at = |slot: *mut u8| slot.wrapping_add(HEADER).cast::<u64>().wrapping_add(word);
    let mut value = [0; 1];
    // SAFETY: the caller's.
    unsafe {
        if V::INPUT {
            value[0] = load_elements(slice.input.wrapping_add(first), left);
            if V::OWN {
                prims.reducer().pre_words(&mut value);
            }
        }
        if V::RECV {
            unroll_peers!(NR, prims.nrecv(), i => {
                let received = [gpu::ld_data(at(slots.recv[i]))];
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
                gpu::st_data(at(slots.send[i]), value[0], 8);
            });
        }
        if V::OUTPUT {
            store_elements(slice.output.wrapping_add(first), value[0], left);
        }
    }
}

/// A slot's stamp. The acquire pairs with the release in [`set_stamp`].
///
/// # Safety
/// `slot` is one of a connection.
#[inline(always)]
unsafe fn stamp<L: StampRules>(slot: *const u8) -> u64 {
    // SAFETY: the caller's.
    unsafe { if L::ACQUIRE { gpu::ld_acquire(slot.cast()) } else { gpu::ld_relaxed(slot.cast()) } }
}

/// Stamps a slot, behind all that this lane and, by the barrier before, the block's others have done with it. The release pairs with the
/// acquire in [`stamp`].
///
/// # Safety
/// As there; the slot is this block's.
#[inline(always)]
unsafe fn set_stamp<L: StampRules>(slot: *mut u8, stamp: u64) {
    let at = slot.cast();
    // SAFETY: the caller's.
    unsafe { if L::RELEASE { gpu::st_release(at, stamp) } else { gpu::st_relaxed(at, stamp) } }
}

//! The mesh: every rank gives lines to every other at once, and waits for the lines of every other.
//!
//! ```text
//! a step:   send this rank's lines to all others | receive the lines of all others
//! ```
//!
//! Memory is in [`MeshLinks`]. A rank writes lines into the memory of the others and polls its own: no load crosses a link, and
//! nothing is fenced. On CPU devices it writes what all others get once, into memory that all of them poll. All lanes work on all
//! ranks, each lane on its units of a slot, the same ones in each step.
//!
//! Every rank gives all others the digest of its call as well, and waits for theirs before the call ends: so what comes out is of
//! ranks that are all in the same call.
//!
//! # Why no slot is written before it has been read
//!
//! There is no credit: what a rank receives tells it what the sender has read. A block passes a barrier before it sends its own
//! values, so who has received any unit of them from a rank knows that the rank's block has ended all that was before.
//!
//! * One-shot: in step `s` a block sends its values, and receives those of all others. Who has received a unit of step `s` knows
//!   that its sender has read all of step `s - 1`, so step `s + 1` could be written over that. Two slots are enough.
//! * Two-shot: round `i` has two steps, `2 i` for values and `2 i + 1` for results. A block does, with a barrier before each line:
//!
//!   ```text
//!   send the values of round i | receive the results of round i - 1 | combine the values of round i, send the results
//!   ```
//!
//!   Who has received a value of round `i` knows that its sender has received the results of round `i - 2`, and the values of round
//!   `i - 1`. The results of round `i` are sent by who has received the values of all: they may be written over those of round
//!   `i - 2`, four steps before. The values of round `i + 1` are sent when values of round `i` have been received: they may be
//!   written over those of round `i - 1`, four steps before.
//! * The next call: when a call ends with step `e`, all values of its last round have been received, so the values of the round
//!   before it have been read, in step `e - 3` at the latest. The next call's first step is written over that. What it writes later
//!   it writes when it has received something of the same call, and so knows that the rank has ended the call before, because a
//!   rank's kernels run one after the other.
//!
//! * Digests: call `n` uses line `n % 2`. A rank that begins call `n` has received something of call `n - 1` from every other, which
//!   so has ended call `n - 2`, and read its digest.
//!
//! So in each step each rank gets a unit at least from every other, also where there is no data. In all of this loads are over
//! before what is stored afterwards: lanes look at flags in between, and a barrier is passed.

mod barriers;
mod chunks;
mod digests;
mod receive;
mod side;
mod units;

pub(super) use chunks::Chunk;
pub use side::MeshSide;
use units::{Tasks, Units};

use crate::abi::{ChannelWork, MESH_SLOTS, ProtocolId, Work};
use crate::element::Element;
use crate::gpu::{self, WARP};
use crate::peers::Among;
use crate::prims::{KernelContext, LineFormat};
use crate::reduce::{Reducer, Reduction};

/// An algorithm over the mesh: a kernel for each protocol of lines.
pub trait MeshCode {
    /// Threads of a block at most; see [`KernelCode::THREADS`](super::KernelCode::THREADS).
    const THREADS: u32 = 512;

    /// The kernel. All blocks of a rank run it; block = channel. [`Work::extra`] is the address of channel 0's
    /// [`MeshLinks`](crate::abi::MeshLinks).
    ///
    /// # Safety
    /// As [`KernelCode::run`](super::KernelCode::run); the communicator has several ranks, and all share a mesh.
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: LineFormat>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut mesh = Mesh::<T, R, P>::open(KernelContext::new(work, 1));
            // All lanes find the same.
            if !mesh.side.has_failed() {
                Self::run_block(&mut mesh);
            }
            mesh.close();
        }
    }

    /// What a block does.
    ///
    /// # Safety
    /// As [`MeshCode::run`]; all lanes of the block call it.
    unsafe fn run_block<T: Element, R: Reduction, P: LineFormat>(mesh: &mut Mesh<T, R, P>);
}

/// A block's side of the mesh during one call.
#[derive(Debug)]
pub struct Mesh<T: Element, R: Reduction, P: LineFormat> {
    side: MeshSide,
    /// The next step.
    step: u64,
    reducer: Reducer<T, R>,
    format: core::marker::PhantomData<P>,
}

/// Blocks of elements, one for each rank: rank `i`'s begins `i * stride` elements behind `first`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks<P> {
    pub first: P,
    pub stride: usize,
}

impl<T: Element, R: Reduction, P: LineFormat> Mesh<T, R, P> {
    /// Elements of a unit.
    const PER_UNIT: usize = P::DATA / size_of::<T>();

    /// Opens the mesh, and tells the others which call this is.
    ///
    /// # Safety
    /// As [`MeshCode::run`]. All lanes call it.
    #[inline(always)]
    unsafe fn open(cx: KernelContext) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let side = MeshSide::open(cx);
            side.tell_digest();
            let (step, reducer) = (side.step(), Reducer::of(cx.args()));
            Mesh { side, step, reducer, format: core::marker::PhantomData }
        }
    }

    /// Compares the call with those of all others, and keeps the step for the next call.
    #[inline(always)]
    fn close(mut self) {
        let counters = self.side.counters();
        // The last warp, while others wait for lines.
        self.side.compare_digests();
        self.side.close(self.step, counters);
    }

    /// This channel's part of the call.
    #[inline(always)]
    pub(super) fn part(&self) -> ChannelWork {
        self.side.cx.part()
    }

    /// The call's arguments.
    #[inline(always)]
    pub(super) fn args(&self) -> crate::args::KernelArgs {
        self.side.cx.args()
    }

    /// This rank.
    #[inline(always)]
    pub(super) fn rank(&self) -> usize {
        self.side.rank
    }

    /// Ranks.
    #[inline(always)]
    pub(super) fn nranks(&self) -> usize {
        self.side.nranks
    }

    /// The number of the next step.
    #[inline(always)]
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    /// The number of the first of the next `n` steps. All lanes call it.
    #[inline(always)]
    pub(super) fn take_steps(&mut self, n: u64) -> u64 {
        let step = self.step;
        self.step += n;
        step
    }

    /// Elements of the largest chunk that a slot carries.
    #[inline(always)]
    pub(super) fn chunk(&self) -> usize {
        P::capacity(self.slot_bytes()) / size_of::<T>()
    }

    /// Units of a chunk: one at least, so that whoever receives a step knows of every other rank.
    #[inline(always)]
    pub(super) fn units(n: usize) -> usize {
        n.div_ceil(Self::PER_UNIT).max(1)
    }

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        // SAFETY: the contract of `open`.
        unsafe { (*self.side.links).slot_bytes[Self::buffer()] as usize }
    }

    /// Which of the buffers the protocol has.
    #[inline(always)]
    const fn buffer() -> usize {
        match P::ID {
            ProtocolId::Ll => 0,
            ProtocolId::Ll128 | ProtocolId::Simple | ProtocolId::Own(_) => 1,
        }
    }

    /// Where the slot of a step is, behind the address of a table.
    #[inline(always)]
    fn slot_offset(&self, step: u64) -> usize {
        let mut at = (step % u64::from(MESH_SLOTS)) as usize * self.slot_bytes();
        if Self::buffer() > 0 {
            // SAFETY: the contract of `open`.
            at += MESH_SLOTS as usize * unsafe { (*self.side.links).slot_bytes[0] as usize };
        }
        at + P::offsets().1
    }

    /// Where this lane's part of unit 0 of a slot is, in the memory of the rank that is `by + 1` behind this one.
    #[inline(always)]
    fn to(&self, by: usize, offset: usize) -> *mut u8 {
        self.side.to(by, offset)
    }

    /// Where this lane's part of unit 0 of a rank's slot is: of what that rank has for this one alone, or with `ALL` for all.
    #[inline(always)]
    fn from<const ALL: bool>(&self, rank: usize, offset: usize) -> *mut u8 {
        if ALL { self.side.of_all(rank, offset) } else { self.side.from(rank, offset) }
    }

    /// This warp's units of a slot that has so many.
    #[inline(always)]
    fn units_of(&self, units: usize) -> Units {
        let row = (WARP as usize) / P::LANES;
        let in_row = gpu::lane_id() as usize / P::LANES;
        let (warp, warps) =
            (self.side.cx.tid() / WARP as usize, self.side.cx.lanes() / WARP as usize);
        // Where lanes vote, all lanes of the warp come along.
        let past = if P::LANES > 1 { units + in_row } else { units };
        Units { next: warp * row + in_row, units, past, by: warps * row }
    }

    /// This lane's part of a unit of `n` elements at `data`.
    ///
    /// # Safety
    /// `n` elements are readable.
    #[inline(always)]
    unsafe fn load(lane: P::Lane, data: *const T, n: usize, unit: usize, mine: bool) -> P::Part {
        if !mine {
            return P::EMPTY;
        }
        let at = data.wrapping_byte_add(unit * P::DATA + P::offsets().0);
        let left = n.saturating_sub(unit * Self::PER_UNIT);
        // SAFETY: the caller's.
        unsafe {
            if P::LANES == 1 && left >= Self::PER_UNIT && is_aligned::<T, P>(at) {
                P::load::<T, true>(lane, at, left)
            } else {
                P::load::<T, false>(lane, at, left)
            }
        }
    }

    /// The reverse of [`Mesh::load`].
    ///
    /// # Safety
    /// `n` elements are writable.
    #[inline(always)]
    unsafe fn store(lane: P::Lane, data: *mut T, n: usize, unit: usize, part: P::Part) {
        let at = data.wrapping_byte_add(unit * P::DATA + P::offsets().0);
        let left = n.saturating_sub(unit * Self::PER_UNIT);
        // SAFETY: the caller's.
        unsafe {
            if P::LANES == 1 && left >= Self::PER_UNIT && is_aligned::<T, P>(at.cast_const()) {
                P::store::<T, true>(lane, at, part, left);
            } else {
                P::store::<T, false>(lane, at, part, left);
            }
        }
    }

    /// Units to send of a slot that has so many with data.
    #[inline(always)]
    fn to_send(&self, units: usize, step: u64) -> usize {
        if P::fills_slot(step, MESH_SLOTS) { self.slot_bytes() / P::BYTES } else { units }
    }

    /// This warp's rows of a slot of so many units, each for each of the others, which come in turn.
    #[inline(always)]
    fn tasks_of(&self, units: usize) -> Tasks {
        let row = (WARP as usize) / P::LANES;
        let (warp, warps) =
            (self.side.cx.tid() / WARP as usize, self.side.cx.lanes() / WARP as usize);
        let others = self.side.nranks - 1;
        Tasks {
            unit: warp / others * row + gpu::lane_id() as usize / P::LANES,
            peer: warp % others,
            by: (warps / others * row, warps % others),
            row,
            others,
            units,
            past: if P::LANES > 1 { units.next_multiple_of(row) } else { units },
        }
    }

    /// Sends units of `input`, this rank's own values, to all others: the same `n` elements to each. Each lane has loaded its units
    /// before [`Mesh::reduce`] stores there, as both give it the same.
    ///
    /// # Safety
    /// All lanes call it with equal arguments, behind a barrier; the elements are readable, and `units` fit a slot.
    #[inline(always)]
    pub(super) unsafe fn spread(&mut self, step: u64, input: *const T, n: usize, units: usize) {
        let (lane, offset) = (P::lane(), self.slot_offset(step));
        let mut to_do = self.units_of(self.to_send(units, step));
        while let Some((unit, mine)) = to_do.next() {
            // SAFETY: the caller's.
            unsafe {
                let mut part = Self::load(lane, input, n, unit, mine);
                self.reducer.pre_words(P::words_mut(core::slice::from_mut(&mut part)));
                self.send_all(step, lane, offset, (unit, mine), part);
            }
        }
    }

    /// Sends units of `input`, this rank's own values: block `i` to rank `i`, `n(i)` elements.
    ///
    /// # Safety
    /// All lanes call it with equal arguments, behind a barrier; the elements are readable, and `units` fit a slot.
    #[inline(always)]
    pub(super) unsafe fn scatter(
        &mut self,
        step: u64,
        input: Blocks<*const T>,
        n: impl Fn(usize) -> usize,
        units: usize,
    ) {
        let (lane, offset) = (P::lane(), self.slot_offset(step));
        let mut tasks = self.tasks_of(self.to_send(units, step));
        while let Some((unit, by, mine)) = tasks.next() {
            // SAFETY: the caller's.
            unsafe {
                let to = self.to(by, offset);
                let peer = self.side.behind(by);
                let data = input.first.wrapping_add(peer * input.stride);
                let mut part = Self::load(lane, data, n(peer), unit, mine);
                self.reducer.pre_words(P::words_mut(core::slice::from_mut(&mut part)));
                self.send(step, lane, to, (unit, mine), part);
            }
        }
    }

    /// Stores this lane's part of a unit in a slot, whose unit 0 it has at `to`.
    ///
    /// # Safety
    /// All lanes of the warp call it, for a slot that has been read.
    #[inline(always)]
    unsafe fn send(
        &self,
        step: u64,
        lane: P::Lane,
        to: *mut u8,
        (unit, mine): (usize, bool),
        part: P::Part,
    ) {
        if P::LANES > 1 {
            // Lanes that took different branches so far store together from here on: a line is whole only if it is one
            // store of the warp.
            gpu::sync_warp();
        }
        if mine {
            // SAFETY: the caller's.
            unsafe { P::send(step, lane, to.wrapping_add(unit * P::BYTES).cast(), part) }
        }
    }

    /// Stores this lane's part of a unit in all others' slots of a step, which are at `offset`.
    ///
    /// # Safety
    /// As [`Mesh::send`].
    #[inline(always)]
    unsafe fn send_all(
        &self,
        step: u64,
        lane: P::Lane,
        offset: usize,
        unit: (usize, bool),
        part: P::Part,
    ) {
        // SAFETY: the caller's.
        self.side.for_all((0, 1), offset, |to| unsafe { self.send(step, lane, to, unit, part) });
    }

    /// Sends units behind those of a step without data to all others, if it has to fill its slots.
    #[inline(always)]
    fn fill(&self, step: u64, units: usize) {
        if !P::fills_slot(step, MESH_SLOTS) {
            return;
        }
        let (lane, offset) = (P::lane(), self.slot_offset(step));
        let mut to_do = self.units_of(self.to_send(units, step));
        while let Some((unit, mine)) = to_do.next() {
            // SAFETY: the unit is inside the slot, which has been read.
            unsafe { self.send_all(step, lane, offset, (unit, mine && unit >= units), P::EMPTY) };
        }
    }

    /// Copies `n` elements within the rank, unless they are there already.
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are readable and writable, and the two do not overlap otherwise.
    #[inline(always)]
    pub(super) unsafe fn keep(&self, from: *const T, to: *mut T, n: usize) {
        if !core::ptr::eq(from, to) {
            // SAFETY: the caller's; no barrier is needed, as nobody reads what is written.
            unsafe { super::local_copy::<T, R, true>(&self.side.cx, from, to, n) }
        }
    }

    /// A barrier, which lies before each scatter of a call but the first; whether the call goes on.
    #[inline(always)]
    pub(super) fn barrier(&mut self) -> bool {
        self.side.barrier()
    }
}

/// Whether a unit at `at` can be moved at once.
#[inline(always)]
fn is_aligned<T, P: LineFormat>(at: *const T) -> bool {
    gpu::UNALIGNED_PACKS || at.addr().is_multiple_of(P::ALIGN)
}

//! The mesh: every rank gives values to every other at once, and waits for the values of every other.
//!
//! ```text
//! a step:   send this rank's values to all others | receive the values of all others
//! ```
//!
//! Memory is in [`MeshLinks`](crate::abi::MeshLinks). A rank writes into the memory of the others and polls its own: no load crosses a
//! link. On CPU devices it writes what all others get once, into memory that all of them poll.
//!
//! A [`MeshProtocol`] says how values go. Lines ([`lines`]) have flags among the data, and nothing is fenced; all lanes work on all
//! ranks, each lane on its units of a slot, the same ones in each step. Plain data ([`plain`]) has a tail for each slot, which is
//! published when the data is there.
//!
//! Every rank gives all others the digest of its call as well, and waits for theirs before the call ends: so what comes out is of
//! ranks that are all in the same call. With plain data it lies behind the tail of each step, on the same cache line; lines have no room for it.
//!
//! # Why no slot is written before it has been read
//!
//! There is no credit: what a rank receives tells it what the sender has read. A block passes a barrier before it sends its own
//! values, or publishes them, so who has received any of them from a rank knows that the rank's block has ended all that was before.
//!
//! * One-shot: in step `s` a block sends its values, and receives those of all others. Who has received any of step `s` knows
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
//! * Digests beside lines of data: call `n` uses line `n % 2`. A rank that begins call `n` has received something of call `n - 1` from every other, which
//!   so has ended call `n - 2`, and read its digest.
//!
//! So in each step each rank gets a unit or a tail from every other, also where there is no data. In all of this loads are over
//! before what is stored afterwards: lanes look at flags in between, or a tail is published and waited for, and a barrier is passed.

mod barriers;
mod chunks;
mod digests;
mod lines;
mod plain;
mod receive;
mod side;
mod units;

pub(super) use chunks::Chunk;
pub use side::MeshSide;

use crate::abi::{ChannelWork, MESH_SLOTS, Work};
use crate::element::Element;
use crate::prims::{KernelContext, Protocol};
use crate::reduce::{Reducer, Reduction};

/// An algorithm over the mesh: a kernel for each protocol.
pub trait MeshCode {
    /// Threads of a block at most; see [`KernelCode::THREADS`](super::KernelCode::THREADS).
    const THREADS: u32 = 512;

    /// The kernel. All blocks of a rank run it; block = channel. [`Work::extra`] is the address of channel 0's
    /// [`MeshLinks`](crate::abi::MeshLinks).
    ///
    /// # Safety
    /// As [`KernelCode::run`](super::KernelCode::run); the communicator has several ranks, and all share a mesh.
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: MeshProtocol>(work: *const Work) {
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
    unsafe fn run_block<T: Element, R: Reduction, P: MeshProtocol>(mesh: &mut Mesh<T, R, P>);
}

/// How values go over the mesh: as lines with flags, in every [`LineFormat`](crate::prims::LineFormat), or as plain data behind a tail,
/// in [`Simple`](crate::prims::Simple).
pub trait MeshProtocol: Protocol {
    /// The protocol's place in [`MeshLinks::slot_bytes`](crate::abi::MeshLinks::slot_bytes).
    const BUFFER: usize;

    /// Whether each step says which call it is of. Otherwise [`Mesh`] tells it by a line of its own.
    const TELLS_CALL: bool;

    /// Bytes of data that a slot carries.
    fn mesh_capacity(slot_bytes: usize) -> usize;

    /// [`Mesh::spread`].
    ///
    /// # Safety
    /// As there.
    unsafe fn spread<T: Element, R: Reduction>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        input: *const T,
        n: usize,
    );

    /// [`Mesh::scatter`].
    ///
    /// # Safety
    /// As there.
    unsafe fn scatter<T: Element, R: Reduction>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        input: RankBlocks<*const T>,
        n: impl Fn(usize) -> usize,
        most: usize,
    );

    /// [`Mesh::reduce`].
    ///
    /// # Safety
    /// As there.
    unsafe fn reduce<T: Element, R: Reduction, const ALL: bool, const SEND: bool>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        places: (*const T, *mut T),
        n: usize,
        most: usize,
    );

    /// [`Mesh::gather`].
    ///
    /// # Safety
    /// As there.
    unsafe fn gather<T: Element, R: Reduction, const ALL: bool>(
        mesh: &mut Mesh<T, R, Self>,
        step: u64,
        output: RankBlocks<*mut T>,
        n: impl Fn(usize) -> usize,
        most: usize,
    );
}

/// A block's side of the mesh during one call.
#[derive(Debug)]
pub struct Mesh<T: Element, R: Reduction, P: MeshProtocol> {
    side: MeshSide,
    /// The next step.
    step: u64,
    reducer: Reducer<T, R>,
    format: core::marker::PhantomData<P>,
}

/// Blocks of elements, one for each rank: rank `i`'s begins `i * stride` elements behind `first`.
#[derive(Clone, Copy, Debug)]
pub struct RankBlocks<P> {
    /// Where rank 0's begins.
    pub first: P,
    /// Elements from one to the next.
    pub stride: usize,
}

impl<T: Element, R: Reduction, P: MeshProtocol> Mesh<T, R, P> {
    /// Opens the mesh, and tells the others which call this is.
    ///
    /// # Safety
    /// As [`MeshCode::run`]. All lanes call it.
    #[inline(always)]
    unsafe fn open(cx: KernelContext) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let side = MeshSide::open(cx);
            if !P::TELLS_CALL {
                side.tell_digest();
            }
            let (step, reducer) = (side.step(), Reducer::of(cx.args()));
            Mesh { side, step, reducer, format: core::marker::PhantomData }
        }
    }

    /// Compares the call with those of all others, and keeps the step for the next call.
    #[inline(always)]
    fn close(mut self) {
        let counters = self.side.counters();
        if !P::TELLS_CALL {
            // The last warp, while others wait for lines.
            self.side.compare_digests();
        }
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
        P::mesh_capacity(self.slot_bytes()) / size_of::<T>()
    }

    #[inline(always)]
    fn slot_bytes(&self) -> usize {
        // SAFETY: the contract of `open`.
        unsafe { (*self.side.links).slot_bytes[P::BUFFER] as usize }
    }

    /// Where the slot of a step is, behind the address of a table.
    #[inline(always)]
    fn slot(&self, step: u64) -> usize {
        let mut at = (step % u64::from(MESH_SLOTS)) as usize * self.slot_bytes();
        let mut buffer = 0;
        while buffer < P::BUFFER {
            // SAFETY: the contract of `open`.
            at += MESH_SLOTS as usize * unsafe { (*self.side.links).slot_bytes[buffer] as usize };
            buffer += 1;
        }
        at
    }

    /// Sends `input`, this rank's own values, to all others: the same `n` elements to each. They have been loaded before
    /// [`Mesh::reduce`] stores there.
    ///
    /// # Safety
    /// All lanes call it with equal arguments, behind a barrier; the elements are readable, and fit a slot.
    #[inline(always)]
    pub(super) unsafe fn spread(&mut self, step: u64, input: *const T, n: usize) {
        // SAFETY: the caller's.
        unsafe { P::spread(self, step, input, n) }
    }

    /// Sends blocks of `input`, this rank's own values: block `i` to rank `i`, `n(i)` elements, `most` at most.
    ///
    /// # Safety
    /// All lanes call it with equal arguments, behind a barrier; the elements are readable, and `most` fit a slot.
    #[inline(always)]
    pub(super) unsafe fn scatter(
        &mut self,
        step: u64,
        input: RankBlocks<*const T>,
        n: impl Fn(usize) -> usize,
        most: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { P::scatter(self, step, input, n, most) }
    }

    /// Combines what all ranks have sent in a step with the own value, in the order of the ranks, into `output`: `n` elements. With
    /// `ALL` they have [spread](Mesh::spread) it, otherwise [scattered](Mesh::scatter). With `SEND` the result goes to all others in
    /// the next step. `most` is what it was for the senders.
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are readable and writable.
    #[inline(always)]
    pub(super) unsafe fn reduce<const ALL: bool, const SEND: bool>(
        &mut self,
        step: u64,
        places: (*const T, *mut T),
        n: usize,
        most: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { P::reduce::<T, R, ALL, SEND>(self, step, places, n, most) }
    }

    /// Stores what all others have sent in a step: block `i` of `output` is of rank `i`, `n(i)` elements. `ALL` and `most` are as
    /// for [`Mesh::reduce`].
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are writable.
    #[inline(always)]
    pub(super) unsafe fn gather<const ALL: bool>(
        &mut self,
        step: u64,
        output: RankBlocks<*mut T>,
        n: impl Fn(usize) -> usize,
        most: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { P::gather::<T, R, ALL>(self, step, output, n, most) }
    }

    /// Copies `n` elements within the rank, unless they are there already.
    ///
    /// # Safety
    /// All lanes call it with equal arguments; the elements are readable and writable, and the two do not overlap otherwise.
    #[inline(always)]
    pub(super) unsafe fn keep(&self, from: *const T, to: *mut T, n: usize) {
        if !core::ptr::eq(from, to) {
            // SAFETY: the caller's; no barrier is needed, as nobody reads what is written.
            unsafe { super::local_copy::<T, R, true, true>(&self.side.cx, from, to, n) }
        }
    }

    /// A barrier, which lies before each scatter of a call but the first; whether the call goes on.
    #[inline(always)]
    pub(super) fn barrier(&mut self) -> bool {
        self.side.barrier()
    }
}

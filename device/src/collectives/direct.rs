//! Direct collectives: on buffers of which every rank has mapped the others' (windows).
//!
//! ```text
//! all-reduce      rank r: read part r of all inputs, combine, write the result to part r of all outputs
//! reduce-scatter  rank r: read block r of all inputs, combine, keep it
//! all-gather      rank r: write its block to block r of all outputs
//! ```
//!
//! Nothing passes through slots, and nothing is copied twice. Before and behind lies a barrier of all ranks
//! ([`MeshSide::begin_together`], [`MeshSide::end_together`]): a rank's buffers belong to all from its kernel's beginning to its end.
//! What has been read is combined in the order of the ranks, so all ranks get the same bits, and the same as along a
//! [`Chain`](super::Chain). An all-reduce may be in place: a rank alone reads a part of the inputs, and writes it when it has.
//!
//! NCCL's kernels of this kind are `AllReduce_RSxLD_AGxST`, `ReduceScatter_LD` and `AllGather_ST` (`src/device/symmetric`), also for
//! memory that is registered as a window.

use crate::abi::{WindowPeers, Work};
use crate::args::KernelArgs;
use crate::collectives::mesh::MeshSide;
use crate::element::{Element, each};
use crate::gpu::{self, PACK_BYTES, UNALIGNED_PACKS, UNROLL, WARP};
use crate::prims::{KernelContext, Protocol};
use crate::reduce::{Reducer, Reduction};

/// Packs that a lane has in flight, of all ranks together.
const BATCH: usize = 8;
/// Packs of a rank that a lane has in flight, where there are enough.
const DEPTH: usize = 2;

/// A direct collective: one kernel for each reduction and type. It moves plain data; the protocol's type is of no use to it.
pub trait DirectCode {
    /// Threads of a block at most; see [`KernelCode::THREADS`](super::KernelCode::THREADS).
    const THREADS: u32 = 512;

    /// The kernel. All blocks of a rank run it; block = channel. [`Work::extra`] is the address of channel 0's
    /// [`MeshLinks`](crate::abi::MeshLinks); [`Work::input_peers`] and [`Work::output_peers`] are there as
    /// [`DirectCode::run_block`] needs them.
    ///
    /// # Safety
    /// As [`KernelCode::run`](super::KernelCode::run); the communicator has several ranks, and all share a mesh.
    #[inline(always)]
    unsafe fn run<T: Element, R: Reduction, P: Protocol>(work: *const Work) {
        // SAFETY: the caller's.
        unsafe {
            let mut side = MeshSide::open(KernelContext::new(work, 1));
            let (step, counters) = (side.step(), side.counters());
            // All lanes find the same.
            if !side.has_failed() && side.begin_together() {
                Self::run_block::<T, R>(&side);
                side.end_together();
            }
            side.close(step, counters);
        }
    }

    /// What a block does between the barriers.
    ///
    /// # Safety
    /// As [`DirectCode::run`]; all lanes of the block call it.
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide);
}

/// Where a buffer of this rank is in the others' memory.
#[derive(Clone, Copy)]
pub(super) struct Peers(*const WindowPeers);

impl Peers {
    /// Those of a call's output.
    #[inline(always)]
    pub(super) fn of_output(args: KernelArgs) -> Self {
        Peers(args.output_peers())
    }

    /// # Safety
    /// The table is there, and `rank` is in it.
    #[inline(always)]
    pub(super) unsafe fn of<T>(self, rank: usize, own: *mut T) -> *mut T {
        // SAFETY: the caller's; the table follows.
        unsafe { own.wrapping_byte_add(*self.0.add(1).cast::<usize>().add(rank)) }
    }

    /// How the others' buffers are aligned to this rank's.
    ///
    /// # Safety
    /// As [`Peers::of`].
    #[inline(always)]
    pub(super) unsafe fn bits(self) -> usize {
        // SAFETY: the caller's.
        unsafe { (*self.0).bits as usize }
    }
}

/// All-reduce. Both buffers are in windows.
#[derive(Clone, Copy, Debug)]
pub struct AllReduceDirect;

impl DirectCode for AllReduceDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let args = side.cx.args();
        let (start, n) = part_of_rank::<T>(side);
        let input = args.input::<T>().wrapping_add(start);
        let output = args.output::<T>().wrapping_add(start);
        // SAFETY: the caller's; the part is inside the buffers, and another rank's is another one.
        unsafe { reduce::<T, R, true>(side, args, (input, output), n) }
    }
}

/// Of the block's part of an all-reduce, what this rank combines: its first element, and how many.
#[inline(always)]
pub(super) fn part_of_rank<T: Element>(side: &MeshSide) -> (usize, usize) {
    let part = side.cx.part();
    let count = part.count as usize;
    // Parts begin on a line of a well-aligned buffer.
    let line = 128 / size_of::<T>();
    let each = count.div_ceil(side.nranks).next_multiple_of(line);
    let from = (each * side.rank).min(count);
    (part.offset as usize + from, each.min(count - from))
}

/// Of a reduce-scatter, the block's part of this rank's block of the input, where the result of it goes, and its elements.
#[inline(always)]
pub(super) fn part_of_input_block<T: Element>(side: &MeshSide) -> ((*const T, *mut T), usize) {
    let (part, args) = (side.cx.part(), side.cx.args());
    let start = part.offset as usize;
    let input = args.input::<T>().wrapping_add(side.rank * args.count() as usize + start);
    ((input, args.output::<T>().wrapping_add(start)), part.count as usize)
}

/// Of an all-gather, the block's part of the input, where that is in this rank's block of the output, and its elements.
#[inline(always)]
pub(super) fn part_of_output_block<T: Element>(side: &MeshSide) -> ((*const T, *mut T), usize) {
    let (part, args) = (side.cx.part(), side.cx.args());
    let start = part.offset as usize;
    let output = args.output::<T>().wrapping_add(side.rank * args.count() as usize + start);
    ((args.input::<T>().wrapping_add(start), output), part.count as usize)
}

/// Reduce-scatter. The input is in a window.
#[derive(Clone, Copy, Debug)]
pub struct ReduceScatterDirect;

impl DirectCode for ReduceScatterDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (buffers, n) = part_of_input_block::<T>(side);
        // SAFETY: the caller's; the part is inside the block.
        unsafe { reduce::<T, R, false>(side, side.cx.args(), buffers, n) }
    }
}

/// All-gather. The output is in a window.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherDirect;

impl DirectCode for AllGatherDirect {
    #[inline(always)]
    unsafe fn run_block<T: Element, R: Reduction>(side: &MeshSide) {
        let (buffers, n) = part_of_output_block::<T>(side);
        // SAFETY: the caller's; the part is inside the block.
        unsafe { spread(side, side.cx.args(), buffers, n * size_of::<T>()) }
    }
}

/// Combines `n` elements of all inputs, in the order of the ranks, into the output; with `SPREAD` into all outputs.
///
/// # Safety
/// As [`DirectCode::run_block`]; the elements are in the buffers, nobody else writes them, and of the inputs nobody else reads any
/// that are written.
#[inline(always)]
unsafe fn reduce<T: Element, R: Reduction, const SPREAD: bool>(
    side: &MeshSide,
    args: KernelArgs,
    (input, output): (*const T, *mut T),
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let by = Combined::<T, R, SPREAD>::of(side, args, (input, output));
        if gpu::whole_buffers() {
            by.buffers(n);
            return;
        }
        let mut bits = input.addr() | output.addr() | by.from.bits();
        if SPREAD {
            bits |= by.to.bits();
        }
        let mut done = 0;
        if UNALIGNED_PACKS || bits.is_multiple_of(PACK_BYTES) {
            let packs = n * size_of::<T>() / PACK_BYTES;
            let hunk = DEPTH * WARP as usize;
            // Divisions (the average of integers) take more time than the loads, and more registers: one by one. Few packs are
            // spread over all lanes. Of many ranks all are read at once: if all ranks read some of them first, these ranks' links
            // would be full, and the others' empty.
            let by_one = by.reducer.divides()
                || packs < DEPTH * side.cx.lanes()
                || side.nranks > BATCH / DEPTH;
            let in_hunks = if by_one { 0 } else { packs / hunk * hunk };
            by.packs::<DEPTH>(0, in_hunks);
            by.packs::<1>(in_hunks, packs);
            done = packs * (PACK_BYTES / size_of::<T>());
        }
        by.elements(done, n);
    }
}

/// 16 bytes, as they are.
type Pack = [u64; PACK_BYTES / 8];

/// What [`reduce`] works on.
pub(super) struct Combined<'s, T: Element, R, const SPREAD: bool> {
    side: &'s MeshSide,
    reducer: Reducer<T, R>,
    from: Peers,
    to: Peers,
    input: *const T,
    output: *mut T,
}

impl<'s, T: Element, R: Reduction, const SPREAD: bool> Combined<'s, T, R, SPREAD> {
    /// # Safety
    /// As [`Reducer::of`].
    #[inline(always)]
    pub(super) unsafe fn of(
        side: &'s MeshSide,
        args: KernelArgs,
        (input, output): (*const T, *mut T),
    ) -> Self {
        let (from, to) = (Peers(args.input_peers()), Peers(args.output_peers()));
        // SAFETY: the caller's.
        let reducer = unsafe { Reducer::of(args) };
        Combined { side, reducer, from, to, input, output }
    }

    /// What is done with values.
    #[inline(always)]
    pub(super) fn reducer(&self) -> &Reducer<T, R> {
        &self.reducer
    }

    /// Packs `first..end`, `U` of them in flight per lane and rank; with `U > 1` a multiple of `U x WARP` of them.
    ///
    /// # Safety
    /// As [`reduce`].
    #[inline(always)]
    unsafe fn packs<const U: usize>(&self, first: usize, end: usize) {
        let warp = WARP as usize;
        let (tid, lanes) = (self.side.cx.tid(), self.side.cx.lanes());
        let mut at = first + tid / warp * warp * U + tid % warp;
        while at < end {
            let place = |of: *mut T, u: usize| of.cast::<Pack>().wrapping_add(at + u * warp);
            // SAFETY: the caller's: `at + (U - 1) * warp < end`, as hunks are whole or U is 1.
            unsafe {
                let mut value = [Pack::default(); U];
                let mut rank = 0;
                while rank < self.side.nranks {
                    let left = (self.side.nranks - rank).min(BATCH / U);
                    // All addresses, then all loads, before the first is waited for. Values stay as they are until then.
                    let mut from = [core::ptr::null_mut(); BATCH];
                    unroll_8!(left, i => from[i] = self.from.of(rank + i, self.input.cast_mut()));
                    let mut some = [[Pack::default(); U]; BATCH];
                    unroll_8!(left, i => some[i] = each(
                        #[inline(always)]
                        |u| gpu::ld_data(place(from[i], u)),
                    ));
                    unroll_8!(left, i => {
                        self.reducer.pre_words(some[i].as_flattened_mut());
                        if rank + i == 0 {
                            value = some[i];
                        } else {
                            let next = some[i].as_flattened();
                            self.reducer.combine_words(value.as_flattened_mut(), next);
                        }
                    });
                    rank += BATCH / U;
                }
                self.reducer.post_words(value.as_flattened_mut());
                if SPREAD {
                    for by in 0..self.side.nranks - 1 {
                        let to = self.to.of(self.side.behind(by), self.output);
                        for (u, value) in value.iter().enumerate() {
                            gpu::st_data(place(to, u), *value, size_of::<T>());
                        }
                    }
                }
                for (u, value) in value.iter().enumerate() {
                    gpu::st_data(place(self.output, u), *value, size_of::<T>());
                }
            }
            at += lanes * U;
        }
    }

    /// Elements `first..end`, one by one.
    ///
    /// # Safety
    /// As [`reduce`].
    #[inline(always)]
    pub(super) unsafe fn elements(&self, first: usize, end: usize) {
        let mut at = first + self.side.cx.tid();
        while at < end {
            // SAFETY: the caller's.
            unsafe {
                let load = |rank: usize| {
                    let from = self.from.of(rank, self.input.cast_mut()).wrapping_add(at);
                    self.reducer.pre([gpu::ld_data(from).to_unit()])
                };
                let mut value = load(0);
                for rank in 1..self.side.nranks {
                    value = self.reducer.combine(value, load(rank));
                }
                let value = T::of_unit(self.reducer.post(value)[0]);
                if SPREAD {
                    for by in 0..self.side.nranks - 1 {
                        let to = self.to.of(self.side.behind(by), self.output).wrapping_add(at);
                        gpu::st_data(to, value, size_of::<T>());
                    }
                }
                gpu::st_data(self.output.wrapping_add(at), value, size_of::<T>());
            }
            at += self.side.cx.lanes();
        }
    }

    /// All `n` elements where the machine works on whole buffers: block by block, so that what a pass leaves is in the L1 cache
    /// for the next.
    ///
    /// # Safety
    /// As [`reduce`].
    #[inline(always)]
    unsafe fn buffers(&self, n: usize) {
        const WORDS: usize = 1024;
        let (mut value, mut next) = ([0_u64; WORDS], [0_u64; WORDS]);
        let (value, next) = (value.as_mut_ptr().cast::<T>(), next.as_mut_ptr().cast::<T>());
        let block = WORDS * 8 / size_of::<T>();
        let mut at = 0;
        while at < n {
            let len = block.min(n - at);
            // SAFETY: the caller's; `at + len <= n`, and `len` elements fit a block. The output may be this rank's input: it is
            // written when all has been read.
            unsafe {
                for rank in 0..self.side.nranks {
                    let mut from = self.from.of(rank, self.input.cast_mut()).add(at).cast_const();
                    if self.reducer.multiplies() {
                        self.reducer.pre_buffer(next, from, len);
                        from = next;
                    }
                    if rank == 0 {
                        gpu::mem_copy(value, from, len);
                    } else {
                        self.reducer.zip_buffers(value, value, from, len);
                    }
                }
                if self.reducer.divides() {
                    self.reducer.post_buffer(value, value, len);
                }
                for by in 0..if SPREAD { self.side.nranks - 1 } else { 0 } {
                    let to = self.to.of(self.side.behind(by), self.output);
                    gpu::mem_copy(to.add(at), value, len);
                }
                gpu::mem_copy(self.output.add(at), value, len);
            }
            at += len;
        }
    }
}

/// Copies `n` bytes of the input to the outputs of all ranks.
///
/// # Safety
/// As [`DirectCode::run_block`]; the bytes are in the buffers, and nobody else touches them. The input may be the output.
#[inline(always)]
unsafe fn spread<T: Element>(
    side: &MeshSide,
    args: KernelArgs,
    (input, output): (*const T, *mut T),
    n: usize,
) {
    let (from, to) = (input.cast::<u8>(), output.cast::<u8>());
    // SAFETY: the caller's.
    unsafe {
        let peers = Peers(args.output_peers());
        if gpu::whole_buffers() {
            for by in 0..side.nranks - 1 {
                gpu::mem_copy(peers.of(side.behind(by), to), from, n);
            }
            if !core::ptr::eq(from, to) {
                gpu::mem_copy(to, from, n);
            }
            return;
        }
        let bits = from.addr() | to.addr() | peers.bits();
        let mut done = 0;
        if UNALIGNED_PACKS || bits.is_multiple_of(PACK_BYTES) {
            done = words::<<u8 as Element>::Pack>(side, peers, (from, to), 0, n);
        } else if bits.is_multiple_of(8) {
            done = words::<u64>(side, peers, (from, to), 0, n);
        } else if bits.is_multiple_of(4) {
            done = words::<u32>(side, peers, (from, to), 0, n);
        } else if bits.is_multiple_of(2) {
            done = words::<u16>(side, peers, (from, to), 0, n);
        }
        words::<u8>(side, peers, (from, to), done, n);
    }
}

/// [`spread`] of whole words from byte `start` on; where they end.
///
/// # Safety
/// As [`spread`]; all addresses are multiples of a word.
#[inline(always)]
pub(super) unsafe fn words<W: Copy>(
    side: &MeshSide,
    peers: Peers,
    (from, to): (*const u8, *mut u8),
    start: usize,
    n: usize,
) -> usize {
    let words = (n - start) / size_of::<W>();
    let lanes = side.cx.lanes();
    let from = from.wrapping_add(start).cast::<W>();
    let mut at = side.cx.tid();
    while at < words {
        // Behind the last word a lane loads its first one again.
        let is_there = |u: usize| at + u * lanes < words;
        let place = |u: usize| if is_there(u) { at + u * lanes } else { at };
        // SAFETY: the caller's; all places are among the words.
        unsafe {
            let values: [W; UNROLL] = each(
                #[inline(always)]
                |u| gpu::ld_data(from.add(place(u))),
            );
            for by in 0..side.nranks {
                // The own one last, and not where it is the input.
                let here = by + 1 == side.nranks;
                let to = if here { to } else { peers.of(side.behind(by), to) };
                let to = to.wrapping_add(start).cast::<W>();
                if here && core::ptr::eq(from, to) {
                    break;
                }
                for (u, value) in values.iter().enumerate() {
                    if is_there(u) {
                        gpu::st_data(to.add(place(u)), *value, 1);
                    }
                }
            }
        }
        at += UNROLL * lanes;
    }
    start + words * size_of::<W>()
}

//! The loops over the buffers of all ranks: whoever reaches the others' memory reads and writes it here.
//!
//! All lanes of a block share the work, and each of them has as many loads in flight as its registers hold. What has been read is
//! combined in the order of the ranks, so that all ranks that do so get the same bits.

mod switch;

pub(crate) use switch::spread_by_switch;

use core::mem::MaybeUninit;

use crate::abi::WindowPeers;
use crate::args::KernelArgs;
use crate::element::{Element, each};
use crate::gpu::{self, PACK_BYTES, UNALIGNED_PACKS, UNROLL, WARP};
use crate::reduce::{Reducer, Reduction};

/// Packs that a lane has in flight, of all ranks together.
const BATCH: usize = 8;
/// Packs of a rank that a lane has in flight, where there are enough.
const DEPTH: usize = 2;
/// Elements that a CPU device combines one by one: to call a function for each rank takes longer.
const FEW_ELEMENTS: usize = 4;
/// Words of a block on a CPU device that has no more to combine.
const FEW_WORDS: usize = 64;

/// A rank among those whose buffers it reaches.
pub(crate) trait Among {
    /// This rank.
    fn rank(&self) -> usize;

    /// Ranks.
    fn nranks(&self) -> usize;

    /// This lane, and how many share the work: whole warps.
    #[inline(always)]
    fn lanes(&self) -> (usize, usize) {
        (gpu::thread_idx_x() as usize, gpu::block_dim_x() as usize)
    }

    /// The rank `by + 1` behind this one: each rank begins with another, so that not all write to the same. The last is this one.
    #[inline(always)]
    fn behind(&self, by: usize) -> usize {
        let peer = self.rank() + by + 1;
        if peer >= self.nranks() { peer - self.nranks() } else { peer }
    }
}

/// Where the ranks' inputs are that are combined.
pub(crate) trait Inputs: Copy {
    /// Where a rank's is; `own` is this rank's.
    ///
    /// # Safety
    /// `rank` is one of the ranks.
    unsafe fn input_of<T>(self, rank: usize, own: *const T) -> *const T;

    /// How the others' are aligned to this rank's.
    ///
    /// # Safety
    /// As [`Peers::of`].
    unsafe fn bits(self) -> usize;

    /// Whether a rank's has been through [`Reducer::pre`].
    fn is_prepared(self, rank: usize) -> bool;
}

impl Inputs for Peers {
    #[inline(always)]
    unsafe fn input_of<T>(self, rank: usize, own: *const T) -> *const T {
        // SAFETY: the caller's.
        unsafe { self.of(rank, own.cast_mut()).cast_const() }
    }

    #[inline(always)]
    unsafe fn bits(self) -> usize {
        // SAFETY: the caller's.
        unsafe { (*self.0).bits as usize }
    }

    #[inline(always)]
    fn is_prepared(self, _: usize) -> bool {
        false
    }
}

/// Where a buffer of this rank is in the others' memory.
#[derive(Clone, Copy)]
pub(crate) struct Peers(pub(crate) *const WindowPeers);

impl Peers {
    /// Those of a call's output.
    #[inline(always)]
    pub(crate) fn of_output(args: KernelArgs) -> Self {
        Peers(args.output_peers())
    }

    /// # Safety
    /// The table is there, and `rank` is in it.
    #[inline(always)]
    pub(crate) unsafe fn of<T>(self, rank: usize, own: *mut T) -> *mut T {
        // SAFETY: the caller's; the table follows.
        unsafe { own.wrapping_byte_add(*self.0.add(1).cast::<usize>().add(rank)) }
    }
}

/// 16 bytes, as they are.
type Pack = [u64; PACK_BYTES / 8];

/// The elements of all inputs, combined in the order of the ranks, into the output; with `SPREAD` into all outputs.
pub(crate) struct Combined<'s, T: Element, R, S, const SPREAD: bool, I = Peers> {
    pub(crate) side: &'s S,
    pub(crate) reducer: Reducer<T, R>,
    pub(crate) from: I,
    pub(crate) to: Peers,
    pub(crate) input: *const T,
    pub(crate) output: *mut T,
}

impl<'s, T: Element, R: Reduction, S: Among, const SPREAD: bool> Combined<'s, T, R, S, SPREAD> {
    /// Those of a call.
    ///
    /// # Safety
    /// As [`Reducer::of`].
    #[inline(always)]
    pub(crate) unsafe fn of(
        side: &'s S,
        args: KernelArgs,
        (input, output): (*const T, *mut T),
    ) -> Self {
        let (from, to) = (Peers(args.input_peers()), Peers(args.output_peers()));
        // SAFETY: the caller's.
        let reducer = unsafe { Reducer::of(args) };
        Combined { side, reducer, from, to, input, output }
    }
}

impl<T: Element, R: Reduction, S: Among, const SPREAD: bool, I: Inputs>
    Combined<'_, T, R, S, SPREAD, I>
{
    /// What is done with values.
    #[inline(always)]
    pub(crate) fn reducer(&self) -> &Reducer<T, R> {
        &self.reducer
    }

    /// Does `n` elements.
    ///
    /// # Safety
    /// All lanes call it. The elements are in the buffers, nobody else writes them, and of the inputs nobody else reads any that are
    /// written. The output may be this rank's input.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, n: usize) {
        // SAFETY: the caller's.
        unsafe {
            if gpu::whole_buffers() {
                if n <= FEW_ELEMENTS {
                    self.few(n);
                } else if n * size_of::<T>() <= FEW_WORDS * 8 {
                    self.buffers::<FEW_WORDS>(n);
                } else {
                    self.many(n);
                }
                return;
            }
            let mut bits = self.input.addr() | self.output.addr() | self.from.bits();
            if SPREAD {
                bits |= self.to.bits();
            }
            let mut done = 0;
            if UNALIGNED_PACKS || bits.is_multiple_of(PACK_BYTES) {
                let packs = n * size_of::<T>() / PACK_BYTES;
                let hunk = DEPTH * WARP as usize;
                // Divisions (the average of integers) take more time than the loads, and more registers: one by one. Few packs are
                // spread over all lanes. Of many ranks all are read at once: if all ranks read some of them first, these ranks' links
                // would be full, and the others' empty.
                let by_one = self.reducer.divides()
                    || packs < DEPTH * self.side.lanes().1
                    || self.side.nranks() > BATCH / DEPTH;
                let in_hunks = if by_one { 0 } else { packs / hunk * hunk };
                self.packs::<DEPTH>(0, in_hunks);
                self.packs::<1>(in_hunks, packs);
                done = packs * (PACK_BYTES / size_of::<T>());
            }
            self.elements(done, n);
        }
    }

    /// Packs `first..end`, `U` of them in flight per lane and rank; with `U > 1` a multiple of `U x WARP` of them.
    ///
    /// # Safety
    /// As [`Combined::run`].
    #[inline(always)]
    unsafe fn packs<const U: usize>(&self, first: usize, end: usize) {
        let warp = WARP as usize;
        let (tid, lanes) = self.side.lanes();
        let mut at = first + tid / warp * warp * U + tid % warp;
        while at < end {
            let pack = |of: *const T, u: usize| of.cast::<Pack>().wrapping_add(at + u * warp);
            let place = |of: *mut T, u: usize| pack(of, u).cast_mut();
            // SAFETY: the caller's: `at + (U - 1) * warp < end`, as hunks are whole or U is 1.
            unsafe {
                let mut value = [Pack::default(); U];
                let mut rank = 0;
                while rank < self.side.nranks() {
                    let left = (self.side.nranks() - rank).min(BATCH / U);
                    // All addresses, then all loads, before the first is waited for. Values stay as they are until then.
                    let mut from = [core::ptr::null(); BATCH];
                    unroll_8!(left, i => from[i] = self.from.input_of(rank + i, self.input));
                    let mut some = [[Pack::default(); U]; BATCH];
                    unroll_8!(left, i => some[i] = each(
                        #[inline(always)]
                        |u| gpu::ld_data(pack(from[i], u)),
                    ));
                    unroll_8!(left, i => {
                        if !self.from.is_prepared(rank + i) {
                            self.reducer.pre_words(some[i].as_flattened_mut());
                        }
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
                    for by in 0..self.side.nranks() - 1 {
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
    /// As [`Combined::run`].
    #[inline(always)]
    pub(crate) unsafe fn elements(&self, first: usize, end: usize) {
        let (tid, lanes) = self.side.lanes();
        let mut at = first + tid;
        while at < end {
            // SAFETY: the caller's.
            unsafe {
                let load = |rank: usize| {
                    let from = self.from.input_of(rank, self.input).wrapping_add(at);
                    let value = [gpu::ld_data(from).to_unit()];
                    if self.from.is_prepared(rank) { value } else { self.reducer.pre(value) }
                };
                let mut value = load(0);
                for rank in 1..self.side.nranks() {
                    value = self.reducer.combine(value, load(rank));
                }
                let value = T::of_unit(self.reducer.post(value)[0]);
                if SPREAD {
                    for by in 0..self.side.nranks() - 1 {
                        let to = self.to.of(self.side.behind(by), self.output).wrapping_add(at);
                        gpu::st_data(to, value, size_of::<T>());
                    }
                }
                gpu::st_data(self.output.wrapping_add(at), value, size_of::<T>());
            }
            at += lanes;
        }
    }

    /// A few elements: a rank's address is looked up once, and no function is called for it.
    ///
    /// # Safety
    /// As [`Combined::run`], for [`FEW_ELEMENTS`] at most.
    #[inline(always)]
    unsafe fn few(&self, n: usize) {
        let mut values = [[T::of_bits(0).to_unit()]; FEW_ELEMENTS];
        // SAFETY: the caller's. The output may be this rank's input: it is written when all has been read.
        unsafe {
            for rank in 0..self.side.nranks() {
                let from = self.from.input_of(rank, self.input);
                let is_prepared = self.from.is_prepared(rank);
                for (i, value) in values.iter_mut().take(n).enumerate() {
                    let next = [gpu::ld_data(from.wrapping_add(i)).to_unit()];
                    let next = if is_prepared { next } else { self.reducer.pre(next) };
                    *value = if rank == 0 { next } else { self.reducer.combine(*value, next) };
                }
            }
            let values = values.map(|value| T::of_unit(self.reducer.post(value)[0]));
            let store = |to: *mut T| {
                for (i, value) in values.iter().take(n).enumerate() {
                    gpu::st_data(to.wrapping_add(i), *value, size_of::<T>());
                }
            };
            for by in 0..if SPREAD { self.side.nranks() - 1 } else { 0 } {
                store(self.to.of(self.side.behind(by), self.output));
            }
            store(self.output);
        }
    }

    /// [`Combined::buffers`] in blocks whose size is right for many. Apart, as their room on the stack has pages of its own, each of which
    /// a function touches that has it, also for a few bytes.
    ///
    /// # Safety
    /// As [`Combined::run`].
    #[inline(never)]
    unsafe fn many(&self, n: usize) {
        // SAFETY: the caller's.
        unsafe { self.buffers::<1024>(n) }
    }

    /// All `n` elements where the machine works on whole buffers: in blocks of so many words, so that what a pass leaves is in the
    /// L1 cache for the next.
    ///
    /// # Safety
    /// As [`Combined::run`].
    #[inline(always)]
    unsafe fn buffers<const WORDS: usize>(&self, n: usize) {
        let mut blocks = [MaybeUninit::<[u64; WORDS]>::uninit(); 2];
        let [value, next] = blocks.each_mut().map(|block| block.as_mut_ptr().cast::<T>());
        let block = WORDS * 8 / size_of::<T>();
        let mut at = 0;
        while at < n {
            let len = block.min(n - at);
            // SAFETY: the caller's; `at + len <= n`, and `len` elements fit a block. The output may be this rank's input: it is
            // written when all has been read.
            unsafe {
                for rank in 0..self.side.nranks() {
                    let mut from = self.from.input_of(rank, self.input).add(at);
                    if self.reducer.multiplies() && !self.from.is_prepared(rank) {
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
                for by in 0..if SPREAD { self.side.nranks() - 1 } else { 0 } {
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
/// All lanes call it. The bytes are in the buffers, and nobody else touches them. The input may be the output.
#[inline(always)]
pub(crate) unsafe fn spread<T: Element>(
    side: &impl Among,
    peers: Peers,
    (input, output): (*const T, *mut T),
    n: usize,
) {
    let (from, to) = (input.cast::<u8>(), output.cast::<u8>());
    // SAFETY: the caller's.
    unsafe {
        if gpu::whole_buffers() {
            for by in 0..side.nranks() - 1 {
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
pub(crate) unsafe fn words<W: Copy>(
    side: &impl Among,
    peers: Peers,
    (from, to): (*const u8, *mut u8),
    start: usize,
    n: usize,
) -> usize {
    let words = (n - start) / size_of::<W>();
    let (tid, lanes) = side.lanes();
    let from = from.wrapping_add(start).cast::<W>();
    let mut at = tid;
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
            for by in 0..side.nranks() {
                // The own one last, and not where it is the input.
                let here = by + 1 == side.nranks();
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

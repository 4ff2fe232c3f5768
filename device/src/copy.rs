//! The reduce-copy loop: any number of sources combined into any number of destinations.
//!
//! ```text
//! for each element i:   v = pre(src0[i]) op src1[i] op ...;  v = post(v);  dst0[i] = dst1[i] = ... = v
//! ```
//!
//! More than two sources are combined in [`Unit::Wide`](crate::arith::Unit::Wide) and rounded once.
//!
//! All lanes of a block share the work. A warp takes hunks of [`UNROLL`] packs per lane, so that as many
//! loads are in flight before the first use; what is left goes pack by pack, then element by element.
//! Where a buffer is not aligned to a pack and the machine insists, bytes that are only moved go in words of 8, 4 or 2, as far as
//! all addresses are aligned to that, and anything else in hunks of elements.
//! A machine that has operations on whole buffers ([`gpu::whole_buffers`]) is given those instead.
//!
//! A destination may be the very same memory as a source, but not overlap it otherwise.

use crate::element::{Array, Element, each};
use crate::gpu::{self, PACK_BYTES, UNALIGNED_PACKS, UNROLL, WARP};
use crate::reduce::{Reducer, Reduction};

/// The most sources, and the most destinations.
pub const MAX_ENDS: usize = 4;

/// What a pass over whole buffers works on at a time: two of them, and the result, fit an L1 cache of 32 KiB.
const BLOCK_BYTES: usize = 8 << 10;

/// Half of [`UNROLL`].
const HALF: usize = if UNROLL > 1 { UNROLL / 2 } else { 1 };

/// The shape of one reduce-copy. A constant wherever it is used: on the GPU each shape becomes its own
/// straight-line code; on the CPU, where one call moves kilobytes, all shapes share one function.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sources, 1 to [`MAX_ENDS`].
    pub sources: usize,
    /// Destinations, 1 to [`MAX_ENDS`].
    pub destinations: usize,
    /// Whether there may be fewer sources and destinations: [`ReduceCopy::there`] then counts.
    pub optional: bool,
    /// Whether source 0 is the rank's own value, which some reductions multiply first.
    pub own: bool,
    /// Whether the value is final.
    pub last: bool,
}

/// This lane's place among those that share a copy.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    /// Index of the lane.
    pub index: usize,
    /// How many there are; a multiple of [`WARP`].
    pub count: usize,
}

/// What is loaded at a time.
trait Piece<T: Element> {
    type Value: Array<Item = T::Unit>;
    const ELEMENTS: usize;
    unsafe fn load(p: *const T) -> Self::Value;
    unsafe fn store(p: *mut T, value: Self::Value);
}

struct Packs;

impl<T: Element> Piece<T> for Packs {
    type Value = T::Pack;
    const ELEMENTS: usize = PACK_BYTES / size_of::<T>();
    #[inline(always)]
    unsafe fn load(p: *const T) -> T::Pack {
        // SAFETY: the caller's.
        unsafe { gpu::ld_data(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut T, value: T::Pack) {
        // SAFETY: the caller's.
        unsafe { gpu::st_data(p.cast(), value, size_of::<T>()) }
    }
}

struct Ones;

impl<T: Element> Piece<T> for Ones {
    type Value = [T::Unit; 1];
    const ELEMENTS: usize = 1;
    #[inline(always)]
    unsafe fn load(p: *const T) -> [T::Unit; 1] {
        // SAFETY: the caller's.
        [unsafe { gpu::ld_data(p) }.to_unit()]
    }
    #[inline(always)]
    unsafe fn store(p: *mut T, [value]: [T::Unit; 1]) {
        // SAFETY: the caller's.
        unsafe { gpu::st_data(p, T::of_unit(value), size_of::<T>()) }
    }
}

/// One reduce-copy.
#[derive(Debug)]
pub struct ReduceCopy<T: Element, R> {
    /// The first [`Shape::sources`] are read.
    pub sources: [*const T; MAX_ENDS],
    /// The first [`Shape::destinations`] are written.
    pub destinations: [*mut T; MAX_ENDS],
    /// Sources and destinations that are there, with [`Shape::optional`]; at least one of each.
    pub there: [usize; 2],
    /// The reduction.
    pub reducer: Reducer<T, R>,
    /// Who shares the work.
    pub lanes: Lanes,
}

impl<T: Element, R: Reduction> ReduceCopy<T, R> {
    /// Does `n` elements in the given shape.
    ///
    /// # Safety
    /// All lanes call it with equal arguments. Sources and destinations hold `n` elements and are
    /// aligned to an element; nobody writes the sources or touches the destinations meanwhile.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub unsafe fn run(&self, shape: Shape, n: usize) {
        // SAFETY: the caller's.
        unsafe {
            if gpu::whole_buffers() {
                self.by_buffers(shape, n);
            } else {
                self.by_packs(shape, n);
            }
        }
    }

    /// Where the machine works on whole buffers: block by block, so that what a pass leaves is in the L1
    /// cache for the next.
    #[inline(always)]
    unsafe fn by_buffers(&self, shape: Shape, n: usize) {
        let block = BLOCK_BYTES / size_of::<T>();
        let mut at = 0;
        while at < n {
            let len = block.min(n - at);
            // SAFETY: the caller's; `at + len <= n`.
            unsafe {
                let to = self.destinations[0].add(at);
                let mut value = self.sources[0].add(at);
                if shape.own && self.reducer.multiplies() {
                    self.reducer.pre_buffer(to, value, len);
                    value = to;
                }
                if self.sources(shape) > 2 && Reducer::<T, R>::WIDE {
                    let mut sources = self.sources.map(
                        #[inline(always)]
                        |source| source.wrapping_add(at),
                    );
                    sources[0] = value;
                    self.reducer.gather_buffers(to, &sources[..self.sources(shape)], len);
                    value = to;
                } else {
                    for s in 1..self.sources(shape) {
                        self.reducer.zip_buffers(to, value, self.sources[s].add(at), len);
                        value = to;
                    }
                }
                if shape.last && self.reducer.divides() {
                    self.reducer.post_buffer(to, value, len);
                    value = to;
                }
                for d in 0..self.destinations(shape) {
                    gpu::mem_copy(self.destinations[d].add(at), value, len);
                }
            }
            at += len;
        }
    }

    #[inline(always)]
    unsafe fn by_packs(&self, shape: Shape, n: usize) {
        let per_pack = PACK_BYTES / size_of::<T>();
        let packs = if UNALIGNED_PACKS || self.aligned(shape) { n / per_pack } else { 0 };
        // Four sources would not fit the registers with as much of each in flight.
        let several = shape.sources > 2;
        let hunk = if several { HALF } else { UNROLL } * WARP as usize;
        // Divisions (the average of integers) take more time than the loads, and more registers: one by one.
        let divides = shape.last && self.reducer.divides();
        let in_hunks = if divides { 0 } else { packs / hunk * hunk };
        // SAFETY: the caller's; the loops cover [0, n) once.
        unsafe {
            if several {
                self.pieces::<Packs, HALF>(shape, 0, in_hunks);
            } else {
                self.pieces::<Packs, UNROLL>(shape, 0, in_hunks);
            }
            self.pieces::<Packs, 1>(shape, in_hunks, packs);
            let mut done = packs * per_pack;
            if !UNALIGNED_PACKS && packs == 0 {
                done = self.unaligned(shape, n);
            }
            self.pieces::<Ones, 1>(shape, done, n);
        }
    }

    #[inline(always)]
    fn sources(&self, shape: Shape) -> usize {
        if shape.optional { self.there[0] } else { shape.sources }
    }

    #[inline(always)]
    fn destinations(&self, shape: Shape) -> usize {
        if shape.optional { self.there[1] } else { shape.destinations }
    }

    /// From the beginning, where the buffers are not aligned to packs; how many elements.
    ///
    /// # Safety
    /// As [`ReduceCopy::run`].
    #[inline(always)]
    unsafe fn unaligned(&self, shape: Shape, n: usize) -> usize {
        let changes =
            shape.own && self.reducer.multiplies() || shape.last && self.reducer.divides();
        // SAFETY: the caller's; addresses are multiples of the words.
        unsafe {
            if size_of::<T>() == 1 && shape.sources == 1 && !changes {
                return match self.address_bits(shape) % 8 {
                    0 => self.words::<u64>(shape, n),
                    4 => self.words::<u32>(shape, n),
                    2 | 6 => self.words::<u16>(shape, n),
                    _ => self.words::<u8>(shape, n),
                };
            }
            if shape.sources > 2 || changes {
                return 0;
            }
            let hunk = HALF * WARP as usize;
            let in_hunks = n / hunk * hunk;
            self.pieces::<Ones, HALF>(shape, 0, in_hunks);
            in_hunks
        }
    }

    /// Moves as many words of source 0 as there are in `n` bytes; how many bytes these are. As many are in flight as of packs.
    ///
    /// # Safety
    /// As [`ReduceCopy::run`], where elements are bytes, there is one source, and all addresses are multiples of a word.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "a loop over indices is unrolled, one over iterators is not"
    )]
    unsafe fn words<W: Copy>(&self, shape: Shape, n: usize) -> usize {
        let words = n / size_of::<W>();
        let from = self.sources[0].cast::<W>();
        let mut at = self.lanes.index;
        while at < words {
            // Behind the last word a lane loads its first one again, which nobody else stores.
            let is_there = |u: usize| at + u * self.lanes.count < words;
            let place = |u: usize| if is_there(u) { at + u * self.lanes.count } else { at };
            // SAFETY: the caller's; all places are among the words.
            unsafe {
                let values: [W; UNROLL] = each(
                    #[inline(always)]
                    |u| gpu::ld_data(from.add(place(u))),
                );
                for d in 0..MAX_ENDS {
                    if d < shape.destinations && (!shape.optional || d < self.there[1]) {
                        let to = self.destinations[d].cast::<W>();
                        for u in 0..UNROLL {
                            if is_there(u) {
                                gpu::st_data(to.add(place(u)), values[u], 1);
                            }
                        }
                    }
                }
            }
            at += UNROLL * self.lanes.count;
        }
        words * size_of::<W>()
    }

    #[inline(always)]
    fn aligned(&self, shape: Shape) -> bool {
        self.address_bits(shape).is_multiple_of(PACK_BYTES)
    }

    /// The bits that are set in any of the addresses.
    #[inline(always)]
    fn address_bits(&self, shape: Shape) -> usize {
        let mut bits = 0;
        for i in 0..MAX_ENDS {
            if i < shape.sources && (!shape.optional || i < self.there[0]) {
                bits |= self.sources[i].addr();
            }
            if i < shape.destinations && (!shape.optional || i < self.there[1]) {
                bits |= self.destinations[i].addr();
            }
        }
        bits
    }

    /// Pieces `from..to`, `U` of them in flight per lane; with `U > 1` a multiple of `U x WARP` of them.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "a loop over indices is unrolled, one over iterators is not"
    )]
    unsafe fn pieces<P: Piece<T>, const U: usize>(&self, shape: Shape, from: usize, to: usize) {
        let warp = WARP as usize;
        let (warp_index, lane) = (self.lanes.index / warp, self.lanes.index % warp);
        let stride = self.lanes.count * U;
        let mut at = from + warp_index * warp * U + lane;
        while at < to {
            // SAFETY: the caller's: `at + (U - 1) * warp < to`, as hunks are whole or U is 1.
            unsafe {
                let first: [P::Value; U] = load_all::<P, T, U>(self.sources[0], at);
                let mut value = if shape.own && self.reducer.multiplies() {
                    each(
                        #[inline(always)]
                        |u| self.reducer.pre(first[u]),
                    )
                } else {
                    first
                };
                if shape.sources > 2 && Reducer::<T, R>::WIDE {
                    // All loads first: what is wide takes two or four times the registers, so pack by pack.
                    // Indices are constants once the loops are unrolled: an array that is indexed by a variable is not
                    // held in registers.
                    let mut all = [value; MAX_ENDS];
                    for s in 1..MAX_ENDS {
                        if s < shape.sources && (!shape.optional || s < self.there[0]) {
                            all[s] = load_all::<P, T, U>(self.sources[s], at);
                        }
                    }
                    value = each(
                        #[inline(always)]
                        |u| {
                            let mut wide = self.reducer.widen(all[0][u]);
                            for s in 1..MAX_ENDS {
                                if s < shape.sources && (!shape.optional || s < self.there[0]) {
                                    wide = self.reducer.gather(wide, all[s][u]);
                                }
                            }
                            self.reducer.narrow(wide)
                        },
                    );
                } else {
                    for s in 1..MAX_ENDS {
                        if s < shape.sources && (!shape.optional || s < self.there[0]) {
                            let next: [P::Value; U] = load_all::<P, T, U>(self.sources[s], at);
                            value = self.reducer.combine_each(value, next);
                        }
                    }
                }
                if shape.last && U == 1 && self.reducer.divides() {
                    value = each(
                        #[inline(always)]
                        |u| self.reducer.post(value[u]),
                    );
                }
                for d in 0..MAX_ENDS {
                    if d < shape.destinations && (!shape.optional || d < self.there[1]) {
                        for (u, value) in value.iter().enumerate() {
                            let to = self.destinations[d].add((at + u * warp) * P::ELEMENTS);
                            P::store(to, *value);
                        }
                    }
                }
            }
            at += stride;
        }
    }
}

#[inline(always)]
unsafe fn load_all<P: Piece<T>, T: Element, const U: usize>(
    from: *const T,
    at: usize,
) -> [P::Value; U] {
    // SAFETY: the caller's.
    each(
        #[inline(always)]
        |u| unsafe { P::load(from.add((at + u * WARP as usize) * P::ELEMENTS)) },
    )
}

#[cfg(test)]
mod tests;

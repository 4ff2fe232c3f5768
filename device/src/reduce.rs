//! Reductions: an operator, and what happens to a value before the first and after the last use of it.
//!
//! * `Sum`, `Prod`, `Min`, `Max` combine, nothing else.
//! * `PreMulSum` multiplies each rank's own value by a factor before it is combined. The factor of a float is wider than
//!   a small type ([`Unit::Factor`]), and the product is rounded once to the element's type.
//! * `Avg` of floats is `PreMulSum` by 1/ranks, so that a sum of large halves does not overflow.
//! * `Avg` of integers divides the (wrapping) sum by the number of ranks, towards zero, where the last
//!   combination is made.
//!
//! # Precision
//!
//! A *step* combines what a rank receives with what it has. Where that is two values, the result is the exact sum,
//! product, ... of the two, rounded once to the element's type, to nearest, ties to even. Where it is more, floats of
//! 8 and 16 bits are combined in f32, in the order own value, then edge by edge, and rounded once at the end of the
//! step; f32 and double round each time. What travels between ranks is always of the element's type.
//!
//! Be `u` half the distance from 1 to the next number (2^-4 of f8e4m3, 2^-3 of f8e5m2, 2^-11 of half, 2^-8 of bfloat16,
//! 2^-24 of float, 2^-53 of double). If nothing overflows or underflows, sums of `k` values `x` are off by at most, in
//! the first order of `u`:
//!
//! | | bound | since a value goes through |
//! |---|---|---|
//! | ring, chain, Bruck, one-shot | `(k - 1) u sum |x|` | a rounding for each of the other ranks, at most |
//! | tree of depth `d`, small floats | `d u sum |x|` (and `2 d` of 2^-24) | a rounding in each rank above it |
//! | tree of depth `d`, float and double | `2 d u sum |x|` | two in each rank above it |
//!
//! A switch (NVLS) sums halves and bfloat16 in single precision and rounds once; an average by it multiplies the sum, and not the values.
//! Such an average of bfloat16 or float has a sum that overflows only where values are within a factor of the ranks of the largest number.
//!
//! `PreMulSum` and averages have one `u sum |x|` more for their products, and averages one more for 1/ranks. Products have
//! the same bounds with `|prod|` for `sum |x|`. Smallest and largest are exact. What underflows adds half of the
//! smallest number for each rounding.
//!
//! # What is not a number, and the two zeros
//!
//! * `Sum`, `Prod`, `PreMulSum`, `Avg`: IEEE 754. A NaN makes the result a NaN, and so do infinities of both signs in a
//!   sum and infinity times zero. -0 + -0 is -0; other sums of zero are +0.
//! * `Min`, `Max`: of a NaN and a number, the number; a NaN only if all ranks have one. -0 is smaller than +0.
//! * 8-bit floats: what is combined becomes finite. What is too large, or infinity, becomes the largest number, at each
//!   rounding; so a sum of both signs that leaves the range on the way depends on the order of the ranks.
//! * That a result is a NaN is all that is promised of it: which one differs between machines. Of 8-bit
//!   floats it is 0x7f. A rank alone in its group keeps its values as they are, unless they are multiplied.

use core::marker::PhantomData;

use crate::abi::ReduceOp;
use crate::args::KernelArgs;
use crate::arith::{Arith, BinOp, Unit};
use crate::element::{Array, Element, each};
use crate::gpu;

/// A reduction as a type: one operator, or several of which the call says one.
pub trait Reduction: Copy + 'static {
    /// The operators of the calls that it is for.
    const OPS: &'static [ReduceOp];
    /// How two values are combined, where it is for one operator.
    type Op: BinOp;
    /// Whether the call says which operator it is: [`Reducer`] then looks at the call's, and nothing at `Op`.
    const ANY: bool = Self::OPS.len() > 1;
}

/// Whether a reduction may have this operator.
const fn has<R: Reduction>(op: ReduceOp) -> bool {
    let mut i = 0;
    while i < R::OPS.len() {
        if R::OPS[i] as u8 == op as u8 {
            return true;
        }
        i += 1;
    }
    false
}

macro_rules! several {
    ($($(#[$m:meta])* $name:ident: $($op:ident)*;)*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Reduction for $name {
            const OPS: &'static [ReduceOp] = &[$(ReduceOp::$op),*];
            type Op = Sum;
        }
    )* };
}
several! {
    /// Any reduction. Where kernels work on whole buffers a look at the operator costs nothing, and one kernel instead of one
    /// for each operator is compiled.
    Any: Sum Prod Min Max Avg PreMulSum;
    /// What unsigned integers have beside the sum.
    AnyUnsigned: Prod Min Max Avg PreMulSum;
    /// What is not the same, bit for bit, as of unsigned integers.
    AnySigned: Min Max Avg;
    /// What floats have beside the sum. The average is a pre-multiplied sum.
    AnyFloat: Prod Min Max PreMulSum;
    /// What 8-bit floats have. The average is a pre-multiplied sum.
    AnyFloat8: Sum Prod Min Max PreMulSum;
}

macro_rules! reductions {
    ($($(#[$m:meta])* $name:ident => $method:ident;)*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl BinOp for $name {
            #[inline(always)]
            fn apply<A: Arith>(a: A, b: A) -> A { a.$method(b) }
        }
        impl Reduction for $name {
            const OPS: &'static [ReduceOp] = &[ReduceOp::$name];
            type Op = $name;
        }
    )* };
}
reductions! {
    /// Sum.
    Sum => add;
    /// Product.
    Prod => mul;
    /// Smallest.
    Min => min;
    /// Largest.
    Max => max;
}

macro_rules! scaled_sums {
    ($($(#[$m:meta])* $name:ident;)*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Reduction for $name {
            const OPS: &'static [ReduceOp] = &[ReduceOp::$name];
            type Op = Sum;
        }
    )* };
}
scaled_sums! {
    /// Average.
    Avg;
    /// Pre-multiplied sum.
    PreMulSum;
}

/// 8 bytes of elements in the wider type.
pub type WideWord<T> = <<T as Element>::Word as Array>::Wide;

/// A reduction over an element type, with its scalar.
#[derive(Clone, Copy, Debug)]
pub struct Reducer<T: Element, R> {
    /// Means something where [`Reducer::multiplies`].
    factor: <T::Unit as Unit>::Factor,
    /// Means something where [`Reducer::divides`].
    divisor: <T::Unit as Unit>::Divisor,
    /// The call's, where it is one of several.
    op: ReduceOp,
    marker: PhantomData<(T, R)>,
}

/// Calls `$go!` with the operator of a reducer, as a type. Where there are several, whoever has much to combine asks once
/// for all of it.
macro_rules! by_op {
    ($self:ident, $go:ident) => {
        if R::ANY {
            match $self.op {
                ReduceOp::Prod if const { has::<R>(ReduceOp::Prod) } => $go!(Prod),
                ReduceOp::Min if const { has::<R>(ReduceOp::Min) } => $go!(Min),
                ReduceOp::Max if const { has::<R>(ReduceOp::Max) } => $go!(Max),
                _ => $go!(Sum),
            }
        } else {
            $go!(R::Op)
        }
    };
}

impl<T: Element, R: Reduction> Reducer<T, R> {
    /// Whether [`Reducer::pre`] may do anything.
    const PRE: bool = has::<R>(ReduceOp::PreMulSum) || has::<R>(ReduceOp::Avg) && T::FLOAT;
    /// Whether [`Reducer::post`] may do anything.
    const POST: bool = has::<R>(ReduceOp::Avg) && !T::FLOAT;
    /// Whether more than two values are combined in another type: [`Reducer::widen`], [`Reducer::gather`] for each
    /// more, [`Reducer::narrow`].
    pub const WIDE: bool = T::Unit::WIDENS;

    /// The reducer of a call.
    ///
    /// # Safety
    /// Where the scalar is an address, an element is there, in memory that the device reads and nobody writes meanwhile.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of(args: KernelArgs) -> Self {
        let (scalar, by_address) = args.scalar();
        let scalar = if Self::PRE && by_address {
            // SAFETY: the caller's.
            unsafe { gpu::ld_data(scalar as *const T) }.to_unit().scalar()
        } else {
            scalar
        };
        Reducer {
            factor: T::Unit::factor(scalar),
            divisor: T::Unit::divisor(scalar),
            op: if R::ANY { args.signature().op() } else { R::OPS[0] },
            marker: PhantomData,
        }
    }

    /// The reducer of an operator without a scalar: of what a reduction has, its first.
    #[inline(always)]
    #[must_use]
    pub fn without_scalar() -> Self {
        const { assert!(!Self::PRE && !Self::POST, "a reduction with a scalar takes that from a call") };
        let (factor, divisor) = (T::Unit::factor(0), T::Unit::divisor(1));
        Reducer { factor, divisor, op: R::OPS[0], marker: PhantomData }
    }

    /// Whether [`Reducer::pre`] does anything.
    #[inline(always)]
    #[must_use]
    pub fn multiplies(&self) -> bool {
        let one_of =
            |op| matches!(op, ReduceOp::PreMulSum) || matches!(op, ReduceOp::Avg) && T::FLOAT;
        Self::PRE && (!R::ANY || one_of(self.op))
    }

    /// Whether [`Reducer::post`] does anything.
    #[inline(always)]
    #[must_use]
    pub fn divides(&self) -> bool {
        Self::POST && (!R::ANY || matches!(self.op, ReduceOp::Avg))
    }

    /// `to[i] = a[i] op b[i]`.
    ///
    /// # Safety
    /// As [`gpu::mem_zip`].
    #[inline(always)]
    pub unsafe fn zip_buffers(&self, to: *mut T, a: *const T, b: *const T, n: usize) {
        macro_rules! go {
            ($O:ty) => {
                // SAFETY: the caller's.
                unsafe { gpu::mem_zip::<T::Unit, $O>(to.cast(), a.cast(), b.cast(), n) }
            };
        }
        by_op!(self, go);
    }

    /// Combines several buffers in the wider type.
    ///
    /// # Safety
    /// As [`gpu::mem_gather`].
    #[inline(always)]
    pub unsafe fn gather_buffers(&self, to: *mut T, sources: &[*const T], n: usize) {
        macro_rules! go {
            ($O:ty) => {
                // SAFETY: the caller's.
                // Where there are whole buffers, a unit is an element.
                unsafe {
                    let sources =
                        core::slice::from_raw_parts(sources.as_ptr().cast(), sources.len());
                    gpu::mem_gather::<T::Unit, $O>(to.cast(), sources, n);
                }
            };
        }
        by_op!(self, go);
    }

    /// Combines values, each of `a` with the one of `b` in its place.
    #[inline(always)]
    #[must_use]
    pub fn combine_each<A: Array<Item = T::Unit>, const N: usize>(
        &self,
        a: [A; N],
        b: [A; N],
    ) -> [A; N] {
        if R::ANY && T::Unit::LONG {
            return each(
                #[inline(always)]
                |i| a[i].zip_by(b[i], self.op),
            );
        }
        macro_rules! go {
            ($O:ty) => {
                each(
                    #[inline(always)]
                    |i| a[i].zip::<$O>(b[i]),
                )
            };
        }
        by_op!(self, go)
    }

    /// Combines two values.
    #[inline(always)]
    #[must_use]
    pub fn combine<A: Array<Item = T::Unit>>(&self, a: A, b: A) -> A {
        self.combine_each([a], [b])[0]
    }

    /// Applied once to each rank's own value.
    #[inline(always)]
    #[must_use]
    pub fn pre<A: Array<Item = T::Unit>>(&self, a: A) -> A {
        if self.multiplies() {
            a.map(
                #[inline(always)]
                |unit| unit.times(self.factor),
            )
        } else {
            a
        }
    }

    /// Applied once to the final value.
    #[inline(always)]
    #[must_use]
    pub fn post<A: Array<Item = T::Unit>>(&self, a: A) -> A {
        if self.divides() {
            a.map(
                #[inline(always)]
                |unit| unit.over(self.divisor),
            )
        } else {
            a
        }
    }

    /// The first of more than two values, to be combined in the wider type.
    #[inline(always)]
    #[must_use]
    pub fn widen<A: Array<Item = T::Unit>>(&self, a: A) -> A::Wide {
        a.widen()
    }

    /// Combines one value more.
    #[inline(always)]
    #[must_use]
    pub fn gather<A: Array<Item = T::Unit>>(&self, wide: A::Wide, a: A) -> A::Wide {
        macro_rules! go {
            ($O:ty) => {
                A::gather::<$O>(wide, a)
            };
        }
        by_op!(self, go)
    }

    /// The result, rounded once.
    #[inline(always)]
    #[must_use]
    pub fn narrow<A: Array<Item = T::Unit>>(&self, wide: A::Wide) -> A {
        A::narrow(wide)
    }

    /// [`Reducer::combine`] of 8 bytes.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[must_use]
    pub fn combine_word(&self, a: u64, b: u64) -> u64 {
        word_bits::<T>(self.combine(word::<T>(a), word::<T>(b)))
    }

    /// [`Reducer::pre`] of 8 bytes.
    #[inline(always)]
    #[must_use]
    pub fn pre_word(&self, a: u64) -> u64 {
        if self.multiplies() { self.map_word(a) } else { a }
    }

    /// [`Reducer::post`] of 8 bytes.
    #[inline(always)]
    #[must_use]
    pub fn post_word(&self, a: u64) -> u64 {
        if self.divides() { self.map_word(a) } else { a }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    /// Never both: a reduction has one of the two.
    fn map_word(&self, a: u64) -> u64 {
        word_bits::<T>(self.post(self.pre(word::<T>(a))))
    }

    /// [`Reducer::combine`] of words, over the shortest: one call for a line where calls are cheap.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn combine_words(&self, a: &mut [u64], b: &[u64]) {
        macro_rules! go {
            ($O:ty) => {
                a.iter_mut().zip(b).for_each(
                    #[inline(always)]
                    |(a, b)| *a = word_bits::<T>(word::<T>(*a).zip::<$O>(word::<T>(*b))),
                )
            };
        }
        if R::ANY && T::Unit::LONG {
            a.iter_mut().zip(b).for_each(
                #[inline(always)]
                |(a, b)| *a = self.combine_word(*a, *b),
            );
        } else {
            by_op!(self, go);
        }
    }

    /// [`Reducer::widen`] of 8 bytes.
    #[inline(always)]
    #[must_use]
    pub fn widen_word(&self, a: u64) -> WideWord<T> {
        word::<T>(a).widen()
    }

    /// [`Reducer::widen`] of words, over the shortest.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn widen_words(&self, wide: &mut [WideWord<T>], words: &[u64]) {
        wide.iter_mut().zip(words).for_each(
            #[inline(always)]
            |(wide, w)| *wide = word::<T>(*w).widen(),
        );
    }

    /// [`Reducer::gather`] of words, over the shortest.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn gather_words(&self, wide: &mut [WideWord<T>], words: &[u64]) {
        wide.iter_mut().zip(words).for_each(
            #[inline(always)]
            |(wide, w)| *wide = self.gather(*wide, word::<T>(*w)),
        );
    }

    /// [`Reducer::narrow`] into words, over the shortest.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn narrow_words(&self, words: &mut [u64], wide: &[WideWord<T>]) {
        words.iter_mut().zip(wide).for_each(
            #[inline(always)]
            |(w, wide)| *w = word_bits::<T>(T::Word::narrow(*wide)),
        );
    }

    /// [`Reducer::pre`] of words.
    #[inline(always)]
    pub fn pre_words(&self, words: &mut [u64]) {
        if self.multiplies() {
            self.map_words(words);
        }
    }

    /// [`Reducer::post`] of words.
    #[inline(always)]
    pub fn post_words(&self, words: &mut [u64]) {
        if self.divides() {
            self.map_words(words);
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    fn map_words(&self, words: &mut [u64]) {
        words.iter_mut().for_each(
            #[inline(always)]
            |w| *w = self.map_word(*w),
        );
    }

    /// [`Reducer::pre`] of a whole buffer.
    ///
    /// # Safety
    /// As [`gpu::mem_map`].
    #[inline(always)]
    pub unsafe fn pre_buffer(&self, to: *mut T, from: *const T, n: usize) {
        let factor = self.factor;
        // SAFETY: the caller's.
        unsafe {
            gpu::mem_map(
                to.cast(),
                from.cast(),
                n,
                #[inline(always)]
                |unit: T::Unit| unit.times(factor),
            );
        }
    }

    /// [`Reducer::post`] of a whole buffer.
    ///
    /// # Safety
    /// As [`gpu::mem_map`].
    #[inline(always)]
    pub unsafe fn post_buffer(&self, to: *mut T, from: *const T, n: usize) {
        let divisor = self.divisor;
        // SAFETY: the caller's.
        unsafe {
            gpu::mem_map(
                to.cast(),
                from.cast(),
                n,
                #[inline(always)]
                |unit: T::Unit| unit.over(divisor),
            );
        }
    }
}

/// 8 bytes as units.
#[inline(always)]
fn word<T: Element>(bits: u64) -> T::Word {
    const { assert!(size_of::<T::Word>() == 8) };
    // SAFETY: of one size, and every bit pattern is a number.
    unsafe { core::mem::transmute_copy(&bits) }
}

/// Units as 8 bytes.
#[inline(always)]
fn word_bits<T: Element>(word: T::Word) -> u64 {
    // SAFETY: as in `word`; units have no padding.
    unsafe { core::mem::transmute_copy(&word) }
}

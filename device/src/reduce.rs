//! Reductions: an operator, and what happens to a value before the first and after the last use of it.
//!
//! * `Sum`, `Prod`, `Min`, `Max` combine, nothing else.
//! * `Avg` of floats scales each rank's own value by 1/ranks before it is combined, so that a sum of
//!   large halves does not overflow; the product is rounded once to the element's type.
//! * `Avg` of integers divides the (wrapping) sum by the number of ranks, towards zero, where the last
//!   combination is made.
//!
//! 16-bit floats are combined in their own precision at each step: the result of one step is the exact
//! sum, product, ... of two halves, rounded once (on the CPU through f32, which gives the same bits).

use core::marker::PhantomData;

use crate::abi::ReduceOp;
use crate::element::{Arith, Array, BinOp, Element, Unit};
use crate::gpu;

/// A reduction as a type.
pub trait Reduction: Copy + 'static {
    /// Its name in calls and kernels.
    const ID: ReduceOp;
    /// How two values are combined.
    type Op: BinOp;
    /// Whether the number of ranks enters.
    const SCALED: bool = false;
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
            const ID: ReduceOp = ReduceOp::$name;
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

/// Average.
#[derive(Clone, Copy, Debug)]
pub struct Avg;

impl Reduction for Avg {
    const ID: ReduceOp = ReduceOp::Avg;
    type Op = Sum;
    const SCALED: bool = true;
}

/// A reduction over an element type, with its scalar.
#[derive(Clone, Copy, Debug)]
pub struct Reducer<T: Element, R> {
    divisor: <T::Unit as Unit>::Divisor,
    marker: PhantomData<(T, R)>,
}

impl<T: Element, R: Reduction> Reducer<T, R> {
    /// Whether [`Reducer::pre`] does anything.
    pub const PRE: bool = R::SCALED && T::FLOAT;
    /// Whether [`Reducer::post`] does anything.
    pub const POST: bool = R::SCALED && !T::FLOAT;

    /// `scalar` is the number of ranks, at least 1.
    #[inline(always)]
    #[must_use]
    pub fn new(scalar: u64) -> Self {
        Reducer { divisor: T::Unit::divisor(scalar), marker: PhantomData }
    }

    /// Combines two values.
    #[inline(always)]
    #[must_use]
    pub fn combine<A: Array<Item = T::Unit>>(&self, a: A, b: A) -> A {
        a.zip::<R::Op>(b)
    }

    /// Applied once to each rank's own value.
    #[inline(always)]
    #[must_use]
    pub fn pre<A: Array<Item = T::Unit>>(&self, a: A) -> A {
        if Self::PRE { a.over(self.divisor) } else { a }
    }

    /// Applied once to the final value.
    #[inline(always)]
    #[must_use]
    pub fn post<A: Array<Item = T::Unit>>(&self, a: A) -> A {
        if Self::POST { a.over(self.divisor) } else { a }
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
        if Self::PRE { self.over_word(a) } else { a }
    }

    /// [`Reducer::post`] of 8 bytes.
    #[inline(always)]
    #[must_use]
    pub fn post_word(&self, a: u64) -> u64 {
        if Self::POST { self.over_word(a) } else { a }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    fn over_word(&self, a: u64) -> u64 {
        word_bits::<T>(word::<T>(a).over(self.divisor))
    }

    /// [`Reducer::combine`] of words, over the shortest: one call for a line where calls are cheap.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub fn combine_words(&self, a: &mut [u64], b: &[u64]) {
        a.iter_mut().zip(b).for_each(
            #[inline(always)]
            |(a, b)| *a = word_bits::<T>(self.combine(word::<T>(*a), word::<T>(*b))),
        );
    }

    /// [`Reducer::pre`] of words.
    #[inline(always)]
    pub fn pre_words(&self, words: &mut [u64]) {
        if Self::PRE {
            self.over_words(words);
        }
    }

    /// [`Reducer::post`] of words.
    #[inline(always)]
    pub fn post_words(&self, words: &mut [u64]) {
        if Self::POST {
            self.over_words(words);
        }
    }

    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    fn over_words(&self, words: &mut [u64]) {
        words.iter_mut().for_each(
            #[inline(always)]
            |w| *w = word_bits::<T>(word::<T>(*w).over(self.divisor)),
        );
    }

    /// [`Reducer::pre`] of a whole buffer.
    ///
    /// # Safety
    /// As [`gpu::mem_over`].
    #[inline(always)]
    pub unsafe fn pre_buffer(&self, to: *mut T, from: *const T, n: usize) {
        // SAFETY: the caller's.
        unsafe { gpu::mem_over(to, from, self.divisor, n) }
    }

    /// [`Reducer::post`] of a whole buffer.
    ///
    /// # Safety
    /// As [`gpu::mem_over`].
    #[inline(always)]
    pub unsafe fn post_buffer(&self, to: *mut T, from: *const T, n: usize) {
        // SAFETY: the caller's.
        unsafe { gpu::mem_over(to, from, self.divisor, n) }
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

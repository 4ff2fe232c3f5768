//! Element types, and the units that a machine computes on.

use crate::abi::{DataType, ReduceOp};
use crate::arith::{Arith, BinOp, Unit, as_it_is, no_division};
pub use crate::arith::{Bf16, F16};
pub use crate::fp8::{F8E4M3, F8E5M2};
use crate::gpu::{self, Bf16Unit, F8E4M3Unit, F8E5M2Unit, F16Unit, I8Unit, PACK_BYTES, U8Unit};

/// The type of a buffer's elements, one for each [`DataType`].
pub trait Element: Copy + 'static {
    /// Its name in calls and kernels.
    const TYPE: DataType;
    /// Whether an average multiplies before it sums (floats) or divides after (integers).
    const FLOAT: bool;
    /// What the machine computes on: the element, or several in a register.
    type Unit: Unit;
    /// The widest access, as units.
    type Pack: Array<Item = Self::Unit>;
    /// 8 bytes, as units.
    type Word: Array<Item = Self::Unit>;

    /// A unit that holds this element first and nothing of interest behind it.
    fn to_unit(self) -> Self::Unit;
    /// The first element of a unit.
    fn of_unit(unit: Self::Unit) -> Self;
    /// The element's bits, zero-extended.
    fn to_bits(self) -> u64;
    /// The element with these low bits.
    fn of_bits(bits: u64) -> Self;
}

/// What `f` gives for each index, in order. `core::array::from_fn` is a function call when `f` is large.
#[inline(always)]
pub(crate) fn each<V: Copy, const N: usize>(mut f: impl FnMut(usize) -> V) -> [V; N] {
    let mut all = [f(0); N];
    let mut i = 1;
    while i < N {
        all[i] = f(i);
        i += 1;
    }
    all
}

/// A fixed number of units that is loaded, stored and computed on together.
pub trait Array: Copy {
    /// One unit.
    type Item: Unit;
    /// All of them, [widened](Unit::widen).
    type Wide: Copy;
    /// Combines two, unit by unit.
    #[must_use]
    fn zip<O: BinOp>(self, other: Self) -> Self;
    /// [`Unit::by`], unit by unit.
    #[must_use]
    fn zip_by(self, other: Self, op: ReduceOp) -> Self;
    /// Does the same with each unit.
    #[must_use]
    fn map(self, f: impl Fn(Self::Item) -> Self::Item) -> Self;
    /// [`Unit::widen`], unit by unit.
    #[must_use]
    fn widen(self) -> Self::Wide;
    /// Combines wide values with one more.
    #[must_use]
    fn gather<O: BinOp>(wide: Self::Wide, other: Self) -> Self::Wide;
    /// [`Unit::narrow`], unit by unit.
    #[must_use]
    fn narrow(wide: Self::Wide) -> Self;
}

impl<U: Unit, const N: usize> Array for [U; N] {
    type Item = U;
    type Wide = [U::Wide; N];
    #[inline(always)]
    fn zip<O: BinOp>(self, other: Self) -> Self {
        core::array::from_fn(|i| O::apply(self[i], other[i]))
    }
    #[inline(always)]
    fn zip_by(self, other: Self, op: ReduceOp) -> Self {
        core::array::from_fn(|i| self[i].by(other[i], op))
    }
    #[inline(always)]
    fn map(self, f: impl Fn(U) -> U) -> Self {
        core::array::from_fn(|i| f(self[i]))
    }
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        core::array::from_fn(|i| self[i].widen())
    }
    #[inline(always)]
    fn gather<O: BinOp>(wide: Self::Wide, other: Self) -> Self::Wide {
        core::array::from_fn(|i| O::apply(wide[i], other[i].widen()))
    }
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        core::array::from_fn(|i| U::narrow(wide[i]))
    }
}

/// Elements that are their own unit.
macro_rules! element {
    ($($t:ident => $name:ident, $float:literal, $bits:ident, |$v:ident, $w:ident| $to_bits:expr, $of_bits:expr;)*) => { $(
        impl Element for $t {
            const TYPE: DataType = DataType::$name;
            const FLOAT: bool = $float;
            type Unit = $t;
            type Pack = [$t; PACK_BYTES / size_of::<$t>()];
            type Word = [$t; 8 / size_of::<$t>()];
            #[inline(always)]
            fn to_unit(self) -> $t { self }
            #[inline(always)]
            fn of_unit(unit: $t) -> $t { unit }
            #[inline(always)]
            fn to_bits(self) -> u64 { let $v = self; u64::from($to_bits) }
            #[inline(always)]
            fn of_bits(bits: u64) -> $t { let $w = bits as $bits; $of_bits }
        }
    )* };
}
element! {
    i32 => I32, false, u32, |v, b| v as u32, b as i32;
    u32 => U32, false, u32, |v, b| v, b;
    i64 => I64, false, u64, |v, b| v as u64, b as i64;
    u64 => U64, false, u64, |v, b| v, b;
    f32 => F32, true, u32, |v, b| v.to_bits(), f32::from_bits(b);
    f64 => F64, true, u64, |v, b| v.to_bits(), f64::from_bits(b);
}

/// Small elements: the machine says how many of them its unit holds.
macro_rules! small_element {
    ($($t:ident => $name:ident, $float:literal, $unit:ident, |$v:ident, $b:ident| $to_bits:expr, $of_bits:expr;)*) => { $(
        impl Element for $t {
            const TYPE: DataType = DataType::$name;
            const FLOAT: bool = $float;
            type Unit = $unit;
            type Pack = [$unit; PACK_BYTES / size_of::<$unit>()];
            type Word = [$unit; 8 / size_of::<$unit>()];
            #[inline(always)]
            fn to_unit(self) -> $unit { $unit::from(self) }
            #[inline(always)]
            fn of_unit(unit: $unit) -> $t { unit.into() }
            #[inline(always)]
            fn to_bits(self) -> u64 { let $v = self; u64::from($to_bits) }
            #[inline(always)]
            fn of_bits($b: u64) -> $t { $of_bits }
        }
    )* };
}
small_element! {
    i8 => I8, false, I8Unit, |v, b| v as u8, b as i8;
    u8 => U8, false, U8Unit, |v, b| v, b as u8;
    F16 => F16, true, F16Unit, |v, b| v.0, F16(b as u16);
    Bf16 => Bf16, true, Bf16Unit, |v, b| v.0, Bf16(b as u16);
    F8E4M3 => F8E4M3, true, F8E4M3Unit, |v, b| v.0, F8E4M3(b as u8);
    F8E5M2 => F8E5M2, true, F8E5M2Unit, |v, b| v.0, F8E5M2(b as u8);
}

macro_rules! int_arith {
    ($($t:ident as $bits:ident via $wide:ident),*) => { $(
        impl Arith for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
        }
        impl Unit for $t {
            as_it_is!();
            type Factor = $t;
            #[inline(always)]
            fn factor(scalar: u64) -> $t { scalar as $t }
            #[inline(always)]
            fn scalar(self) -> u64 { u64::from(self as $bits) }
            #[inline(always)]
            fn times(self, factor: $t) -> $t { self.wrapping_mul(factor) }
            // The type on the way holds the value and any number of ranks, which are fewer than 2^31.
            type Divisor = $wide;
            #[inline(always)]
            fn divisor(n: u64) -> $wide { n as $wide }
            #[inline(always)]
            fn over(self, n: $wide) -> Self { (self as $wide / n) as $t }
        }
    )* };
}
int_arith! {
    i8 as u8 via i32, u8 as u8 via u32, i32 as u32 via i32, u32 as u32 via u32, i64 as u64 via i64, u64 as u64 via u64
}

macro_rules! float_arith {
    ($($t:ident as $bits:ident: $min:ident, $max:ident;)*) => { $(
        impl Arith for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn min(self, other: Self) -> Self { gpu::$min(self, other) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { gpu::$max(self, other) }
        }
        impl Unit for $t {
            as_it_is!();
            type Factor = $t;
            #[inline(always)]
            fn factor(scalar: u64) -> $t { $t::from_bits(scalar as $bits) }
            #[inline(always)]
            fn scalar(self) -> u64 { u64::from(self.to_bits()) }
            #[inline(always)]
            fn times(self, factor: $t) -> $t { self * factor }
            no_division!();
        }
    )* };
}
float_arith! { f32 as u32: min_f32, max_f32; f64 as u64: min_f64, max_f64; }

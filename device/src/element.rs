//! Element types, and the units that a machine computes on.

use crate::abi::DataType;
use crate::gpu::{Bf16Unit, F16Unit, I8Unit, PACK_BYTES, U8Unit};

/// IEEE 754 binary16, as bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct F16(pub u16);

/// bfloat16, as bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Bf16(pub u16);

/// The type of a buffer's elements, one for each [`DataType`].
pub trait Element: Copy + 'static {
    /// Its name in calls and kernels.
    const TYPE: DataType;
    /// Whether an average scales before it sums (floats) or divides after (integers).
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

/// What an operator needs of a number, or of several that sit in one register.
pub trait Arith: Copy + core::fmt::Debug {
    /// Sum; integers wrap.
    #[must_use]
    fn add(self, other: Self) -> Self;
    /// Product; integers wrap.
    #[must_use]
    fn mul(self, other: Self) -> Self;
    /// Smaller; of a NaN and a number, the number.
    #[must_use]
    fn min(self, other: Self) -> Self;
    /// Larger; of a NaN and a number, the number.
    #[must_use]
    fn max(self, other: Self) -> Self;
}

/// A binary operator, for whatever can be computed on.
pub trait BinOp {
    /// Combines two values.
    fn apply<A: Arith>(a: A, b: A) -> A;
}

/// The unit of arithmetic of a machine.
pub trait Unit: Arith {
    /// What dividing by a number needs, computed once: 1/`n` for floats, `n` for integers.
    type Divisor: Copy + core::fmt::Debug;

    /// The divisor for `n`, which must not be 0 where it is used.
    #[must_use]
    fn divisor(n: u64) -> Self::Divisor;

    /// Floats: this times 1/`n`, rounded once. Integers: this divided by `n`, towards zero.
    #[must_use]
    fn over(self, divisor: Self::Divisor) -> Self;

    /// `to[i] = a[i] op b[i]`, over the shortest. A machine may have a faster way than one by one.
    #[inline(always)]
    fn zip_into<O: BinOp>(to: &mut [Self], a: &[Self], b: &[Self]) {
        to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = O::apply(*a, *b));
    }

    /// `to[i] = to[i] op b[i]`, over the shortest.
    #[inline(always)]
    fn zip_onto<O: BinOp>(to: &mut [Self], b: &[Self]) {
        to.iter_mut().zip(b).for_each(|(to, b)| *to = O::apply(*to, *b));
    }
}

/// A fixed number of units that is loaded, stored and computed on together.
pub trait Array: Copy {
    /// One unit.
    type Item: Unit;
    /// Combines two, unit by unit.
    #[must_use]
    fn zip<O: BinOp>(self, other: Self) -> Self;
    /// [`Unit::over`], unit by unit.
    #[must_use]
    fn over(self, divisor: <Self::Item as Unit>::Divisor) -> Self;
}

impl<U: Unit, const N: usize> Array for [U; N] {
    type Item = U;
    #[inline(always)]
    fn zip<O: BinOp>(self, other: Self) -> Self {
        core::array::from_fn(|i| O::apply(self[i], other[i]))
    }
    #[inline(always)]
    fn over(self, divisor: U::Divisor) -> Self {
        core::array::from_fn(|i| self[i].over(divisor))
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
}

macro_rules! int_arith {
    ($($t:ident via $wide:ident),*) => { $(
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
            // The type on the way holds the value and any number of ranks, which are fewer than 2^31.
            type Divisor = $wide;
            #[inline(always)]
            fn divisor(n: u64) -> $wide { n as $wide }
            #[inline(always)]
            fn over(self, n: $wide) -> Self { (self as $wide / n) as $t }
        }
    )* };
}
int_arith!(i8 via i32, u8 via u32, i32 via i32, u32 via u32, i64 via i64, u64 via u64);

macro_rules! float_arith {
    ($($t:ident),*) => { $(
        impl Arith for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn min(self, other: Self) -> Self { $t::min(self, other) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { $t::max(self, other) }
        }
        impl Unit for $t {
            type Divisor = $t;
            #[inline(always)]
            fn divisor(n: u64) -> $t { 1.0 / n as $t }
            #[inline(always)]
            fn over(self, factor: $t) -> Self { self * factor }
        }
    )* };
}
float_arith!(f32, f64);

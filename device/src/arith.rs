//! Arithmetic, below any machine: what an operator asks of a number, and the bits of the floats that Rust has no type for.
//!
//! A machine ([`gpu`](crate::gpu)) says which of its registers' contents it computes on, and implements these traits
//! for them; [`element`](crate::element) says which of them an element type takes.

use crate::abi::ReduceOp;

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

/// What an operator needs of a number, or of several that sit in one register.
pub trait Arith: Copy + core::fmt::Debug {
    /// Sum; integers wrap.
    #[must_use]
    fn add(self, other: Self) -> Self;
    /// Product; integers wrap.
    #[must_use]
    fn mul(self, other: Self) -> Self;
    /// Smaller; of a NaN and a number, the number; -0 is smaller than +0.
    #[must_use]
    fn min(self, other: Self) -> Self;
    /// Larger; of a NaN and a number, the number; +0 is larger than -0.
    #[must_use]
    fn max(self, other: Self) -> Self;
}

impl<A: Arith, const N: usize> Arith for [A; N] {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        core::array::from_fn(|i| self[i].add(other[i]))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        core::array::from_fn(|i| self[i].mul(other[i]))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        core::array::from_fn(|i| self[i].min(other[i]))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        core::array::from_fn(|i| self[i].max(other[i]))
    }
}

/// A binary operator, for whatever can be computed on.
pub trait BinOp {
    /// Combines two values.
    fn apply<A: Arith>(a: A, b: A) -> A;
}

/// The unit of arithmetic of a machine.
pub trait Unit: Arith {
    /// What more than two values are combined in: f32 for each float of 8 or 16 bits, else the unit itself.
    type Wide: Arith;
    /// Whether [`Unit::Wide`] is another type.
    const WIDENS: bool;
    /// The same values.
    #[must_use]
    fn widen(self) -> Self::Wide;
    /// The values, each rounded once.
    #[must_use]
    fn narrow(wide: Self::Wide) -> Self;

    /// What a pre-multiplied sum multiplies by: f32 for floats of up to 32 bits, f64 for double, else the unit.
    type Factor: Copy + core::fmt::Debug;
    /// The factor in [`Work::scalar`](crate::abi::Work::scalar).
    #[must_use]
    fn factor(scalar: u64) -> Self::Factor;
    /// The bits of the factor that the first element is.
    #[must_use]
    fn scalar(self) -> u64;
    /// This times the factor, rounded once; integers wrap.
    #[must_use]
    fn times(self, factor: Self::Factor) -> Self;

    /// What dividing by a number needs, computed once. Only the averages of integers divide.
    type Divisor: Copy + core::fmt::Debug;
    /// The divisor for `n`, which must not be 0 where it is used.
    #[must_use]
    fn divisor(n: u64) -> Self::Divisor;
    /// Integers: this divided by `n`, towards zero. Floats: this.
    #[must_use]
    fn over(self, divisor: Self::Divisor) -> Self;

    /// Whether two values are combined by more instructions than are worth having for each operator: [`Unit::by`] then
    /// looks at the operator as late as it can.
    const LONG: bool = false;
    /// Combines two values by an operator of which only a running kernel knows.
    #[inline(always)]
    #[must_use]
    fn by(self, other: Self, op: ReduceOp) -> Self {
        match op {
            ReduceOp::Prod => self.mul(other),
            ReduceOp::Min => self.min(other),
            ReduceOp::Max => self.max(other),
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => self.add(other),
        }
    }

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

    /// [`Unit::widen`] of a slice.
    #[inline(always)]
    fn widen_into(to: &mut [Self::Wide], from: &[Self]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
    }

    /// [`Unit::narrow`] of a slice.
    #[inline(always)]
    fn narrow_into(to: &mut [Self], from: &[Self::Wide]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = Self::narrow(*from));
    }
}

/// [`Unit`] of what is combined as it is, however many values there are.
macro_rules! as_it_is {
    () => {
        type Wide = Self;
        const WIDENS: bool = false;
        #[inline(always)]
        fn widen(self) -> Self {
            self
        }
        #[inline(always)]
        fn narrow(wide: Self) -> Self {
            wide
        }
    };
}
pub(crate) use as_it_is;

/// [`Unit`] of floats: they do not divide.
macro_rules! no_division {
    () => {
        type Divisor = ();
        #[inline(always)]
        fn divisor(_: u64) {}
        #[inline(always)]
        fn over(self, (): ()) -> Self {
            self
        }
    };
}
pub(crate) use no_division;

//! What the floating-point types have in common, so that an instruction is written once for all of them.
//!
//! NaNs: binary32 and the half precisions have one NaN for results, 0x7fffffff and 0x7fff (PTX ISA 9.7.3 leaves
//! binary32's open; 9.7.4 calls the halves' canonical). binary64 keeps the payload of its first NaN operand, made
//! quiet (9.7.3: "NaN payloads are supported for double-precision instructions"); where there is none, as in 0 / 0, it is
//! 0x7ff8000000000000. `mov`, `neg`, `abs` and `copysign` touch nothing but the sign.

use super::exact;
use super::lanes::{Lane, Packed, Pair};
use super::round::{Round, Rounding, sum_to_odd, to_f32};

/// A floating-point number.
pub(super) trait Number: Lane {
    /// An integer that orders numbers: minus zero below plus zero. NaNs lie at the ends.
    type Key: Ord;

    /// The canonical NaN.
    const NAN: Self;
    /// Plus zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;

    fn key(self) -> Self::Key;
    fn not_a_number(self) -> bool;
    fn negative(self) -> bool;
    fn negated(self) -> Self;
    fn magnitude(self) -> Self;
    /// A subnormal number becomes the zero of its sign.
    fn flushed(self) -> Self;

    /// The NaN that an operation on these makes; neither needs to be one.
    fn nan_of(_a: Self, _b: Self) -> Self {
        Self::NAN
    }

    fn add<R: Round>(a: Self, b: Self) -> Self;
    fn sub<R: Round>(a: Self, b: Self) -> Self;
    fn mul<R: Round>(a: Self, b: Self) -> Self;
    fn fma<R: Round>(a: Self, b: Self, c: Self) -> Self;
}

/// Numbers that are divided.
pub(super) trait Divided: Number {
    fn div<R: Round>(a: Self, b: Self) -> Self;
    fn sqrt<R: Round>(a: Self) -> Self;
}

/// `.ftz` on a source.
#[inline(always)]
pub(super) fn source<const FTZ: bool, T: Number>(a: T) -> T {
    if FTZ { a.flushed() } else { a }
}

/// `.ftz`, `.sat` and `.relu` on a result. What is flushed is subnormal once rounded. `.sat` makes NaN and minus zero plus zero; so does `.relu`, but that keeps a
/// NaN (PTX ISA 9.7.3.3 and 9.7.4.4).
#[inline(always)]
pub(super) fn result<const FTZ: bool, const SAT: bool, const RELU: bool, T: Number>(r: T) -> T {
    let r = if FTZ { r.flushed() } else { r };
    if SAT {
        let r = if r.not_a_number() || r.negative() { T::ZERO } else { r };
        if r.key() > T::ONE.key() { T::ONE } else { r }
    } else if RELU {
        if r.negative() && !r.not_a_number() { T::ZERO } else { r }
    } else {
        r
    }
}

/// `min` (`LEAST`) and `max`: of a NaN and a number the number, unless `.NaN` asks for the NaN. `.xorsign.abs` takes
/// the magnitudes and the product's sign.
#[inline(always)]
pub(super) fn extremum<const LEAST: bool, const NAN: bool, const XOR: bool, T: Number>(
    a: T,
    b: T,
) -> T {
    let sign = a.negative() != b.negative();
    let (x, y) = if XOR { (a.magnitude(), b.magnitude()) } else { (a, b) };
    let first = if LEAST { x.key() < y.key() } else { x.key() > y.key() };
    let r = if (first & !x.not_a_number()) | y.not_a_number() { x } else { y };
    let nan = if NAN { x.not_a_number() | y.not_a_number() } else { r.not_a_number() };
    let r = if XOR & sign { r.negated() } else { r };
    if nan { T::nan_of(a, b) } else { r }
}

macro_rules! machine_number {
    ($T:ident $key:ident $unsigned:ident $bits:literal) => {
        type Key = $key;

        const ZERO: $T = 0.0;
        const ONE: $T = 1.0;

        #[inline(always)]
        fn key(self) -> $key {
            let bits = self.to_bits() as $key;
            bits ^ ((bits >> ($bits - 1)) & $key::MAX)
        }

        #[inline(always)]
        fn not_a_number(self) -> bool {
            self.is_nan()
        }

        #[inline(always)]
        fn negative(self) -> bool {
            self.is_sign_negative()
        }

        #[inline(always)]
        fn negated(self) -> $T {
            -self
        }

        #[inline(always)]
        fn magnitude(self) -> $T {
            self.abs()
        }

        #[inline(always)]
        fn flushed(self) -> $T {
            let sign = self.to_bits() & 1 << ($bits - 1);
            if self.abs() < $T::MIN_POSITIVE { $T::from_bits(sign) } else { self }
        }
    };
}

/// Told by its bits: which NaN an operation of Rust's makes is not defined, so a comparison of numbers here could be
/// optimised away.
#[inline(always)]
pub(super) fn canonical(r: f32) -> f32 {
    let bits = r.to_bits();
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    f32::from_bits(if nan { <f32 as Number>::NAN.to_bits() } else { bits })
}

impl Number for f32 {
    machine_number!(f32 i32 u32 32);

    const NAN: f32 = f32::from_bits(0x7fff_ffff);

    #[inline(always)]
    fn add<R: Round>(a: f32, b: f32) -> f32 {
        canonical(match R::ROUNDING {
            Rounding::Nearest => a + b,
            _ => to_f32::<R>(sum_to_odd::<R>(a.into(), b.into())),
        })
    }

    #[inline(always)]
    fn sub<R: Round>(a: f32, b: f32) -> f32 {
        Self::add::<R>(a, -b)
    }

    #[inline(always)]
    fn mul<R: Round>(a: f32, b: f32) -> f32 {
        canonical(match R::ROUNDING {
            Rounding::Nearest => a * b,
            _ => to_f32::<R>(f64::from(a) * f64::from(b)), // exact: 48 bits
        })
    }

    #[inline(always)]
    fn fma<R: Round>(a: f32, b: f32, c: f32) -> f32 {
        let product = f64::from(a) * f64::from(b); // exact: 48 bits
        canonical(to_f32::<R>(sum_to_odd::<R>(product, c.into())))
    }
}

impl Divided for f32 {
    #[inline(always)]
    fn div<R: Round>(a: f32, b: f32) -> f32 {
        canonical(match R::ROUNDING {
            Rounding::Nearest => a / b,
            _ => to_f32::<R>(f64::from(a) / f64::from(b)), // see `round`
        })
    }

    #[inline(always)]
    fn sqrt<R: Round>(a: f32) -> f32 {
        canonical(match R::ROUNDING {
            Rounding::Nearest => a.sqrt(),
            _ => to_f32::<R>(f64::from(a).sqrt()), // see `round`
        })
    }
}

/// `r`, or the NaN of the sources if it is one; by its bits as in [`canonical`].
#[inline(always)]
fn with_payload(r: f64, a: f64, b: f64) -> f64 {
    let bits = r.to_bits();
    let nan = bits & (u64::MAX >> 1) > 0x7ff << 52;
    f64::from_bits(if nan { f64::nan_of(a, b).to_bits() } else { bits })
}

impl Number for f64 {
    machine_number!(f64 i64 u64 64);

    const NAN: f64 = f64::from_bits(0x7ff8_0000_0000_0000);

    #[inline(always)]
    fn nan_of(a: f64, b: f64) -> f64 {
        let nan = if a.is_nan() { a.to_bits() } else { b.to_bits() };
        let is_nan = nan & (u64::MAX >> 1) > 0x7ff << 52;
        f64::from_bits(if is_nan { nan | 1 << 51 } else { <f64 as Number>::NAN.to_bits() })
    }

    #[inline(always)]
    fn add<R: Round>(a: f64, b: f64) -> f64 {
        let sum = if R::ROUNDING == Rounding::Nearest { a + b } else { exact::add::<R>(a, b) };
        with_payload(sum, a, b)
    }

    #[inline(always)]
    fn sub<R: Round>(a: f64, b: f64) -> f64 {
        let rest = if R::ROUNDING == Rounding::Nearest { a - b } else { exact::add::<R>(a, -b) };
        with_payload(rest, a, b)
    }

    #[inline(always)]
    fn mul<R: Round>(a: f64, b: f64) -> f64 {
        let product = if R::ROUNDING == Rounding::Nearest { a * b } else { exact::mul::<R>(a, b) };
        with_payload(product, a, b)
    }

    #[inline(always)]
    fn fma<R: Round>(a: f64, b: f64, c: f64) -> f64 {
        let nearest = R::ROUNDING == Rounding::Nearest;
        let r = if nearest { a.mul_add(b, c) } else { exact::fma::<R>(a, b, c) };
        let second = if b.is_nan() { b } else { c };
        with_payload(r, a, second)
    }
}

impl Divided for f64 {
    #[inline(always)]
    fn div<R: Round>(a: f64, b: f64) -> f64 {
        let q = if R::ROUNDING == Rounding::Nearest { a / b } else { exact::div::<R>(a, b) };
        with_payload(q, a, b)
    }

    #[inline(always)]
    fn sqrt<R: Round>(a: f64) -> f64 {
        let r = if R::ROUNDING == Rounding::Nearest { a.sqrt() } else { exact::sqrt::<R>(a) };
        with_payload(r, a, a)
    }
}

/// One operation for numbers and for pairs of numbers.
pub(super) trait Elements: Lane {
    /// What there is one or two of.
    type Element: Number;

    fn map(a: Self, f: impl Fn(Self::Element) -> Self::Element) -> Self;
    fn map2(a: Self, b: Self, f: impl Fn(Self::Element, Self::Element) -> Self::Element) -> Self;
    fn map3(
        a: Self,
        b: Self,
        c: Self,
        f: impl Fn(Self::Element, Self::Element, Self::Element) -> Self::Element,
    ) -> Self;
}

impl<T: Number> Elements for T {
    type Element = T;

    #[inline(always)]
    fn map(a: T, f: impl Fn(T) -> T) -> T {
        f(a)
    }

    #[inline(always)]
    fn map2(a: T, b: T, f: impl Fn(T, T) -> T) -> T {
        f(a, b)
    }

    #[inline(always)]
    fn map3(a: T, b: T, c: T, f: impl Fn(T, T, T) -> T) -> T {
        f(a, b, c)
    }
}

impl<T: Number + Packed> Elements for Pair<T> {
    type Element = T;

    #[inline(always)]
    fn map(a: Pair<T>, f: impl Fn(T) -> T) -> Pair<T> {
        Pair(f(a.0), f(a.1))
    }

    #[inline(always)]
    fn map2(a: Pair<T>, b: Pair<T>, f: impl Fn(T, T) -> T) -> Pair<T> {
        Pair(f(a.0, b.0), f(a.1, b.1))
    }

    #[inline(always)]
    fn map3(a: Pair<T>, b: Pair<T>, c: Pair<T>, f: impl Fn(T, T, T) -> T) -> Pair<T> {
        Pair(f(a.0, b.0, c.0), f(a.1, b.1, c.1))
    }
}

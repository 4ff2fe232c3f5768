//! The half precisions: binary16 and bfloat16 (PTX ISA 5.2.1 and 5.2.3), and arithmetic rounded once.
//!
//! Sums, differences and products are computed in binary32 and rounded again. That is the same as rounding once:
//! a format of p bits, through one of at least 2 p + 2, shows no double rounding in them (Figueroa, "When is
//! double rounding innocuous?", SIGNUM Newsletter 30(3), 1995), and 24 >= 2 * 11 + 2 >= 2 * 8 + 2. Where results are
//! subnormal:
//!
//! * binary16's sums and differences are multiples of 2^-24, its least number, and products have 22 bits above
//!   2^-49: binary32 has them all exactly.
//! * bfloat16's least number is 2^-133. Sums are multiples of it, and exact. A product has at most 16 bits: if it
//!   is 2^-134 or more, they end above 2^-150 and binary32, whose least number is 2^-149, has it exactly; if it is less, it
//!   rounds to zero in bfloat16, and binary32 makes at most 2^-134 of it, a tie that goes to zero as well.
//!
//! In a fused multiply-add the theorem does not hold, so the sum is rounded to odd (see [`super::round`]):
//!
//! * binary16: the product has 22 bits between 2^-48 and 2^33, exact in binary32. The sum is rounded to odd in binary32's
//!   24 bits, two more than 11 and one.
//! * bfloat16: the product has 16 bits between 2^-266 and 2^257, exact in binary64. The sum is rounded to odd there.

use super::lanes::{Lane, Packed};
use super::number::Number;
use super::round::{Nearest, Round, sum_to_odd, to_odd_32};
use crate::types::Type;

/// A binary16 number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct F16(pub(super) u16);

/// A bfloat16 number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bf16(pub(super) u16);

/// A number of 16 bits and its value.
pub(super) trait Half: Number + Packed {
    fn to_f32(self) -> f32;
    /// To nearest, ties to even.
    fn from_f32(x: f32) -> Self;
}

impl Half for F16 {
    /// The exponent and mantissa of binary16 in binary32's places are the number divided by 2^112, subnormal or not.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = u32::from(self.0);
        let magnitude = bits << 13 & 0x0fff_e000;
        let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let beyond = magnitude | 0x7f80_0000;
        let value = if magnitude >= 0x0f80_0000 { beyond } else { scaled.to_bits() };
        f32::from_bits(value | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn from_f32(x: f32) -> F16 {
        let bits = x.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let sign = (bits >> 16) & 0x8000;
        // Halves beside 0.5 are 2^-24 apart, as binary16's subnormal numbers are: the addition rounds to them.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        // Half a unit, less one if the last bit kept is even; a carry goes into the exponent.
        let round = 0xfff + (magnitude >> 13 & 1);
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(round) >> 13;
        let finite = if magnitude < 0x3880_0000 { small } else { normal };
        // 65520 is half-way between the largest number and the one that there is no more.
        let value = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
        if magnitude > 0x7f80_0000 { F16(0x7fff) } else { F16((value | sign) as u16) }
    }
}

impl Half for Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// The same exponents: a carry out of the largest number's mantissa makes an infinity.
    #[inline(always)]
    fn from_f32(x: f32) -> Bf16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        if x.is_nan() { Bf16(0x7fff) } else { Bf16(rounded as u16) }
    }
}

impl Bf16 {
    /// To nearest, ties to even.
    #[inline(always)]
    fn from_f64(x: f64) -> Bf16 {
        let bits = x.to_bits();
        let magnitude = bits & (u64::MAX >> 1);
        let sign = bits >> 48 & 0x8000;
        // Beside 1.5 * 2^-81, numbers of binary64 are 2^-133 apart, as bfloat16's subnormal numbers are.
        let anchor = f64::from_bits((1023 - 81) << 52 | 1 << 51);
        let small = (f64::from_bits(magnitude) + anchor).to_bits().wrapping_sub(anchor.to_bits());
        let round = (1 << 44) - 1 + (magnitude >> 45 & 1);
        let normal = magnitude.wrapping_sub((1023 - 127) << 52).wrapping_add(round) >> 45;
        let finite = if magnitude < (1023 - 126) << 52 { small } else { normal };
        // Half-way between the largest number and the one that there is no more.
        const BEYOND: u64 = (1023 + 127) << 52 | 0xff << 44;
        let value = if magnitude >= BEYOND { 0x7f80 } else { finite };
        if x.is_nan() { Bf16(0x7fff) } else { Bf16((value | sign) as u16) }
    }
}

macro_rules! half {
    ($T:ident $name:ident $pair:ident $infinity:literal $normal:literal $one:literal $fma:expr) => {
        impl Lane for $T {
            const TYPE: Type = Type::$name;

            #[inline(always)]
            fn read(bits: u64) -> $T {
                $T(bits as u16)
            }

            #[inline(always)]
            fn write(self) -> u64 {
                u64::from(self.0)
            }
        }

        impl Packed for $T {
            const PAIR: Type = Type::$pair;
        }

        impl Number for $T {
            type Key = i16;

            const NAN: $T = $T(0x7fff);
            const ZERO: $T = $T(0);
            const ONE: $T = $T($one);

            #[inline(always)]
            fn key(self) -> i16 {
                let bits = self.0 as i16;
                bits ^ ((bits >> 15) & i16::MAX)
            }

            #[inline(always)]
            fn not_a_number(self) -> bool {
                self.0 & 0x7fff > $infinity
            }

            #[inline(always)]
            fn negative(self) -> bool {
                self.0 & 0x8000 != 0
            }

            #[inline(always)]
            fn negated(self) -> $T {
                $T(self.0 ^ 0x8000)
            }

            #[inline(always)]
            fn magnitude(self) -> $T {
                $T(self.0 & 0x7fff)
            }

            #[inline(always)]
            fn flushed(self) -> $T {
                if self.0 & 0x7fff < $normal { $T(self.0 & 0x8000) } else { self }
            }

            #[inline(always)]
            fn add<R: Round>(a: $T, b: $T) -> $T {
                $T::from_f32(a.to_f32() + b.to_f32())
            }

            #[inline(always)]
            fn sub<R: Round>(a: $T, b: $T) -> $T {
                $T::from_f32(a.to_f32() - b.to_f32())
            }

            #[inline(always)]
            fn mul<R: Round>(a: $T, b: $T) -> $T {
                $T::from_f32(a.to_f32() * b.to_f32())
            }

            #[inline(always)]
            fn fma<R: Round>(a: $T, b: $T, c: $T) -> $T {
                let fma: fn(f32, f32, f32) -> $T = $fma;
                fma(a.to_f32(), b.to_f32(), c.to_f32())
            }
        }

        /// The order of the values, in which NaNs have no place.
        impl PartialOrd for $T {
            #[inline(always)]
            fn partial_cmp(&self, other: &$T) -> Option<std::cmp::Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }
    };
}
half! { F16 F16 F16x2 0x7c00 0x0400 0x3c00 |a, b, c| {
    let product = a * b;
    let sum = product + c;
    let c_part = sum - product;
    let error = (product - (sum - c_part)) + (c - c_part);
    F16::from_f32(to_odd_32(sum, error))
}}
half! { Bf16 Bf16 Bf16x2 0x7f80 0x0080 0x3f80 |a, b, c| {
    Bf16::from_f64(sum_to_odd::<Nearest>(f64::from(a) * f64::from(b), c.into()))
}}

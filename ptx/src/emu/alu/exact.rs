//! Numbers as integers times powers of two, and their rounding into any format, once.
//!
//! What no wider format of the machine holds goes through here: binary64 in directed rounding, and all
//! conversions into narrow formats. It is slower than the machine's own operations and simpler to trust.
//!
//! Invariant: an [`Exact`] lies at or above `mantissa * 2^exponent` in magnitude, and less than one unit
//! above it; it lies above it exactly if `more`. A mantissa with `more` has at least 64 bits, so the unit is
//! far below what any format keeps.

use super::round::{Round, Rounding};

/// A magnitude with a sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    pub(super) negative: bool,
    pub(super) mantissa: u128,
    pub(super) exponent: i32,
    pub(super) more: bool,
}

/// A binary floating-point format.
pub(super) trait Format {
    /// Bits of the mantissa that are stored.
    const MANTISSA: u32;
    /// Bits of the exponent.
    const EXPONENT: u32;
    /// The largest finite number.
    const MAX: u64;
    /// What a NaN becomes.
    const NAN: u64;
    /// What becomes of a number beyond the largest: infinity, where there is one.
    const BEYOND: u64 = Self::MAX + 1;
    /// The sign bit.
    const SIGN: u64 = 1 << (Self::MANTISSA + Self::EXPONENT);
    /// The exponent of the least normal number.
    const LEAST: i32 = 2 - (1 << (Self::EXPONENT - 1));
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident $mantissa:literal $exponent:literal $max:literal $nan:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $name;

            impl Format for $name {
                const MANTISSA: u32 = $mantissa;
                const EXPONENT: u32 = $exponent;
                const MAX: u64 = $max;
                const NAN: u64 = $nan;
            }
        )*
    };
}
formats! {
    /// binary64 (IEEE 754).
    Binary64 52 11 0x7fef_ffff_ffff_ffff 0x7ff8_0000_0000_0000;
    /// binary32 (IEEE 754).
    Binary32 23 8 0x7f7f_ffff 0x7fff_ffff;
    /// binary16 (IEEE 754).
    Binary16 10 5 0x7bff 0x7fff;
    /// bfloat16: binary32's upper half (PTX ISA 5.2.3).
    Bfloat16 7 8 0x7f7f 0x7fff;
    /// tf32 without the 13 low bits that it does not use (PTX ISA 5.2.3).
    Tensor32 10 8 0x3fbff 0x3ffff;
    /// e5m2: binary16's upper half (PTX ISA 5.2.3; "FP8 Formats for Deep Learning", arXiv 2209.05433, table 1).
    E5m2 2 5 0x7b 0x7f;
}

/// e4m3: no infinity, and all ones is the only NaN, so its largest number is 448 (the same sources).
pub(super) struct E4m3;

impl Format for E4m3 {
    const MANTISSA: u32 = 3;
    const EXPONENT: u32 = 4;
    const MAX: u64 = 0x7e;
    const NAN: u64 = 0x7f;
}

/// What rounding does with a fraction beyond the last bit that is kept.
pub(super) trait Direction {
    /// Whether the magnitude goes up: `odd` is the last bit that is kept; the rest is compared with a half.
    fn up(negative: bool, odd: bool, rest: std::cmp::Ordering, exact: bool) -> bool;

    /// Whether a magnitude beyond the largest number becomes infinite.
    fn overflows(negative: bool) -> bool;
}

impl<R: Round> Direction for R {
    #[inline(always)]
    fn up(negative: bool, odd: bool, rest: std::cmp::Ordering, exact: bool) -> bool {
        match R::ROUNDING {
            Rounding::Nearest => rest.is_gt() || rest.is_eq() && odd,
            Rounding::Zero => false,
            Rounding::Down => negative && !exact,
            Rounding::Up => !negative && !exact,
        }
    }

    #[inline(always)]
    fn overflows(negative: bool) -> bool {
        match R::ROUNDING {
            Rounding::Nearest => true,
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        }
    }
}

/// `.rna`: to nearest, ties away from zero.
pub(super) struct Away;

impl Direction for Away {
    #[inline(always)]
    fn up(_: bool, _: bool, rest: std::cmp::Ordering, _: bool) -> bool {
        rest.is_ge()
    }

    #[inline(always)]
    fn overflows(_: bool) -> bool {
        true
    }
}

impl Exact {
    /// The value of a finite binary64 number.
    #[inline(always)]
    pub(super) fn of(x: f64) -> Exact {
        let bits = x.to_bits();
        let exponent = (bits >> 52 & 0x7ff) as i32;
        let stored = bits & ((1 << 52) - 1);
        let mantissa = if exponent == 0 { stored } else { stored | 1 << 52 };
        Exact {
            negative: x.is_sign_negative(),
            mantissa: u128::from(mantissa),
            exponent: exponent.max(1) - 1075,
            more: false,
        }
    }

    /// The same with a mantissa of exactly 53 bits; not for zero.
    fn normalised(x: f64) -> Exact {
        let mut of = Exact::of(x);
        let shift = of.mantissa.leading_zeros().saturating_sub(128 - 53);
        of.mantissa <<= shift;
        of.exponent -= shift as i32;
        of
    }

    /// An integer.
    #[inline(always)]
    pub(super) fn integer(x: i128) -> Exact {
        Exact { negative: x < 0, mantissa: x.unsigned_abs(), exponent: 0, more: false }
    }

    /// Its bits in a format. The sign of a zero is kept; `saturate` puts the largest number in place of all beyond.
    #[inline]
    pub(super) fn round<F: Format, D: Direction>(self, saturate: bool) -> u64 {
        let sign = if self.negative { F::SIGN } else { 0 };
        if self.mantissa == 0 {
            return sign;
        }
        let top = 127 - self.mantissa.leading_zeros() as i32 + self.exponent;
        let scale = top.max(F::LEAST);
        let drop = scale - F::MANTISSA as i32 - self.exponent;
        let kept = if drop <= 0 {
            // No `more` here: it comes with 64 bits, and no format keeps as many.
            self.mantissa << -drop
        } else {
            let (kept, rest) = match drop {
                1..=127 => {
                    let rest = self.mantissa << (128 - drop);
                    (self.mantissa >> drop, (rest.cmp(&(1 << 127)), rest == 0))
                }
                // The whole mantissa is less than half a unit, unless it is all of 128 bits.
                128 => (0, (self.mantissa.cmp(&(1 << 127)), false)),
                _ => (0, (std::cmp::Ordering::Less, false)),
            };
            let (mut half, mut exact) = rest;
            if self.more {
                exact = false;
                if half.is_eq() {
                    half = std::cmp::Ordering::Greater;
                }
            }
            kept + u128::from(D::up(self.negative, kept & 1 != 0, half, exact))
        };
        // A mantissa that is rounded up to the next power of two carries into the exponent, as it should.
        let bits = ((scale - F::LEAST) as u128) << F::MANTISSA;
        let bits = bits + kept;
        let bits = if bits <= u128::from(F::MAX) {
            bits as u64
        } else if !saturate && D::overflows(self.negative) {
            F::BEYOND
        } else {
            F::MAX
        };
        sign | bits
    }
}

/// A sum. The zero that two opposite numbers make is the caller's to sign.
fn sum(a: Exact, b: Exact) -> Exact {
    // The one with the larger exponent is moved up as far as it goes, the other down by the rest.
    let (high, low) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
    let apart = (high.exponent - low.exponent) as u32;
    let room = high.mantissa.leading_zeros().saturating_sub(2);
    let up = apart.min(room);
    let down = apart - up;
    let large = high.mantissa << up;
    let (small, lost) = match down {
        0 => (low.mantissa, false),
        1..=127 => (low.mantissa >> down, low.mantissa << (128 - down) != 0),
        _ => (0, low.mantissa != 0),
    };
    let exponent = high.exponent - up as i32;
    let (negative, mantissa) = if high.negative == low.negative {
        (high.negative, large + small)
    } else if large >= small {
        // What was lost of the smaller counts against the result: it lies between this and one less.
        (high.negative, large - small - u128::from(lost))
    } else {
        (low.negative, small - large)
    };
    Exact { negative, mantissa, exponent, more: lost }
}

/// `a + b` of binary64. Infinities, NaNs and zeros are as exact in one rounding as in another.
pub(super) fn add<R: Round>(a: f64, b: f64) -> f64 {
    let plain = if R::ROUNDING == Rounding::Down { -(-a - b) } else { a + b };
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 || a == -b {
        return plain;
    }
    rounded::<R>(sum(Exact::of(a), Exact::of(b)))
}

/// `a * b` of binary64.
pub(super) fn mul<R: Round>(a: f64, b: f64) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a * b;
    }
    rounded::<R>(product(a, b))
}

/// The product of two numbers, of 105 or 106 bits.
fn product(a: f64, b: f64) -> Exact {
    let (a, b) = (Exact::normalised(a), Exact::normalised(b));
    Exact {
        negative: a.negative != b.negative,
        mantissa: a.mantissa * b.mantissa,
        exponent: a.exponent + b.exponent,
        more: false,
    }
}

/// `a * b + c` of binary64.
pub(super) fn fma<R: Round>(a: f64, b: f64, c: f64) -> f64 {
    if !c.is_finite() && a.is_finite() && b.is_finite() {
        return c; // whatever the product, be it beyond the largest number
    }
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        let product = a * b;
        return if R::ROUNDING == Rounding::Down { -(-product - c) } else { product + c };
    }
    if c == 0.0 {
        return rounded::<R>(product(a, b));
    }
    // Of two mantissas of 105 and 53 bits, the one with the larger exponent has 21 and 73 bits of room. If that is
    // not enough, the other lies at least 18 bits below it: nothing cancels, and `more` has its 64 bits.
    let exact = sum(product(a, b), Exact::normalised(c));
    if exact.mantissa == 0 {
        return if R::ROUNDING == Rounding::Down { -0.0 } else { 0.0 };
    }
    rounded::<R>(exact)
}

/// `a / b` of binary64.
pub(super) fn div<R: Round>(a: f64, b: f64) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a / b;
    }
    let (a, b) = (Exact::normalised(a), Exact::normalised(b));
    let dividend = a.mantissa << 74; // of 127 bits, so that the quotient has 74 or 75
    rounded::<R>(Exact {
        negative: a.negative != b.negative,
        mantissa: dividend / b.mantissa,
        exponent: a.exponent - 74 - b.exponent,
        more: dividend % b.mantissa != 0,
    })
}

/// The square root of binary64.
pub(super) fn sqrt<R: Round>(a: f64) -> f64 {
    if !a.is_finite() || a <= 0.0 {
        return a.sqrt();
    }
    let a = Exact::normalised(a);
    let shift = 74 - (a.exponent & 1); // an even exponent, and a mantissa of 126 or 127 bits
    let square = a.mantissa << shift;
    let mantissa = square.isqrt();
    // The root has 63 or 64 bits: `more` is still eight bits and more below what binary64 keeps.
    rounded::<R>(Exact {
        negative: false,
        mantissa,
        exponent: (a.exponent - shift) / 2,
        more: mantissa * mantissa != square,
    })
}

fn rounded<R: Round>(x: Exact) -> f64 {
    f64::from_bits(x.round::<Binary64, R>(false))
}

/// A binary64 number in a format. `saturate` puts the largest number in place of all beyond it, infinities too.
#[inline]
pub(super) fn narrow<F: Format, D: Direction>(x: f64, saturate: bool) -> u64 {
    if x.is_nan() {
        return F::NAN;
    }
    if x.is_infinite() {
        let sign = if x < 0.0 { F::SIGN } else { 0 };
        return sign | if saturate { F::MAX } else { F::BEYOND };
    }
    Exact::of(x).round::<F, D>(saturate)
}

/// To nearest, where the machine itself says what is right.
#[cfg(test)]
mod tests {
    use super::{add, div, fma, mul, sqrt};
    use crate::emu::alu::round::Nearest;

    fn next(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Numbers of all sizes, or of a few bits near one.
    fn number(state: &mut u64) -> f64 {
        let x = next(state);
        if x & 1 == 0 {
            return f64::from_bits(next(state));
        }
        let few = 1.0 + f64::from_bits((1023 - x % 60) << 52);
        let scale = f64::from_bits((1023 - 80 + (x >> 8) % 160) << 52);
        few * scale * if x & 2 == 0 { 1.0 } else { -1.0 }
    }

    #[test]
    fn nearest_is_the_machines() {
        let mut state = 0x9e37_79b9;
        let same = |what: &str, x: [f64; 3], ours: f64, machines: f64| {
            let equal = ours.to_bits() == machines.to_bits() || ours.is_nan() && machines.is_nan();
            assert!(equal, "{what} of {x:x?} is {machines:e}, not {ours:e}");
        };
        for _ in 0..200_000 {
            let x @ [a, b, c] = [0; 3].map(|_| number(&mut state));
            same("a + b", x, add::<Nearest>(a, b), a + b);
            same("a * b", x, mul::<Nearest>(a, b), a * b);
            same("a / b", x, div::<Nearest>(a, b), a / b);
            same("sqrt a", x, sqrt::<Nearest>(a), a.sqrt());
            same("a * b + c", x, fma::<Nearest>(a, b, c), a.mul_add(b, c));
        }
        // Products that are ties, and an addend too far below to be seen but as more or less than a tie.
        for i in 1..53 {
            for below in 60..300 {
                let power = |e: i32| 2f64.powi(e);
                let (a, b) = (1.0 + power(-i), 1.0 + power(i - 53));
                for c in [power(-below), -power(-below), 0.0] {
                    same("a * b + c", [a, b, c], fma::<Nearest>(a, b, c), a.mul_add(b, c));
                }
            }
        }
    }
}

//! Rounding: the four directions as types, and results rounded once.
//!
//! Rust's operators round to nearest. The others are found without a rounding mode of the machine:
//!
//! * A result of binary32 is first computed in binary64 **rounded to odd**: if it is not exact, the neighbour with the
//!   odd mantissa is taken. Such a value keeps on which side of every binary32 number and of every midpoint
//!   between two the exact result lies, since it has more than two bits beyond them. Rounding it once more,
//!   in any direction, gives what rounding the exact result gives (Boldo and Melquiond, "Emulation of FMA and
//!   correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008).
//!   binary64 holds all exponents that products of binary32 can have. Whether a sum is exact is told by its error,
//!   itself a number, which Knuth's two-sum finds.
//! * Quotients and roots of binary32 need no such care: binary64's nearest, rounded once more in a direction, is right.
//!   It would be wrong only if it were a number y of binary32 and the exact result were not. But a / b and y are apart
//!   by more than 2^-48 of y, so that binary64 tells them apart: a, b and y are integers below 2^24 times powers of
//!   two, so a and y b, of which the smaller power divides the difference, differ by 2^-48 of y b or more. For
//!   a root, a and y^2 do, and the root and y half as much.
//! * A result of binary64 is computed in integers, in [`super::exact`].

/// A rounding of floating-point results (PTX ISA 9.7.3: `.rn`, `.rz`, `.rm`, `.rp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    /// `.rn`: to nearest, ties to even.
    Nearest,
    /// `.rz`: towards zero.
    Zero,
    /// `.rm`: towards minus infinity.
    Down,
    /// `.rp`: towards infinity.
    Up,
}

impl Rounding {
    /// Its name, without the dot.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Rounding::Nearest => "rn",
            Rounding::Zero => "rz",
            Rounding::Down => "rm",
            Rounding::Up => "rp",
        }
    }
}

/// A rounding as a type.
pub(super) trait Round {
    const ROUNDING: Rounding;
}

pub(super) struct Nearest;
pub(super) struct Zero;
pub(super) struct Down;
pub(super) struct Up;

impl Round for Nearest {
    const ROUNDING: Rounding = Rounding::Nearest;
}

impl Round for Zero {
    const ROUNDING: Rounding = Rounding::Zero;
}

impl Round for Down {
    const ROUNDING: Rounding = Rounding::Down;
}

impl Round for Up {
    const ROUNDING: Rounding = Rounding::Up;
}

/// A number and which way the exact one lies from it, rounded to odd.
#[inline(always)]
pub(super) fn to_odd(x: f64, error: f64) -> f64 {
    let bits = x.to_bits();
    // A NaN for an error comes of infinities, which are exact.
    let inexact = (error > 0.0) | (error < 0.0);
    let outwards = (error > 0.0) == (x > 0.0);
    let neighbour = if outwards { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact & (bits & 1 == 0) { neighbour } else { bits })
}

/// The same in binary32, which serves where its range and 24 bits are enough.
#[inline(always)]
pub(super) fn to_odd_32(x: f32, error: f32) -> f32 {
    let bits = x.to_bits();
    let inexact = (error > 0.0) | (error < 0.0);
    let outwards = (error > 0.0) == (x > 0.0);
    let neighbour = if outwards { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if inexact & (bits & 1 == 0) { neighbour } else { bits })
}

/// The sum of two numbers that are far from binary64's ends, rounded to odd. A sum of zero is exact and has the sign
/// that the rounding gives it: minus zero downwards, unless both are plus zero (IEEE 754, 6.3).
#[inline(always)]
pub(super) fn sum_to_odd<R: Round>(a: f64, b: f64) -> f64 {
    let sum = match R::ROUNDING {
        Rounding::Down => -(-a - b),
        _ => a + b,
    };
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    to_odd(sum, error)
}

/// A binary64 number in binary32.
#[inline(always)]
pub(super) fn to_f32<R: Round>(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let step_up = match R::ROUNDING {
        Rounding::Nearest => return nearest,
        Rounding::Up => back < x,
        Rounding::Down => false,
        Rounding::Zero => x < 0.0 && back < x,
    };
    let step_down = match R::ROUNDING {
        Rounding::Nearest | Rounding::Up => false,
        Rounding::Down => back > x,
        Rounding::Zero => x > 0.0 && back > x,
    };
    // From an infinity the step leads to the largest number, which is where overflows end that way.
    if step_up {
        nearest.next_up()
    } else if step_down {
        nearest.next_down()
    } else {
        nearest
    }
}

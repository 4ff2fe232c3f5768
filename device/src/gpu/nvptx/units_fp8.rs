//! 8-bit floats, four of them in one 32-bit register.
//!
//! Two values are combined as halves where the chip converts (sm_89 and later): that gives the bits that f32 gives, as
//! the tests of [`crate::fp8`] see to. Other chips convert in bits to f32 and back.

#[cfg(native_fp8)]
use core::arch::asm;

#[cfg(not(native_fp8))]
use super::opaque;
#[cfg(native_fp8)]
use super::units::F16Unit;
#[cfg(not(native_fp8))]
use crate::abi::ReduceOp;
use crate::arith::{Arith, Unit, no_division};
use crate::fp8::{F8E4M3, F8E5M2};

macro_rules! float8 {
    ($($(#[$m:meta])* $unit:ident, $element:ident, $to_halves:literal, $of_halves:literal, $of_f32:literal;)*) => { $(
        $(#[$m])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug)]
        pub struct $unit(u32);

        impl From<$element> for $unit {
            #[inline(always)]
            fn from(value: $element) -> Self {
                $unit(u32::from(value.0))
            }
        }

        impl From<$unit> for $element {
            #[inline(always)]
            fn from(unit: $unit) -> Self {
                $element(unit.0 as u8)
            }
        }

        #[cfg(native_fp8)]
        impl $unit {
            /// The first two, and the last two.
            #[inline(always)]
            fn halves(self) -> [F16Unit; 2] {
                let halves = |pair: u16| {
                    let d: u32;
                    // SAFETY: arithmetic on registers. 9.7.9.21, `cvt`.
                    unsafe {
                        asm!($to_halves, out(reg32) d, in(reg16) pair,
                            options(pure, nomem, nostack, preserves_flags));
                    }
                    F16Unit::of_bits(d)
                };
                [halves(self.0 as u16), halves((self.0 >> 16) as u16)]
            }

            #[inline(always)]
            fn of_halves([low, high]: [F16Unit; 2]) -> Self {
                let bytes = |pair: F16Unit| {
                    let d: u16;
                    // SAFETY: arithmetic on registers. 9.7.9.21, `cvt`.
                    unsafe {
                        asm!($of_halves, out(reg16) d, in(reg32) pair.to_bits(),
                            options(pure, nomem, nostack, preserves_flags));
                    }
                    u32::from(d)
                };
                $unit(bytes(low) | bytes(high) << 16)
            }

            /// `op` on all four, as halves.
            #[inline(always)]
            fn combine(self, other: Self, op: impl Fn(F16Unit, F16Unit) -> F16Unit) -> Self {
                let (a, b) = (self.halves(), other.halves());
                Self::of_halves([op(a[0], b[0]), op(a[1], b[1])])
            }
        }

        #[cfg(native_fp8)]
        impl Arith for $unit {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.combine(other, F16Unit::add)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.combine(other, F16Unit::mul)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                self.combine(other, F16Unit::min)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                self.combine(other, F16Unit::max)
            }
        }

        #[cfg(not(native_fp8))]
        impl $unit {
            /// `op` on each. A loop that is not unrolled: conversions in bits are long, and many at a time take more
            /// registers than a lane has.
            #[inline(always)]
            fn combine(self, other: Self, op: impl Fn(f32, f32) -> f32) -> Self {
                let (mut bits, mut shift) = (0, 0);
                let end = opaque(32) as u32;
                while shift < end {
                    let value = |unit: Self| f32::from($element((unit.0 >> shift) as u8));
                    bits |= u32::from($element::from(op(value(self), value(other))).0) << shift;
                    shift += 8;
                }
                $unit(bits)
            }
        }

        #[cfg(not(native_fp8))]
        impl Arith for $unit {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.combine(other, Arith::add)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.combine(other, Arith::mul)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                self.combine(other, Arith::min)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                self.combine(other, Arith::max)
            }
        }

        impl Unit for $unit {
            type Wide = [f32; 4];
            const WIDENS: bool = true;

            #[cfg(native_fp8)]
            #[inline(always)]
            fn widen(self) -> [f32; 4] {
                let [low, high] = self.halves();
                let ([a, b], [c, d]) = (low.widen(), high.widen());
                [a, b, c, d]
            }

            #[cfg(native_fp8)]
            #[inline(always)]
            fn narrow([a, b, c, d]: [f32; 4]) -> Self {
                let bytes = |low: f32, high: f32| {
                    let d: u16;
                    // SAFETY: arithmetic on registers. 9.7.9.21, `cvt`: the first source becomes the upper byte.
                    unsafe {
                        asm!($of_f32, out(reg16) d, in(reg32) high, in(reg32) low,
                            options(pure, nomem, nostack, preserves_flags));
                    }
                    u32::from(d)
                };
                $unit(bytes(a, b) | bytes(c, d) << 16)
            }

            #[cfg(not(native_fp8))]
            #[inline(always)]
            fn widen(self) -> [f32; 4] {
                let byte = |i: u32| f32::from($element((self.0 >> (8 * i)) as u8));
                [byte(0), byte(1), byte(2), byte(3)]
            }

            #[cfg(not(native_fp8))]
            #[inline(always)]
            fn narrow([a, b, c, d]: [f32; 4]) -> Self {
                let byte = |value: f32| u32::from($element::from(value).0);
                $unit(byte(a) | byte(b) << 8 | byte(c) << 16 | byte(d) << 24)
            }

            type Factor = f32;
            #[inline(always)]
            fn factor(scalar: u64) -> f32 {
                f32::factor(scalar)
            }
            #[inline(always)]
            fn scalar(self) -> u64 {
                self.widen()[0].scalar()
            }
            #[cfg(not(native_fp8))]
            const LONG: bool = true;
            #[cfg(not(native_fp8))]
            #[inline(always)]
            fn by(self, other: Self, op: ReduceOp) -> Self {
                self.combine(other, |a, b| a.by(b, op))
            }

            #[cfg(native_fp8)]
            #[inline(always)]
            fn times(self, factor: f32) -> Self {
                let [a, b, c, d] = self.widen();
                Self::narrow([a * factor, b * factor, c * factor, d * factor])
            }
            #[cfg(not(native_fp8))]
            #[inline(always)]
            fn times(self, factor: f32) -> Self {
                self.combine(self, |value, _| value * factor)
            }
            no_division!();
        }
    )* };
}
float8! {
    /// Four [`F8E4M3`] in a register, the first in the low bits.
    F8E4M3Unit, F8E4M3, "cvt.rn.f16x2.e4m3x2 {}, {};", "cvt.rn.satfinite.e4m3x2.f16x2 {}, {};",
        "cvt.rn.satfinite.e4m3x2.f32 {}, {}, {};";
    /// Four [`F8E5M2`] in a register, the first in the low bits.
    F8E5M2Unit, F8E5M2, "cvt.rn.f16x2.e5m2x2 {}, {};", "cvt.rn.satfinite.e5m2x2.f16x2 {}, {};",
        "cvt.rn.satfinite.e5m2x2.f32 {}, {}, {};";
}

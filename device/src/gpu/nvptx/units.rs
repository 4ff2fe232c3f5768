//! What small elements are computed in: several of them in one 32-bit register.

use core::arch::asm;

use crate::arith::{Arith, Bf16, F16, Unit, as_it_is, no_division};

/// Smallest and largest of two numbers: of a NaN and a number the number, and -0 is smaller than +0.
macro_rules! extrema {
    ($($t:ident $class:ident: $min:ident $min_text:literal, $max:ident $max_text:literal;)*) => { $(
        /// Smaller (9.7.3.11).
        #[inline(always)]
        #[must_use]
        pub fn $min(a: $t, b: $t) -> $t {
            let d;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!($min_text, out($class) d, in($class) a, in($class) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            d
        }

        /// Larger (9.7.3.12).
        #[inline(always)]
        #[must_use]
        pub fn $max(a: $t, b: $t) -> $t {
            let d;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!($max_text, out($class) d, in($class) a, in($class) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            d
        }
    )* };
}
extrema! {
    f32 reg32: min_f32 "min.f32 {}, {}, {};", max_f32 "max.f32 {}, {}, {};";
    f64 reg64: min_f64 "min.f64 {}, {}, {};", max_f64 "max.f64 {}, {}, {};";
}

/// Two binary16 in a register, the first in the low half.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct F16Unit(u32);

/// Two bfloat16 in a register, the first in the low half.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Bf16Unit(u32);

/// An instruction of two sources on both halves of a register.
macro_rules! paired {
    ($a:expr, $b:expr, $text:literal) => {{
        let d;
        // SAFETY: arithmetic on registers.
        unsafe {
            asm!($text, out(reg32) d, in(reg32) $a, in(reg32) $b,
                options(pure, nomem, nostack, preserves_flags));
        }
        Self(d)
    }};
}

macro_rules! unit {
    ($unit:ident, $element:ident, $narrow:literal, |$bits:ident| $wide:expr) => {
        impl From<$element> for $unit {
            #[inline(always)]
            fn from(value: $element) -> Self {
                $unit(u32::from(value.0))
            }
        }

        impl From<$unit> for $element {
            #[inline(always)]
            fn from(unit: $unit) -> Self {
                $element(unit.0 as u16)
            }
        }

        impl Unit for $unit {
            type Wide = [f32; 2];
            const WIDENS: bool = true;
            #[inline(always)]
            fn widen(self) -> [f32; 2] {
                let wide = |$bits: u32| -> f32 { $wide };
                [wide(self.0 & 0xffff), wide(self.0 >> 16)]
            }
            #[inline(always)]
            fn narrow([low, high]: [f32; 2]) -> Self {
                let d;
                // SAFETY: arithmetic on registers. 9.7.9.21, `cvt`: the first source becomes the upper half.
                unsafe {
                    asm!($narrow, out(reg32) d, in(reg32) high, in(reg32) low,
                        options(pure, nomem, nostack, preserves_flags));
                }
                Self(d)
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
            #[inline(always)]
            fn times(self, factor: f32) -> Self {
                let [low, high] = self.widen();
                Self::narrow([low * factor, high * factor])
            }
            no_division!();
        }
    };
}
unit!(F16Unit, F16, "cvt.rn.f16x2.f32 {}, {}, {};", |bits| f16::from_bits(bits as u16) as f32);
unit!(Bf16Unit, Bf16, "cvt.rn.bf16x2.f32 {}, {}, {};", |bits| f32::from_bits(bits << 16));

#[cfg(native_fp8)]
impl F16Unit {
    /// Both, the first in the low half.
    #[inline(always)]
    pub(super) fn to_bits(self) -> u32 {
        self.0
    }

    /// As [`F16Unit::to_bits`].
    #[inline(always)]
    pub(super) fn of_bits(bits: u32) -> Self {
        F16Unit(bits)
    }
}

// Rounding is written out (`.rn`): without it the assembler may fuse a product and a sum into one rounding.
impl Arith for F16Unit {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        paired!(self.0, other.0, "add.rn.f16x2 {}, {}, {};") // 9.7.4.1
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        paired!(self.0, other.0, "mul.rn.f16x2 {}, {}, {};") // 9.7.4.3
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        paired!(self.0, other.0, "min.f16x2 {}, {}, {};") // 9.7.4.7; of a NaN and a number, the number
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        paired!(self.0, other.0, "max.f16x2 {}, {}, {};") // 9.7.4.8
    }
}

// Sums and products of bfloat16 came with sm_90; before, there is the fused one (9.7.4.4). With 1.0
// (0x3f80) as a factor, or -0.0 (0x8000) as a term, it rounds once and keeps the sign of zero.
impl Arith for Bf16Unit {
    #[cfg(native_bf16)]
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        paired!(self.0, other.0, "add.rn.bf16x2 {}, {}, {};") // 9.7.4.1
    }
    #[cfg(native_bf16)]
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        paired!(self.0, other.0, "mul.rn.bf16x2 {}, {}, {};") // 9.7.4.3
    }
    #[cfg(not(native_bf16))]
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        paired!(
            self.0,
            other.0,
            "{{ .reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 {}, {}, one, {}; }}"
        )
    }
    #[cfg(not(native_bf16))]
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        paired!(
            self.0,
            other.0,
            "{{ .reg .b32 zero; mov.b32 zero, 0x80008000; fma.rn.bf16x2 {}, {}, {}, zero; }}"
        )
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        paired!(self.0, other.0, "min.bf16x2 {}, {}, {};") // 9.7.4.7
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        paired!(self.0, other.0, "max.bf16x2 {}, {}, {};") // 9.7.4.8
    }
}

/// Four bytes in a register, the first in the low bits: bytes for themselves would be a register each.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes<const SIGNED: bool>(u32);

/// The unit of arithmetic of signed bytes.
pub type I8Unit = Bytes<true>;
/// The unit of arithmetic of unsigned bytes.
pub type U8Unit = Bytes<false>;

macro_rules! bytes {
    ($element:ident, $signed:literal) => {
        impl From<$element> for Bytes<$signed> {
            #[inline(always)]
            fn from(value: $element) -> Self {
                Bytes(u32::from(value as u8))
            }
        }

        impl From<Bytes<$signed>> for $element {
            #[inline(always)]
            fn from(unit: Bytes<$signed>) -> Self {
                unit.0 as $element
            }
        }
    };
}
bytes!(i8, true);
bytes!(u8, false);

/// The top bits of four bytes.
const TOPS: u32 = 0x8080_8080;

impl<const SIGNED: bool> Bytes<SIGNED> {
    /// Byte `i`, extended.
    #[inline(always)]
    fn byte(self, i: u32) -> i32 {
        let byte = (self.0 >> (8 * i)) as u8;
        if SIGNED { i32::from(byte as i8) } else { i32::from(byte) }
    }

    /// All bits of the bytes that are not less than the other's. Two bytes at a time, each with a bit above
    /// it that a borrow takes away; what is signed is moved up by 128 first.
    #[inline(always)]
    fn at_least(self, other: Self) -> u32 {
        const PAIR: u32 = 0x00ff_00ff;
        const ABOVE: u32 = 0x0100_0100;
        let (a, b) = if SIGNED { (self.0 ^ TOPS, other.0 ^ TOPS) } else { (self.0, other.0) };
        let pair = |a: u32, b: u32| ((((a & PAIR) | ABOVE) - (b & PAIR)) & ABOVE) / 0x100 * 0xff;
        pair(a, b) | pair(a >> 8, b >> 8) << 8
    }

    #[inline(always)]
    fn each(op: impl Fn(u32) -> i32) -> Self {
        let byte = |i| (op(i) as u32 & 0xff) << (8 * i);
        Bytes(byte(0) | byte(1) | byte(2) | byte(3))
    }
}

impl<const SIGNED: bool> Arith for Bytes<SIGNED> {
    /// All four at once: the top bits are added without carry, so that none reaches the next byte.
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Bytes(((self.0 & !TOPS) + (other.0 & !TOPS)) ^ ((self.0 ^ other.0) & TOPS))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self::each(|i| self.byte(i) * other.byte(i))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        let mask = self.at_least(other);
        Bytes(other.0 & mask | self.0 & !mask)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        let mask = self.at_least(other);
        Bytes(self.0 & mask | other.0 & !mask)
    }
}

impl<const SIGNED: bool> Unit for Bytes<SIGNED> {
    as_it_is!();
    /// In all four bytes.
    type Factor = Self;
    #[inline(always)]
    fn factor(scalar: u64) -> Self {
        Bytes((scalar as u32 & 0xff) * 0x0101_0101)
    }
    #[inline(always)]
    fn scalar(self) -> u64 {
        u64::from(self.0 & 0xff)
    }
    #[inline(always)]
    fn times(self, factor: Self) -> Self {
        self.mul(factor)
    }
    type Divisor = f32;
    #[inline(always)]
    fn divisor(n: u64) -> f32 {
        1.0 / n as f32
    }
    /// In f32: the quotients of neighbouring bytes are 1/n apart and the errors below 2^-14/n, so that half a
    /// byte more makes sure that a whole quotient is not missed from below.
    #[inline(always)]
    fn over(self, scale: f32) -> Self {
        let half = 0.5 * scale;
        Self::each(|i| {
            let byte = self.byte(i) as f32;
            // SAFETY: of the size of a byte.
            unsafe { (byte * scale + half.copysign(byte)).to_int_unchecked() }
        })
    }
}

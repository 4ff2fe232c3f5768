//! 8-bit floats: their conversions, in bits.
//!
//! | | sign, exponent, mantissa | largest | smallest normal | smallest | what is no number |
//! |---|---|---|---|---|---|
//! | [`F8E4M3`] | 1, 4, 3 | 448 | 2^-6 | 2^-9 | NaN: all ones below the sign; no infinity |
//! | [`F8E5M2`] | 1, 5, 2 | 57344 | 2^-14 | 2^-16 | as binary16, whose upper half it is |
//!
//! Into 8 bits a number is rounded once, to nearest, ties to even, and what is too large becomes the largest
//! number: infinity does too, in both formats. A NaN becomes 0x7f. That is PTX's `cvt.rn.satfinite` (PTX ISA
//! 9.7.9.21), which chips have from sm_89 on; the CPU and older chips do what is here, and get the same bits.
//!
//! Nothing here branches, so that a compiler makes vector code of a loop over it.
//!
//! Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, table 1.

/// What tells the two formats apart.
trait Format {
    /// Bits of mantissa.
    const MANTISSA: u32;
    /// What is added to an exponent.
    const BIAS: u32;
    /// The largest finite number.
    const LARGEST: u8;
    /// The number above [`Format::LARGEST`] that is infinity; one that there is not, if none is.
    const INFINITY: u32;
}

/// Bits of mantissa of an `f32`, and what is added to its exponents.
const F32_MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;
const F32_BIAS: u32 = 127;
const F32_INFINITY: u32 = 0x7f80_0000;

/// 2 to the power `exponent`, a normal number.
const fn power(exponent: i32) -> f32 {
    f32::from_bits(((F32_BIAS as i32 + exponent) as u32) << F32_MANTISSA)
}

/// The number that a byte is.
#[inline(always)]
fn widen<F: Format>(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    // Exponent and mantissa in an f32's places are the number but for the difference of the biases; f32's
    // subnormals are here what the format's are there.
    let scaled = f32::from_bits(magnitude << (F32_MANTISSA - F::MANTISSA));
    let value = (scaled * const { power((F32_BIAS - F::BIAS) as i32) }).to_bits();
    let no_number = if magnitude == F::INFINITY { F32_INFINITY } else { f32::NAN.to_bits() };
    let value = if magnitude > u32::from(F::LARGEST) { no_number } else { value };
    f32::from_bits(value | u32::from(byte & 0x80) << 24)
}

/// The nearest number that the format has.
#[inline(always)]
fn narrow<F: Format>(value: f32) -> u8 {
    let dropped = const { F32_MANTISSA - F::MANTISSA };
    // An f32's exponent less this is the format's.
    let rebias = const { (F32_BIAS - F::BIAS) << F::MANTISSA };
    let largest = const {
        (F::LARGEST as u32 + ((F32_BIAS - F::BIAS) << F::MANTISSA)) << (F32_MANTISSA - F::MANTISSA)
    };
    let smallest_normal = const { power(1 - F::BIAS as i32).to_bits() };
    // A number of which the last bit is worth the smallest one of the format: a sum with it is rounded there.
    let round_here = const { power(F32_MANTISSA as i32 + 1 - F::BIAS as i32 - F::MANTISSA as i32) };

    let bits = value.to_bits();
    let magnitude = bits & !(1 << 31);
    let finite = if magnitude < largest { magnitude } else { largest };
    let odd = finite >> dropped & 1;
    let normal = ((finite + (1 << (dropped - 1)) - 1 + odd) >> dropped).wrapping_sub(rebias);
    let subnormal =
        (f32::from_bits(finite) + round_here).to_bits().wrapping_sub(round_here.to_bits());
    let rounded = if finite < smallest_normal { subnormal } else { normal };
    if magnitude > F32_INFINITY { 0x7f } else { rounded as u8 | (bits >> 24) as u8 & 0x80 }
}

macro_rules! float8 {
    ($($(#[$m:meta])* $name:ident($mantissa:literal, $bias:literal, $largest:literal, $infinity:expr);)*) => { $(
        $(#[$m])*
        ///
        /// ```
        #[doc = concat!("use ferroccl_device::element::", stringify!($name), ";")]
        ///
        #[doc = concat!("assert_eq!(f32::from(", stringify!($name), "::from(1.3)), 1.25);")]
        #[doc = concat!("assert_eq!(", stringify!($name), "::from(f32::INFINITY), ", stringify!($name), "::MAX);")]
        #[doc = concat!("assert!(f32::from(", stringify!($name), "::from(f32::NAN)).is_nan());")]
        /// ```
        #[repr(transparent)]
        #[derive(Clone, Copy, Default)]
        #[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::Pod, bytemuck::Zeroable))]
        pub struct $name(
            /// Its bits.
            pub u8,
        );

        impl Format for $name {
            const MANTISSA: u32 = $mantissa;
            const BIAS: u32 = $bias;
            const LARGEST: u8 = $largest;
            const INFINITY: u32 = $infinity;
        }

        impl $name {
            /// Binary digits of its numbers, the one that is not stored among them.
            pub const MANTISSA_DIGITS: u32 = $mantissa + 1;
            /// The largest number.
            pub const MAX: $name = $name($largest);
            /// What comes of a NaN.
            pub const NAN: $name = $name(0x7f);

            /// Whether it is a NaN.
            #[must_use]
            pub fn is_nan(self) -> bool {
                f32::from(self).is_nan()
            }
        }

        /// Rounded to nearest, ties to even; what is too large, and infinity, becomes the largest number.
        impl From<f32> for $name {
            #[inline(always)]
            fn from(value: f32) -> Self {
                $name(narrow::<$name>(value))
            }
        }

        /// Exact.
        impl From<$name> for f32 {
            #[inline(always)]
            fn from(value: $name) -> f32 {
                widen::<$name>(value.0)
            }
        }

        /// As numbers: a NaN is nothing's equal, the two zeros are equal.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                f32::from(*self) == f32::from(*other)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                f32::from(*self).partial_cmp(&f32::from(*other))
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(&f32::from(*self), f)
            }
        }

        /// The number.
        #[cfg(not(target_arch = "nvptx64"))]
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(&f32::from(*self), f)
            }
        }

        /// The bits: a kernel does not print.
        #[cfg(target_arch = "nvptx64")]
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Debug::fmt(&self.0, f)
            }
        }
    )* };
}
float8! {
    /// A float of 8 bits with 3 of mantissa: up to 448, no infinity.
    F8E4M3(3, 7, 0x7e, 0x80);
    /// A float of 8 bits with 2 of mantissa: binary16's upper half, up to 57344.
    F8E5M2(2, 15, 0x7b, 0x7c);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that a byte is, by its definition.
    fn defined<F: Format>(byte: u8) -> f64 {
        let (exponent, mantissa) = ((byte & 0x7f) >> F::MANTISSA, byte & ((1 << F::MANTISSA) - 1));
        let digits = f64::from(mantissa) / f64::from(1 << F::MANTISSA);
        let magnitude = match u32::from(byte & 0x7f) {
            m if m == F::INFINITY => f64::INFINITY,
            m if m > u32::from(F::LARGEST) => f64::NAN,
            _ if exponent == 0 => digits * 2f64.powi(1 - F::BIAS as i32),
            _ => (1.0 + digits) * 2f64.powi(i32::from(exponent) - F::BIAS as i32),
        };
        if byte & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest finite number, ties to the even one, found by looking at all of them.
    fn nearest<F: Format>(value: f64) -> u8 {
        if value.is_nan() {
            return 0x7f;
        }
        let distance = |byte: u8| (value.abs() - defined::<F>(byte)).abs();
        let mut best = 0;
        for byte in 1..=F::LARGEST {
            let closer = distance(byte) < distance(best);
            if closer || distance(byte) == distance(best) && byte % 2 == 0 {
                best = byte;
            }
        }
        // All are equally far from infinity, and from what a subtraction leaves as it is.
        let best = if value.abs() > defined::<F>(F::LARGEST) { F::LARGEST } else { best };
        best | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    fn check<F: Format>(value: f32) {
        assert_eq!(
            narrow::<F>(value),
            nearest::<F>(value.into()),
            "{value:e} {:#x}",
            value.to_bits()
        );
    }

    fn every_value<F: Format>() {
        for byte in 0..=u8::MAX {
            let (got, want) = (widen::<F>(byte), defined::<F>(byte));
            assert!(
                f64::from(got) == want || got.is_nan() && want.is_nan(),
                "{byte:#x}: {got} {want}"
            );
            assert!(got.is_nan() || got.is_sign_negative() == (byte >= 0x80), "{byte:#x}");
            check::<F>(got);
            if byte & 0x7f < F::LARGEST {
                // The middle of two neighbours, and the numbers beside it.
                let middle = (want + defined::<F>(byte + 1)) as f32 / 2.0;
                [middle, middle.next_up(), middle.next_down()].into_iter().for_each(check::<F>);
            }
        }
        let mut bits = 0x1357_9bdfu32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            check::<F>(f32::from_bits(bits));
            // Around the format's own range.
            check::<F>(f32::from_bits(bits & 0x87ff_ffff | 0x3800_0000));
            check::<F>(f32::from_bits(bits & 0x87ff_ffff | 0x4000_0000));
        }
        for special in [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            -0.0,
            f32::from_bits(1),
        ] {
            check::<F>(special);
        }
        assert_eq!([f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)].map(narrow::<F>), [0x7f; 3]);
    }

    #[test]
    fn conversions_are_right() {
        every_value::<F8E4M3>();
        every_value::<F8E5M2>();
    }

    #[test]
    fn e5m2_is_the_upper_half_of_binary16() {
        for byte in 0..=u8::MAX {
            let half = half::f16::from_bits(u16::from(byte) << 8).to_f32();
            let got = f32::from(F8E5M2(byte));
            assert!(got.to_bits() == half.to_bits() || got.is_nan() && half.is_nan(), "{byte:#x}");
        }
        assert_eq!(f32::from(F8E4M3(0x7e)), 448.0);
        assert!(F8E4M3(0x7f).is_nan() && F8E4M3(0xff).is_nan());
    }

    #[test]
    fn all_halves() {
        for bits in 0..=u16::MAX {
            let value = half::f16::from_bits(bits).to_f32();
            check::<F8E4M3>(value);
            check::<F8E5M2>(value);
        }
    }

    /// What a chip that converts to halves does: sums, products, smallest and largest of halves, rounded to 8
    /// bits, are those of f32 rounded to 8 bits. Two roundings are one as 11 digits are 2 x 4 + 2 and more, and a
    /// product that halves have not all digits of is far below the format's smallest number.
    fn halves_are_enough<F: Format>() {
        let half = |byte| half::f16::from_f32(widen::<F>(byte));
        for a in 0..=u8::MAX {
            assert_eq!(half(a).to_f32().to_bits(), widen::<F>(a).to_bits());
            for b in 0..=u8::MAX {
                let (x, y) = (widen::<F>(a), widen::<F>(b));
                for (wide, halves) in [(x + y, half(a) + half(b)), (x * y, half(a) * half(b))] {
                    assert_eq!(narrow::<F>(halves.to_f32()), narrow::<F>(wide), "{a:#x} {b:#x}");
                    check::<F>(wide);
                }
            }
        }
    }

    #[test]
    fn two_values_in_halves() {
        halves_are_enough::<F8E4M3>();
        halves_are_enough::<F8E5M2>();
    }
}

//! Floating-point results judged in exact arithmetic.
//!
//! A format's numbers are numbered in order: `k` is the k-th above zero, `-k` the k-th below. A result is right if
//! the exact one lies where the rounding's definition says, between the numbers (or the midpoints) beside
//! it. Nothing is rounded here: a candidate is compared with the exact result by multiplying out.

use std::cmp::Ordering;

use ferroccl_ptx::types::Type;
use num_bigint::BigInt;

/// An integer times a power of two.
#[derive(Clone, Debug)]
pub(crate) struct Dyadic(BigInt, i32);

impl Dyadic {
    pub(crate) fn integer(x: i128) -> Dyadic {
        Dyadic(x.into(), 0)
    }

    /// Both in units of the smaller power.
    fn aligned(&self, other: &Dyadic) -> (BigInt, BigInt, i32) {
        let unit = self.1.min(other.1);
        (&self.0 << (self.1 - unit), &other.0 << (other.1 - unit), unit)
    }

    pub(crate) fn plus(&self, other: &Dyadic) -> Dyadic {
        let (a, b, unit) = self.aligned(other);
        Dyadic(a + b, unit)
    }

    pub(crate) fn times(&self, other: &Dyadic) -> Dyadic {
        Dyadic(&self.0 * &other.0, self.1 + other.1)
    }

    pub(crate) fn negated(&self) -> Dyadic {
        Dyadic(-&self.0, self.1)
    }

    fn half(&self) -> Dyadic {
        Dyadic(self.0.clone(), self.1 - 1)
    }

    pub(crate) fn compare(&self, other: &Dyadic) -> Ordering {
        let (a, b, _) = self.aligned(other);
        a.cmp(&b)
    }

    pub(crate) fn sign(&self) -> Ordering {
        self.0.cmp(&BigInt::ZERO)
    }
}

/// A rounding, by its modifier's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Rn,
    Rz,
    Rm,
    Rp,
    Rna,
}

impl Mode {
    pub(crate) const FOUR: [(&'static str, Mode); 4] =
        [("rn", Mode::Rn), ("rz", Mode::Rz), ("rm", Mode::Rm), ("rp", Mode::Rp)];
}

/// A format by its widths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) ty: Type,
    mantissa: u32,
    exponent: u32,
    /// Bits below the mantissa that are not used.
    unused: u32,
    infinities: bool,
    nan: u64,
}

impl Format {
    pub(crate) fn of(ty: Type) -> Option<Format> {
        let (mantissa, exponent, unused, nan) = match ty {
            Type::F64 => (52, 11, 0, 0x7ff8 << 48),
            Type::F32 => (23, 8, 0, 0x7fff_ffff),
            Type::Tf32 => (10, 8, 13, 0x7fff_ffff),
            Type::F16 => (10, 5, 0, 0x7fff),
            Type::Bf16 => (7, 8, 0, 0x7fff),
            Type::E5m2 => (2, 5, 0, 0x7f),
            Type::E4m3 => (3, 4, 0, 0x7f),
            _ => return None,
        };
        Some(Format { ty, mantissa, exponent, unused, infinities: ty != Type::E4m3, nan })
    }

    pub(crate) fn bits(&self) -> u32 {
        1 + self.exponent + self.mantissa + self.unused
    }

    /// The number of the infinity, or of the first that there is not.
    pub(crate) fn end(&self) -> i64 {
        if self.infinities { ((1 << self.exponent) - 1) << self.mantissa } else { 0x7f }
    }

    /// The place of these bits in order, if they are no NaN.
    pub(crate) fn place(&self, bits: u64) -> Option<i64> {
        let magnitude = ((bits & !(1 << (self.bits() - 1))) >> self.unused) as i64;
        let infinite = self.infinities && magnitude == self.end();
        let place = (magnitude < self.end() || infinite).then_some(magnitude)?;
        Some(if self.negative(bits) { -place } else { place })
    }

    pub(crate) fn negative(&self, bits: u64) -> bool {
        bits >> (self.bits() - 1) & 1 != 0
    }

    /// The bits of a place; of zero the positive one.
    pub(crate) fn at(&self, place: i64) -> u64 {
        let sign = if place < 0 { 1 << (self.bits() - 1) } else { 0 };
        sign | place.unsigned_abs() << self.unused
    }

    /// The value at a place. An infinity counts as what would come after the largest number.
    pub(crate) fn value(&self, place: i64) -> Dyadic {
        let magnitude = place.abs();
        let field = magnitude >> self.mantissa;
        let stored = magnitude & ((1 << self.mantissa) - 1);
        let mantissa = if field == 0 { stored } else { stored | 1 << self.mantissa };
        let bias = (1 << (self.exponent - 1)) - 1;
        let exponent = field.max(1) as i32 - bias - self.mantissa as i32;
        Dyadic(BigInt::from(if place < 0 { -mantissa } else { mantissa }), exponent)
    }

    /// The value of bits that are a finite number.
    pub(crate) fn finite(&self, bits: u64) -> Option<Dyadic> {
        let place = self.place(bits)?;
        (place.abs() < self.end()).then(|| self.value(place))
    }

    pub(crate) fn is_nan(&self, bits: u64) -> bool {
        self.place(bits).is_none()
    }

    pub(crate) fn nan(&self) -> u64 {
        self.nan
    }

    /// The bits of a number that the format has exactly, found by halving the line of its numbers.
    pub(crate) fn exactly(&self, x: f64) -> Option<u64> {
        let sign = if x.is_sign_negative() { 1 << (self.bits() - 1) } else { 0 };
        if x.is_nan() {
            return Some(self.nan);
        }
        if x.is_infinite() {
            return self.infinities.then(|| sign | (self.end() as u64) << self.unused);
        }
        let wide = Format::of(Type::F64)?;
        let x = wide.finite(x.abs().to_bits())?;
        let (mut low, mut high) = (0, self.end());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.value(middle).compare(&x).is_le() {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.value(low).compare(&x).is_eq().then(|| sign | (low as u64) << self.unused)
    }

    /// Whether `got` is the rounding of the exact result, of this sign, with which `versus` compares a candidate. Of an
    /// exact zero only the value is judged, not the sign. With `saturate`, the largest number is in place of all beyond.
    pub(crate) fn rounded(
        &self,
        mode: Mode,
        got: u64,
        sign: Ordering,
        saturate: bool,
        versus: &dyn Fn(&Dyadic) -> Ordering,
    ) -> bool {
        let Some(k) = self.place(got) else { return false };
        if sign.is_eq() {
            return k == 0;
        }
        if k != 0 && k.signum() != sign as i64 || self.negative(got) != sign.is_lt() {
            return false;
        }
        let last = if saturate { self.end() - 1 } else { self.end() };
        if k.abs() > last {
            return false;
        }
        let below = |k: i64| k <= -self.end() || versus(&self.value(k)).is_lt();
        let above = |k: i64| k >= self.end() || versus(&self.value(k)).is_gt();
        let at = |k: i64| k.abs() < self.end() && versus(&self.value(k)).is_eq();
        match mode {
            Mode::Rm if saturate && k == last => !above(k),
            Mode::Rp if saturate && k == -last => !below(k),
            Mode::Rm => k != self.end() && (below(k) || at(k)) && above(k + 1),
            Mode::Rp => k != -self.end() && (above(k) || at(k)) && below(k - 1),
            Mode::Rz if sign.is_gt() => self.rounded(Mode::Rm, got, sign, saturate, versus),
            Mode::Rz => self.rounded(Mode::Rp, got, sign, saturate, versus),
            Mode::Rn | Mode::Rna => {
                let wins = |tie: Ordering, outwards: bool| match (tie, mode) {
                    (Ordering::Equal, Mode::Rna) => outwards,
                    (Ordering::Equal, _) => k & 1 == 0,
                    (other, _) => other.is_lt(),
                };
                let middle = |a: i64, b: i64| self.value(a).plus(&self.value(b)).half();
                // Seen from zero: not before the midpoint below, not beyond the midpoint above.
                let s = sign as i64;
                let turn = |o: Ordering| if s < 0 { o.reverse() } else { o };
                let inner = k == 0 || wins(turn(versus(&middle(k - s, k))), true);
                let outer =
                    k.abs() == last || wins(turn(versus(&middle(k, k + s))).reverse(), false);
                inner && outer
            }
        }
    }
}

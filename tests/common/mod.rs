//! What the tests share: seeded data, references in higher precision, and the bounds that go with them.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod all_reduce;
#[path = "../random/mod.rs"]
mod random;

use ferroccl::{Element, ReduceOp};
use half::{bf16, f16};

pub(crate) use random::Random;

/// A number with twice the precision of `f64`: `hi + lo`.
/// Source: Dekker, "A floating-point technique for extending the available precision", 1971.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wide(f64, f64);

impl Wide {
    fn add(self, x: f64) -> Wide {
        let sum = self.0 + x;
        let part = sum - self.0;
        let error = (self.0 - (sum - part)) + (x - part);
        Wide(sum, self.1 + error)
    }

    fn mul(self, x: f64) -> Wide {
        let product = self.0 * x;
        Wide(product, self.0.mul_add(x, -product) + self.1 * x)
    }

    /// `|self - x|`.
    fn distance(self, x: f64) -> f64 {
        ((self.0 - x) + self.1).abs()
    }
}

/// A type that tests can make up and check.
pub(crate) trait Case: Element + PartialEq {
    /// A value for a reduction by `op`.
    fn draw(random: &mut Random, op: ReduceOp) -> Self;
    /// Whether `got` is the reduction of `values` within the stated bound.
    fn correct(values: &[Self], op: ReduceOp, got: Self) -> bool;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Case for $t {
            fn draw(random: &mut Random, _: ReduceOp) -> Self { random.next() as $t }
            /// Exact.
            fn correct(values: &[Self], op: ReduceOp, got: Self) -> bool {
                let all = values.iter().copied();
                let sum = || all.clone().fold(0, <$t>::wrapping_add);
                got == match op {
                    ReduceOp::Sum => sum(),
                    ReduceOp::Prod => all.fold(1, <$t>::wrapping_mul),
                    ReduceOp::Min => all.min().unwrap(),
                    ReduceOp::Max => all.max().unwrap(),
                    ReduceOp::Avg => (i128::from(sum()) / values.len() as i128) as $t,
                }
            }
        }
    )* };
}
integers!(i8, u8, i32, u32, i64, u64);

/// Floats, with `u` the largest relative error of one rounding and `tiny` the largest absolute error of
/// rounding a subnormal. For `k` values the bounds are:
///
/// * min, max: exact;
/// * sum: `k u sum|x|`, one rounding for each of `k - 1` additions (Higham, "Accuracy and Stability", 4.2);
/// * prod: `k u |prod|`, likewise;
/// * avg: `(k + 2) u sum|x| / k`: 1/k is rounded, and so is each scaled value.
macro_rules! floats {
    ($($t:ty, $u:expr, $tiny:expr, $from:expr, $to:expr;)*) => { $(
        impl Case for $t {
            fn draw(random: &mut Random, op: ReduceOp) -> Self {
                let from: fn(f64) -> $t = $from;
                from(if op == ReduceOp::Prod { 0.5 + random.unit() } else { 4.0 * random.unit() - 2.0 })
            }
            fn correct(values: &[Self], op: ReduceOp, got: Self) -> bool {
                let to: fn($t) -> f64 = $to;
                let (u, tiny): (f64, f64) = ($u, $tiny);
                let k = values.len() as f64;
                let all = values.iter().map(|&v| to(v));
                let magnitude: f64 = all.clone().map(f64::abs).sum();
                let got = to(got);
                match op {
                    ReduceOp::Min => all.fold(f64::INFINITY, f64::min) == got,
                    ReduceOp::Max => all.fold(f64::NEG_INFINITY, f64::max) == got,
                    ReduceOp::Sum => all.fold(Wide(0.0, 0.0), Wide::add).distance(got) <= k * (u * magnitude + tiny),
                    ReduceOp::Prod => {
                        all.fold(Wide(1.0, 0.0), Wide::mul).distance(got) <= k * (u * got.abs() * 1.01 + tiny)
                    }
                    ReduceOp::Avg => {
                        let sum = all.fold(Wide(0.0, 0.0), Wide::add);
                        // Multiplied instead of divided, so that the reference itself is not rounded.
                        Wide(sum.0, sum.1).add(-got * k).distance(0.0)
                            <= k * ((k + 2.0) * u * magnitude / k + (k + 1.0) * tiny) + k * got.abs() * f64::EPSILON
                    }
                }
            }
        }
    )* };
}
floats! {
    f16, 2f64.powi(-11), 2f64.powi(-25), f16::from_f64, f16::to_f64;
    bf16, 2f64.powi(-8), 0.0, bf16::from_f64, bf16::to_f64;
    f32, 2f64.powi(-24), 0.0, |x| x as f32, f64::from;
    f64, 2f64.powi(-53), 0.0, |x| x, |x| x;
}

//! What the tests share: seeded data, references in higher precision, and the bounds that go with them.
#![allow(dead_code, reason = "each test binary uses its part")]

use ferroccl::{Element, F8E4M3, F8E5M2, ReduceOp};
use half::{bf16, f16};

use crate::random::Random;

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

    /// The sum of two products of two numbers each is exact to twice the precision, too.
    fn add_product(self, x: f64, y: f64) -> Wide {
        let product = x * y;
        self.add(product).add(x.mul_add(y, -product))
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
    /// The scalar of a rank in a pre-multiplied sum.
    fn factor(rank: usize) -> Self;
    /// Whether `got` is the reduction of `values` within the stated bound.
    fn correct(values: &[Self], op: ReduceOp, got: Self) -> bool;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Case for $t {
            fn draw(random: &mut Random, _: ReduceOp) -> Self { random.next() as $t }
            fn factor(rank: usize) -> Self { [3, 0x5a, <$t>::MAX, 0x11][rank % 4] }
            /// Exact.
            fn correct(values: &[Self], op: ReduceOp, got: Self) -> bool {
                let all = values.iter().copied();
                let sum = || all.clone().fold(0, <$t>::wrapping_add);
                got == match op {
                    ReduceOp::Sum => sum(),
                    ReduceOp::PreMulSum => all
                        .enumerate()
                        .map(|(rank, v)| v.wrapping_mul(Self::factor(rank)))
                        .fold(0, <$t>::wrapping_add),
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

/// What `n` roundings, each off by at most `u` relatively, multiply a value by, less 1: about `n u`, but of 8-bit floats
/// `u` is not small.
fn growth(u: f64, n: f64) -> f64 {
    (n * u.ln_1p()).exp_m1() * 1.001
}

/// Floats, with `u` the largest relative error of one rounding and `tiny` the largest absolute error of
/// rounding a subnormal. For `k` values and `g(n) = (1 + u)^n - 1` the bounds are:
///
/// * min, max: exact;
/// * sum: `g(k) sum|x|`, one rounding for each of `k - 1` additions (Higham, "Accuracy and Stability", 4.2);
/// * prod: `g(k) |prod|`, likewise; what is rounded as a subnormal is then multiplied by up to 1.5 each time;
/// * mulsum: `g(k) sum|f x|`, one rounding more for the products;
/// * avg: `g(k + 2) sum|x| / k`: 1/k is rounded, and so is each scaled value.
macro_rules! floats {
    ($($t:ty, $u:expr, $tiny:expr, $from:expr, $to:expr;)*) => { $(
        impl Case for $t {
            fn draw(random: &mut Random, op: ReduceOp) -> Self {
                let from: fn(f64) -> $t = $from;
                from(if op == ReduceOp::Prod { 0.5 + random.unit() } else { 4.0 * random.unit() - 2.0 })
            }
            fn factor(rank: usize) -> Self {
                let from: fn(f64) -> $t = $from;
                from([1.5, -0.3, 1.0, 0.7][rank % 4])
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
                    ReduceOp::Sum => {
                        all.fold(Wide(0.0, 0.0), Wide::add).distance(got) <= growth(u, k) * magnitude + k * tiny
                    }
                    ReduceOp::Prod => {
                        let product = all.fold(Wide(1.0, 0.0), Wide::mul);
                        product.distance(got) <= growth(u, k) * product.0.abs() + k * tiny * 1.5f64.powf(k)
                    }
                    ReduceOp::PreMulSum => {
                        let terms = all.zip(0..).map(|(v, rank)| (v, to(Self::factor(rank))));
                        let magnitude: f64 = terms.clone().map(|(v, f)| (v * f).abs()).sum();
                        let sum = terms.fold(Wide(0.0, 0.0), |sum, (v, f)| sum.add_product(v, f));
                        sum.distance(got) <= growth(u, k) * magnitude + 2.0 * k * tiny
                    }
                    ReduceOp::Avg => {
                        let sum = all.fold(Wide(0.0, 0.0), Wide::add);
                        // Multiplied instead of divided, so that the reference itself is not rounded.
                        Wide(sum.0, sum.1).add(-got * k).distance(0.0)
                            <= growth(u, k + 2.0) * magnitude + k * (k + 1.0) * tiny + k * got.abs() * f64::EPSILON
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
    F8E4M3, 2f64.powi(-4), 2f64.powi(-10), |x| F8E4M3::from(x as f32), |x| f32::from(x).into();
    F8E5M2, 2f64.powi(-3), 2f64.powi(-17), |x| F8E5M2::from(x as f32), |x| f32::from(x).into();
}

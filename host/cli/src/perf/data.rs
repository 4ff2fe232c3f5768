//! What the ranks put in, and what must come out.
//!
//! An element is a function of (operator, ranks, rank, index), so no rank needs another's data to
//! know the answer. The values are random enough that a chunk in the wrong place, a rank left out or
//! counted twice changes the result, and chosen so that the answer is **exact** wherever a type allows
//! it, whatever the order in which a ring adds:
//!
//! | | integers | floats |
//! |---|---|---|
//! | sum | any bits, wrapping | whole numbers whose sum needs no more digits than the type has; of many ranks some add 0 |
//! | mulsum | as sum, every rank with an odd factor of its own | as sum, with factors of 2, -1 and 1 |
//! | prod | odd, wrapping (nothing is lost) | powers of two: few ranks scale, the others flip signs |
//! | min, max | any bits | whole numbers |
//! | avg | as sum, divided towards zero | as sum; exact when the ranks are a power of two |
//!
//! What is not exact has a stated bound, from the standard model of rounding: every operation is off by
//! at most `u` = 2^-digits, relatively, so n additions of values v are off by ((1 + u)^n - 1) sum|v|.
//!
//! Values repeat after [`PERIOD`] elements: a prime, so that no chunk of a collective is a multiple of it,
//! and so short that data are made once and copied ever after.

use ferroccl::{Element, F8E4M3, F8E5M2, ReduceOp};

/// Elements after which the data repeat: the largest prime below 2^16.
pub(crate) const PERIOD: usize = 65_521;

/// Random bits of (rank, index): the finaliser of splitmix64 (Steele, Lea and Flood, 2014).
fn bits(rank: u32, index: usize) -> u64 {
    let mut z = (u64::from(rank) << 32 | index as u64).wrapping_add(1);
    z = z.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A call as its data depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    /// The reduction.
    pub(crate) op: ReduceOp,
    /// Ranks, at least 1.
    pub(crate) ranks: u32,
}

/// An element type that test data can be made of.
pub(crate) trait TestElement: Element {
    /// What `rank` puts in at `index`.
    fn input(case: Case, rank: u32, index: usize) -> Self;
    /// The scalar that `rank` gives to a pre-multiplied sum.
    fn factor(rank: u32) -> Self;
    /// What comes out at `index`, and how far off it may be.
    fn expected(case: Case, index: usize) -> (Self, f64);
    /// How far `self` is from `other`; 0 only when they are the same.
    fn distance(self, other: Self) -> f64;
}

macro_rules! integers {
    ($($t:ty)*) => { $(
        impl TestElement for $t {
            fn input(case: Case, rank: u32, index: usize) -> Self {
                let bits = bits(rank, index) as Self;
                if case.op == ReduceOp::Prod { bits | 1 } else { bits }
            }

            fn factor(rank: u32) -> Self {
                (2 * u64::from(rank) + 3) as Self
            }

            fn expected(case: Case, index: usize) -> (Self, f64) {
                let inputs = (0..case.ranks).map(|rank| Self::input(case, rank, index));
                let value = match case.op {
                    ReduceOp::PreMulSum => inputs
                        .zip(0..)
                        .map(|(v, rank)| v.wrapping_mul(Self::factor(rank)))
                        .fold(0, Self::wrapping_add),
                    ReduceOp::Sum => inputs.fold(0, Self::wrapping_add),
                    ReduceOp::Prod => inputs.fold(1, Self::wrapping_mul),
                    ReduceOp::Min => inputs.fold(Self::MAX, Self::min),
                    ReduceOp::Max => inputs.fold(Self::MIN, Self::max),
                    ReduceOp::Avg => {
                        let sum = i128::from(inputs.fold(0, Self::wrapping_add));
                        (sum / i128::from(case.ranks.max(1))) as Self
                    }
                };
                (value, 0.0)
            }

            fn distance(self, other: Self) -> f64 {
                (i128::from(self) - i128::from(other)).abs() as f64
            }
        }
    )* };
}
integers!(i8 u8 i32 u32 i64 u64);

/// Ranks that put in more than a sign, in products of floats: 2^8 is far from every type's limits.
const SCALING_RANKS: u32 = 8;

/// Ranks that put in more than 0, in sums of floats of so many digits: bfloat16 has 8, of which each of 16 ranks gets 4.
/// Where few digits make for large errors, so few that those stay smaller than the values.
fn adding_ranks(digits: u32, op: ReduceOp) -> u32 {
    match op {
        ReduceOp::Avg if digits <= SMALL => 2,
        _ => 1 << (digits - 1).min(4),
    }
}

/// Digits of the floats of 8 bits, at most.
const SMALL: u32 = F8E4M3::MANTISSA_DIGITS;

/// The factor of a rank in a pre-multiplied sum of floats.
fn float_factor(rank: u32) -> f64 {
    [2.0, -1.0, 1.0][rank as usize % 3]
}

/// Whether `rank` is one of the `some` that count at `index`; which they are turns with the index, so that
/// each of them does somewhere.
fn counts(some: u32, ranks: u32, rank: u32, index: usize) -> bool {
    (u64::from(rank) + index as u64) % u64::from(ranks) < some.into()
}

/// The input of a float of `digits` binary digits: a whole number, or for products a power of two.
fn float_input(digits: u32, case: Case, rank: u32, index: usize) -> f64 {
    let bits = bits(rank, index);
    let Case { op, ranks } = case;
    match op {
        ReduceOp::Prod => {
            let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
            match (bits >> 1) % 3 {
                0 if counts(SCALING_RANKS, ranks, rank, index) => sign * 0.5,
                1 if counts(SCALING_RANKS, ranks, rank, index) => sign * 2.0,
                _ => sign,
            }
        }
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => {
            let adding = adding_ranks(digits, op);
            if !counts(adding, ranks, rank, index) {
                return 0.0;
            }
            // No factor is larger than 2.
            let factor = if op == ReduceOp::PreMulSum { 2 } else { 1 };
            whole(bits, (1 << digits) / i64::from(ranks.min(adding)) / factor)
        }
        ReduceOp::Min | ReduceOp::Max => whole(bits, 1 << digits),
    }
}

/// A whole number in `-limit..=limit`.
fn whole(bits: u64, limit: i64) -> f64 {
    let span = 2 * limit as u64 + 1;
    ((bits % span) as i64 - limit) as f64
}

/// The answer of [`float_input`]s, and how far off it may be in a type whose smallest number is `smallest`.
fn float_expected(digits: u32, smallest: f64, case: Case, index: usize) -> (f64, f64) {
    let Case { op, ranks } = case;
    let inputs = (0..ranks).map(|rank| float_input(digits, case, rank, index));
    match op {
        // However they are added, no partial sum needs more than the type's digits: none is rounded.
        ReduceOp::Sum => (inputs.sum(), 0.0),
        ReduceOp::Avg => {
            let n = f64::from(ranks);
            let (sum, abs) = inputs.fold((0.0, 0.0), |(sum, abs), v| (sum + v, abs + v.abs()));
            // A term is rounded as a product, then come additions of what is not 0; the answer itself is rounded here
            // as a quotient and to the type. 1/n is rounded, too, but for small types in a wider one.
            let more = if digits <= SMALL { 1 } else { 4 };
            let roundings = ranks.min(adding_ranks(digits, op)) + more;
            let growth = (f64::from(roundings) * (-f64::from(digits)).exp2().ln_1p()).exp_m1();
            let bound = growth * abs / n * 1.001 + f64::from(roundings) * smallest;
            let exact = ranks.is_power_of_two() && 1.0 / n >= smallest;
            (sum / n, if exact { 0.0 } else { bound })
        }
        ReduceOp::PreMulSum => (inputs.zip(0..).map(|(v, rank)| v * float_factor(rank)).sum(), 0.0),
        ReduceOp::Prod => (inputs.product(), 0.0),
        ReduceOp::Min => (inputs.fold(f64::INFINITY, f64::min), 0.0),
        ReduceOp::Max => (inputs.fold(f64::NEG_INFINITY, f64::max), 0.0),
    }
}

macro_rules! floats {
    ($($t:ty, $digits:expr, $smallest:expr, $of:expr, $to:expr;)*) => { $(
        impl TestElement for $t {
            fn input(case: Case, rank: u32, index: usize) -> Self {
                $of(float_input($digits, case, rank, index))
            }

            fn factor(rank: u32) -> Self {
                $of(float_factor(rank))
            }

            fn expected(case: Case, index: usize) -> (Self, f64) {
                let (value, bound) = float_expected($digits, $smallest, case, index);
                ($of(value), bound)
            }

            fn distance(self, other: Self) -> f64 {
                let (a, b): (f64, f64) = ($to(self), $to(other));
                (a - b).abs()
            }
        }
    )* };
}
floats! {
    half::f16, half::f16::MANTISSA_DIGITS, (-24f64).exp2(), half::f16::from_f64, half::f16::to_f64;
    half::bf16, half::bf16::MANTISSA_DIGITS, (-133f64).exp2(), half::bf16::from_f64, half::bf16::to_f64;
    f32, f32::MANTISSA_DIGITS, (-149f64).exp2(), |v: f64| v as f32, f64::from;
    f64, f64::MANTISSA_DIGITS, (-1074f64).exp2(), |v: f64| v, |v: f64| v;
    F8E4M3, F8E4M3::MANTISSA_DIGITS, (-9f64).exp2(), |v: f64| F8E4M3::from(v as f32), |v: F8E4M3| f32::from(v).into();
    F8E5M2, F8E5M2::MANTISSA_DIGITS, (-16f64).exp2(), |v: f64| F8E5M2::from(v as f32), |v: F8E5M2| f32::from(v).into();
}

/// One period of what `rank` puts in.
pub(crate) fn inputs<T: TestElement>(case: Case, rank: u32) -> Vec<T> {
    (0..PERIOD).map(|index| T::input(case, rank, index)).collect()
}

/// What is around and under a result before a call. Few results have such integers, and hardly any such
/// floats: they are neither whole nor powers of two in any type. A rank's are not its neighbours', so
/// that a reduction of them does not leave them as they were.
pub(crate) fn poison<T: TestElement>(rank: u32, len: usize) -> Vec<T> {
    let mut data = vec![T::zeroed(); len];
    bytemuck::cast_slice_mut::<T, u8>(&mut data).fill([0x41, 0x42, 0xc1][rank as usize % 3]);
    data
}

/// Elements of `got` that are not bit for bit those of `want`.
pub(crate) fn different<T: TestElement>(got: &[T], want: &[T]) -> u64 {
    let bytes = bytemuck::bytes_of;
    got.iter().zip(want).filter(|(got, want)| bytes(*got) != bytes(*want)).count() as u64
}

/// One period of the answer.
#[derive(Debug)]
pub(crate) struct Reference<T> {
    expected: Vec<T>,
    /// Empty where the answer is exact.
    bounds: Vec<f64>,
}

impl<T: TestElement> Reference<T> {
    /// The answer to a case.
    pub(crate) fn new(case: Case) -> Self {
        let (expected, mut bounds): (Vec<T>, Vec<f64>) =
            (0..PERIOD).map(|index| T::expected(case, index)).unzip();
        if bounds.iter().all(|&bound| bound == 0.0) {
            bounds.clear();
        }
        Reference { expected, bounds }
    }

    /// How many of `got`, which is `start` of a period and does not go beyond it, are wrong.
    pub(crate) fn wrong_at(&self, start: usize, got: &[T]) -> u64 {
        let want = &self.expected[start..start + got.len()];
        // Nearly always all is well, and a comparison of bytes is the quickest way to know.
        if bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice::<T, u8>(want) {
            return 0;
        }
        let bound = |i: usize| self.bounds.get(start + i).copied().unwrap_or(0.0);
        let is_right = |i: usize| got[i].distance(want[i]) <= bound(i); // of a NaN: false
        (0..got.len()).filter(|&i| !is_right(i)).count() as u64
    }
}

#[cfg(test)]
impl<T: TestElement> Reference<T> {
    fn wrong(&self, got: &[T]) -> u64 {
        self.wrong_at(0, got)
    }
}

/// Runs `$body` with `$T` standing for the Rust type of a [`DataType`](ferroccl::DataType).
macro_rules! with_element_type {
    ($data_type:expr, $T:ident => $body:expr) => {
        match $data_type {
            ferroccl::DataType::I8 => {
                type $T = i8;
                $body
            }
            ferroccl::DataType::U8 => {
                type $T = u8;
                $body
            }
            ferroccl::DataType::I32 => {
                type $T = i32;
                $body
            }
            ferroccl::DataType::U32 => {
                type $T = u32;
                $body
            }
            ferroccl::DataType::I64 => {
                type $T = i64;
                $body
            }
            ferroccl::DataType::U64 => {
                type $T = u64;
                $body
            }
            ferroccl::DataType::F16 => {
                type $T = half::f16;
                $body
            }
            ferroccl::DataType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            ferroccl::DataType::F32 => {
                type $T = f32;
                $body
            }
            ferroccl::DataType::F64 => {
                type $T = f64;
                $body
            }
            ferroccl::DataType::F8E4M3 => {
                type $T = ferroccl::F8E4M3;
                $body
            }
            ferroccl::DataType::F8E5M2 => {
                type $T = ferroccl::F8E5M2;
                $body
            }
        }
    };
}
pub(crate) use with_element_type;

#[cfg(test)]
mod tests {
    use ferroccl::DataType;

    use super::*;

    /// An operator as a machine has it: in the type itself, one rounding an operation.
    trait Machine: TestElement {
        fn add(self, other: Self) -> Self;
        fn mul(self, other: Self) -> Self;
        fn smaller(self, other: Self) -> Self;
        fn larger(self, other: Self) -> Self;
        fn scale(self, n: u32) -> Self;
        fn divide(self, n: u32) -> Self;
    }

    macro_rules! machine_integers { ($($t:ty)*) => { $(
        impl Machine for $t {
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn smaller(self, other: Self) -> Self { self.min(other) }
            fn larger(self, other: Self) -> Self { self.max(other) }
            fn scale(self, _: u32) -> Self { self }
            fn divide(self, n: u32) -> Self { (self as i128 / n as i128) as Self }
        }
    )* } }
    machine_integers!(i8 u8 i32 u32 i64 u64);

    macro_rules! machine_floats { ($($t:ty, $of:expr;)*) => { $(
        impl Machine for $t {
            fn add(self, other: Self) -> Self { self + other }
            fn mul(self, other: Self) -> Self { self * other }
            fn smaller(self, other: Self) -> Self { if other < self { other } else { self } }
            fn larger(self, other: Self) -> Self { if other > self { other } else { self } }
            fn scale(self, n: u32) -> Self { self * $of(1.0 / f64::from(n)) }
            fn divide(self, _: u32) -> Self { self }
        }
    )* } }
    macro_rules! machine_small_floats { ($($t:ty)*) => { $(
        impl Machine for $t {
            fn add(self, other: Self) -> Self { (f32::from(self) + f32::from(other)).into() }
            fn mul(self, other: Self) -> Self { (f32::from(self) * f32::from(other)).into() }
            fn smaller(self, other: Self) -> Self { if other < self { other } else { self } }
            fn larger(self, other: Self) -> Self { if other > self { other } else { self } }
            fn scale(self, n: u32) -> Self { (f32::from(self) * (1.0 / n as f32)).into() }
            fn divide(self, _: u32) -> Self { self }
        }
    )* } }
    machine_small_floats!(F8E4M3 F8E5M2);
    machine_floats! { half::f16, half::f16::from_f64; half::bf16, half::bf16::from_f64;
    f32, |v: f64| v as f32; f64, |v: f64| v; }

    /// Reduces the ranks' inputs in the order of a ring that begins at `first`.
    fn reduce<T: Machine>(case: Case, first: u32, index: usize, ranks: &[u32]) -> T {
        let n = ranks.len();
        let value = |k: usize| {
            let rank = ranks[(first as usize + k) % n];
            let v = T::input(case, rank, index);
            match case.op {
                ReduceOp::Avg => v.scale(case.ranks),
                ReduceOp::PreMulSum => v.mul(T::factor(rank)),
                _ => v,
            }
        };
        let total = (1..n).fold(value(0), |sum, k| match case.op {
            ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum => sum.add(value(k)),
            ReduceOp::Prod => sum.mul(value(k)),
            ReduceOp::Min => sum.smaller(value(k)),
            ReduceOp::Max => sum.larger(value(k)),
        });
        if case.op == ReduceOp::Avg { total.divide(case.ranks) } else { total }
    }

    fn ring<T: Machine>(case: Case, ranks: &[u32]) -> Vec<T> {
        // Another rank begins in each chunk of 100.
        (0..2000).map(|i| reduce(case, (i / 100) as u32 % case.ranks, i, ranks)).collect()
    }

    fn check<T: Machine>() {
        for &op in ReduceOp::ALL {
            for ranks in [1, 2, 3, 5, 8, 16, 40] {
                let case = Case { op, ranks };
                let name = format!("{} {op} of {ranks}", T::TYPE);
                let reference = Reference::<T>::new(case);
                let everyone: Vec<u32> = (0..ranks).collect();
                let good = ring::<T>(case, &everyone);
                assert_eq!(reference.wrong(&good), 0, "{name}");
                let inexact = op == ReduceOp::Avg && !ranks.is_power_of_two();
                let float = T::TYPE.is_float();
                assert_eq!(!reference.bounds.is_empty(), float && inexact, "{name}");

                if T::TYPE.size() == 1
                    && ranks == 40
                    && matches!(op, ReduceOp::Min | ReduceOp::Max | ReduceOp::Avg)
                {
                    continue; // the answer is nearly always 0, or the smallest or largest: nobody could tell
                }
                // A chunk where another should be, one shifted by an element, one never written.
                let mut swapped = good.clone();
                swapped[..1000].rotate_left(100);
                assert!(reference.wrong(&swapped) > 200, "{name}: a chunk in the wrong place");
                assert!(reference.wrong(&good[1..]) > 200, "{name}: all shifted");
                // Of 8 bits some are by chance what the poison is.
                for rank in 0..3 {
                    let wrong = reference.wrong(&poison::<T>(rank, 500));
                    assert!(wrong > 400, "{name}: never written");
                }
                // A rank left out or counted twice; of many ranks' minimum it is seldom the one that counts.
                if ranks > 1 && (ranks < 16 || !matches!(op, ReduceOp::Min | ReduceOp::Max)) {
                    let fewer = ring::<T>(case, &everyone[1..]);
                    assert!(reference.wrong(&fewer) > 10, "{name}: a rank left out");
                }
                if ranks > 1 && matches!(op, ReduceOp::Sum | ReduceOp::Prod) && ranks < 40 {
                    let again: Vec<u32> = everyone.iter().copied().chain([0]).collect();
                    let twice = ring::<T>(case, &again);
                    assert!(reference.wrong(&twice) > 10, "{name}: a rank counted twice");
                }
            }
        }
    }

    #[test]
    fn the_reference_knows_right_from_wrong() {
        for &data_type in DataType::ALL {
            with_element_type!(data_type, T => check::<T>());
        }
    }

    #[test]
    fn exact_types_allow_no_bit() {
        let reference = Reference::<f32>::new(Case { op: ReduceOp::Sum, ranks: 4 });
        let mut got = reference.expected.clone();
        assert_eq!(reference.wrong(&got), 0);
        got[77] = f32::from_bits(got[77].to_bits() ^ 1);
        got[99] = f32::NAN;
        assert_eq!(reference.wrong(&got), 2);
    }

    #[test]
    fn every_rank_has_its_own_data() {
        let case = Case { op: ReduceOp::Sum, ranks: 4 };
        let (a, b) = (inputs::<u8>(case, 0), inputs::<u8>(case, 1));
        assert!(different(&a, &b) > PERIOD as u64 * 9 / 10);
        assert_eq!(different(&a, &a), 0);
    }
}

//! Values that are not numbers, and those that have two zeros or no room: what is documented for them in
//! `ferroccl::device::reduce`.
//!
//! On the CPU, and in the PTX emulator where this build has PTX: bits must be the same there.

use ferroccl::{
    CommConfig, Communicator, Device, Element, Error, F8E4M3, F8E5M2, Operator, ProtocolId,
    ReduceOp, ptx,
};
use half::{bf16, f16};

/// The reduction of one value per rank, the same on all ranks, in all protocols and on all machines. Of NaNs each
/// machine may have its own.
fn reduce<T: Value>(values: &[T], op: impl Into<Operator<T>>) -> T {
    let op = op.into();
    let mut devices = vec![Device::cpu()];
    if ptx::has_type(T::TYPE) {
        devices.push(Device::ptx().unwrap());
    }
    let mut results: Vec<T> = Vec::new();
    for device in devices {
        for protocol in ProtocolId::ALL {
            let mut config = CommConfig::default();
            config.protocol = Some(*protocol);
            let ranks = Communicator::init_all_with(&device, values.len() as u32, &config).unwrap();
            let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
            // Enough elements for whole vectors and a tail.
            let buffers: Vec<_> =
                values.iter().map(|&v| device.upload(&[v; 37]).unwrap()).collect();
            for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
                rank.all_reduce(buffer, buffer, op.clone(), stream).unwrap();
            }
            for (buffer, stream) in buffers.iter().zip(&streams) {
                results.extend(buffer.to_vec(stream).unwrap());
            }
        }
    }
    let same = |a: &T, b: &T| a.bits() == b.bits() || a.not_a_number() && b.not_a_number();
    assert!(results.iter().all(|v| same(v, &results[0])), "{op:?}: {results:?}");
    results[0]
}

/// An element whose bits can be told.
trait Value: Element {
    fn bits(self) -> Vec<u8> {
        bytemuck::bytes_of(&self).to_vec()
    }
    fn not_a_number(self) -> bool {
        false
    }
}
impl Value for i8 {}
impl Value for u8 {}
impl Value for i32 {}
impl Value for u64 {}

/// What a float of any width is tested with.
trait Float: Value {
    const MAX: Self;
    /// Whether the type has infinities, and sums that overflow become one.
    const OVERFLOWS: bool;
    fn of(value: f64) -> Self;
    fn to(self) -> f64;
}
macro_rules! floats {
    ($($t:ty, $max:expr, $overflows:literal, $of:expr, $to:expr;)*) => { $(
        impl Value for $t {
            fn not_a_number(self) -> bool {
                self.is_nan()
            }
        }
        impl Float for $t {
            const MAX: Self = $max;
            const OVERFLOWS: bool = $overflows;
            fn of(value: f64) -> Self {
                let of: fn(f64) -> $t = $of;
                of(value)
            }
            fn to(self) -> f64 {
                let to: fn($t) -> f64 = $to;
                to(self)
            }
        }
    )* };
}
floats! {
    f16, f16::MAX, true, f16::from_f64, f16::to_f64;
    bf16, bf16::MAX, true, bf16::from_f64, bf16::to_f64;
    f32, f32::MAX, true, |x| x as f32, f64::from;
    f64, f64::MAX, true, |x| x, |x| x;
    F8E4M3, F8E4M3::MAX, false, |x| F8E4M3::from(x as f32), |x| f32::from(x).into();
    F8E5M2, F8E5M2::MAX, false, |x| F8E5M2::from(x as f32), |x| f32::from(x).into();
}

macro_rules! every_float {
    ($check:ident) => {
        $check::<f16>();
        $check::<bf16>();
        $check::<f32>();
        $check::<f64>();
        $check::<F8E4M3>();
        $check::<F8E5M2>();
    };
}

/// The reduction of these numbers, as a number.
fn number<T: Float>(values: &[f64], op: ReduceOp) -> f64 {
    reduce(&values.iter().map(|&v| T::of(v)).collect::<Vec<_>>(), op).to()
}

#[test]
fn of_a_nan_and_a_number_min_and_max_take_the_number() {
    fn check<T: Float>() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            assert_eq!(number::<T>(&[f64::NAN, 2.0, f64::NAN], op), 2.0, "{}", T::TYPE);
            assert_eq!(number::<T>(&[2.0, f64::NAN], op), 2.0, "{}", T::TYPE);
            assert!(number::<T>(&[f64::NAN, f64::NAN], op).is_nan(), "{}", T::TYPE);
            // Whatever a NaN's sign.
            assert_eq!(number::<T>(&[-f64::NAN, -2.0], op), -2.0, "{}", T::TYPE);
        }
    }
    every_float!(check);
}

#[test]
fn to_min_and_max_the_zeros_differ() {
    fn check<T: Float>() {
        let bits = |values: &[f64], op| number::<T>(values, op).to_bits();
        let (plus, minus) = (0f64.to_bits(), (-0f64).to_bits());
        for zeros in [[0.0, -0.0], [-0.0, 0.0]] {
            assert_eq!(bits(&zeros, ReduceOp::Min), minus, "{}", T::TYPE);
            assert_eq!(bits(&zeros, ReduceOp::Max), plus, "{}", T::TYPE);
        }
        for op in [ReduceOp::Min, ReduceOp::Max] {
            assert_eq!(bits(&[-0.0, -0.0], op), minus, "{}", T::TYPE);
            assert_eq!(bits(&[0.0, 0.0], op), plus, "{}", T::TYPE);
            assert_eq!(bits(&[-0.0, f64::NAN], op), minus, "{}", T::TYPE);
        }
        assert_eq!(number::<T>(&[-0.0, -1.0], ReduceOp::Min), -1.0);
        assert_eq!(number::<T>(&[1.0, 0.0], ReduceOp::Min), 0.0);
    }
    every_float!(check);
}

#[test]
fn sums_and_products_of_zeros_have_the_sign_of_ieee_754() {
    fn check<T: Float>() {
        let bits = |values: &[f64], op| number::<T>(values, op).to_bits();
        let (plus, minus) = (0f64.to_bits(), (-0f64).to_bits());
        assert_eq!(bits(&[-0.0, -0.0, -0.0], ReduceOp::Sum), minus, "{}", T::TYPE);
        assert_eq!(bits(&[-0.0, 0.0], ReduceOp::Sum), plus, "{}", T::TYPE);
        assert_eq!(bits(&[1.0, -1.0], ReduceOp::Sum), plus, "{}", T::TYPE);
        assert_eq!(bits(&[-0.0, 3.0], ReduceOp::Prod), minus, "{}", T::TYPE);
        assert_eq!(bits(&[-0.0, -0.0], ReduceOp::Avg), minus, "{}", T::TYPE);
    }
    every_float!(check);
}

#[test]
fn a_nan_stays() {
    fn check<T: Float>() {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Avg] {
            for values in [[1.0, f64::NAN, 1.0], [f64::NAN, 0.0, 1.0]] {
                let got = number::<T>(&values, op);
                assert!(got.is_nan(), "{} {op}: {got}", T::TYPE);
            }
        }
        let scaled = reduce(&[T::of(f64::NAN), T::of(1.0)], Operator::pre_mul_sum(T::of(2.0)));
        assert!(scaled.not_a_number(), "{}", T::TYPE);
        let by_nan = reduce(&[T::of(1.0), T::of(1.0)], Operator::pre_mul_sum(T::of(f64::NAN)));
        assert!(by_nan.not_a_number(), "{}", T::TYPE);
    }
    every_float!(check);
}

#[test]
fn what_is_too_large_is_infinite_or_of_8_bits_the_largest() {
    fn check<T: Float>() {
        let max = T::MAX.to();
        let beyond = if T::OVERFLOWS { f64::INFINITY } else { max };
        assert_eq!(number::<T>(&[max, max], ReduceOp::Sum), beyond, "{}", T::TYPE);
        assert_eq!(number::<T>(&[-max, -max], ReduceOp::Sum), -beyond, "{}", T::TYPE);
        assert_eq!(number::<T>(&[max, -max], ReduceOp::Prod), -beyond, "{}", T::TYPE);
        if T::OVERFLOWS {
            assert_eq!(number::<T>(&[f64::INFINITY, 1.0], ReduceOp::Sum), f64::INFINITY);
            assert_eq!(number::<T>(&[f64::INFINITY, -2.0], ReduceOp::Prod), f64::NEG_INFINITY);
            assert_eq!(number::<T>(&[f64::NEG_INFINITY, 1.0], ReduceOp::Min), f64::NEG_INFINITY);
            assert!(number::<T>(&[f64::INFINITY, f64::NEG_INFINITY], ReduceOp::Sum).is_nan());
            assert!(number::<T>(&[f64::INFINITY, 0.0], ReduceOp::Prod).is_nan());
        }
    }
    every_float!(check);
}

/// e5m2 has infinities: only what is put in can be one.
#[test]
fn infinities_of_e5m2_become_finite() {
    let infinity = F8E5M2(0x7c);
    assert_eq!(f32::from(infinity), f32::INFINITY);
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
        let want = if op == ReduceOp::Avg { F8E5M2::from(57344.0) } else { F8E5M2::MAX };
        assert_eq!(reduce(&[infinity, F8E5M2::from(1.0)], op), want, "{op}");
    }
    assert_eq!(reduce(&[F8E5M2(0xfc), F8E5M2::from(1.0)], ReduceOp::Min), F8E5M2(0xfb));
    assert!(reduce(&[infinity, F8E5M2(0xfc)], ReduceOp::Sum).is_nan());
    assert!(reduce(&[infinity, F8E5M2::from(0.0)], ReduceOp::Prod).is_nan());
    assert_eq!(reduce(&[F8E5M2::NAN, F8E5M2(0xfe)], ReduceOp::Sum).0, 0x7f);
    assert_eq!(reduce(&[F8E4M3(0xff), F8E4M3::from(1.0)], ReduceOp::Sum).0, 0x7f);
}

/// Scaled before it is summed: the sum would overflow, the average does not.
#[test]
fn an_average_of_the_largest_is_finite() {
    fn check<T: Float>() {
        assert_eq!(number::<T>(&[T::MAX.to(); 4], ReduceOp::Avg), T::MAX.to(), "{}", T::TYPE);
        assert_eq!(number::<T>(&[T::MAX.to(); 2], ReduceOp::Avg), T::MAX.to(), "{}", T::TYPE);
    }
    every_float!(check);
}

/// The factor is wider than the type: 1/3 of a bfloat16 would be 0.334, and 3 of them 1.002.
#[test]
fn a_factor_is_not_rounded_to_a_small_type() {
    assert_eq!(reduce(&[bf16::from_f32(3.0)], ReduceOp::Avg).to_f32(), 3.0);
    assert_eq!(number::<bf16>(&[384.0, 0.0, 0.0], ReduceOp::Avg), 128.0);
    assert_eq!(number::<F8E4M3>(&[240.0, 0.0, 0.0], ReduceOp::Avg), 80.0);
    assert_eq!(number::<F8E5M2>(&[48.0, 0.0, 0.0], ReduceOp::Avg), 16.0);
}

#[test]
fn numbers_below_the_smallest_normal_are_kept() {
    fn check<T: Float>(smallest: f64) {
        assert_eq!(
            number::<T>(&[smallest, smallest], ReduceOp::Sum),
            2.0 * smallest,
            "{}",
            T::TYPE
        );
        assert_eq!(
            number::<T>(&[smallest, 0.5], ReduceOp::Prod),
            0.0,
            "{}: a tie, to even",
            T::TYPE
        );
        assert_eq!(
            number::<T>(&[3.0 * smallest, 0.5], ReduceOp::Prod),
            2.0 * smallest,
            "{}",
            T::TYPE
        );
        assert_eq!(number::<T>(&[-smallest, smallest], ReduceOp::Min), -smallest, "{}", T::TYPE);
    }
    check::<f16>(2f64.powi(-24));
    check::<bf16>(2f64.powi(-133));
    check::<f32>(2f64.powi(-149));
    check::<f64>(f64::from_bits(1));
    check::<F8E4M3>(2f64.powi(-9));
    check::<F8E5M2>(2f64.powi(-16));
}

#[test]
fn integer_averages_truncate_towards_zero_and_sums_wrap() {
    assert_eq!(reduce(&[-3i8, -4], ReduceOp::Avg), -3);
    assert_eq!(reduce(&[3u64, 4], ReduceOp::Avg), 3);
    assert_eq!(reduce(&[i32::MAX, 1], ReduceOp::Sum), i32::MIN);
    assert_eq!(reduce(&[200u8, 100], ReduceOp::Avg), 22, "(300 mod 256) / 2");
    assert_eq!(reduce(&[100i8, 1], Operator::pre_mul_sum(-3)), -303i32 as i8);
}

/// A rank alone multiplies, too, and its averages are its values.
#[test]
fn a_rank_alone() {
    assert_eq!(reduce(&[7i32], Operator::pre_mul_sum(-3)), -21);
    assert_eq!(
        reduce(&[f16::from_f32(7.0)], Operator::pre_mul_sum(f16::from_f32(0.5))).to_f32(),
        3.5
    );
    assert_eq!(reduce(&[7i8], ReduceOp::Avg), 7);
    assert_eq!(reduce(&[F8E4M3::from(7.0)], ReduceOp::Avg), F8E4M3::from(7.0));
    assert_eq!(reduce(&[F8E5M2(0xfd)], ReduceOp::Sum).0, 0xfd);
}

#[test]
fn a_call_without_its_scalar_is_refused() {
    let device = Device::cpu();
    let ranks = Communicator::init_all(&device, 1).unwrap();
    let (stream, buffer) = (device.stream().unwrap(), device.upload(&[1.0f32; 4]).unwrap());
    let error = ranks[0].all_reduce(&buffer, &buffer, ReduceOp::PreMulSum, &stream).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "op", .. }), "{error}");
    let nothing = Operator::pre_mul_sum_at(&buffer.slice(4..));
    let error = ranks[0].all_reduce(&buffer, &buffer, nothing, &stream).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "op", .. }), "{error}");
    // Nothing was started.
    ranks[0].all_reduce(&buffer, &buffer, Operator::pre_mul_sum(2.0), &stream).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [2.0; 4]);
}

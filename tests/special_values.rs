//! Values that are not numbers, and those that have two zeros or no room: what is documented for them.

use ferroccl::{Communicator, Device, Element, ProtocolId, ReduceOp};
use half::{bf16, f16};

/// The reduction of one value per rank, the same on all ranks and in all protocols.
fn reduce<T: Element>(values: &[T], op: ReduceOp) -> T {
    let mut results = Vec::new();
    for protocol in ProtocolId::ALL {
        let device = Device::cpu();
        let mut config = ferroccl::CommConfig::default();
        config.protocol = Some(*protocol);
        let ranks = Communicator::init_all_with(&device, values.len() as u32, &config).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        // Enough elements for whole vectors and a tail.
        let buffers: Vec<_> = values.iter().map(|&v| device.upload(&[v; 37]).unwrap()).collect();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, op, stream).unwrap();
        }
        for (buffer, stream) in buffers.iter().zip(&streams) {
            results.extend(buffer.to_vec(stream).unwrap());
        }
    }
    let bits = |v: &T| bytemuck::bytes_of(v).to_vec();
    assert!(results.iter().all(|v| bits(v) == bits(&results[0])), "{op}: {results:?}");
    results[0]
}

#[test]
fn of_a_nan_and_a_number_min_and_max_take_the_number() {
    for op in [ReduceOp::Min, ReduceOp::Max] {
        assert_eq!(reduce(&[f32::NAN, 2.0, f32::NAN], op), 2.0);
        assert_eq!(reduce(&[f64::NAN, 2.0], op), 2.0);
        assert_eq!(reduce(&[f16::NAN, f16::ONE], op), f16::ONE);
        assert_eq!(reduce(&[bf16::ONE, bf16::NAN], op), bf16::ONE);
        assert!(reduce(&[f32::NAN, f32::NAN], op).is_nan());
    }
}

#[test]
fn sums_and_products_keep_nans_and_infinities() {
    assert!(reduce(&[1.0f32, f32::NAN, 1.0], ReduceOp::Sum).is_nan());
    assert!(reduce(&[f64::INFINITY, f64::NEG_INFINITY], ReduceOp::Sum).is_nan());
    assert_eq!(reduce(&[f16::MAX, f16::MAX], ReduceOp::Sum), f16::INFINITY);
    assert_eq!(reduce(&[bf16::INFINITY, bf16::from_f32(-2.0)], ReduceOp::Prod), bf16::NEG_INFINITY);
}

/// Scaled before it is summed: the sum would overflow, the average does not.
#[test]
fn an_average_of_large_halves_is_finite() {
    assert_eq!(reduce(&[f16::MAX; 4], ReduceOp::Avg), f16::MAX);
    assert_eq!(reduce(&[f32::MAX; 2], ReduceOp::Avg), f32::MAX);
}

#[test]
fn integer_averages_truncate_towards_zero_and_sums_wrap() {
    assert_eq!(reduce(&[-3i8, -4], ReduceOp::Avg), -3);
    assert_eq!(reduce(&[3u64, 4], ReduceOp::Avg), 3);
    assert_eq!(reduce(&[i32::MAX, 1], ReduceOp::Sum), i32::MIN);
    assert_eq!(reduce(&[200u8, 100], ReduceOp::Avg), 22, "(300 mod 256) / 2");
}

//! Recursive halving under the library's suite, in a protocol of the library's and in one of the lab's; and all that is registered, by
//! the calls of a communicator.

use std::sync::Arc;

use ferroccl::graph::tuning::{AlgorithmFigures, ProtocolFigures};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp};
use ferroccl_device::abi::{Collective, DataType};
use ferroccl_device::collectives::KernelCode;
use ferroccl_device::prims::Simple;
use ferroccl_lab::halving::AllReduceHalving;
use ferroccl_lab::ll64::{LL64, Ll64};
use ferroccl_lab::{HALVING_LL64, HALVING_SIMPLE, PTX, registry};

ferroccl::conformance! {
    halving_simple: Simple => AllReduceHalving, ptx: (HALVING_SIMPLE.kernel.name, PTX);
    halving_ll64: Ll64 => AllReduceHalving, ptx: (HALVING_LL64.kernel.name, PTX);
}

/// Ranks with the lab's kernels.
fn ranks(n: u32, change: impl FnOnce(&mut CommConfig)) -> (Device, Vec<Communicator>) {
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(7))));
    let mut config = CommConfig::default();
    config.registry = registry();
    change(&mut config);
    let ranks = Communicator::init_all_with(&device, n, &config).unwrap();
    (device, ranks)
}

/// An all-reduce of floats, as the communicator does it; how, and what rank 0 has.
fn all_reduce(
    (device, ranks): &(Device, Vec<Communicator>),
    op: ReduceOp,
    count: usize,
) -> ((Algorithm, ProtocolId), Vec<f32>) {
    let call = ferroccl::enqueue::CollectiveCall {
        collective: Collective::AllReduce,
        count,
        data_type: DataType::F32,
        op,
        root: None,
    };
    let plan = ranks[0].plan(&call).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let input = |r: usize| (0..count).map(move |i| ((i + 7 * r) % 32) as f32).collect::<Vec<_>>();
    let buffers: Vec<_> = (0..ranks.len()).map(|r| device.upload(&input(r)).unwrap()).collect();
    for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
        rank.all_reduce(buffer, buffer, op, stream).unwrap();
    }
    let results: Vec<Vec<f32>> = buffers
        .iter()
        .zip(&streams)
        .map(|(buffer, stream)| buffer.to_vec(stream).unwrap())
        .collect();
    for (r, result) in results.iter().enumerate() {
        assert_eq!(result, &results[0], "rank {r}");
    }
    for (i, got) in results[0].iter().enumerate() {
        let values = (0..ranks.len()).map(|r| ((i + 7 * r) % 32) as f32);
        let want = match op {
            ReduceOp::Max => values.fold(0.0, f32::max),
            _ => values.sum(),
        };
        assert_eq!(*got, want, "{op} of {} ranks, element {i} of {count}", ranks.len());
    }
    ((plan.algorithm, plan.protocol), results[0].clone())
}

#[test]
fn calls_take_what_the_settings_name() {
    for n in 2..=9 {
        let ours = ranks(n, |config| config.protocol = Some(LL64));
        for count in [0, 1, 13, 14, 15, 1000, 9999] {
            let (how, _) = all_reduce(&ours, ReduceOp::Sum, count);
            assert_eq!(how.1, LL64, "{n} ranks, {count} elements");
            let (how, _) = all_reduce(&ours, ReduceOp::Max, count);
            assert_eq!(how, (Algorithm::Ring, LL64), "{n} ranks, {count} elements");
        }
        let ours = ranks(n, |config| config.algorithm = Some(AllReduceHalving::ALGORITHM));
        for count in [0, 1, 13, 1000, 9999] {
            let (how, _) = all_reduce(&ours, ReduceOp::Sum, count);
            assert_eq!(how.0, AllReduceHalving::ALGORITHM, "{n} ranks, {count} elements");
        }
        // Another operator has no kernel: something else does it.
        let (how, _) = all_reduce(&ours, ReduceOp::Max, 100);
        assert_ne!(how.0, AllReduceHalving::ALGORITHM);
    }
}

#[test]
fn the_tuner_takes_what_its_figures_make_the_fastest() {
    let fast = ProtocolFigures { like: ProtocolId::Ll, latency: 0.01, bandwidth: 100.0 };
    let ours = ranks(4, |config| {
        config.registry = registry().protocol_figures::<Ll64>(fast);
    });
    let (how, _) = all_reduce(&ours, ReduceOp::Sum, 100);
    assert_eq!(how.1, LL64);
    let few = |_| AlgorithmFigures { steps: 0.01, sent: 0.01 };
    let ours = ranks(4, |config| {
        config.registry = registry().algorithm_figures(AllReduceHalving::ALGORITHM, few);
    });
    let (how, _) = all_reduce(&ours, ReduceOp::Sum, 100);
    assert_eq!(how.0, AllReduceHalving::ALGORITHM);
    let ours = ranks(4, |_| {});
    let (how, _) = all_reduce(&ours, ReduceOp::Sum, 100);
    assert!(how.0 != AllReduceHalving::ALGORITHM && how.1 != LL64, "{how:?}");
}

#[test]
fn every_collective_with_a_kernel_goes_in_the_protocol() {
    let (device, ranks) = ranks(3, |config| config.protocol = Some(LL64));
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let mine: Vec<_> = (0..3i32).map(|r| device.upload(&[r; 100]).unwrap()).collect();
    let all: Vec<_> = (0..3).map(|_| device.alloc::<i32>(300).unwrap()).collect();
    let sums: Vec<_> = (0..3).map(|_| device.alloc::<f32>(5).unwrap()).collect();
    let parts: Vec<_> = (0..3).map(|_| device.upload(&[2.0f32; 15]).unwrap()).collect();
    for (r, (rank, stream)) in ranks.iter().zip(&streams).enumerate() {
        rank.all_gather(&mine[r], &all[r], stream).unwrap();
        rank.broadcast(&mine[r], &mine[r], 2, stream).unwrap();
        rank.reduce_scatter(&parts[r], &sums[r], ReduceOp::Sum, stream).unwrap();
        rank.barrier(stream).unwrap();
        let nothing = rank.reduce(&parts[r], &parts[r], ReduceOp::Sum, 0, stream);
        let why = nothing.err().map(|error| error.to_string());
        // A tree's all-reduce also reduces.
        assert_eq!(why, None);
    }
    for (r, stream) in streams.iter().enumerate() {
        let want: Vec<i32> = (0..300).map(|i| i / 100).collect();
        assert_eq!(all[r].to_vec(stream).unwrap(), want);
        assert_eq!(mine[r].to_vec(stream).unwrap(), [2; 100]);
        assert_eq!(sums[r].to_vec(stream).unwrap(), [6.0; 5]);
    }
    assert_eq!(parts[0].to_vec(&streams[0]).unwrap(), [6.0; 15]);
}

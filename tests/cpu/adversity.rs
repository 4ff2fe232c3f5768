//! The protocols under a scheduler and a memory system that are as unhelpful as the rules allow: 1,000 seeds
//! for each, with 2 slots and tiny chunks. Then the same test on protocols with one rule broken, which it
//! must catch: a test that cannot fail proves nothing.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::device::collectives::AllReduceRing;
use ferroccl::device::kernels::{Kernel, kernel_fn};
use ferroccl::device::prims::{Correct, Ll, Ll128, Protocol, Rules, Simple};
use ferroccl::device::reduce::Sum;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp};

use crate::random::Random;

const SEEDS: u64 = 1000;

/// One all-reduce under one seed: `Err` says how it went wrong.
fn run<P: Protocol>(seed: u64, first_step: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
    let mut config = CommConfig::default();
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(1 + random.below(2) as u32);
    config.first_step = first_step;
    let nranks = 2 + random.below(3);
    let kernel = Kernel {
        name: "under_test",
        cpu: kernel_fn::<AllReduceRing, f32, Sum, P>(),
        threads: 1,
        steps: None,
    };
    let ranks =
        Communicator::init_all_with(&device, nranks as u32, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    // Several calls in a row: steps, slots and signatures are used again.
    for call in 0..2 {
        let count = random.below(400);
        let inputs: Vec<Vec<f32>> =
            (0..nranks).map(|_| (0..count).map(|_| random.below(1000) as f32).collect()).collect();
        let want: Vec<f32> =
            (0..count).map(|i| inputs.iter().map(|input| input[i]).sum()).collect();
        let buffers: Vec<_> = inputs.iter().map(|input| device.upload(input).unwrap()).collect();
        let outputs: Vec<_> = inputs.iter().map(|_| device.alloc::<f32>(count).unwrap()).collect();
        for (r, rank) in ranks.iter().enumerate() {
            // SAFETY: the kernel is ring all-reduce for f32.
            unsafe {
                rank.all_reduce_with(
                    kernel,
                    P::ID,
                    &buffers[r],
                    &outputs[r],
                    ReduceOp::Sum,
                    &streams[r],
                )
            }
            .map_err(|e| e.to_string())?;
        }
        for (r, output) in outputs.iter().enumerate() {
            let got = output.to_vec(&streams[r]).map_err(|e| format!("rank {r}: {e}"))?;
            if let Some(i) = (0..count).find(|&i| got[i] != want[i]) {
                return Err(format!(
                    "call {call} rank {r} element {i} of {count}: {} instead of {}",
                    got[i], want[i]
                ));
            }
        }
    }
    Ok(())
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("FERROCCL_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    }
}

fn survives<P: Protocol>() {
    for seed in seeds() {
        // Every other seed starts just before LL's 32-bit flags wrap.
        let first_step = if seed % 2 == 0 { 0 } else { (1 << 31) - 6 };
        if let Err(why) = run::<P>(seed, first_step) {
            panic!("seed {seed}: {why}");
        }
    }
}

fn is_caught<P: Protocol>(bug: &str) {
    let caught: Vec<(u64, String)> =
        (0..SEEDS).filter_map(|seed| run::<P>(seed, 0).err().map(|why| (seed, why))).collect();
    println!("{bug}: caught by {} of {SEEDS} seeds; first: {:?}", caught.len(), caught.first());
    assert!(!caught.is_empty(), "{bug} is caught by no seed");
}

#[test]
fn simple_survives() {
    survives::<Simple<Correct>>();
}

#[test]
fn ll_survives() {
    survives::<Ll<Correct>>();
}

#[test]
fn ll128_survives() {
    survives::<Ll128<Correct>>();
}

macro_rules! broken {
    ($name:ident, $rule:ident) => {
        struct $name;
        impl Rules for $name {
            const $rule: bool = false;
        }
    };
}
broken!(NoCredit, WAIT_FOR_CREDIT);
broken!(OneFlag, CHECK_BOTH_FLAGS);

#[test]
fn a_missing_credit_wait_is_caught() {
    is_caught::<Simple<NoCredit>>("Simple without waiting for credit");
    is_caught::<Ll<NoCredit>>("LL without waiting for credit");
    is_caught::<Ll128<NoCredit>>("LL128 without waiting for credit");
}

#[test]
fn a_half_checked_ll_line_is_caught() {
    is_caught::<Ll<OneFlag>>("LL with one flag checked");
}

/// A rank that never calls: the others' wait is reported with rank, channel, step and condition.
#[test]
fn a_deadlock_is_explained() {
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(7))));
    let mut config = CommConfig::default();
    config.channels = Some(1);
    let ranks = Communicator::init_all_with(&device, 3, &config).unwrap();
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let buffer = device.upload(&[1.0f32; 64]).unwrap();
    for r in 0..2 {
        let output = device.alloc::<f32>(64).unwrap();
        ranks[r].all_reduce(&buffer, &output, ReduceOp::Sum, &streams[r]).unwrap();
    }
    let error = streams[0].synchronize().unwrap_err();
    assert!(matches!(error, Error::Kernel(_)), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("deadlock: rank ")
            && text.contains("channel 0 step ")
            && text.contains("waits for"),
        "{text}"
    );
}

/// The same seed gives the same run, another seed another one.
#[test]
fn a_seed_replays() {
    let trace = |seed| {
        let runtime = Arc::new(CpuRuntime::seeded(Adversity::new(seed)));
        let device = Device::new(runtime.clone());
        let ranks = Communicator::init_all(&device, 3).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        // First all buffers: an upload runs whatever is queued.
        let buffers: Vec<_> =
            ranks.iter().map(|_| device.upload(&[1.0f32; 100]).unwrap()).collect();
        for ((rank, stream), buffer) in ranks.iter().zip(&streams).zip(&buffers) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
        streams[0].synchronize().unwrap();
        runtime.trace()
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

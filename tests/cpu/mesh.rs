//! One-shot and two-shot under a scheduler and a memory that are as unhelpful as the rules allow. There is no credit over the mesh:
//! that no slot is written before it has been read follows from what a rank has received, in a call and from one call to the next.
//! So each run has several calls of all sizes, from none to several rounds of the smallest slots.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, ProtocolId, ReduceOp};

use crate::random::Random;
use crate::tier;

const SEEDS: u64 = 600;

/// Several all-reduces in a row, of integers, whose sums are exact.
fn run(seed: u64, algorithm: Algorithm, protocol: ProtocolId) -> Result<(), String> {
    let mut random = Random(seed);
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
    let mut config = CommConfig::default();
    (config.algorithm, config.protocol) = (Some(algorithm), Some(protocol));
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(1 + random.below(2) as u32);
    // Every third seed begins before LL's flags wrap, or before slots are filled whole.
    config.first_step = [0, (1 << 31) - 6, (1 << 30) - 3][random.below(3)];
    let nranks = 2 + random.below(4);
    let ranks =
        Communicator::init_all_with(&device, nranks as u32, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let mut calls = Vec::new();
    // All calls are made before the first result is looked at: a rank may be calls ahead.
    for _ in 0..4 {
        let count = [0, 1, random.below(40), random.below(1600)][random.below(4)];
        // Between all-reduces all-to-alls, in which a rank has other lines for each.
        let exchange = algorithm == Algorithm::OneShot && random.chance(40);
        let count = if exchange { count / nranks * nranks } else { count };
        let inputs: Vec<Vec<u32>> = (0..nranks)
            .map(|_| (0..count).map(|_| random.below(1 << 30) as u32).collect())
            .collect();
        let buffers: Vec<_> = inputs.iter().map(|input| device.upload(input).unwrap()).collect();
        let in_place = !exchange && random.chance(50);
        let outputs: Vec<_> = (0..nranks)
            .map(|r| if in_place { buffers[r].clone() } else { device.alloc(count).unwrap() })
            .collect();
        for r in 0..nranks {
            let (input, output, stream) = (&buffers[r], &outputs[r], &streams[r]);
            let called = if exchange {
                ranks[r].all_to_all(input, output, stream)
            } else {
                ranks[r].all_reduce(input, output, ReduceOp::Sum, stream)
            };
            called.map_err(|e| e.to_string())?;
        }
        calls.push((inputs, outputs, exchange));
    }
    for (call, (inputs, outputs, exchange)) in calls.into_iter().enumerate() {
        for (r, output) in outputs.iter().enumerate() {
            let got: Vec<u32> = output.to_vec(&streams[r]).map_err(|e| format!("rank {r}: {e}"))?;
            for (i, got) in got.iter().enumerate() {
                let block = inputs[r].len() / nranks;
                let want = if exchange {
                    inputs[i / block][r * block + i % block]
                } else {
                    inputs.iter().fold(0u32, |sum, input| sum.wrapping_add(input[i]))
                };
                if *got != want {
                    return Err(format!("call {call} rank {r} element {i}: {got}, not {want}"));
                }
            }
        }
    }
    Ok(())
}

fn survives(algorithm: Algorithm, protocol: ProtocolId) {
    for seed in tier::survived(SEEDS) {
        if let Err(why) = run(seed, algorithm, protocol) {
            panic!("{algorithm} {protocol}, seed {seed}: {why}");
        }
    }
}

#[test]
fn one_shot_ll_survives() {
    survives(Algorithm::OneShot, ProtocolId::Ll);
}

#[test]
fn one_shot_ll128_survives() {
    survives(Algorithm::OneShot, ProtocolId::Ll128);
}

#[test]
fn one_shot_simple_survives() {
    survives(Algorithm::OneShot, ProtocolId::Simple);
}

#[test]
fn two_shot_simple_survives() {
    survives(Algorithm::TwoShot, ProtocolId::Simple);
}

#[test]
fn two_shot_ll_survives() {
    survives(Algorithm::TwoShot, ProtocolId::Ll);
}

#[test]
fn two_shot_ll128_survives() {
    survives(Algorithm::TwoShot, ProtocolId::Ll128);
}

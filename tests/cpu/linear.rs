//! Linear collectives under a scheduler and a memory that are as unhelpful as the rules allow: calls of all kinds and sizes in a row,
//! with small slots, through them and straight into the receivers' outputs.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ReduceOp};

use crate::random::Random;
use crate::tier;

const SEEDS: u64 = 400;

/// What a call does.
#[derive(Clone, Copy, Debug)]
enum LinearCall {
    Broadcast(usize),
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// What rank `r` has then, of `inputs` with `block` elements for each rank, or from each.
fn want(call: LinearCall, inputs: &[Vec<u32>], r: usize, block: usize) -> Vec<u32> {
    let of_rank = |input: &Vec<u32>| input[r * block..][..block].to_vec();
    match call {
        LinearCall::Broadcast(root) => inputs[root].clone(),
        LinearCall::AllGather => inputs.concat(),
        LinearCall::AllToAll => inputs.iter().flat_map(of_rank).collect(),
        LinearCall::ReduceScatter => inputs
            .iter()
            .map(of_rank)
            .reduce(|sum, one| sum.iter().zip(one).map(|(a, b)| a.wrapping_add(b)).collect())
            .unwrap(),
    }
}

/// Several calls in a row, all made before the first result is looked at. Whether a rank has what it ought to, and no access was in no
/// order with another.
fn run(seed: u64, protocol: ProtocolId, weaken: Option<(Published, Side)>) -> Result<(), String> {
    let random = &mut Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let device = Device::new(runtime.clone());
    let mut config = CommConfig::default();
    (config.algorithm, config.protocol) = (Some(Algorithm::Linear), Some(protocol));
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(1 + random.below(2) as u32);
    // Every third seed begins before LL's flags wrap, or before slots are filled whole.
    config.first_step = [0, (1 << 31) - 6, (1 << 30) - 3][random.below(3)];
    let nranks = 2 + random.below(3);
    let ranks =
        Communicator::init_all_with(&device, nranks as u32, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let mut calls = Vec::new();
    for _ in 0..1 + random.below(5) {
        // From nothing to several rounds of the slots.
        let block = [0, 1, random.below(60), random.below(600)][random.below(4)];
        let call = match random.below(4) {
            0 => LinearCall::Broadcast(random.below(nranks)),
            1 => LinearCall::AllGather,
            2 => LinearCall::ReduceScatter,
            _ => LinearCall::AllToAll,
        };
        let of_all = matches!(call, LinearCall::ReduceScatter | LinearCall::AllToAll);
        let count = if of_all { nranks * block } else { block };
        let inputs: Vec<Vec<u32>> = (0..nranks)
            .map(|_| (0..count).map(|_| random.below(1 << 30) as u32).collect())
            .collect();
        let outputs: Vec<DeviceBuffer<u32>> = (0..nranks)
            .map(|r| device.alloc(want(call, &inputs, r, block).len()).unwrap())
            .collect();
        for r in 0..nranks {
            let (input, output) = (device.upload(&inputs[r]).unwrap(), &outputs[r]);
            let (rank, stream) = (&ranks[r], &streams[r]);
            let called = match call {
                LinearCall::Broadcast(root) => rank.broadcast(&input, output, root as u32, stream),
                LinearCall::AllGather => rank.all_gather(&input, output, stream),
                LinearCall::ReduceScatter => {
                    rank.reduce_scatter(&input, output, ReduceOp::Sum, stream)
                }
                LinearCall::AllToAll => rank.all_to_all(&input, output, stream),
            };
            called.map_err(|e| e.to_string())?;
        }
        calls.push((call, inputs, outputs, block));
    }
    for (i, (call, inputs, outputs, block)) in calls.iter().enumerate() {
        for (r, output) in outputs.iter().enumerate() {
            let got = output.to_vec(&streams[r]).map_err(|e| format!("rank {r}: {e}"))?;
            let want = want(*call, inputs, r, *block);
            if let Some(at) = (0..want.len()).find(|at| got[*at] != want[*at]) {
                let (got, want) = (got[at], want[at]);
                let which = format!("call {i}, {call:?} of {block}, rank {r}, element {at}");
                return Err(format!("{which}: {got}, not {want}"));
            }
        }
    }
    runtime.race().map_or(Ok(()), Err)
}

fn survives(protocol: ProtocolId) {
    for seed in tier::survived(SEEDS) {
        if let Err(why) = run(seed, protocol, None) {
            panic!("{protocol}, seed {seed}: {why}");
        }
    }
}

#[test]
fn ll_survives() {
    survives(ProtocolId::Ll);
}

#[test]
fn ll128_survives() {
    survives(ProtocolId::Ll128);
}

#[test]
fn simple_survives() {
    survives(ProtocolId::Simple);
}

/// So data does go straight into outputs, whose addresses are in that order.
#[test]
fn the_order_of_offers_is_relied_on_by_simple_alone() {
    for side in [Side::Release, Side::Acquire] {
        let weaken = Some((orders::PTR, side));
        let caught = |protocol| (0..SEEDS).find_map(|seed| run(seed, protocol, weaken).err());
        let by_simple = caught(ProtocolId::Simple);
        println!("{side:?}: {by_simple:?}");
        assert!(by_simple.is_some(), "no seed below {SEEDS} notices {side:?}");
        assert_eq!((0..20).find_map(|seed| run(seed, ProtocolId::Ll, weaken).err()), None);
    }
}

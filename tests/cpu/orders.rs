//! Every memory order of the kernels ([`orders`]), weakened: some seed must notice, be it by a wrong result or by accesses to
//! data that nothing orders any more. As they are, no seed does.

use std::sync::Arc;

use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ReduceOp};

use super::random::Random;

/// What is tried for each order, at most.
const SEEDS: u64 = 600;

/// What no result of a kernel shows, with the reason in the order's documentation; and what `direct.rs`, `device_comm.rs` and
/// `device_puts.rs` have.
const ELSEWHERE: &[Published] = &[
    orders::FAULT,
    orders::ABORT,
    orders::SIGNATURE_TAIL,
    orders::SIGNATURE_ACK,
    orders::BEGUN,
    orders::ENDED,
    orders::BARRIER,
    orders::SIGNAL,
    orders::PUT_REQUEST,
    orders::PUT_DONE,
    orders::NETWORK_WORD,
];

/// All-reduces in a row, some of them empty; or calls that differ, which end in a fault.
fn run(seed: u64, weaken: Option<(Published, Side)>) -> Result<(), String> {
    let random = &mut Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let device = Device::new(runtime.clone());
    let mut config = CommConfig::default();
    config.slots = Some(2);
    config.buffer_bytes = [Some(512); 3];
    config.channels = Some(1);
    config.protocol = Some(ProtocolId::ALL[random.below(3)]);
    let mesh = [Algorithm::OneShot, Algorithm::TwoShot];
    config.algorithm =
        Some([Algorithm::Ring, Algorithm::Tree, mesh[random.below(2)]][random.below(3)]);
    let nranks = 2 + random.below(3);
    let ranks =
        Communicator::init_all_with(&device, nranks as u32, &config).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let differs = random.below(4) == 0;
    let empty = random.below(3) == 0;
    let calls = 1 + random.below(8);
    // The same in all calls: an address that is not in order is that of an earlier call, whose buffer must hold as much.
    let count = if empty { 0 } else { 1 + random.below(400) };
    let mut outputs: Vec<Vec<DeviceBuffer<f32>>> = Vec::new();
    let mut want = Vec::new();
    for _ in 0..calls {
        let inputs: Vec<Vec<f32>> =
            (0..nranks).map(|_| (0..count).map(|_| random.below(1000) as f32).collect()).collect();
        want.push((0..count).map(|i| inputs.iter().map(|x| x[i]).sum()).collect::<Vec<f32>>());
        outputs.push(inputs.iter().map(|input| device.upload(input).unwrap()).collect());
    }
    for buffers in &outputs {
        for r in 0..nranks {
            let op = if differs && r == 1 { ReduceOp::Max } else { ReduceOp::Sum };
            // After a fault calls are refused.
            let called = ranks[r].all_reduce(&buffers[r], &buffers[r], op, &streams[r]);
            if !differs {
                called.map_err(|e| e.to_string())?;
            }
        }
    }
    for (buffers, want) in outputs.iter().zip(&want) {
        for r in 0..nranks {
            match buffers[r].to_vec(&streams[r]) {
                Ok(got) if !differs && got != *want => return Err(format!("rank {r}: {got:?}")),
                Err(e) if !differs => return Err(format!("rank {r}: {e}")),
                _ => {}
            }
        }
    }
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn orders_as_they_are_survive() {
    for seed in 0..SEEDS / 2 {
        assert_eq!(run(seed, None), Ok(()), "seed {seed}");
    }
}

#[test]
fn every_weakened_order_is_caught() {
    for word in orders::ALL.iter().filter(|word| !ELSEWHERE.contains(word)) {
        for side in [Side::Release, Side::Acquire] {
            let weaken = Some((*word, side));
            let caught = (0..SEEDS).find_map(|seed| Some((seed, run(seed, weaken).err()?)));
            println!("{} {side:?}: {caught:?}", word.name());
            assert!(caught.is_some(), "no seed below {SEEDS} notices {} {side:?}", word.name());
        }
    }
}

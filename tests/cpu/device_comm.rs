//! A user's kernel on a device communicator, under a scheduler and a memory that are as unhelpful as the rules allow.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Communicator, Device, DeviceCommConfig, Grid};

use crate::random::Random;
use crate::rounds::{ROUNDS, Rounds, expected};

const SEEDS: u64 = 400;

fn run(seed: u64, weaken: Option<(Published, Side)>) -> Result<(), String> {
    let mut random = Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let device = Device::new(runtime.clone());
    let n = 1 + random.below(5) as u32;
    let (blocks, rounds) = (1 + random.below(3) as u32, 1 + random.below(4));
    let count = [0, 1, 2, random.below(40), random.below(300)][random.below(5)];
    let ranks = Communicator::init_all(&device, n).map_err(|e| e.to_string())?;
    let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
    let len = count * blocks as usize;
    let alloc =
        |len: usize| ranks.iter().map(|_| device.alloc::<u64>(len).unwrap()).collect::<Vec<_>>();
    let buffers = [0; 3].map(|_| alloc(len));
    let windows = buffers
        .each_ref()
        .map(|buffers| Communicator::register_windows(ranks.iter().zip(buffers)).unwrap());
    let results = alloc(3 * len * rounds);
    let mut config = DeviceCommConfig::default();
    (config.barriers, config.signals) = (blocks, 2 * blocks);
    let comms = Communicator::device_comms(&ranks, &config).map_err(|e| e.to_string())?;
    // Twice: what barriers and signals count goes on from kernel to kernel.
    for _ in 0..2 {
        for r in 0..n as usize {
            let argument = Rounds {
                comm: comms[r].value(),
                windows: windows.each_ref().map(|of| of[r].value().unwrap()),
                results: results[r].address(),
                count: count as u64,
                rounds: rounds as u64,
            };
            let grid = Grid { blocks, threads: 32 };
            // SAFETY: the buffers have what the kernel reads and writes, and outlive the streams' work.
            unsafe { comms[r].launch(&ROUNDS, grid, &argument, &streams[r]) }
                .map_err(|e| e.to_string())?;
        }
        for r in 0..n as usize {
            let got = results[r].to_vec(&streams[r]).map_err(|e| format!("rank {r}: {e}"))?;
            let size = (blocks.into(), count as u64, rounds as u64);
            let wanted = expected(r as u64, n.into(), size);
            if let Some(i) = (0..got.len()).find(|i| got[*i] != wanted[*i]) {
                return Err(format!("rank {r}, result {i}: {}, not {}", got[i], wanted[i]));
            }
        }
    }
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn rounds_survive() {
    let seeds = match std::env::var("FERROCCL_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..SEEDS,
    };
    for seed in seeds {
        if let Err(wrong) = run(seed, None) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn every_weakened_order_is_caught() {
    for word in [orders::BARRIER, orders::SIGNAL] {
        for side in [Side::Release, Side::Acquire] {
            let caught =
                (0..SEEDS).find_map(|seed| Some((seed, run(seed, Some((word, side))).err()?)));
            println!("{} {side:?}: {caught:?}", word.name());
            assert!(caught.is_some(), "no seed below {SEEDS} notices {} {side:?}", word.name());
        }
    }
}

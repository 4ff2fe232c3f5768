//! Packets of a user's kernel, as PTX: under all checks, in schedules of seeds; with half of the flags; and in simulated time.

use std::sync::Arc;

use ferroccl::runtime::ptx::{MachineModel, PtxRuntime};
use ferroccl::{CommConfig, Device};

use crate::device_ptx;
use crate::packets::EXCHANGE;
use crate::packets_run;
use crate::random::Random;

fn seeded(seed: u64, ptx: &'static str, places: usize) -> Result<(), String> {
    let random = &mut Random(seed);
    let runtime = Arc::new(PtxRuntime::seeded(seed));
    let n = 1 + random.below(4);
    let size = (1 + random.below(2) as u32, [1, 7, random.below(150)][random.below(3)], 4);
    let devices = vec![Device::new(runtime); n];
    let kernel = EXCHANGE.with_ptx(ptx);
    packets_run::run(&devices, &kernel, size, (1, places), &CommConfig::default())
}

#[test]
fn exchanges_survive_all_checks() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for seed in 0..30 {
        seeded(seed, ptx, 2).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// `packets.rs` in CUDA C, by NVIDIA's compiler (`scripts/ptx-fixtures`), with `device/include/ferroccl_device.h`.
const OF_CUDA: &str = include_str!("../../ptx/tests/fixtures/device_packets.sm_80.ptx");

#[test]
fn kernels_in_cuda_exchange_too() {
    for seed in 0..30 {
        seeded(seed, OF_CUDA, 2).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    for ptx in [device_ptx::rounds(), Some(OF_CUDA)].into_iter().flatten() {
        let device = Device::new(Arc::new(PtxRuntime::on_threads(2)));
        let mut config = CommConfig::default();
        config.timeout = Some(std::time::Duration::from_millis(300));
        let error = packets_run::alone(&[device.clone(), device], &EXCHANGE.with_ptx(ptx), &config);
        let wanted =
            "timeout: rank 0 channel 0 step 1 waited for an LL line (both flags) of rank 1";
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn one_place_is_not_enough() {
    let Some(ptx) = device_ptx::rounds() else { return };
    let found = (0..60).find_map(|seed| Some((seed, seeded(seed, ptx, 1).err()?)));
    println!("{found:?}");
    assert!(found.is_some(), "no seed notices that there is one place");
}

/// A packet takes about what a hop of LL does: no fence, no barrier.
#[test]
fn a_round_takes_less_than_a_barrier_and_a_signal() {
    let Some(ptx) = device_ptx::rounds() else { return };
    let model = MachineModel::find("h100-nvlink").unwrap();
    let time = |rounds: usize| {
        let gpus: Vec<_> = PtxRuntime::simulated(model.clone()).into_iter().map(Arc::new).collect();
        let devices: Vec<_> = gpus.iter().take(2).map(|gpu| Device::new(gpu.clone())).collect();
        let kernel = EXCHANGE.with_ptx(ptx);
        let size = (1, 2, rounds);
        packets_run::run(&devices, &kernel, size, (1, 2), &CommConfig::default()).unwrap();
        gpus[0].simulated_time().unwrap().as_secs_f64() * 1e6
    };
    let round = (time(20) - time(10)) / 10.0;
    println!("a round of 2 ranks: {round:.2} us, simulated");
    assert!((0.4..2.0).contains(&round), "{round} us");
}

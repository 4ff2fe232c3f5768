//! Sums and copies by a switch in a user's kernel, as PTX of sm_90 with `multimem`, and of sm_80 without.

use std::sync::Arc;

use ferroccl::device::abi::{DeviceComm, DeviceWindow};
use ferroccl::runtime::ptx::{MachineModel, Options, PtxRuntime};
use ferroccl::{CommConfig, Communicator, Device, DeviceCommConfig, Grid};

use crate::device_ptx;
use crate::random::Random;
use crate::switched::SWITCHED;
use crate::switched_run;

/// GPUs of a machine with a switch, one for each rank.
fn gpus(n: usize, options: Options) -> Vec<Device> {
    let model = MachineModel::find("h100-nvlink").unwrap();
    let gpus = PtxRuntime::simulated_with(model, options);
    gpus.into_iter().take(n).map(|gpu| Device::new(Arc::new(gpu))).collect()
}

#[test]
fn a_switch_sums_for_kernels_of_sm_90() {
    let Some(ptx) = device_ptx::switched(90) else { return };
    for wanted in ["multimem.ld_reduce", "multimem.st", "fence.proxy.alias"] {
        assert!(ptx.contains(wanted), "there is no {wanted}");
    }
    let kernel = SWITCHED.with_ptx(ptx);
    for seed in 0..12 {
        let random = &mut Random(seed);
        let devices = gpus(2 + random.below(3), Options::seeded(seed));
        let size = (1 + random.below(2) as u32, random.below(90), 2);
        let shift = random.below(4);
        switched_run::run(&devices, &kernel, size, (shift, true))
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// The instructions are of sm_90: a kernel for older GPUs has none of them, and reads from each rank.
#[test]
fn kernels_of_sm_80_do_without() {
    let Some(ptx) = device_ptx::switched(80) else { return };
    for none in ["multimem.ld_reduce", "multimem.st", "fence.proxy.alias"] {
        assert!(!ptx.contains(none), "there is {none}");
    }
    let kernel = SWITCHED.with_ptx(ptx);
    for seed in 0..6 {
        let devices = vec![Device::new(Arc::new(PtxRuntime::seeded(seed))); 3];
        switched_run::run(&devices, &kernel, (2, 41, 1), (seed as usize % 4, false))
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

ferroccl::device::kernel_argument! {
    struct Sums {
        comm: DeviceComm,
        values: DeviceWindow,
        sums: DeviceWindow,
        packs: u64,
    }
}

ferroccl::device::user_kernels! {
    OF_CUDA = "test_multimem": 512, only_in_cuda, Sums;
}

/// # Safety
/// None: nobody calls it.
unsafe fn only_in_cuda(_: Sums) {}

/// `device_multimem.cu`, by NVIDIA's compiler (`scripts/ptx-fixtures`), with `device/include/ferroccl_device.h`.
#[test]
fn a_switch_sums_for_kernels_in_cuda() {
    let kernel =
        OF_CUDA.with_ptx(include_str!("../../ptx/tests/fixtures/device_multimem.sm_90.ptx"));
    for (n, packs) in [(2, 1), (3, 77), (4, 200)] {
        let devices = gpus(n, Options::seeded(n as u64));
        let ranks = Communicator::init_all_on(&devices, &CommConfig::default()).unwrap();
        let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
        let buffers = [0, 1].map(|_| {
            let alloc = |device: &Device| device.alloc_shared::<f32>(4 * packs).unwrap();
            devices.iter().map(alloc).collect::<Vec<_>>()
        });
        let windows = buffers
            .each_ref()
            .map(|buffers| Communicator::register_windows(ranks.iter().zip(buffers)).unwrap());
        let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
        for (r, comm) in comms.iter().enumerate() {
            let [values, sums] = windows.each_ref().map(|of| of[r].value().unwrap());
            let argument = Sums { comm: comm.value(), values, sums, packs: packs as u64 };
            let grid = Grid { blocks: 1, threads: 64 };
            // SAFETY: the buffers have so many packs, and outlive the streams' work.
            unsafe { comm.launch(&kernel, grid, &argument, &streams[r]) }.unwrap();
        }
        let sum = |i: usize| (0..n).map(|r| (r * 100 + i % 64) as f32).sum();
        let wanted: Vec<f32> = (0..4 * packs).map(sum).collect();
        for (r, stream) in streams.iter().enumerate() {
            assert_eq!(buffers[1][r].to_vec(stream).unwrap(), wanted, "rank {r} of {n}");
        }
    }
}

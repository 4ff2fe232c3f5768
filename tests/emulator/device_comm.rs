//! A user's kernel on a device communicator, as PTX: under all checks, in schedules of seeds; with weakened orders; and in simulated
//! time.

use std::sync::Arc;

use ferroccl::runtime::ptx::{MachineModel, PtxRuntime};
use ferroccl::{Communicator, Device, DeviceCommConfig, Error, Grid};

use crate::device_ptx;
use crate::random::Random;
use crate::rounds::{ROUNDS, Rounds};
use crate::rounds_run;

fn seeded(seed: u64, ptx: &'static str) -> Result<(), String> {
    let random = &mut Random(seed);
    let runtime = Arc::new(PtxRuntime::seeded(seed));
    let n = 1 + random.below(4);
    let size = (1 + random.below(2) as u32, [1, 7, random.below(150)][random.below(3)], 2);
    rounds_run::run(&vec![Device::new(runtime); n], &ROUNDS.with_ptx(ptx), size, 1)
}

#[test]
fn rounds_survive_all_checks() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for seed in 0..30 {
        seeded(seed, ptx).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn weakened_orders_are_found() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for (from, to) in [
        // Of barriers and signals; of what waits for them.
        ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
        ("red.release.sys.global.add.u64", "red.relaxed.sys.global.add.u64"),
        ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"),
    ] {
        assert!(ptx.contains(from), "there is no {from}");
        let weak: &'static str = Box::leak(ptx.replace(from, to).into_boxed_str());
        let found = (0..60).find_map(|seed| Some((seed, seeded(seed, weak).err()?)));
        println!("{to}: {found:?}");
        let (_, wrong) = found.unwrap_or_else(|| panic!("no seed notices {to}"));
        assert!(wrong.contains("race") || wrong.contains(", not "), "{wrong}");
    }
}

#[test]
fn ranks_are_gpus_of_a_machine_in_simulated_time() {
    let Some(ptx) = device_ptx::rounds() else { return };
    let model = MachineModel::find("h100-nvlink").unwrap();
    let gpus: Vec<_> = PtxRuntime::simulated(model).into_iter().map(Arc::new).collect();
    let devices: Vec<_> = gpus.iter().take(4).map(|gpu| Device::new(gpu.clone())).collect();
    rounds_run::run(&devices, &ROUNDS.with_ptx(ptx), (4, 1000, 3), 1).unwrap();
    let micros = gpus[0].simulated_time().unwrap().as_secs_f64() * 1e6;
    // 3 rounds of 2 barriers and 2 signals, each a trip over NVLink of half a microsecond at least.
    assert!((6.0..200.0).contains(&micros), "{micros} us");
}

/// `rounds.rs` in CUDA C, by NVIDIA's compiler (`scripts/ptx-fixtures`), with `device/include/ferroccl_device.h`.
const OF_CUDA: &str = include_str!("../../ptx/tests/fixtures/device_comm.sm_80.ptx");

#[test]
fn kernels_in_cuda_communicate_too() {
    for seed in 0..30 {
        seeded(seed, OF_CUDA).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    for order in ["st.release", "red.release", "ld.acquire"] {
        let (name, _) = order.split_once('.').unwrap();
        let weak = OF_CUDA.replace(order, &format!("{name}.relaxed"));
        assert_ne!(weak, OF_CUDA, "there is no {order}");
        let weak: &'static str = Box::leak(weak.into_boxed_str());
        let found = (0..60).find_map(|seed| seeded(seed, weak).err());
        let wrong = found.unwrap_or_else(|| panic!("no seed notices {order}"));
        assert!(wrong.contains("race") || wrong.contains(", not "), "{wrong}");
    }
}

#[test]
fn a_kernel_whose_peer_does_not_come_gives_up_in_time() {
    for ptx in [device_ptx::rounds(), Some(OF_CUDA)].into_iter().flatten() {
        let device = Device::new(Arc::new(PtxRuntime::on_threads(2)));
        let mut config = ferroccl::CommConfig::default();
        config.timeout = Some(std::time::Duration::from_millis(300));
        let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
        let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default()).unwrap();
        let buffers = [0, 1].map(|_| device.alloc_shared::<u64>(8).unwrap());
        let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
        let (stream, window) = (device.stream().unwrap(), windows[0].value().unwrap());
        let (windows, results) = ([window; 3], buffers[0].address());
        let argument = Rounds { comm: comms[0].value(), windows, results, count: 1, rounds: 1 };
        let grid = Grid { blocks: 1, threads: 32 };
        // SAFETY: it stops at the first barrier, which the other rank does not come to.
        unsafe { comms[0].launch(&ROUNDS.with_ptx(ptx), grid, &argument, &stream) }.unwrap();
        let error = stream.synchronize().unwrap_err().to_string();
        let wanted =
            "timeout: rank 0 channel 0 step 1 waited for the arrival at the barrier of rank 1";
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn what_has_no_ptx_is_named() {
    let runtime = Arc::new(PtxRuntime::seeded(0));
    let device = Device::new(runtime);
    let rank = Communicator::init_all(&device, 1).unwrap().remove(0);
    let comm = rank.device_comm(&DeviceCommConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc_shared::<u64>(1).unwrap();
    let window = rank.register_window(&buffer).unwrap().value().unwrap();
    let argument =
        Rounds { comm: comm.value(), windows: [window; 3], results: 0, count: 0, rounds: 0 };
    // SAFETY: it is not launched.
    let launched =
        unsafe { comm.launch(&ROUNDS, Grid { blocks: 1, threads: 32 }, &argument, &stream) };
    let error = launched.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { what, .. } if what == "test_rounds"), "{error}");
}

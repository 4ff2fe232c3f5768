//! Sums and copies by a switch in a user's kernel, as PTX of sm_90 with `multimem`, and of sm_80 without.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::ptx::{MachineModel, Options, PtxRuntime};

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
    assert!(!ptx.contains("multimem"));
    let kernel = SWITCHED.with_ptx(ptx);
    for seed in 0..6 {
        let devices = vec![Device::new(Arc::new(PtxRuntime::seeded(seed))); 3];
        switched_run::run(&devices, &kernel, (2, 41, 1), (seed as usize % 4, false))
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

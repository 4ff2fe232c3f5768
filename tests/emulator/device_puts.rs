//! A user's kernel on a device communicator over several nodes, as PTX: under all checks, in schedules of seeds; with weakened orders, and
//! with mistakes.

use std::sync::Arc;

use ferroccl::runtime::ptx::PtxRuntime;
use ferroccl::{CommConfig, Device};
use ferroccl_proxy::net::{LocalNet, Net};

use crate::device_ptx;
use crate::puts::{EARLY_SIGNAL, NO_FLUSH, NO_WAIT, NONE, NOT_READ, PUTS};
use crate::puts_run::{self, Size};
use crate::random::Random;

const SHAPES: [&[usize]; 4] = [&[1, 1], &[2, 1], &[2, 2], &[1, 1, 1]];

fn seeded(seed: u64, ptx: &'static str, mistake: u64) -> Result<(), String> {
    let random = &mut Random(seed);
    let device = Device::new(Arc::new(PtxRuntime::seeded(seed)));
    let size = Size {
        blocks: 1 + random.below(2) as u32,
        count: [1, 7, random.below(80)][random.below(3)],
        rounds: 2,
        launches: 1,
        requests: [1, 2, 64][random.below(3)],
        mistake: mistake | NOT_READ,
    };
    let mut config = CommConfig::default();
    // Pieces of data are of a slot.
    config.buffer_bytes = [Some(512); 3];
    (config.slots, config.channels) = (Some(2), Some(1));
    let net: Arc<dyn Net> = Arc::new(LocalNet::default());
    let shape = SHAPES[random.below(4)];
    puts_run::run(&device, &PUTS.with_ptx(ptx), shape, size, &config, Some(net))
}

#[test]
fn puts_survive_all_checks() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for seed in 0..20 {
        seeded(seed, ptx, NONE).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn weakened_orders_and_mistakes_are_found() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for (from, to) in [
        // Of requests and barriers; of what waits.
        ("st.release.sys.global.u64", "st.relaxed.sys.global.u64"),
        ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64"),
    ] {
        assert!(ptx.contains(from), "there is no {from}");
        let weak: &'static str = Box::leak(ptx.replace(from, to).into_boxed_str());
        let found = (0..40).find_map(|seed| Some((seed, seeded(seed, weak, NONE).err()?)));
        println!("{to}: {found:?}");
        assert!(found.is_some(), "no seed notices {to}");
    }
    for mistake in [NO_FLUSH, EARLY_SIGNAL, NO_WAIT] {
        let found = (0..40).find_map(|seed| Some((seed, seeded(seed, ptx, mistake).err()?)));
        println!("mistake {mistake}: {found:?}");
        assert!(found.is_some(), "no seed notices mistake {mistake}");
    }
}

/// `puts.rs` in CUDA C, by NVIDIA's compiler (`scripts/ptx-fixtures`), with `device/include/ferroccl_device.h`.
const OF_CUDA: &str = include_str!("../../ptx/tests/fixtures/device_puts.sm_80.ptx");

#[test]
fn kernels_in_cuda_put_too() {
    for seed in 0..20 {
        seeded(seed, OF_CUDA, NONE).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    for order in ["st.release", "ld.acquire"] {
        let (name, _) = order.split_once('.').unwrap();
        let weak = OF_CUDA.replace(order, &format!("{name}.relaxed"));
        assert_ne!(weak, OF_CUDA, "there is no {order}");
        let weak: &'static str = Box::leak(weak.into_boxed_str());
        let found = (0..40).find_map(|seed| seeded(seed, weak, NONE).err());
        println!("{order}: {found:?}");
        assert!(found.is_some(), "no seed notices {order}");
    }
}

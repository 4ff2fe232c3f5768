//! Calls of warps and threads, and teams of the caller's, as PTX: under all checks, in schedules of seeds.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::ptx::PtxRuntime;

use crate::device_ptx;
use crate::groups::GROUPS;
use crate::groups_run;
use crate::random::Random;

fn seeded(seed: u64, ptx: &'static str) -> Result<(), String> {
    let random = &mut Random(seed);
    let runtime = Arc::new(PtxRuntime::seeded(seed));
    let (team, parts) = (1 + random.below(2), 1 + random.below(2));
    let devices = vec![Device::new(runtime); team * parts];
    let size = (1 + random.below(2) as u32, [0, 1, random.below(90)][random.below(3)], 2);
    groups_run::run(&devices, &GROUPS.with_ptx(ptx), size, (team as u64, random.below(2) == 0))
}

#[test]
fn groups_survive_all_checks() {
    let Some(ptx) = device_ptx::rounds() else { return };
    for seed in 0..20 {
        seeded(seed, ptx).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// What lanes of a warp have written is there for the lane that tells only behind a barrier of the warp.
#[test]
fn a_warp_that_does_not_sync_is_found() {
    let Some(ptx) = device_ptx::rounds() else { return };
    let weak: &'static str = Box::leak(ptx.replace("bar.warp.sync", "//").into_boxed_str());
    let found = (0..40).find_map(|seed| Some((seed, seeded(seed, weak).err()?)));
    println!("{found:?}");
    assert!(found.is_some(), "no seed notices");
}

//! Calls of warps and threads, and teams of the caller's, under a scheduler and a memory that are as unhelpful as the rules allow.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};

use crate::groups::GROUPS;
use crate::groups_run;
use crate::random::Random;

#[test]
fn groups_survive() {
    ferroccl::conformance::seeds(150, |seed| {
        let mut random = Random(seed);
        let adversity = Adversity { races: true, ..Adversity::new(seed) };
        let runtime = Arc::new(CpuRuntime::seeded(adversity));
        let (team, parts) = (1 + random.below(3), 1 + random.below(2));
        let devices = vec![Device::new(runtime.clone()); team * parts];
        let size = (1 + random.below(2) as u32, random.below(40), 1 + random.below(3));
        groups_run::run(&devices, &GROUPS, size, (team as u64, random.below(2) == 0))?;
        runtime.race().map_or(Ok(()), Err)
    });
}

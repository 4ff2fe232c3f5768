//! Sums and copies by a switch in a user's kernel, under a scheduler and a memory that are as unhelpful as the rules allow: whoever loads
//! and stores plays the switch.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::cpu::{Adversity, CpuRuntime};

use crate::random::Random;
use crate::switched::SWITCHED;
use crate::switched_run;

#[test]
fn sums_by_a_switch_survive() {
    ferroccl::conformance::seeds(100, |seed| {
        let mut random = Random(seed);
        let adversity = Adversity { races: true, ..Adversity::new(seed) };
        let runtime = Arc::new(CpuRuntime::seeded(adversity));
        let devices = vec![Device::new(runtime.clone()); 2 + random.below(3)];
        let size = (1 + random.below(3) as u32, random.below(70), 1 + random.below(2));
        switched_run::run(&devices, &SWITCHED, size, (random.below(4), true))?;
        runtime.race().map_or(Ok(()), Err)
    });
}

/// A rank alone has no other ranks' buffers, and no switch.
#[test]
fn without_a_switch_ranks_sum_by_themselves() {
    switched_run::run(&[Device::cpu()], &SWITCHED, (2, 33, 2), (1, false)).unwrap();
}

//! The cuda runtime over a stand-in for the driver (`driver/`): everything but the GPU. Kernels run by their CPU face, so
//! that what comes out is checked, too. `tests/gpu` has the conformance cases on a real one.
#![cfg(target_os = "linux")]

use ferroccl::device;

#[path = "../support/again.rs"]
mod again;
#[path = "../../proxy/tests/card/mod.rs"]
mod card;
#[path = "../support/fake_driver.rs"]
mod fake_driver;
#[path = "../support/pipes.rs"]
mod pipes;
#[path = "../support/pipes_run.rs"]
mod pipes_run;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/reductions.rs"]
mod reductions;
#[path = "../support/scenarios.rs"]
mod scenarios;
#[path = "../support/seccomp.rs"]
mod seccomp;
#[path = "../support/skip.rs"]
mod skip;
mod stand_in;
#[path = "../support/team.rs"]
mod team;
#[path = "../support/tier.rs"]
mod tier;
#[path = "../support/values.rs"]
mod values;

mod callers;
mod collectives;
mod crates;
#[cfg(feature = "cuda-core")]
mod cuda_core;
mod device_prims;
mod errors;
mod gdr;
mod graphs;
mod launches;
mod modules;
mod multicast;
mod streams;
mod suspend;
mod windows;

/// What `tests/gpu` does on a GPU.
mod as_on_a_gpu {
    use ferroccl::Device;

    use crate::scenarios;
    use crate::stand_in::{alone, ready};

    macro_rules! tests {
        ($($name:ident,)*) => { $(
            #[test]
            fn $name() {
                if ready() {
                    let _alone = alone();
                    scenarios::$name(&Device::cuda(0).unwrap());
                }
            }
        )* };
    }
    scenarios::scenarios!(tests);
}

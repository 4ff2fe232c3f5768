//! The cuda runtime over a stand-in for the driver (`driver/`): everything but the GPU. Kernels run by their CPU face, so
//! that what comes out is checked, too. `tests/gpu` has the conformance cases on a real one.
#![cfg(target_os = "linux")]

#[path = "../../proxy/tests/card/mod.rs"]
mod card;
#[path = "../common/mod.rs"]
mod common;
#[path = "../scenarios/mod.rs"]
mod scenarios;
#[path = "../support/skip.rs"]
mod skip;
mod stand_in;
#[path = "../team/mod.rs"]
mod team;

mod callers;
mod collectives;
mod crates;
mod errors;
mod gdr;
mod graphs;
mod modules;
mod processes;
mod streams;

use common::random;

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

//! Mutations of kernels: see `ptx/tests/smoke.rs`.

#[path = "../../ptx/tests/support/look.rs"]
mod look;
#[path = "../../ptx/tests/support/mutate.rs"]
mod mutate;

use ferroccl::{DataType, ptx};
use libtest_mimic::Failed;

/// Mutations of a kernel: all of them take seconds.
const SEEDS: u64 = 40;

/// Whatever a kernel has become, looking at it panics nowhere, and an error says where it is.
pub(crate) fn mutated_kernels() -> Result<(), Failed> {
    let any = match ptx::has_type(DataType::Bf16) {
        true => "all_reduce_ring_ll_any_bfloat16",
        false => "all_reduce_ring_ll_any_float",
    };
    for name in ["all_reduce_ring_simple_sum_float", any, "all_reduce_ring_ll128_any_uint32"] {
        let module = ptx::module(name, 80).ok_or("no such kernel")?;
        let source = module.alone(name).ok_or("no such kernel")?;
        if look::look(&source, name) != look::Got::All {
            return Err(format!("{name} is wrong as it is").into());
        }
        for seed in 0..SEEDS {
            let text = mutate::mutated(&source, &mut mutate::Random::new(seed));
            look::look(&text, &format!("{name}, seed {seed}"));
        }
    }
    Ok(())
}

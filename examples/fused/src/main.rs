//! Simulated times of the examples, each in one kernel and as kernels and calls.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::ptx::{MachineModel, Options, PtxRuntime};
use ferroccl_fused::cases::{CASES, Case, Form};
use ferroccl_fused::team::Places;
use ferroccl_fused::{PTX, sizes};

/// GPUs of the machine that are used.
const RANKS: usize = 4;

fn main() -> ExitCode {
    if PTX.is_empty() {
        eprintln!("fused: this build has no PTX: docs/building.md says what makes it");
        return ExitCode::FAILURE;
    }
    let model = MachineModel::ALL[1].clone();
    println!("# SIMULATED on {RANKS} GPUs of {}, microseconds", model.name);
    println!(
        "# {:<24} {:>8}  {:>10}  {:>10}  {:>6}  apart is",
        "what", "size", "fused", "apart", "ratio"
    );
    for (name, case, apart_is) in CASES {
        for size in sizes(name) {
            let both = [Form::Fused, Form::Apart].map(|form| simulate(&model, case, *size, form));
            match both {
                [Ok(fused), Ok(apart)] => println!(
                    "  {name:<24} {size:>8}  {fused:>10.2}  {apart:>10.2}  {:>6.2}  {apart_is}",
                    apart / fused
                ),
                [Err(error), _] | [_, Err(error)] => {
                    eprintln!("fused: {name}, size {size}: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}

/// Simulated microseconds of a case, whose results are checked.
fn simulate(
    model: &MachineModel,
    case: Case,
    size: usize,
    form: Form,
) -> Result<f64, Box<dyn Error + Send + Sync>> {
    let gpus = PtxRuntime::simulated_with(model.clone(), Options::plain());
    let gpus: Vec<_> = gpus.into_iter().map(Arc::new).collect();
    let devices: Vec<_> = gpus.iter().take(RANKS).map(|gpu| Device::new(gpu.clone())).collect();
    let places = Places { devices: &devices, hosts: &[RANKS] };
    case(&places, size, form, &|| gpus[0].reset_counts())?;
    Ok(gpus[0].simulated_time().unwrap_or_default().as_secs_f64() * 1e6)
}

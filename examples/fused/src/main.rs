//! The examples, each in one kernel and as kernels and calls: their simulated times, or what they do on a GPU.
//!
//! ```text
//! fused          simulated times on a described machine; needs no GPU
//! fused --gpu    all of them on GPU 0, with all ranks on one host and on two: whether the results are right
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use ferroccl::Device;
use ferroccl::runtime::ptx::{MachineModel, Options, PtxRuntime};
use ferroccl_fused::cases::{CASES, Case, Form, ONE_HOST};
use ferroccl_fused::team::Places;
use ferroccl_fused::{PTX, sizes};

/// GPUs of the machine that are used.
const RANKS: usize = 4;

fn main() -> ExitCode {
    if PTX.is_empty() {
        eprintln!("fused: this build has no PTX: docs/building.md says what makes it");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => simulated(),
        ["--gpu"] => on_a_gpu(),
        _ => {
            eprintln!("usage: fused [--gpu]");
            ExitCode::from(2)
        }
    }
}

/// Whether the examples are right on GPU 0.
fn on_a_gpu() -> ExitCode {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("fused: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("# {RANKS} ranks on GPU 0");
    let devices = vec![device; RANKS];
    let mut failed = false;
    for (name, case, _) in CASES.into_iter().chain(ONE_HOST) {
        let two = ONE_HOST.iter().all(|(other, ..)| *other != name).then_some(&[2, 2][..]);
        for size in sizes(name) {
            for hosts in [&[RANKS][..]].into_iter().chain(two) {
                for form in [Form::Fused, Form::Apart] {
                    let outcome = case(&Places { devices: &devices, hosts }, *size, form, &|| {});
                    let said =
                        outcome.as_ref().map_or_else(ToString::to_string, |()| "right".into());
                    let (form, hosts) = (format!("{form:?}").to_lowercase(), hosts.len());
                    println!("  {name:<24} {size:>8}  {form:<6} {hosts} host(s)  {said}");
                    failed |= outcome.is_err();
                }
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn simulated() -> ExitCode {
    let model = MachineModel::ALL[1].clone();
    println!("# SIMULATED on {RANKS} GPUs of {}, microseconds", model.name);
    println!(
        "# {:<24} {:>8}  {:>10}  {:>10}  {:>6}  apart is",
        "what", "size", "fused", "apart", "ratio"
    );
    for (name, case, apart_is) in CASES.into_iter().chain(ONE_HOST) {
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

//! The PTX of every kernel, read and assembled.
//!
//! What the device source promises in its comments is checked here in what the compiler made of it: no
//! calls, no local memory, wide accesses, no barrier copied into branches; and in what NVIDIA's
//! assembler says: no spills, no stack, few enough registers for a full block. A trial is a module, or a
//! module on an architecture: on sm_90 all kernels of the ring all-reduce of floats and of the all-gather, and a sample of the ring all-reduce
//! of each other type; on sm_90 a sample of each other module of floats or bytes, and on sm_80 and sm_100 of the all-reduces among them. The machine
//! code of loops is looked at for floats. `FERROCCL_TEST_TIER=nightly` is all of this for all types, some ten minutes of two cores; the nightly tier does it. All that were assembled
//! go with their registers to `target/ptx-report.txt`.
//!
//! Without PTX or without `ptxas` the trials are listed as ignored; with `FERROCCL_TEST_ALL` set
//! (`scripts/test`) they fail.

mod assembler;
mod lines;
mod machine_code;
mod smoke;
mod text;
#[path = "../support/tier.rs"]
mod tier;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ferroccl::device::abi::{Algorithm, DataType};
use ferroccl::device::kernels::{self, Row};
use ferroccl::ptx::{self, Module};
use libtest_mimic::{Arguments, Failed, Trial};

use assembler::Usage;

/// What is assembled for: the architectures that the library supports.
const ARCHS: [u32; 3] = [80, 90, 100];

/// The one on which whole modules are assembled.
const WHOLE: u32 = 90;

/// Whether all of a module's kernels are assembled for an architecture.
fn is_whole(module: &Module, arch: u32) -> bool {
    let named = || ["all_reduce_ring_float", "all_gather_ring"].contains(&module.name());
    arch == WHOLE && (tier::is_nightly() || named())
}

/// Whether any of a module's kernels is assembled for an architecture. To save time every algorithm is with one type, every type with one
/// algorithm, and the other architectures with one collective. The nightly tier assembles all.
fn is_sampled(module: &Module, arch: u32) -> bool {
    let other = |t: &DataType| *t != DataType::F32 && module.name().ends_with(&format!("_{t}"));
    let ring = arch == WHOLE && module.name().starts_with("all_reduce_ring_");
    let here = arch == WHOLE || module.name().starts_with("all_reduce_");
    tier::is_nightly() || ring || (here && !DataType::ALL.iter().any(other))
}

/// A row of the report.
struct Assembled {
    arch: u32,
    kernel: &'static str,
    ptx_bytes: usize,
    usage: Usage,
}

fn main() {
    let args = Arguments::from_args();
    let strict = std::env::var_os("FERROCCL_TEST_ALL").is_some();
    let rows = Arc::new(Mutex::new(Vec::new()));
    let mut trials = text::self_tests();
    trials.push(Trial::test("a round is found", || Ok(machine_code::self_test()?)));
    match ptx::unavailable() {
        Some(why) => trials.push(absent("ptx", "no PTX", why, strict)),
        None => {
            trials.push(Trial::test("every kernel is in a module", every_kernel_is_there));
            trials.push(Trial::test("mutated kernels are looked at", smoke::mutated_kernels));
            trials.extend(ptx::modules().iter().map(|module| {
                Trial::test(format!("text of {module}"), || {
                    text::check(module)?;
                    text::check_tree(module)?;
                    lines::check(module.text()).map_err(Failed::from)
                })
            }));
            match assembler::find() {
                None => trials.push(absent("assembled", "no ptxas", assembler::HOW_TO_GET, strict)),
                Some(ptxas) => {
                    trials.push(assembler::self_test(ptxas.clone()));
                    trials.extend(machine_code::trials(&ptxas));
                    trials.extend(assembled(&ptxas, &rows));
                }
            }
        }
    }
    let conclusion = libtest_mimic::run(&args, trials);
    report(&rows.lock().expect("no trial holds it"));
    conclusion.exit();
}

/// A trial that stands for those that cannot run.
fn absent(name: &str, kind: &str, why: &str, strict: bool) -> Trial {
    let why = format!("{kind}: {why}");
    Trial::test(name, {
        let why = why.clone();
        move || Err(why.into())
    })
    .with_kind(why)
    .with_ignored_flag(!strict)
}

/// Whether the build was asked for PTX of all types: then none may be missing.
const ALL_TYPES: bool = option_env!("FERROCCL_PTX_TYPES").is_none();

/// The table of kernels and the modules that build.rs makes name the same, but for types that the build leaves out.
fn every_kernel_is_there() -> Result<(), Failed> {
    for arch in ARCHS {
        let is_wanted = |row: &&Row| {
            ALL_TYPES || row.reduction.is_none_or(|(_, data_type)| ptx::has_type(data_type))
        };
        for row in kernels::rows().filter(is_wanted) {
            let (name, there) = (row.kernel.name, ptx::module(row.kernel.name, arch).is_some());
            // `multimem` is of sm_90.
            if there != (row.algorithm != Algorithm::Nvls || arch >= 90) {
                return Err(format!("{name} for sm_{arch}: {there}").into());
            }
        }
    }
    for module in ptx::modules() {
        for name in module.kernels() {
            if !kernels::all().any(|kernel| kernel.name == *name) {
                return Err(format!("{module}: {name} is not in the table").into());
            }
        }
    }
    Ok(())
}

/// What is assembled on the other architectures: of each module one kernel, and of those that reduce the sum in the
/// protocol with the most code, where there is one.
fn sample(module: &Module) -> Option<&'static str> {
    let kernels = module.kernels();
    let likely = ["_ll128_sum_", "_sum_", "_ll128"]
        .iter()
        .find_map(|part| kernels.iter().find(|name| name.contains(part)));
    likely.or(kernels.first()).copied()
}

/// The modules that a device of each architecture would load, on it.
fn assembled(ptxas: &Path, rows: &Arc<Mutex<Vec<Assembled>>>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for arch in ARCHS {
        let mut modules: Vec<&'static Module> =
            kernels::all().filter_map(|k| ptx::module(k.name, arch)).collect();
        modules.sort_by_key(|m| (m.arch(), m.name()));
        modules.dedup();
        modules.retain(|module| is_sampled(module, arch));
        trials.extend(modules.into_iter().map(|module| {
            let (ptxas, rows) = (ptxas.to_path_buf(), Arc::clone(rows));
            Trial::test(format!("{module} assembled for sm_{arch}"), move || {
                let only = if is_whole(module, arch) { None } else { sample(module) };
                let text = match only {
                    None => module.text().into(),
                    Some(kernel) => module.alone(kernel).unwrap_or_default(),
                };
                let usages = assembler::run(&ptxas, &text, arch)?;
                for (kernel, text) in module.entries() {
                    if only.is_some_and(|only| only != kernel) {
                        continue;
                    }
                    let usage = *usages
                        .get(kernel)
                        .ok_or_else(|| format!("ptxas does not name {kernel}"))?;
                    let row = Assembled { arch, kernel, ptx_bytes: text.len(), usage };
                    rows.lock().expect("no trial panics with it").push(row);
                    let threads = kernels::all().find(|k| k.name == kernel).map(|k| k.threads);
                    if let Err(why) = usage.check(threads.unwrap_or(kernels::MAX_THREADS))
                        && !is_known_to_spill(kernel, &usage)
                    {
                        return Err(format!("{kernel}: {why}").into());
                    }
                }
                Ok(())
            })
        }));
    }
    trials
}

/// The state of the six edges of a tree's root is more than a lane has registers for, and one chain lacks two. What they
/// spill (stored and loaded, in bytes) may only become less.
fn is_known_to_spill(kernel: &str, usage: &Usage) -> bool {
    let most = match kernel {
        // On sm_80.
        "reduce_chain_ll128_any_uint8" => 28,
        tree if tree.starts_with("all_reduce_tree_") => 96,
        _ => 0,
    };
    usage.spill_bytes <= most && usage.registers <= 128
}

/// Writes the table of kernels, and prints where it is and the extremes.
fn report(rows: &[Assembled]) {
    if rows.is_empty() {
        return;
    }
    let mut rows: Vec<&Assembled> = rows.iter().collect();
    rows.sort_by_key(|row| (row.kernel, row.arch));
    let mut text = String::from(
        "arch    kernel                                   registers  code bytes  PTX bytes\n",
    );
    for Assembled { arch, kernel, ptx_bytes, usage } in &rows {
        let _ = writeln!(
            text,
            "sm_{arch:<4} {kernel:<40} {:>9}  {:>10}  {ptx_bytes:>9}",
            usage.registers, usage.code_bytes
        );
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("ptx-report.txt");
    match std::fs::write(&path, text) {
        Ok(()) => {
            let registers = rows.iter().map(|row| row.usage.registers);
            println!(
                "{} kernels assembled, {} to {} registers: {}",
                rows.len(),
                registers.clone().min().unwrap_or(0),
                registers.max().unwrap_or(0),
                path.display()
            );
        }
        Err(e) => println!("cannot write {}: {e}", path.display()),
    }
}

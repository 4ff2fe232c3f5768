//! The PTX of every kernel, read and assembled.
//!
//! What the device source promises in its comments is checked here in what the compiler made of it: no
//! calls, no local memory, wide accesses, as many barriers as the source has; and in what NVIDIA's
//! assembler says: no spills, no stack, few enough registers for a full block. A trial is a module, or a
//! module on an architecture. All kernels with their registers go to `target/ptx-report.txt`.
//!
//! Without PTX or without `ptxas` the trials are listed as ignored; with `FERROCCL_TEST_ALL` set
//! (`scripts/test`) they fail.

mod assembler;
mod lines;
mod text;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ferroccl::device::kernels;
use ferroccl::ptx::{self, Module};
use libtest_mimic::{Arguments, Failed, Trial};

use assembler::Usage;

/// What is assembled for: the architectures that the library supports.
const ARCHS: [u32; 3] = [80, 90, 100];

/// A row of the report.
struct Row {
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
    trials.push(lines::self_test());
    match ptx::unavailable() {
        Some(why) => trials.push(absent("ptx", "no PTX", why, strict)),
        None => {
            trials.push(Trial::test("every kernel is in a module", every_kernel_is_there));
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

/// The table of kernels and the modules that build.rs makes name the same.
fn every_kernel_is_there() -> Result<(), Failed> {
    for arch in ARCHS {
        for kernel in kernels::all() {
            ptx::find(kernel.name, arch).ok_or_else(|| format!("{} for sm_{arch}", kernel.name))?;
        }
    }
    for module in ptx::modules() {
        for (name, _) in module.entries() {
            if !kernels::all().any(|kernel| kernel.name == name) {
                return Err(format!("{module}: {name} is not in the table").into());
            }
        }
    }
    Ok(())
}

/// The modules that a device of each architecture would load, on it.
fn assembled(ptxas: &Path, rows: &Arc<Mutex<Vec<Row>>>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for arch in ARCHS {
        let mut modules: Vec<&Module> =
            kernels::all().filter_map(|k| Some(ptx::find(k.name, arch)?.0)).collect();
        modules.sort_by_key(|m| (m.arch(), m.name()));
        modules.dedup();
        trials.extend(modules.into_iter().map(|module| {
            let (ptxas, rows) = (ptxas.to_path_buf(), Arc::clone(rows));
            Trial::test(format!("{module} assembled for sm_{arch}"), move || {
                let usages = assembler::run(&ptxas, module.text(), arch)?;
                for (kernel, text) in module.entries() {
                    let usage = *usages
                        .get(kernel)
                        .ok_or_else(|| format!("ptxas does not name {kernel}"))?;
                    let row = Row { arch, kernel, ptx_bytes: text.len(), usage };
                    rows.lock().expect("no trial panics with it").push(row);
                    usage.check(kernels::MAX_THREADS).map_err(|e| format!("{kernel}: {e}"))?;
                }
                Ok(())
            })
        }));
    }
    trials
}

/// Writes the table of kernels, and prints where it is and the extremes.
fn report(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (row.kernel, row.arch));
    let mut text = String::from(
        "arch    kernel                                   registers  code bytes  PTX bytes\n",
    );
    for Row { arch, kernel, ptx_bytes, usage } in &rows {
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

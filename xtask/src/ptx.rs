//! The kernels' PTX: one of them, or all that a release carries.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use ferroccl_build::{Builder, Bundle, Compiler, DeviceCrate, Module, Target, hash_source};

#[path = "../../device/build/modules.rs"]
mod modules;

/// What a package on crates.io may have, packed.
const PACKAGE_BYTES: u64 = 10 << 20;

/// Which PTX to make.
#[derive(Args)]
pub(crate) struct Which {
    /// A kernel (all_reduce_ring_ll_sum_float) or a module (all_reduce_ring_float)
    name: String,
    /// Compute capability: the PTX of the latest architecture that such a GPU can run
    #[arg(long, default_value_t = 80, value_name = "N")]
    arch: u32,
    /// Where to write it, instead of the standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Makes one kernel, or one module.
pub(crate) fn one(which: &Which) -> Result<(), Box<dyn Error>> {
    let Which { name, arch, output } = which;
    let (listed, cfgs) = find(name, *arch)?;
    let start = Instant::now();
    let ptx = builder()?.compile(&module(&listed, name, cfgs))?;
    ptx.warnings().iter().for_each(|warning| eprintln!("{warning}"));
    let (bytes, kernels) = (ptx.text().len(), ptx.kernels().len());
    eprintln!(
        "sm_{} {name}: {kernels} kernels, {bytes} bytes, {:.1?}",
        listed.arch,
        start.elapsed()
    );
    match output {
        Some(file) => fs::write(file, ptx.text())?,
        None => print!("{}", ptx.text()),
    }
    Ok(())
}

/// Makes all modules, into the directory from which the library's build script takes them, and cargo a package.
pub(crate) fn package() -> Result<(), Box<dyn Error>> {
    let modules: Vec<_> =
        modules::all(|_| true).iter().map(|m| module(m, &m.name(), m.cfgs())).collect();
    let made = builder()?.compile_all(&modules, &|p| {
        if !p.cached {
            eprintln!("{} of {}: {}", p.done, p.all, p.module);
        }
    })?;
    let dir = root().join("kernels");
    let made: Vec<_> = modules.into_iter().zip(made).collect();
    let bundle = Bundle::write(&dir, &hash_source(&source())?, &made)?;
    let text: usize = bundle.modules.iter().map(|m| m.bytes).sum();
    let files = fs::read_dir(&dir)?.collect::<Result<Vec<_>, _>>()?;
    let packed = files.iter().map(|f| Ok(f.metadata()?.len())).sum::<std::io::Result<u64>>()?;
    println!(
        "{}: {} modules, {text} bytes of PTX, {packed} packed",
        dir.display(),
        bundle.modules.len()
    );
    if packed > PACKAGE_BYTES {
        return Err(format!("crates.io takes {PACKAGE_BYTES} bytes").into());
    }
    Ok(())
}

/// The module with this name, or with this kernel, for a GPU; and the `cfg`s that have the device crate be that.
fn find(name: &str, arch: u32) -> Result<(modules::Module, Vec<String>), String> {
    let all = modules::all(|_| true);
    let fitting = || all.iter().rev().filter(|m| m.arch <= arch);
    if let Some(module) = fitting().find(|m| m.name() == name) {
        return Ok((*module, module.cfgs()));
    }
    for module in fitting() {
        if let Some((_, alone)) = module.kernels().into_iter().find(|(kernel, _)| kernel == name) {
            return Ok((*module, [module.cfgs(), alone].concat()));
        }
    }
    let names = fitting().flat_map(|m| m.kernels().into_iter().map(|(kernel, _)| kernel));
    let mut like: Vec<_> = names.filter(|kernel| kernel.contains(name)).collect();
    like.sort_unstable();
    like.dedup();
    like.truncate(20);
    Err(match &like[..] {
        [] => format!("no kernel or module is called {name:?} for sm_{arch}"),
        like => format!("{name:?} may be one of\n  {}", like.join("\n  ")),
    })
}

/// A module of the table, as `build.rs` has it compiled.
fn module(listed: &modules::Module, name: &str, cfgs: Vec<String>) -> Module {
    let device = DeviceCrate::new("ferroccl_device", source().join("lib.rs"))
        .shown_as("device/src")
        .coarse("prims/abort.rs");
    let device = listed.has.iter().copied().fold(device, DeviceCrate::cfg);
    let entries = DeviceCrate::new("ferroccl_kernels", source().join("kernels/entries.rs"))
        .shown_as("device/src/kernels")
        .depends_on(device);
    let entries = cfgs.into_iter().fold(entries, DeviceCrate::cfg);
    Module::new(name, entries, Target::sm(listed.arch))
}

/// With the cache of the library's build script.
fn builder() -> Result<Builder, ferroccl_build::Error> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    Ok(Builder::new(Compiler::find()?, target.join("ferroccl-ptx")))
}

fn source() -> PathBuf {
    root().join("device/src")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).map(Path::to_owned).unwrap_or_default()
}

//! Embeds the kernels' PTX in the library; does nothing else.
//!
//! | `FERROCCL_PTX` | |
//! |---|---|
//! | not set | the PTX that a release carries (`kernels/`), if it was made of this device source; else none, and no search for a compiler |
//! | `auto` | that; else PTX made here if a device compiler is found, else a warning. `.cargo/config.toml` sets it for this workspace |
//! | `build` | PTX made here, or the build fails |
//! | `none` | no PTX |
//!
//! `FERROCCL_PTX_TYPES` names the element types whose kernels become PTX, by spaces or commas: `bfloat16 int64`. Without it all do. Kernels of
//! floats, and those that only move bytes, always do.
//!
//! To make it, the device crate is compiled a second time, by a rustc that can (`FERROCCL_DEVICE_RUSTC` names it), and on top of
//! it the crate of its entries, once for each module of its table of kernels; see the crate `ferroccl-build`. What is made is kept in `target/ferroccl-ptx`, so
//! that debug, release and documentation builds share it. docs/building.md has the times, and how a release gets its PTX.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs};

use ferroccl_build::{
    Builder, Bundle, Compiler, DeviceCrate, Error, Figures, Module, Progress, Target,
};

/// How to get PTX, for who has none.
const HOW: &str = "set FERROCCL_PTX=build in cargo's environment, which takes minutes and a rustc 1.96 or later with \
    rust-src (rustup toolchain install nightly --component rust-src); a release from crates.io carries its PTX";

/// Names the element types whose kernels become PTX.
const TYPES: &str = "FERROCCL_PTX_TYPES";
/// The type that every build has.
const FLOAT: &str = "float";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FERROCCL_DEVICE_RUSTC");
    println!("cargo::rerun-if-env-changed=FERROCCL_PTX");
    println!("cargo::rerun-if-env-changed={TYPES}");
    match ptx() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// Writes `ptx.rs`, which `host/ptx.rs` includes.
fn ptx() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let device = Device::of_environment()?;
    let mode = env::var("FERROCCL_PTX").ok();
    let rows = match mode.as_deref() {
        Some("none") => Err("built with FERROCCL_PTX=none".to_owned()),
        Some("build") => Ok(build(&device, &out).map_err(|e| format!("FERROCCL_PTX=build: {e}"))?),
        None => match carried(&device).map_err(|e| e.to_string())? {
            Some(rows) => Ok(rows),
            None => Err(format!("the library was built without PTX: {HOW}")),
        },
        Some("auto") => match carried(&device).map_err(|e| e.to_string())? {
            Some(rows) => Ok(rows),
            None => match build(&device, &out) {
                Ok(rows) => Ok(rows),
                Err(e) if e.is_missing_compiler() => {
                    println!("cargo::warning=no PTX in this build: run scripts/setup; {e}");
                    Err(e.to_string())
                }
                Err(e) => return Err(e.to_string()),
            },
        },
        Some(other) => return Err(format!("FERROCCL_PTX={other}: one of auto build none")),
    };
    if rows.is_ok() {
        println!("cargo::rustc-cfg=has_ptx");
    }
    let file = out.join("ptx.rs");
    fs::write(&file, table(&rows, device.only.as_deref()))
        .map_err(|e| format!("{}: {e}", file.display()))
}

/// What the device crate's build script says of it.
struct Device {
    source: PathBuf,
    modules: Vec<Module>,
    /// The types that [`TYPES`] names, if it does.
    only: Option<String>,
}

impl Device {
    fn of_environment() -> Result<Device, String> {
        let source = PathBuf::from(variable("DEP_FERROCCL_DEVICE_SOURCE")?);
        let listed = variable("DEP_FERROCCL_DEVICE_MODULES")?;
        let lines: Vec<&str> = listed.split_whitespace().collect();
        let only = env::var(TYPES).ok().filter(|only| !only.trim().is_empty());
        let wanted = wanted(&lines, only.as_deref())?;
        let modules = wanted.into_iter().map(|line| module(line, &source)).collect();
        Ok(Device { source, modules, only })
    }
}

/// Those of the listed modules whose type is among `only`, and those that every build has. Signed integers are added up by kernels of unsigned
/// ones.
fn wanted<'l>(listed: &[&'l str], only: Option<&str>) -> Result<Vec<&'l str>, String> {
    let Some(only) = only else { return Ok(listed.to_vec()) };
    let only: Vec<&str> = only.split([' ', ',']).filter(|name| !name.is_empty()).collect();
    let types: BTreeSet<&str> = listed.iter().filter_map(|line| element(line)).collect();
    if let Some(unknown) = only.iter().find(|name| !types.contains(*name)) {
        let types = Vec::from_iter(types).join(" ");
        return Err(format!("{TYPES}: {unknown} is none of the types of this build: {types}"));
    }
    let is_wanted = |line: &&str| {
        let Some(name) = element(line) else { return true };
        let of_signed = name.strip_prefix('u').is_some_and(|signed| only.contains(&signed));
        name == FLOAT || only.contains(&name) || of_signed
    };
    Ok(listed.iter().copied().filter(is_wanted).collect())
}

/// The element type of a listed module, unless it only moves bytes.
fn element(listed: &str) -> Option<&str> {
    let cfg = listed.split(':').find_map(|cfg| cfg.strip_prefix("module="))?;
    Some(cfg.trim_matches('"')).filter(|element| *element != "bytes")
}

/// A module as the device crate's build script lists it: `90:all_reduce_ring_half:native_bf16:family="all_reduce_ring"`.
fn module(listed: &str, source: &Path) -> Module {
    let mut parts = listed.split(':');
    let mut part = || parts.next().unwrap_or_default();
    let (arch, name, has) = (part(), part(), part());
    let device = DeviceCrate::new("ferroccl_device", source.join("lib.rs"))
        .shown_as("device/src")
        .coarse("prims/abort.rs");
    let device = has.split(',').filter(|cfg| !cfg.is_empty()).fold(device, DeviceCrate::cfg);
    let entries = DeviceCrate::new("ferroccl_kernels", source.join("kernels/entries.rs"))
        .shown_as("device/src/kernels")
        .depends_on(device);
    let entries = parts.fold(entries, DeviceCrate::cfg);
    Module::new(name, entries, Target::named(format!("sm_{arch}")))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

/// The Rust source that `host/ptx.rs` includes: its modules, or why there are none, and to which types they were limited.
fn table(rows: &Result<Vec<String>, String>, only: Option<&str>) -> String {
    let absent = rows.as_ref().err();
    let rows = rows.as_deref().unwrap_or_default();
    let mut text = format!(
        "static ABSENT: Option<&str> = {absent:?};\n\
         #[allow(dead_code, reason = \"for the errors of runtimes that take PTX\")]\n\
         static ONLY: Option<&str> = {only:?};\n\
         static MODULES: [Module; {}] = [\n",
        rows.len()
    );
    rows.iter().for_each(|row| text += row);
    text + "];\n"
}

/// A row of that source; `stored` is an expression.
fn row(
    target: &str,
    name: &str,
    kernels: &[String],
    figures: &[Figures],
    bytes: usize,
    stored: &str,
) -> String {
    let arch = target.trim_start_matches("sm_");
    let figures = figures.iter().map(|Figures { bytes, instructions, registers, .. }| {
        format!("Figures {{ bytes: {bytes}, instructions: {instructions}, registers: &{registers:?} }}, ")
    });
    let figures: String = figures.collect();
    format!("    Module::new({arch}, {name:?}, &{kernels:?}, &[{figures}], {bytes}, {stored}),\n")
}

/// The modules that this package carries, of those that the features ask for; `None` where it carries none, or those of
/// another device source.
fn carried(device: &Device) -> Result<Option<Vec<String>>, Error> {
    let dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("kernels");
    println!("cargo::rerun-if-changed={}", dir.display());
    let Some(bundle) = Bundle::read(&dir)? else { return Ok(None) };
    println!("cargo::rerun-if-changed={}", device.source.display());
    if bundle.source != ferroccl_build::hash_source(&device.source)? {
        return Ok(None);
    }
    let mut rows = Vec::new();
    for module in &device.modules {
        let (target, name) = (module.target().name(), module.name());
        let Some(it) = bundle.modules.iter().find(|m| m.target == target && m.name == name) else {
            return Ok(None);
        };
        let stored = format!("Stored::Packed(include_bytes!({:?}))", dir.join(it.file()));
        rows.push(row(target, name, &it.kernels, &it.figures, it.bytes, &stored));
    }
    Ok(Some(rows))
}

/// Makes the modules. They lie in `out`: the cache may be emptied.
fn build(device: &Device, out: &Path) -> Result<Vec<String>, Error> {
    // Without it a killed cargo leaves us, and our compilers, at work.
    let _ = ferroccl_build::end_with_parent();
    println!("cargo::rerun-if-changed={}", device.source.display());
    let builder = Builder::new(Compiler::find()?, ferroccl_build::cache_dir(out));
    let terminal = Terminal::new();
    let made = builder.compile_all(&device.modules, &|progress| terminal.tell(&progress))?;
    let mut rows = Vec::new();
    for (module, ptx) in device.modules.iter().zip(&made) {
        for warning in ptx.warnings() {
            println!("cargo::warning={module}: {warning}"); // nobody else compiles the GPU's part
        }
        let (target, name) = (module.target().name(), module.name());
        #[cfg(feature = "pack-ptx")]
        let (bytes, file, how) = (ptx.packed(), "ptx.zst", "Packed(include_bytes!");
        #[cfg(not(feature = "pack-ptx"))]
        let (bytes, file, how) = (ptx.text(), "ptx", "Plain(include_str!");
        let path = out.join(format!("{target}_{name}.{file}"));
        fs::write(&path, bytes).map_err(|source| Error::File { path: path.clone(), source })?;
        let stored = format!("Stored::{how}({path:?}))");
        let figures = ptx.figures();
        rows.push(row(target, name, ptx.kernels(), &figures, ptx.text().len(), &stored));
    }
    Ok(rows)
}

/// Who waits for minutes hears something, if there is a terminal: cargo shows nothing of a build script while it runs.
struct Terminal {
    /// The terminal, and when it was last written to.
    tty: Mutex<Option<(fs::File, Instant)>>,
}

impl Terminal {
    /// Between two lines.
    const PAUSE: Duration = Duration::from_secs(10);

    fn new() -> Self {
        let tty = OpenOptions::new().write(true).open("/dev/tty").ok();
        Terminal { tty: Mutex::new(tty.map(|tty| (tty, Instant::now()))) }
    }

    fn tell(&self, progress: &Progress<'_>) {
        let Progress { module, cached: false, done, all, .. } = progress else { return };
        let Ok(mut tty) = self.tty.lock() else { return };
        if let Some((tty, last)) = &mut *tty
            && last.elapsed() > Self::PAUSE
        {
            *last = Instant::now();
            // Over cargo's progress bar, which cargo draws again below. Nobody misses a line that cannot be written.
            let line = format!("\r\x1b[K        PTX module {done} of {all}: {module}\n");
            let _ = tty.write_all(line.as_bytes());
        }
    }
}

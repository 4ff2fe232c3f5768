//! The device compiler: a rustc that makes PTX, found, given a `core`, and run.
//!
//! It need not be the one that runs cargo, and knows `nvptx64-nvidia-cuda` well enough ([`MIN_RUSTC`]).

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::Failure;
use crate::modules::Module;

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// The first rustc that marks every function for a GPU `convergent`: earlier ones may move a barrier into
/// a divergent branch.
const MIN_RUSTC: (u32, u32) = (1, 96);

/// Flags of every crate that becomes PTX. Without its passes that duplicate code (jump threading), a
/// barrier stays one barrier.
const FLAGS: &[&str] = &[
    "--target",
    TRIPLE,
    "--edition=2024",
    "-Copt-level=3",
    "-Ccodegen-units=1",
    "-Zmir-enable-passes=-JumpThreading",
    "-Zunstable-options",
];

/// Flags of the device crate. Loops over arrays must be
/// unrolled whole, or the arrays end in local memory, and loops of unknown length must not be. An address
/// is computed where it is used (no strength reduction): a register for each of them all through a loop
/// costs more than the additions. Lines change no instruction; the way to an inlined one stands only in the
/// comments of a verbose compiler.
const DEVICE_FLAGS: &[&str] = &[
    "--crate-name=ferroccl_device",
    "--crate-type=cdylib",
    "-Cllvm-args=-unroll-runtime=false",
    "-Cllvm-args=-unroll-threshold=4000",
    "-Cllvm-args=-disable-lsr",
    "-Cdebuginfo=line-directives-only",
    "-Zverbose-asm",
    "--cfg=split",
    "-Aunused_imports", // a module does not use what the others do
];

/// A rustc that makes PTX.
pub(crate) struct Compiler {
    rustc: PathBuf,
    pub(crate) version: String,
    /// The source of `core`, or `None` where it is installed compiled.
    core: Option<PathBuf>,
}

impl Compiler {
    /// The first that will do: named by the user, or the one of this build, the system's, rustup's.
    pub(crate) fn find() -> Result<Self, String> {
        let candidates = if let Some(named) = env::var_os("FERROCCL_DEVICE_RUSTC") {
            vec![PathBuf::from(named)]
        } else {
            let mut all =
                vec![PathBuf::from(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))];
            all.push("/usr/bin/rustc".into());
            for toolchain in ["stable", "nightly"] {
                let mut rustup = Command::new("rustup");
                rustup.args(["which", "rustc", "--toolchain", toolchain]);
                rustup.env("RUSTUP_AUTO_INSTALL", "0"); // a build installs nothing
                all.extend(output(&mut rustup).map(|path| PathBuf::from(path.trim())));
            }
            all.dedup();
            all
        };
        let mut tried = String::new();
        for rustc in candidates {
            match Self::probe(&rustc) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => {
                    let _ = write!(tried, "; {} {why}", rustc.display());
                }
            }
        }
        let (major, minor) = MIN_RUSTC;
        Err(format!(
            "device code needs rustc {major}.{minor} or later with rust-src: run scripts/setup, or \
             `rustup toolchain install nightly --component rust-src`{tried}"
        ))
    }

    fn probe(rustc: &Path) -> Result<Self, String> {
        let version = output(command(rustc).arg("-vV")).ok_or("is not there")?;
        let release = version.lines().find_map(|l| l.strip_prefix("release: ")).unwrap_or_default();
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map_while(|s| s.parse().ok());
        if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < MIN_RUSTC {
            return Err(format!("is {release}"));
        }
        let print = |what| output(command(rustc).args(["--print", what, "--target", TRIPLE]));
        if !print("target-cpus").is_some_and(|cpus| cpus.contains("sm_90")) {
            return Err("makes no PTX for sm_90".into());
        }
        let libs = print("target-libdir").unwrap_or_default();
        let compiled = fs::read_dir(libs.trim()).is_ok_and(|dir| {
            dir.flatten().any(|f| f.file_name().to_string_lossy().starts_with("libcore-"))
        });
        let core = if compiled {
            None
        } else {
            let library = Path::new(print("sysroot").unwrap_or_default().trim())
                .join("lib/rustlib/src/rust/library");
            Some(library)
                .filter(|l| l.join("core/src/lib.rs").is_file())
                .ok_or("has no rust-src")?
                .into()
        };
        Ok(Compiler { rustc: rustc.into(), version, core })
    }

    /// Compiles `core` where the compiler comes without, once for all builds.
    pub(crate) fn sysroot(&self, cache: &Path) -> Result<Option<PathBuf>, Failure> {
        let Some(library) = &self.core else { return Ok(None) };
        let mut key = DefaultHasher::new();
        (include_str!("compiler.rs"), &self.version).hash(&mut key);
        let sysroot = cache.join(format!("core_{:016x}", key.finish()));
        if sysroot.is_dir() {
            return Ok(Some(sysroot));
        }
        // Made under a name of our own: another cargo may do the same at this moment.
        let making = cache.join(format!("core_{}", std::process::id()));
        let lib = making.join("lib/rustlib").join(TRIPLE).join("lib");
        fs::create_dir_all(&lib)?;
        let core = lib.join("libcore.rlib");
        let common =
            ["-Cpanic=immediate-abort", "-Zforce-unstable-if-unmarked", "--crate-type=rlib"];
        for (name, source) in [
            ("core", "core/src/lib.rs"),
            ("compiler_builtins", "compiler-builtins/compiler-builtins/src/lib.rs"),
        ] {
            let mut rustc = command(&self.rustc);
            rustc.args(FLAGS).args(common).args(["-Awarnings", "--crate-name", name]);
            if name != "core" {
                rustc.args(["--cfg", "feature=\"compiler-builtins\"", "--extern"]);
                rustc.arg(format!("core={}", core.display()));
            }
            rustc.arg(library.join(source)).arg("-o").arg(lib.join(format!("lib{name}.rlib")));
            // Not our source: this compiler will not do, which is no reason to fail.
            run(&mut rustc).map_err(|log| {
                Failure::Absent(format!("{} cannot compile {name}: {log}", self.rustc.display()))
            })?;
        }
        if let Err(e) = fs::rename(&making, &sysroot) {
            fs::remove_dir_all(&making)?;
            if !sysroot.is_dir() {
                return Err(e.into());
            }
        }
        Ok(Some(sysroot))
    }

    /// The assembly of one module, as rustc makes it. `making` is a directory for it alone: what rustc makes on the
    /// way is named after the crate.
    pub(crate) fn assembly(
        &self,
        sysroot: Option<&Path>,
        module: &Module,
        making: &Path,
    ) -> Result<String, Failure> {
        fs::create_dir_all(making)?;
        let mut rustc = command(&self.rustc);
        rustc.args(FLAGS).args(DEVICE_FLAGS).arg(format!("-Ctarget-cpu=sm_{}", module.arch));
        match sysroot {
            // All that is used of this `core` is inlined: nothing is left to link.
            Some(sysroot) => {
                rustc.args(["-Cpanic=immediate-abort", "--emit=asm", "--sysroot"]).arg(sysroot)
            }
            None => {
                rustc.args(["-Cpanic=abort", "-Clto=fat", "-Clinker=/bin/true", "--emit=asm,link"])
            }
        };
        rustc.args(["--cfg", &format!("family={:?}", module.family)]);
        rustc.args(["--cfg", &format!("module={:?}", module.element)]);
        rustc.args(module.has.iter().flat_map(|cfg| ["--cfg", cfg]));
        rustc.arg("--out-dir").arg(making);
        let made = run(rustc.arg("device/src/lib.rs"));
        let asm = fs::read_to_string(making.join("ferroccl_device.s"));
        let _ = fs::remove_dir_all(making); // an error of the compiler says more than one of this
        let log = made.map_err(Failure::Error)?;
        // nvptx.rs is compiled by no one else: its warnings are shown here.
        if let Some(warning) = log.lines().find(|l| l.starts_with("warning")) {
            println!("cargo:warning=sm_{} {}: {warning}", module.arch, module.name());
        }
        Ok(asm?)
    }
}

/// rustc without what cargo and rustup say to the host's compiler. `RUSTC_BOOTSTRAP` lets a stable one use
/// the features that PTX needs.
fn command(rustc: &Path) -> Command {
    let mut command = Command::new(rustc);
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTUP_TOOLCHAIN",
    ] {
        command.env_remove(name);
    }
    command.env("RUSTC_BOOTSTRAP", "1");
    command
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let out = command.output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a compiler; returns what it says, be it warnings or the errors that it failed with.
fn run(command: &mut Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    if out.status.success() { Ok(log) } else { Err(log) }
}

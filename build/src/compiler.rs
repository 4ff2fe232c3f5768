//! The device compiler: a rustc that makes PTX, found, given a `core`, and run.
//!
//! It need not be the one that runs cargo, and knows `nvptx64-nvidia-cuda` well enough ([`MIN_RUSTC`]).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::command::{printed, run, rustc};
use crate::error::Unfit;
use crate::hash::Key;
use crate::source::{DeviceCrate, Module, Target};
use crate::{Error, Result};

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// The first rustc that marks every function for a GPU `convergent`: earlier ones may move a barrier into
/// a divergent branch.
pub(crate) const MIN_RUSTC: (u32, u32) = (1, 96);

/// Flags of every crate that becomes PTX. Without its passes that duplicate code (jump threading), a
/// barrier stays one barrier.
const FLAGS: &[&str] = &[
    "--target",
    TRIPLE,
    "-Copt-level=3",
    "-Ccodegen-units=1",
    "-Zmir-enable-passes=-JumpThreading",
    "-Zunstable-options",
];

/// Flags of crates with kernels. Loops over arrays must be
/// unrolled whole, or the arrays end in local memory, and loops of unknown length must not be. An address
/// is computed where it is used (no strength reduction): a register for each of them all through a loop
/// costs more than the additions. No `match` becomes a jump through a table: kernels take one way of it throughout, and
/// branches to it are predicted by all lanes alike. Lines change no instruction; the way to an inlined one stands only in the
/// comments of a verbose compiler.
const KERNEL_FLAGS: &[&str] = &[
    "-Cllvm-args=-unroll-runtime=false",
    "-Cllvm-args=-unroll-threshold=4000",
    "-Cllvm-args=-disable-lsr",
    "-Cllvm-args=-min-jump-table-entries=1000",
    "-Cdebuginfo=line-directives-only",
    "-Zverbose-asm",
];

/// Flags of the crates that those depend on: any function of them can become part of a kernel, as nothing is linked.
const DEPENDENCY_FLAGS: &[&str] =
    &["-Cdebuginfo=line-directives-only", "-Zcross-crate-inline-threshold=always"];

/// A rustc that makes PTX.
#[derive(Clone, Debug)]
pub struct Compiler {
    rustc: PathBuf,
    version: String,
    /// The source of `core`, or `None` where it is installed compiled.
    core: Option<PathBuf>,
}

impl Compiler {
    /// The first rustc that can: `FERROCCL_DEVICE_RUSTC` and no other where that is set; else cargo's (`RUSTC`, or `rustc`),
    /// the system's, rustup's `stable` and `nightly`. Installs nothing.
    ///
    /// # Errors
    ///
    /// None of them can; [`Error::NoCompiler`] says why.
    pub fn find() -> Result<Self> {
        let candidates = if let Some(named) = env::var_os("FERROCCL_DEVICE_RUSTC") {
            vec![PathBuf::from(named)]
        } else {
            let mut all =
                vec![PathBuf::from(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))];
            all.push("/usr/bin/rustc".into());
            for toolchain in ["stable", "nightly"] {
                let mut rustup = Command::new("rustup");
                rustup.args(["which", "rustc", "--toolchain", toolchain]);
                rustup.env("RUSTUP_AUTO_INSTALL", "0");
                all.extend(printed(&mut rustup).map(|path| PathBuf::from(path.trim())));
            }
            all.dedup();
            all
        };
        let mut tried = Vec::new();
        for path in candidates {
            match Self::probe(&path) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => tried.push((path, why)),
            }
        }
        Err(Error::NoCompiler { tried })
    }

    /// This rustc.
    ///
    /// # Errors
    ///
    /// It cannot; [`Error::NoCompiler`] says why.
    pub fn at(path: &Path) -> Result<Self> {
        Self::probe(path).map_err(|why| Error::NoCompiler { tried: vec![(path.into(), why)] })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.rustc
    }

    /// What `rustc -vV` says.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    fn probe(path: &Path) -> std::result::Result<Self, Unfit> {
        let version = printed(rustc(path).arg("-vV")).ok_or(Unfit::Missing)?;
        let release = version.lines().find_map(|l| l.strip_prefix("release: ")).unwrap_or_default();
        if number(release) < MIN_RUSTC {
            return Err(Unfit::TooOld(release.into()));
        }
        let print = |what| printed(rustc(path).args(["--print", what, "--target", TRIPLE]));
        if !print("target-cpus").is_some_and(|cpus| cpus.contains("sm_90")) {
            return Err(Unfit::NoTarget);
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
            let there = library.join("core/src/lib.rs").is_file();
            Some(Some(library).filter(|_| there).ok_or(Unfit::NoCore)?)
        };
        Ok(Compiler { rustc: path.into(), version, core })
    }

    /// Hashes what of the compiler, and of this crate, the PTX depends on.
    pub(crate) fn key(&self, key: &mut Key) {
        let here =
            (include_str!("compiler.rs"), include_str!("headers.rs"), include_str!("lines.rs"));
        key.add(&(here, &self.version, self.core.is_some()));
    }

    /// Compiles `core` where the compiler comes without, once for all builds.
    pub(crate) fn sysroot(&self, cache: &Path) -> Result<Option<PathBuf>> {
        let Some(library) = &self.core else { return Ok(None) };
        let mut key = Key::default();
        key.add(&(include_str!("compiler.rs"), &self.version));
        let sysroot = cache.join(format!("core_{:032x}", key.finish()));
        if sysroot.is_dir() {
            return Ok(Some(sysroot));
        }
        // Made under a name of our own: another process may do the same at this moment.
        let making = cache.join(format!("core_{}", std::process::id()));
        let lib = making.join("lib/rustlib").join(TRIPLE).join("lib");
        fs::create_dir_all(&lib).map_err(Error::file(&lib))?;
        let core = lib.join("libcore.rlib");
        let common = [
            "--edition=2024",
            "-Cpanic=immediate-abort",
            "-Zforce-unstable-if-unmarked",
            "--crate-type=rlib",
            "-Awarnings",
        ];
        for (name, source) in [
            ("core", "core/src/lib.rs"),
            ("compiler_builtins", "compiler-builtins/compiler-builtins/src/lib.rs"),
        ] {
            let mut rustc = rustc(&self.rustc);
            rustc.args(FLAGS).args(common).args(["--crate-name", name]);
            if name != "core" {
                rustc.args(["--cfg", "feature=\"compiler-builtins\"", "--extern"]);
                rustc.arg(format!("core={}", core.display()));
            }
            rustc.arg(library.join(source)).arg("-o").arg(lib.join(format!("lib{name}.rlib")));
            // Not the user's source: this compiler will not do.
            if let Err(log) = run(&mut rustc)? {
                let _ = fs::remove_dir_all(&making); // the compiler's error says more than one of this
                return Err(Error::Library { rustc: self.rustc.clone(), library: name, log });
            }
        }
        if let Err(e) = fs::rename(&making, &sysroot) {
            let _ = fs::remove_dir_all(&making);
            if !sysroot.is_dir() {
                return Err(Error::file(&sysroot)(e));
            }
        }
        Ok(Some(sysroot))
    }

    /// What all crates are compiled with, but for what the crate is to become.
    fn crate_command(
        &self,
        sysroot: Option<&Path>,
        krate: &DeviceCrate,
        target: &Target,
        dependencies: &[(String, PathBuf)],
    ) -> Command {
        let mut rustc = rustc(&self.rustc);
        rustc.args(FLAGS).arg(format!("-Ctarget-cpu={}", target.cpu));
        rustc.arg(format!("--edition={}", krate.edition)).args(["--crate-name", &krate.name]);
        if !target.features.is_empty() {
            rustc.arg(format!("-Ctarget-feature={}", target.features.join(",")));
        }
        match sysroot {
            Some(sysroot) => rustc.args(["-Cpanic=immediate-abort", "--sysroot"]).arg(sysroot),
            None => rustc.arg("-Cpanic=abort"),
        };
        rustc.args(krate.cfgs.iter().flat_map(|cfg| ["--cfg", cfg]));
        let mut remap = krate.source().as_os_str().to_owned();
        remap.push("=");
        remap.push(&krate.shown_as);
        rustc.arg("--remap-path-prefix").arg(remap);
        for (name, rlib) in dependencies {
            rustc.arg("--extern").arg(format!("{name}={}", rlib.display()));
            if let Some(dir) = rlib.parent() {
                rustc.arg("-L").arg(format!("dependency={}", dir.display()));
            }
        }
        rustc.args(&krate.arguments);
        rustc
    }

    /// Compiles a crate that others depend on into the file `rlib`. `identity` tells it from other crates of its name.
    pub(crate) fn rlib(
        &self,
        sysroot: Option<&Path>,
        krate: &DeviceCrate,
        target: &Target,
        dependencies: &[(String, PathBuf)],
        identity: u128,
        rlib: &Path,
    ) -> Result<String> {
        let mut rustc = self.crate_command(sysroot, krate, target, dependencies);
        rustc.args(DEPENDENCY_FLAGS).args(["--crate-type=rlib", "--emit=link"]);
        rustc.arg(format!("-Cmetadata={identity:032x}"));
        rustc.arg("-o").arg(rlib).arg(&krate.root);
        run(&mut rustc)?.map_err(|log| Error::Compile { name: krate.name.clone(), log })
    }

    /// The assembly of one module, as rustc makes it, and the compiler's warnings. `making` is a directory for it alone: what
    /// rustc makes on the way is named after the crate.
    pub(crate) fn assembly(
        &self,
        sysroot: Option<&Path>,
        module: &Module,
        dependencies: &[(String, PathBuf)],
        making: &Path,
    ) -> Result<(String, String)> {
        let Module { name, krate, target } = module;
        fs::create_dir_all(making).map_err(Error::file(making))?;
        let mut rustc = self.crate_command(sysroot, krate, target, dependencies);
        rustc.args(KERNEL_FLAGS).arg("--crate-type=cdylib");
        // All that is used of a `core` that was made here is inlined: nothing is left to link.
        match sysroot {
            Some(_) => rustc.arg("--emit=asm"),
            None => rustc.args(["-Clto=fat", "-Clinker=/bin/true", "--emit=asm,link"]),
        };
        let made = run(rustc.arg("--out-dir").arg(making).arg(&krate.root));
        let file = making.join(format!("{}.s", krate.name));
        let asm = fs::read_to_string(&file).map_err(Error::file(&file));
        let _ = fs::remove_dir_all(making); // an error of the compiler says more than one of this
        let log = made?.map_err(|log| Error::Compile { name: name.clone(), log })?;
        Ok((asm?, log))
    }
}

/// `(1, 96)` of `1.96.0-nightly`.
fn number(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|s| s.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_compared_by_its_numbers() {
        assert_eq!(number("1.96.0"), (1, 96));
        assert_eq!(number("1.100.0-nightly"), (1, 100));
        assert_eq!(number("2.0.0"), (2, 0));
        assert_eq!(number(""), (0, 0));
        assert!(number("1.100.0") > MIN_RUSTC && number("1.95.1") < MIN_RUSTC);
    }

    #[test]
    fn a_compiler_that_is_not_there_is_an_error_that_names_it() {
        let error = Compiler::at(Path::new("/no/such/rustc")).unwrap_err();
        assert!(error.is_missing_compiler());
        assert!(error.to_string().ends_with("; /no/such/rustc is not there"), "{error}");
    }
}

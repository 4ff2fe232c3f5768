//! Turns `device/` into PTX, embedded in the library as text; does nothing else.
//!
//! The device crate is compiled a second time, by a rustc that knows `nvptx64-nvidia-cuda` well enough
//! ([`MIN_RUSTC`]), in the pieces and for the architectures of [`TARGETS`]. That compiler need not be the one that runs
//! cargo. Where none is found the library is built all the same, without PTX, and says why.
//!
//! | `FERROCCL_PTX` | |
//! |---|---|
//! | `auto` (default) | PTX if a device compiler is found, a warning if not |
//! | `build` | PTX, or the build fails |
//! | `none` | no PTX |
//!
//! `FERROCCL_DEVICE_RUSTC` names the device compiler.
//!
//! What is made is kept in `target/ferroccl-ptx` under names that hash all that it depends on, so that
//! debug, release and documentation builds share it.
//!
//! Instructions keep the source lines they come from ([`lines`]).

#[path = "build/lines.rs"]
mod lines;

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, io};

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// The first rustc that marks every function for a GPU `convergent`: earlier ones may move a barrier into
/// a divergent branch.
const MIN_RUSTC: (u32, u32) = (1, 96);

/// The kernels in pieces, by element type: pieces compile side by side, and a driver has to assemble only
/// what it loads. `tests/ptx.rs` sees to it that no kernel of the table is in none of them.
const MODULES: &[&str] = &[
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "bfloat16", "float", "double",
    "f8e4m3", "f8e5m2",
];

/// What is compiled for which architecture, and the `cfg`s that say what it has. PTX runs on every later
/// architecture just as well, assembled for that; so what is compiled again for one is only what is
/// written otherwise for it.
const TARGETS: &[(u32, &[&str], &[&str])] =
    &[(80, &[], MODULES), (90, &["native_bf16", "native_fp8"], &["bfloat16", "f8e4m3", "f8e5m2"])];

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

/// Flags of the device crate. The assembly is the product, so nothing links. Loops over arrays must be
/// unrolled whole, or the arrays end in local memory, and loops of unknown length must not be. An address
/// is computed where it is used (no strength reduction): a register for each of them all through a loop
/// costs more than the additions. Lines change no instruction; the way to an inlined one stands only in the
/// comments of a verbose compiler.
const DEVICE_FLAGS: &[&str] = &[
    "--crate-name=ferroccl_device",
    "--crate-type=cdylib",
    "-Clto=fat",
    "-Clinker=/bin/true",
    "-Cllvm-args=-unroll-runtime=false",
    "-Cllvm-args=-unroll-threshold=4000",
    "-Cllvm-args=-disable-lsr",
    "-Cdebuginfo=line-directives-only",
    "-Zverbose-asm",
    "--cfg=split",
    "--cfg=family=\"all_reduce_ring\"",
    "-Aunused_imports", // a module does not use what the others do
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed=device/src");
    println!("cargo:rerun-if-env-changed=FERROCCL_DEVICE_RUSTC");
    println!("cargo:rerun-if-env-changed=FERROCCL_PTX");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mode = env::var("FERROCCL_PTX").unwrap_or_else(|_| "auto".into());
    let made = match mode.as_str() {
        "none" => Err(Failure::Absent("built with FERROCCL_PTX=none".into())),
        "auto" | "build" => build(&out),
        other => Err(Failure::Error(format!("FERROCCL_PTX={other}: one of auto build none"))),
    };
    let table = match made {
        Ok(modules) => {
            println!("cargo:rustc-cfg=has_ptx");
            table(&modules, None)
        }
        Err(Failure::Absent(why)) if mode != "build" => {
            if mode != "none" {
                println!("cargo:warning=no PTX in this build: {why}");
            }
            table(&[], Some(&why))
        }
        Err(Failure::Absent(why)) => return fail(&format!("FERROCCL_PTX=build, but {why}")),
        Err(Failure::Error(what)) => return fail(&what),
    };
    match fs::write(out.join("ptx.rs"), table) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&format!("cannot write {}: {e}", out.display())),
    }
}

/// Why there is no PTX.
enum Failure {
    /// This machine cannot make it.
    Absent(String),
    /// It should have been made.
    Error(String),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::Error(format!("PTX cache: {e}"))
    }
}

fn fail(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::FAILURE
}

/// A piece of PTX in `OUT_DIR`.
struct Module {
    arch: u32,
    name: &'static str,
    path: PathBuf,
}

/// The Rust source that `host/ptx.rs` includes.
fn table(modules: &[Module], absent: Option<&str>) -> String {
    let mut text =
        format!("static ABSENT: Option<&str> = {absent:?};\nstatic MODULES: &[Module] = &[\n");
    for Module { arch, name, path } in modules {
        let _ = writeln!(
            text,
            "    Module {{ arch: {arch}, name: {name:?}, text: include_str!({path:?}) }},"
        );
    }
    text + "];\n"
}

/// Compiles all modules, as many at a time as cargo lets us.
fn build(out: &Path) -> Result<Vec<Module>, Failure> {
    let compiler = Compiler::find().map_err(Failure::Absent)?;
    let cache = cache_dir(out);
    fs::create_dir_all(&cache)?;
    let sysroot = compiler.sysroot(&cache)?;
    let mut source = DefaultHasher::new();
    hash_tree(Path::new("device/src"), &mut source)?;
    (include_str!("build.rs"), include_str!("build/lines.rs"), &compiler.version).hash(&mut source);
    let source = source.finish();

    let jobs: Vec<_> = TARGETS
        .iter()
        .flat_map(|(arch, cfgs, names)| names.iter().map(move |name| (*arch, *cfgs, *name)))
        .collect();
    let workers =
        env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).min(jobs.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(&(arch, cfgs, name)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let kept = cache.join(format!("{source:016x}_sm_{arch}_{name}.ptx"));
                    let made = if kept.is_file() {
                        Ok(())
                    } else {
                        compiler.compile(sysroot.as_deref(), arch, cfgs, name, &kept)
                    };
                    if made.is_err() {
                        next.store(jobs.len(), Ordering::Relaxed); // one error message is enough
                    }
                    done.lock().expect("no worker panics").push((arch, name, made.map(|()| kept)));
                }
            });
        }
    });
    let mut modules = Vec::new();
    for (arch, name, kept) in done.into_inner().expect("no worker panics") {
        // A copy of our own: the cache may be emptied.
        let path = out.join(format!("sm_{arch}_{name}.ptx"));
        fs::copy(kept?, &path)?;
        modules.push(Module { arch, name, path });
    }
    modules.sort_by_key(|m| (m.arch, MODULES.iter().position(|n| *n == m.name)));
    forget_old(&cache, source);
    Ok(modules)
}

/// A rustc that makes PTX.
struct Compiler {
    rustc: PathBuf,
    version: String,
    /// The source of `core`, or `None` where it is installed compiled.
    core: Option<PathBuf>,
}

impl Compiler {
    /// The first that will do: named by the user, or the one of this build, the system's, rustup's.
    fn find() -> Result<Self, String> {
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
    fn sysroot(&self, cache: &Path) -> Result<Option<PathBuf>, Failure> {
        let Some(library) = &self.core else { return Ok(None) };
        let mut key = DefaultHasher::new();
        (include_str!("build.rs"), &self.version).hash(&mut key);
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

    /// Compiles one module to `kept`.
    fn compile(
        &self,
        sysroot: Option<&Path>,
        arch: u32,
        cfgs: &[&str],
        module: &str,
        kept: &Path,
    ) -> Result<(), Failure> {
        // A directory of our own: what rustc makes on the way is named after the crate alone.
        let making = kept.with_extension(std::process::id().to_string());
        fs::create_dir_all(&making)?;
        let mut rustc = command(&self.rustc);
        rustc.args(FLAGS).args(DEVICE_FLAGS).arg(format!("-Ctarget-cpu=sm_{arch}"));
        match sysroot {
            Some(sysroot) => rustc.arg("-Cpanic=immediate-abort").arg("--sysroot").arg(sysroot),
            None => rustc.arg("-Cpanic=abort"),
        };
        rustc.args(["--cfg", &format!("module={module:?}")]);
        rustc.args(cfgs.iter().flat_map(|cfg| ["--cfg", cfg]));
        rustc.args(["--emit=asm,link", "--out-dir"]).arg(&making);
        let log = run(rustc.arg("device/src/lib.rs")).map_err(|log| {
            let _ = fs::remove_dir_all(&making); // the error says more than this one could
            Failure::Error(log)
        })?;
        // nvptx.rs is compiled by no one else: its warnings are shown here.
        if let Some(warning) = log.lines().find(|l| l.starts_with("warning")) {
            println!("cargo:warning=sm_{arch} {module}: {warning}");
        }
        let ptx = finish(&lines::compact(&fs::read_to_string(making.join("ferroccl_device.s"))?));
        if ptx.contains(".extern .func") {
            return Err(Failure::Error(format!(
                "sm_{arch} {module}: calls a function that is not there"
            )));
        }
        let whole = making.join("whole.ptx");
        fs::write(&whole, ptx)?;
        fs::rename(whole, kept)?;
        fs::remove_dir_all(making)?;
        Ok(())
    }
}

/// What rustc cannot say. Moves the `//@maxntid N` that [`gpu::launch_bounds`] leaves in a kernel's body to
/// its header, and keeps the assembler from unrolling what the compiler has left as a loop: those are loops
/// over the odd elements at an end, and their copies would be half of the code.
fn finish(asm: &str) -> String {
    let mut ptx = String::with_capacity(asm.len());
    let mut rest = asm;
    if let Some(header) = rest.find(".address_size 64\n") {
        let body = header + ".address_size 64\n".len();
        ptx += &rest[..body];
        ptx += ".pragma \"nounroll\";\n";
        rest = &rest[body..];
    }
    while let Some(entry) = rest.find(".entry ") {
        let body = entry + rest[entry..].find("\n{").map_or(0, |i| i + 1);
        let end = body + rest[body..].find("\n}").unwrap_or(rest.len() - body);
        ptx += &rest[..body];
        for bound in rest[body..end].lines().filter_map(|l| l.trim().strip_prefix("//@")) {
            let _ = writeln!(ptx, ".{bound}");
        }
        ptx += &rest[body..end];
        rest = &rest[end..];
    }
    ptx + rest
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

/// `target/ferroccl-ptx`: the target directory is the one that cargo has tagged.
fn cache_dir(out: &Path) -> PathBuf {
    let target = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    target.unwrap_or(out).join("ferroccl-ptx")
}

/// Hashes names and contents of the files under `dir`.
fn hash_tree(dir: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        entry.file_name().hash(hasher);
        if entry.file_type()?.is_dir() {
            hash_tree(&entry.path(), hasher)?;
        } else {
            fs::read(entry.path())?.hash(hasher);
        }
    }
    Ok(())
}

/// Removes modules of other sources that are older than a day: enough to go back and forth between branches.
fn forget_old(cache: &Path, source: u64) {
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    for file in fs::read_dir(cache).into_iter().flatten().flatten() {
        let old = file
            .metadata()
            .and_then(|m| m.modified())
            .is_ok_and(|t| t.elapsed().is_ok_and(|age| age > day));
        let current = file.file_name().to_string_lossy().starts_with(&format!("{source:016x}"));
        if old && !current && file.path().is_file() {
            let _ = fs::remove_file(file.path()); // somebody else may have been quicker
        }
    }
}

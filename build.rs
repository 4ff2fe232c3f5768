//! Turns `device/` into PTX, embedded in the library, packed; does nothing else.
//!
//! The device crate is compiled a second time, by a rustc that can ([`compiler`]), once for each module of the table
//! of kernels ([`modules`]). Where no such compiler is found the library is built all the same, without PTX, and
//! says why.
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

#[path = "build/src/compiler.rs"]
mod compiler;
#[path = "build/src/lines.rs"]
mod lines;
#[path = "device/build/modules.rs"]
mod modules;

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, io};

use compiler::Compiler;
use modules::Module;

/// How hard `zstd` packs: all modules together become a twentieth, in about 0.1 s each.
const LEVEL: i32 = 17;

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

/// A module in `OUT_DIR`.
struct Made {
    module: Module,
    /// Where it is, packed.
    path: PathBuf,
    /// Bytes of its text.
    len: usize,
    /// Its kernels, in the order of the text.
    kernels: Vec<String>,
}

/// The Rust source that `host/ptx.rs` includes.
fn table(modules: &[Made], absent: Option<&str>) -> String {
    let mut text = format!(
        "static ABSENT: Option<&str> = {absent:?};\nstatic MODULES: [Module; {}] = [\n",
        modules.len()
    );
    for Made { module, path, len, kernels } in modules {
        let _ = writeln!(
            text,
            "    Module::new({}, {:?}, &{kernels:?}, {len}, include_bytes!({path:?})),",
            module.arch,
            module.name()
        );
    }
    text + "];\n"
}

/// Makes all modules, as many at a time as cargo lets us.
fn build(out: &Path) -> Result<Vec<Made>, Failure> {
    let compiler = Compiler::find().map_err(Failure::Absent)?;
    let cache = cache_dir(out);
    fs::create_dir_all(&cache)?;
    let sysroot = compiler.sysroot(&cache)?;
    let mut source = DefaultHasher::new();
    hash_tree(Path::new("device/src"), &mut source)?;
    hash_tree(Path::new("build"), &mut source)?;
    (include_str!("build.rs"), &compiler.version).hash(&mut source);
    let source = source.finish();

    let jobs = modules::all();
    let workers =
        env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).min(jobs.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(place) else { break };
                    let name = format!("sm_{}_{}.ptx.zst", job.arch, job.name());
                    let kept = cache.join(format!("{source:016x}_{name}"));
                    let text = match unpacked(&kept) {
                        Some(text) => Ok(text),
                        None => make(&compiler, sysroot.as_deref(), job, &kept),
                    };
                    // A copy of our own: the cache may be emptied.
                    let path = out.join(name);
                    let made = text.and_then(|text| {
                        fs::copy(&kept, &path)?;
                        Ok(Made { module: *job, path, len: text.len(), kernels: kernels(&text) })
                    });
                    if made.is_err() {
                        next.store(jobs.len(), Ordering::Relaxed); // one error message is enough
                    }
                    done.lock().expect("no worker panics").push((place, made));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no worker panics");
    done.sort_by_key(|(place, _)| *place);
    forget_old(&cache, source);
    done.into_iter().map(|(_, made)| made).collect()
}

/// The text of a module that is kept from another build.
fn unpacked(kept: &Path) -> Option<String> {
    let packed = fs::read(kept).ok()?;
    String::from_utf8(zstd::decode_all(&packed[..]).ok()?).ok()
}

/// Makes the text of a module, and keeps it.
fn make(
    compiler: &Compiler,
    sysroot: Option<&Path>,
    module: &Module,
    kept: &Path,
) -> Result<String, Failure> {
    let own = |what| kept.with_extension(format!("{}.{what}", std::process::id()));
    let asm = compiler.assembly(sysroot, module, &own("making"))?;
    let ptx = finish(&lines::compact(&asm));
    let error = |what| Failure::Error(format!("sm_{} {}: {what}", module.arch, module.name()));
    if ptx.contains(".extern .func") {
        return Err(error("calls a function that is not there"));
    }
    if kernels(&ptx).is_empty() {
        return Err(error("has no kernels"));
    }
    let whole = own("whole");
    fs::write(&whole, zstd::bulk::compress(ptx.as_bytes(), LEVEL)?)?;
    fs::rename(whole, kept)?;
    Ok(ptx)
}

/// The names of the kernels of a module.
fn kernels(ptx: &str) -> Vec<String> {
    let entries = ptx.split("\n.visible .entry ").skip(1);
    entries.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())).collect()
}

/// What rustc cannot say. Calls the parameter of every kernel `work`, by which [`gpu::argument`] asks for it. Moves
/// the `//@maxntid N` that [`gpu::launch_bounds`] leaves in a kernel's body to its header, and keeps the assembler
/// from unrolling what the compiler has left as a loop: those are loops over the odd elements at an end, and their
/// copies would be half of the code.
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
        let name = rest[entry + ".entry ".len()..].split('(').next().unwrap_or_default();
        ptx += &rest[..entry];
        ptx += &rest[entry..body].replace(&format!("{name}_param_0"), "work");
        for bound in rest[body..end].lines().filter_map(|l| l.trim().strip_prefix("//@")) {
            let _ = writeln!(ptx, ".{bound}");
        }
        ptx += &rest[body..end];
        rest = &rest[end..];
    }
    ptx + rest
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

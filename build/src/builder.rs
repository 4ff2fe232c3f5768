//! Modules made: several at a time, and kept.

use std::collections::HashMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::{env, fs, mem, thread};

use crate::hash::{Key, hash_source};
use crate::source::{DeviceCrate, Module, Target};
use crate::{Compiler, Error, Figures, Result, headers, lines};

/// What was not used for so long is removed from the cache: enough to go back and forth between branches.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What the names of folders end with in which a compiler works.
const MAKING: &str = "making";

/// Makes modules of PTX with a compiler, and keeps them in a directory.
#[derive(Debug)]
pub struct Builder {
    compiler: Compiler,
    cache: PathBuf,
    jobs: usize,
}

/// A module that was made.
#[derive(Clone, Debug)]
pub struct Ptx {
    text: String,
    kernels: Vec<String>,
    warnings: Vec<String>,
    #[cfg(feature = "pack")]
    packed: Vec<u8>,
}

impl Ptx {
    /// The PTX.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of its kernels, in the order of the text.
    #[must_use]
    pub fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// What is counted of each kernel, in the same order. Reads the whole text.
    #[must_use]
    pub fn figures(&self) -> Vec<Figures> {
        Figures::all(&self.text)
    }

    /// The compiler's warnings, their first lines. None where the module came from the cache. Those about a crate that modules
    /// depend on are with one of the modules.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text in zstd's format, a twentieth of it.
    #[cfg(feature = "pack")]
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }
}

/// How far [`Builder::compile_all`] is: what it says each time that a module is there.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The module.
    pub module: &'a Module,
    /// Whether it came from the cache.
    pub cached: bool,
    /// Modules that are there, with this one.
    pub done: usize,
    /// Modules that were asked for.
    pub all: usize,
}

impl Builder {
    /// `cache` is made if it is not there; several processes can use it at the same time. It keeps modules under names that
    /// hash all that they depend on, a compiled `core`, and crates that others depend on, and loses what nobody used for a
    /// week.
    ///
    /// As many compilers run at a time as cargo lets its build scripts have (`NUM_JOBS`), or as there are cores.
    #[must_use]
    pub fn new(compiler: Compiler, cache: impl Into<PathBuf>) -> Self {
        let named = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
        let cores = || thread::available_parallelism().map_or(1, NonZero::get);
        Builder { compiler, cache: cache.into(), jobs: named.unwrap_or_else(cores) }
    }

    /// Has at most so many compilers run at a time (at least one).
    #[must_use]
    pub fn jobs(mut self, jobs: usize) -> Self {
        self.jobs = jobs;
        self
    }

    /// Makes one module.
    ///
    /// # Errors
    ///
    /// The source does not compile, or not to what a driver could load; or files cannot be written.
    pub fn compile(&self, module: &Module) -> Result<Ptx> {
        let run = Run::default();
        let sysroot = self.prepare()?;
        let (ptx, _) = self.module(sysroot.as_deref(), module, &run)?;
        Ok(ptx)
    }

    /// Makes modules, in the order they are asked for, several at a time. Tells `progress` of each. The first error ends it;
    /// what was made before stays in the cache.
    ///
    /// # Errors
    ///
    /// As [`compile`](Self::compile).
    pub fn compile_all(
        &self,
        modules: &[Module],
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<Vec<Ptx>> {
        let run = Run::default();
        let sysroot = self.prepare()?;
        // Crates that several modules depend on are made once, before them.
        for module in modules {
            self.dependencies(sysroot.as_deref(), &module.krate, &module.target, &run)?;
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, modules.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        // Relaxed: only counts; the lock below hands results over.
                        let place = next.fetch_add(1, Ordering::Relaxed);
                        let Some(module) = modules.get(place) else { break };
                        let made = self.module(sysroot.as_deref(), module, &run);
                        if made.is_err() {
                            next.store(modules.len(), Ordering::Relaxed); // one error is enough
                        }
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        let cached = made.as_ref().is_ok_and(|(_, cached)| *cached);
                        let failed = made.is_err();
                        done.push((place, made.map(|(ptx, _)| ptx)));
                        if !failed {
                            let (done, all) = (done.len(), modules.len());
                            progress(Progress { module, cached, done, all });
                        }
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(place, _)| *place);
        done.into_iter().map(|(_, made)| made).collect()
    }

    /// Makes the cache, and `core` where there is none.
    fn prepare(&self) -> Result<Option<PathBuf>> {
        fs::create_dir_all(&self.cache).map_err(Error::file(&self.cache))?;
        forget_old(&self.cache);
        // Build scripts of several crates come here at the same time, and `core` takes half a minute. Where a file system has no locks,
        // each makes it.
        let lock = self.cache.join("core.lock");
        let lock = fs::File::create(&lock).map_err(Error::file(&lock))?;
        let _ = lock.lock();
        self.compiler.sysroot(&self.cache)
    }

    /// A module, and whether it was in the cache.
    fn module(&self, sysroot: Option<&Path>, module: &Module, run: &Run) -> Result<(Ptx, bool)> {
        let key = self.key(&module.krate, &module.target, run)?;
        let name = module.name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "-");
        let file = format!("{key:032x}_{}_{name}.{}", module.target.cpu, stored::EXTENSION);
        let kept = self.cache.join(file);
        if let Some(ptx) = read(&kept) {
            return Ok((ptx, true));
        }
        let dependencies = self.dependencies(sysroot, &module.krate, &module.target, run)?;
        let making = own(&kept, MAKING);
        let (asm, log) = self.compiler.assembly(sysroot, module, &dependencies, &making)?;
        let text = headers::finish(&lines::compact(
            &asm,
            &module.krate.shown(),
            &module.krate.coarse_files(),
        ));
        let name = || module.to_string();
        if let Some(function) = headers::undefined(&text) {
            return Err(Error::Undefined { name: name(), function: function.into() });
        }
        if let Some(function) = headers::not_inlined(&text) {
            return Err(Error::NotInlined { name: name(), function });
        }
        let kernels = headers::kernels(&text);
        if kernels.is_empty() {
            return Err(Error::NoKernels { name: name() });
        }
        let mut warnings = mem::take(&mut *run.warnings());
        warnings.extend(told(&log));
        let bytes = stored::encode(&text).map_err(Error::file(&kept))?;
        write(&kept, &bytes)?;
        #[cfg(feature = "pack")]
        return Ok((Ptx { text, kernels, warnings, packed: bytes }, false));
        #[cfg(not(feature = "pack"))]
        Ok((Ptx { text, kernels, warnings }, false))
    }

    /// The crates that a crate names, compiled.
    fn dependencies(
        &self,
        sysroot: Option<&Path>,
        krate: &DeviceCrate,
        target: &Target,
        run: &Run,
    ) -> Result<Vec<(String, PathBuf)>> {
        let mut made = Vec::new();
        for dependency in &krate.dependencies {
            let theirs = self.dependencies(sysroot, dependency, target, run)?;
            let key = self.key(dependency, target, run)?;
            let rlib = self.cache.join(format!("lib{}-{key:032x}.rlib", dependency.name));
            if rlib.is_file() {
                touch(&rlib);
            } else {
                let making = own(&rlib, "making.rlib");
                let compiled =
                    self.compiler.rlib(sysroot, dependency, target, &theirs, key, &making);
                let log = compiled.inspect_err(|_| drop(fs::remove_file(&making)))?;
                run.warnings().extend(told(&log));
                fs::rename(&making, &rlib).map_err(Error::file(&rlib))?;
            }
            made.push((dependency.name.clone(), rlib));
        }
        Ok(made)
    }

    /// A hash of all that the PTX of a crate depends on.
    fn key(&self, krate: &DeviceCrate, target: &Target, run: &Run) -> Result<u128> {
        let mut key = Key::default();
        self.compiler.key(&mut key);
        krate.key(&mut key);
        key.add(target).add(&run.hash(krate.source())?);
        for dependency in &krate.dependencies {
            key.add(&self.key(dependency, target, run)?);
        }
        Ok(key.finish())
    }
}

/// What the modules that are made together share.
#[derive(Default)]
struct Run {
    /// Hashes of directories, each computed once.
    hashes: Mutex<HashMap<PathBuf, String>>,
    /// Warnings about crates that modules depend on, which the next module tells with its own.
    warnings: Mutex<Vec<String>>,
}

impl Run {
    fn hash(&self, dir: &Path) -> Result<String> {
        let mut known = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = known.get(dir) {
            return Ok(hash.clone());
        }
        let hash = hash_source(dir)?;
        known.insert(dir.into(), hash.clone());
        Ok(hash)
    }

    fn warnings(&self) -> MutexGuard<'_, Vec<String>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first lines of a compiler's warnings.
fn told(log: &str) -> impl Iterator<Item = String> {
    log.lines().filter(|line| line.starts_with("warning")).map(str::to_owned)
}

/// What a file of the cache has in it.
#[cfg(feature = "pack")]
mod stored {
    use std::io;

    pub(super) const EXTENSION: &str = "ptx.zst";

    /// How hard `zstd` packs: a module becomes a twentieth, in about 0.1 s.
    const LEVEL: i32 = 17;

    pub(super) fn encode(text: &str) -> io::Result<Vec<u8>> {
        zstd::bulk::compress(text.as_bytes(), LEVEL)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<String> {
        String::from_utf8(zstd::decode_all(bytes).ok()?).ok()
    }
}

/// What a file of the cache has in it.
#[cfg(not(feature = "pack"))]
mod stored {
    use std::io;

    pub(super) const EXTENSION: &str = "ptx";

    #[expect(clippy::unnecessary_wraps, reason = "packing can fail")]
    pub(super) fn encode(text: &str) -> io::Result<Vec<u8>> {
        Ok(text.into())
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<String> {
        String::from_utf8(bytes.to_vec()).ok()
    }
}

/// A module that is kept from another build.
fn read(kept: &Path) -> Option<Ptx> {
    let bytes = fs::read(kept).ok()?;
    let text = stored::decode(&bytes)?;
    touch(kept);
    let kernels = headers::kernels(&text);
    Some(Ptx {
        text,
        kernels,
        warnings: Vec::new(),
        #[cfg(feature = "pack")]
        packed: bytes,
    })
}

/// Writes a file so that nobody sees half of it.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let whole = own(path, "whole");
    fs::write(&whole, bytes).map_err(Error::file(&whole))?;
    fs::rename(&whole, path).map_err(Error::file(path))
}

/// A name beside `path` that no other process or thread uses.
fn own(path: &Path, what: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only distinct numbers are wanted.
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}.{next}.{what}", std::process::id()))
}

/// Notes that a file is in use. Where that cannot be noted the file is made again in a week.
fn touch(path: &Path) {
    let _ =
        fs::File::options().append(true).open(path).and_then(|f| f.set_modified(SystemTime::now()));
}

/// Removes what nobody used for long, and the folders that killed compilers have left.
fn forget_old(cache: &Path) {
    for file in fs::read_dir(cache).into_iter().flatten().flatten() {
        let changed = file.metadata().and_then(|m| m.modified());
        let old = changed.is_ok_and(|t| t.elapsed().is_ok_and(|age| age > KEPT));
        let path = file.path();
        // Somebody else may have been quicker.
        if old && path.is_file() {
            let _ = fs::remove_file(path);
        } else if old && path.extension().is_some_and(|extension| extension == MAKING) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_used_for_long_is_forgotten() {
        let cache = tempfile::tempdir().unwrap();
        let path = |name: &str| cache.path().join(name);
        let old = SystemTime::now() - 2 * KEPT;
        let age = |name: &str| fs::File::open(path(name)).unwrap().set_modified(old).unwrap();
        for folder in ["core_1", "old.7.1.making", "new.7.2.making"] {
            fs::create_dir(path(folder)).unwrap();
            fs::write(path(folder).join("kernels.s"), "").unwrap();
        }
        for file in ["old.ptx", "new.ptx"] {
            fs::write(path(file), "").unwrap();
        }
        ["core_1", "old.7.1.making", "old.ptx"].into_iter().for_each(age);
        forget_old(cache.path());
        let mut left: Vec<_> =
            fs::read_dir(cache.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["core_1", "new.7.2.making", "new.ptx"]);
    }
}

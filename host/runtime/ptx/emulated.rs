//! What both modes of the runtime share: the machine's memory, its kernels, its figures, and the fault
//! that stops everything.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ferroccl_device::kernels::{Kernel, PtxText};
use ferroccl_ptx::emu::{self, Counts, Grid, LaunchSpan, Machine, Mapping, Program};

use super::{DEFAULT_ARCH, DEFAULT_THREADS};
use crate::error::{Error, Result};
use crate::ptx;
use crate::runtime::memory::HostMemory;
use crate::runtime::sync::lock;
use crate::runtime::{Launch, Memory};

/// Bytes after an allocation that are nobody's: what runs over its end by less does not end up in the next.
const GUARD: usize = 256;

/// The device that is emulated.
pub(super) struct Emulated {
    pub(super) machine: Machine,
    /// Its number among those of the process, from 1: memory is one machine's. Of several GPUs each has a number, in a row.
    pub(super) space: u64,
    gpus: u32,
    /// When the first launch started and the last one ended, in virtual time, since figures were last begun anew.
    span: Mutex<Option<LaunchSpan>>,
    kernels: Mutex<Kernels>,
    counts: Mutex<BTreeMap<&'static str, KernelCounts>>,
    epoch: Mutex<Arc<FaultEpoch>>,
}

/// What a kernel's launches came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCounts {
    /// Its name.
    pub kernel: &'static str,
    /// Launches that have ended well.
    pub launches: u64,
    /// The figures of all their blocks.
    pub counts: Counts,
}

/// The time between two faults: a fault ends the epoch, and all that was launched in it.
#[derive(Default)]
pub(super) struct FaultEpoch(OnceLock<Error>);

impl FaultEpoch {
    /// What has ended it.
    #[inline]
    pub(super) fn error(&self) -> Option<&Error> {
        self.0.get()
    }
}

/// A launch, made ready to run.
pub(super) struct Ready {
    /// `None` for a launch without blocks.
    pub(super) grid: Option<Arc<Grid>>,
    pub(super) epoch: Arc<FaultEpoch>,
    /// The stream that it is in.
    pub(super) stream: u32,
}

/// The kernels that have been looked up, and how they are launched.
struct Kernels {
    arch: u32,
    threads: u32,
    programs: HashMap<String, Arc<Program>>,
}

/// Device memory, which kernels reach byte by byte.
#[derive(Debug)]
pub(super) struct EmulatedMemory {
    /// Before the memory, to be dropped first.
    _mapping: Mapping,
    memory: HostMemory,
    len: usize,
    space: u64,
}

// SAFETY: the range is part of `memory`, and mapped, until `self` is dropped.
unsafe impl Memory for EmulatedMemory {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn address_space(&self) -> u64 {
        self.space
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
    }
}

impl Emulated {
    /// With so many GPUs.
    pub(super) fn new(gpus: u32) -> Arc<Self> {
        static SPACES: AtomicU64 = AtomicU64::new(1);
        let (arch, threads) = (DEFAULT_ARCH, DEFAULT_THREADS);
        Arc::new(Emulated {
            machine: Machine::new(),
            space: SPACES.fetch_add(gpus.into(), Ordering::Relaxed),
            gpus,
            span: Mutex::default(),
            kernels: Mutex::new(Kernels { arch, threads, programs: HashMap::new() }),
            counts: Mutex::default(),
            epoch: Mutex::default(),
        })
    }

    pub(super) fn set_threads(&self, threads: u32) {
        lock(&self.kernels).threads = threads;
    }

    pub(super) fn arch(&self) -> u32 {
        lock(&self.kernels).arch
    }

    pub(super) fn set_arch(&self, arch: u32) {
        lock(&self.kernels).arch = arch;
    }

    /// Puts `text` in the place of a kernel.
    pub(super) fn replace(&self, kernel: &str, text: &str) -> Result<()> {
        let program = load(text, kernel)?;
        lock(&self.kernels).programs.insert(kernel.to_owned(), program);
        Ok(())
    }

    /// Memory of one of its GPUs.
    pub(super) fn allocate(&self, gpu: u32, len: usize) -> Result<EmulatedMemory> {
        Ok(self.map(gpu, HostMemory::allocate(len.saturating_add(GUARD))?, len))
    }

    /// The same, for memory that other processes may open.
    pub(super) fn allocate_shared(&self, gpu: u32, len: usize) -> Result<EmulatedMemory> {
        Ok(self.map(gpu, HostMemory::shared(len.saturating_add(GUARD))?, len))
    }

    /// Memory that another process has made so.
    pub(super) fn import(&self, gpu: u32, handle: &[u8], len: usize) -> Result<EmulatedMemory> {
        Ok(self.map(gpu, HostMemory::open(handle, len.saturating_add(GUARD))?, len))
    }

    /// Has kernels reach memory of the host as that of a GPU.
    fn map(&self, gpu: u32, memory: HostMemory, len: usize) -> EmulatedMemory {
        // SAFETY: the memory is unmapped before it is freed; who touches it when is ordered by streams.
        let mapping =
            unsafe { self.machine.map_on(Some(gpu), memory.address(), len, "an allocation") };
        let space = self.space + u64::from(gpu);
        EmulatedMemory { _mapping: mapping, memory, len, space }
    }

    /// Makes a launch ready that is put into a stream, on a device of this number, with so many threads a block, where that is
    /// not the setting.
    pub(super) fn prepare(
        &self,
        launch: &Launch,
        stream: u32,
        threads: Option<u32>,
    ) -> Result<Ready> {
        let (program, usual) = lock(&self.kernels).get(&launch.kernel)?;
        let threads = threads.unwrap_or(usual);
        let mut grid = None;
        if launch.blocks > 0 {
            let parameters = launch.argument.bytes().to_vec();
            let launch = emu::Launch::new(&program, launch.blocks, threads, parameters);
            let launch = emu::Launch { device: stream, ..launch };
            let made = self.machine.launch(launch);
            grid = Some(made.map_err(|e| unavailable(program.name(), e.to_string()))?);
        }
        Ok(Ready { grid, epoch: Arc::clone(&lock(&self.epoch)), stream })
    }

    /// Ends an epoch, unless it has ended already; returns what it has ended with.
    pub(super) fn end_epoch(&self, epoch: &Arc<FaultEpoch>, error: Error) -> Error {
        let error = epoch.0.get_or_init(|| error).clone();
        let mut now = lock(&self.epoch);
        if Arc::ptr_eq(&now, epoch) {
            *now = Arc::default();
        }
        error
    }

    /// Adds the figures of blocks; `launches` is 1 for the last of a launch.
    pub(super) fn count(&self, kernel: &'static str, launches: u64, counts: Counts) {
        let mut all = lock(&self.counts);
        let nothing = || KernelCounts { kernel, launches: 0, counts: Counts::default() };
        let sum = all.entry(kernel).or_insert_with(nothing);
        sum.launches += launches;
        sum.counts += counts;
    }

    pub(super) fn counts(&self) -> Vec<KernelCounts> {
        lock(&self.counts).values().copied().collect()
    }

    pub(super) fn reset_counts(&self) {
        lock(&self.counts).clear();
        *lock(&self.span) = None;
    }

    /// The number of the GPU with an address space, where there are several.
    pub(super) fn gpu(&self, space: u64) -> Option<u32> {
        let gpu = u32::try_from(space.checked_sub(self.space)?).ok()?;
        (gpu < self.gpus).then_some(gpu)
    }

    /// A launch has run then, in virtual time.
    pub(super) fn ran(&self, launch: LaunchSpan) {
        let mut span = lock(&self.span);
        let all = span.get_or_insert(launch);
        (all.start, all.end) = (all.start.min(launch.start), all.end.max(launch.end));
    }

    pub(super) fn span(&self) -> Option<LaunchSpan> {
        *lock(&self.span)
    }
}

impl Kernels {
    /// A kernel, and how many threads its blocks have.
    fn get(&mut self, kernel: &Kernel) -> Result<(Arc<Program>, u32)> {
        if let Some(program) = self.programs.get(kernel.name) {
            return Ok((Arc::clone(program), self.threads));
        }
        let program = match kernel.ptx {
            // Kernels of other crates may have one name and be several.
            Some(text) => return Ok((of_text(kernel.name, text)?, self.threads)),
            None => embedded(kernel.name, self.arch)?,
        };
        self.programs.insert(kernel.name.to_owned(), Arc::clone(&program));
        Ok((program, self.threads))
    }
}

/// A kernel of this build, read once a process.
fn embedded(kernel: &str, arch: u32) -> Result<Arc<Program>> {
    type Loaded = HashMap<(u32, String), Arc<Program>>;
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let loaded = LOADED.get_or_init(Mutex::default);
    let key = (arch, kernel.to_owned());
    if let Some(program) = lock(loaded).get(&key) {
        return Ok(Arc::clone(program));
    }
    let program = load(&source(kernel, arch)?, kernel)?;
    Ok(Arc::clone(lock(loaded).entry(key).or_insert(program)))
}

/// A kernel of a text of another crate, read once a process.
fn of_text(kernel: &str, text: PtxText) -> Result<Arc<Program>> {
    /// By the text's address: it stays for as long as the process.
    type Loaded = HashMap<(usize, String), Arc<Program>>;
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let loaded = LOADED.get_or_init(Mutex::default);
    let key = (text.0.as_ptr().addr(), kernel.to_owned());
    if let Some(program) = lock(loaded).get(&key) {
        return Ok(Arc::clone(program));
    }
    let program = load(text.0, kernel)?;
    Ok(Arc::clone(lock(loaded).entry(key).or_insert(program)))
}

/// Whether this build has PTX.
pub(super) fn check_available() -> Result<()> {
    ptx::unavailable().map_or(Ok(()), |why| Err(unavailable("the ptx runtime", why)))
}

/// As [`super::source`].
pub(super) fn source(kernel: &str, arch: u32) -> Result<String> {
    check_available()?;
    let why_not = || unavailable(kernel, ptx::why_not(format_args!("sm_{arch}")));
    ptx::source(kernel, arch).ok_or_else(why_not)
}

fn load(text: &str, kernel: &str) -> Result<Arc<Program>> {
    Program::load(text, kernel).map(Arc::new).map_err(|e| unavailable(kernel, e.to_string()))
}

fn unavailable(what: &str, reason: impl Into<String>) -> Error {
    Error::Unavailable { what: what.to_owned(), reason: reason.into() }
}

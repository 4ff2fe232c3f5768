//! The PTX emulator as a device: what runs is the PTX that a GPU would get, with 32 lanes a warp, warps of
//! a block that meet at barriers, and a memory system that may be as a GPU's is allowed to be.
//!
//! ```text
//! emulated.rs  what both modes share: memory, kernels, figures, the fault that stops everything
//! threaded.rs  blocks on threads: as fast as it goes
//! lockstep.rs  all warps in one schedule: checks, figures, replay
//! ```
//!
//! A kernel is found by its name in [`crate::ptx`]; nothing of the CPU's kernels runs. Memory of kernels is
//! memory of the process at its own address, but only what was allocated or registered: an access
//! elsewhere is a fault, with the instruction and what lies next to the address.
//!
//! **A fault stops everything that was launched on the runtime before it**, as an error of a GPU's kernel stops
//! its context: all of those streams report it. Afterwards the runtime is usable; communicators whose
//! kernels were stopped are not.
//!
//! Each stream counts as a GPU of its own: what a kernel orders for `.gpu` is not ordered for the others.
//!
//! ```
//! use ferroccl::runtime::ptx::PtxRuntime;
//! use ferroccl::{Communicator, Device, ReduceOp, ptx};
//! # if ptx::unavailable().is_some() { return Ok::<(), ferroccl::Error>(()) }
//!
//! let runtime = std::sync::Arc::new(PtxRuntime::seeded(7)); // all checks, a schedule from a seed
//! let device = Device::new(runtime.clone());
//! let ranks = Communicator::init_all(&device, 2)?;
//! let streams = [device.stream()?, device.stream()?];
//! let buffers = [device.upload(&[1.0f32; 50])?, device.upload(&[2.0f32; 50])?];
//! for r in 0..2 {
//!     ranks[r].all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r])?;
//! }
//! assert_eq!(buffers[0].to_vec(&streams[0])?, [3.0; 50]);
//! assert_eq!(runtime.counts()[0].launches, 2);
//! # Ok::<(), ferroccl::Error>(())
//! ```

mod emulated;
mod lockstep;
mod multicast;
mod threaded;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use ferroccl_ptx::emu::{
    ASSUMED, Adversity, Checks, Counts, Fault, FaultKind, LaunchSpan, MachineModel, Options,
    PathStep, Site, Source, Spent, Timing, Unit, UnknownFigure, WarpSchedule, totals,
};

use ferroccl_proxy::Operation;
use ferroccl_topology::graph::tuning::cpu as cpu_tuning;

use self::emulated::Emulated;
pub use self::emulated::KernelCounts;
use self::lockstep::Warps;
use self::multicast::EmulatedMulticast;
use self::threaded::EmulatedBlocks;
use super::op::copy_in;
use super::scheduler::ScheduledStreams;
use super::threads::Threads;
use super::{DeviceInfo, Keep, Memory, Multicast, Runtime, Settings, StreamOps};
use crate::error::{Error, Result};
use ferroccl_device::kernels::MAX_THREADS;

/// Threads of a block where nothing else is asked for. A GPU gets more; here each warp costs its time, and four
/// are enough for warps to differ.
pub const DEFAULT_THREADS: u32 = 128;
/// The compute capability whose PTX runs where nothing else is asked for: 90 is sm_90.
pub const DEFAULT_ARCH: u32 = 90;
/// The first compute capability whose GPUs know `multimem` (PTX ISA 9.0, 9.7.9.14).
const MULTICAST_CAPABILITY: u32 = 90;

/// A runtime whose kernels are PTX in an emulator.
pub struct PtxRuntime {
    emulated: Arc<Emulated>,
    mode: Mode,
    /// Which of several GPUs of a model it is.
    gpu: u32,
    model: Option<MachineModel>,
}

#[derive(Clone)]
enum Mode {
    Threads(Arc<Threads<EmulatedBlocks>>),
    Lockstep(Arc<ScheduledStreams<Warps>>),
}

impl PtxRuntime {
    /// Blocks on `workers` threads, 0 counts as 1: as fast as it goes. Checked is what costs nothing: that
    /// accesses are aligned and to memory, barriers, divergence.
    #[must_use]
    pub fn on_threads(workers: usize) -> Self {
        let emulated = Emulated::new(1);
        let blocks = EmulatedBlocks::new(&emulated);
        let mode = Mode::Threads(Arc::new(Threads::new(workers, blocks)));
        PtxRuntime { mode, emulated, gpu: 0, model: None }
    }

    /// A runtime for tests: what is launched queues up, and runs when any stream is waited for, on that thread
    /// alone, warp by warp in a schedule that the seed decides. Memory is as unhelpful as the memory model
    /// allows, but that lines arrive whole ([`Unit::Line`], see [`checks`]); races, uninitialised shared memory
    /// and deadlocks are faults. All that is to meet must be launched before the first `synchronize`. What nobody
    /// waits for does not run.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::lockstep(Options { checks: Some(checks(Unit::Line)), ..Options::seeded(seed) })
    }

    /// As [`PtxRuntime::seeded`], with another schedule, memory and checks. With [`Options::plain`] the figures
    /// of a run ([`PtxRuntime::counts`]) are the same each time.
    #[must_use]
    pub fn lockstep(options: Options) -> Self {
        Self::scheduled(1, options)
    }

    fn scheduled(gpus: u32, options: Options) -> Self {
        let emulated = Emulated::new(gpus);
        let warps = Warps::new(&emulated, options);
        let schedule = warps.schedule();
        let mode = Mode::Lockstep(ScheduledStreams::new(warps, schedule));
        PtxRuntime { mode, emulated, gpu: 0, model: None }
    }

    /// The GPUs of a machine, whose kernels run in one schedule and in virtual time: what is earliest on that machine runs first.
    /// Connections, slots, blocks and threads are as on such GPUs ([`CudaRuntime`](crate::runtime::cuda::CudaRuntime)). What comes
    /// out ([`PtxRuntime::simulated_time`]) is a simulation of the kernels: without launches, the host and networks.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use ferroccl::runtime::ptx::{MachineModel, PtxRuntime};
    /// use ferroccl::{CommConfig, Communicator, Device, ReduceOp, ptx};
    /// # if ptx::unavailable().is_some() { return Ok::<(), ferroccl::Error>(()) }
    ///
    /// let model = MachineModel::find("h100-nvlink").unwrap();
    /// let gpus: Vec<_> = PtxRuntime::simulated(model).into_iter().map(Arc::new).collect();
    /// let devices: Vec<_> = gpus.iter().take(2).map(|gpu| Device::new(gpu.clone())).collect();
    /// let ranks = Communicator::init_all_on(&devices, &CommConfig::default())?;
    /// let mut calls = Vec::new();
    /// for (rank, device) in ranks.iter().zip(&devices) {
    ///     let (stream, buffer) = (device.stream()?, device.upload(&[1.0f32; 64])?);
    ///     rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
    ///     calls.push((stream, buffer));
    /// }
    /// for (stream, buffer) in &calls {
    ///     assert_eq!(buffer.to_vec(stream)?, [2.0; 64]);
    /// }
    /// println!("{:?} (simulated)", gpus[0].simulated_time().unwrap());
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    #[must_use]
    pub fn simulated(model: MachineModel) -> Vec<PtxRuntime> {
        Self::simulated_with(model, Options::plain())
    }

    /// As [`PtxRuntime::simulated`], with these checks and this seed.
    #[must_use]
    pub fn simulated_with(model: MachineModel, options: Options) -> Vec<PtxRuntime> {
        let first = Self::scheduled(model.gpus, Options { clock: Some(model.timing), ..options });
        first.emulated.set_arch(model.capability);
        let gpu = |gpu| {
            let (emulated, mode) = (Arc::clone(&first.emulated), first.mode.clone());
            PtxRuntime { emulated, mode, gpu, model: Some(model.clone()) }
        };
        (0..model.gpus.max(1)).map(gpu).collect()
    }

    /// The chain of waits that ended last, of all that has run since figures were last begun anew, in the order of time: what
    /// would have to be faster for it to end sooner. Empty unless [`Options::trace`] is set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] from within a function that runs in the schedule.
    pub fn critical_path(&self) -> Result<Vec<PathStep>> {
        match (&self.mode, self.emulated.span()) {
            (Mode::Lockstep(streams), Some(span)) => {
                streams.ask(|schedule| schedule.lockstep.critical_path(span.start))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What all warps have waited for since figures were last begun anew: warp by warp, in the order of time. Empty unless
    /// [`Options::trace`] is set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] from within a function that runs in the schedule.
    pub fn waits(&self) -> Result<Vec<PathStep>> {
        match (&self.mode, self.emulated.span()) {
            (Mode::Lockstep(streams), Some(span)) => {
                streams.ask(|schedule| schedule.lockstep.waits(span.start))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// When the first launch started and the last one ended since figures were last begun anew, in virtual time; `None` without a
    /// clock, and where nothing has run.
    #[must_use]
    pub fn simulated_span(&self) -> Option<LaunchSpan> {
        self.emulated.span()
    }

    /// From the start of the first launch to the end of the last one since figures were last begun anew
    /// ([`PtxRuntime::reset_counts`]), in virtual time; `None` without a clock, and where nothing has run.
    #[must_use]
    pub fn simulated_time(&self) -> Option<Duration> {
        let span = self.emulated.span()?;
        Some(Duration::from_nanos((span.end - span.start) / 1000))
    }

    /// With so many threads in each block.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is a multiple of 32 from 32 to [`MAX_THREADS`].
    pub fn with_threads(self, threads: u32) -> Result<Self> {
        if threads == 0 || threads > MAX_THREADS || !threads.is_multiple_of(32) {
            let reason = format!("{threads} is no multiple of 32 from 32 to {MAX_THREADS}");
            return Err(Error::argument("threads", reason));
        }
        self.emulated.set_threads(threads);
        Ok(self)
    }

    /// That of its GPUs, times ten.
    fn capability(&self) -> u32 {
        self.model.as_ref().map_or(DEFAULT_ARCH, |model| model.capability)
    }

    /// With the PTX for this compute capability: 90 for sm_90.
    #[must_use]
    pub fn with_arch(self, arch: u32) -> Self {
        self.emulated.set_arch(arch);
        self
    }

    /// With `text`, a module of PTX, in place of the kernel that is called `kernel`: it runs as you have edited
    /// it. [`source`] gives what to start from. It takes one parameter, the [`Work`](ferroccl_device::abi::Work) of the call
    /// by value.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the text is no PTX that the emulator knows, or has no such kernel; with the line.
    ///
    /// ```
    /// use ferroccl::runtime::ptx::{DEFAULT_ARCH, PtxRuntime, source};
    /// # if ferroccl::ptx::unavailable().is_some() { return Ok::<(), ferroccl::Error>(()) }
    ///
    /// let kernel = "all_reduce_ring_ll_sum_float";
    /// let edited = source(kernel, DEFAULT_ARCH)?.replace("st.release.sys", "st.relaxed.sys");
    /// let runtime = PtxRuntime::seeded(1).with_source(kernel, &edited)?; // and see what it says
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn with_source(self, kernel: &str, text: &str) -> Result<Self> {
        self.emulated.replace(kernel, text)?;
        Ok(self)
    }

    /// What has run since the last reset, by kernel: launches that have ended well.
    #[must_use]
    pub fn counts(&self) -> Vec<KernelCounts> {
        self.emulated.counts()
    }

    /// Starts counting anew.
    pub fn reset_counts(&self) {
        self.emulated.reset_counts();
    }

    /// A hash of who has run when; 0 on threads. Two runs of one program with one seed have the same.
    #[must_use]
    pub fn trace(&self) -> u64 {
        match &self.mode {
            Mode::Threads(_) => 0,
            Mode::Lockstep(streams) => streams.scheduler.trace(),
        }
    }
}

/// All checks, and memory that is as unhelpful as allowed, but for what becomes visible in one piece.
///
/// LL128 stands on [`Unit::Line`]: that the 128 bytes of a line which a warp stores in one instruction become
/// visible together. No manual promises it; NCCL uses LL128 where the hardware is known to do so. With
/// [`Unit::Eight`], which is what the manual promises, LL128 gives wrong results, and the other
/// protocols do not.
#[must_use]
pub fn checks(unit: Unit) -> Checks {
    let adversity = Adversity { unit, ..Adversity::default() };
    Checks { adversity: Some(adversity), ..Checks::default() }
}

/// A kernel of this build as a module of its own, as the emulator runs it: the PTX that a device of compute
/// capability `arch` gets.
///
/// # Errors
/// [`Error::Unavailable`] when this build has no PTX, or not for this kernel and device.
pub fn source(kernel: &str, arch: u32) -> Result<String> {
    emulated::source(kernel, arch)
}

/// The process's PTX runtime, with threads and blocks as `settings` say. The first call makes it.
///
/// # Errors
/// [`Error::Unavailable`] when this build has no PTX, [`Error::InvalidArgument`] for a number of threads that blocks cannot
/// have.
pub fn shared(settings: &Settings) -> Result<Arc<PtxRuntime>> {
    static SHARED: OnceLock<Arc<PtxRuntime>> = OnceLock::new();
    if let Some(runtime) = SHARED.get() {
        return Ok(Arc::clone(runtime));
    }
    emulated::check_available()?;
    let runtime = PtxRuntime::on_threads(settings.worker_threads()).with_settings(settings)?;
    Ok(Arc::clone(SHARED.get_or_init(|| Arc::new(runtime))))
}

impl PtxRuntime {
    /// With blocks as `settings` say.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number of threads that blocks cannot have.
    pub fn with_settings(self, settings: &Settings) -> Result<Self> {
        self.with_threads(settings.ptx_threads)
    }
}

impl fmt::Debug for PtxRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PtxRuntime");
        match &self.mode {
            Mode::Threads(threads) => debug.field("workers", &threads.active()),
            Mode::Lockstep(streams) => debug.field("options", streams.scheduler.options()),
        };
        debug.finish_non_exhaustive()
    }
}

impl Runtime for PtxRuntime {
    fn name(&self) -> &'static str {
        "ptx"
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(self.emulated.allocate(self.gpu, bytes)?))
    }

    fn allocate_shared(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(self.emulated.allocate_shared(self.gpu, bytes)?))
    }

    fn export(&self, memory: &Arc<dyn Memory>) -> Result<Vec<u8>> {
        super::export_file(self.name(), memory)
    }

    fn import(&self, handle: &[u8], bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(self.emulated.import(self.gpu, handle, bytes)?))
    }

    fn can_multicast(&self, _: &Arc<dyn Memory>) -> Result<()> {
        let lacks = |reason: String| {
            Err(Error::Unavailable { what: "multicast in the emulator".to_owned(), reason })
        };
        let (arch, capability) = (self.emulated.arch(), self.capability());
        if arch < MULTICAST_CAPABILITY {
            return lacks(format!("it has the PTX of sm_{arch}; multimem is of sm_90"));
        }
        if capability < MULTICAST_CAPABILITY {
            return lacks(format!("its GPUs are of sm_{capability}; multimem is of sm_90"));
        }
        Ok(())
    }

    fn create_multicast(&self, _: u32, _: usize) -> Result<Arc<dyn Multicast>> {
        Ok(Arc::new(EmulatedMulticast(Arc::clone(&self.emulated))))
    }

    fn open_multicast(&self, _: &[u8], _: u32, _: usize) -> Result<Arc<dyn Multicast>> {
        Ok(Arc::new(EmulatedMulticast(Arc::clone(&self.emulated))))
    }

    unsafe fn register(&self, address: u64, bytes: usize, what: &str) -> Result<Keep> {
        // SAFETY: the caller's.
        Ok(Arc::new(unsafe { self.emulated.machine.map_on(None, address, bytes, what) }))
    }

    unsafe fn write(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        copy_in(to, offset, bytes)
    }

    fn address_space(&self) -> u64 {
        self.emulated.space + u64::from(self.gpu)
    }

    fn stream(&self) -> Result<Arc<dyn StreamOps>> {
        Ok(match &self.mode {
            Mode::Threads(threads) => threads.stream(),
            Mode::Lockstep(streams) => streams.stream_of(self.address_space()),
        })
    }

    /// In lockstep two: it has one thread but is there to have things happen at the same time.
    fn parallelism(&self) -> u32 {
        if let Some(model) = &self.model {
            return model.sms;
        }
        match &self.mode {
            Mode::Threads(threads) => u32::try_from(threads.active()).unwrap_or(u32::MAX),
            Mode::Lockstep(_) => 2,
        }
    }

    fn resident_blocks(&self, ranks: u32) -> u32 {
        self.model.as_ref().map_or(u32::MAX, |model| (model.sms / ranks.max(1)).max(1))
    }

    fn buffers(&self) -> ([usize; 3], u32) {
        match &self.model {
            Some(_) => super::GPU_BUFFERS,
            None => (cpu_tuning::BUFFER_BYTES, cpu_tuning::SLOTS),
        }
    }

    fn device_info(&self) -> Result<Option<DeviceInfo>> {
        let Some(model) = &self.model else { return Ok(None) };
        let id = |gpu: u32| std::array::from_fn(|i| if i == 0 { gpu as u8 } else { 0xfe });
        // Those of HGX H100's GPUs in NVIDIA's files of its topology.
        let bus_id = format!("0000:{}1:00.0", self.gpu + 1);
        let name = format!("[{bus_id}] GPU {} ({}, simulated)", self.gpu, model.name);
        let (capability, reach) = (self.capability(), (0..model.gpus).map(id).collect());
        Ok(Some(DeviceInfo { name, bus_id, id: id(self.gpu), capability, reach }))
    }

    fn share_host(&self, local_processes: usize) {
        if let Mode::Threads(threads) = &self.mode {
            threads.share_host(local_processes);
        }
    }

    fn is_driven(&self) -> bool {
        matches!(self.mode, Mode::Threads(_))
    }

    fn operate(&self, operation: Box<dyn Operation>) -> Result<()> {
        match &self.mode {
            Mode::Threads(_) => super::on_proxy_thread(operation),
            Mode::Lockstep(streams) => {
                streams.append(operation);
                Ok(())
            }
        }
    }
}

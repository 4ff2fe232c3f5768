//! GPUs as devices: kernels are the PTX of this build, run by NVIDIA's driver.
//!
//! ```text
//! driver.rs   the driver's library, opened when first needed; error.rs what it says
//! gpu.rs      a GPU and a context on it: attributes, memory, events, arguments
//! module.rs   PTX -> functions; cubin_cache.rs the cache on disk
//! connections.rs  hardware queues
//! alloc.rs    device memory: from where, and back
//! virtual_memory.rs  physical memory and where it is mapped; descriptor.rs for other processes; multicast.rs multicast objects
//! memory.rs   allocations, other processes' memory, the caller's, the host's; cust.rs, cudarc.rs, cuda_core/ that of these crates
//! residency.rs  room for launches, over all communicators
//! staging.rs  what launches need beside their argument
//! stream.rs   streams; watch.rs what happens at ends, by words (word.rs); capture.rs what a graph needs; graph.rs graphs and timers
//! ```
//!
//! * **The driver is opened at run time**: a binary starts without one, and says what is missing when it is asked for a GPU.
//! * **The caller's things are used as they are**: the primary context or another ([`CudaRuntime::of_context`]), any stream
//!   ([`CudaRuntime::stream_of`]), any memory ([`CudaRuntime::buffer_of`]); those of `cust`, `cudarc` and `cuda-core` safely.
//! * **Calls are asynchronous, in stream order, and can be captured** in a graph, each stream's on its own. A graph keeps
//!   what its calls need. Within one communicator a graph counts as a call: launch it in the order of the others.
//! * **All blocks of all ranks on a GPU run at the same time**, or a call is refused: kernels wait for each other. Calls of several
//!   communicators that do not fit together wait for each other on the host, and are refused after 20 s. Ranks in one process share the GPU by themselves; of several processes only one runs at a time, unless NVIDIA's MPS lets them
//!   share it.
//! * **Streams of ranks that wait for each other need hardware queues of their own.** There are 8 for a process, or as many as
//!   `CUDA_DEVICE_MAX_CONNECTIONS` says, up to 32. Where it is not set, and the process has only one thread when the driver is
//!   first used, it is set to 32. Other threads might be reading the environment; so a program that starts threads before sets
//!   it itself. A stream for which no queue is left is warned of.
//! * **Kernels are loaded by the first call of a kind** (collective, type, operator), for all sizes, and that may wait for all that
//!   runs. So a thread that drives several ranks makes each call on all of them before the next, or puts calls into a group, as
//!   with NCCL: a group loads first. So may making a communicator, which loads what it can take for kinds that were called before.
//! * **Buffers come from the GPU's memory pool** and go back to it, and neither waits for kernels. Memory that others reach, too, and
//!   all memory where a GPU has no pool, is given back when no call is under way.
//! * **Errors of kernels stay**: after one that traps every call of the context gives the same error, and every
//!   communicator on it fails. A kernel that waits gives up after `FERROCCL_TIMEOUT`, or when its communicator is aborted,
//!   or is dropped by a thread that panics.
//!
//! ```no_run
//! use ferroccl::{Communicator, Device, ReduceOp};
//!
//! let device = Device::cuda(0)?; // 4 ranks on one GPU
//! let ranks = Communicator::init_all(&device, 4)?;
//! let streams = ranks.iter().map(|_| device.stream()).collect::<Result<Vec<_>, _>>()?;
//! let buffers = (0..4).map(|r| device.upload(&[r as f32; 1000])).collect::<Result<Vec<_>, _>>()?;
//! for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
//!     rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?;
//! }
//! assert_eq!(buffers[3].to_vec(&streams[3])?, [6.0; 1000]);
//! # Ok::<(), ferroccl::Error>(())
//! ```

mod alloc;
mod capture;
mod connections;
mod cubin_cache;
#[cfg(feature = "cuda-core")]
mod cuda_core;
#[cfg(feature = "cudarc")]
mod cudarc;
#[cfg(feature = "cust")]
mod cust;
mod descriptor;
mod driver;
mod error;
mod gpu;
mod graph;
#[cfg(any(feature = "cuda-core", feature = "cudarc", feature = "cust"))]
mod handed;
mod memory;
mod module;
mod multicast;
mod residency;
mod staging;
mod stream;
mod virtual_memory;
mod watch;
mod word;

#[cfg(any(test, fuzzing))]
pub(crate) use cubin_cache::cubins;

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

#[cfg(feature = "cuda-core")]
pub use cuda_core::{AsyncCalls, Buffers, CallFuture, CallOperation};
pub use error::CudaError;
pub use graph::{CudaGraph, CudaTimer, copy, profile};

use self::alloc::Use;
use self::gpu::Gpu;
use self::memory::{CudaMemory, Registered};
use self::multicast::CudaMulticast;
use self::staging::Staged;
use self::stream::CudaStream;
use self::virtual_memory::Window;
use super::{
    DeviceInfo, Keep, Memory, Multicast, RdmaInfo, Runtime, Settings, StagedArgument, StreamOps,
};
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::error::{Error, Result};
use crate::runtime::sync::lock;
use ferroccl_device::kernels::Kernel;

/// A GPU as a runtime.
pub struct CudaRuntime {
    gpu: Arc<Gpu>,
}

/// What there is to know of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number in this process.
    pub ordinal: u32,
    /// Its name with its number, as `GPU 0 (NVIDIA H200)`.
    pub name: String,
    /// Its place on the PCI bus, as `0000:17:00.0`.
    pub bus_id: String,
    /// Its compute capability, times ten: 90 is 9.0.
    pub compute_capability: u32,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// The clock of its multiprocessors in kilohertz, at most.
    pub clock_khz: u32,
    /// Its memory in bytes.
    pub memory: usize,
    /// The driver's version of CUDA, as 12040 for 12.4.
    pub driver_version: u32,
}

/// The number of GPUs that the driver shows to this process (`CUDA_VISIBLE_DEVICES`).
///
/// # Errors
/// [`Error::Unavailable`] when there is no driver, or no GPU: it says which.
pub fn count() -> Result<u32> {
    gpu::count(driver::Driver::get()?)
}

/// The context (`CUcontext`) that is current to the calling thread; `None` where none is.
///
/// # Errors
/// [`Error::Unavailable`] when there is no driver or no GPU; [`Error::Cuda`].
pub fn current_context() -> Result<Option<*mut c_void>> {
    let driver = driver::Driver::get()?;
    let mut context = std::ptr::null_mut();
    // SAFETY: writes to a place that is there.
    unsafe { driver.ctx_get_current(&raw mut context)? };
    Ok((!context.is_null()).then_some(context))
}

/// The process's runtime on the GPU of this number: every call gives the same while one is in use.
/// The settings are those of the first call.
///
/// # Errors
/// As [`CudaRuntime::with_settings`].
pub fn shared(ordinal: u32, settings: &Settings) -> Result<Arc<CudaRuntime>> {
    static SHARED: Mutex<Option<HashMap<u32, Arc<CudaRuntime>>>> = Mutex::new(None);
    let mut shared = lock(&SHARED);
    let all = shared.get_or_insert_default();
    if let Some(runtime) = all.get(&ordinal) {
        return Ok(Arc::clone(runtime));
    }
    let runtime = Arc::new(CudaRuntime::with_settings(ordinal, settings)?);
    all.insert(ordinal, Arc::clone(&runtime));
    Ok(runtime)
}

impl CudaRuntime {
    /// A runtime of its own on the GPU of this number, by its primary context: the one that the CUDA runtime, and so most
    /// libraries, use.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no driver, no GPU, one that is too old, or no PTX in this build;
    /// [`Error::InvalidArgument`] when there is no GPU of this number; [`Error::Cuda`].
    pub fn with_settings(ordinal: u32, settings: &Settings) -> Result<Self> {
        Ok(CudaRuntime { gpu: Arc::new(Gpu::open(ordinal, settings)?) })
    }

    /// A runtime in a context (`CUcontext`) of the caller's.
    ///
    /// # Errors
    /// As [`CudaRuntime::with_settings`].
    ///
    /// # Safety
    /// `context` is a context, and outlives the runtime and all that is made on it.
    pub unsafe fn of_context_with(context: *mut c_void, settings: &Settings) -> Result<Self> {
        // SAFETY: the caller's.
        Ok(CudaRuntime { gpu: Arc::new(unsafe { Gpu::of_context(context, settings)? }) })
    }

    /// With `text`, a module of PTX, in place of the kernel that is called `kernel`: an edited one, or one of your own for
    /// [`Communicator::launch`](crate::Communicator::launch). It takes one parameter, the
    /// [`Work`](ferroccl_device::abi::Work) of the call by value. It is assembled when it is first launched.
    ///
    /// # Safety
    /// The text's kernel keeps the contract of the one that it is called: it reaches only the memory that its argument leads
    /// to, within the call's lengths, and in the order of the protocol.
    #[must_use]
    pub unsafe fn with_source(self, kernel: &str, text: &str) -> Self {
        self.gpu.modules.replace(kernel, text);
        self
    }

    /// What there is to know of the GPU.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn info(&self) -> Result<GpuInfo> {
        let gpu = &self.gpu;
        Ok(GpuInfo {
            ordinal: gpu.ordinal,
            name: gpu.name.clone(),
            bus_id: gpu.bus_id()?,
            compute_capability: gpu.capability,
            multiprocessors: gpu.multiprocessors,
            clock_khz: gpu.clock_khz,
            memory: gpu.total_memory()?,
            driver_version: u32::try_from(gpu.driver.version()).unwrap_or(0),
        })
    }

    /// The context (`CUcontext`).
    #[must_use]
    pub fn context(&self) -> *mut c_void {
        self.gpu.context
    }

    /// A stream (`CUstream`) of the caller's, which `keep` keeps alive. The same stream should be wrapped once: handles of
    /// two wraps count as two streams, which costs an event between calls.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context.
    ///
    /// # Safety
    /// `stream` is a stream, as long as `keep` lives; it is not destroyed before what was put in has ended.
    pub unsafe fn stream_of(&self, stream: *mut c_void, keep: Keep) -> Result<Stream> {
        // SAFETY: the caller's.
        let stream = unsafe { CudaStream::foreign(&self.gpu, stream, keep)? };
        Ok(Stream::new(Arc::new(stream)))
    }

    /// `len` elements of the caller's memory at `address` (`CUdeviceptr`), which `keep` keeps alive.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the address is no multiple of the element's size, or the range is none.
    ///
    /// # Safety
    /// The range is memory that kernels of the context may read and write, as long as `keep` lives.
    pub unsafe fn buffer_of<T: Element>(
        &self,
        address: u64,
        len: usize,
        keep: Keep,
    ) -> Result<DeviceBuffer<T>> {
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.filter(|bytes| address.checked_add(*bytes as u64).is_some());
        let Some(bytes) = bytes else {
            let reason = format!("{len} elements from {address:#x} on are no range of memory");
            return Err(Error::argument("len", reason));
        };
        if !address.is_multiple_of(size_of::<T>() as u64) {
            let reason = format!("{address:#x} is no multiple of {}", size_of::<T>());
            return Err(Error::argument("address", reason));
        }
        // SAFETY: the caller's.
        let memory = unsafe { CudaMemory::foreign(&self.gpu, address, bytes, keep) };
        Ok(DeviceBuffer::of_memory(Arc::new(memory), len))
    }
}

impl fmt::Debug for CudaRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaRuntime").field("gpu", &self.gpu).finish()
    }
}

impl Runtime for CudaRuntime {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::allocate(&self.gpu, bytes, Use::Own)?))
    }

    fn allocate_shared(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::allocate(&self.gpu, bytes, Use::Shared)?))
    }

    fn allocate_window(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::allocate_window(&self.gpu, bytes)?))
    }

    fn can_multicast(&self, memory: &Arc<dyn Memory>) -> Result<()> {
        multicast::can_bind(&self.gpu, &**memory)
    }

    fn create_multicast(&self, members: u32, bytes: usize) -> Result<Arc<dyn Multicast>> {
        Ok(Arc::new(CudaMulticast::create(&self.gpu, members, bytes)?))
    }

    /// The object itself knows how many members it has.
    fn open_multicast(&self, handle: &[u8], _: u32, bytes: usize) -> Result<Arc<dyn Multicast>> {
        Ok(Arc::new(CudaMulticast::open(&self.gpu, handle, bytes)?))
    }

    unsafe fn register(&self, address: u64, bytes: usize, what: &str) -> Result<Keep> {
        // SAFETY: the caller's.
        Ok(Arc::new(unsafe { Registered::new(&self.gpu, address, bytes, what)? }))
    }

    unsafe fn write(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = super::memory::range(to, offset, bytes.len())? as u64;
        let driver = self.gpu.driver;
        self.gpu.at_once(|stream| {
            // SAFETY: the range was checked, and `bytes` is there until it is over.
            unsafe { driver.memcpy_htod_async(at, bytes.as_ptr().cast(), bytes.len(), stream) }
        })
    }

    fn allocate_argument(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::take(&self.gpu, bytes)?))
    }

    unsafe fn write_before(
        &self,
        to: &Arc<dyn Memory>,
        bytes: &[u8],
        stream: &dyn StreamOps,
    ) -> Result<Option<StagedArgument>> {
        super::memory::range(to, 0, bytes.len())?;
        if stream.capture_id().is_some() {
            // A graph finds it as its kernel has left it, each time.
            // SAFETY: the caller's.
            return unsafe { self.write(to, 0, bytes) }.map(|()| None);
        }
        // Not by a copy in the stream: the host takes as long for that as for a launch, and the kernel would wait for it.
        let staged = Staged::copy(&self.gpu, bytes)?;
        Ok(Some(StagedArgument { address: staged.address(), keep: Arc::new(staged) }))
    }

    /// Of a context: kernels of one reach all of its memory.
    fn has_host_memory(&self) -> bool {
        false
    }

    fn address_space(&self) -> u64 {
        self.gpu.context as u64
    }

    fn stream(&self) -> Result<Arc<dyn StreamOps>> {
        Ok(Arc::new(CudaStream::new(&self.gpu)?))
    }

    fn parallelism(&self) -> u32 {
        self.gpu.multiprocessors
    }

    /// A multiprocessor holds a block of the largest kernels.
    fn resident_blocks(&self, ranks: u32) -> u32 {
        (self.gpu.multiprocessors / ranks.max(1)).max(1)
    }

    fn share_host(&self, _: usize) {}

    /// "Loading a kernel may require context synchronization" (CUDA's programming guide, Lazy Loading).
    fn loads_kernels(&self) -> bool {
        true
    }

    fn prepare(&self, kernel: &Kernel, threads: u32) -> Result<()> {
        self.gpu.entry(kernel, super::gpu_threads(kernel, threads)).map(drop)
    }

    fn buffers(&self) -> ([usize; 3], u32) {
        super::GPU_BUFFERS
    }

    fn device_info(&self) -> Result<Option<DeviceInfo>> {
        let gpu = &self.gpu;
        let bus_id = gpu.bus_id()?;
        let name = format!("[{bus_id}] {}", gpu.name);
        let (id, capability, reach) = (gpu.uuid, gpu.capability, gpu.reach()?);
        Ok(Some(DeviceInfo { name, bus_id, id, capability, reach }))
    }

    fn export(&self, memory: &Arc<dyn Memory>) -> Result<Vec<u8>> {
        CudaMemory::export(&self.gpu, memory.address())
    }

    fn import(&self, handle: &[u8], bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(CudaMemory::import(&self.gpu, handle, bytes)?))
    }

    fn shared_allocation(&self, memory: &Arc<dyn Memory>) -> Result<Arc<dyn Memory>> {
        if memory.is_shared() {
            return Ok(Arc::clone(memory));
        }
        Ok(Arc::new(CudaMemory::allocation_of(&self.gpu, memory)?))
    }

    fn rdma(&self) -> Result<Option<RdmaInfo>> {
        self.gpu.rdma()
    }

    fn dma_buf(&self, memory: &Arc<dyn Memory>, offset: usize, bytes: usize) -> Result<OwnedFd> {
        let at = super::memory::range(memory, offset, bytes)? as u64;
        self.gpu.dma_buf(at, bytes)
    }

    fn reach(&self, memory: &Arc<dyn Memory>) -> Result<()> {
        let gpu = &self.gpu;
        if let Some(window) = Window::find(memory.address()) {
            return window.reach(gpu);
        }
        let mut context = std::ptr::null_mut::<c_void>();
        gpu.run(|| {
            let to = (&raw mut context).cast();
            // SAFETY: writes a context to a place that is there.
            unsafe {
                gpu.driver.pointer_get_attribute(to, driver::POINTER_CONTEXT, memory.address())
            }
            .map_err(|e| gpu.error(&e))
        })?;
        gpu.enable_peer(context)
    }
}

//! Where kernels run: memory, streams and launches behind one trait.
//!
//! The rest of the host code does not know which runtime it is on. A runtime knows nothing of
//! communicators: it is given a [`Launch`] and reports through it.
//!
//! | runtime | kernels are | state |
//! |---|---|---|
//! | [`cpu`] | coroutines on worker threads | here |
//! | `ptx`, with the feature `emulator` | PTX in an emulator | here |
//! | `cuda`, with the feature of that name | PTX on a GPU | here |

mod argument;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod event;
mod memory;
mod multicast;
mod op;
#[cfg(feature = "emulator")]
pub mod ptx;
mod scheduler;
mod settings;
pub(crate) mod sync;
mod threads;

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ferroccl_device::gpu::Waiting;
use ferroccl_device::kernels::Kernel;
use ferroccl_proxy::{Operation, Proxy};

pub use argument::Argument;
pub use event::Event;
pub use multicast::Multicast;
pub use settings::Settings;

use crate::error::{Error, Result};
use crate::shared_memory::SharedMemoryHandle;
use ferroccl_topology::graph::tuning::cpu as cpu_tuning;

/// A place that has memory and runs kernels.
pub trait Runtime: Debug + Send + Sync {
    /// Its name on the command line: `"cpu"`, `"ptx"`, `"cuda"`.
    fn name(&self) -> &'static str;

    /// Allocates `bytes` of zeroed device memory, aligned to 256 bytes at least. 0 bytes are legal.
    ///
    /// # Errors
    /// When there is not enough.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// The same, for memory that others reach, too: other devices ([`reach`](Runtime::reach)), other processes
    /// ([`export`](Runtime::export)), network cards ([`dma_buf`](Runtime::dma_buf)). It may wait for kernels that run, so it is
    /// called while a communicator is made.
    ///
    /// # Errors
    /// When there is not enough.
    fn allocate_shared(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.allocate(bytes)
    }

    /// The same, for memory that may also be bound to a [multicast object](Runtime::create_multicast), where the device knows such.
    ///
    /// # Errors
    /// When there is not enough.
    fn allocate_window(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.allocate_shared(bytes)
    }

    /// The allocation that memory is a part of, as others reach it ([`reach`](Runtime::reach), [`export`](Runtime::export)): the
    /// caller's may begin in the middle of one. It keeps the memory.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason where others do not reach it.
    fn shared_allocation(&self, memory: &Arc<dyn Memory>) -> Result<Arc<dyn Memory>> {
        if memory.is_shared() { Ok(Arc::clone(memory)) } else { Err(not_shared(self.name())) }
    }

    /// Whether memory can be bound to a multicast object.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason when it cannot.
    fn can_multicast(&self, _memory: &Arc<dyn Memory>) -> Result<()> {
        Err(no_multicast(self.name()))
    }

    /// Makes a multicast object for `bytes` bytes of each of `members` ranks, on a device of its own each.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such thing; when the driver refuses.
    fn create_multicast(&self, _members: u32, _bytes: usize) -> Result<Arc<dyn Multicast>> {
        Err(no_multicast(self.name()))
    }

    /// A multicast object that another rank has made and [exported](Multicast::export), of so many members and bytes.
    ///
    /// # Errors
    /// As [`create_multicast`](Runtime::create_multicast).
    fn open_multicast(
        &self,
        _handle: &[u8],
        _members: u32,
        _bytes: usize,
    ) -> Result<Arc<dyn Multicast>> {
        Err(no_multicast(self.name()))
    }

    /// Lets kernels reach `bytes` bytes of the host's own memory from `address` on, at the same address,
    /// until what is returned is dropped. `what` is what errors call it. Memory that several register is
    /// within reach until the last has let go.
    ///
    /// What kernels need besides allocations and their argument: the memory of connections, the control
    /// block of a communicator.
    ///
    /// # Errors
    /// When the runtime cannot.
    ///
    /// # Safety
    /// The memory is readable and writable until what is returned is dropped and no kernel that was launched
    /// before runs any more; meanwhile host and kernels touch it only as atomics, or in an order that the
    /// program gives.
    unsafe fn register(&self, address: u64, bytes: usize, what: &str) -> Result<Keep>;

    /// Writes `bytes` to `to[offset..]`, at once: before anything that is launched later.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it does not fit, and when the device refuses.
    ///
    /// # Safety
    /// The memory is of this runtime's address space, and nothing that runs uses that part of it.
    unsafe fn write(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Memory for what a launch needs beside its argument, with anything in it: [`write_before`](Runtime::write_before) comes next.
    ///
    /// # Errors
    /// When there is not enough.
    fn allocate_argument(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.allocate(bytes)
    }

    /// Prepares `bytes` for the kernel that is put into `stream` next, and waits for nothing that runs. Either this writes them to the
    /// start of `to`, and returns `None`. Or it returns where it has put them, and the kernel copies them to `to` when it begins.
    ///
    /// # Errors
    /// As [`write`](Runtime::write).
    ///
    /// # Safety
    /// The memory is of this runtime's address space, and nothing that runs uses that part of it.
    unsafe fn write_before(
        &self,
        to: &Arc<dyn Memory>,
        bytes: &[u8],
        _stream: &dyn StreamOps,
    ) -> Result<Option<StagedArgument>> {
        // SAFETY: the caller's.
        unsafe { self.write(to, 0, bytes) }.map(|()| None)
    }

    /// Whether its memory is the host's, so that the host may read and write it by its address.
    fn has_host_memory(&self) -> bool {
        true
    }

    /// Equal for runtimes whose kernels reach each other's memory, within one process: 0 where this is the process's own. A
    /// call's communicator, its buffers and its stream have to be of one.
    fn address_space(&self) -> u64;

    /// Makes a stream: what is put in runs in order, and asynchronously to the caller.
    ///
    /// # Errors
    /// When the system refuses.
    fn stream(&self) -> Result<Arc<dyn StreamOps>>;

    /// Whether calls of less than [`LARGE_CALL_BYTES`](ferroccl_topology::graph::tuning::LARGE_CALL_BYTES) run on the threads that make
    /// them; where a rank is alone in its process, of less than four times as much. Then a rank waits until the thread of another rank runs.
    fn runs_small_calls_on_callers(&self) -> bool {
        false
    }

    /// How many blocks of one rank it runs at the same time: the channels worth having.
    fn parallelism(&self) -> u32;

    /// How many blocks of each rank the device can hold at a time, where `ranks` ranks of a communicator share it: blocks
    /// that wait for each other must all be there. No limit where a block that waits makes way.
    fn resident_blocks(&self, _ranks: u32) -> u32 {
        u32::MAX
    }

    /// Told by a communicator how many processes of its ranks share this host, so that their workers
    /// together do not outnumber the cores.
    fn share_host(&self, local_processes: usize);

    /// Whether kernels have to be loaded before they are launched. Loading one may wait for those that run, which may wait
    /// for what the same thread is about to launch: so whatever starts together is [prepared](Runtime::prepare) first.
    fn loads_kernels(&self) -> bool {
        false
    }

    /// Makes a kernel ready to be launched with so many threads.
    ///
    /// # Errors
    /// As [`StreamOps::launch`].
    fn prepare(&self, _kernel: &Kernel, _threads: u32) -> Result<()> {
        Ok(())
    }

    /// Bytes of a connection's buffers by protocol (LL, LL128, Simple), and the slots each is cut into, where nothing else
    /// is asked for.
    fn buffers(&self) -> ([usize; 3], u32) {
        (cpu_tuning::BUFFER_BYTES, cpu_tuning::SLOTS)
    }

    /// What ranks need to know of its device to reach its memory; `None` where device memory is the host's.
    ///
    /// # Errors
    /// When the device cannot say.
    fn device_info(&self) -> Result<Option<DeviceInfo>> {
        Ok(None)
    }

    /// What another process of the host needs to [`import`](Runtime::import) a [shared](Runtime::allocate_shared) allocation.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such thing.
    fn export(&self, _memory: &Arc<dyn Memory>) -> Result<Vec<u8>> {
        Err(no_device_memory(self.name()))
    }

    /// An allocation of `bytes` bytes that another process has exported.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such thing.
    fn import(&self, _handle: &[u8], _bytes: usize) -> Result<Arc<dyn Memory>> {
        Err(no_device_memory(self.name()))
    }

    /// Lets kernels reach an allocation of another device of this process, which [`DeviceInfo::reach`] has.
    ///
    /// # Errors
    /// When the device refuses.
    fn reach(&self, _memory: &Arc<dyn Memory>) -> Result<()> {
        Ok(())
    }

    /// How network cards reach allocations; `None` where device memory is the host's, or they do not reach it.
    ///
    /// # Errors
    /// When the device cannot say.
    fn rdma(&self) -> Result<Option<RdmaInfo>> {
        Ok(None)
    }

    /// `bytes` bytes of an allocation from `offset` on as a DMA buffer, which a network card can register. Both ends are
    /// multiples of the host's pages, as addresses.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such thing; when the driver refuses.
    fn dma_buf(&self, _memory: &Arc<dyn Memory>, _offset: usize, _bytes: usize) -> Result<OwnedFd> {
        Err(no_device_memory(self.name()))
    }

    /// What the blocks wait for that are running now, as far as they say so: blocks of a GPU and of the emulator do not.
    /// Those that nobody can ask within `patience` are left out.
    fn waiting_blocks(&self, _patience: Duration) -> Vec<WaitingBlock> {
        Vec::new()
    }

    /// Whether what is launched goes on when nobody waits for it.
    fn is_driven(&self) -> bool {
        true
    }

    /// Has an operation of the host go on beside the kernels: by the process's proxy thread, or, where one schedule has
    /// everything, in that.
    ///
    /// # Errors
    /// When there is no thread for it; the operation is dropped then.
    fn operate(&self, operation: Box<dyn Operation>) -> Result<()> {
        on_proxy_thread(operation)
    }
}

/// A device whose memory is its own, as other ranks need to know it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DeviceInfo {
    /// What people call it, as `[0000:17:00.0] GPU 0 (NVIDIA H200)`.
    pub name: String,
    /// Its place on the PCI bus, as `0000:17:00.0`.
    pub bus_id: String,
    /// What is the same device in every process: a GPU's UUID.
    pub id: [u8; 16],
    /// A GPU's compute capability, times ten.
    pub capability: u32,
    /// The devices whose memory its kernels reach, itself among them.
    pub reach: Vec<[u8; 16]>,
}

/// Bytes of a connection's buffers in device memory by protocol, LL, LL128 and Simple, and slots of each: what two channels
/// of every rank need stays in the L2 cache of a GPU of some 50 MB. NCCL has 8 (`NCCL_STEPS`). Not measured yet.
pub(crate) const GPU_BUFFERS: ([usize; 3], u32) = ([128 << 10, 256 << 10, 512 << 10], 8);

/// How network cards reach a device's memory (GPU Direct RDMA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaInfo {
    /// Whether cards that know its driver reach it by its address.
    pub by_address: bool,
    /// Whether it can be had as a DMA buffer.
    pub dma_buf: bool,
    /// Whether its kernels see what cards write in order, so that nothing has to be flushed.
    pub ordered: bool,
    /// Bytes of its memory.
    pub memory: usize,
}

/// What another process needs to open memory of the host that is mapped from a file.
fn export_file(runtime: &str, memory: &Arc<dyn Memory>) -> Result<Vec<u8>> {
    let file = memory.file().ok_or_else(|| not_shared(runtime))?;
    SharedMemoryHandle::of(file)?.to_bytes()
}

fn not_shared(runtime: &str) -> Error {
    let what = format!("memory of {runtime} for others");
    Error::Unavailable { what, reason: "it is not of Device::alloc_shared".to_owned() }
}

fn no_multicast(runtime: &str) -> Error {
    let reason = "its devices have no multicast objects".to_owned();
    Error::Unavailable { what: format!("multicast on {runtime}"), reason }
}

fn no_device_memory(runtime: &str) -> Error {
    let reason = "its device memory is the host's".to_owned();
    Error::Unavailable { what: format!("device memory for others than {runtime}"), reason }
}

/// One for all communicators: they share the process's cores.
static PROXY: LazyLock<Proxy> = LazyLock::new(|| Proxy::new("ferroccl-proxy"));

/// Has an operation go on by the process's proxy thread.
fn on_proxy_thread(operation: Box<dyn Operation>) -> Result<()> {
    PROXY.append(operation).map_err(|e| Error::system("starting the proxy thread", e))
}

/// Has the process's proxy thread run on these cores; `None` is where it would be without that.
pub(crate) fn put_proxy_on(cores: Option<ferroccl_topology::CpuSet>) {
    let placed = match &cores {
        Some(cores) => PROXY.run_on(Some(&mut cores.iter())),
        None => PROXY.run_on(None),
    };
    if let Err(error) = placed {
        tracing::warn!(target: crate::log::PROXY, "the proxy thread stays where it is: {error}");
    }
}

/// Memory of a runtime with this content.
pub(crate) fn place(runtime: &dyn Runtime, bytes: &[u8]) -> Result<Arc<dyn Memory>> {
    let memory = runtime.allocate(bytes.len())?;
    // SAFETY: the memory is the runtime's, and new.
    unsafe { runtime.write(&memory, 0, bytes)? };
    Ok(memory)
}

/// An allocation of device memory; freed when the last handle is dropped.
///
/// # Safety
/// `address() .. address() + len()` must be memory that kernels, and [`StreamOps::copy_in`] and
/// [`StreamOps::copy_out`] of the same runtime, may access until the value is dropped.
pub unsafe trait Memory: Debug + Send + Sync {
    /// Its address as kernels see it.
    fn address(&self) -> u64;
    /// Its size in bytes.
    fn len(&self) -> usize;
    /// [`Runtime::address_space`] of the runtime that it was allocated by.
    fn address_space(&self) -> u64;
    /// Whether others than the kernels of its device may reach it: it is of [`Runtime::allocate_shared`], or the host's.
    fn is_shared(&self) -> bool {
        true
    }
    /// The file that it is mapped from, if other processes may open it.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Whether its size is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Something to keep alive until an operation is done.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// Where [`Runtime::write_before`] has put bytes that a kernel copies when it begins.
#[derive(Debug)]
pub struct StagedArgument {
    /// The address at which the kernel reads them; a multiple of 16.
    pub address: u64,
    /// Kept until the kernel has ended.
    pub keep: Keep,
}

/// What is called when a launch has ended.
pub type Done = Box<dyn FnOnce(Option<&Error>) -> Result<()> + Send>;

/// What is asked after a graph has run, with what the runtime saw go wrong.
pub type Check = Arc<dyn Fn(Option<&Error>) -> Result<()> + Send + Sync>;

/// A block that runs, and waits for a peer.
#[derive(Clone, Copy, Debug)]
pub struct WaitingBlock {
    /// Address of its communicator, as kernels know it ([`Work::comm`](ferroccl_device::abi::Work::comm)).
    pub comm: u64,
    /// The name of its kernel.
    pub kernel: &'static str,
    /// What it has waited for when it was looked at last.
    pub waiting: Waiting,
}

/// Who wants to know when a launch begins.
pub trait LaunchObserver: Send + Sync {
    /// Launch number `launch`, in the observer's own numbers, has come to the head of its stream: its blocks start now.
    /// Called at most once for a launch. `at_once`: the stream had nothing to do, and [`StreamOps::launch`] has not returned yet. A GPU does
    /// not tell when that is.
    fn on_started(&self, launch: u64, at_once: bool);
}

/// One kernel launch.
pub struct Launch {
    /// What to run.
    pub kernel: Kernel,
    /// Blocks: block `i` runs channel `i`.
    pub blocks: u32,
    /// Threads of a block where a thread is a lane of a GPU. The CPU's blocks are one lane, and the emulator's have as
    /// many as it was told.
    pub threads: u32,
    /// Ranks of the communicator that share the device: they all launch as many blocks, which have to run at the same time.
    pub sharing: u32,
    /// What the kernel takes.
    pub argument: Argument,
    /// What the kernel uses.
    pub keep: Vec<Keep>,
    /// Bytes the call moves: whether it is worth waking another core for.
    pub bytes: u64,
    /// Who is told when it begins, and what number it has there.
    pub observer: Option<(Arc<dyn LaunchObserver>, u64)>,
    /// Called once when all blocks have ended, with what went wrong in them as far as the runtime saw it.
    /// That, or else the error of this function, becomes the stream's.
    pub done: Done,
}

/// The threads of a block on a GPU that is to have so many: whole warps, and no more than the kernel takes.
#[cfg(any(feature = "cuda", feature = "emulator"))]
fn gpu_threads(kernel: &Kernel, threads: u32) -> u32 {
    threads.clamp(32, kernel.threads.max(32)) / 32 * 32
}

impl Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("kernel", &self.kernel.name)
            .field("blocks", &self.blocks)
            .finish()
    }
}

/// A stream of a runtime.
pub trait StreamOps: Debug + Send + Sync {
    /// [`Runtime::address_space`] of the runtime that runs its operations.
    fn address_space(&self) -> u64;

    /// Enqueues a kernel.
    ///
    /// # Errors
    /// When it cannot be started at all; what happens later comes out of [`StreamOps::synchronize`].
    ///
    /// # Safety
    /// `launch.argument` must be what `launch.kernel` expects, and every address in it valid, for the
    /// accesses the kernel makes, until `launch.done` is called; `launch.keep` is for that.
    unsafe fn launch(&self, launch: Launch) -> Result<()>;

    /// Enqueues a copy of `bytes` to `to[offset..]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it does not fit.
    fn copy_in(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Copies `from[offset..]` to `bytes` after all that is in the stream, and waits for it.
    ///
    /// # Errors
    /// As [`StreamOps::copy_in`], and the stream's own as in [`StreamOps::synchronize`].
    fn copy_out(&self, from: &Arc<dyn Memory>, offset: usize, bytes: &mut [u8]) -> Result<()>;

    /// Enqueues a function of the host, run in stream order. It must not wait for this stream, and
    /// should be short: it runs on a thread that has blocks to run. A panic in it becomes an error of
    /// the stream.
    fn host_function(&self, function: Box<dyn FnOnce() + Send>);

    /// Has a function of the host run in stream order, and where the stream is captured in a graph each time that runs. At
    /// once where that is the same.
    ///
    /// # Errors
    /// When the stream cannot.
    fn repeat(&self, function: Arc<dyn Fn() + Send + Sync>) -> Result<()> {
        function();
        Ok(())
    }

    /// Has `check` asked each time that the graph has run in which the stream is being captured; its error becomes that of
    /// the stream it ran in.
    fn check_replays(&self, _check: Check) {}

    /// The runtime's own type of stream, where somebody needs more of it than this.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The graph in which the stream is being captured, by a number; `None` when it runs what is put in.
    fn capture_id(&self) -> Option<u64> {
        None
    }

    /// Has `event` happen when all that is in the stream by now has ended. `with_error`: the event takes the stream's
    /// error, if it has one, with it; the stream then has none.
    fn record(&self, event: &Event, with_error: bool);

    /// What is put in from now on waits for `event`; its error becomes the stream's.
    fn wait(&self, event: &Event);

    /// Waits for an event that was [recorded](StreamOps::record) in this stream, for `limit` at most, and runs meanwhile what is in
    /// the stream. Gives what came of the event; `None` when it has not happened within the limit.
    fn wait_for(&self, event: &Event, limit: Duration) -> Option<Result<()>> {
        // A limit that no clock reaches is none.
        let (end, mut nap) = (Instant::now().checked_add(limit), Duration::from_micros(20));
        loop {
            if let Some(result) = event.result() {
                return Some(result);
            }
            if let Err(error) = self.query() {
                return Some(Err(error));
            }
            let left = end.map_or(nap, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return event.result();
            }
            std::thread::sleep(nap.min(left));
            nap = (nap * 2).min(Duration::from_millis(1));
        }
    }

    /// Waits until all that is in the stream has ended.
    ///
    /// # Errors
    /// The first error since the last call of this function. The stream is usable afterwards.
    fn synchronize(&self) -> Result<()>;

    /// Whether all that is in the stream has ended; never blocks, may run a little of it.
    ///
    /// # Errors
    /// As [`StreamOps::synchronize`].
    fn query(&self) -> Result<bool>;
}

//! Device communicators: what users' own kernels communicate by.
//!
//! ```text
//! Communicator::device_comm    words for barriers and signals on each rank, and connections for primitives (channels.rs), which the
//!                              others of its node map (window.rs), and what sends to other nodes (puts.rs)   ─► DeviceCommunicator
//! DeviceCommunicator::value    abi::DeviceComm, which goes into the kernel's argument
//! DeviceCommunicator::launch   the kernel runs as a call does: behind the last call, and its failure is the communicator's
//! ```

mod channels;

use std::sync::Arc;

use bytemuck::Pod;
use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::kernels::UserKernel;
use tracing::debug;

pub use self::channels::{ChannelPeers, DeviceChannels};
use super::Communicator;
use super::device_memory::MemoryFor;
use super::puts::NetPuts;
use super::shared::SharedComm;
use super::split::at_once;
use super::window::{RegisteredFor, Window, WindowState, register};
use crate::buffer::Stream;
use crate::channel::ConnSet;
use crate::error::{Error, Result};
use crate::log;
use crate::runtime::{self, Argument, Launch, Memory};

/// The most barriers, and the most signals.
const MOST: u32 = 1 << 16;

/// What a [`DeviceCommunicator`] has (NCCL's `ncclDevCommRequirements`). The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCommConfig {
    /// Barriers: as many as blocks meet at the same time.
    pub barriers: u32,
    /// Signals: as many as are told apart.
    pub signals: u32,
    /// Requests that a rank's blocks may have under way to ranks on other nodes, 1 at least; the next power of two is taken. A block that
    /// asks for more waits.
    pub requests: u32,
    /// Channels with connections for primitives.
    pub channels: DeviceChannels,
}

/// One barrier, one signal, 64 requests, and no channels.
impl Default for DeviceCommConfig {
    fn default() -> Self {
        let channels = DeviceChannels::default();
        DeviceCommConfig { barriers: 1, signals: 1, requests: 64, channels }
    }
}

/// How many blocks a kernel has, and threads a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks. Those that wait for each other, or for blocks of other ranks on the device, all have to fit it at the same time.
    pub blocks: u32,
    /// Threads of a block on a GPU: whole warps. On the CPU a block has one lane, and in the emulator as many as it was told.
    pub threads: u32,
}

/// A communicator for kernels of the caller's own, which communicate by themselves with what
/// [`ferroccl::device::device_comm`](crate::device::device_comm) has: barriers, signals, and the memory of the other ranks' [`Window`]s.
///
/// It keeps the communicator. All ranks drop it between the same two calls, when no kernel uses it any more.
/// Over a network dropping it sends what its kernels have asked for last, and tells the other ranks, for a second at most.
///
/// ```
/// use ferroccl::device::abi::{DeviceComm, DeviceWindow};
/// use ferroccl::device::reduce::Sum;
/// use ferroccl::{Communicator, Device, DeviceCommConfig, Grid};
///
/// ferroccl::device::kernel_argument! {
///     /// What the kernel takes.
///     struct SumOfAll { comm: DeviceComm, window: DeviceWindow, sums: u64, count: u64 }
/// }
///
/// /// Each rank sums all ranks' buffers for itself.
/// #[inline(always)]
/// unsafe fn sum_of_all(my: SumOfAll) {
///     // SAFETY: the value is of this rank, which keeps communicator and window until the kernel has ended; all buffers have as many
///     // elements, and nobody writes to them between the barriers.
///     unsafe {
///         let mut comm = my.comm.open();
///         if comm.barrier(0) {
///             comm.reduce::<f32, Sum>(my.window, 0, my.sums as *mut f32, my.count as usize);
///         }
///         comm.barrier(0);
///     }
/// }
///
/// ferroccl::device::user_kernels! {
///     SUM_OF_ALL = "sum_of_all": 512, sum_of_all, SumOfAll;
/// }
///
/// let device = Device::cpu();
/// let ranks = Communicator::init_all(&device, 2)?;
/// let buffers = [device.upload(&[1.0f32; 100])?, device.upload(&[2.0f32; 100])?];
/// let windows = Communicator::register_windows(ranks.iter().zip(&buffers))?;
/// let comms = Communicator::device_comms(&ranks, &DeviceCommConfig::default())?;
/// let streams = [device.stream()?, device.stream()?];
/// let sums = [device.alloc::<f32>(100)?, device.alloc(100)?];
/// for r in 0..2 {
///     let (comm, window) = (comms[r].value(), windows[r].value()?);
///     let argument = SumOfAll { comm, window, sums: sums[r].address(), count: 100 };
///     // SAFETY: the buffers have 100 elements, and are kept until the streams are waited for.
///     unsafe { comms[r].launch(&SUM_OF_ALL, Grid { blocks: 1, threads: 128 }, &argument, &streams[r])? };
/// }
/// assert_eq!(sums[1].to_vec(&streams[1])?, [3.0; 100]);
/// streams[0].synchronize()?;
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceCommunicator {
    comm: SharedComm,
    kept: Arc<KeptByKernels>,
    value: DeviceComm,
}

/// What kernels use.
#[derive(Debug)]
struct KeptByKernels {
    _words: Arc<WindowState>,
    _teams: Arc<dyn Memory>,
    /// Where there are ranks on other nodes.
    puts: Option<Arc<NetPuts>>,
}

impl Communicator {
    /// Makes a communicator for kernels of the caller's own (`ncclDevCommCreate`). Collective: all ranks must take part, each from a
    /// thread of its own, with the same `config`. [`Communicator::device_comms`] is for several ranks of one thread.
    ///
    /// Ranks that do not reach each other's memory talk over the communicator's network: the proxy sends what a kernel asks for
    /// ([`ferroccl::device::device_comm`](crate::device::device_comm)). Of memory that is not the host's it sends copies.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where ranks reach each other neither by memory nor by a network, or channels are to connect ranks that do
    /// not reach each other's memory, with the reason; [`Error::InvalidArgument`] when `config` has no requests, more than 65536 barriers,
    /// signals or requests, channels that there cannot be, or the ranks' differ; else as [`Communicator::register_window`].
    pub fn device_comm(&self, config: &DeviceCommConfig) -> Result<DeviceCommunicator> {
        let DeviceCommConfig { barriers, signals, requests, channels } = *config;
        for (name, number) in [
            ("config.barriers", barriers),
            ("config.signals", signals),
            ("config.requests", requests),
        ] {
            if number > MOST {
                return Err(Error::argument(name, format!("{number} are more than {MOST}")));
            }
        }
        if requests == 0 {
            return Err(Error::argument("config.requests", "there is one at least"));
        }
        channels.check()?;
        let requests = requests.next_power_of_two();
        let comm = &self.0;
        channels::possible(comm, &channels)?;
        // Who waits for a rank looks for a fault at the edge with it.
        comm.need_all_rows(ConnSet::Collective)?;
        let runtime = comm.device.runtime();
        let reached = &comm.windows.teams;
        let (node, rail) = (reached.node(), reached.rail());
        let mut value = DeviceComm {
            comm: comm.control.comm_address(0),
            rank: comm.rank,
            ranks: comm.nranks,
            barriers,
            signals,
            node_rank: reached.node_rank(),
            node_ranks: node.len() as u32,
            rail_rank: reached.rail_rank(),
            rail_ranks: rail.len() as u32,
            requests: if reached.is_one() { 0 } else { requests },
            channels: channels.count,
            ..DeviceComm::default()
        };
        // As large on all ranks: a node may be larger than another.
        let bytes = value.conns_offset() + channels.bytes(comm.windows.teams.largest() as u32)?;
        let memory = runtime.allocate_shared(bytes)?;
        let memory = comm.memory.counted(MemoryFor::Registrations, memory);
        let range = (memory.address(), bytes as u64);
        let purpose = RegisteredFor::Kernels { barriers, signals, requests, channels };
        let words = register(comm, &memory, range, purpose)?;
        let window = words.value().map_err(|reason| Error::Unavailable {
            what: "a device communicator".to_owned(),
            reason: reason.to_owned(),
        })?;
        (value.words, value.peers) = (window.address, window.peers);
        channels::write(comm, &value, &channels, (&memory, &words))?;
        let table = [node, &rail].concat();
        let teams = runtime::place(&**runtime, bytemuck::cast_slice(&table))?;
        let teams = comm.memory.counted(MemoryFor::Registrations, teams);
        value.teams = teams.address();
        let puts = match reached.is_one() {
            true => None,
            false => Some(NetPuts::new(comm, &mut value)?),
        };
        let kept = Arc::new(KeptByKernels { _words: words, _teams: teams, puts });
        Ok(DeviceCommunicator { comm: comm.clone(), kept, value })
    }

    /// [`Communicator::device_comm`] of several ranks of this process at once. The result has their order.
    ///
    /// # Errors
    /// As there: the first error.
    pub fn device_comms<'a>(
        ranks: impl IntoIterator<Item = &'a Communicator>,
        config: &DeviceCommConfig,
    ) -> Result<Vec<DeviceCommunicator>> {
        at_once(ranks, |rank| rank.device_comm(config))
    }
}

impl DeviceCommunicator {
    /// What a kernel gets, by value in its argument: of this rank, for its device.
    #[must_use]
    pub fn value(&self) -> DeviceComm {
        self.value
    }

    /// Has the device load a kernel now: loading one may wait for kernels that run, and these for what is launched next. A program that
    /// launches on several ranks prepares on all of them first.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::launch`].
    pub fn prepare<A: Copy>(&self, kernel: &UserKernel<A>, grid: Grid) -> Result<()> {
        self.comm.device.runtime().prepare(&kernel.kernel(), grid.threads)
    }

    /// Launches a kernel in a stream, behind the communicator's last call; a call that follows is behind it. Within a
    /// [`group`](crate::group), too, it is launched at once.
    ///
    /// When a wait of the kernel fails, so does the communicator: the stream gets the error, and the other ranks learn of it.
    ///
    /// A kernel that is launched by other means, with cust or cudarc, is not ordered against calls. [`DeviceCommunicator::check`] finds its
    /// failure.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the grid has no blocks or no threads, or more than the device can hold at a time, and when the
    /// stream is of another device; [`Error::Unavailable`] when there is no PTX of the kernel for the device; [`Error::Aborted`] when the
    /// communicator has failed or was aborted.
    ///
    /// # Safety
    /// What the argument leads to is there until the kernel has ended: its device communicators and windows, and the buffers that it
    /// has addresses of, with as many elements as it uses. With the kernels that other ranks launch, it ends.
    pub unsafe fn launch<A: Pod>(
        &self,
        kernel: &UserKernel<A>,
        grid: Grid,
        argument: &A,
        stream: &Stream,
    ) -> Result<()> {
        let comm = &self.comm;
        let kernel = kernel.kernel();
        let Grid { blocks, threads } = grid;
        if stream.ops().address_space() != comm.device.runtime().address_space() {
            let reason = "it is of another device than the communicator";
            return Err(Error::argument("stream", reason));
        }
        let most = comm.device.runtime().resident_blocks(comm.ranks_on_device);
        if blocks == 0 || blocks > most {
            let reason =
                format!("{blocks} is none of 1 to {most}, which the device holds at a time");
            return Err(Error::argument("grid.blocks", reason));
        }
        if threads == 0 || threads > kernel.threads {
            let reason = format!(
                "{threads} is none of 1 to {}, which {} takes",
                kernel.threads, kernel.name
            );
            return Err(Error::argument("grid.threads", reason));
        }
        if let Some(puts) = &self.kept.puts {
            puts.start(comm)?;
        }
        let mut order = comm.lock_order()?;
        order.continue_on(stream);
        debug!(target: log::COLL, rank = comm.rank, kernel = kernel.name, blocks, threads, "launch");
        let (ended, kept) = (comm.clone(), Arc::clone(&self.kept));
        let launch = Launch {
            kernel,
            blocks,
            threads,
            sharing: comm.ranks_on_device,
            argument: Argument::new(argument, self.value.comm),
            keep: Vec::new(),
            // Nobody knows; many are worth another core.
            bytes: u64::MAX,
            observer: None,
            done: Box::new(move |failure| {
                let result = ended.on_launch_done(failure);
                ended.release(kept, &result);
                result
            }),
        };
        let ops = stream.ops();
        if ops.capture_id().is_some() {
            let replayed = comm.clone();
            ops.check_replays(Arc::new(move |failure| replayed.on_launch_done(failure)));
        }
        // SAFETY: the kernel takes an `A`, as its type says; the rest is the caller's.
        comm.must(unsafe { ops.launch(launch) })
    }

    /// Looks whether a kernel that was launched by other means has failed, and if so lets the other ranks know.
    ///
    /// # Errors
    /// The communicator's failure.
    pub fn check(&self) -> Result<()> {
        self.comm.on_launch_done(None)
    }
}

impl Drop for DeviceCommunicator {
    fn drop(&mut self) {
        if let Some(puts) = &self.kept.puts {
            puts.close(&self.comm);
        }
    }
}

impl Window {
    /// What a kernel of the caller's own gets, by value in its argument: this rank's buffer, and where the others' are.
    ///
    /// Of ranks whose memory is not reached it has no address: kernels put to their buffers over the network.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the reason where the buffers of ranks whose memory should be reached are not.
    pub fn value(&self) -> Result<DeviceWindow> {
        self.state().value().map_err(|reason| Error::Unavailable {
            what: "the other ranks' buffers of a window".to_owned(),
            reason: reason.to_owned(),
        })
    }
}

//! Communicators: a rank's membership in a group of ranks.
//!
//! A call goes one way down, from file to file:
//!
//! ```text
//! Communicator::all_reduce, send, ...
//!   │
//! calls        checks the arguments, by name                                            ─► CollTask, P2pTask
//! group        at once, or at the end of the group; which stream, behind which call     ─► CallOrder
//!   ├─ collective   chooses algorithm, protocol, channels; plans kernels (enqueue, graph::tuning) ─► KernelPlan
//!   │    └─ collnet   the same with a network that reduces between two kernels
//!   └─ p2p          cuts messages into transfers of one kernel                           ─► P2pBatch
//! launch       the kernel's argument (control, trees) and what it has for the proxies (net)
//!   ├─ StreamOps::launch   the kernel runs (runtime)
//!   └─ net                 the proxies' steps are sent and received (ferroccl_proxy)
//! faults       a kernel has ended: the stream gets its failure, and so do the peers
//! ```
//!
//! How a communicator is made:
//!
//! ```text
//! setup         ranks exchange what they are, and agree (builder, init_params)
//! recv_region   memory for the edges with all peers (transport, channel; gdr for slots in a GPU's memory)
//! split         a communicator of some of the ranks; ranks meet out of band (out_of_band)
//! shrink        a communicator of the ranks that are left, also after a failure
//! meeting       where the ranks of both of these come together
//! grow          a communicator of these ranks and new ones
//! revoke        ends the calls of all ranks, which then shrink or split
//! suspend       gives the memory back until the ranks meet again
//! in_progress   the same in the background; abort ends it
//! ```
//!
//! What is known of calls that do not end:
//!
//! ```text
//! recorder      the last calls of a rank, and how far it is
//! device_memory  how much of it a communicator has
//! stall         ranks that have not entered a call: asks the others, warns, and names them when time is up
//! ```
//!
//! [`CommState`](state::CommState) is what a rank has. It numbers its calls, and they run in the order in which they were
//! made, whatever their streams.

mod abort;
pub(crate) mod affinity;
mod assemble;
mod builder;
mod calling_threads;
mod calls;
mod collective;
mod collnet;
mod collnet_heads;
mod config;
mod control;
mod custom;
mod device_comm;
mod device_memory;
mod events;
mod exchange;
mod faults;
mod fusion;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod gdr;
mod gpu_graphs;
mod graphs;
mod group;
mod grow;
mod in_progress;
mod init_params;
mod last_choices;
mod launch;
mod log_topology;
mod meeting;
mod mesh;
mod net;
mod nodes;
mod out_of_band;
mod p2p;
mod peer_rows;
mod place;
mod preload;
mod puts;
mod reach;
mod recorder;
mod recv_region;
mod revoke;
mod setup;
mod shared;
mod shrink;
mod snapshot;
mod split;
mod stall;
mod state;
mod suspend;
mod trees;
mod window;

use crate::buffer::Device;
use crate::enqueue::{AlgoChoice, CollectiveCall, Registration};
use crate::error::Result;
use ferroccl_device::abi::ReduceOp;

pub use abort::AbortHandle;
pub use config::CommConfig;
pub use custom::{Extra, KernelSpec};
pub use device_comm::{ChannelPeers, DeviceChannels, DeviceCommConfig, DeviceCommunicator, Grid};
pub use device_memory::MemoryUse;
#[cfg(feature = "cuda-core")]
pub(crate) use group::in_group;
pub use group::{group, group_time};
pub use in_progress::InProgress;
#[cfg(feature = "emulator")]
pub(crate) use place::name_addresses;
pub(crate) use recorder::unix_now;
pub use shrink::ShrinkMode;
pub(crate) use snapshot::records;
pub use state::Communicator;
pub use suspend::{RefusedSuspension, SuspendedCommunicator};
pub use window::Window;

impl Communicator {
    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.0.nranks
    }

    /// The device of its buffers and streams.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The channels that a large call uses.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.0.plan_context.channels
    }

    /// How a call is done: the algorithm, protocol, channels and threads that this communicator chooses for it, as all its
    /// ranks do. It is what runs when the call is made; nothing is started.
    ///
    /// `call.count` is the count of NCCL's call: of an all-gather the elements of `send`, of a reduce-scatter those of
    /// `recv`. A message is a [`Collective::SendRecv`](crate::Collective::SendRecv) of as many [`U8`](crate::DataType::U8) as
    /// it has bytes; it has no algorithm, and is called a ring.
    ///
    /// # Errors
    /// Those of the call: no kernel does it, or none that the settings allow.
    ///
    /// ```
    /// use ferroccl::enqueue::CollectiveCall;
    /// use ferroccl::{Algorithm, Collective, CommConfig, Communicator, DataType, Device, ReduceOp};
    ///
    /// let mut config = CommConfig::default();
    /// config.algorithm = Some(Algorithm::Tree);
    /// let ranks = Communicator::init_all_on(&vec![Device::cpu(); 4], &config)?;
    /// let (data_type, op) = (DataType::F32, ReduceOp::Sum);
    /// let call = |collective| CollectiveCall { collective, count: 1000, data_type, op, root: None };
    /// assert_eq!(ranks[0].plan(&call(Collective::AllReduce))?.algorithm, Algorithm::Tree);
    /// // There is no tree of all-gathers: the setting is for the calls that have one.
    /// assert_ne!(ranks[0].plan(&call(Collective::AllGather))?.algorithm, Algorithm::Tree);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn plan(&self, call: &CollectiveCall) -> Result<AlgoChoice> {
        Ok(self.0.choose(call, Registration::None)?.choice)
    }

    /// [`Communicator::plan`] for a call whose buffers are in [`Window`]s.
    ///
    /// # Errors
    /// As there.
    pub fn plan_in_windows(&self, call: &CollectiveCall) -> Result<AlgoChoice> {
        let premultiplied = call.op == ReduceOp::PreMulSum;
        let buffers = if premultiplied { Registration::None } else { self.0.windows.expected() };
        Ok(self.0.choose(call, buffers)?.choice)
    }

    /// Stops the kernels of this communicator on all its ranks. Calls that have not ended fail, and no more can be made
    /// (NCCL's `ncclCommAbort`).
    pub fn abort(&self) {
        self.0.abort();
    }

    /// A handle that aborts it from any thread: the one of its [`CommConfig`], if that has one.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.0.abort.clone()
    }

    /// Waits until all calls of this rank have ended, and their data for other hosts has been sent (`ncclCommFinalize`). No
    /// more calls can be made. It is not a collective, but the calls end only when the other ranks have made the same
    /// ones. A second call gives the same result.
    ///
    /// Dropping a communicator does not wait for its calls.
    ///
    /// # Errors
    /// The failure of the communicator, if it has failed.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// let device = Device::cpu();
    /// let rank = Communicator::init_all(&device, 1)?.remove(0);
    /// let (stream, buffer) = (device.stream()?, device.upload(&[3.0f32; 100])?);
    /// rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
    /// rank.finalize()?;
    /// assert!(stream.query()?);
    /// assert!(rank.barrier(&stream).is_err());
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn finalize(&self) -> Result<()> {
        self.0.finalize()
    }

    /// The failure of this communicator, if it has failed (NCCL's `ncclCommGetAsyncError`).
    ///
    /// All ranks learn of the failure of one. A call in which a rank still waits fails; one that has all of its data ends well, even if
    /// it ends on another rank with an error. Each later call is refused.
    ///
    /// # Errors
    /// The first failure.
    pub fn async_error(&self) -> Result<()> {
        self.0.failure().map_or(Ok(()), Err)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.0.maker.is_here() {
            // The group is the parent's, and so are the threads that dropping would wait for.
            let _ = std::mem::ManuallyDrop::new(self.0.clone());
            return;
        }
        if std::thread::panicking() {
            // Nobody will make the calls that its kernels, and its peers', wait for.
            self.0.abort();
        }
        if let Some(net) = &self.0.net {
            net.drain(&self.0, Some(net::DROP_LIMIT));
            net.leave(&self.0);
        }
    }
}

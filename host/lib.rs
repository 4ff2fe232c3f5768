//! Collective communication for GPUs in Rust, down to the kernels.
//!
//! What NCCL does, in source that one person can read. Without a GPU the CPU is the device: the same
//! device source runs there, so that nobody needs a GPU to start.
//!
//! ```
//! use ferroccl::{Communicator, Device, ReduceOp};
//!
//! let device = Device::cpu();
//! let ranks = Communicator::init_all(&device, 4)?;
//! let streams = ranks.iter().map(|_| device.stream()).collect::<Result<Vec<_>, _>>()?;
//! let buffers = (0..4).map(|r| device.upload(&[r as f32; 1000])).collect::<Result<Vec<_>, _>>()?;
//! for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
//!     rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream)?; // in place; returns at once
//! }
//! assert_eq!(buffers[3].to_vec(&streams[3])?, [6.0; 1000]);
//! # Ok::<(), ferroccl::Error>(())
//! ```

mod buffer;
mod channel;
mod comm;
pub mod config;
pub mod conformance;
mod devices;
mod encoding;
pub mod enqueue;
mod error;
mod finished;
pub mod flight_recorder;
mod fork;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod launcher;
mod local_socket;
pub mod log;
mod operator;
mod profiler;
pub mod ptx;
mod registry;
pub mod runtime;
mod shared_memory;
mod transport;
mod tuner_plugin;

pub use buffer::{Device, DeviceBuffer, Element, Stream};
pub use comm::{
    AbortHandle, ChannelPeers, CommConfig, Communicator, DeviceChannels, DeviceCommConfig,
    DeviceCommunicator, Extra, Grid, InProgress, KernelSpec, MemoryUse, RefusedSuspension,
    ShrinkMode, SuspendedCommunicator, Window, group, group_time,
};
pub use error::{Error, KernelFault, Result};
pub use ferroccl_bootstrap::{self as bootstrap, UniqueId};
pub use ferroccl_device as device;
pub use ferroccl_device::abi::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};
pub use ferroccl_device::element::{F8E4M3, F8E5M2};
pub use ferroccl_proxy::{NetError, collnet};
pub use ferroccl_topology::{self as topology, graph};
pub use finished::Finished;
pub use operator::Operator;
pub use registry::Registry;

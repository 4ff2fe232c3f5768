//! Multicast objects: one address for the same place in the memory of several devices.
//!
//! A switch between GPUs sends what is stored there to all of them, and combines what it loads from all of them (NVLink SHARP, NCCL's
//! NVLS). An object is made by one rank and shared with the others:
//!
//! ```text
//! the first rank    create_multicast ─► export ─► its bytes to all others
//! the others                                      open_multicast
//! every rank        join, and wait until all have; then bind: its memory, and where it sees those of the others
//! ```
//!
//! Source: "Multicast Object Management" of the CUDA driver API (`cuMulticastCreate` and its relatives).

use std::fmt::Debug;
use std::sync::Arc;

use super::Memory;
use crate::error::Result;

/// A multicast object, as one rank has it.
pub trait Multicast: Debug + Send + Sync {
    /// What other ranks of the host need to [open](super::Runtime::open_multicast) it. It is valid as long as this is not dropped.
    ///
    /// # Errors
    /// When the driver refuses.
    fn export(&self) -> Result<Vec<u8>>;

    /// Makes the device by whose runtime this was made or opened one of its members.
    ///
    /// # Errors
    /// When the driver refuses.
    fn join(&self) -> Result<()>;

    /// Makes `memory` the device's part of it, and maps the object for the device's kernels: as far as the memory goes,
    /// byte `i` of what is returned is byte `i` of every rank's memory. All ranks have [joined](Multicast::join). `members` has the
    /// addresses of the memory of all of them, by rank, as this device's kernels reach it.
    ///
    /// # Errors
    /// When the driver refuses; [`InvalidArgument`](crate::Error::InvalidArgument) for memory that is not of
    /// [`allocate_window`](super::Runtime::allocate_window).
    fn bind(&self, memory: &Arc<dyn Memory>, members: &[u64]) -> Result<Arc<dyn Memory>>;
}

/// The multicast object of ranks whose kernels run on the host: the part of a switch is played by whoever loads and stores.
#[derive(Debug)]
pub(super) struct HostMulticast;

impl Multicast for HostMulticast {
    fn export(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn join(&self) -> Result<()> {
        Ok(())
    }

    /// Kernels find the members by the table of the window.
    fn bind(&self, memory: &Arc<dyn Memory>, _: &[u64]) -> Result<Arc<dyn Memory>> {
        Ok(Arc::clone(memory))
    }
}

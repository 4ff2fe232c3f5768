//! Device memory: from where, and back.
//!
//! Nothing here may wait for kernels, which may be waiting for a call that the same thread is about to make. `cuMemAlloc` and
//! `cuMemFree` may; so
//!
//! | memory | comes from | goes back |
//! |---|---|---|
//! | [for this GPU's kernels](Use::Own) | the GPU's memory pool, by the service stream | the same way |
//! | [others reach it, too](Use::Shared); or there is no pool | `cuMemAlloc`, while a communicator is made | when no launch of ours is under way, by the watch |
//! | for windows, where the GPU has multicast objects | [physical memory](super::virtual_memory) | the same way |
//!
//! Allocations of up to 1 MiB are kept for the next one of their size. A pool's memory is neither exported to other processes
//! (`cuIpcGetMemHandle`) nor reached by other GPUs (`cuCtxEnablePeerAccess`) nor by network cards.

use std::sync::Arc;

use super::driver::{self, Address, RawStream};
use super::gpu::Gpu;
use super::watch;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;

/// Bytes up to which an allocation is kept for the next one.
const KEPT_BYTES: usize = 1 << 20;
/// The smallest size that is kept.
const LEAST_BYTES: usize = 512;

/// Who reaches an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    /// Kernels of its context.
    Own,
    /// Also other GPUs, other processes, network cards.
    Shared,
}

impl Gpu {
    /// `bytes` bytes of zeroed device memory.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize, by: Use) -> Result<Address> {
        let (address, size) = (self.take(bytes, by)?, size_class(bytes));
        // SAFETY: the memory is ours, and of that size.
        let zeroed =
            self.at_once(|stream| unsafe { self.driver.memset_d8_async(address, 0, size, stream) });
        if let Err(error) = zeroed {
            self.free(address, bytes, by);
            return Err(error);
        }
        Ok(address)
    }

    /// `bytes` bytes of device memory with anything in it. Where memory of that size was kept, the driver is not asked.
    pub(super) fn take(self: &Arc<Self>, bytes: usize, by: Use) -> Result<Address> {
        let (size, by) = (size_class(bytes), self.origin(by));
        let kept = lock(&self.free).get_mut(&(by, size)).and_then(Vec::pop);
        let mut address = match kept {
            Some(address) => Some(address),
            None => self.fresh(size, by)?,
        };
        if address.is_none() && watch::free_retired(self) {
            address = self.fresh(size, by)?;
        }
        address.ok_or_else(|| self.no_memory(bytes))
    }

    /// There is not so much memory.
    pub(super) fn no_memory(&self, bytes: usize) -> Error {
        let what = format!("allocating {bytes} bytes on {}", self.name);
        Error::system(what, std::io::Error::from_raw_os_error(libc::ENOMEM))
    }

    /// Gives back what [`allocate`](Gpu::allocate) has made; nothing uses it any more.
    pub(super) fn free(self: &Arc<Self>, address: Address, bytes: usize, by: Use) {
        let (size, by) = (size_class(bytes), self.origin(by));
        if size <= KEPT_BYTES {
            lock(&self.free).entry((by, size)).or_default().push(address);
            return;
        }
        match by {
            Use::Own => {
                let service = lock(&self.service);
                // An error is that of a context that is lost, memory and all.
                // SAFETY: `fresh` has made it on that stream, and the last handle is gone.
                let _ = self.run(|| unsafe {
                    self.driver.mem_free_async(address, *service).map_err(Error::from)
                });
            }
            Use::Shared => {
                let gpu = Arc::clone(self);
                watch::retire(self, move || gpu.free_now(address));
            }
        }
    }

    /// Gives back to the driver what was retired, or kept; their context is current.
    pub(super) fn free_now(&self, address: Address) {
        // An error is that of a context that is lost, memory and all.
        // SAFETY: `fresh` has made it, and the last handle is gone. What is of a pool may be freed so, too (cuMemFree).
        let _ = self.run(|| unsafe { self.driver.mem_free(address).map_err(Error::from) });
    }

    /// Without a pool all memory is of one kind.
    fn origin(&self, by: Use) -> Use {
        if self.pools { by } else { Use::Shared }
    }

    /// Memory of the driver's; `None` when it has no more.
    fn fresh(&self, size: usize, by: Use) -> Result<Option<Address>> {
        let mut address = 0;
        // SAFETY: both write to a place that is there.
        let allocate = |service: RawStream| unsafe {
            match by {
                Use::Own => self.driver.mem_alloc_async(&raw mut address, size, service),
                Use::Shared => self.driver.mem_alloc(&raw mut address, size),
            }
        };
        let allocated = match by {
            // The stream has come by when it is used.
            Use::Own => self.at_once(allocate),
            Use::Shared => self.run(|| {
                let mut allocate = allocate;
                allocate(std::ptr::null_mut()).map_err(|e| self.error(&e))
            }),
        };
        match allocated {
            Ok(()) => Ok(Some(address)),
            Err(Error::Cuda(e)) if e.code() == driver::OUT_OF_MEMORY => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Bytes that are allocated for so many.
fn size_class(bytes: usize) -> usize {
    if bytes <= KEPT_BYTES { bytes.next_power_of_two().max(LEAST_BYTES) } else { bytes }
}

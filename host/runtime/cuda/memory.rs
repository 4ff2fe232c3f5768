//! Memory that kernels reach: allocations, memory of other processes, the caller's, and the host's.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use super::alloc::Use;
use super::descriptor::{HANDLE_BYTES, Shared};
use super::driver::{self, Address, IpcHandle};
use super::gpu::Gpu;
use super::virtual_memory::{Allocation, Mapping, Window};
use super::watch;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;
use crate::runtime::{Keep, Memory};

/// A range of memory that the GPU reaches.
pub(super) struct CudaMemory {
    pub(super) gpu: Arc<Gpu>,
    address: Address,
    len: usize,
    origin: Origin,
}

/// Where it goes back to.
enum Origin {
    /// Allocated by us.
    Allocated(Use),
    /// Physical memory of ours, which a multicast object takes.
    Window { _window: Arc<Window> },
    /// Opened: another process has it.
    Imported,
    /// Physical memory that another process has.
    Mapped { _mapping: Mapping },
    /// The caller's, and what keeps it.
    Foreign { _keep: Keep },
    /// The whole allocation of what is the caller's.
    Allocation { _keep: Arc<dyn Memory> },
}

impl std::fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaMemory")
            .field("gpu", &self.gpu.name)
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

// SAFETY: the range is valid until `self` is dropped.
unsafe impl Memory for CudaMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }

    fn address_space(&self) -> u64 {
        self.gpu.context as u64
    }

    /// What is the caller's may be of a pool, or begin in the middle of an allocation.
    fn is_shared(&self) -> bool {
        use Origin::{Allocated, Allocation, Window};
        matches!(self.origin, Allocated(Use::Shared) | Window { .. } | Allocation { .. })
    }
}

impl CudaMemory {
    pub(super) fn allocate(gpu: &Arc<Gpu>, len: usize, by: Use) -> Result<Self> {
        let address = gpu.allocate(len, by)?;
        Ok(CudaMemory { gpu: Arc::clone(gpu), address, len, origin: Origin::Allocated(by) })
    }

    /// Memory that can be bound to a multicast object, where the GPU has such; else what others reach.
    pub(super) fn allocate_window(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let Ok(granule) = gpu.window_granule() else {
            return Self::allocate(gpu, len, Use::Shared);
        };
        let window = Window::allocate(gpu, len, granule)?;
        let (address, origin) = (window.address(), Origin::Window { _window: window });
        Ok(CudaMemory { gpu: Arc::clone(gpu), address, len, origin })
    }

    /// Memory that is written before it is read.
    pub(super) fn take(gpu: &Arc<Gpu>, len: usize) -> Result<Self> {
        let (address, by) = (gpu.take(len, Use::Own)?, Use::Own);
        Ok(CudaMemory { gpu: Arc::clone(gpu), address, len, origin: Origin::Allocated(by) })
    }

    /// # Safety
    /// The range is memory that kernels of the GPU reach, as long as `keep` lives.
    pub(super) unsafe fn foreign(gpu: &Arc<Gpu>, address: Address, len: usize, keep: Keep) -> Self {
        let origin = Origin::Foreign { _keep: keep };
        CudaMemory { gpu: Arc::clone(gpu), address, len, origin }
    }

    /// The allocation of the caller's (`cuMemAlloc`) that memory is a part of.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where it is of a pool, or no memory of the driver's: others do not reach it.
    pub(super) fn allocation_of(gpu: &Arc<Gpu>, memory: &Arc<dyn Memory>) -> Result<Self> {
        let at = memory.address();
        let (mut capable, mut start, mut bytes) = (0_u32, 0_u64, 0_usize);
        let asked = gpu.run(|| {
            let ask = |what, to: *mut c_void| {
                // SAFETY: writes a number of the attribute's size to a place that is there.
                unsafe { gpu.driver.pointer_get_attribute(to, what, at) }.map_err(|e| gpu.error(&e))
            };
            // A boolean is as large as the driver says in its manual, and the place has room for more.
            ask(driver::POINTER_IPC_CAPABLE, (&raw mut capable).cast())?;
            ask(driver::POINTER_RANGE_START, (&raw mut start).cast())?;
            ask(driver::POINTER_RANGE_SIZE, (&raw mut bytes).cast())
        });
        let end = at.checked_add(memory.len() as u64);
        let is_in = start <= at && end.is_some_and(|end| end <= start.saturating_add(bytes as u64));
        if asked.is_err() || capable == 0 || !is_in {
            let what = format!("memory of {} for others", gpu.name);
            let reason = "it is neither of Device::alloc_shared nor of cuMemAlloc".to_owned();
            return Err(Error::Unavailable { what, reason });
        }
        let origin = Origin::Allocation { _keep: Arc::clone(memory) };
        Ok(CudaMemory { gpu: Arc::clone(gpu), address: start, len: bytes, origin })
    }

    /// What another process needs to reach an allocation.
    pub(super) fn export(gpu: &Gpu, address: Address) -> Result<Vec<u8>> {
        if let Some(window) = Window::find(address) {
            return window.export();
        }
        gpu.run(|| {
            let mut handle = IpcHandle([0; 64]);
            // SAFETY: writes to a place that is there.
            unsafe { gpu.driver.ipc_get_mem_handle(&raw mut handle, address) }
                .map_err(|e| gpu.error(&e))?;
            Ok(handle.0.to_vec())
        })
    }

    /// Memory of another process.
    pub(super) fn import(gpu: &Arc<Gpu>, handle: &[u8], len: usize) -> Result<Self> {
        if handle.len() == HANDLE_BYTES {
            let mapping = Mapping::new(&Allocation::import(gpu, Shared::Memory, handle, len)?)?;
            let (address, origin) = (mapping.address, Origin::Mapped { _mapping: mapping });
            return Ok(CudaMemory { gpu: Arc::clone(gpu), address, len, origin });
        }
        let handle = handle.try_into().map_err(|_| {
            Error::malformed(format!("a CUDA IPC handle of {} bytes", handle.len()))
        })?;
        let address = gpu.run(|| {
            let mut address = 0;
            let flags = driver::IPC_LAZY_ENABLE_PEER_ACCESS;
            // SAFETY: writes to a place that is there; a handle that is none is an error of the driver.
            unsafe { gpu.driver.ipc_open_mem_handle(&raw mut address, IpcHandle(handle), flags) }
                .map_err(|e| gpu.error(&e))?;
            Ok(address)
        })?;
        Ok(CudaMemory { gpu: Arc::clone(gpu), address, len, origin: Origin::Imported })
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        match &self.origin {
            Origin::Allocated(by) => self.gpu.free(self.address, self.len, *by),
            Origin::Imported => {
                let (gpu, address) = (Arc::clone(&self.gpu), self.address);
                watch::outside(move || {
                    // SAFETY: opened by `import`, and the last handle is gone. An error is that of a lost context.
                    let _ = gpu.run(|| unsafe {
                        gpu.driver.ipc_close_mem_handle(address).map_err(Error::from)
                    });
                });
            }
            // What is in it goes back by itself.
            Origin::Window { .. }
            | Origin::Mapped { .. }
            | Origin::Foreign { .. }
            | Origin::Allocation { .. } => {}
        }
    }
}

/// Memory of the host that kernels reach at its own address, until this is dropped.
#[derive(Debug)]
pub(super) struct Registered {
    gpu: Arc<Gpu>,
    pages: (u64, u64),
}

/// What is registered in this process, in whole pages, and how often. It counts for all contexts
/// (`CU_MEMHOSTREGISTER_PORTABLE`), and nothing may be registered twice.
static REGISTERED: Mutex<Option<HashMap<(u64, u64), usize>>> = Mutex::new(None);

impl Registered {
    /// # Safety
    /// The memory stays mapped until what is returned is dropped.
    pub(super) unsafe fn new(
        gpu: &Arc<Gpu>,
        address: u64,
        bytes: usize,
        what: &str,
    ) -> Result<Self> {
        // SAFETY: no preconditions.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let start = address / page * page;
        let pages = (start, (address + bytes as u64).next_multiple_of(page));
        let mut registered = lock(&REGISTERED);
        let all = registered.get_or_insert_default();
        if let Some(count) = all.get_mut(&pages) {
            *count += 1;
        } else {
            gpu.run(|| {
                let len = (pages.1 - pages.0) as usize;
                let at = std::ptr::with_exposed_provenance_mut::<c_void>(start as usize);
                // SAFETY: the caller's.
                unsafe { gpu.driver.mem_host_register(at, len, driver::HOST_REGISTER_MAPPED) }
                    .map_err(|e| gpu.error(&e.doing(format!("registering {what}, {bytes} bytes"))))
            })?;
            all.insert(pages, 1);
        }
        Ok(Registered { gpu: Arc::clone(gpu), pages })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut registered = lock(&REGISTERED);
        let all = registered.get_or_insert_default();
        let last = all.get_mut(&self.pages).is_none_or(|count| {
            *count -= 1;
            *count == 0
        });
        if last {
            all.remove(&self.pages);
            let at = std::ptr::with_exposed_provenance_mut::<c_void>(self.pages.0 as usize);
            let gpu = &self.gpu;
            // SAFETY: registered by `new`, and nobody else needs it. An error is that of a lost context.
            let _ = gpu.run(|| unsafe { gpu.driver.mem_host_unregister(at).map_err(Error::from) });
        }
    }
}

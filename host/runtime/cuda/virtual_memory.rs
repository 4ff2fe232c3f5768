//! Physical memory and the addresses at which it is mapped: what a multicast object takes, which `cuMemAlloc` does not give.
//!
//! ```text
//! cuMemCreate ─► Allocation ─► Mapping: cuMemAddressReserve, cuMemMap, cuMemSetAccess ─► Window, a CudaMemory
//!                    │ export: a file descriptor                                            ▲
//!                    └─► another process: import ─► Allocation ─► Mapping ──────────────────┘
//! ```
//!
//! All of these may wait for kernels, as `cuMemAlloc` may: the driver's manual says of some that they are synchronous. So they are
//! called while a communicator or a window is made, and what is dropped is given back by the [watch].

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use super::CudaError;
use super::descriptor::{DescriptorHandle, Offered, Shared};
use super::driver::virtual_memory::{
    AccessDesc, AllocationHandle, AllocationProp, GRANULARITY_MINIMUM, HANDLE_FILE_DESCRIPTOR,
    MulticastProp,
};
use super::driver::{Address, OUT_OF_MEMORY, attribute};
use super::gpu::Gpu;
use super::watch;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;

/// Physical memory of a GPU, or a multicast object, by a handle of the driver's.
pub(super) struct Allocation {
    pub(super) gpu: Arc<Gpu>,
    pub(super) handle: AllocationHandle,
    pub(super) bytes: usize,
    /// By which other processes have it, once it was exported.
    offered: Mutex<Option<Offered>>,
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("gpu", &self.gpu.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Allocation {
    /// That of a handle of the driver's, which is released when this is dropped.
    pub(super) fn new(gpu: &Arc<Gpu>, handle: AllocationHandle, bytes: usize) -> Self {
        Allocation { gpu: Arc::clone(gpu), handle, bytes, offered: Mutex::default() }
    }

    /// Physical memory of the GPU; `None` when there is not so much.
    fn create(gpu: &Arc<Gpu>, bytes: usize) -> Result<Option<Self>> {
        let (mut handle, prop) = (0, AllocationProp::shareable(gpu.device));
        let created = gpu.run(|| {
            // SAFETY: writes to a place that is there.
            unsafe { gpu.driver.mem_create(&raw mut handle, bytes, &raw const prop, 0) }
                .map_err(|e| gpu.error(&e))
        });
        match created {
            Ok(()) => Ok(Some(Self::new(gpu, handle, bytes))),
            Err(Error::Cuda(e)) if e.code() == OUT_OF_MEMORY => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What another process needs to [`import`](Allocation::import) it. The handle is good as long as this is there.
    pub(super) fn export(&self, what: Shared) -> Result<Vec<u8>> {
        let mut offered = lock(&self.offered);
        let offered = match &mut *offered {
            Some(offered) => offered,
            none => none.insert(Offered::new(what, self.open_descriptor()?)?),
        };
        Ok(offered.handle(self.bytes)?.to_bytes())
    }

    fn open_descriptor(&self) -> Result<OwnedFd> {
        let gpu = &self.gpu;
        let mut file: c_int = -1;
        gpu.run(|| {
            let (to, kind) = ((&raw mut file).cast(), HANDLE_FILE_DESCRIPTOR);
            // SAFETY: for this kind it writes a file descriptor, to a place that is there.
            unsafe { gpu.driver.mem_export_to_shareable_handle(to, self.handle, kind, 0) }
                .map_err(|e| gpu.error(&e))
        })?;
        if file < 0 {
            let reason = format!("the driver's handle for other processes is file {file}");
            return Err(Error::Unavailable { what: gpu.name.clone(), reason });
        }
        // SAFETY: a descriptor that is ours, and nobody else's. Programs that are started must not inherit it: it would keep
        // the memory; an error of that is of no harm but this.
        Ok(unsafe {
            libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC);
            OwnedFd::from_raw_fd(file)
        })
    }

    /// What a process of this host has exported, of `len` bytes at least.
    ///
    /// # Errors
    /// Those of [`DescriptorHandle`]; [`Error::Cuda`] when the descriptor is none of the driver's.
    pub(super) fn import(
        gpu: &Arc<Gpu>,
        what: Shared,
        bytes: &[u8],
        len: usize,
    ) -> Result<Arc<Self>> {
        let offered = DescriptorHandle::from_bytes(what, bytes)?;
        let (bytes, descriptor) = (offered.bytes(len)?, offered.take()?);
        let mut handle = 0;
        gpu.run(|| {
            // A descriptor is handed over as the pointer itself (cuMemImportFromShareableHandle).
            let from = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
            let kind = HANDLE_FILE_DESCRIPTOR;
            // SAFETY: writes to a place that is there; a descriptor that is none of its own is an error of the driver.
            unsafe { gpu.driver.mem_import_from_shareable_handle(&raw mut handle, from, kind) }
                .map_err(|e| gpu.error(&e))
        })?;
        Ok(Arc::new(Self::new(gpu, handle, bytes)))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let (gpu, handle) = (Arc::clone(&self.gpu), self.handle);
        let offered = lock(&self.offered).take();
        watch::retire(&self.gpu, move || {
            // SAFETY: the handle is ours, and the last that uses it is gone. An error is that of a lost context.
            let _ = gpu.run(|| unsafe { gpu.driver.mem_release(handle).map_err(Error::from) });
            drop(offered);
        });
    }
}

/// Addresses at which an allocation is mapped, for the kernels of its GPU.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) address: Address,
    /// There until it is unmapped.
    allocation: Option<Arc<Allocation>>,
    bytes: usize,
}

impl Mapping {
    /// # Errors
    /// [`Error::Cuda`].
    pub(super) fn new(allocation: &Arc<Allocation>) -> Result<Self> {
        let Allocation { gpu, handle, bytes, .. } = &**allocation;
        let (mut address, driver) = (0, gpu.driver);
        gpu.run(|| {
            let failed = |e: CudaError| gpu.error(&e);
            // SAFETY: writes to a place that is there; then the addresses are ours, and the handle is alive.
            unsafe {
                driver.mem_address_reserve(&raw mut address, *bytes, 0, 0, 0).map_err(failed)?;
                driver.mem_map(address, *bytes, 0, *handle, 0).map_err(|e| {
                    let _ = driver.mem_address_free(address, *bytes);
                    failed(e)
                })
            }
        })?;
        let allocation = Some(Arc::clone(allocation));
        let mapping = Mapping { address, allocation, bytes: *bytes };
        mapping.allow(gpu)?;
        Ok(mapping)
    }

    /// Lets kernels of a GPU reach the addresses.
    ///
    /// # Errors
    /// [`Error::Cuda`] when it cannot.
    fn allow(&self, gpu: &Gpu) -> Result<()> {
        let desc = AccessDesc::of(gpu.device);
        gpu.run(|| {
            // SAFETY: the addresses are mapped, as far as that; one description is there.
            unsafe { gpu.driver.mem_set_access(self.address, self.bytes, &raw const desc, 1) }
                .map_err(|e| gpu.error(&e))
        })
    }

    /// Gives the addresses back now, which may wait for kernels.
    pub(super) fn unmap(mut self) {
        if let Some(allocation) = self.allocation.take() {
            give_back(self.address, &allocation);
        }
    }
}

/// Gives back addresses at which an allocation is mapped.
fn give_back(address: Address, allocation: &Allocation) {
    let (gpu, bytes) = (&allocation.gpu, allocation.bytes);
    // SAFETY: `Mapping::new` has made both, and the last handle is gone. An error is that of a lost context.
    let _ = gpu.run(|| unsafe {
        gpu.driver.mem_unmap(address, bytes)?;
        gpu.driver.mem_address_free(address, bytes).map_err(Error::from)
    });
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Some(allocation) = self.allocation.take() else { return };
        let (gpu, address) = (Arc::clone(&allocation.gpu), self.address);
        watch::retire(&gpu, move || give_back(address, &allocation));
    }
}

/// Memory that can be bound to a multicast object, as its owner has it.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) allocation: Arc<Allocation>,
    mapping: Mapping,
}

/// The windows of this process, by address. [`Runtime`](crate::runtime::Runtime) is given memory of which it knows no more: it may
/// be in the hands of others, who keep it with something of their own.
static WINDOWS: Mutex<Option<HashMap<Address, Weak<Window>>>> = Mutex::new(None);

impl Window {
    /// `len` bytes of zeros, or more, on a GPU that [can](Gpu::window_granule).
    ///
    /// # Errors
    /// [`Error::System`] when there is not enough memory, [`Error::Cuda`].
    pub(super) fn allocate(gpu: &Arc<Gpu>, len: usize, granule: usize) -> Result<Arc<Self>> {
        let bytes = len.max(1).checked_next_multiple_of(granule);
        let create = || bytes.map_or(Ok(None), |bytes| Allocation::create(gpu, bytes));
        let mut allocation = create()?;
        if allocation.is_none() && watch::free_retired(gpu) {
            allocation = create()?;
        }
        let allocation = Arc::new(allocation.ok_or_else(|| gpu.no_memory(len))?);
        let mapping = Mapping::new(&allocation)?;
        let (at, bytes) = (mapping.address, allocation.bytes);
        // SAFETY: the memory is ours, and of that size.
        gpu.at_once(|stream| unsafe { gpu.driver.memset_d8_async(at, 0, bytes, stream) })?;
        let window = Arc::new(Window { allocation, mapping });
        lock(&WINDOWS).get_or_insert_default().insert(at, Arc::downgrade(&window));
        Ok(window)
    }

    /// That which begins at this address.
    pub(super) fn find(address: Address) -> Option<Arc<Self>> {
        lock(&WINDOWS).as_ref()?.get(&address)?.upgrade()
    }

    pub(super) fn address(&self) -> Address {
        self.mapping.address
    }

    /// What another process needs to import it.
    pub(super) fn export(&self) -> Result<Vec<u8>> {
        self.allocation.export(Shared::Memory)
    }

    /// Lets kernels of another GPU of this process reach it. `cuCtxEnablePeerAccess` does nothing for such memory.
    ///
    /// # Errors
    /// [`Error::Cuda`] when the GPU cannot.
    pub(super) fn reach(&self, from: &Gpu) -> Result<()> {
        if self.is_of(from) { Ok(()) } else { self.mapping.allow(from) }
    }

    /// Whether it is memory of a GPU.
    pub(super) fn is_of(&self, gpu: &Gpu) -> bool {
        self.allocation.gpu.device == gpu.device
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Before the addresses are given back: nobody else can have them yet.
        if let Some(windows) = lock(&WINDOWS).as_mut() {
            windows.remove(&self.mapping.address);
        }
    }
}

impl Gpu {
    /// What the sizes of memory are multiples of that can be bound to a multicast object.
    ///
    /// # Errors
    /// Why there are no multicast objects on this GPU.
    pub(super) fn window_granule(&self) -> std::result::Result<usize, &str> {
        let granule = self.window_granule.get_or_init(|| self.ask_window_granule());
        granule.as_ref().map(|granule| *granule).map_err(String::as_str)
    }

    fn ask_window_granule(&self) -> std::result::Result<usize, String> {
        for (which, what) in [
            (attribute::MULTICAST_SUPPORTED, "it has no multicast objects"),
            (
                attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                "its memory cannot be mapped where a program says (virtual memory management)",
            ),
            (
                attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                "its memory cannot be handed over as a file descriptor",
            ),
        ] {
            if self.attribute(which) == 0 {
                return Err(what.to_owned());
            }
        }
        let memory = self.allocation_granularity().map_err(|e| e.to_string())?;
        // Of two devices and one granule of memory: the least that an object can be.
        let object = self.multicast_granularity(2, memory)?;
        larger(memory, object)
    }

    fn allocation_granularity(&self) -> Result<usize> {
        let (mut granularity, prop) = (0, AllocationProp::shareable(self.device));
        self.run(|| {
            let (to, option) = (&raw mut granularity, GRANULARITY_MINIMUM);
            // SAFETY: writes to a place that is there.
            unsafe { self.driver.mem_get_allocation_granularity(to, &raw const prop, option) }
                .map_err(|e| self.error(&e))
        })?;
        Ok(granularity)
    }

    /// What the bytes of a multicast object, and of what is bound to it, are multiples of.
    pub(super) fn multicast_granularity(
        &self,
        devices: u32,
        bytes: usize,
    ) -> std::result::Result<usize, String> {
        let calls = self.driver.multicast().map_err(|symbol| {
            format!("the driver has no {symbol}: one of CUDA 12.1 or later has")
        })?;
        let (mut granularity, prop) = (0, MulticastProp::shareable(devices, bytes));
        let asked = self.run(|| {
            let (to, option) = (&raw mut granularity, GRANULARITY_MINIMUM);
            // SAFETY: writes to a place that is there.
            unsafe { calls.get_granularity(to, &raw const prop, option) }
                .map_err(|e| self.error(&e))
        });
        asked.map_err(|e| e.to_string())?;
        Ok(granularity)
    }
}

/// The larger of two granularities, which is a multiple of the other.
pub(super) fn larger(one: usize, other: usize) -> std::result::Result<usize, String> {
    let (less, more) = (one.min(other), one.max(other));
    if less == 0 || !more.is_multiple_of(less) {
        return Err(format!("the driver's granularities are {one} and {other} bytes"));
    }
    Ok(more)
}

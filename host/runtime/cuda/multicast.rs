//! Multicast objects of NVIDIA's driver: kernels reach the same place in the memory of several GPUs by one address, through the
//! switch between them (NVLink SHARP).
//!
//! Source: "Multicast Object Management" of the CUDA Driver API.

use std::fmt;
use std::sync::Arc;

use super::descriptor::Shared;
use super::driver::virtual_memory::{MulticastCalls, MulticastProp};
use super::gpu::Gpu;
use super::virtual_memory::{Allocation, Mapping, Window, larger};
use super::watch;
use crate::error::{Error, Result};
use crate::runtime::{Memory, Multicast};

/// A multicast object, as one rank has it.
#[derive(Clone)]
pub(super) struct CudaMulticast {
    gpu: Arc<Gpu>,
    calls: MulticastCalls,
    object: Arc<Allocation>,
}

impl fmt::Debug for CudaMulticast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMulticast")
            .field("gpu", &self.gpu.name)
            .field("bytes", &self.object.bytes)
            .finish_non_exhaustive()
    }
}

/// Whether memory can be bound to a multicast object on this GPU.
///
/// # Errors
/// [`Error::Unavailable`] with the reason when it cannot.
pub(super) fn can_bind(gpu: &Gpu, memory: &dyn Memory) -> Result<()> {
    let reason = match (Window::find(memory.address()), gpu.window_granule()) {
        (Some(window), _) if window.is_of(gpu) => return Ok(()),
        (Some(_), _) => "the memory is another GPU's",
        (None, Ok(_)) => "the memory is not of Runtime::allocate_window",
        (None, Err(why)) => why,
    };
    Err(unavailable(gpu, reason))
}

fn unavailable(gpu: &Gpu, reason: &str) -> Error {
    Error::Unavailable { what: format!("multicast on {}", gpu.name), reason: reason.to_owned() }
}

impl CudaMulticast {
    /// A new object for `bytes` bytes of each of `members` GPUs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such thing; [`Error::Cuda`].
    pub(super) fn create(gpu: &Arc<Gpu>, members: u32, bytes: usize) -> Result<Self> {
        let (calls, granule) = Self::calls(gpu)?;
        let rounded = |granule| bytes.max(1).checked_next_multiple_of(granule);
        let large = || Error::argument("bytes", format!("{bytes} bytes are no size of memory"));
        let asked = gpu.multicast_granularity(members, rounded(granule).ok_or_else(large)?);
        let granule = asked.and_then(|asked| larger(asked, granule));
        let granule = granule.map_err(|why| unavailable(gpu, &why))?;
        let bytes = rounded(granule).ok_or_else(large)?;
        let (mut handle, prop) = (0, MulticastProp::shareable(members, bytes));
        gpu.run(|| {
            // SAFETY: writes to a place that is there.
            unsafe { calls.create(&raw mut handle, &raw const prop) }.map_err(|e| {
                let what = format!("a multicast object of {members} GPUs and {bytes} bytes");
                gpu.error(&e.doing(what))
            })
        })?;
        let object = Arc::new(Allocation::new(gpu, handle, bytes));
        Ok(CudaMulticast { gpu: Arc::clone(gpu), calls, object })
    }

    /// An object that this process or another one has made, of `bytes` bytes at least.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such thing; those of [`Allocation::import`].
    pub(super) fn open(gpu: &Arc<Gpu>, handle: &[u8], bytes: usize) -> Result<Self> {
        let (calls, _) = Self::calls(gpu)?;
        let object = Allocation::import(gpu, Shared::Multicast, handle, bytes)?;
        Ok(CudaMulticast { gpu: Arc::clone(gpu), calls, object })
    }

    /// The driver's functions, and the granularity of memory.
    fn calls(gpu: &Gpu) -> Result<(MulticastCalls, usize)> {
        let granule = gpu.window_granule().map_err(|why| unavailable(gpu, why))?;
        let calls = gpu.driver.multicast().map_err(|symbol| unavailable(gpu, symbol))?;
        Ok((calls, granule))
    }

    /// Undoes [`bind`](Multicast::bind). It may wait for kernels.
    fn unbind(&self, bytes: usize) {
        let (gpu, handle) = (&self.gpu, self.object.handle);
        // SAFETY: bound by `bind`, with this size. An error is that of a lost context.
        let _ = gpu.run(|| unsafe {
            self.calls.unbind(handle, gpu.device, 0, bytes).map_err(Error::from)
        });
    }
}

impl Multicast for CudaMulticast {
    fn export(&self) -> Result<Vec<u8>> {
        self.object.export(Shared::Multicast)
    }

    fn join(&self) -> Result<()> {
        let gpu = &self.gpu;
        gpu.run(|| {
            // SAFETY: the handle is alive.
            unsafe { self.calls.add_device(self.object.handle, gpu.device) }
                .map_err(|e| gpu.error(&e))
        })
    }

    /// The driver waits in it until all have joined (`cuMulticastAddDevice`). It knows the members' memory by itself.
    fn bind(&self, memory: &Arc<dyn Memory>, _: &[u64]) -> Result<Arc<dyn Memory>> {
        let (gpu, object) = (&self.gpu, &self.object);
        let wrong = |reason: &str| Err(Error::argument("memory", reason));
        let Some(window) = Window::find(memory.address()) else {
            return wrong("it is not of Runtime::allocate_window");
        };
        if !window.is_of(gpu) {
            return wrong("it is another GPU's");
        }
        if memory.len() > object.bytes {
            let (has, most) = (memory.len(), object.bytes);
            return wrong(&format!("it has {has} bytes, and the multicast object {most}"));
        }
        let bytes = window.allocation.bytes.min(object.bytes);
        gpu.run(|| {
            let of = window.allocation.handle;
            // SAFETY: both handles are alive, and as large as that.
            unsafe { self.calls.bind_mem(object.handle, 0, of, 0, bytes, 0) }
                .map_err(|e| gpu.error(&e))
        })?;
        let mapping = Mapping::new(object).inspect_err(|_| self.unbind(bytes))?;
        Ok(Arc::new(BoundMemory {
            address: mapping.address,
            len: memory.len(),
            bytes,
            multicast: self.clone(),
            kept: Some((mapping, window, Arc::clone(memory))),
        }))
    }
}

/// The addresses of an object to which a GPU's memory is bound.
#[derive(Debug)]
struct BoundMemory {
    address: u64,
    len: usize,
    /// Bytes that are bound.
    bytes: usize,
    multicast: CudaMulticast,
    /// There until the drop.
    kept: Option<(Mapping, Arc<Window>, Arc<dyn Memory>)>,
}

// SAFETY: the object is mapped until `self` is dropped. No copy of a stream goes there.
unsafe impl Memory for BoundMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }

    fn address_space(&self) -> u64 {
        self.multicast.gpu.context as u64
    }

    /// Each rank maps the object by itself.
    fn is_shared(&self) -> bool {
        false
    }
}

impl Drop for BoundMemory {
    fn drop(&mut self) {
        let Some((mapping, window, memory)) = self.kept.take() else { return };
        let (multicast, bytes) = (self.multicast.clone(), self.bytes);
        watch::retire(&self.multicast.gpu, move || {
            mapping.unmap();
            multicast.unbind(bytes);
            drop((window, memory, multicast));
        });
    }
}

//! A GPU and the context that is used on it.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use ferroccl_device::abi::CACHE_LINE;

use super::CudaError;
use super::alloc::Use;
use super::connections;
use super::driver::{self, Address, Context, Driver, RawEvent, RawStream, attribute};
use super::module::Modules;
use super::residency::Ledger;
use super::staging::Staging;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;
use crate::runtime::{RdmaInfo, Settings};

/// Bytes of pinned memory that are allocated at a time for words.
const SLAB_BYTES: usize = 4 << 10;

/// A context on a GPU, and what all that runs in it shares.
pub(super) struct Gpu {
    pub(super) driver: &'static Driver,
    pub(super) context: Context,
    /// The primary context, which we have retained and release.
    retained: bool,
    pub(super) ordinal: u32,
    pub(super) device: driver::Device,
    /// As `GPU 0 (NVIDIA H200)`: what errors call it.
    pub(super) name: String,
    /// What is the same GPU in every process.
    pub(super) uuid: [u8; 16],
    /// 90 for 9.0.
    pub(super) capability: u32,
    pub(super) multiprocessors: u32,
    /// Of its multiprocessors, in kilohertz, at most.
    pub(super) clock_khz: u32,
    pub(super) modules: Modules,
    /// What runs, over all communicators.
    pub(super) ledger: Ledger,
    /// Streams that are known to us, the service stream among them.
    streams: AtomicU32,
    /// A stream for what is done at once.
    pub(super) service: Mutex<RawStream>,
    /// Whether its streams write words of 64 bits.
    pub(super) writes_words: bool,
    /// Whether it has memory pools.
    pub(super) pools: bool,
    /// What sizes of memory for multicast objects are multiples of; or why there are none.
    pub(super) window_granule: OnceLock<std::result::Result<usize, String>>,
    /// Device memory that is kept for the next allocation, by size.
    pub(super) free: Mutex<HashMap<(Use, usize), Vec<Address>>>,
    pinned: Mutex<Pinned>,
    pub(super) staging: Mutex<Staging>,
    events: Mutex<Vec<RawEvent>>,
}

/// Words for streams to wait for, each on cache lines of its own.
#[derive(Default)]
struct Pinned {
    slabs: Vec<*mut c_void>,
    free: Vec<NonNull<AtomicU32>>,
}

// SAFETY: handles of the driver may be used from any thread, and so may the pinned memory, which is handed out once.
unsafe impl Send for Gpu {}
// SAFETY: as above; what changes is behind mutexes.
unsafe impl Sync for Gpu {}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).field("sm", &self.capability).finish()
    }
}

/// The number of GPUs that the driver shows.
pub(super) fn count(driver: &Driver) -> Result<u32> {
    let mut count = 0;
    // SAFETY: writes to a place that is there.
    unsafe { driver.device_get_count(&raw mut count)? };
    Ok(u32::try_from(count).unwrap_or(0))
}

impl Gpu {
    /// The GPU of this number, by its primary context, which the CUDA runtime and most libraries use, too.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is no such GPU, [`Error::Unavailable`] when it is too old,
    /// [`Error::Cuda`].
    pub(super) fn open(ordinal: u32, settings: &Settings) -> Result<Self> {
        let driver = Driver::get()?;
        let count = count(driver)?;
        if ordinal >= count {
            let gpus = if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
            let reason = format!("{ordinal} is none of the {gpus} that the driver shows");
            return Err(Error::argument("ordinal", reason));
        }
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: both write to a place that is there.
        unsafe {
            driver.device_get(&raw mut device, ordinal as c_int)?;
            driver.device_primary_ctx_retain(&raw mut context, device)?;
        }
        let mut gpu = Self::new(driver, ordinal, device, context, settings).inspect_err(|_| {
            drop(Release { driver, device });
        })?;
        gpu.retained = true;
        Ok(gpu)
    }

    /// A context of the caller's.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    ///
    /// # Safety
    /// The context outlives what is returned.
    pub(super) unsafe fn of_context(context: Context, settings: &Settings) -> Result<Self> {
        let driver = Driver::get()?;
        let mut device = 0;
        driver.within(context, || {
            // SAFETY: writes to a place that is there.
            unsafe { driver.ctx_get_device(&raw mut device).map_err(Error::from) }
        })?;
        // A device's number is its handle (`cuDeviceGet`).
        Self::new(driver, u32::try_from(device).unwrap_or(0), device, context, settings)
    }

    fn new(
        driver: &'static Driver,
        ordinal: u32,
        device: driver::Device,
        context: Context,
        settings: &Settings,
    ) -> Result<Self> {
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: writes to a place that is there.
            unsafe { driver.device_get_attribute(&raw mut value, which, device)? };
            Ok::<_, Error>(u32::try_from(value).unwrap_or(0))
        };
        let mut name = [0 as c_char; 256];
        let mut uuid = [0; 16];
        // SAFETY: both write to places of the size that they are told, the first a text that ends with a zero.
        let model = unsafe {
            driver.device_get_name(name.as_mut_ptr(), name.len() as c_int, device)?;
            driver.device_get_uuid(&raw mut uuid, device)?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let name = format!("GPU {ordinal} ({model})");
        let capability = attribute(attribute::COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(attribute::COMPUTE_CAPABILITY_MINOR)?;
        let unavailable = |reason: String| Error::Unavailable { what: name.clone(), reason };
        if let Some(why) = crate::ptx::unavailable() {
            return Err(unavailable(format!("this build has no kernels for it: {why}")));
        }
        let oldest = crate::ptx::modules().iter().map(crate::ptx::Module::arch).min().unwrap_or(0);
        if capability < oldest {
            return Err(unavailable(format!(
                "its compute capability is {}.{}, and kernels need {}.{} or later",
                capability / 10,
                capability % 10,
                oldest / 10,
                oldest % 10
            )));
        }
        // Kernels, the host and proxies reach the same memory by the same address.
        for (which, what) in [
            (attribute::CAN_MAP_HOST_MEMORY, "it cannot reach the host's memory"),
            (
                attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
                "it does not reach the host's memory by the host's addresses",
            ),
        ] {
            if attribute(which)? == 0 {
                return Err(unavailable(what.to_owned()));
            }
        }
        let multiprocessors = attribute(attribute::MULTIPROCESSOR_COUNT)?;
        let clock_khz = attribute(attribute::CLOCK_RATE)?;
        let pools = attribute(attribute::MEMORY_POOLS_SUPPORTED).unwrap_or(0) != 0;
        let writes_words = attribute(attribute::CAN_USE_64_BIT_STREAM_MEM_OPS).unwrap_or(0) != 0;
        let mut service = std::ptr::null_mut();
        driver.within(context, || {
            // SAFETY: writes to a place that is there.
            unsafe {
                driver
                    .stream_create(&raw mut service, driver::STREAM_NON_BLOCKING)
                    .map_err(Error::from)
            }
        })?;
        Ok(Gpu {
            driver,
            context,
            retained: false,
            ordinal,
            device,
            name,
            uuid,
            capability,
            multiprocessors,
            clock_khz,
            modules: Modules::new(settings.cuda_cache.clone()),
            ledger: Ledger::default(),
            streams: AtomicU32::new(1),
            service: Mutex::new(service),
            pools,
            writes_words,
            window_granule: OnceLock::new(),
            free: Mutex::default(),
            pinned: Mutex::default(),
            staging: Mutex::default(),
            events: Mutex::default(),
        })
    }

    /// Its memory in bytes.
    pub(super) fn total_memory(&self) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: writes to a place that is there.
        unsafe { self.driver.device_total_mem(&raw mut bytes, self.device) }
            .map_err(|e| self.error(&e))?;
        Ok(bytes)
    }

    /// Its place on the PCI bus, as `0000:17:00.0`.
    pub(super) fn bus_id(&self) -> Result<String> {
        let mut id = [0 as c_char; 32];
        // SAFETY: writes a text that ends with a zero to a place of that size.
        unsafe {
            self.driver
                .device_get_pci_bus_id(id.as_mut_ptr(), id.len() as c_int, self.device)
                .map_err(|e| self.error(&e))?;
            Ok(CStr::from_ptr(id.as_ptr()).to_string_lossy().to_lowercase())
        }
    }

    /// An attribute that not every driver knows: 0 where it does not.
    pub(super) fn attribute(&self, which: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: writes to a place that is there; what is unknown is an error.
        let known = unsafe { self.driver.device_get_attribute(&raw mut value, which, self.device) };
        known.map_or(0, |()| value)
    }

    /// How network cards reach its memory; `None` where they do not.
    pub(super) fn rdma(&self) -> Result<Option<RdmaInfo>> {
        let by_address = self.attribute(attribute::GPU_DIRECT_RDMA_SUPPORTED) != 0;
        let dma_buf = self.attribute(attribute::DMA_BUF_SUPPORTED) != 0;
        let ordering = self.attribute(attribute::GPU_DIRECT_RDMA_WRITES_ORDERING);
        let ordered = ordering >= driver::WRITES_ORDERING_OWNER;
        let info = RdmaInfo { by_address, dma_buf, ordered, memory: self.total_memory()? };
        Ok((by_address || dma_buf).then_some(info))
    }

    /// Part of an allocation as a DMA buffer.
    pub(super) fn dma_buf(&self, address: Address, bytes: usize) -> Result<OwnedFd> {
        self.run(|| {
            let mut file: c_int = -1;
            let (to, kind) = ((&raw mut file).cast(), driver::RANGE_HANDLE_DMA_BUF);
            // SAFETY: for this kind it writes a file descriptor, to a place that is there.
            unsafe { self.driver.mem_get_handle_for_address_range(to, address, bytes, kind, 0) }
                .map_err(|e| self.error(&e))?;
            if file < 0 {
                let reason = format!("the driver's DMA buffer is file {file}");
                return Err(Error::Unavailable { what: self.name.clone(), reason });
            }
            // SAFETY: a descriptor that is ours, and nobody else's.
            Ok(unsafe { OwnedFd::from_raw_fd(file) })
        })
    }

    /// The GPUs whose memory its kernels reach, itself among them, by UUID.
    pub(super) fn reach(&self) -> Result<Vec<[u8; 16]>> {
        let mut all = vec![self.uuid];
        for ordinal in 0..count(self.driver)? {
            let (mut peer, mut can, mut uuid) = (0, 0, [0; 16]);
            // SAFETY: all write to places that are there.
            unsafe {
                self.driver.device_get(&raw mut peer, ordinal as c_int)?;
                if peer == self.device {
                    continue;
                }
                self.driver.device_can_access_peer(&raw mut can, self.device, peer)?;
                self.driver.device_get_uuid(&raw mut uuid, peer)?;
            }
            if can != 0 {
                all.push(uuid);
            }
        }
        Ok(all)
    }

    /// Lets kernels reach memory of another context of this process.
    pub(super) fn enable_peer(&self, peer: Context) -> Result<()> {
        if peer == self.context {
            return Ok(());
        }
        self.run(|| {
            // SAFETY: the context is alive as long as its memory, which the caller holds.
            match unsafe { self.driver.ctx_enable_peer_access(peer, 0) } {
                Err(e) if e.code() == driver::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                other => other.map_err(|e| self.error(&e)),
            }
        })
    }

    /// There is another stream.
    pub(super) fn count_stream(&self) {
        // A count alone: it orders nothing.
        let streams = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        connections::watch_out(&self.name, streams, self.driver.connections());
    }

    /// A stream is gone.
    pub(super) fn uncount_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    /// Has `f` run with the context current.
    pub(super) fn run<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.driver.within(self.context, f)
    }

    /// Has `f` put something into a stream, or ask about one.
    pub(super) fn enqueue<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.driver.briefly(self.context, f)
    }

    /// An error of this GPU.
    pub(super) fn error(&self, error: &CudaError) -> Error {
        error.on(&self.name).into()
    }

    /// Whether the driver knows what is at an address: device memory, or pinned memory of the host's. The context is
    /// current.
    pub(super) fn is_known(&self, at: u64) -> bool {
        let mut kind = 0u32;
        let mut to = (&raw mut kind).cast();
        let mut attribute = driver::POINTER_MEMORY_TYPE;
        // Of an address that it does not know it gives no kind. Asked for one attribute alone, it would report an error, which
        // tools that watch calls show (cuPointerGetAttributes).
        // SAFETY: writes a number to a place that is there.
        let asked =
            unsafe { self.driver.pointer_get_attributes(1, &raw mut attribute, &raw mut to, at) };
        asked.is_ok() && kind != 0
    }

    /// What is done on the service stream, to its end.
    pub(super) fn at_once(
        &self,
        f: impl FnOnce(RawStream) -> std::result::Result<(), CudaError>,
    ) -> Result<()> {
        let service: MutexGuard<'_, RawStream> = lock(&self.service);
        self.run(|| {
            f(*service).map_err(|e| self.error(&e))?;
            // SAFETY: the stream is ours.
            unsafe { self.driver.stream_synchronize(*service) }.map_err(|e| self.error(&e))
        })
    }

    /// A word of pinned memory.
    pub(super) fn word(&self) -> Result<NonNull<AtomicU32>> {
        let mut pinned = lock(&self.pinned);
        if let Some(free) = pinned.free.pop() {
            return Ok(free);
        }
        let mut slab = std::ptr::null_mut();
        self.run(|| {
            // SAFETY: writes to a place that is there.
            unsafe {
                self.driver.mem_host_alloc(&raw mut slab, SLAB_BYTES, driver::HOST_ALLOC_MAPPED)
            }
            .map_err(|e| self.error(&e))
        })?;
        pinned.slabs.push(slab);
        let words = (0..SLAB_BYTES).step_by(CACHE_LINE);
        let words = words.filter_map(|at| NonNull::new(slab.wrapping_byte_add(at).cast()));
        pinned.free.extend(words);
        pinned.free.pop().ok_or_else(|| Error::argument("slab", "allocated at address 0"))
    }

    /// Gives a word back that nobody looks at any more.
    pub(super) fn return_word(&self, word: NonNull<AtomicU32>) {
        lock(&self.pinned).free.push(word);
    }

    /// An event without timing.
    pub(super) fn event(&self) -> Result<RawEvent> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        let mut event = std::ptr::null_mut();
        self.run(|| {
            // SAFETY: writes to a place that is there.
            unsafe { self.driver.event_create(&raw mut event, driver::EVENT_DISABLE_TIMING) }
                .map_err(|e| self.error(&e))
        })?;
        Ok(event)
    }

    /// Gives an event back that nobody waits for.
    pub(super) fn return_event(&self, event: RawEvent) {
        lock(&self.events).push(event);
    }
}

impl Drop for Gpu {
    /// Nothing of it is in use any more: whatever is in a stream keeps the GPU.
    fn drop(&mut self) {
        let driver = self.driver;
        let _ = driver.within(self.context, || {
            let free = std::mem::take(&mut *lock(&self.free));
            let mut slabs = std::mem::take(&mut lock(&self.pinned).slabs);
            slabs.extend(lock(&self.staging).take_slabs());
            // SAFETY: all of it is ours, and not in use. Errors are those of a context that is lost.
            unsafe {
                for event in lock(&self.events).drain(..) {
                    let _ = driver.event_destroy(event);
                }
                for address in free.into_values().flatten() {
                    let _ = driver.mem_free(address);
                }
                for slab in slabs {
                    let _ = driver.mem_free_host(slab);
                }
                let _ = driver.stream_destroy(*lock(&self.service));
            }
            self.modules.unload(driver);
            Ok(())
        });
        if self.retained {
            drop(Release { driver, device: self.device });
        }
    }
}

/// Releases a primary context.
struct Release {
    driver: &'static Driver,
    device: driver::Device,
}

impl Drop for Release {
    fn drop(&mut self) {
        // SAFETY: retained by whoever made this.
        let _ = unsafe { self.driver.device_primary_ctx_release(self.device) };
    }
}

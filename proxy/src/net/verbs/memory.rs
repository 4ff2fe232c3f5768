//! Memory that a card reaches.
//!
//! Memory that several connections use is registered once: registering pins pages and takes as long as sending some hundred
//! KiB. A registration is counted by its users and ends with the last one, before the memory can be freed and used again.

use std::ffi::c_void;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use super::context::Context;
use super::device::{MAX_PORTS, Port};
use super::error;
use super::queue_pair::{LocalBuffer, RemoteAddress};
use super::sys;
use crate::NetError;
use crate::net::MemoryKind;
use crate::sync::lock;

/// A memory region: a registration of memory with a device.
#[derive(Debug)]
pub(super) struct MemoryRegion {
    raw: *mut sys::ibv_mr,
    context: Arc<Context>,
    start: usize,
    bytes: usize,
    kind: MemoryKind,
    access: u32,
}

// SAFETY: as of `Context`: the library's functions may be called from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: the same.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key for work requests of this end.
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: it is registered for as long as `self` is there.
        unsafe { (*self.raw).lkey }
    }

    /// The key for those of the other end.
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the same.
        unsafe { (*self.raw).rkey }
    }

    /// Whether it is a GPU's memory.
    pub(super) fn is_of_a_gpu(&self) -> bool {
        self.kind != MemoryKind::Host
    }

    fn holds(&self, start: usize, bytes: usize) -> bool {
        let end = start.checked_sub(self.start).and_then(|offset| offset.checked_add(bytes));
        end.is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: `register` made it, and no work request with its keys is posted any more.
        let failed = unsafe { (self.context.library.dereg_mr)(self.raw) };
        if failed != 0 {
            let MemoryRegion { context, start, bytes, .. } = self;
            let name = &context.name;
            tracing::warn!(
                "NET/IB: {name}: {bytes} bytes at {start:#x} stay registered ({failed})"
            );
        }
    }
}

/// Keys of memory that is registered with several devices, one for each port of a [`VerbsDevice`](super::device::VerbsDevice).
pub(super) type Keys = [u32; MAX_PORTS];

/// Memory of an end: its registrations by port, none if it is empty.
pub(super) type Regions = Vec<Arc<MemoryRegion>>;

fn keys(regions: &Regions, key: fn(&MemoryRegion) -> u32) -> Keys {
    let mut keys = [0; MAX_PORTS];
    keys.iter_mut().zip(regions).for_each(|(place, region)| *place = key(region));
    keys
}

/// The keys for work requests of this end.
pub(super) fn lkeys(regions: &Regions) -> Keys {
    keys(regions, MemoryRegion::lkey)
}

/// The keys for those of the other end.
pub(super) fn rkeys(regions: &Regions) -> Keys {
    keys(regions, MemoryRegion::rkey)
}

/// Memory of the peer that is registered with its ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteMemory {
    pub(super) address: u64,
    pub(super) keys: Keys,
}

impl RemoteMemory {
    /// A place in it, by way of one of the peer's ports.
    pub(super) fn at(&self, offset: usize, port: usize) -> RemoteAddress {
        (self.address + offset as u64, self.keys[port])
    }
}

/// The registrations of a device that are in use.
#[derive(Debug, Default)]
pub(super) struct RegistrationCache(Mutex<Vec<Weak<MemoryRegion>>>);

impl RegistrationCache {
    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let known = lock(&self.0);
        known.iter().filter(|region| region.strong_count() > 0).count()
    }
}

/// What both ends may do with registered memory.
const ACCESS: u32 =
    sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;

/// Whether the driver of NVIDIA's GPUs lets cards reach their memory by address: where NCCL looks (`net_ib.cc`,
/// `ncclIbGdrSupport`).
pub(super) fn peer_memory() -> bool {
    [
        "/sys/module/nvidia_peermem/version",
        "/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    ]
    .iter()
    .any(|path| Path::new(path).exists())
}

/// Whether a device registers DMA buffers: asked with a file that there is not, one that does complains of the file
/// (NCCL's way, `ncclIbDmaBufSupport`).
pub(super) fn takes_dma_buf(context: &Context) -> bool {
    let Some(register) = context.library.reg_dmabuf_mr else { return false };
    // SAFETY: the protection domain is there; there is no file, so that nothing is registered.
    let region = unsafe { register(context.domain, 0, 0, 0, -1, 0) };
    debug_assert!(region.is_null());
    !is_no_dma_buf(io::Error::last_os_error().raw_os_error())
}

/// Whether an error says that a device does not register DMA buffers.
fn is_no_dma_buf(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}

/// Registers memory, or finds where it is registered. `relaxed`: whether the card may reorder its writes; if not said, if
/// it can.
///
/// # Safety
/// As [`SendComm::register`](crate::net::SendComm::register), until the region is dropped.
pub(super) unsafe fn register(
    context: &Arc<Context>,
    (start, bytes): (usize, usize),
    kind: MemoryKind,
    relaxed: Option<bool>,
) -> Result<Arc<MemoryRegion>, NetError> {
    let relaxed = relaxed.unwrap_or(true) && context.library.reg_mr_iova2.is_some();
    let order = if relaxed { sys::IBV_ACCESS_RELAXED_ORDERING } else { 0 };
    let access = ACCESS | order;
    let mut known = lock(&context.cache.0);
    known.retain(|region| region.strong_count() > 0);
    let found = known.iter().filter_map(Weak::upgrade).find(|region| {
        region.kind == kind && region.access == access && region.holds(start, bytes)
    });
    if let Some(region) = found {
        return Ok(region);
    }
    // SAFETY: the caller's.
    let raw = unsafe { make(context, (start, bytes), kind, access)? };
    let region = MemoryRegion { raw, context: Arc::clone(context), start, bytes, kind, access };
    let region = Arc::new(region);
    // A DMA buffer is known by a descriptor, which its owner may close: the next of that number is another.
    if !matches!(kind, MemoryKind::DmaBuf { .. }) {
        known.push(Arc::downgrade(&region));
    }
    Ok(region)
}

/// The registration itself.
///
/// # Safety
/// As [`register`].
unsafe fn make(
    context: &Context,
    (start, bytes): (usize, usize),
    kind: MemoryKind,
    access: u32,
) -> Result<*mut sys::ibv_mr, NetError> {
    let Context { library, domain, name, .. } = context;
    let at = start as *mut c_void;
    let by_address = || {
        // SAFETY: the caller's; the protection domain is there. An optional flag that the kernel does not know it passes
        // over (ibv_reg_mr(3)).
        unsafe {
            match library.reg_mr_iova2 {
                Some(register) => register(*domain, at, bytes, start as u64, access),
                None => (library.reg_mr)(*domain, at, bytes, access as i32),
            }
        }
    };
    let raw = match kind {
        MemoryKind::Host => by_address(),
        MemoryKind::Cuda if peer_memory() => by_address(),
        MemoryKind::Cuda => {
            let reason =
                format!("{name}: GPU memory by its address needs the module nvidia_peermem");
            return Err(error("register", reason));
        }
        MemoryKind::DmaBuf { fd, offset } => {
            // SAFETY: the caller's.
            let raw = library.reg_dmabuf_mr.map(|register| unsafe {
                register(*domain, offset, bytes, start as u64, fd, access as i32)
            });
            let errno = io::Error::last_os_error().raw_os_error();
            match raw {
                Some(raw) if !raw.is_null() || !is_no_dma_buf(errno) => raw,
                _ if peer_memory() => by_address(),
                _ => {
                    let reason = format!(
                        "{name}: neither the device registers DMA buffers, nor is nvidia_peermem there"
                    );
                    return Err(error("register", reason));
                }
            }
        }
    };
    if raw.is_null() {
        let cause = io::Error::last_os_error();
        let hint = match cause.raw_os_error() {
            Some(libc::ENOMEM) => ": more than may be locked (ulimit -l)?",
            _ => "",
        };
        let reason = format!("{name}: {bytes} bytes at {start:#x} ({kind:?}): {cause}{hint}");
        return Err(error("register", reason));
    }
    Ok(raw)
}

/// Memory of ours that the other end writes to, or that the card reads from: words, all 0 at first.
#[derive(Debug)]
pub(super) struct RegisteredWords {
    regions: Regions, // dropped first
    words: Box<[AtomicU64]>,
}

impl RegisteredWords {
    pub(super) fn new(ports: &[Arc<Port>], count: usize) -> Result<RegisteredWords, NetError> {
        let words: Box<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let place = (words.as_ptr() as usize, size_of_val(&*words));
        // Not relaxed: a word that says that others are there must not come before them.
        let region = |port: &Arc<Port>| {
            // SAFETY: the words outlive the region, and are atomic: whoever writes to them may do so at any time.
            unsafe { register(&port.context, place, MemoryKind::Host, Some(false)) }
        };
        let regions = ports.iter().map(region).collect::<Result<_, _>>()?;
        Ok(RegisteredWords { regions, words })
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Where a word is, for the card.
    pub(super) fn address(&self, word: usize) -> u64 {
        self.words.as_ptr() as u64 + 8 * word as u64
    }

    /// So many bytes from a word on, for work requests of this end on one of the ports.
    pub(super) fn local(&self, word: usize, bytes: u32, port: usize) -> LocalBuffer {
        let key = self.regions[port].lkey();
        LocalBuffer { address: self.address(word), bytes, key, host: true }
    }

    /// The keys for those of the other end.
    pub(super) fn rkeys(&self) -> Keys {
        rkeys(&self.regions)
    }
}

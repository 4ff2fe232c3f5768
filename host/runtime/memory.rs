//! Device memory that is the host's: zeroed, aligned, freed with its last handle.
//!
//! Small allocations come from the heap. Large ones are mapped, so that zeroing costs nothing until a
//! page is touched, and the page is then local to the core that touched it. From 4 MiB on the kernel
//! is asked for huge pages: a ring walks its buffers once, and with 4 KiB pages it would miss the TLB
//! every 4 KiB.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Keep, Memory};
use crate::error::{Error, Result};
use crate::shared_memory::{self, SharedMemoryHandle};

/// What [`Runtime::allocate`](crate::runtime::Runtime::allocate) promises.
const ALIGN: usize = 256;
/// From here on memory is mapped. glibc's default `M_MMAP_THRESHOLD` is the same.
const MAP_FROM: usize = 128 << 10;
/// From here on huge pages are asked for.
const HUGE_FROM: usize = 4 << 20;
/// Size and alignment of a huge page on `x86_64` and `aarch64` with 4 KiB base pages.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of the process's that the caller has.
#[derive(Debug)]
pub(super) struct CallersMemory {
    address: usize,
    len: usize,
    _keep: Keep,
}

/// The address of a buffer without elements.
#[repr(align(256))]
struct Nothing(#[allow(dead_code, reason = "it is an address")] [u8; 256]);
static NOTHING: Nothing = Nothing([0; 256]);

impl CallersMemory {
    /// `len` bytes from `start` on. Where there are none, `start` is not looked at.
    ///
    /// # Safety
    /// Kernels may read and write them as long as `keep` lives.
    pub(super) unsafe fn new(start: *mut u8, len: usize, keep: Keep) -> Self {
        // Exposed: kernels on the CPU go by numbers.
        let address = match len {
            0 => (&raw const NOTHING).expose_provenance(),
            _ => start.expose_provenance(),
        };
        CallersMemory { address, len, _keep: keep }
    }
}

// SAFETY: `new`'s caller keeps the range where it is, and says that it may be written.
unsafe impl Memory for CallersMemory {
    fn address(&self) -> u64 {
        self.address as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    /// The process's own.
    fn address_space(&self) -> u64 {
        0
    }
}

/// One allocation.
#[derive(Debug)]
pub(super) struct HostMemory {
    base: NonNull<u8>,
    len: usize,
    origin: Origin,
}

/// Where it goes back to.
#[derive(Debug)]
enum Origin {
    Heap(Layout),
    Mapping {
        bytes: usize,
    },
    /// Of a file, which other processes may open as long as it is here.
    Shared {
        bytes: usize,
        file: OwnedFd,
    },
}

// SAFETY: it is an address range; who touches it when is ordered by streams, as on any device.
unsafe impl Send for HostMemory {}
// SAFETY: as above; `&self` gives out only the address and the length.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates `len` zeroed bytes.
    pub(super) fn allocate(len: usize) -> Result<Self> {
        if len < MAP_FROM { Self::heap(len) } else { Self::map(len) }
    }

    /// Allocates `len` zeroed bytes that other processes may map, too.
    pub(super) fn shared(len: usize) -> Result<Self> {
        let bytes = shared_bytes(len)?;
        let file = shared_memory::create(bytes)?;
        let base = map_file(file.as_fd(), bytes)?;
        Ok(HostMemory { base, len, origin: Origin::Shared { bytes, file } })
    }

    /// Maps `len` bytes of memory that another process has [made](HostMemory::shared).
    pub(super) fn open(handle: &[u8], len: usize) -> Result<Self> {
        let bytes = shared_bytes(len)?;
        let file = SharedMemoryHandle::from_bytes(handle)?.open(bytes)?;
        let base = map_file(file.as_fd(), bytes)?;
        Ok(HostMemory { base, len, origin: Origin::Mapping { bytes } })
    }

    fn heap(len: usize) -> Result<Self> {
        // An empty buffer has an address of its own, as it has on a GPU.
        let layout = Layout::from_size_align(len.max(1), ALIGN)
            .map_err(|e| Error::argument("bytes", e.to_string()))?;
        // SAFETY: the layout's size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| exhausted(len))?;
        Ok(HostMemory { base, len, origin: Origin::Heap(layout) })
    }

    fn map(len: usize) -> Result<Self> {
        let huge = len >= HUGE_FROM;
        let unit = if huge { HUGE_PAGE } else { page_size() };
        let too_large =
            || Error::argument("bytes", format!("{len} bytes are more than memory has"));
        let bytes = len.checked_next_multiple_of(unit).ok_or_else(too_large)?;
        // A mapping is aligned to a page; for huge pages map one more and cut off both ends.
        let slack = if huge { HUGE_PAGE } else { 0 };
        let mapped = bytes.checked_add(slack).filter(|&n| n <= isize::MAX as usize);
        let mapped = mapped.ok_or_else(too_large)?;
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os(format!("allocating {len} bytes of device memory")));
        }
        let start = start.cast::<u8>();
        let head = start.align_offset(unit).min(slack);
        let tail = slack - head;
        // SAFETY: head and tail lie inside the mapping, are whole pages, and nobody has seen them; the
        // rest stays `bytes` long. A refusal to give back or to advise loses memory or speed only.
        let base = unsafe {
            let base = start.add(head);
            if head > 0 {
                libc::munmap(start.cast(), head);
            }
            if tail > 0 {
                libc::munmap(base.add(bytes).cast(), tail);
            }
            if huge {
                libc::madvise(base.cast(), bytes, libc::MADV_HUGEPAGE);
            }
            NonNull::new_unchecked(base)
        };
        Ok(HostMemory { base, len, origin: Origin::Mapping { bytes } })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: `allocate` made it so, and this was the last handle.
        unsafe {
            match &self.origin {
                Origin::Heap(layout) => dealloc(self.base.as_ptr(), *layout),
                Origin::Mapping { bytes } | Origin::Shared { bytes, .. } => {
                    libc::munmap(self.base.as_ptr().cast(), *bytes);
                }
            }
        }
    }
}

// SAFETY: the range is allocated until `self` is dropped.
unsafe impl Memory for HostMemory {
    fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    fn address_space(&self) -> u64 {
        0
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::Shared { file, .. } => Some(file.as_fd()),
            Origin::Heap(_) | Origin::Mapping { .. } => None,
        }
    }
}

/// Bytes of a file for so many: whole pages, one at least.
fn shared_bytes(len: usize) -> Result<usize> {
    let bytes = len.max(1).checked_next_multiple_of(page_size());
    bytes
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(|| Error::argument("bytes", format!("{len} bytes are more than memory has")))
}

/// A mapping of a file of so many bytes.
fn map_file(file: BorrowedFd<'_>, bytes: usize) -> Result<NonNull<u8>> {
    // SAFETY: a fresh mapping at an address of the system's choice; the file's size is sealed.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(Error::last_os(format!("mapping {bytes} bytes of shared memory")));
    }
    NonNull::new(start.cast()).ok_or_else(|| Error::argument("bytes", "mapped at address 0"))
}

fn page_size() -> usize {
    // SAFETY: no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn exhausted(len: usize) -> Error {
    Error::system(
        format!("allocating {len} bytes of device memory"),
        io::Error::from_raw_os_error(libc::ENOMEM),
    )
}

/// The pointer to `memory[offset..offset + len]`.
///
/// # Errors
/// [`Error::InvalidArgument`] when it does not fit.
pub(super) fn range(memory: &Arc<dyn Memory>, offset: usize, len: usize) -> Result<*mut u8> {
    match offset.checked_add(len) {
        Some(end) if end <= memory.len() => {}
        _ => {
            return Err(Error::argument(
                "offset",
                format!("{len} bytes at {offset} do not fit an allocation of {}", memory.len()),
            ));
        }
    }
    // Inside the allocation, so it fits an address.
    let address = memory.address() as usize + offset;
    Ok(std::ptr::with_exposed_provenance_mut(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_and_of_the_size_asked_for() {
        for len in [0, 1, 255, MAP_FROM - 1, MAP_FROM, MAP_FROM + 1, HUGE_FROM, HUGE_FROM + 4097] {
            let memory = HostMemory::allocate(len).unwrap();
            assert_eq!(memory.len(), len);
            assert!(memory.address().is_multiple_of(ALIGN as u64), "{len}");
            assert!(len < HUGE_FROM || memory.address().is_multiple_of(HUGE_PAGE as u64), "{len}");
            // SAFETY: just allocated.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base.as_ptr(), len) };
            assert!(bytes.iter().all(|&b| b == 0), "{len}");
            bytes.fill(1);
        }
    }

    #[test]
    fn too_much_is_an_error() {
        for len in [1 << 55, isize::MAX as usize, usize::MAX] {
            for allocated in [HostMemory::allocate(len), HostMemory::shared(len)] {
                let error = allocated.unwrap_err();
                assert!(
                    matches!(error, Error::System { .. } | Error::InvalidArgument { .. }),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn shared_memory_is_the_same_for_who_opens_it() {
        for len in [0, 1, 4096, 100_000] {
            let memory = HostMemory::shared(len).unwrap();
            let handle = SharedMemoryHandle::of(memory.file().unwrap()).unwrap();
            let other = HostMemory::open(&handle.to_bytes().unwrap(), len).unwrap();
            assert_eq!((memory.len(), other.len()), (len, len));
            assert!(memory.address() != other.address() && other.file().is_none());
            // SAFETY: just allocated, and nobody else uses it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.base.as_ptr(), len) };
            assert!(bytes.iter().all(|b| *b == 0), "{len}");
            bytes.fill(7);
            // SAFETY: mapped, and nobody writes it any more.
            let bytes = unsafe { std::slice::from_raw_parts(other.base.as_ptr(), len) };
            assert!(bytes.iter().all(|b| *b == 7), "{len}");
            assert!(HostMemory::open(&handle.to_bytes().unwrap(), len + 9000).is_err());
        }
    }

    #[test]
    fn ranges_are_checked() {
        let memory: Arc<dyn Memory> = Arc::new(HostMemory::allocate(10).unwrap());
        assert!(range(&memory, 10, 0).is_ok() && range(&memory, 0, 10).is_ok());
        for (offset, len) in [(10, 1), (0, 11), (11, 0), (usize::MAX, 2)] {
            assert!(range(&memory, offset, len).is_err(), "{offset} {len}");
        }
    }
}

//! Memory of the host that two ends of an edge share, or that one rank has for itself.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::runtime::Keep;

/// Bytes of a page, the least that any Linux has: a smaller one than the machine's would only be asked for twice.
const PAGE: usize = 4096;

/// A part of a mapping. The mapping ends when its last part is dropped.
#[derive(Clone, Debug)]
pub(crate) struct HostRegion {
    mapping: Arc<HostMapping>,
    offset: usize,
    len: usize,
}

#[derive(Debug)]
pub(super) struct HostMapping {
    start: NonNull<u8>,
    len: usize,
    /// What has to be there as long as somebody has the mapping.
    kept: Mutex<Vec<Keep>>,
}

// SAFETY: the memory is accessed by address, through atomics or under the protocols' orders; the mapping
// itself is only ever unmapped once, by the last owner.
unsafe impl Send for HostMapping {}
// SAFETY: as above.
unsafe impl Sync for HostMapping {}

impl HostRegion {
    /// Zeroed anonymous memory of this process.
    pub(crate) fn anonymous(len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0)
    }

    /// `len` bytes of a file, from `offset` on, which is a multiple of a page.
    pub(super) fn of_file(fd: BorrowedFd<'_>, offset: usize, len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd(), offset)
    }

    /// The whole of a mapping.
    pub(super) fn of_mapping(mapping: Arc<HostMapping>) -> Self {
        let len = mapping.len;
        HostRegion { mapping, offset: 0, len }
    }

    pub(super) fn mapping(&self) -> &Arc<HostMapping> {
        &self.mapping
    }

    /// The mapping that it is a part of.
    pub(crate) fn whole(&self) -> Self {
        Self::of_mapping(Arc::clone(&self.mapping))
    }

    /// A part of it, cut off at its end.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Self {
        let offset = offset.min(self.len);
        let len = bytes.min(self.len - offset);
        HostRegion { mapping: Arc::clone(&self.mapping), offset: self.offset + offset, len }
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int, offset: usize) -> Result<Self> {
        let failed = || Error::last_os(format!("cannot map {len} bytes for connections"));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| Error::argument("offset", format!("{offset} is beyond any file")))?;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(failed());
        }
        match NonNull::new(start.cast()) {
            Some(start) => {
                Ok(Self::of_mapping(Arc::new(HostMapping { start, len, kept: Mutex::default() })))
            }
            None => Err(Error::argument("len", "mapped at address 0")),
        }
    }

    /// Keeps something until the last part of the mapping is dropped, whoever has it.
    pub(crate) fn keep(&self, what: Keep) {
        self.mapping.kept.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        (self.mapping.start.as_ptr().expose_provenance() + self.offset) as u64
    }

    /// Whether the page at `offset` has been touched, and is in memory.
    pub(crate) fn is_resident(&self, offset: usize) -> bool {
        let page = (self.address() as usize + offset) & !(PAGE - 1);
        let mut resident = 0_u8;
        // SAFETY: mincore(2) writes a byte for the one page that it is asked for, and reads no memory of it.
        let result = unsafe { libc::mincore(page as *mut libc::c_void, 1, &raw mut resident) };
        offset < self.len && result == 0 && resident & 1 != 0
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `HostRegion::map`, and nobody else has it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

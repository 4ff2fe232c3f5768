//! A part of a mapping of memory that is shared by the ends of an edge.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Error, Result};

/// A part of a mapping, which is unmapped when the last part is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    mapping: Arc<Mapping>,
    offset: usize,
    len: usize,
}

#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is accessed by address, through atomics or under the protocols' orders; the mapping
// itself is only ever unmapped once, by the last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Region {
    /// Zeroed anonymous memory of this process.
    pub(crate) fn anonymous(len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0)
    }

    /// `len` bytes of a file, from `offset` on, which is a multiple of a page.
    pub(super) fn of_file(fd: BorrowedFd<'_>, offset: usize, len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_NORESERVE, fd.as_raw_fd(), offset)
    }

    /// A whole mapping.
    pub(super) fn of_mapping(mapping: Arc<Mapping>) -> Self {
        let len = mapping.len;
        Region { mapping, offset: 0, len }
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// A part of it; what lies outside is cut off.
    pub(super) fn part(&self, offset: usize, bytes: usize) -> Self {
        let offset = offset.min(self.len);
        let len = bytes.min(self.len - offset);
        Region { mapping: Arc::clone(&self.mapping), offset: self.offset + offset, len }
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
            Some(start) => Ok(Self::of_mapping(Arc::new(Mapping { start, len }))),
            None => Err(Error::argument("len", "mapped at address 0")),
        }
    }

    /// Where it starts.
    pub(crate) fn address(&self) -> u64 {
        (self.mapping.start.as_ptr().expose_provenance() + self.offset) as u64
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `Region::map`, and nobody else has it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

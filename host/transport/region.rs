//! A mapping of memory that is shared by the ends of an edge.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{Error, Result};

/// A mapping; unmapped when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Region(Arc<Mapping>);

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
    pub(super) fn anonymous(len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// The first `len` bytes of a file.
    pub(super) fn of_file(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        Self::map(len, libc::MAP_SHARED, fd.as_raw_fd())
    }

    pub(super) fn of_mapping(mapping: Arc<Mapping>) -> Self {
        Region(mapping)
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.0
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> Result<Self> {
        // SAFETY: a fresh mapping at an address of the system's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os(format!("cannot map {len} bytes for a connection")));
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Region(Arc::new(Mapping { start, len }))),
            None => Err(Error::argument("len", "mapped at address 0")),
        }
    }

    /// Where it starts.
    pub(crate) fn address(&self) -> u64 {
        self.0.start.as_ptr().expose_provenance() as u64
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `Region::map`, and nobody else has it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

//! Pinned memory for what a kernel needs beside its argument. The kernel reads that memory itself, so that no copy goes into the stream
//! and the host waits for nothing.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::driver;
use super::gpu::Gpu;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;

/// Bytes that are allocated at a time: pinning memory may wait for kernels, so it is to be rare.
const SLAB_BYTES: usize = 64 << 10;
/// The smallest piece.
const LEAST_BYTES: usize = 512;

/// Pinned memory of a GPU, in pieces.
#[derive(Default)]
pub(super) struct Staging {
    slabs: Vec<NonNull<c_void>>,
    /// What is free, by size.
    free: HashMap<usize, Vec<NonNull<u8>>>,
}

// SAFETY: pinned memory may be used from any thread, and a piece is handed out once.
unsafe impl Send for Staging {}

/// A piece, given back when this is dropped.
pub(super) struct Staged {
    gpu: Arc<Gpu>,
    at: NonNull<u8>,
    size: usize,
}

// SAFETY: nobody writes to it any more; the GPU reads it.
unsafe impl Send for Staged {}
// SAFETY: as above.
unsafe impl Sync for Staged {}

impl Staged {
    /// A copy of `bytes`.
    ///
    /// # Errors
    /// [`Error::Cuda`] when there is no more pinned memory.
    pub(super) fn copy(gpu: &Arc<Gpu>, bytes: &[u8]) -> Result<Self> {
        let size = bytes.len().next_power_of_two().max(LEAST_BYTES);
        let mut staging = lock(&gpu.staging);
        let at = match staging.free.get_mut(&size).and_then(Vec::pop) {
            Some(at) => at,
            None => staging.more(gpu, size)?,
        };
        drop(staging);
        // SAFETY: the piece is as long as that, and nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
        Ok(Staged { gpu: Arc::clone(gpu), at, size })
    }

    /// Where the host has it, and a kernel finds it: memory that the driver allocates has one address for both ("Unified
    /// Virtual Address Space" in CUDA's programming guide).
    pub(super) fn address(&self) -> u64 {
        self.at.as_ptr().addr() as u64
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        lock(&self.gpu.staging).free.entry(self.size).or_default().push(self.at);
    }
}

impl Staging {
    /// A new slab, cut into pieces of `size` bytes, one of which is returned.
    fn more(&mut self, gpu: &Gpu, size: usize) -> Result<NonNull<u8>> {
        let mut slab = std::ptr::null_mut();
        let bytes = size.max(SLAB_BYTES);
        gpu.run(|| {
            // SAFETY: writes to a place that is there.
            unsafe { gpu.driver.mem_host_alloc(&raw mut slab, bytes, driver::HOST_ALLOC_MAPPED) }
                .map_err(|e| gpu.error(&e))
        })?;
        let none = || Error::argument("slab", "allocated at address 0");
        self.slabs.push(NonNull::new(slab).ok_or_else(none)?);
        let pieces = (0..bytes).step_by(size);
        let mut pieces = pieces.filter_map(|at| NonNull::new(slab.wrapping_byte_add(at).cast()));
        let first = pieces.next().ok_or_else(none)?;
        self.free.entry(size).or_default().extend(pieces);
        Ok(first)
    }

    /// All that there is, when the GPU is dropped.
    pub(super) fn take_slabs(&mut self) -> Vec<*mut c_void> {
        self.free.clear();
        self.slabs.drain(..).map(NonNull::as_ptr).collect()
    }
}

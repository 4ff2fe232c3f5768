//! Words of pinned memory, which streams wait for and write to.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::gpu::Gpu;
use crate::error::Result;

/// A word of 64 bits on a cache line of its own, 0 at first, given back when nobody looks at it any more.
pub(super) struct Word {
    gpu: Arc<Gpu>,
    at: NonNull<AtomicU32>,
}

// SAFETY: whoever has it has the word alone, which is only accessed atomically.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let word = Word { gpu: Arc::clone(gpu), at: gpu.word()? };
        // Relaxed: streams get to know of it by a call of the driver's.
        word.get().store(0, Ordering::Relaxed);
        Ok(word)
    }

    /// Its address, for streams.
    pub(super) fn address(&self) -> u64 {
        self.at.as_ptr().expose_provenance() as u64
    }

    /// All of it.
    pub(super) fn get(&self) -> &AtomicU64 {
        // SAFETY: pinned memory, which is there as long as the GPU, and a cache line for each word.
        unsafe { self.at.cast().as_ref() }
    }

    /// The half at its address.
    pub(super) fn low(&self) -> &AtomicU32 {
        // SAFETY: as above. Who accesses this half does not access all of it meanwhile.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.gpu.return_word(self.at);
    }
}

//! Multicast objects of emulated GPUs: each rank has its own addresses for the same places.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_ptx::emu::Mapping;

use super::emulated::Emulated;
use crate::error::Result;
use crate::runtime::{Memory, Multicast};

/// Where the objects' addresses begin: no process has memory there (a process has 47 bits of addresses, 56 at most).
const FIRST: u64 = 1 << 58;
/// What their addresses are multiples of: a large page, as those of a GPU.
const PAGE: u64 = 2 << 20;

/// The object that one rank sees.
pub(super) struct EmulatedMulticast(pub(super) Arc<Emulated>);

impl fmt::Debug for EmulatedMulticast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedMulticast").finish_non_exhaustive()
    }
}

impl Multicast for EmulatedMulticast {
    /// Each process has its own.
    fn export(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn join(&self) -> Result<()> {
        Ok(())
    }

    fn bind(&self, memory: &Arc<dyn Memory>, members: &[u64]) -> Result<Arc<dyn Memory>> {
        static NEXT: AtomicU64 = AtomicU64::new(FIRST);
        let (len, space) = (memory.len(), memory.address_space());
        let pages = (len as u64).div_ceil(PAGE) + 1;
        // Relaxed: a number that nobody else gets.
        let address = NEXT.fetch_add(pages * PAGE, Ordering::Relaxed);
        let mapping = self.0.machine.map_multicast(address, len, members, "a window");
        Ok(Arc::new(BoundMemory { _mapping: mapping, address, len, space }))
    }
}

/// The addresses of an object.
#[derive(Debug)]
struct BoundMemory {
    _mapping: Mapping,
    address: u64,
    len: usize,
    space: u64,
}

// SAFETY: the range is mapped until `self` is dropped. No copy of a stream goes there.
unsafe impl Memory for BoundMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }

    fn address_space(&self) -> u64 {
        self.space
    }

    fn is_shared(&self) -> bool {
        false
    }
}

//! The memory of a connection as its network knows it.

use std::ops::Range;

use super::Ends;
use crate::NetError;
use crate::net::{MemoryHandle, MemoryKind};

/// What is registered of an end.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    host: MemoryHandle,
    gpu: Option<OnGpu>,
}

#[derive(Clone, Debug)]
struct OnGpu {
    range: Range<u64>,
    memory: MemoryHandle,
    flush: bool,
}

impl Reach {
    /// Registers all of `ends`.
    ///
    /// # Errors
    /// When the network cannot reach some of it.
    pub(super) fn new(
        ends: &Ends,
        mut register: impl FnMut((u64, usize), MemoryKind) -> Result<MemoryHandle, NetError>,
    ) -> Result<Self, NetError> {
        let host = register(ends.memory, MemoryKind::Host)?;
        let gpu = ends.on_gpu.map(|slots| {
            let memory = register(slots.memory, slots.kind)?;
            let (start, bytes) = slots.memory;
            Ok(OnGpu { range: start..start + bytes as u64, memory, flush: slots.flush })
        });
        Ok(Reach { host, gpu: gpu.transpose()? })
    }

    /// The registration that an address lies in.
    pub(super) fn of(&self, at: u64) -> MemoryHandle {
        self.gpu(at).map_or(self.host, |gpu| gpu.memory)
    }

    /// Whether what arrives at an address has to be flushed.
    pub(super) fn flushes(&self, at: u64) -> bool {
        self.gpu(at).is_some_and(|gpu| gpu.flush)
    }

    /// Whether anything that arrives has to be.
    pub(super) fn ever_flushes(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.flush)
    }

    fn gpu(&self, at: u64) -> Option<&OnGpu> {
        self.gpu.as_ref().filter(|gpu| gpu.range.contains(&at))
    }
}

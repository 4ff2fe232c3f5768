//! The memory of a connection, registered with its network.

use std::ops::Range;

use super::ConnMemory;
use crate::NetError;
use crate::net::{MemoryHandle, MemoryKind};

/// The registrations of one end's memory.
#[derive(Clone, Debug)]
pub(super) struct Registrations {
    host: MemoryHandle,
    gpu: Option<GpuRegistration>,
}

#[derive(Clone, Debug)]
struct GpuRegistration {
    range: Range<u64>,
    memory: MemoryHandle,
    flush: bool,
}

impl Registrations {
    /// Registers all of `memory`.
    ///
    /// # Errors
    /// When the network cannot reach some of it.
    pub(super) fn new(
        memory: &ConnMemory,
        mut register: impl FnMut((u64, usize), MemoryKind) -> Result<MemoryHandle, NetError>,
    ) -> Result<Self, NetError> {
        let host = register(memory.memory, MemoryKind::Host)?;
        let gpu = memory.on_gpu.map(|slots| {
            let memory = register(slots.memory, slots.kind)?;
            let (start, bytes) = slots.memory;
            Ok(GpuRegistration { range: start..start + bytes as u64, memory, flush: slots.flush })
        });
        Ok(Registrations { host, gpu: gpu.transpose()? })
    }

    /// The registration that an address lies in.
    pub(super) fn of(&self, at: u64) -> MemoryHandle {
        self.gpu(at).map_or(self.host, |gpu| gpu.memory)
    }

    /// Whether what arrives at an address has to be flushed.
    pub(super) fn flushes(&self, at: u64) -> bool {
        self.gpu(at).is_some_and(|gpu| gpu.flush)
    }

    /// Whether any memory has to be flushed.
    pub(super) fn ever_flushes(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.flush)
    }

    fn gpu(&self, at: u64) -> Option<&GpuRegistration> {
        self.gpu.as_ref().filter(|gpu| gpu.range.contains(&at))
    }
}

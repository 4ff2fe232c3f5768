//! How much memory of its device a communicator has.
//!
//! Every allocation of a communicator is [counted](MemoryCount::counted) where it is made, and counts until its last owner, which may be
//! a launch or another rank of the process, has let go of it. Memory of other ranks that is mapped here counts there. The host's
//! memory (edges between ranks on the CPU, what proxies look at) is not a device's.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Communicator;
use crate::runtime::Memory;

/// Bytes of its device's memory that a communicator has ([`Communicator::memory_use`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// What calls work with: connections, tables, scratch memory. [`Communicator::suspend`] gives it back
    /// (`ncclStatGpuMemSuspend`).
    pub calls: u64,
    /// What [windows](crate::Window) and [device communicators](crate::DeviceCommunicator) have beside the user's buffers. It is there
    /// until they are dropped (`ncclStatGpuMemPersist`).
    pub registrations: u64,
}

impl MemoryUse {
    /// All of it (`ncclStatGpuMemTotal`).
    #[must_use]
    pub fn total(&self) -> u64 {
        self.calls.saturating_add(self.registrations)
    }
}

impl Communicator {
    /// How much memory of its device this rank's communicator has now (`ncclCommMemStats`). Users' buffers do not count. On the CPU
    /// the device's memory is the host's, but connections between ranks are not made by the device, and do not count.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 2)?;
    /// let used = ranks[0].memory_use();
    /// assert!(used.calls > 0);
    /// assert_eq!((used.registrations, used.total()), (0, used.calls));
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    #[must_use]
    pub fn memory_use(&self) -> MemoryUse {
        self.0.memory.now()
    }
}

/// What an allocation is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryFor {
    Calls,
    Registrations,
}

/// Counts a communicator's allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryCount(Arc<Bytes>);

#[derive(Debug, Default)]
struct Bytes {
    calls: AtomicU64,
    registrations: AtomicU64,
}

/// An allocation that counts as long as it is there.
#[derive(Debug)]
struct Counted {
    memory: Arc<dyn Memory>,
    purpose: MemoryFor,
    count: MemoryCount,
}

impl MemoryCount {
    /// `memory`, which counts until it is freed.
    pub(super) fn counted(&self, purpose: MemoryFor, memory: Arc<dyn Memory>) -> Arc<dyn Memory> {
        // Relaxed, as all below: a number that publishes nothing.
        self.of(purpose).fetch_add(memory.len() as u64, Ordering::Relaxed);
        Arc::new(Counted { memory, purpose, count: self.clone() })
    }

    fn now(&self) -> MemoryUse {
        let calls = self.0.calls.load(Ordering::Relaxed);
        MemoryUse { calls, registrations: self.0.registrations.load(Ordering::Relaxed) }
    }

    fn of(&self, purpose: MemoryFor) -> &AtomicU64 {
        match purpose {
            MemoryFor::Calls => &self.0.calls,
            MemoryFor::Registrations => &self.0.registrations,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.of(self.purpose).fetch_sub(self.memory.len() as u64, Ordering::Relaxed);
    }
}

// SAFETY: the range is that of `memory`, which is kept.
unsafe impl Memory for Counted {
    fn address(&self) -> u64 {
        self.memory.address()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn address_space(&self) -> u64 {
        self.memory.address_space()
    }

    fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.memory.file()
    }
}

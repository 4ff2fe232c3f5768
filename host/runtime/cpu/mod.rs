//! The CPU as a device: kernels are native code, blocks are coroutines.
//!
//! ```text
//! block.rs     one block: a coroutine and the machine it sees
//! native.rs    such blocks on threads
//! seeded.rs    the other mode: one thread, a seeded schedule
//! adversary.rs its memory system
//! model_check  the third: all schedules, and all that memory may do
//! races.rs     whether accesses are ordered
//! history.rs   what was done to memory, for who explains a failure
//! ```
//!
//! A block that waits switches to another block, in some 20 ns and without the operating system; see
//! [`threads`](super::threads) for what happens when all of them wait. The runtime knows nothing of ranks and
//! communicators: budgets of waits, aborts and faults are the device code's.
//!
//! [`SeededRuntime`] is the same device for tests: one thread, a schedule drawn from a seed, a memory
//! system that is as unhelpful as the orderings allow, and an error in place of a hang.

mod adversary;
mod block;
mod history;
mod model_check;
mod native;
mod one_thread;
mod races;
mod seeded;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use self::adversary::Adversity;
pub use self::history::{Conflict, MemoryAccess, MemoryEvent};
pub use self::model_check::{Checked, ModelCheck, ModelCheckedRuntime, Output, Violation};
use self::native::Native;
pub use self::seeded::SeededRuntime;
use super::Settings;
use super::memory::{CallersMemory, HostMemory};
use super::multicast::HostMulticast;
use super::op::copy_in;
use super::threads::Threads;
use super::{Keep, Memory, Multicast, Runtime, StreamOps, WaitingBlock};
use crate::buffer::{DeviceBuffer, Element};
use crate::error::{Error, Result};

/// The CPU runtime.
///
/// Work goes on in background threads, and in every thread that waits for a stream.
pub struct CpuRuntime {
    threads: Threads<Native>,
}

impl CpuRuntime {
    /// A runtime for `cores` cores: so many queues of blocks and, once there is work for them, so many
    /// background threads. 0 counts as 1. What runs on it shares nothing with other runtimes.
    #[must_use]
    pub fn with_workers(cores: usize) -> Self {
        CpuRuntime { threads: Threads::new(cores, Native) }
    }

    /// `len` elements of the process's own memory from `start` on, which `keep` keeps alive: a buffer of every CPU runtime, without a
    /// copy. Without elements `start` is not looked at. For GPUs there is `CudaRuntime::buffer_of`.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use ferroccl::runtime::cpu::CpuRuntime;
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// let device = Device::cpu();
    /// let rank = Communicator::init_all(&device, 1)?.remove(0);
    /// let stream = device.stream()?;
    /// let (values, mut sum) = (Arc::new([1.0f32, 2.0]), [0.0; 2]);
    /// // SAFETY: the array is kept and only read; `sum` is there, and nobody else uses it, until the stream has run the call.
    /// let (send, recv) = unsafe {
    ///     let send = CpuRuntime::buffer_of(values.as_ptr().cast_mut(), 2, values.clone())?;
    ///     (send, CpuRuntime::buffer_of(sum.as_mut_ptr(), 2, Arc::new(()))?)
    /// };
    /// rank.all_reduce(&send, &recv, ReduceOp::Sum, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(sum, [1.0, 2.0]);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `start` is not aligned to an element's size, or the range is none.
    ///
    /// # Safety
    /// The range is memory that may be read as long as `keep` lives, and written by calls that have it as their output. Until a
    /// call has ended, nobody else writes it, nor reads what the call writes.
    pub unsafe fn buffer_of<T: Element>(
        start: *mut T,
        len: usize,
        keep: Keep,
    ) -> Result<DeviceBuffer<T>> {
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.filter(|bytes| start.addr().checked_add(*bytes).is_some());
        let Some(bytes) = bytes else {
            let reason = format!("{len} elements from {start:p} on are no range of memory");
            return Err(Error::argument("len", reason));
        };
        // SAFETY: the caller's.
        let memory = unsafe { CallersMemory::new(start.cast(), bytes, keep) };
        DeviceBuffer::in_memory(Arc::new(memory), 0, len).map_err(|error| match error {
            Error::InvalidArgument { reason, .. } => Error::argument("start", reason),
            other => other,
        })
    }

    /// A runtime for tests: what is launched queues up, and runs when any stream is waited for, on that
    /// thread alone and in a schedule that the seed decides; stores are late, out of order and torn where
    /// the orderings allow it; and blocks that wait for each other for ever get
    /// [`FaultKind::Deadlock`](ferroccl_device::abi::FaultKind::Deadlock). All that is to meet must be
    /// launched before the first `synchronize`. What nobody waits for does not run.
    ///
    /// While it exists, bulk copies of every runtime of the process take the slow, checked path.
    #[must_use]
    pub fn seeded(adversity: Adversity) -> SeededRuntime {
        SeededRuntime::new(adversity)
    }

    /// A runtime that tries everything: what is launched queues up, and when any stream is waited for, it runs in every way that the
    /// memory orders of its kernels allow, each time from the same memory. [`ModelCheckedRuntime::wrong`] has the first way that goes
    /// wrong; then the launches fail, too. It is for small launches: a word more that ranks share is a few times as many ways.
    ///
    /// Ranks have to reach each other's memory: there is no network, and no proxy.
    #[must_use]
    pub fn model_checked(config: ModelCheck) -> ModelCheckedRuntime {
        ModelCheckedRuntime::new(config)
    }
}

impl fmt::Debug for CpuRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuRuntime").field("cores", &self.threads.active()).finish_non_exhaustive()
    }
}

impl Runtime for CpuRuntime {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(HostMemory::allocate(bytes)?))
    }

    fn allocate_shared(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(HostMemory::shared(bytes)?))
    }

    fn export(&self, memory: &Arc<dyn Memory>) -> Result<Vec<u8>> {
        super::export_file(self.name(), memory)
    }

    fn can_multicast(&self, _: &Arc<dyn Memory>) -> Result<()> {
        Ok(())
    }

    fn create_multicast(&self, _: u32, _: usize) -> Result<Arc<dyn Multicast>> {
        Ok(Arc::new(HostMulticast))
    }

    fn open_multicast(&self, _: &[u8], _: u32, _: usize) -> Result<Arc<dyn Multicast>> {
        Ok(Arc::new(HostMulticast))
    }

    fn import(&self, handle: &[u8], bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(HostMemory::open(handle, bytes)?))
    }

    /// Kernels run in the process: they reach all of its memory.
    unsafe fn register(&self, _: u64, _: usize, _: &str) -> Result<Keep> {
        Ok(Arc::new(()))
    }

    unsafe fn write(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        copy_in(to, offset, bytes)
    }

    fn address_space(&self) -> u64 {
        0
    }

    fn stream(&self) -> Result<Arc<dyn StreamOps>> {
        Ok(self.threads.stream())
    }

    fn runs_small_calls_on_callers(&self) -> bool {
        true
    }

    fn parallelism(&self) -> u32 {
        u32::try_from(self.threads.active()).unwrap_or(u32::MAX)
    }

    fn waiting_blocks(&self, patience: Duration) -> Vec<WaitingBlock> {
        self.threads.waiting_blocks(patience)
    }

    fn share_host(&self, local_processes: usize) {
        self.threads.share_host(local_processes);
    }
}

/// The process's CPU runtime, with a queue for each worker thread of `settings`. The first call makes it.
#[must_use]
pub fn shared(settings: &Settings) -> Arc<CpuRuntime> {
    static SHARED: OnceLock<Arc<CpuRuntime>> = OnceLock::new();
    let make = || Arc::new(CpuRuntime::with_workers(settings.worker_threads()));
    Arc::clone(SHARED.get_or_init(make))
}

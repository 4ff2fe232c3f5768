//! Blocks on threads of the host: streams, queues and workers, whatever a block is.
//!
//! ```text
//! stream.rs    operations in order; a launch becomes blocks
//! callers.rs   the threads that launch and wait
//! executor.rs  who drives which queue; what a thread does that has nothing to run
//! queue.rs     the blocks of one core or caller, resumed round robin
//! workers.rs   background threads
//! backoff.rs   what a thread does that cannot go on
//! ```
//!
//! What a block is, a coroutine or a block of an emulator, is the business of [`Blocks`], a type
//! parameter: nothing is looked up while blocks run. A block is run until it has nothing to do, then the
//! next one is; see [`executor`] for what happens when all of them wait.

mod backoff;
mod callers;
mod executor;
mod queue;
mod stream;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferroccl_device::gpu::Waiting;
use ferroccl_device::kernels::Kernel;

use self::executor::Executor;
use self::stream::ThreadStream;
use super::op::WorkPtr;
use super::{Launch, StreamOps, WaitingBlock};
use crate::error::{Error, Result};

/// What the blocks of a runtime are: how they are made ready, started, and run.
pub(super) trait Blocks: Send + Sync + 'static {
    /// A launch that moves this many bytes wakes workers, which share its blocks; so many ranks of its communicator share the device. Smaller
    /// ones are their callers'.
    fn heavy_bytes(sharing: u32) -> u64;
    /// What a launch needs besides its blocks. Made when it is put in, dropped when it has ended.
    type Ready: Send + Sync;
    /// A block between its start and its end. Any thread may run it.
    type Block: Send;
    /// What blocks that have ended leave for later ones of their queue.
    type Pool: Default + Send;

    /// As [`Runtime::address_space`](crate::runtime::Runtime::address_space).
    fn address_space(&self) -> u64;

    /// Makes a launch ready that is put into stream number `stream`.
    ///
    /// # Errors
    /// Why it cannot run.
    fn prepare(&self, launch: &Launch, stream: u32) -> Result<Self::Ready>;

    /// The queue of a launch's first block; the others follow.
    fn home(ready: &Self::Ready) -> usize;

    /// Starts block `index` of a launch.
    ///
    /// # Errors
    /// Why it cannot start.
    ///
    /// # Safety
    /// `work` is what `kernel` expects, until the block has ended.
    unsafe fn start(
        &self,
        kernel: Kernel,
        work: WorkPtr,
        ready: &Self::Ready,
        index: u32,
        pool: &mut Self::Pool,
    ) -> Result<Self::Block>;

    /// Runs a block for a while. Never after it has ended or failed.
    fn run(&self, block: &mut Self::Block) -> Turn;

    /// What a block has waited for when it was run last, if that is known.
    fn waiting(_block: &Self::Block) -> Option<Waiting> {
        None
    }

    /// Takes leave of a block that has ended or failed.
    fn end(&self, block: Self::Block, pool: &mut Self::Pool);
}

/// What a block did when it was run.
pub(super) enum Turn {
    /// It got on.
    Moved,
    /// It waits for the same as before.
    Stuck,
    /// It has ended.
    Ended,
    /// It has ended, with this error.
    Failed(Error),
}

/// Queues and workers for the blocks of one runtime. When this and its streams are gone, the workers end,
/// after the work.
pub(super) struct Threads<B: Blocks> {
    handle: Arc<Handle<B>>,
    streams: AtomicU32,
}

/// Held by a runtime and its streams.
struct Handle<B: Blocks>(Arc<Executor<B>>);

impl<B: Blocks> Drop for Handle<B> {
    fn drop(&mut self) {
        self.0.pool.close();
    }
}

/// The most cores that a runtime uses.
const MAX_CORES: usize = 1024;

impl<B: Blocks> Threads<B> {
    /// So many queues and, once there is work for them, background threads; 0 counts as 1.
    pub(super) fn new(cores: usize, blocks: B) -> Self {
        let executor = Executor::new(cores.clamp(1, MAX_CORES), blocks);
        Threads { handle: Arc::new(Handle(Arc::new(executor))), streams: AtomicU32::new(0) }
    }

    pub(super) fn stream(&self) -> Arc<dyn StreamOps> {
        // Numbers wrap after 2^32 streams: they only tell neighbours apart.
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        Arc::new(ThreadStream::new(&self.handle, number))
    }

    /// Cores in use.
    pub(super) fn active(&self) -> usize {
        self.handle.0.active()
    }

    /// As [`Runtime::waiting_blocks`](crate::runtime::Runtime::waiting_blocks).
    pub(super) fn waiting_blocks(&self, patience: Duration) -> Vec<WaitingBlock> {
        self.handle.0.waiting_blocks(Instant::now() + patience)
    }

    /// Leaves their share of the cores to the other processes of this host.
    pub(super) fn share_host(&self, local_processes: usize) {
        self.handle.0.share_host(local_processes);
    }
}

//! Blocks of the emulator on threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use ferroccl_device::kernels::Kernel;
use ferroccl_ptx::emu::{BlockRun, Progress};

use super::emulated::{Emulated, FaultEpoch, Ready};
use crate::error::{Error, Result};
use crate::runtime::Launch;
use crate::runtime::op::{WorkPtr, panic_message, panicked};
use crate::runtime::threads::{Blocks, Turn};

/// Emulated blocks.
pub(super) struct EmulatedBlocks {
    emulated: Arc<Emulated>,
    /// The zero of all clocks.
    started: Instant,
}

/// A block that has started.
pub(super) struct EmulatedBlock {
    run: BlockRun,
    kernel: &'static str,
    epoch: Arc<FaultEpoch>,
    /// Whether it stands for its launch in the figures.
    first: bool,
}

impl EmulatedBlocks {
    pub(super) fn new(emulated: &Arc<Emulated>) -> Self {
        EmulatedBlocks { emulated: Arc::clone(emulated), started: Instant::now() }
    }
}

impl Blocks for EmulatedBlocks {
    type Ready = Ready;
    type Block = EmulatedBlock;
    type Pool = ();

    /// Any: a block takes far longer than to wake a core.
    fn heavy_bytes(_: u32) -> u64 {
        0
    }

    fn address_space(&self) -> u64 {
        self.emulated.space
    }

    fn prepare(&self, launch: &Launch, stream: u32) -> Result<Ready> {
        self.emulated.prepare(launch, stream, None)
    }

    /// Spread over the cores, also when each launch has a single block: what a block costs is its
    /// instructions, not its memory.
    fn home(ready: &Ready) -> usize {
        ready.stream as usize
    }

    unsafe fn start(
        &self,
        kernel: Kernel,
        _: WorkPtr,
        ready: &Ready,
        index: u32,
        (): &mut (),
    ) -> Result<EmulatedBlock> {
        let Some(grid) = &ready.grid else {
            return Err(Error::argument("blocks", "a launch without blocks has started one"));
        };
        if let Some(error) = ready.epoch.error() {
            return Err(error.clone());
        }
        let run = BlockRun::new(grid, index, self.started);
        Ok(EmulatedBlock {
            run,
            kernel: kernel.name,
            epoch: Arc::clone(&ready.epoch),
            first: index == 0,
        })
    }

    fn run(&self, block: &mut EmulatedBlock) -> Turn {
        if let Some(error) = block.epoch.error() {
            return Turn::Failed(error.clone());
        }
        let error = match catch_unwind(AssertUnwindSafe(|| block.run.run())) {
            Ok(Ok(Progress::Moved)) => return Turn::Moved,
            Ok(Ok(Progress::Stuck)) => return Turn::Stuck,
            Ok(Ok(Progress::Ended)) => {
                self.emulated.count(block.kernel, block.first.into(), block.run.counts());
                return Turn::Ended;
            }
            Ok(Err(fault)) => Error::Emulator(Arc::new(*fault)),
            Err(payload) => panicked(block.kernel, panic_message(payload.as_ref())),
        };
        Turn::Failed(self.emulated.end_epoch(&block.epoch, error))
    }

    fn end(&self, _: EmulatedBlock, (): &mut ()) {}
}

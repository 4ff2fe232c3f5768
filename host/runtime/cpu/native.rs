//! Kernels as native code, on threads: a block is a coroutine without an adversary.

use corosensei::stack::DefaultStack;
use ferroccl_device::abi::WaitKind;
use ferroccl_device::gpu::cpu::{Adversary, Machine};
use ferroccl_device::gpu::{Verdict, Waiting};
use ferroccl_device::kernels::Kernel;

use super::block::{self, BlockRun, Resumed, YieldReason, Yielder};
use crate::error::{Error, Result};
use crate::runtime::Launch;
use crate::runtime::op::{WorkPtr, panicked};
use crate::runtime::threads::{Blocks, Turn};
use ferroccl_topology::graph::tuning::LARGE_CALL_BYTES;

/// Native blocks.
pub(super) struct Native;

/// A block that has started.
pub(super) struct NativeBlock {
    run: BlockRun,
    kernel: &'static str,
    /// What it waited for when it paused last.
    waiting: Waiting,
}

/// Stacks that a queue keeps for later blocks.
#[derive(Default)]
pub(super) struct Stacks(Vec<DefaultStack>);

/// How many: MAX_CHANNELS of two ranks.
const POOLED_STACKS: usize = 64;

/// A machine without an adversary.
struct Plain<'a>(&'a Yielder);

impl Machine for Plain<'_> {
    #[inline]
    fn pause(&self, waiting: &Waiting) -> Verdict {
        self.0.suspend(YieldReason::Waits(*waiting))
    }

    fn adversary(&self) -> Option<&dyn Adversary> {
        None
    }

    #[inline]
    fn core_number(&self) -> u64 {
        // SAFETY: it takes no argument.
        let core = unsafe { libc::sched_getcpu() };
        u64::try_from(core).map_or(0, |core| core + 1)
    }
}

impl Blocks for Native {
    type Ready = ();
    type Block = NativeBlock;
    type Pool = Stacks;

    /// A rank alone in its process has a fourth of the work that four have there, for whom the size is measured: two processes over TCP on two
    /// cores take 20 us for an all-reduce of 64 KiB by themselves, and 35 with a worker that is woken for it.
    fn heavy_bytes(sharing: u32) -> u64 {
        if sharing == 1 { 4 * LARGE_CALL_BYTES } else { LARGE_CALL_BYTES }
    }

    fn address_space(&self) -> u64 {
        0
    }

    #[inline]
    fn prepare(&self, _: &Launch, _: u32) -> Result<()> {
        Ok(())
    }

    /// Channel `i` of all ranks of the process runs on core `i`, and its slots stay in that core's cache.
    #[inline]
    fn home((): &()) -> usize {
        0
    }

    unsafe fn start(
        &self,
        kernel: Kernel,
        work: WorkPtr,
        (): &(),
        index: u32,
        pool: &mut Stacks,
    ) -> Result<NativeBlock> {
        let stack = pool.0.pop().map_or_else(block::new_stack, Ok);
        let stack = stack.map_err(|e| Error::system("allocating the stack of a block", e))?;
        let run = BlockRun::new(stack, move |yielder| {
            let work = work; // the whole of it, which is `Send`; not the pointer inside
            // SAFETY: the caller's.
            unsafe { block::enter(index, &Plain(yielder), kernel, work.0) }
        });
        let waiting = Waiting { kind: WaitKind::None, rank: 0, peer: 0, channel: 0, step: 0 };
        Ok(NativeBlock { run, kernel: kernel.name, waiting })
    }

    #[inline]
    fn run(&self, block: &mut NativeBlock) -> Turn {
        match block.run.resume(None) {
            Resumed::Paused(YieldReason::Waits(waiting)) => {
                let moved = !same(&waiting, &block.waiting);
                block.waiting = waiting;
                if moved { Turn::Moved } else { Turn::Stuck }
            }
            Resumed::Paused(YieldReason::Preempted) => Turn::Stuck,
            Resumed::Ended => Turn::Ended,
            Resumed::Panicked(message) => Turn::Failed(panicked(block.kernel, message)),
        }
    }

    fn waiting(block: &NativeBlock) -> Option<Waiting> {
        (block.waiting.kind != WaitKind::None).then_some(block.waiting)
    }

    fn end(&self, block: NativeBlock, pool: &mut Stacks) {
        if pool.0.len() < POOLED_STACKS {
            pool.0.push(block.run.into_stack());
        }
    }
}

/// Whether a block that paused with `a` and then with `b` has not moved.
#[inline]
pub(super) fn same(a: &Waiting, b: &Waiting) -> bool {
    (a.step, a.kind, a.peer, a.channel) == (b.step, b.kind, b.peer, b.channel)
}

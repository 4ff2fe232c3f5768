//! One block of a launch: a coroutine that calls the kernel.
//!
//! The scheduler resumes it with a [`Verdict`] and gets back why it stopped ([`Resumed`]). The device
//! code finds the machine it runs on through a thread-local pointer ([`gpu::cpu::set_current`]);
//! [`BlockRun::resume`] sets it before the switch and takes it back after.
//!
//! Invariant: between two resumes nothing of a block is tied to a thread, so that the next one may
//! happen on another.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use ferroccl_device::abi::Work;
use ferroccl_device::gpu::cpu::{self, Machine};
use ferroccl_device::gpu::{Verdict, Waiting};
use ferroccl_device::kernels::Kernel;

use crate::runtime::op::panic_message;

/// Bytes of a block's stack, plus a guard page. A kernel needs a few KiB; a panic that prints its
/// backtrace needs most of the rest.
const STACK_BYTES: usize = 256 << 10;

/// Makes a stack. A pool reuses them: this costs two system calls and a page fault per touched page.
pub(super) fn new_stack() -> io::Result<DefaultStack> {
    DefaultStack::new(STACK_BYTES)
}

/// Why a block gave up the thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum YieldReason {
    /// It waits.
    Waits(Waiting),
    /// An adversary took the thread from it.
    Preempted,
}

/// What a block's machine switches back to the scheduler with.
pub(super) type Yielder = corosensei::Yielder<Verdict, YieldReason>;

/// What came of a resume.
#[derive(Debug)]
pub(super) enum Resumed {
    /// The block stopped and wants to be resumed.
    Paused(YieldReason),
    /// The kernel returned.
    Ended,
    /// The kernel panicked, with this message.
    Panicked(String),
}

/// A block between its creation and its end.
pub(super) struct BlockRun {
    coroutine: Coroutine<Verdict, YieldReason, (), DefaultStack>,
    /// The block as device code knows it: null until it first runs, then on the coroutine's stack.
    lane: *const cpu::Block<'static>,
}

// SAFETY: a coroutine may change threads between two resumes if nothing on its stack cares. On the
// stack are a kernel and its machine. Kernels are this project's device code: plain data, addresses of
// connections, and calls of `gpu`, which looks up the thread-local pointer anew on each call and never
// across a switch (`gpu::cpu::current` is not inlined for this reason). The machines are `Send` data.
unsafe impl Send for BlockRun {}

impl BlockRun {
    /// Makes a block that runs `body` on `stack`, to be resumed. `body` builds the machine around the
    /// yielder and calls [`enter`].
    pub(super) fn new(stack: DefaultStack, body: impl FnOnce(&Yielder) + Send + 'static) -> Self {
        BlockRun {
            coroutine: Coroutine::with_stack(stack, move |yielder, _: Verdict| body(yielder)),
            lane: ptr::null(),
        }
    }

    /// Runs it until it pauses or ends. `verdict` is what its `pause` returns. After
    /// [`Resumed::Ended`] and [`Resumed::Panicked`] it must not be resumed again.
    #[inline]
    pub(super) fn resume(&mut self, verdict: Verdict) -> Resumed {
        // SAFETY: `lane` is null or was current when the block stopped, on a stack that still exists.
        let outer = unsafe { cpu::set_current(self.lane) };
        let result = catch_unwind(AssertUnwindSafe(|| self.coroutine.resume(verdict)));
        // SAFETY: what was current on this thread before.
        self.lane = unsafe { cpu::set_current(outer) };
        match result {
            Ok(CoroutineResult::Yield(reason)) => Resumed::Paused(reason),
            Ok(CoroutineResult::Return(())) => Resumed::Ended,
            Err(payload) => Resumed::Panicked(panic_message(payload.as_ref())),
        }
    }

    /// The stack, for the next block. Only after the block has ended.
    pub(super) fn into_stack(self) -> DefaultStack {
        self.coroutine.into_stack()
    }

    /// Ends a block that does not end by itself: unwinds its stack as a panic would.
    pub(super) fn abandon(self) {
        self.abandoned();
    }

    /// As [`BlockRun::abandon`]; its stack, for the next block.
    pub(super) fn abandoned(mut self) -> DefaultStack {
        // SAFETY: as in `resume`.
        let outer = unsafe { cpu::set_current(self.lane) };
        // What its destructors panic with tells nothing that the caller does not report anyway.
        let _ = catch_unwind(AssertUnwindSafe(|| self.coroutine.force_unwind()));
        // SAFETY: as in `resume`.
        unsafe { cpu::set_current(outer) };
        self.coroutine.into_stack()
    }
}

/// Calls the kernel as block `index` on `machine`: the body of every block.
///
/// # Safety
/// `work` must be what `kernel` expects, valid until this returns.
pub(super) unsafe fn enter(index: u32, machine: &dyn Machine, kernel: Kernel, work: *const Work) {
    let block = cpu::Block { index, machine };
    name_current(&block);
    // SAFETY: the caller's.
    unsafe { (kernel.cpu)(work) }
}

/// Names the block on the thread that resumes it first; later resumes do it themselves. Not inlined, so
/// that no address of thread-local storage is left in a frame that changes threads.
#[inline(never)]
fn name_current(block: &cpu::Block<'_>) {
    // SAFETY: the block lives in `enter`'s frame, and `BlockRun::resume` replaces the pointer at each
    // switch out of that frame, by `pause` or by its end.
    unsafe { cpu::set_current(block) };
}

//! The operations of a stream, and a launch from its first block to its end. All runtimes of the host
//! share them: they know nothing of who runs what when, nor of what a block is.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ferroccl_device::abi::Work;
use ferroccl_device::kernels::Kernel;

use super::memory;
use super::sync::lock;
use super::{Argument, Done, Event, Keep, Launch, LaunchObserver, Memory};
use crate::error::{Error, Result};

/// One operation. `K` is a launch, as a runtime keeps it.
pub(super) enum Op<K> {
    Kernel(K),
    /// `bytes` to `to[offset..]`, which has been checked.
    CopyIn {
        to: Arc<dyn Memory>,
        offset: usize,
        bytes: Box<[u8]>,
    },
    Host(Box<dyn FnOnce() + Send>),
    /// The event happens; with the stream's error, if `true`.
    Record(Event, bool),
    Wait(Event),
}

/// Runs a function of the host.
pub(super) fn run_host(function: Box<dyn FnOnce() + Send>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(function)).map_err(|payload| Error::Panicked {
        kernel: "(host function)".to_owned(),
        message: panic_message(payload.as_ref()),
    })
}

/// Copies `bytes` to `to[offset..]`.
pub(super) fn copy_in(to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
    let to = memory::range(to, offset, bytes.len())?;
    // SAFETY: the range lies in an allocation that the caller's handle keeps; the stream's order keeps
    // other accesses away, as on any device.
    unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
    Ok(())
}

/// Copies `from[offset..]` to `bytes`.
pub(super) fn copy_out(from: &Arc<dyn Memory>, offset: usize, bytes: &mut [u8]) -> Result<()> {
    let from = memory::range(from, offset, bytes.len())?;
    // SAFETY: as in `copy_in`.
    unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
    Ok(())
}

/// A launch with what a runtime needs for it. Its blocks share it, and who ends the last one ends the launch.
pub(super) struct Launched<S, R> {
    pub(super) kernel: Kernel,
    pub(super) blocks: u32,
    /// Bytes the call moves.
    pub(super) bytes: u64,
    /// Ranks of the communicator that share the device.
    pub(super) sharing: u32,
    /// What the runtime has made ready for it. Before `argument`, which it may refer to.
    pub(super) ready: R,
    argument: Argument,
    observer: Option<(Arc<dyn LaunchObserver>, u64)>,
    /// Blocks that have not ended.
    left: AtomicU32,
    /// What happens at its end, and what is kept until then. Taken by the thread that ends the launch.
    end: Mutex<Option<(Done, Vec<Keep>)>>,
    /// What went wrong in a block, as far as the runtime saw it. In boxes: an error is large, and most launches have none.
    failure: OnceLock<Box<Error>>,
    /// What the blocks were told to give up for: the error unless `done` has one.
    verdict: OnceLock<Box<Error>>,
    /// The stream to go on with.
    stream: S,
}

/// The address of a launch's argument, for its blocks.
#[derive(Clone, Copy)]
pub(super) struct WorkPtr(pub(super) *const Work);

// SAFETY: blocks only read it, and the launch outlives them.
unsafe impl Send for WorkPtr {}

impl<S, R> Launched<S, R> {
    pub(super) fn new(launch: Launch, ready: R, stream: S) -> Self {
        let Launch { kernel, blocks, sharing, argument, keep, bytes, observer, done, .. } = launch;
        Launched {
            kernel,
            blocks,
            bytes,
            sharing,
            ready,
            argument,
            observer,
            left: AtomicU32::new(blocks),
            end: Mutex::new(Some((done, keep))),
            failure: OnceLock::new(),
            verdict: OnceLock::new(),
            stream,
        }
    }

    /// The launch has come to the head of its stream; `at_once` before [`StreamOps::launch`](super::StreamOps::launch) has returned.
    pub(super) fn begin(&self, at_once: bool) {
        if let Some((observer, number)) = &self.observer {
            observer.on_started(*number, at_once);
        }
    }

    pub(super) fn work(&self) -> WorkPtr {
        WorkPtr(self.argument.as_ptr())
    }

    /// Address of the communicator that the kernel works for.
    pub(super) fn comm(&self) -> u64 {
        self.argument.comm()
    }

    /// The stream that it is of.
    pub(super) fn stream(&self) -> &S {
        &self.stream
    }

    /// Notes an error of a block; the first counts.
    pub(super) fn fail(&self, error: Error) {
        let _ = self.failure.set(Box::new(error));
    }

    /// Notes why the blocks were told to give up; the first reason counts.
    pub(super) fn give_up(&self, error: Error) {
        let _ = self.verdict.set(Box::new(error));
    }

    /// Counts off a block that has ended: whether it was the last.
    pub(super) fn is_last_block(&self) -> bool {
        // Release and acquire: who ends the launch sees what the blocks of other threads have done.
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Runs `done` and drops what was kept, after the last block; once.
    pub(super) fn result(&self) -> Result<()> {
        let Some((done, keep)) = lock(&self.end).take() else { return Ok(()) };
        let failure = self.failure.get();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = done(failure.map(Box::as_ref));
            drop(keep);
            result
        }));
        let result = result.unwrap_or_else(|payload| {
            let message = format!("at its end: {}", panic_message(payload.as_ref()));
            Err(panicked(self.kernel.name, message))
        });
        // A panic comes first: what `done` says is often its consequence.
        let said = |by: &OnceLock<Box<Error>>| by.get().map_or(Ok(()), |e| Err(Error::clone(e)));
        said(&self.failure).and(result).and_then(|()| said(&self.verdict))
    }
}

/// The error of a kernel that panicked.
pub(super) fn panicked(kernel: &str, message: String) -> Error {
    Error::Panicked { kernel: kernel.to_owned(), message }
}

/// What a panic said.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "(a panic without a message)".to_owned(),
    }
}

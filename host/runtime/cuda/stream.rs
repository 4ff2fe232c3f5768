//! Streams of the driver: our own, and the caller's as they are.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::capture::{self, Check};
use super::driver::{self, RawStream};
use super::gpu::Gpu;
use super::watch::{End, Ends, Pending, Progress, Recorded, is_farewell};
use super::word::Word;
use crate::error::{Error, Result};
use crate::runtime::op::{panic_message, panicked};
use crate::runtime::{Done, Event, Keep, Launch, Memory, StreamOps, memory};

/// A stream.
pub(super) struct CudaStream {
    gpu: Arc<Gpu>,
    raw: RawStream,
    /// Whose it is: `None` is ours to destroy.
    keep: Option<Keep>,
    progress: Arc<Progress>,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above; the driver orders calls.
unsafe impl Sync for CudaStream {}

impl std::fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaStream")
            .field("gpu", &self.gpu.name)
            .field("raw", &self.raw)
            .field("own", &self.keep.is_none())
            .finish_non_exhaustive()
    }
}

/// The driver's side of an [`Event`]: where it was recorded.
struct Native {
    event: Recorded,
    stream: Weak<Progress>,
}

impl CudaStream {
    /// A stream of our own, which does not wait for the legacy stream.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let raw = gpu.run(|| {
            let mut raw = std::ptr::null_mut();
            // SAFETY: writes to a place that is there.
            unsafe { gpu.driver.stream_create(&raw mut raw, driver::STREAM_NON_BLOCKING) }
                .map_err(|e| gpu.error(&e))?;
            Ok(raw)
        })?;
        gpu.count_stream();
        Ok(CudaStream {
            gpu: Arc::clone(gpu),
            raw,
            keep: None,
            progress: Arc::new(Progress::new(gpu)?),
        })
    }

    /// The caller's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context.
    ///
    /// # Safety
    /// It is a stream as long as `keep` lives, and until what is put in has ended.
    pub(super) unsafe fn foreign(gpu: &Arc<Gpu>, raw: RawStream, keep: Keep) -> Result<Self> {
        let context = gpu.run(|| {
            let mut context = std::ptr::null_mut();
            // SAFETY: writes to a place that is there.
            unsafe { gpu.driver.stream_get_ctx(raw, &raw mut context) }
                .map_err(|e| gpu.error(&e))?;
            Ok(context)
        })?;
        if context != gpu.context {
            let reason = format!("a stream of another context than that used on {}", gpu.name);
            return Err(Error::argument("stream", reason));
        }
        gpu.count_stream();
        Ok(CudaStream {
            gpu: Arc::clone(gpu),
            raw,
            keep: Some(keep),
            progress: Arc::new(Progress::new(gpu)?),
        })
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn raw(&self) -> RawStream {
        self.raw
    }

    /// Waits for an event.
    pub(super) fn wait_mark(&self, event: &Recorded) -> Result<()> {
        let gpu = &self.gpu;
        gpu.enqueue(|| {
            // SAFETY: both are alive.
            unsafe { gpu.driver.stream_wait_event(self.raw, event.raw, 0) }
                .map_err(|e| gpu.error(&e))
        })
    }

    /// Records an event here.
    pub(super) fn mark(&self) -> Result<Recorded> {
        let gpu = &self.gpu;
        let event = Recorded { gpu: Arc::clone(gpu), raw: gpu.event()? };
        gpu.enqueue(|| {
            // SAFETY: both are alive.
            unsafe { gpu.driver.event_record(event.raw, self.raw) }.map_err(|e| gpu.error(&e))
        })?;
        Ok(event)
    }

    /// Something by which it is noticed that all that is in the stream by now has ended.
    fn end(&self, ends: &mut Ends) -> Result<End> {
        let Some(word) = self.progress.word() else { return Ok(End::Event(self.mark()?)) };
        if ends.sentinel.is_none() {
            ends.sentinel = Some(Arc::new(self.mark()?));
        }
        let (gpu, number) = (&self.gpu, ends.last + 1);
        gpu.enqueue(|| {
            // SAFETY: the word is pinned, and kept as long as anything is pending here.
            unsafe {
                let flags = driver::WRITE_VALUE_DEFAULT;
                gpu.driver.stream_write_value64(self.raw, word, number, flags)
            }
            .map_err(|e| gpu.error(&e))
        })?;
        ends.last = number;
        Ok(End::Number(number))
    }

    /// Has `then` called when all that is in the stream by now has ended.
    pub(super) fn then(&self, what: &'static str, then: Done) {
        // Held until it is in the list, which is in the order of the stream.
        let mut ends = self.progress.ends();
        match self.end(&mut ends) {
            Ok(end) => self.progress.push(Pending { end, what, then }),
            // The context is lost: nothing runs any more.
            Err(error) => {
                drop(ends);
                let result = then(Some(&error));
                self.progress.fail(result.err().unwrap_or(error));
            }
        }
    }

    /// Has `end` called when all that is in the stream by now has ended; or, where it is captured, when the graph is gone.
    pub(super) fn keep(&self, end: Box<dyn FnOnce() + Send>) -> Result<()> {
        if let Some((_, graph)) = capture::find(&self.gpu, self.raw)? {
            return capture::retain(&self.gpu, graph, end);
        }
        self.then(
            "(what is kept)",
            Box::new(move |_| {
                end();
                Ok(())
            }),
        );
        Ok(())
    }

    /// What does not go into a graph.
    fn refuse_capture(&self, what: &str) -> Result<()> {
        match self.capture_id() {
            None => Ok(()),
            Some(_) => {
                Err(Error::argument("stream", format!("{what} cannot be captured in a graph")))
            }
        }
    }

    /// Waits for something of the host.
    fn wait_for_host(&self, event: &Event) -> Result<()> {
        self.refuse_capture("waiting for the host")?;
        let gpu = &self.gpu;
        // A word of pinned memory: what the host writes there lets the stream go on.
        let word = Arc::new(Word::new(gpu)?);
        let at = word.address();
        let set = Arc::clone(&word);
        let progress = Arc::downgrade(&self.progress);
        let happened = move |result: Result<()>| {
            if let (Err(error), Some(progress)) = (result, progress.upgrade()) {
                progress.fail(error);
            }
            // What came before is seen by who sees it.
            set.low().store(1, Ordering::Release);
        };
        gpu.run(|| {
            // SAFETY: the word is pinned, and kept until the stream has passed, below.
            unsafe { gpu.driver.stream_wait_value32(self.raw, at, 1, driver::WAIT_VALUE_GEQ) }
                .map_err(|e| gpu.error(&e))
        })?;
        let happened = std::sync::Mutex::new(Some(happened));
        let happened = Arc::new(move |result| {
            if let Some(happened) = crate::runtime::sync::lock(&happened).take() {
                happened(result);
            }
        });
        let waiter = Arc::clone(&happened);
        if let Some(result) = event.result_or(move |result| waiter(result)) {
            happened(result);
        }
        self.then(
            "(a wait for the host)",
            Box::new(move |_| {
                drop(word);
                Ok(())
            }),
        );
        Ok(())
    }

    fn drain(&self) -> Result<()> {
        let gpu = &self.gpu;
        let result = gpu.run(|| {
            // SAFETY: the stream is alive.
            unsafe { gpu.driver.stream_synchronize(self.raw) }.map_err(|e| gpu.error(&e))
        });
        if result.is_err() {
            self.progress.look_for_errors();
        }
        self.progress.reap();
        self.progress.take_error().and(result)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        self.gpu.uncount_stream();
        if self.keep.is_none() {
            let gpu = &self.gpu;
            // What is in it runs to its end (cuStreamDestroy). An error is that of a context that is lost.
            // SAFETY: the stream is ours.
            let _ = gpu.run(|| unsafe { gpu.driver.stream_destroy(self.raw).map_err(Error::from) });
        }
    }
}

/// Calls a function of the host that a stream has come to, and drops it.
unsafe extern "C" fn call_once(data: *mut c_void) {
    // SAFETY: made by `host_function`, and called once.
    let function = unsafe { Box::from_raw(data.cast::<HostCall>()) };
    let HostCall { function, progress } = *function;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(function)) {
        progress.fail(panicked("(host function)", panic_message(panic.as_ref())));
    }
}

struct HostCall {
    function: Box<dyn FnOnce() + Send>,
    progress: Arc<Progress>,
}

impl StreamOps for CudaStream {
    fn address_space(&self) -> u64 {
        self.gpu.context as u64
    }

    unsafe fn launch(&self, launch: Launch) -> Result<()> {
        // A driver does not tell when a kernel starts: nobody is told.
        let Launch { kernel, blocks, threads, sharing, argument, keep, done, .. } = launch;
        let gpu = &self.gpu;
        let threads = crate::runtime::gpu_threads(&kernel, threads);
        let (function, each) = gpu.entry(&kernel, threads)?;
        let room = each * gpu.multiprocessors;
        let wanted = blocks.saturating_mul(sharing.max(1));
        if wanted > room {
            let what = format!("room for {} on {}", kernel.name, gpu.name);
            let reason = format!(
                "{sharing} ranks of {blocks} blocks of {threads} threads have to run at the same time, and its {} \
                 multiprocessors hold {room}: use fewer channels (NCCL_MAX_NCHANNELS) or fewer ranks on a GPU",
                gpu.multiprocessors
            );
            return Err(Error::Unavailable { what, reason });
        }
        let captured = capture::find(gpu, self.raw)?;
        let room = match captured {
            Some(_) => None,
            None => Some(gpu.room((kernel.name, self.raw), blocks, each)?),
        };
        if blocks > 0 {
            let mut arguments = [argument.as_ptr().cast_mut().cast::<c_void>()];
            let (to, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
            gpu.enqueue(|| {
                // SAFETY: the kernel takes the argument by value, which the driver copies; the rest is the caller's.
                unsafe {
                    let driver = gpu.driver;
                    driver
                        .launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, self.raw, to, none)
                }
                .map_err(|e| gpu.error(&e.doing(format!("launching {}", kernel.name))))
            })?;
        }
        let end = move |failure: Option<&Error>| {
            drop(room);
            if failure.is_some_and(is_farewell) {
                return Ok(());
            }
            let result = done(failure);
            drop(keep);
            result
        };
        match captured {
            Some((id, graph)) => {
                let end = move || {
                    // They hold the communicator, too.
                    drop(capture::take_checks(id));
                    drop(end(None));
                };
                capture::retain(gpu, graph, Box::new(end))
            }
            None => {
                self.then(kernel.name, Box::new(end));
                Ok(())
            }
        }
    }

    fn copy_in(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = memory::range(to, offset, bytes.len())? as u64;
        self.refuse_capture("a copy of the host's memory")?;
        let gpu = &self.gpu;
        // Memory that is not pinned is read before the call returns; what is pinned, when the stream comes by
        // (cuMemcpyHtoDAsync).
        gpu.run(|| {
            // SAFETY: the range was checked, and `bytes` is what it says.
            unsafe {
                gpu.driver.memcpy_htod_async(at, bytes.as_ptr().cast(), bytes.len(), self.raw)
            }
            .map_err(|e| gpu.error(&e))?;
            let ends = [bytes.first(), bytes.last()].into_iter().flatten();
            if ends.map(|byte| std::ptr::from_ref(byte) as u64).any(|at| gpu.is_known(at)) {
                // SAFETY: the stream is alive.
                unsafe { gpu.driver.stream_synchronize(self.raw) }.map_err(|e| gpu.error(&e))?;
            }
            Ok(())
        })?;
        let keep = Arc::clone(to);
        self.then(
            "(a copy to the device)",
            Box::new(move |_| {
                drop(keep);
                Ok(())
            }),
        );
        Ok(())
    }

    fn copy_out(&self, from: &Arc<dyn Memory>, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let at = memory::range(from, offset, bytes.len())? as u64;
        self.refuse_capture("a copy to the host's memory")?;
        // A copy to memory that is not pinned waits inside the driver for what is before it in the stream, and the context's other
        // callers wait with it: also the proxy, which copies what a kernel in this stream may be waiting for.
        self.drain()?;
        let gpu = &self.gpu;
        let copied = gpu.run(|| {
            // SAFETY: the range was checked, and `bytes` is there until the stream is drained, below.
            unsafe {
                gpu.driver.memcpy_dtoh_async(bytes.as_mut_ptr().cast(), at, bytes.len(), self.raw)
            }
            .map_err(|e| gpu.error(&e))
        });
        self.drain().and(copied)
    }

    fn host_function(&self, function: Box<dyn FnOnce() + Send>) {
        if let Err(error) = self.refuse_capture("a function of the host that runs once") {
            return self.progress.fail(error);
        }
        let progress = Arc::clone(&self.progress);
        let call = Box::into_raw(Box::new(HostCall { function, progress }));
        let gpu = &self.gpu;
        let launched = gpu.run(|| {
            // SAFETY: the function takes what it is given, once.
            unsafe { gpu.driver.launch_host_function(self.raw, call_once, call.cast()) }
                .map_err(|e| gpu.error(&e))
        });
        if let Err(error) = launched {
            // SAFETY: it will not be called.
            drop(unsafe { Box::from_raw(call) });
            self.progress.fail(error);
        }
    }

    fn repeat(&self, function: Arc<dyn Fn() + Send + Sync>) -> Result<()> {
        match capture::find(&self.gpu, self.raw)? {
            Some((_, graph)) => capture::host_node(&self.gpu, self.raw, graph, function),
            None => {
                function();
                Ok(())
            }
        }
    }

    fn capture_id(&self) -> Option<u64> {
        capture::id(&self.gpu, self.raw)
    }

    fn check_replays(&self, check: Check) {
        if let Some(id) = self.capture_id() {
            capture::add_check(id, check);
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn record(&self, event: &Event, with_error: bool) {
        // In a graph it happens each time that runs. Else what comes of it is known by the time that it has happened, for those
        // who go on behind it.
        if self.capture_id().is_none() {
            let (event, progress) = (event.clone(), Arc::downgrade(&self.progress));
            self.then(
                "(an event)",
                Box::new(move |failure| {
                    let error = match progress.upgrade() {
                        Some(progress) if with_error => progress.take_error(),
                        _ => Ok(()),
                    };
                    event.complete(failure.map_or(error, |failure| Err(failure.clone())));
                    Ok(())
                }),
            );
        }
        match self.mark() {
            Ok(recorded) => {
                let stream = Arc::downgrade(&self.progress);
                event.set_native(Arc::new(Native { event: recorded, stream }));
            }
            Err(error) => event.complete(Err(error)),
        }
    }

    fn wait(&self, event: &Event) {
        let native = event.native().and_then(|native| native.downcast::<Native>().ok());
        let Some(native) = native else {
            if let Err(error) = self.wait_for_host(event) {
                self.progress.fail(error);
            }
            return;
        };
        if let Err(error) = self.wait_mark(&native.event) {
            return self.progress.fail(error);
        }
        if self.capture_id().is_some() {
            return;
        }
        let event = event.clone();
        self.then(
            "(a wait)",
            Box::new(move |_| {
                // Its stream has come by: what it left there is known once that has been gone through.
                if let Some(other) = native.stream.upgrade() {
                    other.reap();
                }
                event.result_or(|_| {}).unwrap_or(Ok(()))
            }),
        );
    }

    fn synchronize(&self) -> Result<()> {
        self.drain()
    }

    fn query(&self) -> Result<bool> {
        let gpu = &self.gpu;
        let ended = gpu.run(|| {
            // SAFETY: the stream is alive.
            match unsafe { gpu.driver.stream_query(self.raw) } {
                Err(e) if e.code() == driver::NOT_READY => Ok(false),
                other => other.map(|()| true).map_err(|e| gpu.error(&e)),
            }
        });
        self.progress.reap();
        match ended {
            Ok(false) => Ok(false),
            other => self.progress.take_error().and(other),
        }
    }
}

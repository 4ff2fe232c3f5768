//! Graphs of captured calls, and timers: what a program does with the driver that knows only this library's streams.

use std::sync::Arc;

use super::capture::{self, Check};
use super::connections;
use super::driver::{self, Graph, GraphExec, RawEvent};
use super::gpu::Gpu;
use super::stream::CudaStream;
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::error::{Error, Result};

/// Calls that were captured, ready to be run as often as one likes (`cuGraphExec`). It keeps what they need: buffers and
/// communicators live as long as it does.
///
/// A communicator's calls are numbered when they are made, and a graph's when it is captured; so ranks must launch their
/// graphs, like all calls, in the same order.
#[derive(Debug)]
pub struct CudaGraph(Arc<Exec>);

struct Exec {
    gpu: Arc<Gpu>,
    graph: Graph,
    exec: GraphExec,
    checks: Vec<Check>,
}

// SAFETY: a graph may be launched from any thread, and is never changed.
unsafe impl Send for Exec {}
// SAFETY: as above.
unsafe impl Sync for Exec {}

impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("gpu", &self.gpu.name).finish_non_exhaustive()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        let gpu = &self.gpu;
        // SAFETY: made by `capture`, and dropped once. Errors are those of a context that is lost.
        let _ = gpu.run(|| unsafe {
            let _ = gpu.driver.graph_exec_destroy(self.exec);
            gpu.driver.graph_destroy(self.graph).map_err(Error::from)
        });
    }
}

/// The cuda runtime's side of a stream.
fn native(stream: &Stream) -> Result<&CudaStream> {
    let any = stream.ops().as_any();
    any.and_then(|any| any.downcast_ref()).ok_or_else(|| {
        Error::argument(
            "streams",
            "one of another runtime: graphs and timers are the cuda runtime's",
        )
    })
}

impl CudaGraph {
    /// What `calls` puts into `streams`, captured instead of run. All of them begin where the first one is, and end before
    /// it goes on.
    ///
    /// Each stream becomes a branch of the graph. **Branches of one graph may run beside each other, and CUDA does not promise that
    /// they do** ("Graph Structure" in NVIDIA's programming guide has the order of nodes, and no more). Ranks that wait for each
    /// other need it. Where that is too little, capture each rank's calls in a graph of its own, and launch these in streams of
    /// their own: streams with a hardware queue each do run beside each other. More branches than hardware queues are refused.
    ///
    /// # Errors
    /// That of `calls`; [`Error::InvalidArgument`] for streams of another runtime or of several GPUs, or none;
    /// [`Error::Unavailable`] for more streams than the process has hardware queues; [`Error::Cuda`].
    ///
    /// ```no_run
    /// use ferroccl::runtime::cuda::CudaGraph;
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// let device = Device::cuda(0)?;
    /// let rank = Communicator::init_all(&device, 1)?.remove(0);
    /// let (stream, buffer) = (device.stream()?, device.upload(&[1.0f32; 100])?);
    /// let graph = CudaGraph::capture(&[&stream], || {
    ///     rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)
    /// })?;
    /// for _ in 0..10 {
    ///     graph.launch(&stream)?;
    /// }
    /// stream.synchronize()?;
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn capture(streams: &[&Stream], calls: impl FnOnce() -> Result<()>) -> Result<Self> {
        let natives: Vec<&CudaStream> =
            streams.iter().map(|stream| native(stream)).collect::<Result<_>>()?;
        let (first, rest) = natives
            .split_first()
            .ok_or_else(|| Error::argument("streams", "none: there is nothing to capture"))?;
        let gpu = first.gpu();
        if rest.iter().any(|stream| stream.gpu().context != gpu.context) {
            let reason = "of several GPUs: capture each GPU's calls in a graph of its own";
            return Err(Error::argument("streams", reason));
        }
        let driver = gpu.driver;
        let (branches, queues) = (natives.len(), driver.connections());
        if branches > queues as usize {
            let what = format!("a graph of {branches} branches on {}", gpu.name);
            let reason = format!(
                "ranks wait for each other, and only {queues} branches can run at the same time ({}): capture fewer \
                 streams in a graph",
                connections::VARIABLE
            );
            return Err(Error::Unavailable { what, reason });
        }
        gpu.run(|| {
            // SAFETY: the stream is alive.
            unsafe { driver.stream_begin_capture(first.raw(), driver::CAPTURE_RELAXED) }
                .map_err(|e| gpu.error(&e))
        })?;
        let id = capture::id(gpu, first.raw());
        let result = (|| {
            let begin = first.mark()?;
            for stream in rest {
                stream.wait_mark(&begin)?;
            }
            calls()?;
            for stream in rest {
                first.wait_mark(&stream.mark()?)?;
            }
            Ok(())
        })();
        let mut graph = std::ptr::null_mut();
        let ended = gpu.run(|| {
            // SAFETY: begun above; writes to a place that is there.
            unsafe { driver.stream_end_capture(first.raw(), &raw mut graph) }
                .map_err(|e| gpu.error(&e))
        });
        let checks = id.map(capture::take_checks).unwrap_or_default();
        let destroy = |graph: Graph| {
            if !graph.is_null() {
                // SAFETY: ended above, and nobody else has it.
                let _ = gpu.run(|| unsafe { driver.graph_destroy(graph).map_err(Error::from) });
            }
        };
        if let Err(error) = result.and(ended) {
            destroy(graph);
            return Err(error);
        }
        let mut exec = std::ptr::null_mut();
        gpu.run(|| {
            // SAFETY: writes to a place that is there; the graph is complete.
            unsafe { driver.graph_instantiate(&raw mut exec, graph, 0) }.map_err(|e| gpu.error(&e))
        })
        .inspect_err(|_| destroy(graph))?;
        Ok(CudaGraph(Arc::new(Exec { gpu: Arc::clone(gpu), graph, exec, checks })))
    }

    /// Runs it in stream order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stream of another runtime, [`Error::Cuda`]. What happens later comes out of
    /// [`Stream::synchronize`].
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let stream = native(stream)?;
        let exec = &self.0;
        exec.gpu.run(|| {
            // SAFETY: the graph is kept until it has run, below.
            unsafe { exec.gpu.driver.graph_launch(exec.exec, stream.raw()) }
                .map_err(|e| exec.gpu.error(&e))
        })?;
        let exec = Arc::clone(exec);
        stream.then(
            "(a graph)",
            Box::new(move |failure| {
                let check = |result: Result<()>, check: &Check| result.and(check(failure));
                exec.checks.iter().fold(Ok(()), check)
            }),
        );
        Ok(())
    }
}

/// Enqueues a copy of all of `from` to the start of `to`, by the GPU's own means (`cuMemcpyDtoDAsync`): what a kernel's
/// bandwidth is compared with. It can be captured.
///
/// # Errors
/// [`Error::InvalidArgument`] when `to` is shorter, or the stream of another runtime; [`Error::Cuda`].
pub fn copy<T: Element>(
    from: &DeviceBuffer<T>,
    to: &DeviceBuffer<T>,
    stream: &Stream,
) -> Result<()> {
    if to.len() < from.len() {
        let reason = format!("{} elements do not fit a buffer of {}", from.len(), to.len());
        return Err(Error::argument("to", reason));
    }
    let stream = native(stream)?;
    let (gpu, bytes) = (stream.gpu(), from.len() * size_of::<T>());
    gpu.run(|| {
        // SAFETY: both ranges are of allocations that live until the stream has come by, below; or as long as the graph,
        // whose maker keeps them.
        unsafe { gpu.driver.memcpy_dtod_async(to.address(), from.address(), bytes, stream.raw()) }
            .map_err(|e| gpu.error(&e))
    })?;
    let keep = (from.clone(), to.clone());
    stream.keep(Box::new(move || drop(keep)))
}

/// Begins, or ends, what a profiler looks at that was told to wait for it (`cuProfilerStart`, `cuProfilerStop`): Nsight
/// Compute's ranges, in which kernels that wait for each other run together. Of the stream's context.
///
/// # Errors
/// [`Error::InvalidArgument`] for a stream of another runtime, [`Error::Cuda`].
pub fn profile(stream: &Stream, on: bool) -> Result<()> {
    let gpu = native(stream)?.gpu();
    gpu.run(|| {
        let driver = gpu.driver;
        // SAFETY: they take nothing.
        let told = unsafe { if on { driver.profiler_start() } else { driver.profiler_stop() } };
        told.map_err(|e| gpu.error(&e))
    })
}

/// Two places in a stream, and the time between them by the GPU's clock (`cuEventElapsedTime`).
///
/// ```no_run
/// use ferroccl::Device;
/// use ferroccl::runtime::cuda::CudaTimer;
///
/// let stream = Device::cuda(0)?.stream()?;
/// let timer = CudaTimer::start(&stream)?;
/// // calls
/// timer.stop(&stream)?;
/// stream.synchronize()?;
/// println!("{:.1} us", timer.seconds()? * 1e6);
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Debug)]
pub struct CudaTimer {
    gpu: Arc<Gpu>,
    /// The beginning and the end.
    events: [RawEvent; 2],
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for CudaTimer {}

impl CudaTimer {
    /// Begins where the stream is now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stream of another runtime, [`Error::Cuda`].
    pub fn start(stream: &Stream) -> Result<Self> {
        let gpu = Arc::clone(native(stream)?.gpu());
        let mut timer = CudaTimer { gpu, events: [std::ptr::null_mut(); 2] };
        for i in 0..2 {
            let CudaTimer { gpu, events } = &mut timer;
            gpu.run(|| {
                // SAFETY: writes to a place that is there.
                unsafe { gpu.driver.event_create(&raw mut events[i], 0) }.map_err(|e| gpu.error(&e))
            })?;
        }
        timer.record(0, stream)?;
        Ok(timer)
    }

    /// Ends where the stream is now.
    ///
    /// # Errors
    /// As [`CudaTimer::start`].
    pub fn stop(&self, stream: &Stream) -> Result<()> {
        self.record(1, stream)
    }

    /// Seconds between the two, once the stream has come by.
    ///
    /// # Errors
    /// [`Error::Cuda`] when it has not (`CUDA_ERROR_NOT_READY`), or was never stopped.
    pub fn seconds(&self) -> Result<f64> {
        let (gpu, [from, until]) = (&self.gpu, self.events);
        gpu.run(|| {
            let mut ms = 0.0;
            // SAFETY: writes to a place that is there; the events are ours.
            unsafe { gpu.driver.event_elapsed_time(&raw mut ms, from, until) }
                .map_err(|e| gpu.error(&e))?;
            Ok(f64::from(ms) / 1e3)
        })
    }

    fn record(&self, which: usize, stream: &Stream) -> Result<()> {
        let (gpu, raw) = (&self.gpu, native(stream)?.raw());
        gpu.run(|| {
            // SAFETY: both are alive.
            unsafe { gpu.driver.event_record(self.events[which], raw) }.map_err(|e| gpu.error(&e))
        })
    }
}

impl Drop for CudaTimer {
    fn drop(&mut self) {
        let gpu = &self.gpu;
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: ours, and dropped once. An error is that of a context that is lost.
            let _ = gpu.run(|| unsafe { gpu.driver.event_destroy(event).map_err(Error::from) });
        }
    }
}

//! Calls as operations of cuda-async.
//!
//! ```text
//! kernel ─► then ─► CallOperation ─► then ─► kernel ─► .await
//!                        │ execute, on the stream that cuda-async has chosen
//!                        ▼
//!        Buffers::prepare: kept and marked as used until the end ─► the calls, on our handle of that stream
//! ```
//!
//! A call that fails later, as one whose peer dies, ends its kernel: to CUDA, and so to cuda-async, it has ended well. So an
//! operation that is awaited by itself asks our stream at its end. In a chain nobody can: [`AsyncCalls`] says what to do there.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use ::cuda_async::device_context::with_default_device_policy;
use ::cuda_async::device_future::DeviceFuture;
use ::cuda_async::device_operation::{DeviceOp, ExecutionContext, GraphNode};
use ::cuda_async::error::DeviceError;
use ::cuda_core::Stream as CoreStream;

use super::{Buffers, CudaRuntime};
use crate::buffer::Stream;
use crate::comm::in_group;
use crate::error::{Error, Result};
use crate::finished::Finished;
use crate::runtime::sync::lock;

/// Makes operations of `cuda-async` (`DeviceOp`) of calls, on a GPU's primary context.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use cuda_async::device_operation::{DeviceOp, value};
/// use cuda_core::{Context, DeviceBuffer};
/// use ferroccl::runtime::cuda::{AsyncCalls, CudaRuntime};
/// use ferroccl::{Communicator, Device, ReduceOp};
///
/// # async fn sum() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = Context::new(0)?.new_stream()?;
/// let gradients = DeviceBuffer::from_host(&stream, &[1.0f32; 1000])?;
///
/// let runtime = Arc::new(CudaRuntime::new(0)?);
/// let comm = Arc::new(Communicator::init_all(&Device::new(runtime.clone()), 1)?.remove(0));
/// let calls = AsyncCalls::new(&runtime);
///
/// // By itself: its errors are all of the call's.
/// let comm_of_call = comm.clone();
/// let operation = calls.operation(gradients, move |gradients, stream| {
///     comm_of_call.all_reduce(&gradients, &gradients, ReduceOp::Sum, stream)
/// });
/// let gradients = operation.await?;
///
/// // In a chain with kernels and other operations, on one stream.
/// let comm_of_call = comm.clone();
/// let chain = value(gradients).then(|gradients| {
///     calls.operation(gradients, move |gradients, stream| {
///         comm_of_call.all_reduce(&gradients, &gradients, ReduceOp::Max, stream)
///     })
/// });
/// let gradients = chain.await?;
/// comm.async_error()?;
/// # drop(gradients);
/// # Ok(())
/// # }
/// ```
///
/// **After a chain ask the communicator**, as with NCCL: [`Communicator::async_error`](crate::Communicator::async_error). A call
/// that fails while it runs ends its kernel, and what follows it in the chain runs on what there is.
///
/// Several ranks on one thread: their calls wait for each other. Make them in one operation, in a [`group`](crate::group()), or await
/// their operations together; and allocate before, since `DeviceBuffer::from_host` and `zeroed` may wait for kernels that run.
#[derive(Clone, Debug)]
pub struct AsyncCalls {
    runtime: Arc<CudaRuntime>,
    streams: Arc<Streams>,
}

/// cuda-async's streams that were used, by their addresses: theirs, and our handle.
#[derive(Debug, Default)]
struct Streams(Mutex<HashMap<usize, (Arc<CoreStream>, Stream)>>);

/// Shares of a stream that are ours: the table's, and our handle's.
const OUR_SHARES: usize = 2;

impl AsyncCalls {
    /// For calls of communicators on this runtime.
    #[must_use]
    pub fn new(runtime: &Arc<CudaRuntime>) -> Self {
        AsyncCalls { runtime: Arc::clone(runtime), streams: Arc::default() }
    }

    /// What makes `calls` on `buffers`, of any number and of any communicators of this runtime, when it is run: `calls` is
    /// given the buffers and the stream as FerroCCL's. It gives the buffers back.
    ///
    /// It can be chained, captured in a graph (each rank's in a graph of its own, once a call has loaded the kernels), and run
    /// on any executor.
    ///
    /// # Errors
    /// Of the operation, when it is run: what the calls say; buffers that are being used on another stream, or are of another
    /// context; that the thread is in a [`group`](crate::group()), which would begin the calls later. When it is awaited by
    /// itself, or run by `sync` or `sync_on`, also what comes of the calls later, as a rank that is lost.
    pub fn operation<B, F>(&self, buffers: B, calls: F) -> CallOperation<B, F>
    where
        B: Buffers,
        F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
    {
        CallOperation { on: self.clone(), buffers, calls, used: Arc::default() }
    }

    /// Our handle of a stream, the same every time.
    fn stream(&self, stream: &Arc<CoreStream>) -> Result<Stream> {
        let mut streams = lock(&self.streams.0);
        if let Some((_, ours)) = streams.get(&(stream.cu_stream() as usize)) {
            return Ok(ours.clone());
        }
        // What nobody has any more goes when another one comes.
        streams.retain(|_, (theirs, _)| Arc::strong_count(theirs) > OUR_SHARES);
        let ours = self.runtime.stream_of_cuda_core(Arc::clone(stream))?;
        streams.insert(stream.cu_stream() as usize, (Arc::clone(stream), ours.clone()));
        Ok(ours)
    }
}

/// Calls that are made when it is run: see [`AsyncCalls::operation`].
#[must_use = "an operation does nothing unless it is run"]
pub struct CallOperation<B, F> {
    on: AsyncCalls,
    buffers: B,
    calls: F,
    /// The stream that it was run on.
    used: Arc<OnceLock<Stream>>,
}

impl<B, F> fmt::Debug for CallOperation<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallOperation").field("on", &self.on.runtime).finish_non_exhaustive()
    }
}

fn device_error(error: &Error) -> DeviceError {
    DeviceError::Anyhow(format!("FerroCCL: {error}"))
}

impl<B, F> CallOperation<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
    fn run(self, context: &ExecutionContext) -> Result<B> {
        if in_group() {
            let reason = "an operation cannot be run in a group: the group goes into its calls";
            return Err(Error::argument("calls", reason));
        }
        let stream = self.on.stream(context.get_cuda_stream())?;
        let ours = self.buffers.prepare(&self.on.runtime, context)?;
        let _ = self.used.set(stream.clone());
        (self.calls)(ours, &stream)?;
        Ok(self.buffers)
    }
}

impl<B, F> DeviceOp for CallOperation<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
    type Output = B;

    unsafe fn execute(self, context: &ExecutionContext) -> std::result::Result<B, DeviceError> {
        self.run(context).map_err(|e| device_error(&e))
    }

    fn sync_on(self, stream: &Arc<CoreStream>) -> std::result::Result<B, DeviceError> {
        let used = Arc::clone(&self.used);
        // The trait's own, and then what has come of the calls.
        let buffers = Plain(self).sync_on(stream)?;
        match used.get().map(Stream::synchronize) {
            Some(Err(error)) => Err(device_error(&error)),
            _ => Ok(buffers),
        }
    }
}

/// It allocates nothing that a graph would have to give back.
impl<B, F> GraphNode for CallOperation<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
}

impl<B, F> IntoFuture for CallOperation<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
    type Output = std::result::Result<B, DeviceError>;
    type IntoFuture = CallFuture<B, F>;

    fn into_future(self) -> CallFuture<B, F> {
        let used = Arc::clone(&self.used);
        let future = with_default_device_policy(|policy| self.schedule(policy));
        let inner = future.and_then(|scheduled| scheduled).unwrap_or_else(DeviceFuture::failed);
        CallFuture { inner, used, end: None }
    }
}

/// An operation with the trait's own ways to run it.
struct Plain<O>(O);

impl<O: DeviceOp> DeviceOp for Plain<O> {
    type Output = <O as DeviceOp>::Output;

    unsafe fn execute(
        self,
        context: &ExecutionContext,
    ) -> std::result::Result<<O as DeviceOp>::Output, DeviceError> {
        // SAFETY: the caller's.
        unsafe { self.0.execute(context) }
    }
}

impl<O: DeviceOp> IntoFuture for Plain<O> {
    type Output = std::result::Result<<O as DeviceOp>::Output, DeviceError>;
    type IntoFuture = DeviceFuture<<O as DeviceOp>::Output, Self>;

    fn into_future(self) -> Self::IntoFuture {
        let future = with_default_device_policy(|policy| self.schedule(policy));
        future.and_then(|scheduled| scheduled).unwrap_or_else(DeviceFuture::failed)
    }
}

/// Completes when the calls have ended, well or not: see [`AsyncCalls::operation`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct CallFuture<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
    inner: DeviceFuture<B, CallOperation<B, F>>,
    used: Arc<OnceLock<Stream>>,
    /// Once CUDA's part has ended.
    end: Option<(B, Finished)>,
}

impl<B, F> fmt::Debug for CallFuture<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").field("ended", &self.end.is_some()).finish_non_exhaustive()
    }
}

/// Nothing in it is pinned.
impl<B, F> Unpin for CallFuture<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
}

impl<B, F> Future for CallFuture<B, F>
where
    B: Buffers,
    F: FnOnce(B::Ours, &Stream) -> Result<()> + Send,
{
    type Output = std::result::Result<B, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.end.is_none() {
            let buffers = match Pin::new(&mut this.inner).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(buffers)) => buffers,
            };
            match this.used.get() {
                Some(stream) => this.end = Some((buffers, stream.finished())),
                None => return Poll::Ready(Ok(buffers)),
            }
        }
        let Some((_, finished)) = &mut this.end else { return Poll::Pending };
        let result = match Pin::new(finished).poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        let buffers = this.end.take().map(|(buffers, _)| buffers);
        Poll::Ready(match (result, buffers) {
            (Err(error), _) => Err(device_error(&error)),
            (Ok(()), Some(buffers)) => Ok(buffers),
            (Ok(()), None) => Err(DeviceError::Internal("polled after its end".into())),
        })
    }
}

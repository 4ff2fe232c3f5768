//! Waiting for a stream without a thread that waits: [`Stream::finished`] is a future, for any executor.
//!
//! ```text
//! Stream::finished ─► StreamOps::record(event, with its error) ─► whoever notices the end completes the event ─► Waker::wake
//! ```
//!
//! On a GPU that is the runtime's watch, on CPU devices a worker. Where nobody does, as in the emulator, what is in the stream runs when the
//! future is polled.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::buffer::Stream;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;

/// Completes when all that was in a stream has ended: see [`Stream::finished`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct Finished {
    stream: Stream,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Stream {
    /// A future that completes when everything put in so far has ended, as [`Stream::synchronize`] returns then. What is put in later it does not
    /// wait for. Dropping it takes nothing out of the stream.
    ///
    /// Calls are put into the stream when they are made, also when nothing is awaited. Each rank in a task of its own, on any executor:
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, DeviceBuffer, ReduceOp, Stream};
    ///
    /// async fn rank(comm: Communicator, sum: DeviceBuffer<f32>, stream: Stream) -> ferroccl::Result<Vec<f32>> {
    ///     comm.all_reduce(&sum, &sum, ReduceOp::Sum, &stream)?;
    ///     stream.finished().await?;
    ///     sum.to_vec(&stream)
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Device::cpu();
    /// let executor = tokio::runtime::Builder::new_current_thread().build()?;
    /// let mut tasks = Vec::new();
    /// for comm in Communicator::init_all(&device, 2)? {
    ///     let sum = device.upload(&[comm.rank() as f32 + 1.0; 4])?;
    ///     tasks.push(executor.spawn(rank(comm, sum, device.stream()?)));
    /// }
    /// for task in tasks {
    ///     assert_eq!(executor.block_on(task)??, [3.0; 4]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Ranks that share a task make all of their calls before the first `await`: one rank's call waits for the others'. With the feature
    /// `cuda-core`, `runtime::cuda::AsyncCalls` makes operations of `cuda-async` of calls.
    ///
    /// # Errors
    /// The future gives the first error of what ran since the last call, as [`Stream::synchronize`] does, and
    /// [`Error::InvalidArgument`] where the stream is being captured in a graph: it runs nothing then.
    pub fn finished(&self) -> Finished {
        let state = Arc::new(Mutex::new(State::default()));
        let finished = Finished { stream: self.clone(), state: Arc::clone(&state) };
        if self.ops().capture_id().is_some() {
            let reason = "what is captured in a graph does not run, and so does not finish";
            lock(&state).result = Some(Err(Error::argument("stream", reason)));
            return finished;
        }
        let event = self.record();
        let told = Arc::clone(&state);
        let tell = move |result| {
            let waker = {
                let mut state = lock(&told);
                state.result = Some(result);
                state.waker.take()
            };
            // An executor may poll at once, which locks the state.
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        if let Some(result) = event.result_or(tell) {
            lock(&state).result = Some(result);
        }
        finished
    }
}

impl Finished {
    /// What has come of it; else whom to wake.
    fn look(&self, cx: &Context<'_>) -> Option<Result<()>> {
        let mut state = lock(&self.state);
        if state.result.is_none() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        state.result.clone()
    }
}

impl Future for Finished {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(result) = self.look(cx) {
            return Poll::Ready(result);
        }
        // Where no thread drives a runtime this runs what is in the stream.
        if let Err(error) = self.stream.query() {
            return Poll::Ready(Err(error));
        }
        self.look(cx).map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &lock(&self.state).result {
            None => "pending",
            Some(Ok(())) => "finished",
            Some(Err(_)) => "failed",
        };
        write!(f, "Finished({state})")
    }
}

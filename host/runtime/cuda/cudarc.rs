//! Streams and buffers of applications that use the crate `cudarc`.
//!
//! No version of CUDA is asked of cudarc here, but that which the application's own features name: its bindings of two
//! versions are not to be had together.

use std::ffi::c_void;
use std::sync::Arc;

use ::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};

use super::{CudaRuntime, handed};
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::error::{Error, Result};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

impl CudaRuntime {
    /// A stream of the crate `cudarc`, which is kept as long as it is needed. Wrap it once, as with
    /// [`stream_of`](CudaRuntime::stream_of).
    ///
    /// `CudaContext::new` gives the primary context of its GPU, the same that [`CudaRuntime::new`] and
    /// [`Device::cuda`](crate::Device::cuda) use; for another one of cudarc's there is
    /// [`of_context`](CudaRuntime::of_context).
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use cudarc::driver::CudaContext;
    /// use ferroccl::runtime::cuda::CudaRuntime;
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let slice = Arc::new(stream.clone_htod(&[1.0f32; 1000])?);
    ///
    /// let runtime = Arc::new(CudaRuntime::new(0)?);
    /// let rank = Communicator::init_all(&Device::new(runtime.clone()), 1)?.remove(0);
    /// let buffer = runtime.buffer_of_cudarc(slice.clone())?;
    /// rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &runtime.stream_of_cudarc(stream.clone())?)?;
    ///
    /// let sum = stream.clone_dtoh(&*slice)?; // of the same stream, and so after it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context than the runtime's, or the per-thread default stream,
    /// which is another one on each of our threads; [`Error::Cuda`].
    pub fn stream_of_cudarc(&self, stream: Arc<CudaStream>) -> Result<Stream> {
        let raw = stream.cu_stream().cast::<c_void>();
        if raw as usize == PER_THREAD {
            let reason = "the per-thread default stream is another one on each thread".to_owned();
            return Err(Error::argument("stream", reason));
        }
        // The legacy default stream is of whichever context is current, so that the driver cannot tell.
        self.check("stream", stream.context())?;
        let keep = handed::keep(&self.gpu, stream);
        // SAFETY: the stream is cudarc's, which destroys it when the last share goes. What is put in by then ends by itself.
        unsafe { self.stream_of(raw, keep) }
    }

    /// A slice of the crate `cudarc`, which is kept as long as it is needed: all of its elements.
    ///
    /// **cudarc does not see our calls**, and the events by which it orders uses of a slice on several streams know nothing
    /// of them. So there are two ways:
    ///
    /// * Call on the slice's own stream, `slice.stream()`, and use the slice with cudarc there: all is in that stream's
    ///   order.
    /// * On other streams order it yourself: `ours.join(slice.stream())` before a call on `ours`, for what cudarc has put
    ///   into the slice's stream, and `other.join(&ours)` after it, for each stream that goes on with the slice.
    ///
    /// What cudarc has written by now on any stream, the slice's own stream waits for: that is how cudarc gives out an
    /// address. In a stream that is being captured that is an error of cudarc's, so make this before a capture.
    ///
    /// cudarc frees the slice when the last share goes, in the order of its stream where the GPU has memory pools; where it
    /// has none the thread waits for that stream, so keep a share until the calls that use it have ended.
    ///
    /// See [`stream_of_cudarc`](CudaRuntime::stream_of_cudarc) for an example. For elements of types that `cudarc` and
    /// FerroCCL call by different names there is [`buffer_of`](CudaRuntime::buffer_of).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context than the runtime's.
    pub fn buffer_of_cudarc<T: Element>(
        &self,
        slice: Arc<CudaSlice<T>>,
    ) -> Result<DeviceBuffer<T>> {
        self.check("slice", slice.context())?;
        // What is dropped here says that the slice has been read, in its own stream: nothing waits for that in vain.
        let (address, read) = slice.device_ptr(slice.stream());
        drop(read);
        let len = slice.len();
        let keep = handed::keep(&self.gpu, slice);
        // SAFETY: the range is an allocation of the context's GPU, which is freed when the last share goes. Every pattern
        // of bits is an element, and none is ever borrowed from device memory.
        unsafe { self.buffer_of(address, len, keep) }
    }

    fn check(&self, what: &'static str, context: &CudaContext) -> Result<()> {
        if context.cu_ctx().cast::<c_void>() == self.gpu.context {
            return Ok(());
        }
        let reason = format!("of another context than that used on {}", self.gpu.name);
        Err(Error::argument(what, reason))
    }
}

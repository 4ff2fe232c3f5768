//! Streams and buffers of applications that use NVIDIA's crate `cuda-core`, and calls as operations of `cuda-async`.
//!
//! ```text
//! mod.rs        streams and buffers, for calls as everywhere
//! buffers.rs    what an operation takes and gives back
//! operation.rs  calls as a DeviceOp, which is chained with kernels and awaited
//! ```

mod buffers;
mod operation;

use std::ffi::c_void;
use std::sync::Arc;

use ::cuda_core::{Context, DeviceBuffer as CoreBuffer, Stream as CoreStream};

pub use self::buffers::Buffers;
pub use self::operation::{AsyncCalls, CallFuture, CallOperation};
use super::{CudaRuntime, handed};
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::error::{Error, Result};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

impl CudaRuntime {
    /// A stream of the crate `cuda-core`, which is kept as long as it is needed. Wrap it once, as with
    /// [`stream_of`](CudaRuntime::stream_of).
    ///
    /// `Context::new` gives the primary context of its GPU, the same that [`CudaRuntime::new`] and
    /// [`Device::cuda`](crate::Device::cuda) use; for another one of cuda-core's there is
    /// [`of_context`](CudaRuntime::of_context).
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use cuda_core::{Context, DeviceBuffer};
    /// use ferroccl::runtime::cuda::CudaRuntime;
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = Context::new(0)?.new_stream()?;
    /// let memory = Arc::new(DeviceBuffer::from_host(&stream, &[1.0f32; 1000])?);
    ///
    /// let runtime = Arc::new(CudaRuntime::new(0)?);
    /// let rank = Communicator::init_all(&Device::new(runtime.clone()), 1)?.remove(0);
    /// let buffer = runtime.buffer_of_cuda_core(memory.clone())?;
    /// rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &runtime.stream_of_cuda_core(stream.clone())?)?;
    ///
    /// let sum = memory.to_host_vec(&stream)?; // of the same stream, and so after it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context than the runtime's, or the per-thread default stream,
    /// which is another one on each of our threads; [`Error::Cuda`].
    pub fn stream_of_cuda_core(&self, stream: Arc<CoreStream>) -> Result<Stream> {
        let raw = stream.cu_stream().cast::<c_void>();
        if raw as usize == PER_THREAD {
            let reason = "the per-thread default stream is another one on each thread".to_owned();
            return Err(Error::argument("stream", reason));
        }
        // The legacy default stream is of whichever context is current, so that the driver cannot tell.
        self.check("stream", stream.context())?;
        let keep = handed::keep(&self.gpu, stream);
        // SAFETY: the stream is cuda-core's, which destroys it when the last share goes. What is put in by then ends by itself.
        unsafe { self.stream_of(raw, keep) }
    }

    /// A buffer of the crate `cuda-core`, which is kept as long as it is needed: all of its elements.
    ///
    /// **cuda-core does not see these calls**, and does not refuse what else is done with the buffer on other streams. Call on
    /// the stream that uses the buffer, or order streams by `join`. What is called through [`AsyncCalls`] it sees.
    ///
    /// See [`stream_of_cuda_core`](CudaRuntime::stream_of_cuda_core) for an example.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context than the runtime's.
    pub fn buffer_of_cuda_core<T: Element>(
        &self,
        buffer: Arc<CoreBuffer<T>>,
    ) -> Result<DeviceBuffer<T>> {
        self.check("buffer", buffer.context())?;
        let (address, len) = (buffer.cu_deviceptr(), buffer.len());
        let keep = handed::keep(&self.gpu, buffer);
        // SAFETY: the range is an allocation of the context's GPU, which is freed when the last share goes. Every pattern
        // of bits is an element, and none is ever borrowed from device memory.
        unsafe { self.buffer_of(address, len, keep) }
    }

    fn check(&self, what: &'static str, context: &Context) -> Result<()> {
        if context.cu_ctx().cast::<c_void>() == self.gpu.context {
            return Ok(());
        }
        let reason = format!("of another context than that used on {}", self.gpu.name);
        Err(Error::argument(what, reason))
    }
}

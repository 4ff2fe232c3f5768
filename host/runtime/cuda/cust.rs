//! Streams and buffers of applications that use the crate `cust`.
//!
//! cust declares the driver's functions and has the linker find them; `ferroccl_cuda_link` defines them, so that a program
//! still starts without a driver.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ::cust::memory::{DeviceBuffer as CustBuffer, DeviceCopy};
use ::cust::stream::Stream as CustStream;
// A crate that is not named is not linked.
use ferroccl_cuda_link as _;

use super::gpu::Gpu;
use super::{CudaRuntime, driver, handed};
use crate::buffer::{DeviceBuffer, Element, Stream};
use crate::error::{Error, Result};

impl CudaRuntime {
    /// A stream of the crate `cust`, which is kept as long as it is needed. Wrap it once, as with
    /// [`stream_of`](CudaRuntime::stream_of).
    ///
    /// cust's `Context` is the primary context of its GPU, the same that [`CudaRuntime::new`] and
    /// [`Device::cuda`](crate::Device::cuda) use; for one of cust's `context::legacy` there is
    /// [`of_context`](CudaRuntime::of_context).
    ///
    /// **All of cust's streams wait for the legacy stream, and it for them**: `Stream::new` drops `NON_BLOCKING`. What cust
    /// does at once, such as `DeviceBuffer::from_slice` and `copy_to`, is done there. So it comes after the calls that are
    /// under way in any such stream, and it must not stand between the calls of two ranks of this process: the first
    /// rank's kernels wait for the second's, which are put in only after it. A stream of [`Device::stream`](crate::Device::stream)
    /// waits for none.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use cust::memory::{CopyDestination, DeviceBuffer};
    /// use cust::stream::{Stream, StreamFlags};
    /// use ferroccl::runtime::cuda::CudaRuntime;
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let _context = cust::quick_init()?;
    /// let stream = Arc::new(Stream::new(StreamFlags::DEFAULT, None)?);
    /// let memory = Arc::new(DeviceBuffer::from_slice(&[1.0f32; 1000])?);
    ///
    /// let runtime = Arc::new(CudaRuntime::new(0)?);
    /// let rank = Communicator::init_all(&Device::new(runtime.clone()), 1)?.remove(0);
    /// let buffer = runtime.buffer_of_cust(memory.clone())?;
    /// rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &runtime.stream_of_cust(stream.clone())?)?;
    ///
    /// stream.synchronize()?;
    /// let mut sum = [0.0; 1000];
    /// memory.copy_to(&mut sum)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context than the runtime's; [`Error::Cuda`].
    pub fn stream_of_cust(&self, stream: Arc<CustStream>) -> Result<Stream> {
        let raw = stream.as_inner().cast::<c_void>();
        let keep = handed::keep(&self.gpu, stream);
        // SAFETY: the stream is cust's, which destroys it when the last share goes. What is put in by then ends by itself.
        unsafe { self.stream_of(raw, keep) }
    }

    /// A buffer of the crate `cust`, which is kept as long as it is needed: all of its elements.
    ///
    /// Who orders what is done with it is the caller: calls are in the order of their streams, as cust's own are. Reading
    /// it on another stream while a call writes it gives any values of `T`.
    ///
    /// cust frees it when the last share goes, by `cuMemFree`, which waits for all kernels of the context. So keep a share
    /// until the calls that use it have ended.
    ///
    /// See [`stream_of_cust`](CudaRuntime::stream_of_cust) for an example. Elements of 16 and 8 bits that are not integers
    /// are not cust's: there is [`buffer_of`](CudaRuntime::buffer_of) for their memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is of another context than the runtime's; [`Error::Cuda`].
    pub fn buffer_of_cust<T: Element + DeviceCopy>(
        &self,
        buffer: Arc<CustBuffer<T>>,
    ) -> Result<DeviceBuffer<T>> {
        let (address, len) = (buffer.as_device_ptr().as_raw(), buffer.len());
        // cust has no memory for no elements.
        if len > 0 {
            check(&self.gpu, address)?;
        }
        let keep = handed::keep(&self.gpu, buffer);
        // SAFETY: the range is an allocation of the context's GPU, which is freed when the last share goes. Every pattern
        // of bits is an element, and none is ever borrowed from device memory.
        unsafe { self.buffer_of(address, len, keep) }
    }
}

/// Whether memory at `address` is of the GPU's context.
fn check(gpu: &Gpu, address: u64) -> Result<()> {
    let (mut context, mut ordinal): (*mut c_void, c_int) = (std::ptr::null_mut(), -1);
    gpu.run(|| {
        let driver = gpu.driver;
        // SAFETY: writes a context to a place that is there.
        unsafe {
            let to = (&raw mut context).cast();
            driver.pointer_get_attribute(to, driver::POINTER_CONTEXT, address)
        }
        .map_err(|e| gpu.error(&e))?;
        if context.is_null() {
            // What was allocated in stream order (`uninitialized_async`) is of a pool, and so of a GPU, and of no context.
            // SAFETY: writes a number to a place that is there.
            unsafe {
                let to = (&raw mut ordinal).cast();
                driver.pointer_get_attribute(to, driver::POINTER_ORDINAL, address)
            }
            .map_err(|e| gpu.error(&e))?;
        }
        Ok(())
    })?;
    let ours = c_int::try_from(gpu.ordinal).is_ok_and(|ours| ours == ordinal);
    if context == gpu.context || (context.is_null() && ours) {
        return Ok(());
    }
    let reason = format!("memory of another context than that used on {}", gpu.name);
    Err(Error::argument("buffer", reason))
}

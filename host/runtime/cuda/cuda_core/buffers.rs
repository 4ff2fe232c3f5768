//! What an operation takes and gives back: buffers of cuda-core's, alone or several.

use std::sync::Arc;

use ::cuda_async::device_box::DeviceBox;
use ::cuda_async::device_operation::ExecutionContext;
use ::cuda_core::{Context, DeviceBuffer as CoreBuffer, RawDeviceBuffer};

use super::CudaRuntime;
use crate::buffer::{DeviceBuffer, Element};
use crate::error::{Error, Result};

/// Buffers of `cuda-core` and `cuda-async` that calls of an operation use: a `DeviceBuffer<T>`, a `DeviceBox<[T]>`, a share of
/// one, and tuples, arrays and vectors of these.
///
/// Each counts as written while the operation runs, because a call may: until it has ended, cuda-core refuses uses on other
/// streams (`CUDA_ERROR_NOT_READY`).
///
/// A tensor of `cutile`'s comes and goes without a copy by `Tensor::into_buffer` and `Tensor::from_buffer`.
pub trait Buffers: Send {
    /// The same memory, as calls take it.
    type Ours;

    /// Tells the operation's context of each, which keeps it until the operation has ended, and gives what calls take.
    #[doc(hidden)]
    fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours>;
}

/// `len` elements of an allocation.
fn prepare<T: Element>(
    runtime: &CudaRuntime,
    context: &ExecutionContext,
    storage: &RawDeviceBuffer,
    len: usize,
) -> Result<DeviceBuffer<T>> {
    let of: &Arc<Context> = storage.context();
    runtime.check("buffers", of)?;
    let refused = |reason: String| Error::argument("buffers", reason);
    context.retain_buffer(storage.clone(), true).map_err(|e| refused(e.to_string()))?;
    // A lease keeps the allocation, and counts neither as a view nor, as one of a recording, as an access: when the operation has ended,
    // the buffer is its owner's alone, however late our share of it goes.
    let keep = storage.acquire(context.get_cuda_stream(), true, true);
    let keep = Arc::new(keep.map_err(|e| refused(e.to_string()))?);
    // SAFETY: the range is an allocation of the context's GPU, which the lease keeps. Every pattern of bits is an element, and none
    // is ever borrowed from device memory.
    unsafe { runtime.buffer_of(storage.cu_deviceptr(), len, keep) }
}

impl<T: Element> Buffers for CoreBuffer<T> {
    type Ours = DeviceBuffer<T>;

    fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours> {
        prepare(runtime, context, self.storage(), self.len())
    }
}

impl<T: Element> Buffers for DeviceBox<[T]> {
    type Ours = DeviceBuffer<T>;

    fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours> {
        prepare(runtime, context, self.storage(), self.len())
    }
}

impl<B: Buffers + Sync> Buffers for Arc<B> {
    type Ours = B::Ours;

    fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours> {
        (**self).prepare(runtime, context)
    }
}

impl<B: Buffers> Buffers for Vec<B> {
    type Ours = Vec<B::Ours>;

    fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours> {
        self.iter().map(|buffer| buffer.prepare(runtime, context)).collect()
    }
}

impl<B: Buffers, const N: usize> Buffers for [B; N] {
    type Ours = [B::Ours; N];

    fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours> {
        let all: Result<Vec<_>> = self.iter().map(|b| b.prepare(runtime, context)).collect();
        Ok(all?.try_into().unwrap_or_else(|_| unreachable!("as many as there are")))
    }
}

/// Implements [`Buffers`] for a tuple.
macro_rules! tuple {
    ($($name:ident $place:tt),+) => {
        impl<$($name: Buffers),+> Buffers for ($($name,)+) {
            type Ours = ($($name::Ours,)+);

            fn prepare(&self, runtime: &CudaRuntime, context: &ExecutionContext) -> Result<Self::Ours> {
                Ok(($(self.$place.prepare(runtime, context)?,)+))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

//! Tensors of candle's on the CPU as FerroCCL's buffers: the memory itself, without a copy.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;

use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Tensor};
use ferroccl::DeviceBuffer;
use ferroccl::runtime::cpu::CpuRuntime;

/// An operation that changes nothing and notes where a tensor's elements are: in-place operations are how candle lends them to be written.
struct Locate(Cell<(*mut f32, usize)>);

impl InplaceOp1 for Locate {
    fn name(&self) -> &'static str {
        "locate"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else {
            candle_core::bail!("a tensor of 32-bit floats is expected");
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("a contiguous tensor is expected, not one of {layout:?}");
        };
        let values = &mut values[start..end];
        self.0.set((values.as_mut_ptr(), values.len()));
        Ok(())
    }
}

/// The tensor's memory, which calls may read and write.
///
/// # Safety
/// From a call with this buffer until it has ended nobody reads or writes the tensor, nor another one of the same memory.
pub unsafe fn buffer_of(tensor: &Tensor) -> Result<DeviceBuffer<f32>> {
    let place = Locate(Cell::new((ptr::null_mut(), 0)));
    tensor.inplace_op1(&place)?;
    let (start, len) = place.0.get();
    // SAFETY: the tensor's storage is neither moved nor freed as long as there is a handle; else the caller's.
    unsafe { CpuRuntime::buffer_of(start, len, Arc::new(tensor.clone())) }.map_err(Error::wrap)
}

//! The caller's memory as buffers.

use std::ffi::c_void;
use std::sync::Arc;

use ferroccl::runtime::cpu::CpuRuntime;
use ferroccl::{DeviceBuffer, Element};

use crate::answer::Failure;
use crate::memory;
use crate::place::Place;

/// `len` elements at `pointer`, the argument `name`.
pub(crate) fn buffer<T: Element>(
    place: &Place,
    name: &str,
    pointer: *const c_void,
    len: usize,
) -> Result<DeviceBuffer<T>, Failure> {
    let wrong = |reason: String| Failure::argument(name, reason);
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| wrong(format!("{len} elements are more than memory has")))?;
    if pointer.is_null() && len > 0 {
        return Err(wrong(format!("is NULL, and the call has {len} elements")));
    }
    let names = [("memory", name), ("address", name), ("start", name), ("len", name)];
    let named = |error| Failure::of(error, &names);
    // Kernels go by numbers.
    let address = pointer.expose_provenance();
    if address.checked_add(bytes).is_none() {
        return Err(wrong(format!("{len} elements from {address:#x} on are no range of memory")));
    }
    if len > 0
        && let Some((memory, offset)) = memory::allocation_of(address, bytes)
    {
        return DeviceBuffer::in_memory(memory, offset, len).map_err(named);
    }
    match &place.gpu {
        // SAFETY: as with NCCL, a program keeps the memory of a call until the call has ended.
        None => unsafe { CpuRuntime::buffer_of(pointer.cast_mut().cast(), len, Arc::new(())) },
        // SAFETY: as with NCCL, a program keeps the memory of a call until the call has ended.
        Some(gpu) => unsafe { gpu.runtime.buffer_of(address as u64, len, Arc::new(())) },
    }
    .map_err(named)
}

/// `count` elements for each of `ranks` ranks.
pub(crate) fn times(name: &str, count: usize, ranks: u32) -> Result<usize, Failure> {
    count.checked_mul(ranks as usize).ok_or_else(|| {
        Failure::argument(
            name,
            format!("{count} elements of each of {ranks} ranks are more than memory has"),
        )
    })
}

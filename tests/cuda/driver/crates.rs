//! What is called by applications alone, through the crates that they use: nothing of it is FerroCCL's.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use crate::stream::{cuStreamCreate, stream};
use crate::{
    Ctx, INVALID_VALUE, STACK, code, context, device, driver, memory, ordered, plain, setting,
};

/// Whether GPUs have memory pools (`CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`).
pub(crate) fn pools() -> c_int {
    setting("FAKE_CUDA_POOLS", 1)
}

/// Waits for the kernels of a context.
fn drain(context: &Ctx) -> Result<(), c_int> {
    while context.running.load(std::sync::atomic::Ordering::Acquire) > 0 {
        std::thread::sleep(Duration::from_micros(20));
    }
    match context.sticky.load(std::sync::atomic::Ordering::Relaxed) {
        0 => Ok(()),
        code => Err(code),
    }
}

plain! {
    cuCtxSetCurrent(which: *mut c_void) {
        let context = if which.is_null() { None } else { Some(context(which)?) };
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(context);
        });
        Ok(())
    }
    // cuda-core's, before the first launch of a graph: here there is nothing to do.
    cuGraphUpload(_graph: *mut c_void, _into: *mut c_void) { Ok(()) }
    cuDevicePrimaryCtxSetFlags_v2(of: c_int, _flags: c_uint) { device(of).map(drop) }
}

driver! {
    cuCtxSynchronize() |context| {
        drain(context)
    }
    cuStreamCreateWithPriority(to: *mut *mut c_void, flags: c_uint, _priority: c_int) |_context| {
        // SAFETY: the caller's place.
        match unsafe { cuStreamCreate(to, flags) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
    // Of the legacy stream, which waits for streams that do not say otherwise: here for all.
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) |context| {
        drain(context)?;
        if !memory::known(to, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        let _reaching = memory::Reaching::new();
        // SAFETY: as much as is said, on both sides.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes) };
        Ok(())
    }
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) |context| {
        drain(context)?;
        if !memory::known(from, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        let _reaching = memory::Reaching::new();
        // SAFETY: as much as is said, on both sides.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.cast::<u8>(), bytes) };
        Ok(())
    }
    // Sooner than it has to be.
    cuMemAllocAsync(to: *mut u64, bytes: usize, into: *mut c_void) |_context| {
        if pools() == 0 {
            return Err(801);
        }
        stream(into)?;
        let at = memory::allocate(bytes, None)?;
        // SAFETY: the caller's place.
        unsafe { *to = at };
        Ok(())
    }
    cuMemFreeAsync(at: u64, into: *mut c_void) |_context| {
        if !memory::known(at, 1) {
            return Err(INVALID_VALUE);
        }
        let stream = stream(into)?;
        stream.enter();
        stream.ops.host_function(Box::new(move || {
            // Who frees twice is told by the first call that finds it gone.
            let _ = memory::free(at);
        }));
        Ok(())
    }
}

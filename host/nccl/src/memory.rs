//! `ncclMemAlloc` and `ncclMemFree`: memory that other GPUs and processes may reach, for windows.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError, RwLock};

use ferroccl::runtime::Memory;

use crate::answer::{Done, Failure, out};
use crate::place::Place;

/// An allocation, and the device that it is of.
struct Allocation {
    memory: Arc<dyn Memory>,
    _place: Arc<Place>,
}

/// All allocations, by address.
static ALLOCATIONS: RwLock<BTreeMap<usize, Allocation>> = RwLock::new(BTreeMap::new());

/// The allocation that a range is in, and the range's place there.
pub(crate) fn allocation_of(address: usize, bytes: usize) -> Option<(Arc<dyn Memory>, usize)> {
    let all = ALLOCATIONS.read().unwrap_or_else(PoisonError::into_inner);
    let (start, allocation) = all.range(..=address).next_back()?;
    let offset = address - start;
    let fits = offset.checked_add(bytes)? <= allocation.memory.len();
    fits.then(|| (Arc::clone(&allocation.memory), offset))
}

export! {
    /// Allocates memory for windows.
    answer ncclMemAlloc, pncclMemAlloc(ptr: *mut *mut c_void, size: usize) {
        let at = out(ptr, "ptr")?;
        let place = Place::current()?;
        // An allocation of nothing has an address, too.
        let memory = place.device.runtime().allocate_window(size.max(1));
        let memory = memory.map_err(|e| Failure::of(e, &[("bytes", "size")]))?;
        let address = memory.address() as usize;
        let mut all = ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(address, Allocation { memory, _place: place });
        at.write(std::ptr::with_exposed_provenance_mut(address));
        Ok(Done::Yes)
    }

    /// Frees what `ncclMemAlloc` gave; calls that are under way, and windows, keep it as long as they need it.
    answer ncclMemFree, pncclMemFree(ptr: *mut c_void) {
        if ptr.is_null() {
            return Ok(Done::Yes);
        }
        let removed = ALLOCATIONS.write().unwrap_or_else(PoisonError::into_inner).remove(&ptr.addr());
        match removed {
            Some(_) => Ok(Done::Yes),
            None => Err(Failure::argument("ptr", format!("{ptr:p} is not from ncclMemAlloc"))),
        }
    }
}

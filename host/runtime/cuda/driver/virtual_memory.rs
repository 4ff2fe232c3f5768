//! Virtual memory management, and multicast objects: what `cuda.h` has for them. The functions that every driver has are in
//! [`Api`](super::Api).

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

use super::{CudaError, Device, Driver};

/// Physical memory of a device, or a multicast object: `CUmemGenericAllocationHandle`.
pub(crate) type AllocationHandle = u64;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const ALLOCATION_PINNED: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const HANDLE_FILE_DESCRIPTOR: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const ACCESS_READ_WRITE: c_int = 3;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`, `CU_MULTICAST_GRANULARITY_MINIMUM`.
pub(crate) const GRANULARITY_MINIMUM: c_int = 0;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct AllocationProp {
    kind: c_int,
    requested_handle_types: c_int,
    location: Location,
    win32_handle_meta_data: *mut c_void,
    alloc_flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct AccessDesc {
    location: Location,
    flags: c_int,
}

/// `CUmulticastObjectProp`.
#[repr(C)]
pub(crate) struct MulticastProp {
    num_devices: c_uint,
    size: usize,
    handle_types: u64,
    flags: u64,
}

impl Location {
    fn of(device: Device) -> Self {
        Location { kind: LOCATION_DEVICE, id: device }
    }
}

impl AllocationProp {
    /// Memory of a device, which can be handed to other processes as a file descriptor.
    pub(crate) fn shareable(device: Device) -> Self {
        AllocationProp {
            kind: ALLOCATION_PINNED,
            requested_handle_types: HANDLE_FILE_DESCRIPTOR,
            location: Location::of(device),
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: [0; 8],
        }
    }
}

impl AccessDesc {
    /// A device reads and writes.
    pub(crate) fn of(device: Device) -> Self {
        AccessDesc { location: Location::of(device), flags: ACCESS_READ_WRITE }
    }
}

impl MulticastProp {
    /// An object of so many devices and bytes, which can be handed to other processes as a file descriptor.
    pub(crate) fn shareable(devices: u32, bytes: usize) -> Self {
        let handle_types = HANDLE_FILE_DESCRIPTOR as u64;
        MulticastProp { num_devices: devices, size: bytes, handle_types, flags: 0 }
    }
}

// What a C compiler says of these types (`sizeof`, `offsetof`) with the headers of CUDA 12.9 and 13.5.
const _: () = {
    assert!(size_of::<Location>() == 8);
    assert!(size_of::<AllocationProp>() == 32);
    assert!(std::mem::offset_of!(AllocationProp, requested_handle_types) == 4);
    assert!(std::mem::offset_of!(AllocationProp, location) == 8);
    assert!(std::mem::offset_of!(AllocationProp, win32_handle_meta_data) == 16);
    assert!(std::mem::offset_of!(AllocationProp, alloc_flags) == 24);
    assert!(size_of::<AccessDesc>() == 12);
    assert!(std::mem::offset_of!(AccessDesc, flags) == 8);
    assert!(size_of::<MulticastProp>() == 32);
    assert!(std::mem::offset_of!(MulticastProp, size) == 8);
    assert!(std::mem::offset_of!(MulticastProp, handle_types) == 16);
    assert!(std::mem::offset_of!(MulticastProp, flags) == 24);
};

/// The functions of multicast objects.
#[derive(Clone, Copy)]
pub(crate) struct MulticastCalls {
    driver: &'static Driver,
    api: &'static MulticastApi,
}

api! {
    /// The functions of multicast objects, which a driver of CUDA 12.0 does not have.
    MulticastApi, of MulticastCalls;

    create = "cuMulticastCreate" (handle: *mut AllocationHandle, prop: *const MulticastProp);
    add_device = "cuMulticastAddDevice" (handle: AllocationHandle, device: Device);
    bind_mem = "cuMulticastBindMem" (handle: AllocationHandle, offset: usize, memory: AllocationHandle, memory_offset: usize,
        bytes: usize, flags: u64);
    unbind = "cuMulticastUnbind" (handle: AllocationHandle, device: Device, offset: usize, bytes: usize);
    get_granularity = "cuMulticastGetGranularity" (granularity: *mut usize, prop: *const MulticastProp, option: c_int);
}

impl MulticastCalls {
    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        self.driver.check(call, code)
    }
}

impl MulticastApi {
    /// The error is the name of a function that is missing.
    pub(super) fn find(library: &Library) -> Result<MulticastApi, &'static str> {
        // SAFETY: the types are those of cuda.h.
        unsafe { Self::of(library) }
    }
}

impl Driver {
    /// The functions of multicast objects.
    ///
    /// # Errors
    /// The name of a function that the driver does not have.
    pub(crate) fn multicast(&'static self) -> Result<MulticastCalls, &'static str> {
        let api = self.multicast.as_ref().map_err(|symbol| *symbol)?;
        Ok(MulticastCalls { driver: self, api })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_functions_of_multicast_objects_is_told_by_the_first_that_is_missing() {
        // SAFETY: this program has it loaded already.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        assert_eq!(MulticastApi::find(&library).err(), Some("cuMulticastCreate"));
    }
}

//! Virtual memory management: physical memory is a memfd each, whose name says what it is; addresses are reserved, and mapped to it.
//!
//! Fresh mappings are not to be touched, by the host's page protection, until some GPU has access to them.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::fs::{File, read_link};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use crate::multicast::{self, Object};
use crate::{Ctx, INVALID_VALUE, Kind, count, device, driver, lock, memory};

/// What sizes and addresses are multiples of: as on an H100.
pub(crate) const GRANULE: usize = 2 << 20;
/// The names of memory and objects among memfds, `memory` with the number of the GPU behind it.
const NAMES: (&str, &str) = ("fake-cuda-memory-", "fake-cuda-object");

/// What a handle stands for.
pub(crate) struct Physical {
    pub(crate) file: OwnedFd,
    pub(crate) bytes: usize,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// Memory of a GPU.
    Memory(c_int),
    Multicast(Object),
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct AllocationProp {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    meta_data: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct AccessDesc {
    location: Location,
    flags: c_int,
}

/// Addresses that are taken.
struct Reservation {
    bytes: usize,
    mapped: Option<Mapped>,
}

struct Mapped {
    of: Arc<Physical>,
    /// The GPUs that have access.
    access: Vec<c_int>,
}

/// Handles, by number. A mapping has its own share of what is mapped: a handle may be released before.
static HANDLES: Mutex<BTreeMap<u64, Arc<Physical>>> = Mutex::new(BTreeMap::new());
static RESERVED: Mutex<BTreeMap<u64, Reservation>> = Mutex::new(BTreeMap::new());

pub(crate) fn handle(number: u64) -> Result<Arc<Physical>, c_int> {
    lock(&HANDLES).get(&number).cloned().ok_or(INVALID_VALUE)
}

/// A handle of its own for it.
pub(crate) fn add_handle(physical: Physical) -> u64 {
    static NEXT: Mutex<u64> = Mutex::new(0x0bad_0000);
    let mut next = lock(&NEXT);
    *next += 1;
    count(Kind::Handle, 1);
    lock(&HANDLES).insert(*next, Arc::new(physical));
    *next
}

/// A memfd of `bytes` bytes for memory of a GPU, or for an object.
pub(crate) fn file(of: Option<c_int>, bytes: usize) -> Result<OwnedFd, c_int> {
    let name = of.map_or(NAMES.1.to_owned(), |gpu| format!("{}{gpu}", NAMES.0));
    let name = CString::new(name).map_err(|_| INVALID_VALUE)?;
    // SAFETY: a name that ends with a zero; then a size; then the descriptor is ours alone.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(2);
        }
        let file = OwnedFd::from_raw_fd(fd);
        let sized = libc::ftruncate(fd, bytes as libc::off_t) == 0;
        if sized { Ok(file) } else { Err(2) }
    }
}

/// Where, in what is mapped there, an address is.
pub(crate) fn place(at: u64) -> Result<(Arc<Physical>, usize), c_int> {
    let reserved = lock(&RESERVED);
    let (start, reservation) = reserved.range(..=at).next_back().ok_or(INVALID_VALUE)?;
    let mapped = reservation.mapped.as_ref().ok_or(INVALID_VALUE)?;
    let offset = (at - start) as usize;
    if offset >= reservation.bytes {
        Err(INVALID_VALUE)
    } else {
        Ok((Arc::clone(&mapped.of), offset))
    }
}

fn is_whole(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULE)
}

/// The GPU of what is to be allocated: all that is asked for is that it can be shared.
unsafe fn wanted(prop: *const AllocationProp) -> Result<&'static Ctx, c_int> {
    // SAFETY: the caller's place.
    let prop = unsafe { &*prop };
    let (kind, location) = (prop.kind, prop.location);
    let plain = prop.meta_data.is_null() && prop.flags == [0; 8];
    if kind != 1 || prop.handle_types != 1 || location.kind != 1 || !plain {
        return Err(INVALID_VALUE);
    }
    if multicast::setting() & 6 == 6 { device(location.id) } else { Err(801) }
}

/// Maps `of` at `at`, or nothing; nobody may touch it for now.
fn map_at(at: u64, bytes: usize, of: Option<&OwnedFd>) -> Result<(), c_int> {
    let (flags, fd) = match of {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let flags = flags | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the addresses are reserved, and nobody else's.
    let mapped = unsafe { libc::mmap(at as *mut c_void, bytes, libc::PROT_NONE, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(2) } else { Ok(()) }
}

driver! {
    cuMemGetAllocationGranularity(to: *mut usize, prop: *const AllocationProp, _option: c_int) |_context| {
        // SAFETY: the caller's places.
        unsafe {
            wanted(prop)?;
            *to = GRANULE;
        }
        Ok(())
    }
    cuMemCreate(to: *mut u64, bytes: usize, prop: *const AllocationProp, flags: u64) |context| {
        // SAFETY: the caller's place.
        let gpu = unsafe { wanted(prop)? };
        if !is_whole(bytes) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if bytes > 1 << 34 {
            return Err(2);
        }
        context.wait_for_kernels()?;
        let file = file(Some(gpu.device), bytes)?;
        if bytes <= 4 * GRANULE {
            // Fresh device memory is anything but zeros.
            let copy = File::from(file.try_clone().map_err(|_| 2)?);
            copy.write_all_at(&vec![0xcd; bytes], 0).map_err(|_| 2)?;
        }
        let number = add_handle(Physical { file, bytes, what: What::Memory(gpu.device) });
        // SAFETY: the caller's place.
        unsafe { *to = number };
        Ok(())
    }
    cuMemRelease(number: u64) |context| {
        // A driver would let it be used as long as it is mapped or bound; we have no use for that.
        let physical = handle(number)?;
        if multicast::is_bound(number) {
            return Err(INVALID_VALUE);
        }
        if lock(&RESERVED).values().any(|at| at.mapped.as_ref().is_some_and(|m| Arc::ptr_eq(&m.of, &physical))) {
            return Err(INVALID_VALUE);
        }
        context.wait_for_kernels()?;
        lock(&HANDLES).remove(&number).ok_or(INVALID_VALUE)?;
        count(Kind::Handle, -1);
        Ok(())
    }
    cuMemAddressReserve(to: *mut u64, bytes: usize, alignment: usize, hint: u64, flags: u64) |_context| {
        if !is_whole(bytes) || !(alignment == 0 || alignment.is_power_of_two()) || hint != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let (none, more) = (std::ptr::null_mut(), bytes + GRANULE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the system's choice; then what is not needed of it.
        let at = unsafe {
            let at = libc::mmap(none, more, libc::PROT_NONE, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return Err(2);
            }
            let before = (at as usize).next_multiple_of(GRANULE) - at as usize;
            if before > 0 {
                libc::munmap(at, before);
            }
            let start = at.wrapping_byte_add(before);
            libc::munmap(start.wrapping_byte_add(bytes), GRANULE - before);
            start as u64
        };
        count(Kind::Reservation, 1);
        lock(&RESERVED).insert(at, Reservation { bytes, mapped: None });
        // SAFETY: the caller's place.
        unsafe { *to = at };
        Ok(())
    }
    cuMemAddressFree(at: u64, bytes: usize) |_context| {
        let mut reserved = lock(&RESERVED);
        let whole = reserved.get(&at).is_some_and(|of| of.bytes == bytes && of.mapped.is_none());
        if !whole {
            return Err(INVALID_VALUE);
        }
        reserved.remove(&at);
        count(Kind::Reservation, -1);
        // SAFETY: reserved above, and nothing is mapped there.
        unsafe { libc::munmap(at as *mut c_void, bytes) };
        Ok(())
    }
    cuMemMap(at: u64, bytes: usize, offset: usize, number: u64, flags: u64) |context| {
        let of = handle(number)?;
        let mut reserved = lock(&RESERVED);
        let free = reserved.get_mut(&at).filter(|here| here.bytes == bytes && here.mapped.is_none());
        let here = free.ok_or(INVALID_VALUE)?;
        if bytes > of.bytes || offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        match &of.what {
            // A driver waits for the devices that are missing; nobody would add them here.
            What::Multicast(object) if !object.is_complete()? => return Err(401),
            What::Multicast(_) => {}
            What::Memory(_) => map_at(at, bytes, Some(&of.file))?,
        }
        here.mapped = Some(Mapped { of, access: Vec::new() });
        drop(reserved);
        count(Kind::Mapped, 1);
        context.wait_for_kernels()
    }
    cuMemUnmap(at: u64, bytes: usize) |context| {
        context.wait_for_kernels()?;
        let mut reserved = lock(&RESERVED);
        let here = reserved.get_mut(&at).filter(|here| here.bytes == bytes).ok_or(INVALID_VALUE)?;
        let mapped = here.mapped.take().ok_or(INVALID_VALUE)?;
        count(Kind::Mapped, -1);
        if matches!(mapped.of.what, What::Memory(_)) {
            if !mapped.access.is_empty() {
                memory::remove(at, Kind::Reached)?;
            }
            map_at(at, bytes, None)?;
        }
        Ok(())
    }
    cuMemSetAccess(at: u64, bytes: usize, desc: *const AccessDesc, n: usize) |context| {
        context.wait_for_kernels()?;
        // SAFETY: as many as is said.
        let all = unsafe { std::slice::from_raw_parts(desc, n) };
        let mut reserved = lock(&RESERVED);
        let here = reserved.get_mut(&at).filter(|here| here.bytes == bytes).ok_or(INVALID_VALUE)?;
        let mapped = here.mapped.as_mut().ok_or(INVALID_VALUE)?;
        for AccessDesc { location, flags } in all {
            let gpu = device(location.id)?.device;
            let of = match mapped.of.what {
                What::Memory(of) => of,
                What::Multicast(_) => gpu,
            };
            if location.kind != 1 || *flags != 3 {
                return Err(INVALID_VALUE);
            }
            if of != gpu && crate::setting("FAKE_CUDA_PEERS", 1) == 0 {
                return Err(217);
            }
            // Nothing is at the addresses of a multicast object: kernels that run here find the members by themselves.
            if mapped.access.is_empty() && matches!(mapped.of.what, What::Memory(_)) {
                // SAFETY: mapped above.
                unsafe { libc::mprotect(at as *mut c_void, bytes, libc::PROT_READ | libc::PROT_WRITE) };
                // Neither cards nor CUDA IPC reach it, so it is of no context.
                memory::add(at, bytes, Kind::Reached, None, None);
            }
            if !mapped.access.contains(&gpu) {
                mapped.access.push(gpu);
            }
        }
        Ok(())
    }
    // What tests ask for.
    cuMemGetAccess(to: *mut u64, location: *const Location, at: u64) |_context| {
        // SAFETY: the caller's place.
        let location = unsafe { *location };
        let reserved = lock(&RESERVED);
        let mapped = reserved.get(&at).and_then(|here| here.mapped.as_ref()).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's place.
        unsafe { *to = if mapped.access.contains(&location.id) { 3 } else { 0 } };
        Ok(())
    }
    cuMemExportToShareableHandle(to: *mut c_void, number: u64, kind: c_int, flags: u64) |_context| {
        if kind != 1 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let copy = handle(number)?.file.try_clone().map_err(|_| 2)?;
        // SAFETY: the caller's place, for a descriptor.
        unsafe { *to.cast::<c_int>() = copy.into_raw_fd() };
        Ok(())
    }
    cuMemImportFromShareableHandle(to: *mut u64, descriptor: *mut c_void, kind: c_int) |_context| {
        let fd = c_int::try_from(descriptor as usize).map_err(|_| INVALID_VALUE)?;
        if kind != 1 {
            return Err(INVALID_VALUE);
        }
        let name = read_link(format!("/proc/self/fd/{fd}")).map_err(|_| INVALID_VALUE)?;
        let name = name.to_string_lossy().replace(" (deleted)", "");
        let name = name.strip_prefix("/memfd:").ok_or(INVALID_VALUE)?;
        // SAFETY: it is open, as it has a name.
        let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|_| 2)?;
        let size = File::from(file.try_clone().map_err(|_| 2)?).metadata().map_err(|_| 2)?.len();
        let (what, bytes) = if name == NAMES.1 {
            let object = Object::open(&file)?;
            let bytes = object.bytes();
            (What::Multicast(object), bytes)
        } else {
            let gpu = name.strip_prefix(NAMES.0).and_then(|gpu| gpu.parse().ok());
            (What::Memory(gpu.ok_or(INVALID_VALUE)?), size as usize)
        };
        let number = add_handle(Physical { file, bytes, what });
        // SAFETY: the caller's place.
        unsafe { *to = number };
        Ok(())
    }
}

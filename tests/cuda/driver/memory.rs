//! Device memory is a memfd each, so that other processes can open it; what kernels may touch is known.
//!
//! The host must not touch it. With `FAKE_CUDA_GUARD=1` its pages are there only while a kernel or a copy runs ([`Reaching`]): whoever
//! touches it at another time gets a signal, as with a GPU. That costs a system call for each allocation at each beginning and end.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use crate::{Ctx, INVALID_VALUE, Kind, count, driver, lock, setting};

/// A range that kernels reach.
pub(crate) struct Range {
    pub(crate) bytes: usize,
    kind: Kind,
    /// The context it is of.
    context: usize,
    /// What it is a mapping of.
    file: Option<OwnedFd>,
    /// How often another process's was opened.
    opened: usize,
    origin: Option<[u8; 64]>,
}

static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

/// Whether `bytes` from `at` on are memory that kernels reach.
pub(crate) fn known(at: u64, bytes: u64) -> bool {
    let ranges = lock(&RANGES);
    let before = ranges.range(..=at).next_back();
    before.is_some_and(|(start, range)| at + bytes <= start + range.bytes as u64)
}

/// All of it: where, and how many bytes.
pub(crate) fn ranges() -> Vec<(u64, usize)> {
    lock(&RANGES).iter().map(|(at, range)| (*at, range.bytes)).collect()
}

/// How many kernels and copies are under way.
static REACHING: Mutex<usize> = Mutex::new(0);

/// While there is one, device memory is there.
pub(crate) struct Reaching(());

impl Reaching {
    pub(crate) fn new() -> Self {
        let mut reaching = lock(&REACHING);
        *reaching += 1;
        if *reaching == 1 {
            protect_all(libc::PROT_READ | libc::PROT_WRITE);
        }
        Reaching(())
    }
}

impl Drop for Reaching {
    fn drop(&mut self) {
        let mut reaching = lock(&REACHING);
        *reaching -= 1;
        if *reaching == 0 {
            protect_all(libc::PROT_NONE);
        }
    }
}

fn protect_all(protection: c_int) {
    if !guards() {
        return;
    }
    for (at, range) in &*lock(&RANGES) {
        if matches!(range.kind, Kind::Allocation) {
            // SAFETY: a mapping of ours, which is there as long as the range is in the list.
            unsafe { libc::mprotect(*at as *mut c_void, range.bytes, protection) };
        }
    }
}

fn guards() -> bool {
    static GUARDS: OnceLock<bool> = OnceLock::new();
    *GUARDS.get_or_init(|| setting("FAKE_CUDA_GUARD", 0) != 0)
}

fn map(fd: c_int, bytes: usize, flags: c_int) -> Result<u64, c_int> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the system's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(2) } else { Ok(at as u64) }
}

pub(crate) fn add(at: u64, bytes: usize, kind: Kind, context: Option<&Ctx>, file: Option<OwnedFd>) {
    let context = context.map_or(0, |context| std::ptr::from_ref(context) as usize);
    let range = Range { bytes, kind, context, file, opened: 1, origin: None };
    count(kind, 1);
    lock(&RANGES).insert(at, range);
}

pub(crate) fn remove(at: u64, kind: Kind) -> Result<Range, c_int> {
    let mut ranges = lock(&RANGES);
    if ranges.get(&at).is_none_or(|range| range.kind as usize != kind as usize) {
        return Err(INVALID_VALUE);
    }
    count(kind, -1);
    ranges.remove(&at).ok_or(INVALID_VALUE)
}

fn unmap(at: u64, bytes: usize) {
    // SAFETY: mapped by `map`, and nobody has it any more.
    unsafe { libc::munmap(at as *mut c_void, bytes) };
}

/// Device memory of a context, or of a pool, which is of none.
pub(crate) fn allocate(bytes: usize, context: Option<&Ctx>) -> Result<u64, c_int> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if bytes > 1 << 34 {
        return Err(2);
    }
    let pages = bytes.next_multiple_of(4096);
    // SAFETY: a constant name and flags; then a size; then the descriptor is ours alone.
    let file = unsafe {
        let fd = libc::memfd_create(c"fake-cuda".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 || libc::ftruncate(fd, pages as libc::off_t) != 0 {
            return Err(2);
        }
        OwnedFd::from_raw_fd(fd)
    };
    let at = map(file.as_raw_fd(), pages, libc::MAP_SHARED | libc::MAP_NORESERVE)?;
    // Its pages go when this is dropped, if nothing else runs.
    let _reaching = Reaching::new();
    if pages <= 1 << 22 {
        // Fresh device memory is anything but zeros.
        // SAFETY: just mapped.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0xcd, pages) };
    }
    add(at, pages, Kind::Allocation, context, Some(file));
    Ok(at)
}

pub(crate) fn free(at: u64) -> Result<(), c_int> {
    let range = remove(at, Kind::Allocation)?;
    unmap(at, range.bytes);
    Ok(())
}

/// Whether an allocation is of a pool: neither other processes nor cards nor, unless the pool is told, other GPUs reach it.
fn of_pool(at: u64) -> bool {
    lock(&RANGES).get(&at).is_some_and(|range| range.context == 0)
}

driver! {
    // A driver may wait, too (Implicit Synchronization, in CUDA's programming guide).
    cuMemAlloc_v2(to: *mut u64, bytes: usize) |context| {
        context.wait_for_kernels()?;
        let at = allocate(bytes, Some(context))?;
        // SAFETY: the caller's place.
        unsafe { *to = at };
        Ok(())
    }
    cuMemFree_v2(at: u64) |context| {
        if !of_pool(at) {
            context.wait_for_kernels()?;
        }
        free(at)
    }
    cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, _flags: c_uint) |context| {
        let pages = bytes.next_multiple_of(4096);
        let at = map(-1, pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)?;
        add(at, pages, Kind::Pinned, Some(context), None);
        // SAFETY: the caller's place.
        unsafe { *to = at as *mut c_void };
        Ok(())
    }
    cuMemAllocHost_v2(to: *mut *mut c_void, bytes: usize) |_context| {
        // SAFETY: the caller's place.
        match unsafe { cuMemHostAlloc(to, bytes, 0) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
    cuMemFreeHost(at: *mut c_void) |_context| {
        let range = remove(at as u64, Kind::Pinned)?;
        unmap(at as u64, range.bytes);
        Ok(())
    }
    cuMemHostRegister_v2(at: *mut c_void, bytes: usize, _flags: c_uint) |context| {
        let at = at as u64;
        if bytes == 0 || !at.is_multiple_of(4096) {
            return Err(INVALID_VALUE);
        }
        let overlaps = {
            let ranges = lock(&RANGES);
            let before = ranges.range(..at + bytes as u64).next_back();
            before.is_some_and(|(start, range)| start + range.bytes as u64 > at)
        };
        if overlaps {
            return Err(712);
        }
        add(at, bytes, Kind::Registered, Some(context), None);
        Ok(())
    }
    cuMemHostUnregister(at: *mut c_void) |_context| {
        remove(at as u64, Kind::Registered).map(drop).map_err(|_| 713)
    }
    cuPointerGetAttribute(to: *mut c_void, attribute: c_int, at: u64) |context| {
        let ranges = lock(&RANGES);
        let (start, range) = ranges.range(..=at).next_back().ok_or(INVALID_VALUE)?;
        if at >= *start + range.bytes as u64 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's place, for a context or a number. A pool's memory is of the GPU that asked: there is one pool.
        unsafe {
            match attribute {
                1 => *to.cast::<usize>() = range.context,
                2 => *to.cast::<u32>() = if matches!(range.kind, Kind::Pinned | Kind::Registered) { 1 } else { 2 },
                9 => *to.cast::<c_int>() = context.device,
                10 => *to.cast::<bool>() = range.file.is_some() && range.context != 0,
                11 => *to.cast::<u64>() = *start,
                12 => *to.cast::<usize>() = range.bytes,
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }
    cuPointerGetAttributes(n: c_uint, attributes: *mut c_int, values: *mut *mut c_void, at: u64) |_context| {
        // SAFETY: the caller's lists, of one entry, and its place.
        unsafe {
            if (n, *attributes) != (1, 2) {
                return Err(INVALID_VALUE);
            }
            let ranges = lock(&RANGES);
            let found = ranges.range(..=at).next_back().filter(|(start, range)| at < *start + range.bytes as u64);
            let kind = found.map(|(_, range)| if matches!(range.kind, Kind::Pinned | Kind::Registered) { 1 } else { 2 });
            (*values).cast::<u32>().write(kind.unwrap_or(0));
        }
        Ok(())
    }
    cuMemGetHandleForAddressRange(to: *mut c_void, at: u64, bytes: usize, kind: c_int, flags: u64) |_context| {
        let ranges = lock(&RANGES);
        let range = ranges.get(&at).filter(|range| range.context != 0).ok_or(INVALID_VALUE)?;
        // Whole pages, of what is allocated; a DMA buffer is the file behind it.
        if kind != 1 || flags != 0 || !bytes.is_multiple_of(4096) || bytes > range.bytes {
            return Err(INVALID_VALUE);
        }
        let file = range.file.as_ref().and_then(|file| file.try_clone().ok()).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's place, for a descriptor.
        unsafe { *to.cast::<c_int>() = file.into_raw_fd() };
        Ok(())
    }
    cuIpcGetMemHandle(to: *mut [u8; 64], at: u64) |_context| {
        let ranges = lock(&RANGES);
        let range = ranges.get(&at).filter(|range| range.context != 0).ok_or(INVALID_VALUE)?;
        let file = range.file.as_ref().ok_or(INVALID_VALUE)?;
        let mut handle = [0; 64];
        let words = [u64::from(std::process::id()), file.as_raw_fd() as u64, range.bytes as u64];
        for (to, word) in handle.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        // SAFETY: the caller's place.
        unsafe { *to = handle };
        Ok(())
    }
    cuIpcOpenMemHandle_v2(to: *mut u64, handle: Handle, _flags: c_uint) |context| {
        let word = |i: usize| u64::from_ne_bytes(handle.0.as_chunks().0[i]);
        let (pid, fd, bytes) = (word(0), word(1), word(2) as usize);
        if pid == u64::from(std::process::id()) {
            // Not in the process that it is of (cuIpcOpenMemHandle).
            return Err(201);
        }
        let mut ranges = lock(&RANGES);
        if let Some((at, range)) = ranges.iter_mut().find(|(_, range)| range.origin == Some(handle.0)) {
            range.opened += 1;
            // SAFETY: the caller's place.
            unsafe { *to = *at };
            return Ok(());
        }
        drop(ranges);
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| INVALID_VALUE)?;
        let at = map(file.as_raw_fd(), bytes, libc::MAP_SHARED | libc::MAP_NORESERVE)?;
        add(at, bytes, Kind::Import, Some(context), Some(file.into()));
        if let Some(range) = lock(&RANGES).get_mut(&at) {
            range.origin = Some(handle.0);
        }
        // SAFETY: the caller's place.
        unsafe { *to = at };
        Ok(())
    }
    cuIpcCloseMemHandle(at: u64) |_context| {
        let mut ranges = lock(&RANGES);
        let range = ranges.get_mut(&at).ok_or(INVALID_VALUE)?;
        range.opened -= 1;
        if range.opened > 0 {
            return Ok(());
        }
        drop(ranges);
        let range = remove(at, Kind::Import)?;
        unmap(at, range.bytes);
        Ok(())
    }
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle([u8; 64]);

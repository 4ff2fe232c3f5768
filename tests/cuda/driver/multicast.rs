//! Multicast objects: a memfd each, in which all processes that have it note the devices and the memory that is bound.
//!
//! Kernels run by their CPU face, which reaches the members by itself: there is nothing at an object's addresses. What a switch does
//! with a store and a load is in [`fake_cuda_multimem_store`] and [`fake_cuda_multimem_sum`], of any process.

use std::ffi::{c_int, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::virtual_memory::{GRANULE, Physical, What, add_handle, file, handle, place};
use crate::{INVALID_VALUE, LAUNCH_FAILED, code, device, driver, lock};

/// What GPUs have: multicast objects (1), virtual memory management (2), handles that are file descriptors (4).
pub(crate) fn setting() -> c_int {
    crate::setting("FAKE_CUDA_MULTICAST", 7)
}

/// The most devices of an object.
const MOST: usize = 32;
/// Words at the beginning of an object's file: a lock, the number of devices, bytes of each.
const HEAD: usize = 3;
const LOCK: usize = 0;
const MEMBERS: usize = 1;
const BYTES: usize = 2;
/// Words of a device behind them: its number and 1; the process in which memory is bound, the descriptor there, the place of the
/// bound range in the memory and in the object, its bytes.
const EACH: usize = 6;
const FILE_BYTES: usize = 4096;
const _: () = assert!((HEAD + MOST * EACH) * 8 <= FILE_BYTES);

/// An object, as this process has it mapped.
pub(crate) struct Object(&'static [AtomicU64]);

/// A device of an object.
#[derive(Clone, Copy)]
struct Member<'a>(&'a [AtomicU64]);

/// `CUmulticastObjectProp`.
#[repr(C)]
pub(crate) struct MulticastProp {
    devices: c_uint,
    size: usize,
    handle_types: u64,
    flags: u64,
}

/// What this process has bound.
struct Bound {
    object: u64,
    memory: u64,
    device: c_int,
    /// By which others reach the memory.
    _file: OwnedFd,
}

static BOUND: Mutex<Vec<Bound>> = Mutex::new(Vec::new());

/// Whether a handle is of memory that is bound, or of an object to which it is.
pub(crate) fn is_bound(number: u64) -> bool {
    lock(&BOUND).iter().any(|bound| [bound.object, bound.memory].contains(&number))
}

impl Object {
    /// That which is in a file.
    pub(crate) fn open(file: &OwnedFd) -> Result<Self, c_int> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a fresh mapping, which stays; all who have it access it as these words.
        unsafe {
            let at = libc::mmap(none, FILE_BYTES, protection, libc::MAP_SHARED, fd, 0);
            if at == libc::MAP_FAILED {
                return Err(2);
            }
            Ok(Object(std::slice::from_raw_parts(at.cast(), FILE_BYTES / 8)))
        }
    }

    fn get(&self, word: usize) -> usize {
        self.0[word].load(Ordering::Relaxed) as usize
    }

    /// Bytes of each device.
    pub(crate) fn bytes(&self) -> usize {
        self.get(BYTES)
    }

    fn members(&self) -> impl Iterator<Item = Member<'_>> {
        self.0[HEAD..].chunks(EACH).take(self.get(MEMBERS)).map(Member)
    }

    /// Alone among all processes. Not for long; one that dies meanwhile is noticed.
    fn alone<R>(&self, f: impl FnOnce() -> Result<R, c_int>) -> Result<R, c_int> {
        let since = Instant::now();
        let lock = &self.0[LOCK];
        // Acquire: pairs with the release below, of the process that had it before.
        while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if since.elapsed() > Duration::from_secs(20) {
                return Err(999);
            }
            std::thread::yield_now();
        }
        let result = f();
        lock.store(0, Ordering::Release);
        result
    }

    /// Whether all devices have been added.
    pub(crate) fn is_complete(&self) -> Result<bool, c_int> {
        self.alone(|| Ok(self.members().all(|member| member.device().is_some())))
    }

    fn member(&self, device: c_int) -> Result<Member<'_>, c_int> {
        self.members().find(|member| member.device() == Some(device)).ok_or(INVALID_VALUE)
    }
}

impl Member<'_> {
    fn get(self, word: usize) -> usize {
        self.0[word].load(Ordering::Relaxed) as usize
    }

    fn set(self, words: [usize; EACH]) {
        for (to, word) in self.0.iter().zip(words) {
            to.store(word as u64, Ordering::Relaxed);
        }
    }

    fn device(self) -> Option<c_int> {
        (self.get(0) as c_int).checked_sub(1).filter(|device| *device >= 0)
    }

    fn is_bound(self) -> bool {
        self.get(1) != 0
    }

    /// The memory that is bound, and where in it a place of the object is.
    fn reach(self, place: usize) -> Result<(File, u64), c_int> {
        let [pid, fd, from, start, bytes] = [1, 2, 3, 4, 5].map(|word| self.get(word));
        let within = place.checked_sub(start).filter(|within| within + 4 <= bytes);
        let within = within.filter(|_| self.is_bound()).ok_or(LAUNCH_FAILED)?;
        let path = format!("/proc/{pid}/fd/{fd}");
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|_| LAUNCH_FAILED)?;
        Ok((file, (from + within) as u64))
    }
}

fn object(physical: &Physical) -> Result<&Object, c_int> {
    match &physical.what {
        What::Multicast(object) => Ok(object),
        What::Memory(_) => Err(INVALID_VALUE),
    }
}

fn is_whole(bytes: usize) -> bool {
    bytes.is_multiple_of(GRANULE)
}

unsafe fn wanted(prop: *const MulticastProp) -> Result<(usize, usize), c_int> {
    // SAFETY: the caller's place.
    let MulticastProp { devices, size, handle_types, flags } = *unsafe { &*prop };
    if setting() & 1 == 0 {
        return Err(801);
    }
    let fits = (1..=MOST as c_uint).contains(&devices) && handle_types == 1 && flags == 0;
    if fits && size > 0 { Ok((devices as usize, size)) } else { Err(INVALID_VALUE) }
}

driver! {
    cuMulticastGetGranularity(to: *mut usize, prop: *const MulticastProp, _option: c_int) |_context| {
        // SAFETY: the caller's places.
        unsafe {
            wanted(prop)?;
            *to = GRANULE;
        }
        Ok(())
    }
    cuMulticastCreate(to: *mut u64, prop: *const MulticastProp) |_context| {
        // SAFETY: the caller's place.
        let (devices, bytes) = unsafe { wanted(prop)? };
        if !is_whole(bytes) {
            return Err(INVALID_VALUE);
        }
        let file = file(None, FILE_BYTES)?;
        let object = Object::open(&file)?;
        object.0[MEMBERS].store(devices as u64, Ordering::Relaxed);
        object.0[BYTES].store(bytes as u64, Ordering::Relaxed);
        let number = add_handle(Physical { file, bytes, what: What::Multicast(object) });
        // SAFETY: the caller's place.
        unsafe { *to = number };
        Ok(())
    }
    cuMulticastAddDevice(number: u64, of: c_int) |_context| {
        let (physical, gpu) = (handle(number)?, device(of)?.device);
        let object = object(&physical)?;
        object.alone(|| {
            if object.member(gpu).is_ok() {
                return Err(101);
            }
            let free = object.members().find(|member| member.device().is_none());
            free.ok_or(INVALID_VALUE)?.set([gpu as usize + 1, 0, 0, 0, 0, 0]);
            Ok(())
        })
    }
    cuMulticastBindMem(number: u64, at: usize, memory: u64, from: usize, bytes: usize, flags: u64) |context| {
        let (physical, bound) = (handle(number)?, handle(memory)?);
        let (object, What::Memory(gpu)) = (object(&physical)?, &bound.what) else {
            return Err(INVALID_VALUE);
        };
        // A driver waits for the devices that are missing; nobody would add them here.
        if !object.is_complete()? {
            return Err(401);
        }
        let whole = bytes > 0 && [at, from, bytes].into_iter().all(is_whole);
        if !whole || flags != 0 || from + bytes > bound.bytes || at + bytes > object.bytes() {
            return Err(INVALID_VALUE);
        }
        context.wait_for_kernels()?;
        let file = bound.file.try_clone().map_err(|_| 2)?;
        object.alone(|| {
            let member = object.member(*gpu)?;
            if member.is_bound() {
                return Err(INVALID_VALUE);
            }
            let (pid, fd) = (std::process::id() as usize, file.as_raw_fd() as usize);
            member.set([*gpu as usize + 1, pid, fd, from, at, bytes]);
            Ok(())
        })?;
        lock(&BOUND).push(Bound { object: number, memory, device: *gpu, _file: file });
        Ok(())
    }
    cuMulticastUnbind(number: u64, of: c_int, at: usize, bytes: usize) |context| {
        let physical = handle(number)?;
        let object = object(&physical)?;
        context.wait_for_kernels()?;
        let mut bound = lock(&BOUND);
        let same = |bound: &Bound| (bound.object, bound.device) == (number, of);
        let found = bound.iter().position(same).ok_or(INVALID_VALUE)?;
        object.alone(|| {
            let member = object.member(of)?;
            if (member.get(4), member.get(5)) != (at, bytes) {
                return Err(INVALID_VALUE);
            }
            member.set([of as usize + 1, 0, 0, 0, 0, 0]);
            Ok(())
        })?;
        bound.swap_remove(found);
        Ok(())
    }
}

/// Has `f` done with the memory of each member behind an address of an object.
fn each(at: *mut c_void, f: impl FnMut((File, u64)) -> Result<(), c_int>) -> c_int {
    let run = || {
        let (physical, offset) = place(at as u64)?;
        let object = object(&physical)?;
        object.alone(|| {
            let all = object.members().map(|member| member.reach(offset));
            all.collect::<Result<Vec<_>, _>>()?.into_iter().try_for_each(f)
        })
    };
    code(run())
}

/// Stores a word at an address of an object (`multimem.st.u32`).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_multimem_store(at: *mut c_void, value: u32) -> c_int {
    each(at, |(file, place)| {
        file.write_all_at(&value.to_ne_bytes(), place).map_err(|_| LAUNCH_FAILED)
    })
}

/// Adds up the words at an address of an object (`multimem.ld_reduce.add.u32`).
///
/// # Safety
/// `to` is a place for the sum.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_cuda_multimem_sum(at: *mut c_void, to: *mut u32) -> c_int {
    let mut sum = 0_u32;
    let result = each(at, |(file, place)| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, place).map_err(|_| LAUNCH_FAILED)?;
        sum = sum.wrapping_add(u32::from_ne_bytes(word));
        Ok(())
    });
    // SAFETY: the caller's place.
    unsafe { *to = sum };
    result
}

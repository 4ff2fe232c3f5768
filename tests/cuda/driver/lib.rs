//! A stand-in for NVIDIA's driver, `libcuda.so.1`: what FerroCCL calls of it, over the host's memory, with kernels run by
//! their CPU face, and those of applications in the emulator. It is there to test the host's side of the cuda runtime where no GPU is.
//!
//! It is stricter than a driver: memory that was not allocated or registered, an event of another process, a handle that is
//! gone, a host register twice, memory left over are errors of the call that shows them. Streams are the CPU runtime's; a
//! graph is a list of what was captured, replayed.
//!
//! | variable | default | |
//! |---|---|---|
//! | `FAKE_CUDA_DEVICES` | 2 | GPUs |
//! | `FAKE_CUDA_SM` | 90 | their compute capability, times ten |
//! | `FAKE_CUDA_MULTIPROCESSORS` | 16 | of each |
//! | `FAKE_CUDA_PEERS` | 1 | whether GPUs reach each other's memory |
//! | `FAKE_CUDA_POOLS` | 1 | whether they have memory pools |
//! | `FAKE_CUDA_VERSION` | 12040 | the driver's |
//! | `FAKE_CUDA_MULTICAST` | 7 | whether GPUs have multicast objects (1), virtual memory management (2), handles that are file descriptors (4) |
//! | `FAKE_CUDA_WRITES_WORDS` | 1 | whether streams write words of 64 bits |
//! | `FAKE_CUDA_WANTS_CONNECTIONS` | | what `CUDA_DEVICE_MAX_CONNECTIONS` has to be when the driver is initialised |
//!
//! A context has as many hardware queues as `CUDA_DEVICE_MAX_CONNECTIONS` says, and a stream takes the one that has
//! the fewest.
//!
//! What tests ask of it besides: [`fake_cuda_fail`], [`fake_cuda_live`], [`fake_cuda_calls`].
#![allow(missing_docs, reason = "cuda.h documents them")]
// With this feature there are functions of these names to be linked already. Its tests take what was built without it.
#![cfg(not(feature = "cust"))]

mod crates;
mod emulated;
mod graph;
mod memory;
mod module;
mod multicast;
#[path = "../../support/pipes.rs"]
mod pipes;
mod stream;
mod virtual_memory;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use ferroccl::device;
use ferroccl::runtime::cpu::CpuRuntime;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const LAUNCH_FAILED: c_int = 719;

/// What the driver says of its codes.
const CODES: &[(c_int, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (
        217,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access is not supported between these two devices",
    ),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (
        900,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
];

/// A whole number of the environment.
pub(crate) fn setting(name: &str, default: c_int) -> c_int {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context: a GPU's primary one.
pub(crate) struct Ctx {
    pub(crate) device: c_int,
    retained: AtomicI32,
    /// What every call says from now on.
    pub(crate) sticky: AtomicI32,
    /// Kernels that run.
    pub(crate) running: AtomicI64,
    /// Parts of multiprocessors that these take.
    pub(crate) taken: AtomicI64,
    /// Its hardware queues, of which a stream takes the one that has the fewest.
    pub(crate) queues: Vec<stream::Queue>,
    /// The contexts whose memory it reaches.
    peers: Mutex<Vec<usize>>,
    /// Its legacy stream, once that has been used.
    pub(crate) legacy: OnceLock<stream::Stream>,
    /// Who copies from or to memory that is not pinned.
    pub(crate) copying: Mutex<()>,
}

impl Ctx {
    /// Waits until no kernel runs, or the context is lost.
    pub(crate) fn wait_for_kernels(&self) -> Result<(), c_int> {
        while self.running.load(Ordering::Acquire) > 0 {
            match self.sticky.load(Ordering::Relaxed) {
                0 => std::thread::sleep(std::time::Duration::from_micros(50)),
                code => return Err(code),
            }
        }
        Ok(())
    }
}

/// Hardware queues of a context.
fn connections() -> c_int {
    setting("CUDA_DEVICE_MAX_CONNECTIONS", 8).clamp(1, 32)
}

/// What runs kernels, of all GPUs.
pub(crate) static RUNTIME: LazyLock<Arc<CpuRuntime>> =
    LazyLock::new(|| Arc::new(CpuRuntime::with_workers(2)));

static CONTEXTS: LazyLock<Vec<Ctx>> = LazyLock::new(|| {
    (0..setting("FAKE_CUDA_DEVICES", 2))
        .map(|device| Ctx {
            device,
            retained: AtomicI32::new(0),
            sticky: AtomicI32::new(0),
            running: AtomicI64::new(0),
            taken: AtomicI64::new(0),
            queues: (0..connections()).map(|_| stream::Queue::default()).collect(),
            peers: Mutex::default(),
            legacy: OnceLock::new(),
            copying: Mutex::default(),
        })
        .collect()
});

thread_local! {
    /// Never dropped: what a thread drops at its end may call the driver.
    static STACK: RefCell<ManuallyDrop<Vec<&'static Ctx>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// The calls that are to fail: by name, after how many, with which code.
static FAILURES: Mutex<Option<HashMap<String, (u32, c_int)>>> = Mutex::new(None);
/// Objects that are there: allocations, pinned, registered, streams, events, modules, graphs, user objects, imports; handles of
/// physical memory and multicast objects, reserved addresses, what is mapped there, what of it kernels reach.
pub(crate) static LIVE: [AtomicI64; 13] = [const { AtomicI64::new(0) }; 13];

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Allocation = 0,
    Pinned = 1,
    Registered = 2,
    Stream = 3,
    Event = 4,
    Module = 5,
    Graph = 6,
    UserObject = 7,
    Import = 8,
    Handle = 9,
    Reservation = 10,
    Mapped = 11,
    Reached = 12,
}

pub(crate) fn count(kind: Kind, by: i64) {
    LIVE[kind as usize].fetch_add(by, Ordering::Relaxed);
}

/// How often a function was called.
static CALLS: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);

/// How often the function of this name was called, of those that need a context.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_cuda_calls(name: *const c_char) -> u64 {
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    lock(&CALLS).as_ref().and_then(|calls| calls.get(&*name).copied()).unwrap_or(0)
}

/// How many objects of a kind there are.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_live(kind: c_uint) -> i64 {
    LIVE.get(kind as usize).map_or(-1, |live| live.load(Ordering::Relaxed))
}

/// Has the call of this name fail, once, after `after` more that go well. `kernel:NAME` is what runs, not what is called:
/// it traps.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_cuda_fail(name: *const c_char, after: c_uint, code: c_int) {
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    lock(&FAILURES).get_or_insert_default().insert(name, (after, code));
}

/// How often contexts have been made well again.
pub(crate) static LOST: AtomicI64 = AtomicI64::new(0);

/// Makes all contexts usable again, which no driver can.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fake_cuda_heal() {
    LOST.fetch_add(1, Ordering::Relaxed);
    for context in CONTEXTS.iter() {
        context.sticky.store(0, Ordering::Relaxed);
    }
    *lock(&FAILURES) = None;
}

/// The code with which a call, or a kernel, is to fail.
pub(crate) fn ordered(name: &str) -> Option<c_int> {
    let mut failures = lock(&FAILURES);
    let all = failures.as_mut()?;
    let (after, code) = all.get_mut(name)?;
    if *after > 0 {
        *after -= 1;
        return None;
    }
    let code = *code;
    all.remove(name);
    Some(code)
}

/// The calls that give something back.
const GIVES_BACK: [&str; 13] = [
    "cuMemRelease",
    "cuMemAddressFree",
    "cuMemUnmap",
    "cuMulticastUnbind",
    "cuMemFree_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuIpcCloseMemHandle",
    "cuStreamDestroy_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

/// Calls on an event, which has a context: a thread needs none for them. Programs make them from threads that have none.
const OF_EVENTS: [&str; 2] = ["cuEventSynchronize", "cuEventDestroy_v2"];

/// The current context, if calls of it go well.
pub(crate) fn current(name: &'static str) -> Result<&'static Ctx, c_int> {
    *lock(&CALLS).get_or_insert_default().entry(name).or_default() += 1;
    let context = STACK.with_borrow(|stack| stack.last().copied());
    let of_event = || CONTEXTS.first().filter(|_| OF_EVENTS.contains(&name));
    let context = context.or_else(of_event).ok_or(INVALID_CONTEXT)?;
    if let Some(code) = ordered(name) {
        if (700..=719).contains(&code) && code != 704 && code != 712 {
            context.sticky.store(code, Ordering::Relaxed);
        }
        return Err(code);
    }
    match context.sticky.load(Ordering::Relaxed) {
        0 => Ok(context),
        // A GPU's kernels are gone by then. Ours have to see that they are to stop, and need their memory for it. It is
        // given back all the same: tests go on.
        _ if GIVES_BACK.contains(&name) => {
            while context.running.load(Ordering::Acquire) > 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Ok(context)
        }
        code => Err(code),
    }
}

/// A result as the driver has it.
pub(crate) fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(SUCCESS)
}

/// Declares functions of the driver that need a context.
macro_rules! driver {
    ($($name:ident($($arg:ident: $t:ty),*) |$context:ident| $body:block)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub(crate) unsafe extern "C" fn $name($($arg: $t),*) -> std::ffi::c_int {
            let run = || -> Result<(), std::ffi::c_int> {
                let $context = $crate::current(stringify!($name))?;
                let _ = $context;
                $body
            };
            $crate::code(run())
        }
    )* };
}
pub(crate) use driver;

pub(crate) fn device(device: c_int) -> Result<&'static Ctx, c_int> {
    usize::try_from(device).ok().and_then(|i| CONTEXTS.get(i)).ok_or(101)
}

fn context(context: *mut c_void) -> Result<&'static Ctx, c_int> {
    CONTEXTS.iter().find(|c| std::ptr::eq(*c, context.cast())).ok_or(INVALID_CONTEXT)
}

/// A text of the driver's.
fn text(
    of: c_int,
    to: *mut *const c_char,
    pick: fn(&(c_int, &'static CStr, &'static CStr)) -> &'static CStr,
) -> c_int {
    let found = CODES.iter().find(|(code, ..)| *code == of);
    // SAFETY: the caller's place.
    unsafe { *to = found.map_or(std::ptr::null(), |row| pick(row).as_ptr()) };
    if found.is_some() { SUCCESS } else { INVALID_VALUE }
}

/// Writes a text with its zero.
unsafe fn write_text(to: *mut c_char, bytes: c_int, text: &str) -> Result<(), c_int> {
    let room = usize::try_from(bytes).ok().filter(|n| *n > text.len()).ok_or(INVALID_VALUE)?;
    let _ = room;
    // SAFETY: the caller's, with room for the zero.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        *to.add(text.len()) = 0;
    }
    Ok(())
}

/// Declares functions that need none.
macro_rules! plain {
    ($($name:ident($($arg:ident: $t:ty),*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub(crate) unsafe extern "C" fn $name($($arg: $t),*) -> c_int {
            let run = || -> Result<(), c_int> {
                if let Some(code) = ordered(stringify!($name)) {
                    return Err(code);
                }
                // SAFETY: the driver's contract: places are there.
                #[allow(unused_unsafe, reason = "some need none")]
                unsafe { $body }
            };
            code(run())
        }
    )* };
}
pub(crate) use plain;

plain! {
    cuInit(_flags: c_uint) {
        if connections() != setting("FAKE_CUDA_WANTS_CONNECTIONS", connections()) {
            return Err(INVALID_VALUE);
        }
        if CONTEXTS.is_empty() { Err(NO_DEVICE) } else { Ok(()) }
    }
    cuDriverGetVersion(version: *mut c_int) { *version = setting("FAKE_CUDA_VERSION", 12_040); Ok(()) }
    cuDeviceGetCount(count: *mut c_int) { *count = CONTEXTS.len() as c_int; Ok(()) }
    cuDeviceGet(to: *mut c_int, ordinal: c_int) { *to = device(ordinal)?.device; Ok(()) }
    cuDeviceGetName(to: *mut c_char, bytes: c_int, of: c_int) {
        device(of)?;
        write_text(to, bytes, "Stand-in")
    }
    cuDeviceGetPCIBusId(to: *mut c_char, bytes: c_int, of: c_int) {
        write_text(to, bytes, &format!("0000:{:02X}:00.0", 0x17 + device(of)?.device))
    }
    cuDeviceGetUuid_v2(to: *mut [u8; 16], of: c_int) {
        *to = [0xfe; 16];
        (*to)[15] = device(of)?.device as u8;
        Ok(())
    }
    cuDeviceTotalMem_v2(to: *mut usize, of: c_int) {
        device(of)?;
        *to = (setting("FAKE_CUDA_MEMORY_KIB", 1 << 24) as usize) << 10;
        Ok(())
    }
    cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, of: c_int) {
        device(of)?;
        let sm = setting("FAKE_CUDA_SM", 90);
        *to = match attribute {
            // As of an H100: threads of a block, its sides and the grid's, lanes of a warp.
            1..=3 => 1024,
            4 => 64,
            5 => c_int::MAX,
            6 | 7 => 65_535,
            10 => 32,
            13 => 1_980_000,
            16 => setting("FAKE_CUDA_MULTIPROCESSORS", 16),
            19 | 41 | 91 => 1,
            75 => sm / 10,
            76 => sm % 10,
            97 => 232_448,
            102 => multicast::setting() >> 1 & 1,
            103 => multicast::setting() >> 2 & 1,
            132 => multicast::setting() & 1,
            115 => crates::pools(),
            // Cards reach the memory by address and as a DMA buffer; every other GPU orders what they write.
            116 => setting("FAKE_CUDA_RDMA", 3) & 1,
            118 => if of % 2 == 1 { 100 } else { 0 },
            122 => setting("FAKE_CUDA_WRITES_WORDS", 1),
            124 => setting("FAKE_CUDA_RDMA", 3) >> 1,
            _ => return Err(INVALID_VALUE),
        };
        Ok(())
    }
    cuDeviceCanAccessPeer(to: *mut c_int, of: c_int, peer: c_int) {
        *to = c_int::from(device(of)?.device != device(peer)?.device && setting("FAKE_CUDA_PEERS", 1) != 0);
        Ok(())
    }
    cuDevicePrimaryCtxRetain(to: *mut *mut c_void, of: c_int) {
        let context = device(of)?;
        context.retained.fetch_add(1, Ordering::Relaxed);
        *to = std::ptr::from_ref(context).cast_mut().cast();
        Ok(())
    }
    cuDevicePrimaryCtxRelease_v2(of: c_int) {
        let before = device(of)?.retained.fetch_sub(1, Ordering::Relaxed);
        if before > 0 { Ok(()) } else { Err(INVALID_CONTEXT) }
    }
    cuCtxPushCurrent_v2(which: *mut c_void) {
        let context = context(which)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }
    cuCtxPopCurrent_v2(to: *mut *mut c_void) {
        let popped = STACK.with_borrow_mut(|stack| stack.pop()).ok_or(INVALID_CONTEXT)?;
        if !to.is_null() {
            *to = std::ptr::from_ref(popped).cast_mut().cast();
        }
        Ok(())
    }
    cuCtxGetCurrent(to: *mut *mut c_void) {
        let top = STACK.with_borrow(|stack| stack.last().copied());
        *to = top.map_or(std::ptr::null_mut(), |top| std::ptr::from_ref(top).cast_mut().cast());
        Ok(())
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::missing_safety_doc)]
pub(crate) unsafe extern "C" fn cuGetErrorName(of: c_int, to: *mut *const c_char) -> c_int {
    text(of, to, |row| row.1)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::missing_safety_doc)]
pub(crate) unsafe extern "C" fn cuGetErrorString(of: c_int, to: *mut *const c_char) -> c_int {
    text(of, to, |row| row.2)
}

driver! {
    cuProfilerStart() |_context| { Ok(()) }
    cuProfilerStop() |_context| { Ok(()) }
    cuCtxGetDevice(to: *mut c_int) |context| {
        // SAFETY: the caller's place.
        unsafe { *to = context.device };
        Ok(())
    }
    cuCtxEnablePeerAccess(peer: *mut c_void, _flags: c_uint) |context| {
        let _ = crate::context(peer)?;
        if setting("FAKE_CUDA_PEERS", 1) == 0 {
            return Err(217);
        }
        let mut peers = lock(&context.peers);
        if peers.contains(&(peer as usize)) {
            return Err(704);
        }
        peers.push(peer as usize);
        Ok(())
    }
}

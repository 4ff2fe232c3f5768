//! The stand-in: chosen in place of a driver, and what tests ask of it.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ferroccl::{Device, ptx};
use libloading::Library;

pub(crate) use crate::fake_driver::library;

/// The driver of this process is the stand-in from here on; whether there are kernels for it.
pub(crate) fn ready() -> bool {
    static CHOSEN: OnceLock<()> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let path = library();
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cubins");
        // SAFETY: the lock of `std::env` keeps Rust's readers away, and nothing of C's reads these.
        unsafe {
            std::env::set_var("FERROCCL_CUDA_LIBRARY", path);
            std::env::set_var("FERROCCL_CUDA_CACHE", cache);
            // Tests are run in threads, and so set by themselves what is set for a program that has one.
            if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
                std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32");
            }
            // Its GPUs are nowhere on PCI, unless a test says where: any card is far away.
            if std::env::var_os("NCCL_TOPO_FILE").is_none() {
                std::env::set_var("NCCL_NET_GDR_LEVEL", "SYS");
            }
        }
    });
    if let Some(why) = ptx::unavailable() {
        skip_without_kernels(why);
        return false;
    }
    true
}

fn skip_without_kernels(why: &str) {
    crate::skip::skip(why);
}

/// What the stand-in exports besides a driver's functions.
pub(crate) fn symbol<F: Copy>(name: &str) -> F {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: loaded by the runtime already, or about to be.
        unsafe { Library::new(library()) }.unwrap()
    });
    // SAFETY: callers name the functions of `driver/` with their types.
    unsafe { *library.get::<F>(name.as_bytes()).unwrap() }
}

/// The kinds of objects that the stand-in counts.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    Allocation = 0,
    Registered = 2,
    Stream = 3,
    Graph = 6,
    UserObject = 7,
    Handle = 9,
    Reservation = 10,
    Mapped = 11,
    Reached = 12,
}

pub(crate) fn live(kind: Kind) -> i64 {
    let live: unsafe extern "C" fn(c_uint) -> i64 = symbol("fake_cuda_live");
    // SAFETY: takes a number.
    unsafe { live(kind as c_uint) }
}

/// How often a function of the driver was called.
pub(crate) fn calls(name: &str) -> u64 {
    let calls: unsafe extern "C" fn(*const i8) -> u64 = symbol("fake_cuda_calls");
    let name = CString::new(name).unwrap();
    // SAFETY: a text that ends with a zero.
    unsafe { calls(name.as_ptr().cast()) }
}

/// Tests that count objects, or have calls fail, run alone.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a call fail; see the stand-in's `fake_cuda_fail`.
pub(crate) fn fail(name: &str, after: u32, code: c_int) {
    let fail: unsafe extern "C" fn(*const i8, c_uint, c_int) = symbol("fake_cuda_fail");
    let name = CString::new(name).unwrap();
    // SAFETY: a text that ends with a zero.
    unsafe { fail(name.as_ptr().cast(), after, code) }
}

/// Makes contexts well again.
pub(crate) struct Healed;

impl Drop for Healed {
    fn drop(&mut self) {
        let heal: unsafe extern "C" fn() = symbol("fake_cuda_heal");
        // SAFETY: takes nothing.
        unsafe { heal() }
    }
}

/// GPUs, so many a rank.
pub(crate) fn gpus(ordinals: &[u32]) -> Vec<Device> {
    ordinals.iter().map(|gpu| Device::cuda(*gpu).unwrap()).collect()
}

/// The number of the GPU, of so many, whose memory an address is of.
pub(crate) fn gpu_of(address: u64, gpus: c_int) -> usize {
    type Call<T> = unsafe extern "C" fn(T, c_int) -> c_int;
    let retain: Call<*mut usize> = symbol("cuDevicePrimaryCtxRetain");
    let push: unsafe extern "C" fn(usize) -> c_int = symbol("cuCtxPushCurrent_v2");
    let pop: unsafe extern "C" fn(*mut usize) -> c_int = symbol("cuCtxPopCurrent_v2");
    let ask: unsafe extern "C" fn(*mut usize, c_int, u64) -> c_int =
        symbol("cuPointerGetAttribute");
    let contexts = (0..gpus).map(|gpu| {
        let mut context = 0;
        // SAFETY: a place for a context.
        assert_eq!(unsafe { retain(&raw mut context, gpu) }, 0);
        context
    });
    let contexts: Vec<usize> = contexts.collect();
    let (mut found, mut popped) = (0, 0);
    // SAFETY: places for contexts; the attribute is CU_POINTER_ATTRIBUTE_CONTEXT.
    let codes =
        unsafe { [push(contexts[0]), ask(&raw mut found, 1, address), pop(&raw mut popped)] };
    assert_eq!(codes, [0; 3]);
    contexts.iter().position(|context| *context == found).unwrap()
}

/// A handle of the driver's.
pub(crate) type Handle = *mut c_void;

//! The functions of NVIDIA's driver library, `libcuda`, for programs that are linked without it.
//!
//! A crate that declares them, such as `cust`, has a program linked with `libcuda`, so that it neither builds without a CUDA
//! toolkit nor starts without a driver. This crate defines every function that `cust_raw` declares, as a trampoline: the
//! first call of each looks it up in the driver's library, which the first call of all opens; later ones are a jump.
//!
//! ```text
//! cuMemAlloc_v2:  jmp *table[i] ──► at first: resolve(i): library opened, function found ──► table[i]
//!                               └─► from then on: the driver's cuMemAlloc_v2
//! ```
//!
//! | | what a call returns |
//! |---|---|
//! | there is no library | 100, `CUDA_ERROR_NO_DEVICE` |
//! | the library lacks the function | 500, `CUDA_ERROR_NOT_FOUND` |
//!
//! The library is the one that the environment variable `FERROCCL_CUDA_LIBRARY` names, or else `libcuda.so.1`. Once opened it
//! stays.
//!
//! To name this crate is all (`use ferroccl_cuda_link as _;`): nothing needs to be called. The symbols are hidden: they are this program's, or this
//! shared library's, and stand in nobody else's way. A program that is linked with a `libcuda` as well uses these.
//!
//! ```
//! use ferroccl_cuda_link as _;
//!
//! unsafe extern "C" {
//!     fn cuDriverGetVersion(version: *mut std::ffi::c_int) -> std::ffi::c_int;
//! }
//!
//! let mut version = 0;
//! // SAFETY: the place is there; without a driver nothing is written to it.
//! match unsafe { cuDriverGetVersion(&raw mut version) } {
//!     0 => println!("a driver of CUDA {}.{}", version / 1000, version % 1000 / 10),
//!     100 => println!("no driver"),
//!     code => println!("error {code}"),
//! }
//! ```

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the trampolines are written for x86_64 and aarch64");

use std::ffi::{OsString, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// Another library in place of the driver's; the same variable chooses it for FerroCCL itself.
const LIBRARY_VARIABLE: &str = "FERROCCL_CUDA_LIBRARY";
/// The library's name; the driver installs it.
const LIBRARY: &str = "libcuda.so.1";
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: c_int = 500;

/// The functions, in the order of the table.
static NAMES: &[&str] = &include!(concat!(env!("OUT_DIR"), "/names.rs"));

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/trampolines.s")),
    resolve = sym resolve,
    options(att_syntax)
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    include_str!(concat!(env!("OUT_DIR"), "/trampolines.s")),
    resolve = sym resolve,
);

unsafe extern "C" {
    /// Where each function jumps to: as many entries as there are names (`build.rs`).
    static ferroccl_cuda_link_table: AtomicPtr<c_void>;
}

/// The linker takes an object out of an archive only when something refers to it, and one that has been there before it is
/// asked for may be lost to a linker that reads archives once. Rust's refers to what is `used` before all else.
#[used]
static KEPT: Address = Address(&raw const ferroccl_cuda_link_table);

/// The address of the table.
#[repr(transparent)]
struct Address(*const AtomicPtr<c_void>);

// SAFETY: an address; what is there is atomic.
unsafe impl Sync for Address {}

/// The library, if it can be opened.
fn library() -> Option<&'static Library> {
    static OPENED: OnceLock<Option<Library>> = OnceLock::new();
    let open = || {
        let name = std::env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| OsString::from(LIBRARY));
        // SAFETY: the library's initialisers are the driver's own and are run by every program that uses a GPU.
        unsafe { Library::new(name) }.ok()
    };
    OPENED.get_or_init(open).as_ref()
}

/// What is called when there is no library. C callers may give a function more arguments than it looks at.
extern "C" fn no_library() -> c_int {
    NO_DEVICE
}

/// What is called when the library lacks the function.
extern "C" fn no_function() -> c_int {
    NOT_FOUND
}

/// Where the function of this number is, from now on.
///
/// It is called by the trampolines alone, once for each function, or a few times when threads are at it at the same time:
/// all find the same.
extern "C" fn resolve(number: u32) -> *mut c_void {
    let function = NAMES.get(number as usize).and_then(|name| Some((name, library()?)));
    let address = match function {
        None => no_library as *mut c_void,
        // SAFETY: it is not called here, but by who declared it, and so vouches for its type.
        Some((name, library)) => match unsafe { library.get::<extern "C" fn()>(*name) } {
            Ok(function) => *function as *mut c_void,
            Err(_) => no_function as *mut c_void,
        },
    };
    if (number as usize) < NAMES.len() {
        // SAFETY: the table has as many entries as there are names, of 8 bytes each, written atomically only. The
        // trampolines read them by one aligned load.
        let entry = unsafe { &*KEPT.0.add(number as usize) };
        // Pairs with nothing: what is read is code, which was there before its address.
        entry.store(address, Ordering::Relaxed);
    }
    address
}

/// Whether there is a driver's library. It says nothing about GPUs: `cuInit` does.
#[must_use]
pub fn available() -> bool {
    library().is_some()
}

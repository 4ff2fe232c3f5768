//! The verbs library, opened when it is first asked for.
//!
//! A binary must start where the library is not installed, so it is not linked: its functions are found by name, and its
//! types are in [`sys`]. The functions that move data are not in the library. As in the inline functions of `verbs.h` they
//! are called through the table in the device's context ([`sys::ibv_context_ops`]).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::sys;

/// The name that libibverbs has had since 2006, and the one of a development package.
const NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

macro_rules! functions {
    ($($field:ident: fn($($arg:ty),*) $(-> $result:ty)?,)* ;
     $($optional:ident: fn($($oarg:ty),*) $(-> $oresult:ty)?,)*) => {
        /// The functions of the library that are used, each named as there without its `ibv_`.
        pub(super) struct Library {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($oarg),*) $(-> $oresult)?>,)*
            /// Never closed: what it has made may outlive us.
            _library: libloading::Library,
        }

        impl Library {
            fn find(library: libloading::Library) -> Result<Library, libloading::Error> {
                // SAFETY: the functions are declared so in the library's header.
                unsafe {
                    Ok(Library {
                        $($field: *library.get(concat!("ibv_", stringify!($field)).as_bytes())?,)*
                        $($optional: library
                            .get(concat!("ibv_", stringify!($optional)).as_bytes())
                            .ok()
                            .map(|symbol| *symbol),)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    fork_init: fn() -> c_int,
    get_device_list: fn(*mut c_int) -> *mut *mut sys::ibv_device,
    free_device_list: fn(*mut *mut sys::ibv_device),
    get_device_name: fn(*mut sys::ibv_device) -> *const c_char,
    open_device: fn(*mut sys::ibv_device) -> *mut sys::ibv_context,
    close_device: fn(*mut sys::ibv_context) -> c_int,
    query_device: fn(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int,
    // Of its attributes it fills those that the structure had when the function was made; `verbs.h` has the rest inline.
    query_port: fn(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr) -> c_int,
    query_gid: fn(*mut sys::ibv_context, u8, c_int, *mut sys::ibv_gid) -> c_int,
    get_async_event: fn(*mut sys::ibv_context, *mut sys::ibv_async_event) -> c_int,
    ack_async_event: fn(*mut sys::ibv_async_event),
    alloc_pd: fn(*mut sys::ibv_context) -> *mut sys::ibv_pd,
    dealloc_pd: fn(*mut sys::ibv_pd) -> c_int,
    reg_mr: fn(*mut sys::ibv_pd, *mut c_void, usize, c_int) -> *mut sys::ibv_mr,
    dereg_mr: fn(*mut sys::ibv_mr) -> c_int,
    create_cq: fn(*mut sys::ibv_context, c_int, *mut c_void, *mut sys::ibv_comp_channel, c_int) -> *mut sys::ibv_cq,
    destroy_cq: fn(*mut sys::ibv_cq) -> c_int,
    create_qp: fn(*mut sys::ibv_pd, *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp,
    modify_qp: fn(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int) -> c_int,
    destroy_qp: fn(*mut sys::ibv_qp) -> c_int,
    wc_status_str: fn(sys::ibv_wc_status) -> *const c_char,
    event_type_str: fn(sys::ibv_event_type) -> *const c_char,
    ;
    // Since 1.8 and 1.12 of the library.
    reg_mr_iova2: fn(*mut sys::ibv_pd, *mut c_void, usize, u64, u32) -> *mut sys::ibv_mr,
    reg_dmabuf_mr: fn(*mut sys::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut sys::ibv_mr,
}

impl Library {
    /// The library of this process.
    pub(super) fn open() -> Result<&'static Library, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, String> {
        let mut missing = String::new();
        for name in NAMES {
            // SAFETY: the system's library, whose initialisers expect to be run.
            let library = unsafe { libloading::Library::new(name) };
            let found = library.and_then(Library::find);
            match found {
                Ok(library) => {
                    // Memory that is registered must not move when the process forks (`ibv_fork_init(3)`).
                    // SAFETY: called before any other function of the library.
                    let error = unsafe { (library.fork_init)() };
                    if error != 0 {
                        tracing::warn!("NET/IB: ibv_fork_init failed ({error}): do not fork");
                    }
                    return Ok(library);
                }
                Err(error) if missing.is_empty() => missing = error.to_string(),
                Err(_) => {}
            }
        }
        Err(format!("no verbs library: {missing}"))
    }

    /// What a completion's status means.
    pub(super) fn status(&self, status: sys::ibv_wc_status) -> String {
        // SAFETY: it takes any number, and returns a text that stays.
        unsafe { text((self.wc_status_str)(status)) }
    }

    /// What has happened.
    pub(super) fn event(&self, event: sys::ibv_event_type) -> String {
        // SAFETY: the same.
        unsafe { text((self.event_type_str)(event)) }
    }
}

/// A text of the library's.
///
/// # Safety
/// It is null, or ends with a zero and stays as long as this runs.
pub(super) unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

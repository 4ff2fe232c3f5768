//! The profiler callback that a network's plugin gets.

use std::ffi::c_int;

use ferroccl_plugin::{Code, Object, SUCCESS};

/// Kind of an event: the first of the enumeration in `common.h`, `ncclProfilerNetEventStart`.
const EVENT_START: c_int = 0;

/// The profiler that nobody watches: it begins events that are nothing. Messages have no profiler handle, and so a plugin
/// has little reason to call it.
///
/// # Safety
/// `event` is NULL or writable.
pub(super) unsafe extern "C" fn profiler(
    event: *mut Object,
    kind: c_int,
    _handle: Object,
    _plugin: i64,
    _data: Object,
) -> Code {
    if kind == EVENT_START && !event.is_null() {
        // SAFETY: the caller's.
        unsafe { event.write(std::ptr::null_mut()) };
    }
    SUCCESS
}

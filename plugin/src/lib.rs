//! What all plugins made for NCCL have in common, whatever they are for.
//!
//! ```text
//! library   finds the library that a variable names, and the newest table in it
//! calls     warns of functions that do not return
//! log       what a plugin logs becomes events of `tracing`
//! ```
//!
//! Each user has the tables of its own kind: networks are in `ferroccl-proxy`, tuners and profilers in `ferroccl`.

mod calls;
mod library;
mod log;

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub use calls::{Watched, call};
pub use library::{Found, Kind, LoadError, Opened};
pub use log::{logger, string};

/// A `ncclResult_t`.
pub type Code = c_int;
/// `ncclSuccess`.
pub const SUCCESS: Code = 0;

/// What only the plugin looks into: its contexts, events, connections.
pub type Object = *mut c_void;

/// `ncclDebugLogger_t` (`common.h`): level, subsystems, file or function, line, `printf`'s format and arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);

/// A result by its name in `nccl.h`.
///
/// ```
/// assert_eq!(ferroccl_plugin::code_name(2), "ncclSystemError");
/// ```
#[must_use]
pub fn code_name(code: Code) -> String {
    let name = match code {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        _ => return format!("result {code}, which is no ncclResult_t"),
    };
    name.to_owned()
}

//! How a function answers: a result code, a text for `ncclGetLastError`, a line in the log. No panic leaves a function.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

use ferroccl::device::abi::FaultKind;
use ferroccl::{Error, bootstrap::BootstrapError, log};

use crate::group;
use crate::handles;
use crate::types::*;

/// Why a function does not do what it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: ncclResult_t,
    pub(crate) text: String,
}

/// What a function has come to, if it has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// It is done.
    Yes,
    /// It goes on: `ncclInProgress`.
    InProgress,
}

/// What the body of a function gives.
pub(crate) type Answer = Result<Done, Failure>;

impl Failure {
    /// `ncclInvalidArgument`: `argument` is the one that is wrong, by its name in `nccl.h`.
    pub(crate) fn argument(argument: &str, reason: impl AsRef<str>) -> Self {
        let text = format!("invalid argument {argument}: {}", reason.as_ref());
        Failure { code: ncclInvalidArgument, text }
    }

    /// `ncclInvalidUsage`.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Failure { code: ncclInvalidUsage, text: text.into() }
    }

    /// `ncclInternalError`.
    pub(crate) fn internal(text: impl Into<String>) -> Self {
        Failure { code: ncclInternalError, text: text.into() }
    }

    /// Of what is not there yet: never a success that is none.
    pub(crate) fn absent(what: &str, why: &str) -> Self {
        Failure::usage(format!("{what} is not available: {why}"))
    }

    /// An error of the library, with the names that arguments have in `nccl.h`.
    pub(crate) fn of(error: Error, names: &[(&str, &str)]) -> Self {
        if let Error::InvalidArgument { argument, reason } = &error
            && let Some((_, name)) = names.iter().find(|(ours, _)| ours == argument)
        {
            return Failure::argument(name, reason);
        }
        error.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidArgument { .. } => ncclInvalidArgument,
            Error::System { .. } => ncclSystemError,
            Error::PeerLost { .. } | Error::Network(_) => ncclRemoteError,
            Error::Timeout { .. } => ncclTimeout,
            Error::Cuda(_) => ncclUnhandledCudaError,
            Error::Panicked { .. } => ncclInternalError,
            Error::Bootstrap(error) => match error {
                BootstrapError::InvalidId(_) => ncclInvalidArgument,
                BootstrapError::NoInterface { .. } => ncclSystemError,
                BootstrapError::Timeout { .. } | BootstrapError::MissingRanks(_) => ncclTimeout,
                BootstrapError::Mismatch(_) | BootstrapError::Refused { .. } => ncclInvalidUsage,
                _ => ncclRemoteError,
            },
            Error::Kernel(fault) => match fault.kind() {
                FaultKind::Mismatch | FaultKind::NoConnection => ncclInvalidUsage,
                FaultKind::Timeout => ncclTimeout,
                FaultKind::PeerLost | FaultKind::Aborted => ncclRemoteError,
                FaultKind::Deadlock | FaultKind::None => ncclInternalError,
            },
            Error::Aborted { .. } => ncclRemoteError,
            // A setting, a revoked communicator, what this machine or build does not have.
            _ => ncclInvalidUsage,
        };
        Failure { code, text: error.to_string() }
    }
}

thread_local! {
    /// The last failure of a call of this thread.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
    /// Where `ncclGetLastError` leaves its text for the caller, until this thread calls it again.
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The last failure of the process, which a thread gets that has had none.
static LAST_OF_ALL: Mutex<String> = Mutex::new(String::new());

/// Keeps a failure for `ncclGetLastError`, and tells the log.
pub(crate) fn tell(function: &str, failure: &Failure) {
    tracing::warn!(target: log::INIT, "{function}: {}", failure.text);
    let text = format!("{function}: {}", failure.text);
    LAST_OF_ALL.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&text);
    // A thread that ends has nobody left who asks.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
}

/// Runs the body of `function`.
pub(crate) fn answer(function: &'static str, body: impl FnOnce() -> Answer) -> ncclResult_t {
    run(function, body).unwrap_or_else(|failure| failure.code)
}

/// The same for what may be in a group: `ncclGroupEnd` then gives the failure, too, and starts nothing.
pub(crate) fn grouped(function: &'static str, body: impl FnOnce() -> Answer) -> ncclResult_t {
    run(function, body).unwrap_or_else(|failure| {
        group::spoil(function, &failure);
        failure.code
    })
}

fn run(function: &str, body: impl FnOnce() -> Answer) -> Result<ncclResult_t, Failure> {
    static LOG: Once = Once::new();
    // A log that cannot be had is an error of the communicator that is made, which reads all settings.
    LOG.call_once(|| drop(catch_unwind(log::init_from_env)));
    let answer = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(Failure::internal(format!("panicked: {}", words(&*panic)))));
    match answer {
        Ok(Done::Yes) => Ok(ncclSuccess),
        Ok(Done::InProgress) => Ok(ncclInProgress),
        Err(failure) => {
            tell(function, &failure);
            Err(failure)
        }
    }
}

/// What a panic says.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Exports functions, each with its twin (`pnccl...`) for tools that put themselves before the first: neither calls the other.
macro_rules! export {
    ($($(#[$doc:meta])* $kind:ident $name:ident, $twin:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        const _: () = {
            #[allow(unused_unsafe, reason = "some have pointers to read or write, some have none")]
            unsafe fn body($($arg: $ty),*) -> $crate::answer::Answer {
                // SAFETY: the caller keeps NCCL's contract: a pointer that is not null leads to what `nccl.h` says. Handles
                // are looked up, and never followed.
                unsafe { $body }
            }
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::types::ncclResult_t {
                // SAFETY: the caller's.
                $crate::answer::$kind(stringify!($name), || unsafe { body($($arg),*) })
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $twin($($arg: $ty),*) -> $crate::types::ncclResult_t {
                // SAFETY: the caller's.
                $crate::answer::$kind(stringify!($twin), || unsafe { body($($arg),*) })
            }
        };
    )*};
}

/// The place that a pointer to a result leads to.
///
/// # Safety
/// Where it is not null, it leads to a `T` that nobody else uses meanwhile.
pub(crate) unsafe fn out<'a, T>(
    pointer: *mut T,
    name: &str,
) -> Result<&'a mut std::mem::MaybeUninit<T>, Failure> {
    // SAFETY: the caller's; what is there may be uninitialised.
    unsafe { pointer.cast::<std::mem::MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| Failure::argument(name, "is NULL"))
}

fn error_string(result: ncclResult_t) -> *const c_char {
    let text = match result {
        ncclSuccess => c"no error",
        ncclUnhandledCudaError => {
            c"unhandled cuda error (ncclGetLastError and NCCL_DEBUG=WARN say more)"
        }
        ncclSystemError => {
            c"unhandled system error (ncclGetLastError and NCCL_DEBUG=WARN say more)"
        }
        ncclInternalError => c"internal error - please report it to FerroCCL's authors",
        ncclInvalidArgument => c"invalid argument (ncclGetLastError and NCCL_DEBUG=WARN say which)",
        ncclInvalidUsage => c"invalid usage (ncclGetLastError and NCCL_DEBUG=WARN say more)",
        ncclRemoteError => c"remote process exited or there was a network error",
        ncclInProgress => c"NCCL operation in progress",
        ncclTimeout => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The last failure of a communicator; without one, of this thread; without one, of the process.
fn last_error(comm: ncclComm_t) -> *const c_char {
    let of_comm = handles::find(comm).ok().and_then(|comm| comm.last_failure());
    let text = of_comm
        .or_else(|| LAST.with_borrow(|last| (!last.is_empty()).then(|| last.clone())))
        .unwrap_or_else(|| LAST_OF_ALL.lock().unwrap_or_else(PoisonError::into_inner).clone());
    TEXT.with_borrow_mut(|bytes| {
        *bytes = text.into_bytes();
        bytes.retain(|byte| *byte != 0);
        bytes.push(0);
        bytes.as_ptr().cast()
    })
}

/// The words for a result.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    error_string(result)
}

#[unsafe(no_mangle)]
extern "C" fn pncclGetErrorString(result: c_int) -> *const c_char {
    error_string(result)
}

/// What went wrong last, in words: until this thread asks again.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    last_error(comm)
}

#[unsafe(no_mangle)]
extern "C" fn pncclGetLastError(comm: ncclComm_t) -> *const c_char {
    last_error(comm)
}

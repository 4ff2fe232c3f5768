//! The function that a plugin logs with.
//!
//! A plugin logs as in C: `logger(level, subsystems, file, line, format, ...)`. The text is made by `vsnprintf`, and becomes
//! an event of `tracing`. Its target is `ferroccl::tuning` where the subsystems have NCCL's bit for tuning and not the one for
//! networks, `ferroccl::init` where they have the one for profiling and neither, and else `ferroccl::net`.
//!
//! Stable Rust cannot define a function with `...`. What it can define is a function of assembly alone, and so
//! [`variadic`] is the function that the plugin calls: it does what a C compiler puts at the beginning of such a function,
//! namely stores the registers that may hold arguments and makes a `va_list` of them, and hands that to [`write`]. Layout
//! and rules are those of the System V ABI for AMD64 (3.5.7, "Variable Argument Lists") and of the AAPCS64 (appendix B,
//! "Variable argument lists"), on Linux. On any other machine the plugin gets a function that has the arguments up to the
//! format only, and events have the format as it is.

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::Level;

use super::{Logger, Object};

/// Levels of `ncclDebugLogLevel` (`common.h`); what is none of these is information.
const WARN: c_int = 2;
const ABORT: c_int = 4;
const TRACE: c_int = 5;

/// Subsystems of `ncclDebugLogSubSys` (`nccl_common.h`).
const NET: c_ulong = 0x10;
const TUNING: c_ulong = 0x40;
const PROFILE: c_ulong = 0x4000;

/// Bytes of a message at most, with the 0 at its end; the rest is cut off. Unmeasured: twice what NCCL's log has.
const MAX_TEXT: usize = 2048;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod variadic {
    /// Level, subsystems, file, line and format are in edi, rsi, rdx, ecx and r8, where [`super::write`] wants them. The
    /// first of the other arguments is in r9, some may be in xmm0 to xmm7 (al says whether), the rest lies above the
    /// return address.
    ///
    /// ```text
    /// rsp + 0    rdi .. r9, of which r9 alone is stored    \ reg_save_area
    ///     + 48   xmm0 .. xmm7                              /
    ///     + 176  va_list: gp_offset 40 (past the five), fp_offset 48, overflow_arg_area, reg_save_area
    ///     + 200  nothing: the stack is a multiple of 16
    ///     + 208  rbp, return address, the rest of the arguments
    /// ```
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn variadic() {
        std::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 208",
            "mov [rsp + 40], r9",
            "test al, al",
            "je 2f",
            "movaps [rsp + 48], xmm0",
            "movaps [rsp + 64], xmm1",
            "movaps [rsp + 80], xmm2",
            "movaps [rsp + 96], xmm3",
            "movaps [rsp + 112], xmm4",
            "movaps [rsp + 128], xmm5",
            "movaps [rsp + 144], xmm6",
            "movaps [rsp + 160], xmm7",
            "2:",
            "mov dword ptr [rsp + 176], 40",
            "mov dword ptr [rsp + 180], 48",
            "lea rax, [rbp + 16]",
            "mov [rsp + 184], rax",
            "mov [rsp + 192], rsp",
            "lea r9, [rsp + 176]",
            "call {write}",
            "leave",
            "ret",
            write = sym super::write,
        )
    }
}

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
mod variadic {
    /// Level, subsystems, file, line and format are in w0, x1, x2, w3 and x4, where [`super::write`] wants them. The next
    /// arguments are in x5 to x7 and v0 to v7, the rest lies at the stack pointer. A `va_list` is longer than 16 bytes, so
    /// that it is passed by its address.
    ///
    /// ```text
    /// sp + 0    x29, x30
    ///    + 16   va_list: __stack, __gr_top, __vr_top, __gr_offs -24, __vr_offs -128
    ///    + 48   nothing
    ///    + 56   x5 .. x7      up to __gr_top
    ///    + 80   q0 .. q7      up to __vr_top
    ///    + 208  the rest of the arguments, __stack
    /// ```
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn variadic() {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-208]!",
            "mov x29, sp",
            "str x5, [sp, #56]",
            "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]",
            "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]",
            "stp q6, q7, [sp, #176]",
            "add x9, sp, #208",
            "add x10, sp, #80",
            "str x9, [sp, #16]",
            "str x10, [sp, #24]",
            "str x9, [sp, #32]",
            "mov w9, #-24",
            "mov w10, #-128",
            "stp w9, w10, [sp, #40]",
            "add x5, sp, #16",
            "bl {write}",
            "ldp x29, x30, [sp], #208",
            "ret",
            write = sym super::write,
        )
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod variadic {
    use std::ffi::{c_char, c_int, c_ulong};

    /// Arguments with names are passed alike with and without others after them, on every 64-bit machine that Linux has.
    pub(super) unsafe extern "C" fn variadic(
        level: c_int,
        subsystems: c_ulong,
        file: *const c_char,
        line: c_int,
        format: *const c_char,
    ) {
        // SAFETY: the plugin's arguments.
        unsafe { super::write(level, subsystems, file, line, format, std::ptr::null_mut()) };
    }
}

/// The function that a plugin logs with.
#[must_use]
pub fn logger() -> Logger {
    let function = variadic::variadic as *const ();
    // SAFETY: a function that takes what a `Logger` does: see its comment.
    unsafe { std::mem::transmute::<*const (), Logger>(function) }
}

unsafe extern "C" {
    /// `vsnprintf(3)`; a `va_list` is passed by its address on the machines that [`variadic`] is for.
    fn vsnprintf(
        text: *mut c_char,
        bytes: usize,
        format: *const c_char,
        arguments: Object,
    ) -> c_int;
}

/// Makes an event of what a plugin logs. NULL as `arguments`: they are not known.
///
/// # Safety
/// `file` and `format` are strings or NULL, and the arguments are what the format names.
unsafe extern "C" fn write(
    level: c_int,
    subsystems: c_ulong,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    arguments: Object,
) {
    let level = match level {
        WARN => Level::WARN,
        ABORT => Level::ERROR,
        TRACE => Level::TRACE,
        _ => Level::INFO,
    };
    // A subscriber's panic ends here: it can't go on through C.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        macro_rules! event {
            ($level:expr) => {
                match subsystems {
                    of if of & NET != 0 => event!("ferroccl::net", $level),
                    of if of & TUNING != 0 => event!("ferroccl::tuning", $level),
                    of if of & PROFILE != 0 => event!("ferroccl::init", $level),
                    _ => event!("ferroccl::net", $level),
                }
            };
            ($target:literal, $level:expr) => {
                if tracing::enabled!(target: $target, $level) {
                    // SAFETY: the caller's.
                    let text = unsafe { text(format, arguments) };
                    // SAFETY: the caller's.
                    let from = unsafe { string(file) }.unwrap_or_default();
                    tracing::event!(
                        target: $target, $level, from, line, subsystems, "{text}"
                    );
                }
            };
        }
        match level {
            Level::ERROR => event!(Level::ERROR),
            Level::WARN => event!(Level::WARN),
            Level::TRACE => event!(Level::TRACE),
            _ => event!(Level::INFO),
        }
    }));
}

/// What a format and its arguments say.
///
/// # Safety
/// As [`write`].
unsafe fn text(format: *const c_char, arguments: Object) -> String {
    let mut bytes = [0u8; MAX_TEXT];
    if !format.is_null() && !arguments.is_null() {
        // SAFETY: the plugin's format and arguments, and so many bytes.
        let length = unsafe { vsnprintf(bytes.as_mut_ptr().cast(), MAX_TEXT, format, arguments) };
        if length >= 0
            && let Ok(text) = CStr::from_bytes_until_nul(&bytes)
        {
            return text.to_string_lossy().trim_end().to_owned();
        }
    }
    // SAFETY: the plugin's format.
    unsafe { string(format) }.unwrap_or_default()
}

/// A string of C's, unless it is NULL.
///
/// # Safety
/// It ends with a 0.
#[must_use]
pub unsafe fn string(at: *const c_char) -> Option<String> {
    // SAFETY: the caller's.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

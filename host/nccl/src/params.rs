//! Parameters: the settings that FerroCCL reads from the environment, by NCCL's names and its own.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::LazyLock;

use ferroccl::config::{Config, KNOBS, Knob, Size};
use ferroccl::log;

use crate::answer::{Answer, Done, Failure, answer, out};

/// What an `ncclParamHandle_t` leads to: a row of [`KNOBS`].
type Handle = *mut c_void;

thread_local! {
    /// What `ncclParamGetStr` gave this thread last.
    static STRING: RefCell<CString> = RefCell::default();
    /// The same of `ncclParamGetParameter`.
    static PARAMETER: RefCell<CString> = RefCell::default();
}

/// The names of all settings. They never change, so that no thread needs a table of its own.
struct Keys(Vec<CString>, Vec<usize>);
static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let names: Vec<CString> =
        KNOBS.iter().filter_map(|knob| CString::new(knob.name).ok()).collect();
    let table = names.iter().map(|name| name.as_ptr().expose_provenance()).collect();
    Keys(names, table)
});

/// The setting of a handle.
fn knob(handle: Handle) -> Result<&'static Knob, Failure> {
    let known = KNOBS.iter().find(|knob| std::ptr::from_ref(*knob).addr() == handle.addr());
    known.ok_or_else(|| Failure::argument("h", format!("{handle:p} is not from ncclParamBind")))
}

/// The setting of a name.
///
/// # Safety
/// `key` is null, or a string of C's.
unsafe fn named(key: *const c_char) -> Result<&'static Knob, Failure> {
    if key.is_null() {
        return Err(Failure::argument("key", "is NULL"));
    }
    // SAFETY: the caller's.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    let known = KNOBS.iter().find(|knob| knob.name == key);
    known.ok_or_else(|| Failure::argument("key", format!("{key} is no parameter")))
}

/// What a setting is, as it would be written; empty where it is not set and has no default.
fn value(knob: &Knob) -> Result<String, Failure> {
    let entries = Config::from_env()?.entries();
    let entry = entries.into_iter().find(|(known, _)| known.name == knob.name);
    let value = entry.map(|(_, value)| value).unwrap_or_default();
    // A secret is for nobody's eyes.
    Ok(if knob.name == "FERROCCL_SECRET" && !value.is_empty() { "***".to_owned() } else { value })
}

/// A setting that is a number.
fn number(handle: Handle) -> Result<i128, Failure> {
    let knob = knob(handle)?;
    let value = value(knob)?;
    let size = || value.parse::<Size>().ok().map(|size| size.0 as i128);
    value
        .parse()
        .ok()
        .or_else(size)
        .ok_or_else(|| Failure::argument("h", format!("{} is {value:?}, no number", knob.name)))
}

/// Writes a setting as an integer of C's.
///
/// # Safety
/// As [`out`].
unsafe fn integer<T: TryFrom<i128>>(handle: Handle, at: *mut T) -> Answer {
    // SAFETY: the caller's.
    let at = unsafe { out(at, "out")? };
    let number = number(handle)?;
    let fits = T::try_from(number);
    at.write(fits.map_err(|_| Failure::argument("out", format!("is too small for {number}")))?);
    Ok(Done::Yes)
}

fn string(value: String) -> CString {
    CString::new(value).unwrap_or_default()
}

export! {
    /// The handle of a setting.
    answer ncclParamBind, pncclParamBind(at: *mut Handle, key: *const c_char) {
        let at = out(at, "out")?;
        let knob = named(key)?;
        at.write(std::ptr::from_ref(knob).cast_mut().cast());
        Ok(Done::Yes)
    }

    /// A setting as a number.
    answer ncclParamGetI8, pncclParamGetI8(h: Handle, at: *mut i8) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetI16, pncclParamGetI16(h: Handle, at: *mut i16) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetI32, pncclParamGetI32(h: Handle, at: *mut i32) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetI64, pncclParamGetI64(h: Handle, at: *mut i64) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetU8, pncclParamGetU8(h: Handle, at: *mut u8) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetU16, pncclParamGetU16(h: Handle, at: *mut u16) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetU32, pncclParamGetU32(h: Handle, at: *mut u32) { integer(h, at) }
    /// A setting as a number.
    answer ncclParamGetU64, pncclParamGetU64(h: Handle, at: *mut u64) { integer(h, at) }

    /// A setting as text, until this thread asks again.
    answer ncclParamGetStr, pncclParamGetStr(h: Handle, at: *mut *const c_char) {
        let at = out(at, "out")?;
        let text = string(value(knob(h)?)?);
        at.write(STRING.with_borrow_mut(|last| { *last = text; last.as_ptr() }));
        Ok(Done::Yes)
    }

    /// A setting's bytes: a number's as `int64_t`, else the text without its end.
    answer ncclParamGet, pncclParamGet(h: Handle, to: *mut c_void, maxLen: c_int, len: *mut c_int) {
        let length = out(len, "len")?;
        length.write(0);
        let to = out(to.cast::<u8>(), "out")?;
        let bytes = match number(h) {
            Ok(number) => i64::try_from(number).unwrap_or(i64::MAX).to_ne_bytes().to_vec(),
            Err(_) => value(knob(h)?)?.into_bytes(),
        };
        if usize::try_from(maxLen).is_ok_and(|most| bytes.len() <= most) {
            bytes.as_ptr().copy_to_nonoverlapping(to.as_mut_ptr(), bytes.len());
            length.write(c_int::try_from(bytes.len()).unwrap_or(c_int::MAX));
            return Ok(Done::Yes);
        }
        Err(Failure::argument("maxLen", format!("{maxLen} is less than the {} bytes there are", bytes.len())))
    }

    /// A setting by its name, as text, until this thread asks again.
    answer ncclParamGetParameter, pncclParamGetParameter(
        key: *const c_char, text: *mut *const c_char, valueLen: *mut c_int,
    ) {
        let (text, length) = (out(text, "value")?, out(valueLen, "valueLen")?);
        text.write(std::ptr::null());
        length.write(0);
        let found = string(value(named(key)?)?);
        length.write(c_int::try_from(found.count_bytes()).unwrap_or(c_int::MAX));
        text.write(PARAMETER.with_borrow_mut(|last| { *last = found; last.as_ptr() }));
        Ok(Done::Yes)
    }

    /// The names of all settings.
    answer ncclParamGetAllParameterKeys, pncclParamGetAllParameterKeys(table: *mut *mut *const c_char, tableLen: *mut c_int) {
        let (table, length) = (out(table, "table")?, out(tableLen, "tableLen")?);
        length.write(c_int::try_from(KEYS.0.len()).unwrap_or(c_int::MAX));
        table.write(KEYS.1.as_ptr().cast_mut().cast());
        Ok(Done::Yes)
    }
}

/// Writes all settings to the log.
fn dump_all() -> Answer {
    for knob in KNOBS {
        tracing::info!(target: log::ENV, "{}={}", knob.name, value(knob)?);
    }
    Ok(Done::Yes)
}

/// Reads again what the log is to be. One that has begun stays as it is.
fn reset_debug() -> Answer {
    log::init_from_env()?;
    tracing::info!(target: log::ENV, "a log that has begun stays as it is");
    Ok(Done::Yes)
}

#[unsafe(no_mangle)]
extern "C" fn ncclParamDumpAll() {
    answer("ncclParamDumpAll", dump_all);
}

#[unsafe(no_mangle)]
extern "C" fn pncclParamDumpAll() {
    answer("pncclParamDumpAll", dump_all);
}

#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {
    answer("ncclResetDebugInit", reset_debug);
}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {
    answer("pncclResetDebugInit", reset_debug);
}

//! Finds a plugin's library, and the newest table in it.
//!
//! Names are resolved as NCCL does (`src/plugin/net.cc`, `src/plugin/plugin_open.cc`):
//!
//! ```text
//! NCCL_NET_PLUGIN   not set      libnccl-net.so; where there is none, there is no plugin
//!                   none, empty  no plugin
//!                   NAME         NAME, then libnccl-net-NAME.so unless NAME is a path or lib*.so already
//! ```
//!
//! **A library whose `init` was called is never unloaded.** A plugin may have threads, and the ABI does not say when they have
//! ended; before version 11 it cannot even be told that it is not needed any more. So its functions and names are valid for as
//! long as the process lives. A library that is loaded again is the same one, so that memory does not grow.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tracing::info;

use super::abi::{Object, code_name};
use super::calls::call;
use super::symbol::{Config, Failure, Symbol};
use crate::NetError;
use crate::sync::lock;

/// The library when none is named.
const DEFAULT: &str = "libnccl-net.so";

/// Versions whose names are looked for to say what a library has instead.
const OTHER_VERSIONS: std::ops::RangeInclusive<u32> = 1..=31;

/// A library with a table in it.
#[derive(Debug)]
pub(super) struct Found {
    /// The name that it was opened by.
    pub(super) file: String,
    pub(super) symbol: Symbol,
    library: Library,
}

/// Opens what `NCCL_NET_PLUGIN` names. `None`: there is to be no plugin, or none is installed.
pub(super) fn open(name: Option<&str>) -> Result<Option<Found>, NetError> {
    match name {
        None => open_default(DEFAULT),
        Some(name) if name.is_empty() || name.eq_ignore_ascii_case("none") => Ok(None),
        Some(name) => open_named(name).map(Some),
    }
}

fn open_default(file: &str) -> Result<Option<Found>, NetError> {
    match dlopen(file) {
        Ok(library) => found(file.to_owned(), library).map(Some),
        Err(reason) if is_missing(file, &reason) => Ok(None),
        Err(reason) => Err(error(file, reason)),
    }
}

fn open_named(name: &str) -> Result<Found, NetError> {
    let mut files = vec![name.to_owned()];
    let is_file = name.contains('/') || name.starts_with("lib") && name.ends_with(".so");
    if !is_file {
        files.push(format!("libnccl-net-{name}.so"));
    }
    let mut reasons = Vec::new();
    for file in files {
        match dlopen(&file) {
            Ok(library) => return found(file, library),
            Err(reason) => {
                info!(target: "ferroccl::net", "NET/Plugin: {file}: {reason}");
                reasons.push(format!("{file} ({reason})"));
            }
        }
    }
    Err(error(name, format!("no library: tried {}", reasons.join(", then "))))
}

fn error(name: &str, reason: impl Into<String>) -> NetError {
    NetError::new(name, "load", reason)
}

fn dlopen(file: &str) -> Result<Library, String> {
    // SAFETY: whoever sets the variable wants this library's constructors to run.
    unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| match error {
        libloading::Error::DlOpen { source } => source.to_string(),
        other => other.to_string(),
    })
}

/// Whether that is all: no such library. A library that is there and broken, or one of those it needs that is not, is an
/// error.
///
/// glibc begins with what the message is about: a name without a `/` that was found nowhere, the path of what was found,
/// the name of another library. That holds in every language. Other C libraries say it in English.
fn is_missing(file: &str, reason: &str) -> bool {
    let about_it = reason.strip_prefix(file).is_some_and(|rest| rest.starts_with(": "));
    about_it || reason.contains(file) && reason.contains("No such file or directory")
}

/// The newest table.
fn found(file: String, library: Library) -> Result<Found, NetError> {
    for (name, symbol) in Symbol::ALL {
        if let Some(at) = address(&library, name) {
            return Ok(Found { symbol: symbol(at), file, library });
        }
    }
    let others: Vec<_> = OTHER_VERSIONS
        .map(|version| format!("ncclNetPlugin_v{version}"))
        .filter(|name| address(&library, name).is_some())
        .collect();
    let names = Symbol::ALL.map(|(name, _)| name).join(", ");
    let reason = match others.is_empty() {
        true => format!("has none of {names}"),
        false => format!("has none of {names}, only {}", others.join(", ")),
    };
    Err(error(&file, reason))
}

/// Where a name is, if it is there.
fn address(library: &Library, name: &str) -> Option<*const c_void> {
    // SAFETY: the address alone is taken.
    let symbol = unsafe { library.get::<*const c_void>(name) }.ok()?;
    let at = symbol.as_raw_ptr().cast_const();
    (!at.is_null()).then_some(at)
}

/// A library that stays.
struct Kept {
    /// Of its table.
    address: usize,
    initialised: bool,
    _library: Library,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    lock(&KEPT)
}

impl Found {
    /// Initialises the plugin, unless it is and once is enough, and lets its library stay. NULL where there are no
    /// contexts.
    pub(super) fn init(self, name: &Arc<str>, config: &Config) -> Result<Object, NetError> {
        let Found { file, symbol, library } = self;
        // Held while `init` runs: nobody may use what another thread has half initialised.
        let mut all = kept();
        let address = symbol.address().addr();
        let at = all.iter().position(|kept| kept.address == address).unwrap_or(all.len());
        if at == all.len() {
            all.push(Kept { address, initialised: false, _library: library });
        }
        let Some(kept) = all.get_mut(at) else { return Ok(std::ptr::null_mut()) };
        if kept.initialised && !symbol.has_contexts() {
            return Ok(std::ptr::null_mut());
        }
        // SAFETY: a library that exports this name has such a table; the caller keeps the configuration.
        let context = call(name, "init", || unsafe { symbol.init(config) });
        let context = context.map_err(|failure| match failure {
            Failure::Code(code) => NetError::new(&**name, "init", code_name(code)),
            Failure::Missing(function) => missing(&file, function),
        })?;
        kept.initialised = true;
        info!(target: "ferroccl::net", "NET/Plugin: Loaded net plugin {name} (v{}) from {file}", symbol.version());
        Ok(context)
    }
}

/// The error of a table without a function.
pub(super) fn missing(file: &str, function: &str) -> NetError {
    error(file, format!("has no function {function} in its table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_plugin() {
        assert!(open_default("libnccl-net-that-nobody-has.so").unwrap().is_none());
        for name in ["none", "NONE", "None", ""] {
            assert!(open(Some(name)).unwrap().is_none(), "{name}");
        }
    }

    #[test]
    fn what_is_tried_is_in_the_error() {
        let error = |name| open(Some(name)).unwrap_err().to_string();
        let text = error("nobody-has");
        assert!(text.starts_with("nobody-has: load: no library: tried nobody-has (nobody-has: "));
        assert!(text.contains("), then libnccl-net-nobody-has.so (libnccl-net-nobody-has.so: "));
        // Neither is a path completed, nor what is a library's name.
        assert!(!error("/nobody/has").contains("then"));
        assert!(!error("libnobody-has.so").contains("then"));
        // A 0 in a name is no end of it.
        assert!(error("nobody\0has").starts_with("nobody\0has: load: no library"));
    }

    #[test]
    fn missing_is_not_broken() {
        let name = "libnccl-net.so";
        for (reason, missing) in [
            ("libnccl-net.so: cannot open shared object file: No such file or directory", true),
            ("libnccl-net.so: Kann die Shared-Object-Datei nicht öffnen: Datei nicht da", true),
            ("Error loading shared library libnccl-net.so: No such file or directory", true),
            ("/usr/lib/libnccl-net.so: invalid ELF header", false),
            ("/usr/lib/libnccl-net.so: undefined symbol: fi_getinfo", false),
            ("libfabric.so.1: cannot open shared object file: No such file or directory", false),
        ] {
            assert_eq!(is_missing(name, reason), missing, "{reason}");
        }
    }

    #[test]
    fn a_library_without_a_table() {
        // Which every process has loaded.
        let error = open(Some("libc.so.6")).unwrap_err();
        assert_eq!((error.net.as_str(), error.operation), ("libc.so.6", "load"));
        assert!(error.reason.starts_with("has none of ncclNetPlugin_v11, "), "{error}");
    }
}

//! Finds a plugin's library, and the newest table in it.
//!
//! Names are resolved as NCCL does (`src/plugin/plugin_open.cc`), here for networks:
//!
//! ```text
//! NCCL_NET_PLUGIN   not set         libnccl-net.so; where there is none, there is no plugin
//!                   none, empty     no plugin
//!                   STATIC_PLUGIN   the program itself
//!                   NAME            NAME, then libnccl-net-NAME.so unless NAME is a path or lib*.so already
//! ```
//!
//! **A library whose `init` was called is never unloaded.** A plugin may have threads, and the ABI does not say when they have
//! ended. So its functions and names are valid for as long as the process lives. A library that is loaded again is the same
//! one, so that memory does not grow.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tracing::info;

/// The program itself, which a plugin is linked with.
const STATIC: &str = "STATIC_PLUGIN";

/// Versions whose names are looked for to say what a library has instead.
const OTHER_VERSIONS: std::ops::RangeInclusive<u32> = 1..=31;

/// What a plugin is for.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The library's name without its end: `libnccl-net`.
    pub library: &'static str,
    /// A table's name without its version: `ncclNetPlugin_v`.
    pub table: &'static str,
    /// The versions that are known, the newest first.
    pub versions: &'static [u32],
}

/// A library that is open. It is closed with this, unless its plugin was initialised.
#[derive(Debug)]
pub struct Opened {
    file: String,
    library: Library,
}

/// A library with a table in it.
#[derive(Debug)]
pub struct Found {
    /// The library.
    pub opened: Opened,
    /// The table's version.
    pub version: u32,
    /// Where the table is.
    pub table: *const c_void,
}

/// There is no such library, or none of the tables is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// What was to be loaded.
    pub name: String,
    /// Why it cannot be.
    pub reason: String,
}

impl Kind {
    /// Opens what a variable of the environment names, whose value is `name`. `None`: there is to be no plugin, or none is
    /// installed.
    ///
    /// # Errors
    /// When there is no such library, or it cannot be loaded.
    pub fn open(&self, name: Option<&str>) -> Result<Option<Opened>, LoadError> {
        match name {
            None => self.open_default(),
            Some(name) if name.is_empty() || name.eq_ignore_ascii_case("none") => Ok(None),
            Some(name) => self.open_named(name).map(Some),
        }
    }

    /// Finds what `name` names, and the newest table in it. Where nothing is named and none is installed, it is the library that
    /// `net` names, the network's, if that has such a table, as with NCCL. `None`: there is to be no plugin, or none is installed.
    ///
    /// # Errors
    /// When there is no such library, it cannot be loaded, or has no table of a version that is known.
    pub fn find(&self, name: Option<&str>, net: Option<&str>) -> Result<Option<Found>, LoadError> {
        if let Some(opened) = self.open(name)? {
            let (version, table) = opened.table(self)?;
            return Ok(Some(Found { opened, version, table }));
        }
        if name.is_some() {
            return Ok(None);
        }
        // A network's plugin that cannot be loaded, or has something else in it alone, is its own affair.
        let of_net = Kind { library: "libnccl-net", ..*self };
        let opened = of_net.open(net).ok().flatten();
        Ok(opened.and_then(|opened| {
            let (version, table) = opened.table(self).ok()?;
            Some(Found { opened, version, table })
        }))
    }

    fn open_default(&self) -> Result<Option<Opened>, LoadError> {
        // Looked for once in a process: every communicator asks.
        static MISSING: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        let missing = || MISSING.lock().unwrap_or_else(PoisonError::into_inner);
        if missing().contains(&self.library) {
            return Ok(None);
        }
        let file = format!("{}.so", self.library);
        match dlopen(&file) {
            Ok(library) => Ok(Some(Opened { file, library })),
            Err(reason) if is_missing(&file, &reason) => {
                missing().push(self.library);
                Ok(None)
            }
            Err(reason) => Err(LoadError { name: file, reason }),
        }
    }

    fn open_named(&self, name: &str) -> Result<Opened, LoadError> {
        let mut files = vec![name.to_owned()];
        let is_file = name.contains('/') || name.starts_with("lib") && name.ends_with(".so");
        if !is_file {
            files.push(format!("{}-{name}.so", self.library));
        }
        let mut reasons = Vec::new();
        for file in files {
            match dlopen(&file) {
                Ok(library) => return Ok(Opened { file, library }),
                Err(reason) => {
                    info!(target: "ferroccl::init", "Plugin: {file}: {reason}");
                    reasons.push(format!("{file} ({reason})"));
                }
            }
        }
        let reason = format!("no library: tried {}", reasons.join(", then "));
        Err(LoadError { name: name.to_owned(), reason })
    }
}

impl Opened {
    /// The name that it was opened by.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The version and the address of the newest table.
    ///
    /// # Errors
    /// When there is none of a version that is known.
    pub fn table(&self, kind: &Kind) -> Result<(u32, *const c_void), LoadError> {
        let name = |version| format!("{}{version}", kind.table);
        let mut known = kind.versions.iter();
        if let Some(found) = known.find_map(|&v| Some((v, self.address(&name(v))?))) {
            return Ok(found);
        }
        let others = OTHER_VERSIONS.map(name).filter(|name| self.address(name).is_some());
        let (others, known) = (
            others.collect::<Vec<_>>().join(", "),
            kind.versions.iter().map(|version| name(*version)).collect::<Vec<_>>().join(", "),
        );
        let reason = match others.is_empty() {
            true => format!("has none of {known}"),
            false => format!("has none of {known}, only {others}"),
        };
        Err(LoadError { name: self.file.clone(), reason })
    }

    /// Where a name is, if it is there.
    fn address(&self, name: &str) -> Option<*const c_void> {
        // SAFETY: the address alone is taken.
        let symbol = unsafe { self.library.get::<*const c_void>(name) }.ok()?;
        let at = symbol.as_raw_ptr().cast_const();
        (!at.is_null()).then_some(at)
    }

    /// Initialises the plugin whose table is at `table`, and lets its library stay. `once`: it is initialised by the first
    /// call alone, and later ones give `None`.
    ///
    /// # Errors
    /// That of `init`.
    pub fn init<R, E>(
        self,
        table: *const c_void,
        once: bool,
        init: impl FnOnce() -> Result<R, E>,
    ) -> Result<Option<R>, E> {
        // Held while `init` runs: nobody may use what another thread has half initialised.
        let mut all = kept();
        let table = table.addr();
        let at = all.iter().position(|kept| kept.table == table).unwrap_or(all.len());
        if at == all.len() {
            all.push(Kept { table, initialised: false, _library: self.library });
        }
        let Some(kept) = all.get_mut(at) else { return Ok(None) };
        if once && kept.initialised {
            return Ok(None);
        }
        let made = init()?;
        kept.initialised = true;
        Ok(Some(made))
    }
}

fn dlopen(file: &str) -> Result<Library, String> {
    if file.eq_ignore_ascii_case(STATIC) {
        return Ok(Library::this());
    }
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

/// A library that stays.
struct Kept {
    /// The address of its table.
    table: usize,
    initialised: bool,
    _library: Library,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: Kind =
        Kind { library: "libnccl-net", table: "ncclNetPlugin_v", versions: &[11, 10, 9, 8] };

    #[test]
    fn no_plugin() {
        let nobodys = Kind { library: "libnccl-net-that-nobody-has", ..NET };
        assert!(nobodys.open(None).unwrap().is_none());
        for name in ["none", "NONE", "None", ""] {
            assert!(NET.open(Some(name)).unwrap().is_none(), "{name}");
        }
    }

    #[test]
    fn what_is_tried_is_in_the_error() {
        let error = |name| NET.open(Some(name)).unwrap_err();
        let text = error("nobody-has").reason;
        assert!(text.starts_with("no library: tried nobody-has (nobody-has: "), "{text}");
        assert!(text.contains("), then libnccl-net-nobody-has.so (libnccl-net-nobody-has.so: "));
        // Neither is a path completed, nor what is a library's name.
        assert!(!error("/nobody/has").reason.contains("then"));
        assert!(!error("libnobody-has.so").reason.contains("then"));
        // A 0 in a name is no end of it.
        let zero = error("nobody\0has");
        assert!(zero.name == "nobody\0has" && zero.reason.starts_with("no library"), "{zero:?}");
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
        for name in ["libc.so.6", "STATIC_PLUGIN"] {
            let error = NET.open(Some(name)).unwrap().unwrap().table(&NET).unwrap_err();
            assert_eq!(error.name, name);
            assert!(error.reason.starts_with("has none of ncclNetPlugin_v11, "), "{error:?}");
        }
    }
}

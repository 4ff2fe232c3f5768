//! A table in a library, before it is read: its names, and how a plugin is initialised.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_plugin::{Code, Kind, Object, SUCCESS, logger, string};

use super::abi::{CommConfig, TRAFFIC_CLASS_UNDEF, Table, TableV11, TableWithDevices, V8, V9, V10};
use super::profiler::profiler;

/// What is loaded as a network.
pub(super) const KIND: Kind =
    Kind { library: "libnccl-net", table: "ncclNetPlugin_v", versions: &[11, 10, 9, 8] };

/// A table that a library has, not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Symbol {
    V8(*const Table<V8>),
    V9(*const TableWithDevices<V9>),
    V10(*const TableWithDevices<V10>),
    V11(*const TableV11),
}

/// Why there are no functions to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// `init` did not like it.
    Code(Code),
    /// The table has NULL there.
    Missing(&'static str),
}

/// The number of the next context. NCCL has the hash of the communicator there.
static CONTEXTS: AtomicU64 = AtomicU64::new(1);

impl Symbol {
    /// The table at `at`, of one of the versions of [`KIND`].
    pub(super) fn of_version(version: u32, at: *const c_void) -> Self {
        match version {
            8 => Symbol::V8(at.cast()),
            9 => Symbol::V9(at.cast()),
            10 => Symbol::V10(at.cast()),
            _ => Symbol::V11(at.cast()),
        }
    }

    /// Whether each call of `init` makes a context of its own. Before that a plugin was initialised once.
    pub(super) fn has_contexts(self) -> bool {
        matches!(self, Symbol::V11(_))
    }

    /// Where it is, which tells apart plugins.
    pub(super) fn address(self) -> *const c_void {
        match self {
            Symbol::V8(at) => at.cast(),
            Symbol::V9(at) => at.cast(),
            Symbol::V10(at) => at.cast(),
            Symbol::V11(at) => at.cast(),
        }
    }

    /// The plugin's name, which is the first field of any table.
    ///
    /// # Safety
    /// There is such a table.
    pub(super) unsafe fn name(self) -> Option<String> {
        // SAFETY: the caller's.
        unsafe { string(self.address().cast::<*const c_char>().read()) }
    }

    /// Calls the plugin's `init`; the context is NULL where there are none.
    ///
    /// # Safety
    /// There is such a table, the plugin keeps to the ABI, and the configuration lives as long as the context.
    pub(super) unsafe fn init(self, config: &Config) -> Result<Object, Failure> {
        let missing = Failure::Missing("init");
        let mut context = null_mut();
        // SAFETY: the caller's.
        let code = unsafe {
            match self {
                Symbol::V8(at) => Table::init(at).ok_or(missing)?(logger()),
                Symbol::V9(at) => Table::init(&raw const (*at).table).ok_or(missing)?(logger()),
                Symbol::V10(at) => {
                    Table::init(&raw const (*at).table).ok_or(missing)?(logger(), profiler)
                }
                Symbol::V11(at) => {
                    let init = Table::init(&raw const (*at).table).ok_or(missing)?;
                    // Numbers, and nothing else is ordered by them.
                    let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
                    init(&mut context, number, config.get(), logger(), profiler)
                }
            }
        };
        if code == SUCCESS { Ok(context) } else { Err(Failure::Code(code)) }
    }

    /// Ends what `init` has made, if the version has a function for that. What it says is of no use to anybody.
    ///
    /// # Safety
    /// There is such a table, and the context is its `init`'s, which nobody uses any more.
    pub(super) unsafe fn finalize(self, context: Object) {
        if let Symbol::V11(at) = self {
            // SAFETY: the caller's; what is not NULL is a function.
            unsafe {
                if let Some(finalize) = (&raw const (*at).finalize).read() {
                    finalize(context);
                }
            }
        }
    }
}

/// What a plugin is told about connections: nothing. It may look at it as long as the context lives.
pub(super) struct Config(Box<UnsafeCell<CommConfig>>);

impl Config {
    pub(super) fn new() -> Self {
        Config(Box::new(UnsafeCell::new(CommConfig { traffic_class: TRAFFIC_CLASS_UNDEF })))
    }

    /// For the plugin.
    pub(super) fn get(&self) -> *mut CommConfig {
        self.0.get()
    }
}

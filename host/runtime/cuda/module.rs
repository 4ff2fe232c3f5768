//! From embedded PTX to functions of a context: assembled when first needed, and kept on disk.
//!
//! A module is one kernel. The driver's assembler takes up to seconds for one, so what it makes is
//! kept in a directory (`FERROCCL_CUDA_CACHE`), in a file whose name is a hash of all that it depends on: the text, the
//! GPU's compute capability, the driver's version. A file that is not what it should be is made anew.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ferroccl_device::kernels::Kernel;
use ferroccl_ptx::syntax::parse;
use sha2::{Digest, Sha256};
use tracing::{debug, warn};

use super::cubin_cache::CubinCache;
use super::driver::{Driver, Function, Module, jit};
use super::gpu::Gpu;
use crate::runtime::sync::lock;
use crate::{Error, Result, log, ptx};

/// Bytes of the assembler's messages that are kept.
const LOG_BYTES: usize = 16 << 10;

/// What has been loaded into a context.
///
/// Loading may wait for all kernels of the context (Lazy Loading, in CUDA's programming guide), and these for other threads of
/// this process, which launch what was loaded before. So each kernel has a lock of its own, and the lock on all of them is
/// never held across a call of the driver's.
pub(super) struct Modules {
    state: Mutex<State>,
    /// Where assembled modules are kept.
    cache: CubinCache,
}

#[derive(Default)]
struct State {
    kernels: HashMap<String, Arc<Slot>>,
    /// Those of other crates, by their text's address and name: several may have one name.
    own: Vec<(usize, &'static str, Arc<Slot>)>,
    /// PTX of the user's, by kernel.
    sources: HashMap<String, String>,
}

/// The place of a kernel, empty until it is loaded. Locked while it is being loaded, so that it is loaded once.
#[derive(Default)]
struct Slot(Mutex<Option<Entry>>);

/// A kernel that can be launched.
struct Entry {
    module: Module,
    function: Function,
    /// By threads of a block: the blocks that a multiprocessor holds.
    occupancy: Vec<(u32, u32)>,
}

// SAFETY: modules and functions may be used from any thread.
unsafe impl Send for Entry {}

impl Modules {
    /// Nothing is loaded yet; what is assembled is kept in the directory `cache`.
    pub(super) fn new(cache: Option<PathBuf>) -> Self {
        Modules { state: Mutex::default(), cache: CubinCache::new(cache) }
    }

    /// Has `text` take the place of a kernel.
    pub(super) fn replace(&self, kernel: &str, text: &str) {
        let mut state = lock(&self.state);
        state.kernels.remove(kernel);
        state.sources.insert(kernel.to_owned(), text.to_owned());
    }

    /// The place of a kernel.
    fn slot(&self, kernel: &Kernel) -> Arc<Slot> {
        let mut state = lock(&self.state);
        let replaced = state.sources.contains_key(kernel.name);
        if let (Some(text), false) = (kernel.ptx, replaced) {
            let key = (text.0.as_ptr().addr(), kernel.name);
            if let Some((_, _, slot)) = state.own.iter().find(|own| (own.0, own.1) == key) {
                return Arc::clone(slot);
            }
            let slot = Arc::<Slot>::default();
            state.own.push((key.0, key.1, Arc::clone(&slot)));
            return slot;
        }
        if let Some(slot) = state.kernels.get(kernel.name) {
            return Arc::clone(slot);
        }
        Arc::clone(state.kernels.entry(kernel.name.to_owned()).or_default())
    }

    /// The user's text of a kernel.
    fn source(&self, kernel: &str) -> Option<String> {
        lock(&self.state).sources.get(kernel).cloned()
    }

    /// Forgets all modules; their context is current.
    pub(super) fn unload(&self, driver: &Driver) {
        let (kernels, own) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.kernels), std::mem::take(&mut state.own))
        };
        let slots = kernels.values().chain(own.iter().map(|(_, _, slot)| slot));
        for entry in slots.filter_map(|slot| lock(&slot.0).take()) {
            // SAFETY: nothing of it runs any more. An error is that of a context that is lost.
            let _ = unsafe { driver.module_unload(entry.module) };
        }
    }
}

/// The name of the module of a kernel with a source of its own.
fn own(kernel: &str) -> String {
    format!("own/{kernel}")
}

/// Whether a kernel of somebody else's takes what it is launched with: so many bytes. What cannot be read is for the assembler to say.
fn takes(kernel: &str, wanted: usize, text: &str) -> std::result::Result<(), String> {
    let Ok(module) = parse(text) else { return Ok(()) };
    let entry = module.entries().find(|entry| entry.name.text == kernel);
    match entry.and_then(|entry| entry.parameter_bytes()) {
        Some(bytes) if bytes != wanted as u64 => {
            Err(format!("it takes {bytes} bytes of parameters, and is launched with {wanted}"))
        }
        _ => Ok(()),
    }
}

impl Gpu {
    /// A kernel, ready to be launched, and how many blocks of `threads` threads a multiprocessor holds.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this build has no PTX of it, [`Error::Cuda`] with the assembler's messages.
    pub(super) fn entry(&self, kernel: &Kernel, threads: u32) -> Result<(Function, u32)> {
        let slot = self.modules.slot(kernel);
        let mut slot = lock(&slot.0);
        let entry = match &mut *slot {
            Some(entry) => entry,
            empty => empty.insert(self.load(kernel)?),
        };
        let known = entry.occupancy.iter().find(|(of, _)| *of == threads);
        let blocks = match known {
            Some((_, blocks)) => *blocks,
            None => {
                let mut blocks = 0;
                self.run(|| {
                    // SAFETY: writes to a place that is there; the function is of this context.
                    unsafe {
                        self.driver
                            .occupancy(&raw mut blocks, entry.function, threads as c_int, 0)
                            .map_err(|e| self.error(&e))
                    }
                })?;
                let blocks = u32::try_from(blocks).unwrap_or(0);
                entry.occupancy.push((threads, blocks));
                blocks
            }
        };
        Ok((entry.function, blocks))
    }

    fn load(&self, kernel: &Kernel) -> Result<Entry> {
        let own_text = kernel.ptx.map(|text| text.0.to_owned());
        let (kernel, argument) = (kernel.name, kernel.argument);
        let unavailable = |reason: String| Error::Unavailable { what: kernel.to_owned(), reason };
        let source = self.modules.source(kernel).or(own_text);
        let (key, text) = match (source, ptx::module(kernel, self.capability)) {
            (Some(text), _) => {
                takes(kernel, argument, &text).map_err(&unavailable)?;
                (own(kernel), text)
            }
            (None, Some(module)) => {
                let text = ptx::source(kernel, self.capability).unwrap_or_default();
                (format!("sm_{}/{kernel}", module.arch()), text)
            }
            (None, None) => return Err(unavailable(ptx::why_not(&self.name))),
        };
        let name =
            CString::new(kernel).map_err(|_| unavailable("its name has a zero".to_owned()))?;
        let module = self.assembled(&key, &text)?;
        let function = self.run(|| {
            let mut function = std::ptr::null_mut();
            // SAFETY: writes to a place that is there; the module is loaded, and the name ends with a zero.
            unsafe {
                let driver = self.driver;
                driver
                    .module_get_function(&raw mut function, module, name.as_ptr())
                    .and_then(|()| driver.load_function(function))
                    .inspect_err(|_| drop(driver.module_unload(module)))
                    .map_err(|e| self.error(&e))?;
            }
            Ok(function)
        })?;
        Ok(Entry { module, function, occupancy: Vec::new() })
    }

    /// A module of `text`, from the cache or the driver's assembler.
    fn assembled(&self, name: &str, text: &str) -> Result<Module> {
        let (cache, file) = (&self.modules.cache, self.file_name(text));
        if let Some(cubin) = cache.read(&file) {
            match self.load_cubin(&cubin) {
                Ok(module) => {
                    debug!(target: log::INIT, gpu = self.name, "{name} is from the cache");
                    return Ok(module);
                }
                Err(error) => {
                    warn!(target: log::INIT, "{name} in the cache cannot be loaded: {error}");
                }
            }
        }
        let begun = std::time::Instant::now();
        let (module, cubin) = self.assemble(name, text)?;
        debug!(target: log::INIT, gpu = self.name, ms = begun.elapsed().as_millis() as u64, "{name} is assembled");
        if let Err(error) = cache.write(&file, &cubin) {
            // It will be assembled again: slower, and not wrong.
            warn!(target: log::INIT, "{file} cannot be written (FERROCCL_CUDA_CACHE): {error}");
        }
        Ok(module)
    }

    fn file_name(&self, text: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(env!("CARGO_PKG_VERSION"));
        hash.update(self.capability.to_le_bytes());
        hash.update(self.driver.version().to_le_bytes());
        hash.update(text);
        let mut name = String::new();
        for byte in hash.finalize() {
            let _ = write!(name, "{byte:02x}");
        }
        name + ".cubin"
    }

    fn load_cubin(&self, cubin: &[u8]) -> Result<Module> {
        self.run(|| {
            let mut module = std::ptr::null_mut();
            // SAFETY: writes to a place that is there; a cubin has its size in itself, and its hash was right.
            unsafe { self.driver.module_load_data(&raw mut module, cubin.as_ptr().cast()) }
                .map_err(|e| self.error(&e))?;
            Ok(module)
        })
    }

    /// Has the driver assemble; the error has its messages.
    fn assemble(&self, name: &str, text: &str) -> Result<(Module, Vec<u8>)> {
        let broken = |_| Error::Unavailable {
            what: name.to_owned(),
            reason: "there is a zero in it".to_owned(),
        };
        // PTX is a text that ends with a zero, which counts.
        let text = CString::new(text).map_err(broken)?;
        let title = CString::new(name).map_err(broken)?;
        let (mut errors, mut infos) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
        let mut options = [
            jit::ERROR_LOG_BUFFER,
            jit::ERROR_LOG_BUFFER_SIZE_BYTES,
            jit::INFO_LOG_BUFFER,
            jit::INFO_LOG_BUFFER_SIZE_BYTES,
        ];
        // Sizes are passed as what a pointer would be (cuLinkCreate).
        let size = std::ptr::without_provenance_mut::<c_void>(LOG_BYTES - 1);
        let mut values =
            [errors.as_mut_ptr().cast(), size, infos.as_mut_ptr().cast::<c_void>(), size];
        let result = self.run(|| {
            let driver = self.driver;
            let mut state = std::ptr::null_mut();
            // SAFETY: options and values are as many as is said, and live until the linker is destroyed, as do the
            // logs; the text is as long as is said; the cubin is the linker's, and copied before that is destroyed.
            unsafe {
                driver
                    .link_create(
                        options.len() as u32,
                        options.as_mut_ptr(),
                        values.as_mut_ptr(),
                        &raw mut state,
                    )
                    .map_err(|e| self.error(&e))?;
                let (mut cubin, mut bytes) = (std::ptr::null_mut(), 0);
                let linked = driver
                    .link_add_data(
                        state,
                        jit::INPUT_PTX,
                        text.as_ptr().cast_mut().cast(),
                        text.as_bytes_with_nul().len(),
                        title.as_ptr(),
                        0,
                        std::ptr::null_mut(),
                        std::ptr::null_mut(),
                    )
                    .and_then(|()| driver.link_complete(state, &raw mut cubin, &raw mut bytes));
                let cubin = linked.map(|()| {
                    std::slice::from_raw_parts(cubin.cast::<u8>().cast_const(), bytes).to_vec()
                });
                let _ = driver.link_destroy(state);
                Ok(cubin)
            }
        })?;
        let said = |log: &[u8]| {
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            String::from_utf8_lossy(&log[..end]).into_owned()
        };
        let cubin = result.map_err(|e| {
            let log = format!("{} {}", said(&errors), said(&infos));
            Error::from(e.on(&self.name).with_log(&log))
        })?;
        let module = self.load_cubin(&cubin)?;
        Ok((module, cubin))
    }
}

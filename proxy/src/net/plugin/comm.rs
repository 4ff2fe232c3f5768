//! An end of a connection: its registered memory and its requests.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use ferroccl_plugin::{Code, Object};

use super::abi::{Close, PTR_CUDA, PTR_HOST};
use super::functions::Buffers;
use super::{Device, Plugin};
use crate::NetError;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, RecvBuffer, Request};

/// What both ends of a connection have. An error with a message breaks the connection: the plugin is not called for messages
/// any more, and all calls return that error.
pub(super) struct PluginComm {
    pub(super) plugin: Arc<Plugin>,
    pub(super) device: Arc<Device>,
    pub(super) comm: Object,
    /// The function that closes it, and its name.
    close: (&'static str, Close),
    memory: HashMap<u64, PluginMemory>,
    /// In the order in which they began.
    requests: Vec<PluginRequest>,
    /// Of registrations and requests: no number is given twice.
    next: u64,
    broken: Option<NetError>,
}

// SAFETY: plugins cope with calls from any thread, one at a time for each connection.
unsafe impl Send for PluginComm {}

/// Registered memory.
#[derive(Clone, Copy)]
pub(super) struct PluginMemory {
    /// May be NULL, and be the same as another's.
    pub(super) object: Object,
    pub(super) gpu: bool,
}

/// A request that is under way, or done and not asked for yet.
struct PluginRequest {
    number: u64,
    object: Object,
    done: bool,
    /// Of each buffer: what fits, then what has come. None of a message that is sent; `None` of a flush.
    sizes: Option<Vec<usize>>,
}

impl PluginComm {
    /// # Safety
    /// A connection of this plugin, which this alone has, and the function that closes it.
    pub(super) unsafe fn new(
        plugin: &Arc<Plugin>,
        device: &Arc<Device>,
        comm: Object,
        close: (&'static str, Close),
    ) -> Self {
        PluginComm {
            plugin: Arc::clone(plugin),
            device: Arc::clone(device),
            comm,
            close,
            memory: HashMap::new(),
            requests: Vec::new(),
            next: 1,
            broken: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// # Safety
    /// As [`SendComm::register`](crate::net::SendComm::register).
    pub(super) unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        let (plugin, common) = (&self.plugin, &self.plugin.functions.common);
        let Device { properties, .. } = &*self.device;
        let lacks = |operation, what: &str| {
            plugin.error(operation, format!("device {} takes no {what}", properties.name))
        };
        let (comm, at, mut object) = (self.comm, address.cast(), null_mut());
        // SAFETY: the caller's; this connection.
        let (operation, code) = plugin.call("regMr", || unsafe {
            Ok(match (kind, common.reg_mr_dma_buf) {
                (MemoryKind::Host, _) => {
                    ("regMr", (common.reg_mr)(comm, at, bytes, PTR_HOST, &mut object))
                }
                (MemoryKind::Cuda, _) if properties.cuda => {
                    ("regMr", (common.reg_mr)(comm, at, bytes, PTR_CUDA, &mut object))
                }
                (MemoryKind::Cuda, _) => return Err(lacks("regMr", "memory of GPUs")),
                (MemoryKind::DmaBuf { fd, offset }, Some(register)) if properties.dma_buf => {
                    ("regMrDmaBuf", register(comm, at, bytes, PTR_CUDA, offset, fd, &mut object))
                }
                (MemoryKind::DmaBuf { .. }, _) => return Err(lacks("regMrDmaBuf", "DMA buffers")),
            })
        })?;
        // The connection is none the worse for it: the caller may have other ways.
        plugin.check(operation, code)?;
        let number = self.number();
        self.memory.insert(number, PluginMemory { object, gpu: kind != MemoryKind::Host });
        Ok(MemoryHandle(number))
    }

    pub(super) fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        let PluginMemory { object, .. } = self.memory("deregMr", memory)?;
        self.memory.remove(&memory.0);
        // SAFETY: this connection's registration, which is forgotten.
        let code = self.plugin.call("deregMr", || unsafe {
            (self.plugin.functions.common.dereg_mr)(self.comm, object)
        });
        self.plugin.check("deregMr", code)
    }

    /// What was registered as that.
    pub(super) fn memory(
        &self,
        operation: &'static str,
        memory: MemoryHandle,
    ) -> Result<PluginMemory, NetError> {
        let unknown = || {
            let reason = format!("memory {} is not registered with this connection", memory.0);
            self.plugin.error(operation, reason)
        };
        self.memory.get(&memory.0).copied().ok_or_else(unknown)
    }

    /// Buffers as C wants them, those whose memory is wanted.
    pub(super) fn arrays(
        &self,
        operation: &'static str,
        buffers: &[RecvBuffer],
        wanted: fn(PluginMemory) -> bool,
    ) -> Result<Buffers, NetError> {
        let most = self.device.properties.max_receives;
        if !(1..=most).contains(&buffers.len()) {
            let reason = format!("{} buffers, not 1 to {most}", buffers.len());
            return Err(self.plugin.error(operation, reason));
        }
        let mut arrays = Buffers::none();
        for buffer in buffers {
            let memory = self.memory(operation, buffer.memory)?;
            if wanted(memory) {
                arrays.push(buffer, memory.object);
            }
        }
        Ok(arrays)
    }

    /// The error that broke the connection.
    pub(super) fn check(&self) -> Result<(), NetError> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Whether one more request may be under way. A plugin that has more than it takes may give an error.
    pub(super) fn has_room(&self) -> Result<bool, NetError> {
        self.check()?;
        Ok(self.requests.iter().filter(|begun| !begun.done).count() < MAX_REQUESTS)
    }

    /// Takes in what a plugin gave for a request.
    pub(super) fn begun(
        &mut self,
        operation: &'static str,
        given: Result<Object, Code>,
        sizes: Option<Vec<usize>>,
    ) -> Result<Option<Request>, NetError> {
        let object = match given {
            Ok(object) if object.is_null() => return Ok(None),
            Ok(object) => object,
            Err(code) => {
                let error = self.plugin.failed(operation, code);
                self.broken = Some(error.clone());
                return Err(error);
            }
        };
        let number = self.number();
        self.requests.push(PluginRequest { number, object, done: false, sizes });
        Ok(Some(Request(number)))
    }

    /// Whether a request is done; then it is forgotten. `sizes` are for a request that receives.
    pub(super) fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        let at = self.requests.iter().position(|begun| begun.number == request.0);
        let unknown = || format!("request {} is not under way on this connection", request.0);
        let at = at.ok_or_else(|| self.plugin.error("test", unknown()))?;
        let buffers = |begun: &PluginRequest| begun.sizes.as_ref().map_or(0, Vec::len);
        let needed = self.requests.get(at).map_or(0, buffers);
        let Some(sizes) = sizes.get_mut(..needed) else {
            let reason = format!("room for {} sizes, and there are {needed}", sizes.len());
            return Err(self.plugin.error("test", reason));
        };
        self.progress();
        if !self.requests.get(at).is_some_and(|begun| begun.done) {
            self.check()?;
            return Ok(false);
        }
        let begun = self.requests.remove(at);
        sizes.copy_from_slice(begun.sizes.as_deref().unwrap_or_default());
        Ok(true)
    }

    /// Asks the plugin about all that is under way, the oldest first: with some plugins a message moves only when it is
    /// asked about.
    fn progress(&mut self) {
        if self.broken.is_some() {
            return;
        }
        for begun in self.requests.iter_mut().filter(|begun| !begun.done) {
            if let Err(error) = begun.test(&self.plugin) {
                self.broken = Some(error);
                return;
            }
        }
    }
}

impl PluginRequest {
    fn test(&mut self, plugin: &Plugin) -> Result<(), NetError> {
        let mut done = 0;
        let mut bytes: [c_int; MAX_REQUESTS] = [0; MAX_REQUESTS];
        let bytes_out = if self.sizes.is_some() { bytes.as_mut_ptr() } else { null_mut() };
        // SAFETY: a request that was not done yet; no request has more sizes.
        let code = plugin.call("test", || unsafe {
            (plugin.functions.common.test)(self.object, &mut done, bytes_out)
        });
        plugin.check("test", code)?;
        if done == 0 {
            return Ok(());
        }
        for (size, bytes) in self.sizes.iter_mut().flatten().zip(bytes) {
            let fits = usize::try_from(bytes).ok().filter(|bytes| *bytes <= *size);
            *size = fits.ok_or_else(|| {
                plugin.error("test", format!("{bytes} bytes in a buffer of {size}"))
            })?;
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for PluginComm {
    fn drop(&mut self) {
        let common = &self.plugin.functions.common;
        for memory in self.memory.values() {
            // SAFETY: this connection's registration.
            let code = self
                .plugin
                .call("deregMr", || unsafe { (common.dereg_mr)(self.comm, memory.object) });
            self.plugin.warn("deregMr", code);
        }
        let (operation, close) = self.close;
        // SAFETY: this connection, which is not used any more.
        let code = self.plugin.call(operation, || unsafe { close(self.comm) });
        self.plugin.warn(operation, code);
    }
}

impl fmt::Debug for PluginComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End")
            .field("plugin", &self.plugin)
            .field("device", &self.device.properties.name)
            .field("memory", &self.memory.len())
            .field("requests", &self.requests.len())
            .field("broken", &self.broken)
            .finish()
    }
}

//! How connections to a plugin's devices are made, and their ends as [`Net`](crate::net::Net)'s users have them.

use std::ptr::null_mut;
use std::sync::Arc;

use super::comm::PluginComm;
use super::{Device, Plugin};
use crate::NetError;
use crate::net::{
    Connecting, Listener, MAX_HANDLE, MemoryHandle, MemoryKind, RecvBuffer, RecvComm, Request,
    SendComm,
};
use ferroccl_plugin::Object;

/// A handle where a plugin may look at it as whatever it has put there.
#[repr(C, align(16))]
struct Handle([u8; MAX_HANDLE]);

pub(super) struct PluginListener {
    plugin: Arc<Plugin>,
    device: Arc<Device>,
    comm: Object,
    handle: Box<Handle>,
}

// SAFETY: plugins cope with calls from any thread, one at a time for each listener.
unsafe impl Send for PluginListener {}

impl PluginListener {
    pub(super) fn new(plugin: &Arc<Plugin>, device: Arc<Device>) -> Result<Self, NetError> {
        let mut handle = Box::new(Handle([0; MAX_HANDLE]));
        let at = (&raw mut *handle).cast();
        // SAFETY: so many bytes.
        let comm = unsafe { plugin.functions.listen(device.number, at) }
            .map_err(|code| plugin.failed("listen", code))?;
        if comm.is_null() {
            return Err(plugin.error("listen", "it gave no listener"));
        }
        Ok(PluginListener { plugin: Arc::clone(plugin), device, comm, handle })
    }
}

impl Listener for PluginListener {
    fn handle(&self) -> &[u8] {
        &self.handle.0
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let (mut comm, mut on_device) = (null_mut(), null_mut());
        let common = &self.plugin.functions.common;
        // SAFETY: the plugin's listener; NULL asks for no connection of the device.
        let code = self
            .plugin
            .call("accept", || unsafe { (common.accept)(self.comm, &mut comm, &mut on_device) });
        self.plugin.check("accept", code)?;
        if comm.is_null() {
            return Ok(None);
        }
        let close = ("closeRecv", common.close_recv);
        // SAFETY: a connection that nobody else has.
        let end = unsafe { PluginComm::new(&self.plugin, &self.device, comm, close) };
        Ok(Some(Box::new(PluginRecvComm(end))))
    }
}

impl Drop for PluginListener {
    fn drop(&mut self) {
        let close = self.plugin.functions.common.close_listen;
        // SAFETY: the plugin's listener, which is not used any more.
        let code = self.plugin.call("closeListen", || unsafe { close(self.comm) });
        self.plugin.warn("closeListen", code);
    }
}

pub(super) struct PluginConnecting {
    plugin: Arc<Plugin>,
    device: Arc<Device>,
    handle: Box<Handle>,
    /// What came of the first call, if anything.
    end: Option<PluginComm>,
}

impl PluginConnecting {
    pub(super) fn new(
        plugin: &Arc<Plugin>,
        device: Arc<Device>,
        handle: &[u8],
    ) -> Result<Self, NetError> {
        let bytes = handle.try_into().map_err(|_| {
            let reason = format!("a handle of {} bytes, not {MAX_HANDLE}", handle.len());
            plugin.error("connect", reason)
        })?;
        let handle = Box::new(Handle(bytes));
        let plugin = Arc::clone(plugin);
        let mut connecting = PluginConnecting { plugin, device, handle, end: None };
        connecting.end = connecting.go_on()?;
        Ok(connecting)
    }

    fn go_on(&mut self) -> Result<Option<PluginComm>, NetError> {
        let (plugin, at) = (&self.plugin, (&raw mut *self.handle).cast());
        // SAFETY: so many bytes, the same in each call.
        let comm = unsafe { plugin.functions.connect(self.device.number, at) }
            .map_err(|code| plugin.failed("connect", code))?;
        let close = ("closeSend", plugin.functions.common.close_send);
        // SAFETY: a connection that nobody else has.
        let end = || unsafe { PluginComm::new(plugin, &self.device, comm, close) };
        Ok((!comm.is_null()).then(end))
    }
}

impl Connecting for PluginConnecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let end = match self.end.take() {
            None => self.go_on()?,
            end => end,
        };
        Ok(end.map(|end| Box::new(PluginSendComm(end)) as Box<dyn SendComm>))
    }
}

#[derive(Debug)]
struct PluginSendComm(PluginComm);

impl SendComm for PluginSendComm {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        unsafe { self.0.register(address, bytes, kind) }
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.0.deregister(memory)
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        let end = &mut self.0;
        let memory = end.memory("isend", memory)?;
        if bytes > end.device.max_bytes {
            let most = end.device.max_bytes;
            let reason = format!("a message of {bytes} bytes, where {most} are the most");
            return Err(end.plugin.error("isend", reason));
        }
        if !end.has_room()? {
            return Ok(None);
        }
        let (address, tag) = (address.cast_mut().cast(), tag.cast_signed());
        let functions = &end.plugin.functions;
        // SAFETY: the caller's; this connection sends, and the memory is registered with it.
        let given = unsafe { functions.isend(end.comm, address, bytes, tag, memory.object) };
        end.begun("isend", given, Some(Vec::new()))
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        self.0.test(request, &mut [])
    }
}

#[derive(Debug)]
struct PluginRecvComm(PluginComm);

impl RecvComm for PluginRecvComm {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        unsafe { self.0.register(address, bytes, kind) }
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.0.deregister(memory)
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        let end = &mut self.0;
        let mut arrays = end.arrays("irecv", buffers, |_| true)?;
        if !end.has_room()? {
            return Ok(None);
        }
        // SAFETY: the caller's; this connection receives, and the memory is registered with it.
        let given = unsafe { end.plugin.functions.irecv(end.comm, &mut arrays) };
        let sizes = buffers.iter().map(|buffer| buffer.bytes).collect();
        end.begun("irecv", given, Some(sizes))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        self.0.test(request, sizes)
    }

    /// A plugin is asked, as by NCCL, about what has arrived in a GPU's memory. Other memory needs no flush.
    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        let end = &mut self.0;
        end.check()?;
        let mut arrays = end.arrays("iflush", buffers, |memory| memory.gpu)?;
        if arrays.count == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's; this connection receives, and the memory is registered with it.
        let given = unsafe { end.plugin.functions.iflush(end.comm, &mut arrays) };
        end.begun("iflush", given, None)
    }
}

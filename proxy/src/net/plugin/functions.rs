//! The functions of a plugin, of whichever version.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

use ferroccl_plugin::{Code, Object, SUCCESS, call};

use super::abi::{
    Accept, Close, DeregMr, Iflush, MAX_DEVICES_PER_NIC, MAX_NET_SIZE, MakeVDevice, PropertiesV8,
    PropertiesV9, PropertiesV11, RegMr, RegMrDmaBuf, Table, Test, V8, V9, V10, V11,
    VDeviceProperties, Version,
};
use super::symbol::{Config, Symbol};
use crate::net::{MAX_REQUESTS, RecvBuffer};

/// A plugin's functions, which it has for as long as the process lives.
///
/// The methods are those whose arguments differ from version to version; they are called as in version 11.
pub(super) struct Functions {
    pub(super) common: Common,
    of_version: OfVersion,
    /// Of versions that have it, where the plugin has it.
    make_v_device: Option<MakeVDevice>,
    context: Object,
    config: Config,
    plugin: Arc<str>,
}

// SAFETY: NCCL calls a plugin from all its threads at a time, so that plugins cope with that; what is here is never changed
// by us.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

/// Those that are alike in all versions.
pub(super) struct Common {
    pub(super) devices: unsafe extern "C" fn(*mut c_int) -> Code,
    pub(super) accept: Accept,
    pub(super) reg_mr: RegMr,
    pub(super) reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub(super) dereg_mr: DeregMr,
    pub(super) iflush: Option<Iflush>,
    pub(super) test: Test,
    pub(super) close_send: Close,
    pub(super) close_recv: Close,
    pub(super) close_listen: Close,
}

impl Common {
    fn of<V: Version>(table: &Table<V>) -> Self {
        Common {
            devices: table.devices,
            accept: table.accept,
            reg_mr: table.reg_mr,
            reg_mr_dma_buf: table.reg_mr_dma_buf,
            dereg_mr: table.dereg_mr,
            iflush: table.iflush,
            test: table.test,
            close_send: table.close_send,
            close_recv: table.close_recv,
            close_listen: table.close_listen,
        }
    }
}

enum OfVersion {
    V8(Table<V8>),
    V9(Table<V9>),
    V10(Table<V10>),
    V11(Table<V11>, Option<Close>),
}

/// Buffers as C wants them: an array of each of their properties.
pub(super) struct Buffers {
    pub(super) count: usize,
    addresses: [*mut c_void; MAX_REQUESTS],
    bytes: [usize; MAX_REQUESTS],
    tags: [c_int; MAX_REQUESTS],
    memory: [Object; MAX_REQUESTS],
}

impl Buffers {
    pub(super) fn none() -> Self {
        Buffers {
            count: 0,
            addresses: [null_mut(); MAX_REQUESTS],
            bytes: [0; MAX_REQUESTS],
            tags: [0; MAX_REQUESTS],
            memory: [null_mut(); MAX_REQUESTS],
        }
    }

    /// One more; more than [`MAX_REQUESTS`] there are not.
    pub(super) fn push(&mut self, buffer: &RecvBuffer, memory: Object) {
        let at = self.count;
        if at < MAX_REQUESTS {
            self.addresses[at] = buffer.address.cast();
            self.bytes[at] = buffer.bytes;
            self.tags[at] = buffer.tag.cast_signed();
            self.memory[at] = memory;
            self.count += 1;
        }
    }
}

/// A size in an `int`. No message is longer (`Device::max_bytes`), so that what is cut off a buffer is never used.
fn int(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

/// What a function gave, if it went well.
fn out<T>(code: Code, value: T) -> Result<T, Code> {
    if code == SUCCESS { Ok(value) } else { Err(code) }
}

impl Functions {
    /// Reads the table of a plugin that is initialised; or names the function that it lacks, and ends the plugin.
    ///
    /// # Safety
    /// There is such a table, and the plugin made the context with this configuration.
    pub(super) unsafe fn read(
        symbol: Symbol,
        plugin: &Arc<str>,
        context: Object,
        config: Config,
    ) -> Result<Self, &'static str> {
        /// # Safety
        /// As above.
        unsafe fn read<V: Version>(at: *const Table<V>) -> Result<Table<V>, &'static str> {
            // SAFETY: the caller's; no function that has to be there is NULL.
            unsafe {
                match Table::missing(at) {
                    Some(name) => Err(name),
                    None => Ok(at.read()),
                }
            }
        }
        // SAFETY: the caller's.
        let of_version = unsafe {
            match symbol {
                Symbol::V8(at) => read(at).map(OfVersion::V8),
                Symbol::V9(at) => read(&raw const (*at).table).map(OfVersion::V9),
                Symbol::V10(at) => read(&raw const (*at).table).map(OfVersion::V10),
                Symbol::V11(at) => read(&raw const (*at).table)
                    .map(|table| OfVersion::V11(table, (&raw const (*at).finalize).read())),
            }
        };
        // SAFETY: the caller's.
        let make_v_device = unsafe {
            match symbol {
                Symbol::V8(_) => None,
                Symbol::V9(at) => (&raw const (*at).make_v_device).read(),
                Symbol::V10(at) => (&raw const (*at).make_v_device).read(),
                Symbol::V11(at) => (&raw const (*at).make_v_device).read(),
            }
        };
        let of_version = of_version.inspect_err(|_| {
            // SAFETY: the caller's; nobody else has the context, and the configuration is still here.
            call(plugin, "finalize", || unsafe { symbol.finalize(context) });
        })?;
        let common = match &of_version {
            OfVersion::V8(table) => Common::of(table),
            OfVersion::V9(table) => Common::of(table),
            OfVersion::V10(table) => Common::of(table),
            OfVersion::V11(table, _) => Common::of(table),
        };
        let plugin = Arc::clone(plugin);
        Ok(Functions { common, of_version, make_v_device, context, config, plugin })
    }

    /// `getProperties`.
    pub(super) fn properties(&self, device: c_int) -> Result<PropertiesV11, Code> {
        /// Fields that a plugin leaves alone are 0.
        fn get<P>(
            function: unsafe extern "C" fn(c_int, *mut P) -> Code,
            device: c_int,
        ) -> Result<P, Code> {
            let mut properties = MaybeUninit::<P>::zeroed();
            // SAFETY: the plugin's function; properties are numbers and addresses, 0 is one of each.
            unsafe {
                let code = function(device, properties.as_mut_ptr());
                out(code, properties).map(|properties| properties.assume_init())
            }
        }
        call(&self.plugin, "getProperties", || match &self.of_version {
            OfVersion::V8(table) => get(table.get_properties, device).map(from_v8),
            OfVersion::V9(table) => get(table.get_properties, device).map(from_v9),
            OfVersion::V10(table) => get(table.get_properties, device).map(from_v9),
            OfVersion::V11(table, _) => get(table.get_properties, device),
        })
    }

    /// Whether there is [`make_v_device`](Self::make_v_device).
    pub(super) fn makes_v_devices(&self) -> bool {
        self.make_v_device.is_some()
    }

    /// `makeVDevice`: the number of a device of so many, at most [`MAX_DEVICES_PER_NIC`]; `None` where the plugin has no such
    /// function.
    pub(super) fn make_v_device(&self, members: &[c_int]) -> Option<Result<c_int, Code>> {
        let make = self.make_v_device?;
        let mut devs = [0; MAX_DEVICES_PER_NIC];
        devs.iter_mut().zip(members).for_each(|(place, member)| *place = *member);
        let mut of = VDeviceProperties { ndevs: int(members.len().min(devs.len())), devs };
        let mut device = -1;
        // SAFETY: the plugin's function.
        let code = call(&self.plugin, "makeVDevice", || unsafe { make(&mut device, &mut of) });
        Some(out(code, device))
    }

    /// `listen`.
    ///
    /// # Safety
    /// `MAX_HANDLE` bytes are writable at `handle`.
    pub(super) unsafe fn listen(&self, device: c_int, handle: *mut c_void) -> Result<Object, Code> {
        let mut comm = null_mut();
        // SAFETY: the caller's.
        let code = call(&self.plugin, "listen", || unsafe {
            match &self.of_version {
                OfVersion::V8(table) => (table.listen)(device, handle, &mut comm),
                OfVersion::V9(table) => (table.listen)(device, handle, &mut comm),
                OfVersion::V10(table) => (table.listen)(device, handle, &mut comm),
                OfVersion::V11(table, _) => (table.listen)(self.context, device, handle, &mut comm),
            }
        });
        out(code, comm)
    }

    /// `connect`: NULL if the connection is not there yet.
    ///
    /// # Safety
    /// `MAX_HANDLE` bytes are readable and writable at `handle`.
    pub(super) unsafe fn connect(
        &self,
        device: c_int,
        handle: *mut c_void,
    ) -> Result<Object, Code> {
        let mut comm = null_mut();
        // The device's connection: NULL asks for none.
        let mut on_device = null_mut();
        let (comm_out, device_out) = (&raw mut comm, &raw mut on_device);
        // SAFETY: the caller's.
        let code = call(&self.plugin, "connect", || unsafe {
            match &self.of_version {
                OfVersion::V8(table) => (table.connect)(device, handle, comm_out, device_out),
                OfVersion::V9(table) => (table.connect)(device, handle, comm_out, device_out),
                OfVersion::V10(table) => {
                    (table.connect)(device, self.config.get(), handle, comm_out, device_out)
                }
                OfVersion::V11(table, _) => {
                    (table.connect)(self.context, device, handle, comm_out, device_out)
                }
            }
        });
        out(code, comm)
    }

    /// `isend`: NULL if it has to be asked for again.
    ///
    /// # Safety
    /// The connection is one that sends, and the memory its own.
    pub(super) unsafe fn isend(
        &self,
        comm: Object,
        address: *mut c_void,
        bytes: usize,
        tag: c_int,
        memory: Object,
    ) -> Result<Object, Code> {
        let mut request = null_mut();
        let (of_message, out_request) = (null_mut(), &raw mut request);
        // SAFETY: the caller's.
        let code = call(&self.plugin, "isend", || unsafe {
            match &self.of_version {
                OfVersion::V8(table) => {
                    (table.isend)(comm, address, int(bytes), tag, memory, out_request)
                }
                OfVersion::V9(table) => {
                    (table.isend)(comm, address, bytes, tag, memory, out_request)
                }
                OfVersion::V10(table) => {
                    (table.isend)(comm, address, bytes, tag, memory, of_message, out_request)
                }
                OfVersion::V11(table, _) => {
                    (table.isend)(comm, address, bytes, tag, memory, of_message, out_request)
                }
            }
        });
        out(code, request)
    }

    /// `irecv`: NULL if it has to be asked for again.
    ///
    /// # Safety
    /// The connection is one that receives, and the memory its own.
    pub(super) unsafe fn irecv(&self, comm: Object, buffers: &mut Buffers) -> Result<Object, Code> {
        let mut request = null_mut();
        let out_request = &raw mut request;
        let mut ints = buffers.bytes.map(int);
        // Of each message; there is an array also where nobody watches.
        let mut of_messages = [null_mut(); MAX_REQUESTS];
        let count = int(buffers.count);
        let Buffers { addresses, bytes, tags, memory, .. } = buffers;
        let (addresses, bytes) = (addresses.as_mut_ptr(), bytes.as_mut_ptr());
        let (tags, memory) = (tags.as_mut_ptr(), memory.as_mut_ptr());
        let (ints, handles) = (ints.as_mut_ptr(), of_messages.as_mut_ptr());
        // SAFETY: the caller's; arrays have as many elements as there are buffers, and more.
        let code = call(&self.plugin, "irecv", || unsafe {
            match &self.of_version {
                OfVersion::V8(table) => {
                    (table.irecv)(comm, count, addresses, ints, tags, memory, out_request)
                }
                OfVersion::V9(table) => {
                    (table.irecv)(comm, count, addresses, bytes, tags, memory, out_request)
                }
                OfVersion::V10(table) => {
                    (table.irecv)(comm, count, addresses, bytes, tags, memory, handles, out_request)
                }
                OfVersion::V11(table, _) => {
                    (table.irecv)(comm, count, addresses, bytes, tags, memory, handles, out_request)
                }
            }
        });
        out(code, request)
    }

    /// `iflush`: NULL if there is nothing to wait for.
    ///
    /// # Safety
    /// As [`irecv`](Self::irecv).
    pub(super) unsafe fn iflush(
        &self,
        comm: Object,
        buffers: &mut Buffers,
    ) -> Result<Object, Code> {
        let mut request = null_mut();
        let Some(iflush) = self.common.iflush else { return Ok(request) };
        let mut ints = buffers.bytes.map(int);
        let count = int(buffers.count);
        let Buffers { addresses, memory, .. } = buffers;
        let (addresses, memory) = (addresses.as_mut_ptr(), memory.as_mut_ptr());
        // SAFETY: as above.
        let code = call(&self.plugin, "iflush", || unsafe {
            iflush(comm, count, addresses, ints.as_mut_ptr(), memory, &raw mut request)
        });
        out(code, request)
    }

    /// `finalize`, of versions that have it.
    ///
    /// # Safety
    /// Nothing of the context is used any more.
    pub(super) unsafe fn finalize(&self) -> Code {
        match &self.of_version {
            OfVersion::V11(_, Some(finalize)) => {
                // SAFETY: the caller's.
                call(&self.plugin, "finalize", || unsafe { finalize(self.context) })
            }
            _ => SUCCESS,
        }
    }
}

/// What a plugin of version 8 does not say: a device is made of itself, and takes any size.
fn from_v8(p: PropertiesV8) -> PropertiesV11 {
    from_v9(PropertiesV9 {
        name: p.name,
        pci_path: p.pci_path,
        guid: p.guid,
        ptr_support: p.ptr_support,
        reg_is_global: p.reg_is_global,
        force_flush: 0,
        speed: p.speed,
        port: p.port,
        latency: p.latency,
        max_comms: p.max_comms,
        max_recvs: p.max_recvs,
        net_device_type: p.net_device_type,
        net_device_version: p.net_device_version,
        v_props: VDeviceProperties { ndevs: 1, devs: [0; 4] },
        max_p2p_bytes: MAX_NET_SIZE,
        max_coll_bytes: MAX_NET_SIZE,
    })
}

fn from_v9(v9: PropertiesV9) -> PropertiesV11 {
    PropertiesV11 { v9, max_multi_request_size: 1 }
}

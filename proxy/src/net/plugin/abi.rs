//! NCCL's net ABI, versions 8 to 11: the layouts and types of a plugin.
//!
//! A plugin exports a table of functions under a name with the version in it, `ncclNetPlugin_v8` to
//! `ncclNetPlugin_v11`. All versions list the same functions in the same order; a newer one appends some, and changes the
//! arguments of six:
//!
//! ```text
//!                     v8          v9             v10                   v11
//! init                logger      logger         logger, profiler      context out, id, config, logger, profiler
//! getProperties       64 bytes    104            104                   112
//! listen              device      device         device                context, device
//! connect             device      device         device, config        context, device
//! isend               int size    size_t size    and a profiler handle as v10
//! irecv               int sizes   size_t sizes   and profiler handles  as v10
//! appended                        makeVDevice    makeVDevice           and finalize, setNetAttr
//! ```
//!
//! So there is one [`Table`], generic over what differs by [`Version`]. A function that a plugin may leave out is an `Option`.
//! The others are not, so that a table is read only after [`Table::missing`] has found none missing.
//!
//! Sources: NCCL's `plugins/net/example/nccl/net_v8.h`, `net_v9.h`, `net_v10.h`, `net_v11.h` for tables and properties;
//! `net.h` for constants; `net_device.h` for device types; `common.h` for the logger and the profiler; `src/nccl.h.in` for
//! results. An early `net_v11.h` (`ext-net/example` of a branch of 2.27) was another one under the same symbol: nothing
//! tells them apart, and NCCL's releases know only the one that is here.

#![allow(dead_code, reason = "a layout has to name what is between the fields that are used")]

use std::ffi::{c_char, c_float, c_int, c_void};
use std::mem::offset_of;

use ferroccl_plugin::{Code, Logger, Object};

/// `NCCL_PTR_HOST` (`net.h`): a plugin takes the host's memory.
pub(super) const PTR_HOST: c_int = 1;
/// `NCCL_PTR_CUDA` (`net.h`): a plugin takes a GPU's memory by its address.
pub(super) const PTR_CUDA: c_int = 2;
/// `NCCL_PTR_DMABUF` (`net.h`): a plugin takes a GPU's memory as a DMA buffer.
pub(super) const PTR_DMABUF: c_int = 4;
/// `NCCL_NET_DEVICE_HOST` (`net_device.h`): messages arrive whole, no kernel has to unpack them.
pub(super) const DEVICE_HOST: c_int = 0;
/// `NCCL_NET_TRAFFIC_CLASS_UNDEF` (`net_v10.h`).
pub(super) const TRAFFIC_CLASS_UNDEF: c_int = -1;
/// `NCCL_MAX_NET_SIZE_BYTES` (`net.h`): more than this no plugin may promise.
pub(super) const MAX_NET_SIZE: usize = 1 << 40;

/// `ncclProfilerCallback_t` (`common.h`): event, its kind, the profiler handle of the message, plugin, data.
pub(super) type ProfilerCallback =
    unsafe extern "C" fn(*mut Object, c_int, Object, i64, Object) -> Code;

/// `ncclNetCommConfig_v10_t`, `ncclNetCommConfig_v11_t`.
#[repr(C)]
pub(super) struct CommConfig {
    pub(super) traffic_class: c_int,
}

/// `ncclNetProperties_v8_t`.
#[repr(C)]
pub(super) struct PropertiesV8 {
    pub(super) name: *const c_char,
    pub(super) pci_path: *const c_char,
    pub(super) guid: u64,
    pub(super) ptr_support: c_int,
    pub(super) reg_is_global: c_int,
    pub(super) speed: c_int,
    pub(super) port: c_int,
    pub(super) latency: c_float,
    pub(super) max_comms: c_int,
    pub(super) max_recvs: c_int,
    pub(super) net_device_type: c_int,
    pub(super) net_device_version: c_int,
}

/// `NCCL_NET_MAX_DEVS_PER_NIC` (`net.h`).
pub(super) const MAX_DEVICES_PER_NIC: usize = 4;

/// `ncclNetVDeviceProps_v9_t` to `_v11_t`: the devices that one is made of.
#[repr(C)]
pub(super) struct VDeviceProperties {
    pub(super) ndevs: c_int,
    pub(super) devs: [c_int; MAX_DEVICES_PER_NIC],
}

/// `ncclNetProperties_v9_t` and `ncclNetProperties_v10_t`, which are the same.
#[repr(C)]
pub(super) struct PropertiesV9 {
    pub(super) name: *const c_char,
    pub(super) pci_path: *const c_char,
    pub(super) guid: u64,
    pub(super) ptr_support: c_int,
    pub(super) reg_is_global: c_int,
    pub(super) force_flush: c_int,
    pub(super) speed: c_int,
    pub(super) port: c_int,
    pub(super) latency: c_float,
    pub(super) max_comms: c_int,
    pub(super) max_recvs: c_int,
    pub(super) net_device_type: c_int,
    pub(super) net_device_version: c_int,
    pub(super) v_props: VDeviceProperties,
    pub(super) max_p2p_bytes: usize,
    pub(super) max_coll_bytes: usize,
}

/// `ncclNetProperties_v11_t`.
#[repr(C)]
pub(super) struct PropertiesV11 {
    pub(super) v9: PropertiesV9,
    pub(super) max_multi_request_size: c_int,
}

/// What is a version's own.
pub(super) trait Version {
    /// The name of its table.
    const SYMBOL: &'static str;
    type Init;
    type Properties;
    type Listen;
    type Connect;
    type Isend;
    type Irecv;
}

/// The functions of a plugin: `ncclNet_v8_t`, and what `ncclNet_v9_t` to `ncclNet_v11_t` begin with.
#[repr(C)]
pub(super) struct Table<V: Version> {
    pub(super) name: *const c_char,
    pub(super) init: V::Init,
    pub(super) devices: unsafe extern "C" fn(*mut c_int) -> Code,
    pub(super) get_properties: unsafe extern "C" fn(c_int, *mut V::Properties) -> Code,
    pub(super) listen: V::Listen,
    pub(super) connect: V::Connect,
    pub(super) accept: Accept,
    pub(super) reg_mr: RegMr,
    pub(super) reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub(super) dereg_mr: DeregMr,
    pub(super) isend: V::Isend,
    pub(super) irecv: V::Irecv,
    pub(super) iflush: Option<Iflush>,
    pub(super) test: Test,
    pub(super) close_send: Close,
    pub(super) close_recv: Close,
    pub(super) close_listen: Close,
    pub(super) get_device_mr: Option<unsafe extern "C" fn(Object, Object, *mut Object) -> Code>,
    pub(super) irecv_consumed: Option<unsafe extern "C" fn(Object, c_int, Object) -> Code>,
}

/// Listener, connection out, device's connection in and out.
pub(super) type Accept = unsafe extern "C" fn(Object, *mut Object, *mut Object) -> Code;
/// Connection, address, bytes, [`PTR_HOST`] or [`PTR_CUDA`], registration out.
pub(super) type RegMr = unsafe extern "C" fn(Object, Object, usize, c_int, *mut Object) -> Code;
/// Connection, address, bytes, [`PTR_CUDA`], offset, file, registration out.
pub(super) type RegMrDmaBuf =
    unsafe extern "C" fn(Object, Object, usize, c_int, u64, c_int, *mut Object) -> Code;
/// Connection, registration.
pub(super) type DeregMr = unsafe extern "C" fn(Object, Object) -> Code;
/// Connection, number of buffers, addresses, bytes, registrations, request out.
pub(super) type Iflush =
    unsafe extern "C" fn(Object, c_int, *mut Object, *mut c_int, *mut Object, *mut Object) -> Code;
/// Request, whether it is done out, bytes of each buffer out (or NULL).
pub(super) type Test = unsafe extern "C" fn(Object, *mut c_int, *mut c_int) -> Code;
/// Connection or listener.
pub(super) type Close = unsafe extern "C" fn(Object) -> Code;
/// Wanted device out, what it is made of.
pub(super) type MakeVDevice = unsafe extern "C" fn(*mut c_int, *mut VDeviceProperties) -> Code;

/// `ncclNet_v9_t` and `ncclNet_v10_t`.
#[repr(C)]
pub(super) struct TableWithDevices<V: Version> {
    pub(super) table: Table<V>,
    pub(super) make_v_device: Option<MakeVDevice>,
}

/// `ncclNet_v11_t`.
#[repr(C)]
pub(super) struct TableV11 {
    pub(super) table: Table<V11>,
    pub(super) make_v_device: Option<MakeVDevice>,
    pub(super) finalize: Option<unsafe extern "C" fn(Object) -> Code>,
    /// Takes a `ncclNetAttr_v11_t`, which nothing here makes.
    pub(super) set_net_attr: Option<unsafe extern "C" fn(Object, *mut c_void) -> Code>,
}

/// `net_v8.h`.
pub(super) struct V8;

impl Version for V8 {
    const SYMBOL: &'static str = "ncclNetPlugin_v8";
    type Init = unsafe extern "C" fn(Logger) -> Code;
    type Properties = PropertiesV8;
    type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut Object) -> Code;
    type Connect = unsafe extern "C" fn(c_int, *mut c_void, *mut Object, *mut Object) -> Code;
    type Isend =
        unsafe extern "C" fn(Object, *mut c_void, c_int, c_int, Object, *mut Object) -> Code;
    type Irecv = unsafe extern "C" fn(
        Object,
        c_int,
        *mut *mut c_void,
        *mut c_int,
        *mut c_int,
        *mut Object,
        *mut Object,
    ) -> Code;
}

/// `net_v9.h`: sizes are `size_t`.
pub(super) struct V9;

impl Version for V9 {
    const SYMBOL: &'static str = "ncclNetPlugin_v9";
    type Init = <V8 as Version>::Init;
    type Properties = PropertiesV9;
    type Listen = <V8 as Version>::Listen;
    type Connect = <V8 as Version>::Connect;
    type Isend =
        unsafe extern "C" fn(Object, *mut c_void, usize, c_int, Object, *mut Object) -> Code;
    type Irecv = unsafe extern "C" fn(
        Object,
        c_int,
        *mut *mut c_void,
        *mut usize,
        *mut c_int,
        *mut Object,
        *mut Object,
    ) -> Code;
}

/// `net_v10.h`: there is a profiler, and `connect` has a configuration.
pub(super) struct V10;

impl Version for V10 {
    const SYMBOL: &'static str = "ncclNetPlugin_v10";
    type Init = unsafe extern "C" fn(Logger, ProfilerCallback) -> Code;
    type Properties = PropertiesV9;
    type Listen = <V8 as Version>::Listen;
    type Connect =
        unsafe extern "C" fn(c_int, *mut CommConfig, *mut c_void, *mut Object, *mut Object) -> Code;
    type Isend = unsafe extern "C" fn(
        Object,
        *mut c_void,
        usize,
        c_int,
        Object,
        *mut c_void,
        *mut Object,
    ) -> Code;
    type Irecv = unsafe extern "C" fn(
        Object,
        c_int,
        *mut *mut c_void,
        *mut usize,
        *mut c_int,
        *mut Object,
        *mut *mut c_void,
        *mut Object,
    ) -> Code;
}

/// `net_v11.h`: each `init` makes a context, and the configuration is the context's.
pub(super) struct V11;

impl Version for V11 {
    const SYMBOL: &'static str = "ncclNetPlugin_v11";
    type Init =
        unsafe extern "C" fn(*mut Object, u64, *mut CommConfig, Logger, ProfilerCallback) -> Code;
    type Properties = PropertiesV11;
    type Listen = unsafe extern "C" fn(Object, c_int, *mut c_void, *mut Object) -> Code;
    type Connect =
        unsafe extern "C" fn(Object, c_int, *mut c_void, *mut Object, *mut Object) -> Code;
    type Isend = <V10 as Version>::Isend;
    type Irecv = <V10 as Version>::Irecv;
}

impl<V: Version> Table<V> {
    /// The functions that every plugin has, and where in a table they are.
    const REQUIRED: [(&'static str, usize); 14] = [
        ("init", offset_of!(Self, init)),
        ("devices", offset_of!(Self, devices)),
        ("getProperties", offset_of!(Self, get_properties)),
        ("listen", offset_of!(Self, listen)),
        ("connect", offset_of!(Self, connect)),
        ("accept", offset_of!(Self, accept)),
        ("regMr", offset_of!(Self, reg_mr)),
        ("deregMr", offset_of!(Self, dereg_mr)),
        ("isend", offset_of!(Self, isend)),
        ("irecv", offset_of!(Self, irecv)),
        ("test", offset_of!(Self, test)),
        ("closeSend", offset_of!(Self, close_send)),
        ("closeRecv", offset_of!(Self, close_recv)),
        ("closeListen", offset_of!(Self, close_listen)),
    ];

    /// The first function that a plugin must have and has not: where there is one, what is there is no `Table`.
    ///
    /// # Safety
    /// So many bytes as a table has are readable.
    pub(super) unsafe fn missing(table: *const Self) -> Option<&'static str> {
        // SAFETY: the caller's.
        let null = |offset| unsafe { Self::is_null(table, offset) };
        Self::REQUIRED.iter().find(|&&(_, offset)| null(offset)).map(|&(name, _)| name)
    }

    /// The function that comes first: a plugin may put the others there in it.
    ///
    /// # Safety
    /// As [`missing`](Self::missing).
    pub(super) unsafe fn init(table: *const Self) -> Option<V::Init> {
        // SAFETY: the caller's; what is not NULL is a function.
        unsafe {
            let there = !Self::is_null(table, offset_of!(Self, init));
            there.then(|| (&raw const (*table).init).read())
        }
    }

    /// # Safety
    /// As [`missing`](Self::missing), and a field begins there.
    unsafe fn is_null(table: *const Self, offset: usize) -> bool {
        // SAFETY: the caller's; all fields are pointers.
        unsafe { table.byte_add(offset).cast::<*const c_void>().read().is_null() }
    }
}

/// What C lays out on a 64-bit machine.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<CommConfig>() == 4);

    assert!(size_of::<PropertiesV8>() == 64);
    assert!(offset_of!(PropertiesV8, guid) == 16);
    assert!(offset_of!(PropertiesV8, ptr_support) == 24);
    assert!(offset_of!(PropertiesV8, speed) == 32);
    assert!(offset_of!(PropertiesV8, port) == 36);
    assert!(offset_of!(PropertiesV8, max_recvs) == 48);
    assert!(offset_of!(PropertiesV8, net_device_version) == 56);

    assert!(size_of::<PropertiesV9>() == 104);
    assert!(offset_of!(PropertiesV9, force_flush) == 32);
    assert!(offset_of!(PropertiesV9, speed) == 36);
    assert!(offset_of!(PropertiesV9, max_recvs) == 52);
    assert!(offset_of!(PropertiesV9, v_props) == 64);
    assert!(offset_of!(PropertiesV9, max_p2p_bytes) == 88);
    assert!(offset_of!(PropertiesV9, max_coll_bytes) == 96);

    assert!(size_of::<PropertiesV11>() == 112);
    assert!(offset_of!(PropertiesV11, max_multi_request_size) == 104);

    // Nothing but pointers: 19, 20, 20 and 22 of them.
    assert!(size_of::<Table<V8>>() == 19 * 8);
    assert!(offset_of!(Table<V8>, accept) == 6 * 8);
    assert!(offset_of!(Table<V8>, isend) == 10 * 8);
    assert!(offset_of!(Table<V8>, test) == 13 * 8);
    assert!(offset_of!(Table<V8>, irecv_consumed) == 18 * 8);
    assert!(size_of::<TableWithDevices<V9>>() == 20 * 8);
    assert!(size_of::<TableWithDevices<V10>>() == 20 * 8);
    assert!(size_of::<TableV11>() == 22 * 8);
    assert!(offset_of!(TableV11, finalize) == 20 * 8);
    assert!(offset_of!(TableV11, set_net_attr) == 21 * 8);
};

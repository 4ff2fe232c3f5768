//! NVIDIA's driver library, opened when it is first needed: one binary does with it and without.
//!
//! Types, names and numbers are those of `cuda.h` (CUDA 12.0 and later; "CUDA Driver API" is the manual). A result is a
//! plain number here: a driver is free to return one that its header of yesterday did not have.

use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::{CudaError, connections};
use crate::error::{Error, Result};

/// The library's name; the driver installs it.
const LIBRARY: &str = "libcuda.so.1";
/// Another library in its place: what stands in for a driver in tests.
pub(crate) const LIBRARY_VARIABLE: &str = "FERROCCL_CUDA_LIBRARY";
/// The oldest driver that has all of [`Api`]: CUDA 12.0.
const OLDEST: c_int = 12_000;

/// A device, `CUdevice`.
pub(crate) type Device = c_int;
/// A context, `CUcontext`.
pub(crate) type Context = *mut c_void;
/// A stream, `CUstream`.
pub(crate) type RawStream = *mut c_void;
/// An event, `CUevent`.
pub(crate) type RawEvent = *mut c_void;
/// A module, `CUmodule`.
pub(crate) type Module = *mut c_void;
/// A function, `CUfunction`.
pub(crate) type Function = *mut c_void;
/// A graph, `CUgraph`.
pub(crate) type Graph = *mut c_void;
/// A graph that can be launched, `CUgraphExec`.
pub(crate) type GraphExec = *mut c_void;
/// What the linker is at, `CUlinkState`.
pub(crate) type LinkState = *mut c_void;
/// An object that a graph owns, `CUuserObject`.
pub(crate) type UserObject = *mut c_void;
/// Device memory, `CUdeviceptr`.
pub(crate) type Address = u64;
/// What the driver calls, `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// What text the driver has of a result: `cuGetErrorName`, `cuGetErrorString`.
type TextOf = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub [u8; 64]);

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NO_DEVICE`.
pub(crate) const NO_DEVICE: c_int = 100;
/// `CUDA_ERROR_NOT_READY`: not an error.
pub(crate) const NOT_READY: c_int = 600;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;

/// `CUdevice_attribute`.
pub(crate) mod attribute {
    use std::ffi::c_int;

    /// In kilohertz.
    pub(crate) const CLOCK_RATE: c_int = 13;
    pub(crate) const MULTIPROCESSOR_COUNT: c_int = 16;
    pub(crate) const CAN_MAP_HOST_MEMORY: c_int = 19;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub(crate) const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: c_int = 91;
    pub(crate) const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 102;
    pub(crate) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: c_int = 103;
    pub(crate) const MEMORY_POOLS_SUPPORTED: c_int = 115;
    pub(crate) const GPU_DIRECT_RDMA_SUPPORTED: c_int = 116;
    /// A `CUGPUDirectRDMAWritesOrdering`.
    pub(crate) const GPU_DIRECT_RDMA_WRITES_ORDERING: c_int = 118;
    /// Of the functions of CUDA 12 (`_v2`).
    pub(crate) const CAN_USE_64_BIT_STREAM_MEM_OPS: c_int = 122;
    pub(crate) const DMA_BUF_SUPPORTED: c_int = 124;
    pub(crate) const MULTICAST_SUPPORTED: c_int = 132;
}

/// `CUjit_option`.
pub(crate) mod jit {
    use std::ffi::c_int;

    pub(crate) const INFO_LOG_BUFFER: c_int = 3;
    pub(crate) const INFO_LOG_BUFFER_SIZE_BYTES: c_int = 4;
    pub(crate) const ERROR_LOG_BUFFER: c_int = 5;
    pub(crate) const ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
    /// `CU_JIT_INPUT_PTX` of `CUjitInputType`.
    pub(crate) const INPUT_PTX: c_int = 1;
}

/// `CU_POINTER_ATTRIBUTE_CONTEXT`: the context that an address is of.
pub(crate) const POINTER_CONTEXT: c_int = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`: of memory that the driver knows.
pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`: whether it is of `cuMemAlloc`, and no pool's, so that others reach it.
pub(crate) const POINTER_IPC_CAPABLE: c_int = 10;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`: where its allocation begins.
pub(crate) const POINTER_RANGE_START: c_int = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`: bytes of its allocation.
pub(crate) const POINTER_RANGE_SIZE: c_int = 12;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`: the number of the GPU that it is of.
#[cfg(feature = "cust")]
pub(crate) const POINTER_ORDINAL: c_int = 9;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: "natively, the device can consistently consume remote writes".
pub(crate) const WRITES_ORDERING_OWNER: c_int = 100;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(crate) const RANGE_HANDLE_DMA_BUF: c_int = 1;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the legacy stream.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: c_int = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub(crate) const CAPTURE_ACTIVE: c_int = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
pub(crate) const HOST_ALLOC_MAPPED: c_uint = 1 | 2;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
pub(crate) const HOST_REGISTER_MAPPED: c_uint = 1 | 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(crate) const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`.
pub(crate) const WAIT_VALUE_GEQ: c_uint = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: behind a fence, so that what came before in the stream is seen by who sees the value.
pub(crate) const WRITE_VALUE_DEFAULT: c_uint = 0;
/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`.
pub(crate) const USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes the caller's reference.
pub(crate) const GRAPH_USER_OBJECT_MOVE: c_uint = 1;

/// Declares a group of functions, which a library has all of or not; calls of them are methods of `$owner`, which has the group in
/// its field `api`.
macro_rules! api {
    ($(#[$doc:meta])* $api:ident, of $owner:ty;
     $($name:ident = $symbol:literal ($($arg:ident: $t:ty),*);)*) => {
        $(#[$doc])*
        pub(crate) struct $api {
            $( $name: unsafe extern "C" fn($($t),*) -> c_int, )*
        }

        impl $api {
            /// The error is the name of a function that is missing.
            ///
            /// # Safety
            /// The functions of these names have these types.
            unsafe fn of(library: &Library) -> std::result::Result<$api, &'static str> {
                // SAFETY: the caller's.
                unsafe {
                    Ok($api {
                        $( $name: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?, )*
                    })
                }
            }
        }

        /// Each of the functions; its name and its result, should it fail, are in the error.
        impl $owner {
            $(
                /// # Safety
                /// As the driver's manual has it: pointers are valid, handles are alive.
                pub(crate) unsafe fn $name(&self, $($arg: $t),*) -> std::result::Result<(), CudaError> {
                    // SAFETY: the caller's.
                    self.check($symbol, unsafe { (self.api.$name)($($arg),*) })
                }
            )*
        }
    };
}

pub(super) mod virtual_memory;

use self::virtual_memory::{AccessDesc, AllocationHandle, AllocationProp, MulticastApi};

api! {
    /// The driver's functions that are used here.
    Api, of Driver;

    init = "cuInit" (flags: c_uint);
    driver_get_version = "cuDriverGetVersion" (version: *mut c_int);

    device_get_count = "cuDeviceGetCount" (count: *mut c_int);
    device_get = "cuDeviceGet" (device: *mut Device, ordinal: c_int);
    device_get_name = "cuDeviceGetName" (name: *mut c_char, bytes: c_int, device: Device);
    device_get_uuid = "cuDeviceGetUuid_v2" (uuid: *mut [u8; 16], device: Device);
    device_get_pci_bus_id = "cuDeviceGetPCIBusId" (id: *mut c_char, bytes: c_int, device: Device);
    device_get_attribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: Device);
    device_total_mem = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: Device);
    device_can_access_peer = "cuDeviceCanAccessPeer" (can: *mut c_int, device: Device, peer: Device);
    device_primary_ctx_retain = "cuDevicePrimaryCtxRetain" (context: *mut Context, device: Device);
    device_primary_ctx_release = "cuDevicePrimaryCtxRelease_v2" (device: Device);

    ctx_push_current = "cuCtxPushCurrent_v2" (context: Context);
    ctx_pop_current = "cuCtxPopCurrent_v2" (context: *mut Context);
    ctx_get_current = "cuCtxGetCurrent" (context: *mut Context);
    ctx_get_device = "cuCtxGetDevice" (device: *mut Device);
    ctx_enable_peer_access = "cuCtxEnablePeerAccess" (peer: Context, flags: c_uint);

    mem_alloc = "cuMemAlloc_v2" (address: *mut Address, bytes: usize);
    mem_free = "cuMemFree_v2" (address: Address);
    mem_alloc_async = "cuMemAllocAsync" (address: *mut Address, bytes: usize, stream: RawStream);
    mem_free_async = "cuMemFreeAsync" (address: Address, stream: RawStream);
    mem_host_alloc = "cuMemHostAlloc" (at: *mut *mut c_void, bytes: usize, flags: c_uint);
    mem_free_host = "cuMemFreeHost" (at: *mut c_void);
    mem_host_register = "cuMemHostRegister_v2" (at: *mut c_void, bytes: usize, flags: c_uint);
    mem_host_unregister = "cuMemHostUnregister" (at: *mut c_void);
    mem_get_handle_for_address_range = "cuMemGetHandleForAddressRange" (handle: *mut c_void, address: Address,
        bytes: usize, kind: c_int, flags: u64);
    pointer_get_attribute = "cuPointerGetAttribute" (value: *mut c_void, attribute: c_int, at: Address);
    pointer_get_attributes = "cuPointerGetAttributes" (count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, at: Address);
    memcpy_htod_async = "cuMemcpyHtoDAsync_v2" (to: Address, from: *const c_void, bytes: usize, stream: RawStream);
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2" (to: *mut c_void, from: Address, bytes: usize, stream: RawStream);
    memcpy_dtod_async = "cuMemcpyDtoDAsync_v2" (to: Address, from: Address, bytes: usize, stream: RawStream);
    memset_d8_async = "cuMemsetD8Async" (at: Address, value: u8, bytes: usize, stream: RawStream);
    mem_get_allocation_granularity = "cuMemGetAllocationGranularity" (granularity: *mut usize, prop: *const AllocationProp,
        option: c_int);
    mem_create = "cuMemCreate" (handle: *mut AllocationHandle, bytes: usize, prop: *const AllocationProp, flags: u64);
    mem_release = "cuMemRelease" (handle: AllocationHandle);
    mem_address_reserve = "cuMemAddressReserve" (at: *mut Address, bytes: usize, alignment: usize, hint: Address, flags: u64);
    mem_address_free = "cuMemAddressFree" (at: Address, bytes: usize);
    mem_map = "cuMemMap" (at: Address, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64);
    mem_unmap = "cuMemUnmap" (at: Address, bytes: usize);
    mem_set_access = "cuMemSetAccess" (at: Address, bytes: usize, desc: *const AccessDesc, count: usize);
    mem_export_to_shareable_handle = "cuMemExportToShareableHandle" (to: *mut c_void, handle: AllocationHandle, kind: c_int,
        flags: u64);
    mem_import_from_shareable_handle = "cuMemImportFromShareableHandle" (handle: *mut AllocationHandle, from: *mut c_void,
        kind: c_int);
    ipc_get_mem_handle = "cuIpcGetMemHandle" (handle: *mut IpcHandle, address: Address);
    ipc_open_mem_handle = "cuIpcOpenMemHandle_v2" (address: *mut Address, handle: IpcHandle, flags: c_uint);
    ipc_close_mem_handle = "cuIpcCloseMemHandle" (address: Address);

    stream_create = "cuStreamCreate" (stream: *mut RawStream, flags: c_uint);
    stream_destroy = "cuStreamDestroy_v2" (stream: RawStream);
    stream_synchronize = "cuStreamSynchronize" (stream: RawStream);
    stream_query = "cuStreamQuery" (stream: RawStream);
    stream_get_ctx = "cuStreamGetCtx" (stream: RawStream, context: *mut Context);
    stream_wait_event = "cuStreamWaitEvent" (stream: RawStream, event: RawEvent, flags: c_uint);
    stream_wait_value32 = "cuStreamWaitValue32_v2" (stream: RawStream, at: Address, value: u32, flags: c_uint);
    stream_write_value64 = "cuStreamWriteValue64_v2" (stream: RawStream, at: Address, value: u64, flags: c_uint);
    stream_begin_capture = "cuStreamBeginCapture_v2" (stream: RawStream, mode: c_int);
    stream_end_capture = "cuStreamEndCapture" (stream: RawStream, graph: *mut Graph);
    graph_instantiate = "cuGraphInstantiateWithFlags" (exec: *mut GraphExec, graph: Graph, flags: u64);
    graph_launch = "cuGraphLaunch" (exec: GraphExec, stream: RawStream);
    graph_exec_destroy = "cuGraphExecDestroy" (exec: GraphExec);
    graph_destroy = "cuGraphDestroy" (graph: Graph);
    stream_is_capturing = "cuStreamIsCapturing" (stream: RawStream, status: *mut c_int);
    stream_get_capture_info = "cuStreamGetCaptureInfo_v2" (stream: RawStream, status: *mut c_int, id: *mut u64,
        graph: *mut Graph, dependencies: *mut *const c_void, count: *mut usize);
    thread_exchange_stream_capture_mode = "cuThreadExchangeStreamCaptureMode" (mode: *mut c_int);
    user_object_create = "cuUserObjectCreate" (object: *mut UserObject, value: *mut c_void, destroy: HostFunction,
        references: c_uint, flags: c_uint);
    graph_retain_user_object = "cuGraphRetainUserObject" (graph: Graph, object: UserObject, count: c_uint, flags: c_uint);

    event_create = "cuEventCreate" (event: *mut RawEvent, flags: c_uint);
    event_destroy = "cuEventDestroy_v2" (event: RawEvent);
    event_record = "cuEventRecord" (event: RawEvent, stream: RawStream);
    event_query = "cuEventQuery" (event: RawEvent);
    event_elapsed_time = "cuEventElapsedTime" (ms: *mut f32, from: RawEvent, until: RawEvent);

    link_create = "cuLinkCreate_v2" (n: c_uint, options: *mut c_int, values: *mut *mut c_void, state: *mut LinkState);
    link_add_data = "cuLinkAddData_v2" (state: LinkState, kind: c_int, data: *mut c_void, bytes: usize,
        name: *const c_char, n: c_uint, options: *mut c_int, values: *mut *mut c_void);
    link_complete = "cuLinkComplete" (state: LinkState, cubin: *mut *mut c_void, bytes: *mut usize);
    link_destroy = "cuLinkDestroy" (state: LinkState);
    module_load_data = "cuModuleLoadData" (module: *mut Module, image: *const c_void);
    module_unload = "cuModuleUnload" (module: Module);
    module_get_function = "cuModuleGetFunction" (function: *mut Function, module: Module, name: *const c_char);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (blocks: *mut c_int, function: Function,
        threads: c_int, shared_bytes: usize);
    launch_kernel = "cuLaunchKernel" (function: Function, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint,
        bz: c_uint, shared_bytes: c_uint, stream: RawStream, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    profiler_start = "cuProfilerStart" ();
    profiler_stop = "cuProfilerStop" ();
    launch_host_function = "cuLaunchHostFunc" (stream: RawStream, function: HostFunction, data: *mut c_void);
}

/// `cuFuncLoad`, of CUDA 12.4 and later.
type LoadFunction = unsafe extern "C" fn(Function) -> c_int;

/// The driver, ready to be used.
pub(crate) struct Driver {
    api: Api,
    error_name: TextOf,
    error_string: TextOf,
    load_function: Option<LoadFunction>,
    /// Those of multicast objects, of CUDA 12.1 and later; or which is missing.
    multicast: std::result::Result<MulticastApi, &'static str>,
    /// As 12040 for CUDA 12.4.
    version: c_int,
    /// Hardware queues that streams of the process have on a GPU.
    connections: u32,
    /// Its functions are called as long as the process lives: their threads may outlive `main`.
    _library: &'static Library,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Driver {
    /// The process's driver.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is none, or one that is too old; [`Error::Cuda`] when it cannot start.
    pub(crate) fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Driver> {
        let missing = |reason: String| Error::Unavailable { what: "CUDA".to_owned(), reason };
        let name = std::env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty());
        let name = name.unwrap_or_else(|| OsString::from(LIBRARY));
        // SAFETY: the library's initialisers are the driver's own and are run by every program that uses a GPU.
        let library = unsafe { Library::new(&name) }.map_err(|e| {
            let why =
                std::error::Error::source(&e).map_or_else(|| e.to_string(), |e| e.to_string());
            missing(format!("NVIDIA's driver library cannot be opened: {why}"))
        })?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the types are those of cuda.h.
        let (api, texts, multicast) = unsafe {
            let text = |symbol: &'static str| {
                library
                    .get::<TextOf>(symbol.as_bytes())
                    .map(|function| *function)
                    .map_err(|_| symbol)
            };
            let texts =
                text("cuGetErrorName").and_then(|name| Ok((name, text("cuGetErrorString")?)));
            (Api::of(library), texts, MulticastApi::find(library))
        };
        let incomplete = |symbol: &str| {
            missing(format!(
                "{} has no {symbol}: a driver of CUDA {}.{} or later is needed",
                name.display(),
                OLDEST / 1000,
                OLDEST % 1000 / 10
            ))
        };
        let (api, (error_name, error_string)) =
            (api.map_err(incomplete)?, texts.map_err(incomplete)?);
        // SAFETY: the type is that of cuda.h.
        let load_function = unsafe { library.get::<LoadFunction>(b"cuFuncLoad\0") };
        let load_function = load_function.ok().map(|function| *function);
        let connections = connections::ask();
        let mut driver = Driver {
            api,
            error_name,
            error_string,
            load_function,
            multicast,
            version: 0,
            connections,
            _library: library,
        };
        // SAFETY: takes nothing, and may be called at any time; the second writes to a place that is there.
        unsafe {
            driver.init(0).map_err(|error| match error.code() {
                NO_DEVICE => missing("the driver finds no GPU (see nvidia-smi)".to_owned()),
                _ => error.into(),
            })?;
            let mut version = 0;
            driver.driver_get_version(&raw mut version)?;
            driver.version = version;
        }
        if driver.version < OLDEST {
            let (is, needs) = (driver.version, OLDEST);
            return Err(missing(format!(
                "the driver is of CUDA {}.{}, and {}.{} or later is needed",
                is / 1000,
                is % 1000 / 10,
                needs / 1000,
                needs % 1000 / 10
            )));
        }
        Ok(driver)
    }

    /// The driver's version of CUDA, as 12040 for 12.4.
    pub(crate) fn version(&self) -> c_int {
        self.version
    }

    /// Loads a function that the driver would load when it is first launched (Lazy Loading). Older drivers have no call for it:
    /// they do it when they are asked for the function's occupancy, which depends on its registers.
    ///
    /// # Safety
    /// The function is one of the current context.
    pub(crate) unsafe fn load_function(
        &self,
        function: Function,
    ) -> std::result::Result<(), CudaError> {
        match self.load_function {
            // SAFETY: the caller's.
            Some(load) => self.check("cuFuncLoad", unsafe { load(function) }),
            None => Ok(()),
        }
    }

    /// Hardware queues that streams of the process have on a GPU.
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }

    /// What `code` of `call` means.
    fn check(&self, call: &'static str, code: c_int) -> std::result::Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(CudaError::new(call, code, self.name_of(code), self.text_of(code)))
    }

    fn name_of(&self, code: c_int) -> String {
        let mut text = std::ptr::null();
        // SAFETY: writes the address of a text that is there as long as the library.
        let known = unsafe { (self.error_name)(code, &raw mut text) } == SUCCESS;
        self.words(known, text).unwrap_or_else(|| format!("error {code}"))
    }

    fn text_of(&self, code: c_int) -> String {
        let mut text = std::ptr::null();
        // SAFETY: as in `name_of`.
        let known = unsafe { (self.error_string)(code, &raw mut text) } == SUCCESS;
        self.words(known, text).unwrap_or_default()
    }

    fn words(&self, known: bool, text: *const c_char) -> Option<String> {
        // SAFETY: the driver's texts end with a zero.
        (known && !text.is_null())
            .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Has `f` run in `context`, which puts something into a stream, or asks about one: that no capture minds, and it is
    /// done for every call, so a context that is current is taken as it is.
    pub(crate) fn briefly<R>(&self, context: Context, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes to a place that is there; the context is retained by whoever calls this.
        unsafe {
            self.ctx_get_current(&raw mut current)?;
            if current == context {
                return f();
            }
            self.ctx_push_current(context)?;
        }
        let _pushed = Pushed(self);
        f()
    }

    /// Has `f` run in `context`.
    pub(crate) fn within<R>(&self, context: Context, f: impl FnOnce() -> Result<R>) -> Result<R> {
        // SAFETY: the context is retained by whoever calls this.
        unsafe { self.ctx_push_current(context)? };
        let pushed = Pushed(self);
        // What is done within is ours alone: a capture of the caller's has nothing to fear from it.
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: exchanges the thread's mode with `mode`.
        unsafe { self.thread_exchange_stream_capture_mode(&raw mut mode)? };
        let result = f();
        // SAFETY: as above.
        let restored = unsafe { self.thread_exchange_stream_capture_mode(&raw mut mode) };
        drop(pushed);
        result.and_then(|r| restored.map(|()| r).map_err(Error::from))
    }
}

/// A context that is current until this is dropped.
struct Pushed<'a>(&'a Driver);

impl Drop for Pushed<'_> {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pushed by `within`; an error has nobody to go to, and the call before had it, too.
        let _ = unsafe { self.0.ctx_pop_current(&raw mut context) };
    }
}

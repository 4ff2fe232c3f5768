//! NCCL's profiler ABI, versions 1 to 6: tables and descriptors of events.
//!
//! A plugin exports a table under a name with the version in it, `ncclProfiler_v1` to `ncclProfiler_v6`. All versions have the same
//! five functions; `init` gets more from version 4 on. What differs most is how an event is described:
//!
//! ```text
//! v1          type (8 bits), parent, rank; a collective's function, type, algorithm and protocol are numbers
//! v2, v3      the same by name; v3 without the bytes moved, with kernelCh
//! v4          names and hashes of communicators have moved to init; kernelCh has a time
//! v5, v6      type has 64 bits; events of the API, of which collectives and messages are children; v6 adds copy engines
//! ```
//!
//! Sources: NCCL 2.30.7's `src/include/plugin/profiler/profiler_v1.h` to `profiler_v6.h`, `nccl_profiler.h` for the numbers.

use std::ffi::{c_char, c_int, c_void};

use ferroccl_plugin::{Code, Logger, Object};

type InitV1 = unsafe extern "C" fn(*mut Object, *mut c_int) -> Code;
type InitV4 = unsafe extern "C" fn(
    *mut Object,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Logger,
) -> Code;
type InitV5 = unsafe extern "C" fn(
    *mut Object,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Logger,
) -> Code;
pub(super) type StartEvent = unsafe extern "C" fn(Object, *mut Object, *mut Description) -> Code;
pub(super) type StopEvent = unsafe extern "C" fn(Object) -> Code;
pub(super) type RecordEventState = unsafe extern "C" fn(Object, c_int, *mut StateArgs) -> Code;
pub(super) type Finalize = unsafe extern "C" fn(Object) -> Code;

/// A table: what differs from version to version is the type of `init`.
#[repr(C)]
pub(super) struct Table<Init> {
    pub(super) name: *const c_char,
    pub(super) init: Option<Init>,
    pub(super) start: Option<StartEvent>,
    pub(super) stop: Option<StopEvent>,
    pub(super) record: Option<RecordEventState>,
    pub(super) finalize: Option<Finalize>,
}

/// `ncclProfiler_v1_t` to `_v3_t`.
pub(super) type TableV1 = Table<InitV1>;
/// `ncclProfiler_v4_t`.
pub(super) type TableV4 = Table<InitV4>;
/// `ncclProfiler_v5_t`, `ncclProfiler_v6_t`.
pub(super) type TableV5 = Table<InitV5>;

/// `ncclProfilerEventDescr_t` of any version: they begin alike.
#[repr(C)]
pub(super) struct Description {
    /// 8 bits before version 5, then 64.
    pub(super) kind: Kind,
    pub(super) parent: Object,
    pub(super) rank: c_int,
    pub(super) of: Details,
}

/// The type of an event.
#[repr(C)]
pub(super) union Kind {
    pub(super) narrow: u8,
    pub(super) wide: u64,
}

/// What is said of an event, by its type and the version.
#[repr(C)]
pub(super) union Details {
    pub(super) nothing: [u64; 16],
    pub(super) coll_v1: CollV1,
    pub(super) coll_v2: CollV2,
    pub(super) coll_v3: CollV3,
    pub(super) coll: Coll,
    pub(super) p2p_v1: P2pV1,
    pub(super) p2p_v2: P2pV2,
    pub(super) p2p: P2p,
    pub(super) proxy_op: ProxyOp,
    pub(super) proxy_step: c_int,
    pub(super) kernel: KernelCh,
    pub(super) group_api: GroupApi,
    pub(super) coll_api: CollApi,
    pub(super) p2p_api: P2pApi,
    pub(super) launch: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CollV1 {
    pub(super) name: *const c_char,
    pub(super) comm_hash: u64,
    pub(super) seq: u64,
    pub(super) func: u8,
    pub(super) send: *const c_void,
    pub(super) recv: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) data_type: u8,
    pub(super) op: u32,
    pub(super) traffic_bytes: usize,
    pub(super) channels: u8,
    pub(super) warps: u8,
    pub(super) algorithm: u8,
    pub(super) protocol: u8,
    pub(super) is_collnet: c_int,
    pub(super) is_nvls: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CollV2 {
    pub(super) name: *const c_char,
    pub(super) comm_hash: u64,
    pub(super) seq: u64,
    pub(super) func: *const c_char,
    pub(super) send: *const c_void,
    pub(super) recv: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) data_type: *const c_char,
    pub(super) traffic_bytes: usize,
    pub(super) channels: u8,
    pub(super) warps: u8,
    pub(super) algorithm: *const c_char,
    pub(super) protocol: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CollV3 {
    pub(super) name: *const c_char,
    pub(super) comm_hash: u64,
    pub(super) of: Coll,
}

/// Of version 4, and before `parent_group` of versions 5 and 6.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
    pub(super) seq: u64,
    pub(super) func: *const c_char,
    pub(super) send: *const c_void,
    pub(super) recv: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) data_type: *const c_char,
    pub(super) channels: u8,
    pub(super) warps: u8,
    pub(super) algorithm: *const c_char,
    pub(super) protocol: *const c_char,
    pub(super) parent_group: Object,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2pV1 {
    pub(super) name: *const c_char,
    pub(super) comm_hash: u64,
    pub(super) func: u8,
    pub(super) buffer: *mut c_void,
    pub(super) data_type: u8,
    pub(super) count: usize,
    pub(super) peer: c_int,
}

/// Of versions 2 and 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2pV2 {
    pub(super) name: *const c_char,
    pub(super) comm_hash: u64,
    pub(super) func: *const c_char,
    pub(super) buffer: *mut c_void,
    pub(super) data_type: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
}

/// Of version 4, and before `parent_group` of versions 5 and 6.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    pub(super) func: *const c_char,
    pub(super) buffer: *mut c_void,
    pub(super) data_type: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
    pub(super) channels: u8,
    pub(super) parent_group: Object,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ProxyOp {
    pub(super) pid: libc::pid_t,
    pub(super) channel: u8,
    pub(super) peer: c_int,
    pub(super) steps: c_int,
    pub(super) chunk_bytes: c_int,
    pub(super) is_send: c_int,
}

/// Version 3 has no time.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelCh {
    pub(super) channel: u8,
    pub(super) timer: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GroupApi {
    pub(super) captured: bool,
    pub(super) depth: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CollApi {
    pub(super) func: *const c_char,
    pub(super) count: usize,
    pub(super) data_type: *const c_char,
    pub(super) root: c_int,
    pub(super) stream: *mut c_void,
    pub(super) captured: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2pApi {
    pub(super) func: *const c_char,
    pub(super) count: usize,
    pub(super) data_type: *const c_char,
    pub(super) stream: *mut c_void,
    pub(super) captured: bool,
}

/// `ncclProfilerEventStateArgs_t` of any version: a number in each case, with one more of operations of the proxy before
/// version 4.
#[repr(C)]
pub(super) struct StateArgs(pub(super) [u64; 2]);

//! NCCL's tuner ABI, versions 2 to 6: the tables of a plugin.
//!
//! A plugin exports a table under a name with the version in it, `ncclTunerPlugin_v2` to `ncclTunerPlugin_v6`:
//!
//! ```text
//!               v2                               v3              v4                 v5, v6
//! init          ranks, nodes, logger, context    as v2           as v2              context, id, ranks, nodes, logger, domains, constants
//! getCollInfo   answers algorithm and protocol   a table of costs  and registration as v4
//! last          destroy                          destroy         destroy            finalize; v6 appends getChunkSize
//! ```
//!
//! Sources: NCCL 2.30.7's `src/include/plugin/tuner/tuner_v2.h` to `tuner_v6.h`, and `nccl_tuner.h` for the numbers.

use std::ffi::{c_char, c_float, c_int};

use ferroccl_plugin::{Code, Logger, Object};

/// `NCCL_NUM_ALGORITHMS` and `NCCL_NUM_PROTOCOLS`.
pub(super) const ALGORITHMS: usize = 7;
/// See [`ALGORITHMS`].
pub(super) const PROTOCOLS: usize = 3;

/// Times in microseconds, by NCCL's number of an algorithm and that of a protocol.
pub(super) type CostTable = [[c_float; PROTOCOLS]; ALGORITHMS];

/// `NCCL_ALGO_PROTO_IGNORE`: this cannot be had.
pub(super) const IGNORE: c_float = -1.0;
/// `NCCL_ALGO_UNDEF`, `NCCL_PROTO_UNDEF`: the plugin of version 2 has no wish.
pub(super) const UNDEFINED: c_int = -1;

/// `NCCL_ALGO_NVLS`.
pub(super) const NVLS: usize = 4;
/// `NCCL_ALGO_NVLS_TREE`.
pub(super) const NVLS_TREE: usize = 5;
/// `NCCL_ALGO_COLLNET_CHAIN`.
pub(super) const COLLNET_CHAIN: usize = 3;
/// `NCCL_PROTO_SIMPLE`.
pub(super) const SIMPLE: usize = 2;

type InitV2 = unsafe extern "C" fn(usize, usize, Logger, *mut Object) -> Code;
type InitV5 = unsafe extern "C" fn(
    *mut Object,
    u64,
    usize,
    usize,
    Logger,
    *mut NvlDomainInfo,
    *mut Constants,
) -> Code;
type GetCollInfoV2 = unsafe extern "C" fn(
    Object,
    c_int,
    usize,
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *mut c_int,
    *mut c_int,
) -> Code;
type GetCollInfoV3 = unsafe extern "C" fn(
    Object,
    c_int,
    usize,
    c_int,
    *mut CostTable,
    c_int,
    c_int,
    *mut c_int,
) -> Code;
pub(super) type GetCollInfoV4 = unsafe extern "C" fn(
    Object,
    c_int,
    usize,
    c_int,
    *mut CostTable,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> Code;
/// `destroy`, `finalize`.
pub(super) type End = unsafe extern "C" fn(Object) -> Code;

/// A table: what differs from version to version are the types of two functions.
#[repr(C)]
pub(super) struct Table<Init, GetCollInfo> {
    pub(super) name: *const c_char,
    pub(super) init: Option<Init>,
    pub(super) get_coll_info: Option<GetCollInfo>,
    pub(super) end: Option<End>,
}

/// `ncclTuner_v2_t`.
pub(super) type TableV2 = Table<InitV2, GetCollInfoV2>;
/// `ncclTuner_v3_t`.
pub(super) type TableV3 = Table<InitV2, GetCollInfoV3>;
/// `ncclTuner_v4_t`.
pub(super) type TableV4 = Table<InitV2, GetCollInfoV4>;
/// `ncclTuner_v5_t`, and all of `ncclTuner_v6_t` but `getChunkSize`, which is behind.
pub(super) type TableV5 = Table<InitV5, GetCollInfoV4>;

/// `ncclNvlDomainInfo_v5_t`: which ranks reach each other over NVLink.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NvlDomainInfo {
    pub(super) domains: c_int,
    pub(super) min_ranks: c_int,
    pub(super) max_ranks: c_int,
}

/// `ncclTunerConstants_v5_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Constants {
    pub(super) base_latencies: [[f64; PROTOCOLS]; ALGORITHMS],
    pub(super) hw_latencies: [[[f64; PROTOCOLS]; ALGORITHMS]; 3],
    pub(super) ll_max: [[f64; 3]; 4],
    pub(super) ring_ll128_max: [[f64; 3]; 4],
    pub(super) tree_ll128_max: [[f64; 3]; 4],
    pub(super) tree_max: [[f64; 3]; 4],
    pub(super) nvls_tree_max: [[f64; 3]; 4],
}

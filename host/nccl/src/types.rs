//! NCCL's types, as C has them: layouts and values are those of NCCL 2.30's `nccl.h`. Enumerations are numbers here: a program
//! may pass any.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type ncclResult_t = c_int;
pub(crate) const ncclSuccess: ncclResult_t = 0;
pub(crate) const ncclUnhandledCudaError: ncclResult_t = 1;
pub(crate) const ncclSystemError: ncclResult_t = 2;
pub(crate) const ncclInternalError: ncclResult_t = 3;
pub(crate) const ncclInvalidArgument: ncclResult_t = 4;
pub(crate) const ncclInvalidUsage: ncclResult_t = 5;
pub(crate) const ncclRemoteError: ncclResult_t = 6;
pub(crate) const ncclInProgress: ncclResult_t = 7;
pub(crate) const ncclTimeout: ncclResult_t = 8;

/// A handle of a communicator: a number of ours, never an address.
pub(crate) type ncclComm_t = *mut c_void;
/// The same of a window.
pub(crate) type ncclWindow_t = *mut c_void;
pub(crate) type cudaStream_t = *mut c_void;
pub(crate) type ncclDataType_t = c_int;
pub(crate) type ncclRedOp_t = c_int;

/// `NCCL_VERSION_CODE`: the version whose interface this is.
pub(crate) const NCCL_VERSION_CODE: c_int = 23007;
pub(crate) const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
pub(crate) const NCCL_SPLIT_NOCOLOR: c_int = -1;
pub(crate) const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
pub(crate) const NCCL_SIM_INFO_MAGIC: c_uint = 0x7468_5283;
pub(crate) const NCCL_SHRINK_DEFAULT: c_int = 0;
pub(crate) const NCCL_SHRINK_ABORT: c_int = 1;
pub(crate) const NCCL_SUSPEND_MEM: c_int = 1;

/// `ncclCommMemStat_t`.
pub(crate) const ncclStatGpuMemSuspend: c_int = 0;
pub(crate) const ncclStatGpuMemSuspended: c_int = 1;
pub(crate) const ncclStatGpuMemPersist: c_int = 2;
pub(crate) const ncclStatGpuMemTotal: c_int = 3;
pub(crate) const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
pub(crate) const NCCL_WIN_STRICT_ORDERING: c_int = 2;
/// The built-in operators; what a program makes has higher numbers.
pub(crate) const ncclNumOps: ncclRedOp_t = 5;

/// What `ncclGetUniqueId` gives.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ncclUniqueId {
    pub(crate) internal: [u8; 128],
}

/// A communicator's settings.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ncclConfig_t {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) cgaClusterSize: c_int,
    pub(crate) minCTAs: c_int,
    pub(crate) maxCTAs: c_int,
    pub(crate) netName: *const c_char,
    pub(crate) splitShare: c_int,
    pub(crate) trafficClass: c_int,
    pub(crate) commName: *const c_char,
    pub(crate) collnetEnable: c_int,
    pub(crate) CTAPolicy: c_int,
    pub(crate) shrinkShare: c_int,
    pub(crate) nvlsCTAs: c_int,
    pub(crate) nChannelsPerNetPeer: c_int,
    pub(crate) nvlinkCentricSched: c_int,
    pub(crate) graphUsageMode: c_int,
    pub(crate) numRmaCtx: c_int,
    pub(crate) maxP2pPeers: c_int,
    pub(crate) graphStreamOrdering: c_int,
}

/// What `ncclGroupSimulateEnd` fills.
#[repr(C)]
pub(crate) struct ncclSimInfo_t {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) estimatedTime: f32,
}

/// What `ncclWaitSignal` waits for.
#[repr(C)]
pub(crate) struct ncclWaitSignalDesc_t {
    pub(crate) opCnt: c_int,
    pub(crate) peer: c_int,
    pub(crate) sigIdx: c_int,
    pub(crate) ctx: c_int,
}

/// What `ncclCommQueryProperties` fills.
#[repr(C)]
pub(crate) struct ncclCommProperties_t {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) rank: c_int,
    pub(crate) nRanks: c_int,
    pub(crate) cudaDev: c_int,
    pub(crate) nvmlDev: c_int,
    pub(crate) deviceApiSupport: bool,
    pub(crate) multimemSupport: bool,
    pub(crate) ginType: c_int,
    pub(crate) nLsaTeams: c_int,
    pub(crate) hostRmaSupport: bool,
    pub(crate) railedGinType: c_int,
}

// As C lays them out on 64-bit machines: `tests/nccl/interface.rs` compares the same numbers with NVIDIA's header.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ncclConfig_t>() == 96);
    assert!(offset_of!(ncclConfig_t, netName) == 32);
    assert!(offset_of!(ncclConfig_t, commName) == 48);
    assert!(offset_of!(ncclConfig_t, graphStreamOrdering) == 92);
    assert!(size_of::<ncclSimInfo_t>() == 24);
    assert!(size_of::<ncclWaitSignalDesc_t>() == 16);
    assert!(size_of::<ncclUniqueId>() == 128);
    assert!(size_of::<ncclCommProperties_t>() == 56);
    assert!(offset_of!(ncclCommProperties_t, nLsaTeams) == 40);
    assert!(offset_of!(ncclCommProperties_t, railedGinType) == 48);
};

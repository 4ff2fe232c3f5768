//! NCCL's names and numbers of what calls consist of.
//!
//! Source: NCCL's `ncclFuncToString` and so on in `src/enqueue.cc`, `ncclFunc_t` in `nccl_common.h`, `nccl_tuner.h`, `nccl.h`.

use std::ffi::CStr;

use ferroccl_device::abi::{Algorithm, Collective, DataType, ProtocolId};

/// `NCCL_ALGO_COLLNET_DIRECT`.
pub(super) const COLLNET_DIRECT: u8 = 2;
/// `NCCL_ALGO_NVLS`.
pub(super) const NVLS: u8 = 4;
/// What NCCL has not: `NCCL_ALGO_UNDEF`, -1, in a byte.
const UNDEFINED: u8 = 255;

pub(super) fn function(collective: Collective) -> (&'static CStr, u8) {
    match collective {
        Collective::Broadcast => (c"Broadcast", 0),
        Collective::Reduce => (c"Reduce", 1),
        Collective::AllGather => (c"AllGather", 2),
        Collective::ReduceScatter => (c"ReduceScatter", 3),
        // A barrier is an all-reduce of one element.
        Collective::AllReduce | Collective::Barrier => (c"AllReduce", 4),
        Collective::SendRecv => (c"SendRecv", 5),
        Collective::AllToAll => (c"AlltoAll", 8),
    }
}

pub(super) fn message(sending: bool) -> (&'static CStr, u8) {
    if sending { (c"Send", 6) } else { (c"Recv", 7) }
}

pub(super) fn data_type(data_type: DataType) -> (&'static CStr, u8) {
    match data_type {
        DataType::I8 => (c"ncclInt8", 0),
        DataType::U8 => (c"ncclUint8", 1),
        DataType::I32 => (c"ncclInt32", 2),
        DataType::U32 => (c"ncclUint32", 3),
        DataType::I64 => (c"ncclInt64", 4),
        DataType::U64 => (c"ncclUint64", 5),
        DataType::F16 => (c"ncclFloat16", 6),
        DataType::F32 => (c"ncclFloat32", 7),
        DataType::F64 => (c"ncclFloat64", 8),
        DataType::Bf16 => (c"ncclBfloat16", 9),
        DataType::F8E4M3 => (c"ncclFloat8e4m3", 10),
        DataType::F8E5M2 => (c"ncclFloat8e5m2", 11),
    }
}

pub(super) fn algorithm(algorithm: Algorithm) -> (&'static CStr, u8) {
    match algorithm {
        Algorithm::Tree => (c"TREE", 0),
        Algorithm::Ring => (c"RING", 1),
        Algorithm::CollnetDirect => (c"COLLNET_DIRECT", COLLNET_DIRECT),
        Algorithm::CollnetChain => (c"COLLNET_CHAIN", 3),
        Algorithm::Nvls => (c"NVLS", NVLS),
        // Of its kind, see NCCL_ALGO.
        Algorithm::Bruck => (c"PAT", 6),
        Algorithm::Hierarchical => (c"HIERARCHICAL", UNDEFINED),
        Algorithm::OneShot => (c"ONE_SHOT", UNDEFINED),
        Algorithm::TwoShot => (c"TWO_SHOT", UNDEFINED),
        Algorithm::Direct => (c"DIRECT", UNDEFINED),
        Algorithm::Chain => (c"CHAIN", UNDEFINED),
        Algorithm::Doubling => (c"DOUBLING", UNDEFINED),
        Algorithm::Linear => (c"LINEAR", UNDEFINED),
        Algorithm::Own(_) => (c"OWN", UNDEFINED),
    }
}

pub(super) fn protocol(protocol: ProtocolId) -> (&'static CStr, u8) {
    match protocol {
        ProtocolId::Ll => (c"LL", 0),
        ProtocolId::Ll128 => (c"LL128", 1),
        ProtocolId::Simple => (c"SIMPLE", 2),
        ProtocolId::Own(_) => (c"OWN", UNDEFINED),
    }
}

//! What kernels, proxy and host agree on: layouts, never behaviour.
//!
//! Every structure is `repr(C)`, holds addresses as `u64` (a kernel's address space is not the
//! host's) and has its size and the offsets that matter asserted beside it. "The host must match
//! this" is never a comment: both sides compile these definitions.

mod conn;
mod device_comm;
mod fault;
mod fifo;
mod mesh;
mod ops;
mod work;

pub use conn::{
    CACHE_LINE, Conn, ConnHeader, EdgeHeader, LL_LINE, LL128_LINE, LL128_LINE_DATA, Peer, Poison,
    PtrExchange, SIGNATURES, SignatureLines, SignatureRing,
};
pub use device_comm::{DeviceComm, DeviceWindow, PutRequest};
pub use fault::{Fault, FaultCell, FaultKind, WaitKind};
pub use fifo::{fifo_bytes, fifo_entry};
pub use mesh::{
    MESH_BEGUN, MESH_CALL, MESH_CORE, MESH_DIGEST_BYTES, MESH_ENDED, MESH_SLOTS, MESH_TAIL_BYTES,
    MeshLinks,
};
pub use ops::{
    Algorithm, Collective, DataType, OwnAlgorithm, OwnProtocol, ProtocolId, ReduceOp, UnknownName,
};
pub use work::{
    Channel, ChannelWork, Comm, MAX_CHANNELS, NO_RANK, Signature, Transfer, TransferKind,
    TransferState, TreeLinks, WindowPeers, Work,
};

/// `Pod` and `Zeroable` where there is a host; the PTX build has no derive macros and needs none.
macro_rules! abi {
    ($(#[$m:meta])* pub struct $name:ident { $($body:tt)* }) => {
        $(#[$m])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(target_arch = "nvptx64"), derive(bytemuck::Pod, bytemuck::Zeroable))]
        pub struct $name { $($body)* }
    };
}
pub(crate) use abi;

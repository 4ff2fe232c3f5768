//! Networks that reduce.
//!
//! A switch that combines the data of all ranks saves them a step for every other rank: each rank sends its data once and gets
//! the result. NCCL reaches such networks through plugins (`ncclCollNet`, for example SHARP's); here they are a trait.
//!
//! ```text
//! listen ─► handle ══ out of band, to all ══► connect(handles) ─► CollNetComm ─► iallreduce ─► CollNetRequest ─► test
//! ```
//!
//! Only [`CollNetListener::connect`] waits. The [proxy](crate::Proxy) makes other calls again until they are done.

mod software;

use std::fmt::Debug;

use ferroccl_device::abi::{DataType, ReduceOp};

use crate::NetError;

pub use software::SoftwareCollNet;

/// A network that reduces.
pub trait CollNet: Debug + Send + Sync {
    /// Its name, as in logs.
    fn name(&self) -> &str;

    /// Whether it can combine values of this type with this operator (`reduceSupport`). It is not called for averages and
    /// scaled sums: values are scaled before they come here.
    fn reduce_support(&self, data_type: DataType, op: ReduceOp) -> bool;

    /// Makes a listener for the members of a group.
    ///
    /// # Errors
    /// When the network has no more groups, or cannot be reached.
    fn listen(&self) -> Result<Box<dyn CollNetListener>, NetError>;
}

/// A member of a group that is not connected.
pub trait CollNetListener: Send {
    /// What all members need to know of this one, of any length.
    fn handle(&self) -> Vec<u8>;

    /// Joins the group of the members with these handles, as number `rank` of them. All members call it with the same
    /// handles, and it may wait for them.
    ///
    /// # Errors
    /// When the group does not come together.
    fn connect(
        self: Box<Self>,
        handles: &[Vec<u8>],
        rank: u32,
    ) -> Result<Box<dyn CollNetComm>, NetError>;
}

/// A member of a group. The members make the same calls in the same order.
pub trait CollNetComm: Debug + Send {
    /// Begins to combine `count` elements at `send` with those of all members, into `recv`. The two are equal or do not
    /// overlap. `None`: too many calls are under way; call it again.
    ///
    /// # Errors
    /// When the network cannot do the call, or the group is broken.
    ///
    /// # Safety
    /// `count` elements are readable at `send` and writable at `recv`, both multiples of the element's size, and nobody
    /// else touches them until the request is done or dropped.
    unsafe fn iallreduce(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<Option<Box<dyn CollNetRequest>>, NetError>;
}

/// A call that is under way. When it is dropped, its buffers are not touched any more.
pub trait CollNetRequest: Send {
    /// Whether it is done.
    ///
    /// # Errors
    /// When it has failed, and so is over.
    fn test(&mut self) -> Result<bool, NetError>;
}

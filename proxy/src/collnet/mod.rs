//! Networks that reduce.
//!
//! A switch that combines what passes through it saves the ranks a step for every other: all of them send once and get
//! the result. NCCL reaches such networks through plugins (`ncclCollNet`, as of SHARP); here they are a trait.
//!
//! ```text
//! listen ─► handle ══ out of band, to all ══► connect(handles) ─► CollNetComm ─► iallreduce ─► CollNetRequest ─► test
//! ```
//!
//! Nothing waits but [`CollNetListener::connect`]: the [proxy](crate::Proxy) asks again.

mod software;

use std::fmt::Debug;

use ferroccl_device::abi::{DataType, ReduceOp};

use crate::NetError;

pub use software::SoftwareCollNet;

/// A network that reduces.
pub trait CollNet: Debug + Send + Sync {
    /// Its name, as in logs.
    fn name(&self) -> &str;

    /// Whether it combines values of this type so (`reduceSupport`). It is never asked for averages or scaled sums: what
    /// is scaled is so before it comes here.
    fn reduce_support(&self, data_type: DataType, op: ReduceOp) -> bool;

    /// Gets ready for the members of a group.
    ///
    /// # Errors
    /// When the network has no more to offer, or cannot be reached.
    fn listen(&self) -> Result<Box<dyn CollNetListener>, NetError>;
}

/// A member of a group that is not connected.
pub trait CollNetListener: Send {
    /// What all members need to know of this one; of any length.
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
    /// Begins to combine `count` elements at `send` with those of all members, to be at `recv`; they are the same address
    /// or apart. `None`: too much is under way, ask again.
    ///
    /// # Errors
    /// When the call makes no sense to the network, or the group is broken.
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

/// A call that is under way. Dropped before it is done, it touches its buffers no more.
pub trait CollNetRequest: Send {
    /// Whether it is done.
    ///
    /// # Errors
    /// When it has failed: then it is over, too.
    fn test(&mut self) -> Result<bool, NetError>;
}

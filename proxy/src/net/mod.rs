//! Networks that move messages.
//!
//! A message goes from a buffer of one rank to a buffer that the other rank has named before. Nothing waits: what cannot
//! be done now is asked for again, by the [proxy](crate::Proxy). The shape is that of NCCL's `ncclNet_t`, so that its
//! plugins fit.
//!
//! ```text
//! receiver: listen ─► handle ══ out of band ══►             accept ─► RecvComm ─► irecv ─┐
//! sender:                                      connect ─► poll ─► SendComm ─► isend ─────┴─► test, until it is done
//! ```
//!
//! * Messages of a connection arrive in the order they were sent, each in the buffer that was given first. A message may
//!   be shorter than its buffer, of 0 bytes even, and never longer.
//! * At most [`MAX_REQUESTS`] are under way on a connection; how many a network takes at least is its
//!   [`Properties::max_requests`].
//! * What is dropped is closed, and touches no buffer any more. The other end learns of it as an error.

mod end;
mod fault;
mod faults;
mod handshake;
mod hca;
mod local;
mod memory;
mod plugin;
pub mod socket;
mod trace;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::fmt::Debug;

use crate::NetError;

pub use fault::FaultNet;
pub use faults::{Delay, Faults, FaultsError};
pub use hca::{HcaFilter, HcaFilterError};
pub use local::LocalNet;
pub use plugin::PluginNet;
pub use trace::TraceNet;

/// Where events go that say which devices are used: NCCL's line has the subsystems INIT and NET, and INIT is logged by default.
const USING: &str = "ferroccl::init";

/// Bytes of a handle at most: NCCL's `NCCL_NET_HANDLE_MAXSIZE` (`net.h`).
pub const MAX_HANDLE: usize = 128;

/// Requests of a connection at most: NCCL's `NCCL_NET_MAX_REQUESTS` (`net.h`).
pub const MAX_REQUESTS: usize = 32;

/// A network: some devices, and connections between them and others of its kind.
pub trait Net: Debug + Send + Sync {
    /// Its name, as in `NCCL_NET` and in logs: `Socket`, `IB`, a plugin's.
    fn name(&self) -> &str;

    /// Its devices; they are numbered from 0.
    fn devices(&self) -> usize;

    /// What a device is.
    ///
    /// # Errors
    /// When there is no such device, or it does not say.
    fn properties(&self, device: usize) -> Result<Properties, NetError>;

    /// Gets ready for connections from others. One listener takes any number of them.
    ///
    /// # Errors
    /// When the device can't.
    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError>;

    /// Begins to connect to the listener that has this handle.
    ///
    /// # Errors
    /// When the handle is not of this network, or the device can't.
    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError>;
}

/// What a device of a network is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name: `eth0`, `mlx5_0`.
    pub name: String,
    /// Its place in `/sys`, where it has one: the path of its PCI device.
    pub pci_path: Option<String>,
    /// A number that is the same for all ports of a card; 0 where there is none.
    pub guid: u64,
    /// Megabits a second.
    pub speed: u32,
    /// The port's number, from 1; 0 where there is none.
    pub port: u32,
    /// Requests that a connection takes at least, 1 to [`MAX_REQUESTS`].
    pub max_requests: usize,
    /// Buffers of one [`RecvComm::irecv`] at most; at least 1.
    pub max_receives: usize,
    /// Whether it reaches memory of GPUs: by NVIDIA's peer memory, as in [`MemoryKind::Cuda`].
    pub cuda: bool,
    /// Whether it takes GPU memory as [`MemoryKind::DmaBuf`].
    pub dma_buf: bool,
}

/// Where others connect to. Dropped, it takes no more; connections that it has accepted stay.
pub trait Listener: Send {
    /// What others need to connect: at most [`MAX_HANDLE`] bytes.
    fn handle(&self) -> &[u8];

    /// A connection that somebody has made, if there is one. A stranger's, or a broken one, is not an error of the
    /// listener: it is refused, and logged.
    ///
    /// # Errors
    /// When there can be no more connections.
    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError>;
}

/// A connection that is being made.
pub trait Connecting: Send {
    /// The connection, once it is there. It is not called again after that, or after an error.
    ///
    /// # Errors
    /// When there will be none: nobody listens, the other end is of another version, or refuses us.
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError>;
}

/// What memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// A GPU's, by its address.
    Cuda,
    /// A GPU's, by a DMA buffer: the file, and where in it the memory begins.
    DmaBuf {
        /// The file descriptor; the caller's.
        fd: i32,
        /// In bytes.
        offset: u64,
    },
}

/// Memory that a connection knows. Good for that connection alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle(pub u64);

/// A message that is under way. Good for the connection that gave it, until [`SendComm::test`] or [`RecvComm::test`] says
/// that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(pub u64);

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer {
    /// The address.
    pub address: *mut u8,
    /// Bytes that fit.
    pub bytes: usize,
    /// What tells apart the buffers of one request, where there are several: equal to that of the message.
    pub tag: u32,
    /// The registration that it lies in.
    pub memory: MemoryHandle,
}

/// The sending end of a connection.
pub trait SendComm: Debug + Send {
    /// Makes memory known, for messages to be sent from.
    ///
    /// # Errors
    /// When the device does not reach it.
    ///
    /// # Safety
    /// `bytes` from `address` on are memory of this kind until it is deregistered, or the connection dropped.
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError>;

    /// Takes that back.
    ///
    /// # Errors
    /// When it was not registered here.
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError>;

    /// Begins to send a message. `None`: too much is under way, or the receiver has named no buffer yet; ask again.
    ///
    /// # Errors
    /// When the connection is broken, or the message longer than the buffer it meets.
    ///
    /// # Safety
    /// `bytes` are readable at `address` and lie in `memory`, and nobody writes there, until the request is done or the
    /// connection dropped.
    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError>;

    /// Whether a message is sent: its memory may be used again. Moves all messages of the connection on.
    ///
    /// # Errors
    /// When the connection is broken, or the request not of this connection.
    fn test(&mut self, request: Request) -> Result<bool, NetError>;
}

/// The receiving end of a connection.
pub trait RecvComm: Debug + Send {
    /// Makes memory known, for messages to arrive in.
    ///
    /// # Errors
    /// When the device does not reach it.
    ///
    /// # Safety
    /// As [`SendComm::register`].
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError>;

    /// Takes that back.
    ///
    /// # Errors
    /// When it was not registered here.
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError>;

    /// Names the buffers of the next messages: at least 1, at most [`Properties::max_receives`]. `None`: too much is under
    /// way, ask again.
    ///
    /// # Errors
    /// When the connection is broken.
    ///
    /// # Safety
    /// Each buffer is writable and lies in its memory, and nobody touches it, until the request is done or the connection
    /// dropped.
    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError>;

    /// Whether all messages of a request have arrived; then `sizes` has the bytes of each, in the order of the buffers.
    /// Moves all messages of the connection on.
    ///
    /// # Errors
    /// When the connection is broken, the request not of this connection, or `sizes` shorter than the request.
    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError>;

    /// Begins to make sure that a GPU sees what has arrived in its memory. `None`: there is nothing to wait for.
    ///
    /// # Errors
    /// When the connection is broken.
    ///
    /// # Safety
    /// As [`RecvComm::irecv`], for reading.
    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError>;
}

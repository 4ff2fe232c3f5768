//! Networks that move messages.
//!
//! A message goes from a buffer of one rank into a buffer that the other rank has given before. No call waits: a call that
//! cannot be done now returns `None` or `false`, and the [proxy](crate::Proxy) makes it again. The interface is NCCL's
//! `ncclNet_t`, so that its plugins fit.
//!
//! ```text
//! receiver: listen ─► handle ══ out of band ══►             accept ─► RecvComm ─► irecv ─┐
//! sender:                                      connect ─► poll ─► SendComm ─► isend ─────┴─► test, until it is done
//! ```
//!
//! * Messages of a connection arrive in the order in which they were sent, each in the oldest buffer. A message may be shorter
//!   than its buffer, even empty, but not longer.
//! * At most [`MAX_REQUESTS`] are under way on a connection. A network accepts at least [`Properties::max_requests`].
//! * Several devices can be one ([`Net::make_virtual_device`]), if the network can send a message over all of them.
//! * Dropping an end closes the connection: no buffer is touched any more, and the other end gets an error.

mod comm_base;
mod fault;
mod faults;
mod handshake;
mod hca;
mod local;
mod plugin;
mod registered_memory;
pub mod socket;
mod trace;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::fmt::Debug;

use crate::NetError;
#[cfg(any(test, fuzzing))]
pub(crate) use handshake::fuzz;

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

/// A network: devices, and connections between them and devices of other processes.
pub trait Net: Debug + Send + Sync {
    /// Its name, as in `NCCL_NET` and in logs: `Socket`, `IB`, a plugin's.
    fn name(&self) -> &str;

    /// Its devices; they are numbered from 0. Virtual ones come behind the others.
    fn devices(&self) -> usize;

    /// What a device is.
    ///
    /// # Errors
    /// When there is no such device, or its properties cannot be read.
    fn properties(&self, device: usize) -> Result<Properties, NetError>;

    /// Devices of a virtual one at most; 1 for a network that makes none.
    fn max_devices_per_nic(&self) -> usize {
        1
    }

    /// Makes a device of several (NCCL's `makeVDevice`): its connections use all of them. Members that are one device already
    /// give that one. It stays for as long as the network.
    ///
    /// # Errors
    /// When the network makes none, as by default; when a member is not there, or virtual itself, or there are too few or
    /// too many; when the members do not go together.
    fn make_virtual_device(&self, members: &[usize]) -> Result<usize, NetError> {
        let reason = format!("it makes no virtual devices, not of {members:?} either");
        Err(NetError::new(self.name(), "make_virtual_device", reason))
    }

    /// Makes a listener, to which others connect. It accepts any number of connections.
    ///
    /// # Errors
    /// When the device cannot listen.
    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError>;

    /// Begins to connect to the listener that has this handle.
    ///
    /// # Errors
    /// When the handle is not of this network, or the device cannot connect.
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
    /// Whether it reaches GPU memory by address, through NVIDIA's peer memory ([`MemoryKind::Cuda`]).
    pub cuda: bool,
    /// Whether it reaches GPU memory as [`MemoryKind::DmaBuf`].
    pub dma_buf: bool,
    /// The devices that a virtual one is made of ([`Net::make_virtual_device`]); none for a real one.
    pub members: Vec<usize>,
}

/// Whether so many devices can be members of a virtual one: each is a real one of `real`, and there once.
///
/// # Errors
/// What is wrong with them.
fn check_members(members: &[usize], real: usize, most: usize) -> Result<(), String> {
    let again = |(i, device): (usize, &usize)| members[..i].contains(device);
    if let Some(wrong) = members.iter().find(|device| **device >= real) {
        return Err(format!("device {wrong} is none of the {real} real ones"));
    }
    if members.iter().enumerate().any(again) {
        return Err(format!("a device is there twice: {members:?}"));
    }
    if !(2..=most).contains(&members.len()) {
        return Err(format!("{} devices, where a virtual one has 2 to {most}", members.len()));
    }
    Ok(())
}

/// Accepts connections. When it is dropped, the connections that it has accepted stay.
pub trait Listener: Send {
    /// What others need to connect: at most [`MAX_HANDLE`] bytes.
    fn handle(&self) -> &[u8];

    /// The next connection, if there is one. A stranger's connection, or a broken one, is refused and logged; it is no error
    /// of the listener.
    ///
    /// # Errors
    /// When the listener is broken.
    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError>;
}

/// A connection that is being made.
pub trait Connecting: Send {
    /// The connection, once it is made. Not to be called again after that, nor after an error.
    ///
    /// # Errors
    /// When it cannot be made: there is no listener, or the listener is of another version or refuses us.
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError>;
}

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory.
    Host,
    /// GPU memory, by its address.
    Cuda,
    /// GPU memory, by a DMA buffer: its file, and where the memory begins in it.
    DmaBuf {
        /// The file descriptor; the caller's.
        fd: i32,
        /// In bytes.
        offset: u64,
    },
}

/// Memory that is registered with a connection. Valid for that connection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle(pub u64);

/// A message that is under way. Valid for its connection, until [`SendComm::test`] or [`RecvComm::test`] says that it is
/// done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(pub u64);

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct RecvBuffer {
    /// The address.
    pub address: *mut u8,
    /// Bytes that fit.
    pub bytes: usize,
    /// Equal to the tag of the message that goes there: it distinguishes the buffers of one request.
    pub tag: u32,
    /// The registration that it lies in.
    pub memory: MemoryHandle,
}

/// The sending end of a connection.
pub trait SendComm: Debug + Send {
    /// Registers memory that messages are sent from.
    ///
    /// # Errors
    /// When the device cannot reach it.
    ///
    /// # Safety
    /// `bytes` from `address` on are memory of this kind until it is deregistered, or the connection dropped.
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError>;

    /// Ends a registration.
    ///
    /// # Errors
    /// When it was not registered here.
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError>;

    /// Begins to send a message. `None`: too many are under way, or the receiver has given no buffer yet; call it again.
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

    /// While it is corked, a connection may keep short messages back, to send them together when it is uncorked or asked by
    /// [`test`](SendComm::test) (as `TCP_CORK` of tcp(7)). A connection that does not know it sends each by itself.
    fn cork(&mut self, _corked: bool) {}

    /// Whether a message is sent, so that its memory may be used again. Makes progress on all messages of the connection.
    ///
    /// # Errors
    /// When the connection is broken, or the request not of this connection.
    fn test(&mut self, request: Request) -> Result<bool, NetError>;
}

/// The receiving end of a connection.
pub trait RecvComm: Debug + Send {
    /// Registers memory that messages arrive in.
    ///
    /// # Errors
    /// When the device cannot reach it.
    ///
    /// # Safety
    /// As [`SendComm::register`].
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError>;

    /// Ends a registration.
    ///
    /// # Errors
    /// When it was not registered here.
    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError>;

    /// Gives the buffers of the next messages: 1 to [`Properties::max_receives`]. `None`: too many requests are under way; call
    /// it again.
    ///
    /// # Errors
    /// When the connection is broken.
    ///
    /// # Safety
    /// Each buffer is writable and lies in its memory, and nobody touches it, until the request is done or the connection
    /// dropped.
    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError>;

    /// Whether all messages of a request have arrived; then `sizes` has the bytes of each, in the order of the buffers.
    /// Makes progress on all messages of the connection.
    ///
    /// # Errors
    /// When the connection is broken, the request not of this connection, or `sizes` shorter than the request.
    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError>;

    /// Begins a flush, after which a GPU sees what has arrived in its memory. `None`: no flush is needed.
    ///
    /// # Errors
    /// When the connection is broken.
    ///
    /// # Safety
    /// As [`RecvComm::irecv`], for reading.
    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError>;
}

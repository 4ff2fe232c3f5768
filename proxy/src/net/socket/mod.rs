//! TCP sockets: the network that is always there.
//!
//! ```text
//!  sender                                                                receiver
//!    control socket   ── header 0, bytes 0 ── header 1 ── header 2 ... ──►   in order; short messages whole
//!    data socket 0    ── bytes 1, first part ── bytes 2, second part ────►   long messages in chunks,
//!    data socket 1    ── bytes 1, second part ── bytes 2, third part ────►   over all data sockets in turn
//! ```
//!
//! A connection has a control socket and 1 to 64 data sockets; the listener's handle says how many. On each socket both ends
//! first authenticate each other ([handshake](super::handshake)). On the control socket each message has a header: its
//! number, size and tag. The bytes of a message of at most 16 KiB (512 KiB with one data socket) follow its header, in the
//! same system call. The bytes of a longer message are cut into chunks, which both ends compute from the size
//! ([`data_sockets`]). The receiver sends nothing. A message for which it has no buffer stays in the sockets.
//!
//! Bytes are moved between the caller's buffer and the sockets without a copy. Only short messages are copied at the
//! receiver, where one system call reads many of them.
//!
//! **Invariant:** both ends assign chunks to the data sockets in the order of the messages, and each data socket moves its
//! chunks in that order. So the receiver knows which chunk the next bytes of a data socket belong to.
//!
//! An error ends the connection: a message longer than its buffer, a message out of order, a peer that is gone. The sockets
//! are closed, which the peer notices. Messages that have arrived by then can still be received, until the caller has been
//! told of the error.
//!
//! ```text
//! endpoint  what both ends of a connection have     wire          a message's header
//! send      the sending end                         data_sockets  chunks, and the sockets that carry them
//! recv      the receiving end                       helper        a thread that moves data sockets
//! layout    how many threads and sockets
//! ```
//!
//! Facts and limits are those of NCCL's `net_socket.cc` and `misc/socket.cc`; the wire format is FerroCCL's.

mod data_sockets;
mod endpoint;
mod helper;
mod layout;
mod recv;
mod send;
mod wire;

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tracing::{debug, info};

use self::data_sockets::Direction;
use self::endpoint::SocketEndpoint;
use self::layout::{Layout, MAX_SOCKETS};
use self::recv::SocketRecvComm;
use self::send::SocketSendComm;
pub use super::handshake::Interface as SocketInterface;
use super::handshake::{Handle, Sockets, SocketsAcceptor, SocketsConnector};
use super::registered_memory::RegisteredMemory;
use super::{
    Connecting, Listener, MAX_REQUESTS, MemoryHandle, MemoryKind, Net, Properties, RecvComm,
    SendComm, USING,
};
use crate::NetError;

const NAME: &str = "Socket";

/// The speed of an interface that does not say: NCCL's (`net_socket.cc`), in megabits a second.
const UNKNOWN_SPEED: u32 = 10_000;

fn error(operation: &'static str, reason: impl Into<String>) -> NetError {
    NetError::new(NAME, operation, reason)
}

/// Sockets need to know nothing of memory: it is kept to notice mistakes.
fn register(
    known: &mut RegisteredMemory,
    (address, bytes): (*mut u8, usize),
    kind: MemoryKind,
) -> Result<MemoryHandle, NetError> {
    if kind != MemoryKind::Host {
        let reason = format!("memory of kind {kind:?}: sockets reach the host's only");
        return Err(error("register", reason));
    }
    Ok(known.add(address, bytes, ()))
}

/// What a socket network is made of.
#[derive(Clone, PartialEq, Eq)]
pub struct SocketConfig {
    /// Its devices.
    pub interfaces: Vec<SocketInterface>,
    /// Threads of a connection's end that move its data, 0 to 16 (`NCCL_SOCKET_NTHREADS`). With 0, the thread that calls
    /// moves it. `None`: what NCCL takes, 0; on cards of Amazon 2, of Google 4.
    pub threads: Option<usize>,
    /// Data sockets of each thread, 1 to 64 (`NCCL_NSOCKS_PERTHREAD`), 64 in all of a connection; with 0 threads, of the
    /// caller's. `None`: what NCCL takes, 1; on cards of Amazon 8. Of two ends that differ, the listener's counts.
    pub sockets_per_thread: Option<usize>,
    /// What all ranks of a group know, and nobody else.
    pub secret: [u8; 32],
    /// How long it may take to make a connection.
    pub connect_timeout: Duration,
}

impl fmt::Debug for SocketConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A secret does not belong in a log.
        f.debug_struct("SocketConfig")
            .field("interfaces", &self.interfaces)
            .field("threads", &self.threads)
            .field("sockets_per_thread", &self.sockets_per_thread)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// The socket network: see the [module](self).
///
/// ```
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// use ferroccl_proxy::net::socket::{SocketConfig, SocketInterface, SocketNet};
/// use ferroccl_proxy::net::{MemoryKind, Net as _, RecvBuffer};
///
/// let net = SocketNet::new(SocketConfig {
///     interfaces: vec![SocketInterface {
///         name: "lo".to_owned(),
///         address: Ipv4Addr::LOCALHOST.into(),
///         scope_id: 0,
///     }],
///     threads: None,
///     sockets_per_thread: None,
///     secret: [7; 32],
///     connect_timeout: Duration::from_secs(10),
/// })?;
/// let mut listener = net.listen(0)?;
/// let mut connecting = net.connect(0, listener.handle())?;
/// let (mut send, mut recv) = (None, None);
/// while send.is_none() || recv.is_none() {
///     send = if send.is_none() { connecting.poll()? } else { send };
///     recv = if recv.is_none() { listener.accept()? } else { recv };
/// }
/// let (mut send, mut recv) = (send.unwrap(), recv.unwrap());
///
/// let (mut from, mut to) = (*b"ferro", [0u8; 8]);
/// // SAFETY: both buffers outlive the connection, and nobody touches them until the message is there.
/// let (ours, theirs) = unsafe {
///     let memory = send.register(from.as_mut_ptr(), 5, MemoryKind::Host)?;
///     let ours = send.isend(from.as_ptr(), 5, 0, memory)?.expect("nothing is under way");
///     let memory = recv.register(to.as_mut_ptr(), 8, MemoryKind::Host)?;
///     let buffer = RecvBuffer { address: to.as_mut_ptr(), bytes: 8, tag: 0, memory };
///     (ours, recv.irecv(&[buffer])?.expect("nothing is under way"))
/// };
/// let mut size = [0];
/// while !recv.test(theirs, &mut size)? {}
/// while !send.test(ours)? {}
/// assert_eq!((size, &to), ([5], b"ferro\0\0\0"));
/// # Ok::<(), ferroccl_proxy::NetError>(())
/// ```
#[derive(Debug)]
pub struct SocketNet {
    config: SocketConfig,
    /// Of each interface.
    layouts: Vec<Layout>,
}

impl SocketNet {
    /// A network over these interfaces.
    ///
    /// # Errors
    /// When there is no interface, or a number is beyond its limits; the error names its variable.
    pub fn new(config: SocketConfig) -> Result<SocketNet, NetError> {
        if config.interfaces.is_empty() {
            return Err(error("init", "no interface to use (NCCL_SOCKET_IFNAME)"));
        }
        let layout = |interface: &SocketInterface| {
            Layout::new(&interface.name, config.threads, config.sockets_per_thread)
        };
        let layouts = config.interfaces.iter().map(layout).collect::<Result<Vec<_>, _>>()?;
        for (device, (interface, layout)) in config.interfaces.iter().zip(&layouts).enumerate() {
            let SocketInterface { name, address, .. } = interface;
            let Layout { threads, sockets } = layout;
            info!(
                target: USING,
                "NET/Socket : Using [{device}]{name}:{address}, {threads} threads, {sockets} sockets"
            );
        }
        Ok(SocketNet { config, layouts })
    }

    fn device(
        &self,
        operation: &'static str,
        device: usize,
    ) -> Result<(&SocketInterface, Layout), NetError> {
        let interface = self.config.interfaces.get(device);
        interface.zip(self.layouts.get(device).copied()).ok_or_else(|| {
            error(operation, format!("device {device} of {}", self.config.interfaces.len()))
        })
    }
}

impl Net for SocketNet {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> usize {
        self.config.interfaces.len()
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        let (interface, _) = self.device("properties", device)?;
        let sys = Path::new("/sys/class/net").join(&interface.name);
        let path = fs::canonicalize(sys.join("device")).ok();
        // Interfaces without a cable say -1, and some say nothing.
        let speed = fs::read_to_string(sys.join("speed")).ok();
        let speed = speed.and_then(|text| text.trim().parse().ok()).filter(|&speed| speed > 0);
        Ok(Properties {
            name: interface.name.clone(),
            pci_path: path.map(|path| path.to_string_lossy().into_owned()),
            guid: 0,
            speed: speed.unwrap_or(UNKNOWN_SPEED),
            port: 0,
            max_requests: MAX_REQUESTS,
            max_receives: 1,
            cuda: false,
            dma_buf: false,
            members: Vec::new(),
        })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let (interface, layout) = self.device("listen", device)?;
        let (secret, patience) = (&self.config.secret, self.config.connect_timeout);
        let acceptor = SocketsAcceptor::new(NAME, interface, secret, layout.sockets, patience)
            .map_err(|e| {
                error("listen", format!("on {} at {}: {e}", interface.name, interface.address))
            })?;
        Ok(Box::new(SocketListener { acceptor, threads: layout.threads }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let (interface, layout) = self.device("connect", device)?;
        let handle =
            Handle::decode(handle).map_err(|e| error("connect", format!("a handle that {e}")))?;
        let sockets = handle.more as usize;
        if !(1..=MAX_SOCKETS).contains(&sockets) {
            let reason = format!("a handle that has {sockets} sockets: 1 to {MAX_SOCKETS}");
            return Err(error("connect", reason));
        }
        if sockets != layout.sockets {
            debug!("NET/Socket: takes {sockets} sockets, not {}", layout.sockets);
        }
        let to = handle.address;
        let (secret, patience) = (&self.config.secret, self.config.connect_timeout);
        let connector = SocketsConnector::new(NAME, handle, interface, secret, patience)
            .map_err(|e| error("connect", format!("to {to}: {e}")))?;
        Ok(Box::new(SocketConnecting { connector, threads: layout.threads }))
    }
}

/// A listener: sockets become connections.
struct SocketListener {
    acceptor: SocketsAcceptor,
    threads: usize,
}

impl Listener for SocketListener {
    fn handle(&self) -> &[u8] {
        self.acceptor.handle()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let sockets = self.acceptor.poll().map_err(|e| error("accept", e.to_string()))?;
        Ok(sockets.map(|sockets| {
            Box::new(SocketRecvComm::new(endpoint(sockets, self.threads, Direction::Recv))) as _
        }))
    }
}

/// A connection that is being made.
struct SocketConnecting {
    connector: SocketsConnector,
    threads: usize,
}

impl Connecting for SocketConnecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let sockets = self.connector.poll().map_err(|reason| error("connect", reason))?;
        Ok(sockets.map(|sockets| {
            Box::new(SocketSendComm::new(endpoint(sockets, self.threads, Direction::Send))) as _
        }))
    }
}

fn endpoint(
    Sockets { peer, control, more }: Sockets,
    threads: usize,
    direction: Direction,
) -> SocketEndpoint {
    SocketEndpoint::new(peer, control, more, threads, direction)
}

#[cfg(any(test, fuzzing))]
pub(crate) use self::recv::fuzz;

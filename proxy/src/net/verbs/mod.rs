//! InfiniBand and RoCE: messages by RDMA writes.
//!
//! ```text
//!  sender                                                              receiver
//!    FIFO        ◄── RDMA_WRITE: address, bytes, key, tag, sequence ──   irecv: a buffer for message n
//!    isend n     ─── RDMA_WRITE: the bytes, in place ─────────────────►  the buffer
//!                ─── RDMA_WRITE_WITH_IMM: the size ───────────────────►  test: message n has arrived
//!    TCP         ◄── only before the first message, and at the end ───►
//! ```
//!
//! A connection has 1 to 128 reliable queue pairs and a TCP connection, the control socket. On the control socket both ends
//! authenticate each other ([handshake](super::handshake)) and exchange what the queue pairs need. While data moves, nothing
//! is sent on it. When it closes, the peer is gone. Messages use the queue pairs in turn, or each message uses all of them.
//!
//! A short message is one write with immediate data, which carries the size. The bytes of a long message may be a write of
//! their own, followed by the write with immediate data: where switches route each packet by itself (InfiniBand's adaptive
//! routing), a write with immediate data would keep its own packets in order. Messages that share a request of the receiver
//! (up to 8) have one write with immediate data. The receiver announces several buffers with one write as long as the sender
//! has others left.
//!
//! **Invariant:** a queue pair executes its work requests in the order in which they were posted, and so does the remote end
//! (InfiniBand Architecture 1, 9.5). So the immediate data arrives after the bytes, and the receiver has posted a receive
//! before the sender learns of the buffer.
//!
//! An error ends the connection: a message longer than its buffer or of another tag, a completion that failed, an asynchronous
//! event of the device, a peer that is gone. Each error names device, port and queue pair, and is sent to the peer.
//!
//! ```text
//! library     libibverbs, opened at run time      fifo        which buffers messages go to
//! sys         its types and constants             control     the messages on the control socket
//! config      settings                            connecting  how connections are made
//! device      ports, speeds, addresses            endpoint    what both ends of a connection have
//! context     an open device and its events       send        the sending end
//! memory      memory registrations                recv        the receiving end
//! queue_pair  queue pairs, completion queues
//! ```
//!
//! Facts and limits are those of NCCL's `net_ib.cc`. The messages on the control socket and the FIFO entries are FerroCCL's.

mod config;
mod connecting;
mod context;
mod control;
mod device;
mod endpoint;
mod fifo;
mod library;
mod memory;
mod queue_pair;
mod recv;
mod send;
mod sys;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tracing::info;

pub use self::config::VerbsConfig;
use self::device::{LinkLayer, Port};
use self::fifo::MAX_RECEIVES;
use self::library::Library;
pub use super::handshake::Interface;
use super::handshake::{Handle, SocketsAcceptor, SocketsConnector};
use super::{Connecting, Listener, MAX_REQUESTS, Net, Properties, USING};
use crate::NetError;

const NAME: &str = "IB";

fn error(operation: &'static str, reason: impl Into<String>) -> NetError {
    NetError::new(NAME, operation, reason)
}

/// The verbs network: see the [module](self).
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use ferroccl_proxy::net::Net as _;
/// use ferroccl_proxy::net::verbs::{Interface, VerbsConfig, VerbsNet};
///
/// let interface = Interface {
///     name: "lo".to_owned(),
///     address: Ipv4Addr::LOCALHOST.into(),
///     scope_id: 0,
/// };
/// let mut config = VerbsConfig::new(interface, [7; 32]);
/// config.hca = "mlx5".parse()?;
/// match VerbsNet::new(config) {
///     Ok(net) => println!("{} ports, the first of {:?}", net.devices(), net.properties(0)?),
///     Err(error) => println!("{error}"), // as on a machine without such a card
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VerbsNet {
    config: Arc<VerbsConfig>,
    ports: Vec<Arc<Port>>,
}

impl VerbsNet {
    /// A network over the ports that the configuration allows.
    ///
    /// # Errors
    /// When there is no verbs library, or no port that is up; when a number is beyond its limits: the error names its
    /// variable.
    pub fn new(config: VerbsConfig) -> Result<VerbsNet, NetError> {
        config.check()?;
        let library = Library::open().map_err(|reason| error("init", reason))?;
        let ports = device::ports(library, &config.hca)?;
        if ports.is_empty() {
            return Err(error("init", "no port of a device is up that may be used (NCCL_IB_HCA)"));
        }
        let list = ports.iter().enumerate().map(|(device, port)| {
            let link = match port.link {
                LinkLayer::InfiniBand => "IB",
                LinkLayer::Ethernet => "RoCE",
            };
            format!(" [{device}]{}/{link}", port.name())
        });
        let oob = &config.interface;
        info!(target: USING, "NET/IB : Using{}; OOB {}:{}", list.collect::<String>(), oob.name, oob.address);
        let ports = ports.into_iter().map(Arc::new).collect();
        Ok(VerbsNet { config: Arc::new(config), ports })
    }

    fn port(&self, operation: &'static str, device: usize) -> Result<&Arc<Port>, NetError> {
        let none = || error(operation, format!("device {device} of {}", self.ports.len()));
        self.ports.get(device).ok_or_else(none)
    }
}

impl Net for VerbsNet {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> usize {
        self.ports.len()
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        let port = self.port("properties", device)?;
        Ok(Properties {
            name: port.context.name.clone(),
            pci_path: port.pci_path.clone(),
            guid: port.guid,
            speed: port.speed,
            port: port.number.into(),
            max_requests: MAX_REQUESTS,
            max_receives: MAX_RECEIVES,
            cuda: memory::peer_memory(),
            dma_buf: port.dma_buf,
            members: Vec::new(),
        })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let port = self.port("listen", device)?;
        let VerbsConfig { interface, secret, connect_timeout, .. } = &*self.config;
        let acceptor =
            SocketsAcceptor::new(NAME, interface, secret, 0, *connect_timeout).map_err(|e| {
                error("listen", format!("on {} at {}: {e}", interface.name, interface.address))
            })?;
        Ok(Box::new(connecting::VerbsListener::new(acceptor, port, &self.config)))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let port = self.port("connect", device)?;
        let handle =
            Handle::decode(handle).map_err(|e| error("connect", format!("a handle that {e}")))?;
        if handle.more != 0 {
            let reason = format!("a handle of another network: it has {} sockets", handle.more);
            return Err(error("connect", reason));
        }
        let to = handle.address;
        let VerbsConfig { interface, secret, connect_timeout, .. } = &*self.config;
        let connector = SocketsConnector::new(NAME, handle, interface, secret, *connect_timeout)
            .map_err(|e| error("connect", format!("to {to}: {e}")))?;
        Ok(Box::new(connecting::VerbsConnecting::new(connector, port, &self.config)))
    }
}

/// What fuzzing gives the ends of a connection.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    pub(crate) use super::control::fuzz::control;
    pub(crate) use super::fifo::fuzz::fifo;
}

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
//! A device is a port, or several that are used as one. Then each message goes over a queue pair of each port, memory is registered
//! with all of them, and a flush reads by each. Of two ends with different numbers of ports, several pairs may be of one port.
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

use std::sync::{Arc, Mutex};

use tracing::info;

pub use self::config::VerbsConfig;
use self::device::{LinkLayer, MAX_PORTS, Port, VerbsDevice};
use self::fifo::MAX_RECEIVES;
use self::library::Library;
pub use super::handshake::Interface;
use super::handshake::{Handle, SocketsAcceptor, SocketsConnector};
use super::{Connecting, Listener, MAX_REQUESTS, Net, Properties, USING, check_members};
use crate::NetError;
use crate::sync::lock;

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
    /// The ports, and behind them those that are made of several.
    devices: Mutex<Vec<Arc<VerbsDevice>>>,
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
        let ports: Vec<Arc<Port>> = ports.into_iter().map(Arc::new).collect();
        let alone =
            |port: &Arc<Port>| VerbsDevice { ports: vec![Arc::clone(port)], members: vec![] };
        let devices = ports.iter().map(alone).map(Arc::new).collect();
        Ok(VerbsNet { config: Arc::new(config), ports, devices: Mutex::new(devices) })
    }

    fn device(&self, operation: &'static str, device: usize) -> Result<Arc<VerbsDevice>, NetError> {
        let devices = lock(&self.devices);
        let none = || error(operation, format!("device {device} of {}", devices.len()));
        devices.get(device).cloned().ok_or_else(none)
    }
}

impl Net for VerbsNet {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> usize {
        lock(&self.devices).len()
    }

    fn max_devices_per_nic(&self) -> usize {
        if self.config.merge_nics { MAX_PORTS } else { 1 }
    }

    fn make_virtual_device(&self, members: &[usize]) -> Result<usize, NetError> {
        let error = |reason| error("make_virtual_device", reason);
        if !self.config.merge_nics {
            return Err(error("NCCL_IB_MERGE_NICS is 0".to_owned()));
        }
        check_members(members, self.ports.len(), MAX_PORTS).map_err(error)?;
        let ports: Vec<Arc<Port>> =
            members.iter().map(|member| Arc::clone(&self.ports[*member])).collect();
        let first = &ports[0];
        if let Some(other) = ports.iter().find(|port| port.link != first.link) {
            let (a, b) = (first.name(), other.name());
            let (link, other) = (first.link, other.link);
            let reason = format!("{a} is of {link:?}, {b} of {other:?} (NCCL_IB_HCA chooses)");
            return Err(error(reason));
        }
        let mut devices = lock(&self.devices);
        let known = devices.iter().position(|device| device.members == members);
        let device = known.unwrap_or(devices.len());
        if known.is_none() {
            devices.push(Arc::new(VerbsDevice { ports, members: members.to_vec() }));
        }
        Ok(device)
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        let device = self.device("properties", device)?;
        let port = &device.ports[0];
        let names: Vec<&str> = device.ports.iter().map(|port| port.context.name.as_str()).collect();
        Ok(Properties {
            name: names.join("+"),
            pci_path: port.pci_path.clone(),
            guid: port.guid,
            speed: device.ports.iter().map(|port| port.speed).sum(),
            port: port.number.into(),
            max_requests: MAX_REQUESTS,
            max_receives: MAX_RECEIVES,
            cuda: memory::peer_memory(),
            dma_buf: device.ports.iter().all(|port| port.dma_buf),
            members: device.members.clone(),
        })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let device = self.device("listen", device)?;
        let VerbsConfig { interface, secret, connect_timeout, .. } = &*self.config;
        let acceptor =
            SocketsAcceptor::new(NAME, interface, secret, 0, *connect_timeout).map_err(|e| {
                error("listen", format!("on {} at {}: {e}", interface.name, interface.address))
            })?;
        Ok(Box::new(connecting::VerbsListener::new(acceptor, &device, &self.config)))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let device = self.device("connect", device)?;
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
        Ok(Box::new(connecting::VerbsConnecting::new(connector, &device, &self.config)))
    }
}

/// What fuzzing gives the ends of a connection.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    pub(crate) use super::control::fuzz::control;
    pub(crate) use super::fifo::fuzz::fifo;
}

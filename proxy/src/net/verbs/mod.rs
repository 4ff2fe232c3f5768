//! InfiniBand and RoCE: messages by RDMA writes.
//!
//! ```text
//!  sender                                                              receiver
//!    FIFO        ◄── RDMA_WRITE: address, bytes, key, tag, sequence ──   irecv: a buffer for message n
//!    isend n     ─── RDMA_WRITE: the bytes, in place ─────────────────►  the buffer
//!                ─── RDMA_WRITE_WITH_IMM: the size ───────────────────►  test: it is here
//!    TCP         ◄── only before the first message, and at the end ───►
//! ```
//!
//! A connection is 1 to 128 reliable queue pairs and a TCP connection. On the latter both ends come to trust each other
//! ([handshake](super::handshake)) and say what the queue pairs need; while data moves, nothing is said there, and that it
//! is still there says that the other end is. Messages go over the queue pairs in turn, or each over all of them.
//!
//! A message is one write that carries the size. Of long ones, where switches may take packets by several ways (InfiniBand's
//! adaptive routing), the bytes are a write of their own, and the notification comes behind. Messages that share a request
//! of the receiver (up to 8) have one notification. The receiver tells of several buffers by one write, as long as the
//! sender has others left.
//!
//! **Invariant:** of a queue pair, what is posted first is done first, at the other end too (InfiniBand Architecture 1,
//! 9.5). So a notification says that the bytes are there, and a receive is there before the buffer is known that it is for.
//!
//! What is wrong ends the connection: a message longer than its buffer or of another tag, a completion that failed, an event
//! of the device, a peer that is gone. Each error names device, port and queue pair; the other end is told it.
//!
//! ```text
//! library  libibverbs, found at run time    fifo        which buffers messages go to
//! config   what can be set                  control     what is said over TCP
//! device   ports, speeds, addresses         connecting  connections that are being made
//! context  an open device, and its events   line        what both ends of a connection have
//! memory   what is registered               send        the sending end
//! pair     queue pairs, completions         recv        the receiving end
//! ```
//!
//! Facts and limits are those of NCCL's `net_ib.cc`; what is said over TCP and the entries of the FIFO are our own.

mod config;
mod connecting;
mod context;
mod control;
mod device;
mod fifo;
mod library;
mod line;
mod memory;
mod pair;
mod recv;
mod send;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tracing::info;

pub use self::config::VerbsConfig;
use self::device::{Link, Port};
use self::fifo::MAX_RECEIVES;
use self::library::Library;
pub use super::handshake::Interface;
use super::handshake::{Call, Door, Handle};
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
                Link::InfiniBand => "IB",
                Link::Ethernet => "RoCE",
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
        })
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let port = self.port("listen", device)?;
        let VerbsConfig { interface, secret, connect_timeout, .. } = &*self.config;
        let door = Door::new(NAME, interface, secret, 0, *connect_timeout).map_err(|e| {
            error("listen", format!("on {} at {}: {e}", interface.name, interface.address))
        })?;
        Ok(Box::new(connecting::Listener::new(door, port, &self.config)))
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
        let call = Call::new(NAME, handle, interface, secret, *connect_timeout)
            .map_err(|e| error("connect", format!("to {to}: {e}")))?;
        Ok(Box::new(connecting::Connecting::new(call, port, &self.config)))
    }
}

//! Connections that are being made, from either side.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tracing::{debug, warn};

use super::config::{MAX_QPS, VerbsConfig};
use super::control::{ConnectionInfo, ControlMessage, ControlSocket};
use super::device::VerbsDevice;
use super::endpoint::UnconnectedEndpoint;
use super::fifo::{FIFO, SIZES};
use super::memory::RegisteredWords;
use super::recv::VerbsRecvComm;
use super::send::VerbsSendComm;
use super::{NAME, error};
use crate::NetError;
use crate::net::handshake::{SocketsAcceptor, SocketsConnector};
use crate::net::{self, RecvComm, SendComm};

/// The connecting side: the sender's.
pub(super) struct VerbsConnecting {
    device: Arc<VerbsDevice>,
    config: Arc<VerbsConfig>,
    state: State,
    since: Instant,
}

enum State {
    Authenticating(SocketsConnector),
    /// Our [`ConnectionInfo`] is sent, or on its way.
    Exchanging(Box<ConnectingEndpoint>),
    Done,
}

struct ConnectingEndpoint {
    endpoint: UnconnectedEndpoint,
    fifo: RegisteredWords,
    sizes: RegisteredWords,
    control: ControlSocket,
    peer: SocketAddr,
    /// The peer's, once it has come. We then send [`ControlMessage::Ready`].
    theirs: Option<ConnectionInfo>,
}

impl VerbsConnecting {
    pub(super) fn new(
        connector: SocketsConnector,
        device: &Arc<VerbsDevice>,
        config: &Arc<VerbsConfig>,
    ) -> VerbsConnecting {
        let (device, config) = (Arc::clone(device), Arc::clone(config));
        VerbsConnecting {
            device,
            config,
            state: State::Authenticating(connector),
            since: Instant::now(),
        }
    }

    /// The sending end, once it is connected.
    pub(super) fn step(&mut self) -> Result<Option<VerbsSendComm>, String> {
        if let State::Authenticating(connector) = &mut self.state {
            let Some(sockets) = connector.poll()? else { return Ok(None) };
            let peer = sockets.peer;
            let outgoing = self.introduce(ControlSocket::new(sockets.control), peer);
            self.state =
                State::Exchanging(Box::new(outgoing.map_err(|e| format!("to {peer}: {e}"))?));
        }
        let State::Exchanging(outgoing) = &mut self.state else { return Ok(None) };
        let peer = outgoing.peer;
        if !outgoing.step().map_err(|e| format!("to {peer}: {e}"))? {
            if self.since.elapsed() < self.config.connect_timeout {
                return Ok(None);
            }
            let timeout = self.config.connect_timeout;
            return Err(format!("to {peer}: it does not say how to connect, for {timeout:?}"));
        }
        let State::Exchanging(outgoing) = std::mem::replace(&mut self.state, State::Done) else {
            return Ok(None);
        };
        let ConnectingEndpoint { endpoint, fifo, sizes, control, peer, theirs } = *outgoing;
        let Some(theirs) = theirs else { return Ok(None) };
        Ok(Some(VerbsSendComm::new(endpoint.into_endpoint(control, peer, &theirs), fifo, sizes)))
    }

    fn introduce(
        &self,
        mut control: ControlSocket,
        peer: SocketAddr,
    ) -> Result<ConnectingEndpoint, String> {
        let ports = &self.device.ports;
        let most = MAX_QPS / ports.len();
        let pairs = self.config.qps_per_connection.min(most) * ports.len();
        let endpoint = UnconnectedEndpoint::new(&self.device, &self.config, (pairs, 0), 0)?;
        let words = |count| RegisteredWords::new(ports, count).map_err(|e| e.reason);
        let (fifo, sizes) = (words(FIFO)?, words(SIZES)?);
        let place = (fifo.address(0), fifo.rkeys());
        let info = endpoint.connection_info(self.config.split_data_on_qps, place);
        control.queue(&ControlMessage::Connect(info));
        Ok(ConnectingEndpoint { endpoint, fifo, sizes, control, peer, theirs: None })
    }
}

impl ConnectingEndpoint {
    /// Whether it is connected, and the peer has been told.
    fn step(&mut self) -> Result<bool, String> {
        let flushed = self.control.flush()?;
        if self.theirs.is_none() {
            let theirs = match self.control.receive()? {
                None => return Ok(false),
                Some(ControlMessage::Connect(theirs)) => theirs,
                Some(ControlMessage::Close { reason, .. }) => {
                    return Err(format!("it refuses: {reason}"));
                }
                Some(ControlMessage::Ready) => {
                    return Err("it does not say how to connect".to_owned());
                }
            };
            if let Err(reason) = self.endpoint.connect(&theirs) {
                self.control.end(0, &reason);
                return Err(reason);
            }
            self.control.queue(&ControlMessage::Ready);
            self.theirs = Some(theirs);
            return self.control.flush();
        }
        Ok(flushed)
    }
}

impl net::Connecting for VerbsConnecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        match self.step() {
            Ok(sender) => Ok(sender.map(|sender| Box::new(sender) as _)),
            Err(reason) => {
                self.state = State::Done;
                Err(error("connect", format!("{}: {reason}", self.device.name())))
            }
        }
    }
}

/// The listening side: receivers'.
pub(super) struct VerbsListener {
    acceptor: SocketsAcceptor,
    device: Arc<VerbsDevice>,
    config: Arc<VerbsConfig>,
    /// Connections that have been prepared.
    prepared: AtomicUsize,
    /// Who is trusted, and not connected yet.
    arriving: Vec<AcceptingEndpoint>,
}

struct AcceptingEndpoint {
    control: ControlSocket,
    peer: SocketAddr,
    since: Instant,
    /// Once the peer's [`ConnectionInfo`] has come.
    prepared: Option<PreparedRecv>,
}

/// What is made for a peer whose [`ConnectionInfo`] has come.
struct PreparedRecv {
    endpoint: UnconnectedEndpoint,
    entries: RegisteredWords,
    sizes: RegisteredWords,
    theirs: ConnectionInfo,
}

impl VerbsListener {
    pub(super) fn new(
        acceptor: SocketsAcceptor,
        device: &Arc<VerbsDevice>,
        config: &Arc<VerbsConfig>,
    ) -> VerbsListener {
        let (device, config) = (Arc::clone(device), Arc::clone(config));
        let prepared = AtomicUsize::new(0);
        VerbsListener { acceptor, device, config, prepared, arriving: Vec::new() }
    }

    /// Makes what the answer to a [`ConnectionInfo`] describes.
    fn prepare(&self, theirs: ConnectionInfo) -> Result<PreparedRecv, String> {
        let (ports, pairs) = (&self.device.ports, theirs.pairs.len());
        // Orders nothing. Where the sender has fewer pairs than we have ports, connections begin at different ports.
        let number = self.prepared.fetch_add(1, Ordering::Relaxed);
        let first = if pairs < ports.len() { number } else { 0 };
        // Room for completions of the pair that flushes.
        let mut endpoint = UnconnectedEndpoint::new(&self.device, &self.config, (pairs, first), 1)?;
        endpoint.connect(&theirs)?;
        let words = |count| RegisteredWords::new(ports, count).map_err(|e| e.reason);
        Ok(PreparedRecv { endpoint, entries: words(FIFO)?, sizes: words(SIZES)?, theirs })
    }

    /// A receiving end that is connected, if there is one.
    pub(super) fn ready(&mut self) -> Result<Option<VerbsRecvComm>, NetError> {
        while let Some(sockets) =
            self.acceptor.poll().map_err(|e| error("accept", e.to_string()))?
        {
            let (control, peer) = (ControlSocket::new(sockets.control), sockets.peer);
            self.arriving.push(AcceptingEndpoint {
                control,
                peer,
                since: Instant::now(),
                prepared: None,
            });
        }
        let (mut ready, mut waiting) = (None, Vec::new());
        for mut one in std::mem::take(&mut self.arriving) {
            if ready.is_some() {
                waiting.push(one);
                continue;
            }
            let (peer, timeout) = (one.peer, self.config.connect_timeout);
            match self.step(&mut one) {
                Ok(true) => ready = Some(one),
                Ok(false) if one.since.elapsed() < timeout => waiting.push(one),
                Ok(false) => warn!("NET/{NAME}: gave up {peer}: it is silent for {timeout:?}"),
                Err(reason) => {
                    warn!("NET/{NAME}: refused {peer}: {}: {reason}", self.device.name());
                    one.control.end(0, &reason);
                }
            }
        }
        self.arriving = waiting;
        let Some(AcceptingEndpoint { control, peer, prepared: Some(prepared), .. }) = ready else {
            return Ok(None);
        };
        let PreparedRecv { endpoint, entries, sizes, theirs } = prepared;
        debug!("NET/{NAME}: {} receives from {peer}", self.device.name());
        let endpoint = endpoint.into_endpoint(control, peer, &theirs);
        Ok(Some(VerbsRecvComm::new(endpoint, theirs.split, entries, sizes)))
    }

    /// Whether one is ready.
    fn step(&self, one: &mut AcceptingEndpoint) -> Result<bool, String> {
        one.control.flush()?;
        match (one.control.receive()?, &one.prepared) {
            (None, _) => Ok(false),
            (Some(ControlMessage::Connect(theirs)), None) => {
                let prepared = self.prepare(theirs)?;
                let place = (prepared.sizes.address(0), prepared.sizes.rkeys());
                let info = prepared.endpoint.connection_info(prepared.theirs.split, place);
                one.control.queue(&ControlMessage::Connect(info));
                one.prepared = Some(prepared);
                one.control.flush()?;
                Ok(false)
            }
            (Some(ControlMessage::Ready), Some(_)) => Ok(true),
            (Some(ControlMessage::Close { reason, .. }), _) => Err(format!("it refuses: {reason}")),
            (Some(said), _) => Err(format!("it says {said:?} out of turn")),
        }
    }
}

impl net::Listener for VerbsListener {
    fn handle(&self) -> &[u8] {
        self.acceptor.handle()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        Ok(self.ready()?.map(|receiver| Box::new(receiver) as _))
    }
}

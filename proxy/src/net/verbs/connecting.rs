//! Connections that are being made, from either side.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tracing::{debug, warn};

use super::config::VerbsConfig;
use super::control::{Control, Introduction, Said};
use super::device::Port;
use super::fifo::{FIFO, SIZES};
use super::line::Half;
use super::memory::Words;
use super::recv::Receiver;
use super::send::Sender;
use super::{NAME, error};
use crate::NetError;
use crate::net::handshake::{Call, Door};
use crate::net::{self, RecvComm, SendComm};

/// The connecting side: the sender's.
pub(super) struct Connecting {
    port: Arc<Port>,
    config: Arc<VerbsConfig>,
    state: State,
    since: Instant,
}

enum State {
    Calling(Call),
    /// We have introduced ourselves.
    Introduced(Box<Outgoing>),
    Done,
}

struct Outgoing {
    half: Half,
    fifo: Words,
    sizes: Words,
    control: Control,
    peer: SocketAddr,
    /// The other end, once it has introduced itself; then we are ready, and say so.
    theirs: Option<Introduction>,
}

impl Connecting {
    pub(super) fn new(call: Call, port: &Arc<Port>, config: &Arc<VerbsConfig>) -> Connecting {
        let (port, config) = (Arc::clone(port), Arc::clone(config));
        Connecting { port, config, state: State::Calling(call), since: Instant::now() }
    }

    /// The sending end, once it is connected.
    pub(super) fn step(&mut self) -> Result<Option<Sender>, String> {
        if let State::Calling(call) = &mut self.state {
            let Some(sockets) = call.poll()? else { return Ok(None) };
            let peer = sockets.peer;
            let outgoing = self.introduce(Control::new(sockets.control), peer);
            self.state =
                State::Introduced(Box::new(outgoing.map_err(|e| format!("to {peer}: {e}"))?));
        }
        let State::Introduced(outgoing) = &mut self.state else { return Ok(None) };
        let peer = outgoing.peer;
        if !outgoing.step().map_err(|e| format!("to {peer}: {e}"))? {
            if self.since.elapsed() < self.config.connect_timeout {
                return Ok(None);
            }
            let patience = self.config.connect_timeout;
            return Err(format!("to {peer}: it does not introduce itself, for {patience:?}"));
        }
        let State::Introduced(outgoing) = std::mem::replace(&mut self.state, State::Done) else {
            return Ok(None);
        };
        let Outgoing { half, fifo, sizes, control, peer, theirs } = *outgoing;
        let Some(theirs) = theirs else { return Ok(None) };
        Ok(Some(Sender::new(half.line(control, peer, &theirs), fifo, sizes)))
    }

    fn introduce(&self, mut control: Control, peer: SocketAddr) -> Result<Outgoing, String> {
        let half = Half::new(&self.port, &self.config, self.config.qps_per_connection, 0)?;
        let words = |count| Words::new(&self.port.context, count).map_err(|e| e.reason);
        let (fifo, sizes) = (words(FIFO)?, words(SIZES)?);
        let place = (fifo.address(0), fifo.rkey());
        let introduction = half.introduction(self.config.split_data_on_qps, place);
        control.say(&Said::Introduction(introduction));
        Ok(Outgoing { half, fifo, sizes, control, peer, theirs: None })
    }
}

impl Outgoing {
    /// Whether it is connected, and the other end knows.
    fn step(&mut self) -> Result<bool, String> {
        let flushed = self.control.flush()?;
        if self.theirs.is_none() {
            let theirs = match self.control.hear()? {
                None => return Ok(false),
                Some(Said::Introduction(theirs)) => theirs,
                Some(Said::Farewell { reason, .. }) => return Err(format!("it refuses: {reason}")),
                Some(Said::Ready) => return Err("it does not introduce itself".to_owned()),
            };
            if let Err(reason) = self.half.connect(&theirs) {
                self.control.end(0, &reason);
                return Err(reason);
            }
            self.control.say(&Said::Ready);
            self.theirs = Some(theirs);
            return self.control.flush();
        }
        Ok(flushed)
    }
}

impl net::Connecting for Connecting {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        match self.step() {
            Ok(sender) => Ok(sender.map(|sender| Box::new(sender) as _)),
            Err(reason) => {
                self.state = State::Done;
                Err(error("connect", format!("{}: {reason}", self.port.name())))
            }
        }
    }
}

/// The listening side: receivers'.
pub(super) struct Listener {
    door: Door,
    port: Arc<Port>,
    config: Arc<VerbsConfig>,
    /// Who is trusted, and not connected yet.
    arriving: Vec<Incoming>,
}

struct Incoming {
    control: Control,
    peer: SocketAddr,
    since: Instant,
    /// Once the other end has introduced itself.
    met: Option<Met>,
}

/// What we have made for one that has introduced itself.
struct Met {
    half: Half,
    entries: Words,
    sizes: Words,
    theirs: Introduction,
}

impl Listener {
    pub(super) fn new(door: Door, port: &Arc<Port>, config: &Arc<VerbsConfig>) -> Listener {
        let (port, config) = (Arc::clone(port), Arc::clone(config));
        Listener { door, port, config, arriving: Vec::new() }
    }

    /// What an introduction is answered with.
    fn meet(&self, theirs: Introduction) -> Result<Met, String> {
        // Room for completions of the pair that flushes.
        let half = Half::new(&self.port, &self.config, theirs.pairs.len(), 1)?;
        half.connect(&theirs)?;
        let words = |count| Words::new(&self.port.context, count).map_err(|e| e.reason);
        Ok(Met { half, entries: words(FIFO)?, sizes: words(SIZES)?, theirs })
    }

    /// A receiving end that is connected, if there is one.
    pub(super) fn ready(&mut self) -> Result<Option<Receiver>, NetError> {
        while let Some(sockets) = self.door.answer().map_err(|e| error("accept", e.to_string()))? {
            let (control, peer) = (Control::new(sockets.control), sockets.peer);
            self.arriving.push(Incoming { control, peer, since: Instant::now(), met: None });
        }
        let (mut ready, mut waiting) = (None, Vec::new());
        for mut one in std::mem::take(&mut self.arriving) {
            if ready.is_some() {
                waiting.push(one);
                continue;
            }
            let (peer, patience) = (one.peer, self.config.connect_timeout);
            match self.step(&mut one) {
                Ok(true) => ready = Some(one),
                Ok(false) if one.since.elapsed() < patience => waiting.push(one),
                Ok(false) => warn!("NET/{NAME}: gave up {peer}: it is silent for {patience:?}"),
                Err(reason) => {
                    warn!("NET/{NAME}: refused {peer}: {}: {reason}", self.port.name());
                    one.control.end(0, &reason);
                }
            }
        }
        self.arriving = waiting;
        let Some(Incoming { control, peer, met: Some(met), .. }) = ready else { return Ok(None) };
        let Met { half, entries, sizes, theirs } = met;
        debug!("NET/{NAME}: {} receives from {peer}", self.port.name());
        let line = half.line(control, peer, &theirs);
        Ok(Some(Receiver::new(line, theirs.split, entries, sizes)))
    }

    /// Whether one is ready.
    fn step(&self, one: &mut Incoming) -> Result<bool, String> {
        one.control.flush()?;
        match (one.control.hear()?, &one.met) {
            (None, _) => Ok(false),
            (Some(Said::Introduction(theirs)), None) => {
                let met = self.meet(theirs)?;
                let place = (met.sizes.address(0), met.sizes.rkey());
                let introduction = met.half.introduction(met.theirs.split, place);
                one.control.say(&Said::Introduction(introduction));
                one.met = Some(met);
                one.control.flush()?;
                Ok(false)
            }
            (Some(Said::Ready), Some(_)) => Ok(true),
            (Some(Said::Farewell { reason, .. }), _) => Err(format!("it refuses: {reason}")),
            (Some(said), _) => Err(format!("it says {said:?} out of turn")),
        }
    }
}

impl net::Listener for Listener {
    fn handle(&self) -> &[u8] {
        self.door.handle()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        Ok(self.ready()?.map(|receiver| Box::new(receiver) as _))
    }
}

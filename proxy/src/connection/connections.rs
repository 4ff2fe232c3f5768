//! All connections of a rank with those of other hosts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::{ConnMemory, HELLO_BYTES, Hello, Receiving, Sending, StepObserver, Steps};
use crate::net::{
    Connecting, Listener, MemoryHandle, MemoryKind, Net, RecvBuffer, RecvComm, Request, SendComm,
};
use crate::{NetError, Progress};

/// A connection in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    /// The rank at the other end.
    pub peer: u32,
    /// Which of the connections with that rank; both ends number them alike.
    pub index: u32,
}

/// A connection that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionFailure {
    /// Which.
    pub key: ConnectionId,
    /// Whether we were to send.
    pub sending: bool,
    /// The call it was about, as far as that is known.
    pub seq: u64,
    /// What happened.
    pub error: NetError,
}

/// Finds the memory of a connection, by its id and whether we send; `None` when there is no such connection.
pub type FindConnMemory = Box<dyn Fn(ConnectionId, bool) -> Option<ConnMemory> + Send>;

/// Finds the way to the other end of a connection: the device by which we send, and the handle of the listener there; `None` for
/// a rank that is reached otherwise.
pub type FindRoute = Box<dyn Fn(ConnectionId) -> Option<(usize, Vec<u8>)> + Send>;

/// The connections of a rank over a network, each made when it is first needed.
pub struct Connections {
    net: Arc<dyn Net>,
    hello: Hello,
    first: u64,
    /// Of each device that peers connect with.
    listeners: Vec<Box<dyn Listener>>,
    route: FindRoute,
    sending: BTreeMap<ConnectionId, SendState>,
    receiving: BTreeMap<ConnectionId, RecvState>,
    /// The connections with something to do, each with whether we send.
    active: Vec<(ConnectionId, bool)>,
    /// Accepted connections whose hello has not come yet.
    unidentified: Vec<HelloRecv>,
    /// The ranks that have left, and when this rank was told so.
    left: BTreeMap<u32, Instant>,
    /// Where the next round begins: each connection is the first in turn.
    turn: usize,
    observer: Option<Box<dyn StepObserver>>,
    /// Dropped last: it may own the memory that the connections have registered.
    memory: FindConnMemory,
}

/// Accepted connections whose hello has not come, at most; further ones are accepted when some have sent it.
const MAX_UNIDENTIFIED: usize = 256;

/// How long a connection of a rank that has left is still awaited. The rank may have made it, sent all of its data and left
/// before this rank accepts it, and the word that it leaves comes by another way than the connection.
const LEFT_GRACE: Duration = Duration::from_millis(500);

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("net", &self.net)
            .field("listeners", &self.listeners.len())
            .field("sending", &self.sending.len())
            .field("receiving", &self.receiving.len())
            .field("active", &self.active.len())
            .finish_non_exhaustive()
    }
}

/// A connection to send on.
enum SendState {
    Connecting(Box<dyn Connecting>, Vec<Steps>),
    HelloSend(HelloSend, Vec<Steps>),
    Open(Box<Sending>),
    /// It has failed.
    Broken,
}

/// A connection to receive on.
enum RecvState {
    /// The sender has not connected yet.
    Awaited(Vec<Steps>),
    Open(Box<Receiving>),
}

/// A connection on which our hello is being sent.
pub(crate) struct HelloSend {
    comm: Box<dyn SendComm>,
    hello: Box<[u8; HELLO_BYTES]>,
    memory: MemoryHandle,
    request: Option<Request>,
}

/// An accepted connection whose hello is awaited.
pub(crate) struct HelloRecv {
    comm: Box<dyn RecvComm>,
    hello: Box<[u8; HELLO_BYTES]>,
    memory: MemoryHandle,
    request: Option<Request>,
}

impl Connections {
    /// The connections of `rank` in the communicator `group`, over the devices of a network. `first` is the step at which all
    /// connections begin. Peers connect with the `listeners`, whichever they choose; `route` finds the way to a peer, `memory`
    /// the memory of a connection.
    ///
    /// # Safety
    /// The memory that `memory` names is as [`Sending::new`] and [`Receiving::new`] need it, for as long as the value lives.
    #[must_use]
    pub unsafe fn new(
        net: Arc<dyn Net>,
        (group, rank): (u64, u32),
        first: u64,
        listeners: Vec<Box<dyn Listener>>,
        route: FindRoute,
        memory: FindConnMemory,
    ) -> Self {
        Connections {
            net,
            hello: Hello { group, from: rank, to: 0, index: 0 },
            first,
            listeners,
            route,
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            active: Vec::new(),
            unidentified: Vec::new(),
            left: BTreeMap::new(),
            turn: 0,
            observer: None,
            memory,
        }
    }

    /// Has `observer` told of the steps of connections that are made from now on.
    pub fn observe(&mut self, observer: Box<dyn StepObserver>) {
        self.observer = Some(observer);
    }

    /// Tells the observer of what has happened to steps.
    fn tell(&mut self, key: ConnectionId, sending: bool) {
        let Some(observer) = &mut self.observer else { return };
        let events = match (sending, self.sending.get_mut(&key), self.receiving.get_mut(&key)) {
            (true, Some(SendState::Open(end)), _) => end.take_events(),
            (false, _, Some(RecvState::Open(end))) => end.take_events(),
            _ => return,
        };
        if !events.is_empty() {
            observer.on_steps(key, sending, &events);
        }
    }

    /// The next call has these steps to send.
    ///
    /// # Errors
    /// When there is no way to the peer.
    pub fn send(&mut self, key: ConnectionId, steps: Steps) -> Result<(), ConnectionFailure> {
        let failed = |error| ConnectionFailure { key, sending: true, seq: steps.seq, error };
        if !self.sending.contains_key(&key) {
            let none = || NetError::new(self.net.name(), "connect", "the rank does not listen");
            let (device, handle) =
                (self.route)(key).ok_or_else(|| failed(none().with_peer(key.peer)))?;
            let connecting = self.net.connect(device, &handle);
            let connecting = connecting.map_err(|e| failed(e.with_peer(key.peer)))?;
            self.sending.insert(key, SendState::Connecting(connecting, Vec::new()));
        }
        match self.sending.get_mut(&key) {
            Some(SendState::Connecting(_, queue) | SendState::HelloSend(_, queue)) => {
                queue.push(steps);
            }
            Some(SendState::Open(sending)) => sending.push(steps),
            Some(SendState::Broken) | None => {
                let error = NetError::new(self.net.name(), "isend", "the connection is broken");
                return Err(failed(error.with_peer(key.peer)));
            }
        }
        self.activate(key, true);
        Ok(())
    }

    /// The next call has these steps to receive.
    pub fn recv(&mut self, key: ConnectionId, steps: Steps) {
        match self.receiving.entry(key).or_insert_with(|| RecvState::Awaited(Vec::new())) {
            RecvState::Awaited(queue) => queue.push(steps),
            RecvState::Open(receiving) => receiving.push(steps),
        }
        self.activate(key, false);
    }

    fn activate(&mut self, key: ConnectionId, sending: bool) {
        if !self.active.contains(&(key, sending)) {
            self.active.push((key, sending));
        }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// A rank has left. What it has sent still arrives, over connections that this rank has yet to accept, too. It makes no
    /// more connections: [`progress`](Self::progress) fails when one is still awaited half a second later.
    pub fn on_peer_left(&mut self, rank: u32) {
        self.left.entry(rank).or_insert_with(Instant::now);
    }

    /// The first awaited connection of a rank that left too long ago.
    fn never_made(&self) -> Result<(), ConnectionFailure> {
        for (&key, incoming) in &self.receiving {
            if let RecvState::Awaited(queue) = incoming
                && let Some(first) = queue.first()
                && self.left.get(&key.peer).is_some_and(|since| since.elapsed() > LEFT_GRACE)
            {
                let error = NetError::new(self.net.name(), "accept", "it has left the group");
                let error = error.with_peer(key.peer);
                return Err(ConnectionFailure { key, sending: false, seq: first.seq, error });
            }
        }
        Ok(())
    }

    /// Makes progress on all connections, in turn, without waiting.
    ///
    /// # Errors
    /// The first connection that has failed, or that a rank which has left never made. The others can go on.
    pub fn progress(&mut self) -> Result<Progress, ConnectionFailure> {
        let mut moved = self.accept()?;
        let count = self.active.len();
        let mut done = Vec::new();
        for i in 0..count {
            let at = (self.turn + i) % count;
            let (key, sending) = self.active[at];
            let progress = if sending { self.advance(key) } else { self.take(key) };
            self.tell(key, sending);
            match progress {
                Ok(Progress::Done) => done.push((key, sending)),
                Ok(progress) => moved |= progress == Progress::Moved,
                Err((seq, error)) => {
                    self.active.remove(at);
                    let error = error.with_peer(key.peer);
                    return Err(ConnectionFailure { key, sending, seq, error });
                }
            }
        }
        self.turn = self.turn.wrapping_add(1);
        if !done.is_empty() {
            self.active.retain(|entry| !done.contains(entry));
            moved = true;
        }
        match (self.active.is_empty(), moved) {
            (true, _) => return Ok(Progress::Done),
            (_, true) => return Ok(Progress::Moved),
            _ if self.left.is_empty() => {}
            _ => self.never_made()?,
        }
        Ok(Progress::Idle)
    }

    /// Makes progress on a connection that sends. An error comes with the number of its call.
    fn advance(&mut self, key: ConnectionId) -> Result<Progress, (u64, NetError)> {
        let Some(outgoing) = self.sending.get_mut(&key) else { return Ok(Progress::Done) };
        let seq = |queue: &[Steps]| queue.first().map_or(0, |steps| steps.seq);
        match std::mem::replace(outgoing, SendState::Broken) {
            SendState::Connecting(mut connecting, queue) => {
                match connecting.poll().map_err(|e| (seq(&queue), e))? {
                    None => {
                        *outgoing = SendState::Connecting(connecting, queue);
                        Ok(Progress::Idle)
                    }
                    Some(comm) => {
                        let hello = Hello { to: key.peer, index: key.index, ..self.hello };
                        let hello_send = HelloSend::new(comm, hello);
                        let hello_send = hello_send.map_err(|e| (seq(&queue), e))?;
                        *outgoing = SendState::HelloSend(hello_send, queue);
                        Ok(Progress::Moved)
                    }
                }
            }
            SendState::HelloSend(mut hello_send, queue) => {
                if !hello_send.progress().map_err(|e| (seq(&queue), e))? {
                    *outgoing = SendState::HelloSend(hello_send, queue);
                    return Ok(Progress::Idle);
                }
                let no = || NetError::new("proxy", "connect", "there is no such connection");
                let memory = (self.memory)(key, true).ok_or_else(|| (seq(&queue), no()))?;
                let comm = hello_send.open().map_err(|e| (seq(&queue), e))?;
                // SAFETY: `new`'s contract.
                let sending = unsafe { Sending::new(memory, comm, self.first) };
                let mut sending = sending.map_err(|e| (seq(&queue), e))?;
                if self.observer.is_some() {
                    sending.record();
                }
                queue.into_iter().for_each(|steps| sending.push(steps));
                debug!(peer = key.peer, index = key.index, "connected to send");
                *outgoing = SendState::Open(Box::new(sending));
                Ok(Progress::Moved)
            }
            SendState::Open(mut sending) => {
                let progress =
                    sending.progress().map_err(|e| (sending.seq().unwrap_or_default(), e))?;
                *outgoing = SendState::Open(sending);
                Ok(progress)
            }
            SendState::Broken => Ok(Progress::Done),
        }
    }

    /// Makes progress on a connection that receives. An error comes with the number of its call.
    fn take(&mut self, key: ConnectionId) -> Result<Progress, (u64, NetError)> {
        match self.receiving.get_mut(&key) {
            None => Ok(Progress::Done),
            Some(RecvState::Awaited(_)) => Ok(Progress::Idle),
            Some(RecvState::Open(receiving)) => {
                receiving.progress().map_err(|e| (receiving.seq().unwrap_or_default(), e))
            }
        }
    }

    /// While a connection is awaited: accepts connections and reads their hellos.
    fn accept(&mut self) -> Result<bool, ConnectionFailure> {
        let awaited =
            self.receiving.iter().find(|(_, incoming)| matches!(incoming, RecvState::Awaited(_)));
        let Some((&key, _)) = awaited else { return Ok(false) };
        let mut moved = false;
        for listener in &mut self.listeners {
            while self.unidentified.len() < MAX_UNIDENTIFIED {
                let failed = |error| ConnectionFailure { key, sending: false, seq: 0, error };
                match listener.accept().map_err(failed)? {
                    None => break,
                    Some(comm) => match HelloRecv::new(comm) {
                        Ok(unidentified) => self.unidentified.push(unidentified),
                        Err(error) => warn!("{error}"),
                    },
                }
                moved = true;
            }
        }
        let mut still = Vec::new();
        for mut unidentified in std::mem::take(&mut self.unidentified) {
            match unidentified.progress() {
                Ok(None) => still.push(unidentified),
                Ok(Some(hello)) => {
                    moved = true;
                    if let Err(error) = self.opened(hello, unidentified) {
                        warn!("refused a connection of rank {}: {error}", hello.from);
                    }
                }
                Err(error) => warn!("refused a connection: {error}"),
            }
        }
        self.unidentified = still;
        Ok(moved)
    }

    /// The hello of a connection has come.
    fn opened(&mut self, hello: Hello, unidentified: HelloRecv) -> Result<(), NetError> {
        let refused = |reason: String| Err(NetError::new(self.net.name(), "accept", reason));
        if hello.group != self.hello.group || hello.to != self.hello.from {
            return refused(format!("it is for rank {} of another group", hello.to));
        }
        let key = ConnectionId { peer: hello.from, index: hello.index };
        if (self.route)(key).is_none() {
            return refused(format!("rank {} is not reached by the network", key.peer));
        }
        let Some(memory) = (self.memory)(key, false) else {
            return refused(format!("there is no connection {}", key.index));
        };
        let queue = match self.receiving.remove(&key) {
            None => Vec::new(),
            Some(RecvState::Awaited(queue)) => queue,
            Some(open @ RecvState::Open(_)) => {
                self.receiving.insert(key, open);
                return refused(format!("connection {} is there already", key.index));
            }
        };
        let comm = unidentified.open()?;
        // SAFETY: `new`'s contract.
        let mut receiving = unsafe { Receiving::new(memory, comm, self.first)? };
        if self.observer.is_some() {
            receiving.record();
        }
        queue.into_iter().for_each(|steps| receiving.push(steps));
        debug!(peer = key.peer, index = key.index, "connected to receive");
        self.receiving.insert(key, RecvState::Open(Box::new(receiving)));
        Ok(())
    }
}

impl HelloSend {
    pub(crate) fn new(mut comm: Box<dyn SendComm>, hello: Hello) -> Result<Self, NetError> {
        let mut hello = Box::new(hello.bytes());
        // SAFETY: the bytes are in a box of their own, which outlives the registration: `open`, or the drop order of
        // fields.
        let memory = unsafe { comm.register(hello.as_mut_ptr(), HELLO_BYTES, MemoryKind::Host)? };
        Ok(HelloSend { comm, hello, memory, request: None })
    }

    /// Whether the hello is sent.
    pub(crate) fn progress(&mut self) -> Result<bool, NetError> {
        if self.request.is_none() {
            // SAFETY: as in `new`; nobody changes the bytes.
            self.request =
                unsafe { self.comm.isend(self.hello.as_ptr(), HELLO_BYTES, 0, self.memory)? };
        }
        match self.request {
            Some(request) => self.comm.test(request),
            None => Ok(false),
        }
    }

    pub(crate) fn open(mut self) -> Result<Box<dyn SendComm>, NetError> {
        self.comm.deregister(self.memory)?;
        Ok(self.comm)
    }
}

impl HelloRecv {
    pub(crate) fn new(mut comm: Box<dyn RecvComm>) -> Result<Self, NetError> {
        let mut hello = Box::new([0; HELLO_BYTES]);
        // SAFETY: as in `HelloSend::new`.
        let memory = unsafe { comm.register(hello.as_mut_ptr(), HELLO_BYTES, MemoryKind::Host)? };
        Ok(HelloRecv { comm, hello, memory, request: None })
    }

    /// The hello, once it has come.
    pub(crate) fn progress(&mut self) -> Result<Option<Hello>, NetError> {
        if self.request.is_none() {
            let address = self.hello.as_mut_ptr();
            let buffer = RecvBuffer { address, bytes: HELLO_BYTES, tag: 0, memory: self.memory };
            // SAFETY: as in `HelloSend::new`; the bytes are read when the request is done.
            self.request = unsafe { self.comm.irecv(&[buffer])? };
        }
        let Some(request) = self.request else { return Ok(None) };
        let mut size = [0];
        if !self.comm.test(request, &mut size)? {
            return Ok(None);
        }
        Hello::parse(self.hello.get(..size[0]).unwrap_or_default()).map(Some)
    }

    pub(crate) fn open(mut self) -> Result<Box<dyn RecvComm>, NetError> {
        self.comm.deregister(self.memory)?;
        Ok(self.comm)
    }
}

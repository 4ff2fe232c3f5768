//! All connections of a rank with those of other hosts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tracing::{debug, warn};

use super::{Ends, HELLO_BYTES, Hello, Receiving, Sending, Steps};
use crate::net::{
    Connecting, Listener, MemoryHandle, MemoryKind, Net, RecvBuffer, RecvComm, Request, SendComm,
};
use crate::{NetError, Progress};

/// A connection in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The rank at the other end.
    pub peer: u32,
    /// Which of those with it; the two ends count alike.
    pub index: u32,
}

/// A connection that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub key: Key,
    /// Whether we were to send.
    pub sending: bool,
    /// The call it was about, as far as that is known.
    pub seq: u64,
    /// What happened.
    pub error: NetError,
}

/// Where the memory of a connection is: by which, and whether we send; `None` when there is no such connection.
pub type FindEnds = Box<dyn Fn(Key, bool) -> Option<Ends> + Send>;

/// The connections of a rank over a network, each made when it is first needed.
pub struct Connections {
    net: Arc<dyn Net>,
    device: usize,
    hello: Hello,
    first: u64,
    listener: Box<dyn Listener>,
    /// By rank; empty for those that are not reached by the network.
    handles: Vec<Vec<u8>>,
    sending: BTreeMap<Key, Outgoing>,
    receiving: BTreeMap<Key, Incoming>,
    /// Those of them that have something to do.
    active: Vec<(Key, bool)>,
    /// Who has connected, and not said what for.
    arriving: Vec<Arriving>,
    /// Where the next round begins, so that none is always the first.
    turn: usize,
    /// Dropped last: it may keep the memory that the connections have registered.
    ends: FindEnds,
}

/// Connections that have been accepted and say nothing: more are not accepted before some do.
const MAX_ARRIVING: usize = 256;

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("net", &self.net)
            .field("device", &self.device)
            .field("sending", &self.sending.len())
            .field("receiving", &self.receiving.len())
            .field("active", &self.active.len())
            .finish_non_exhaustive()
    }
}

/// A connection to send on.
enum Outgoing {
    Connecting(Box<dyn Connecting>, Vec<Steps>),
    Greeting(Greeting, Vec<Steps>),
    Open(Box<Sending>),
    /// It has failed: what is left to do with it is nothing.
    Broken,
}

/// A connection to receive on.
enum Incoming {
    /// The sender has not connected yet.
    Awaited(Vec<Steps>),
    Open(Box<Receiving>),
}

/// A connection of ours on which the other end is told what it is for.
struct Greeting {
    comm: Box<dyn SendComm>,
    hello: Box<[u8; HELLO_BYTES]>,
    memory: MemoryHandle,
    request: Option<Request>,
}

/// A connection of which we wait to hear what it is for.
struct Arriving {
    comm: Box<dyn RecvComm>,
    hello: Box<[u8; HELLO_BYTES]>,
    memory: MemoryHandle,
    request: Option<Request>,
}

impl Connections {
    /// Of rank `hello.from`, over a device of a network; `first` is the step at which all connections begin. `handles` are
    /// those of all ranks' listeners, and empty for ranks that are reached otherwise.
    ///
    /// # Safety
    /// The memory that `ends` names is as [`Sending::new`] and [`Receiving::new`] need it, for as long as the value lives.
    #[must_use]
    pub unsafe fn new(
        (net, device): (Arc<dyn Net>, usize),
        (group, rank): (u64, u32),
        first: u64,
        listener: Box<dyn Listener>,
        handles: Vec<Vec<u8>>,
        ends: FindEnds,
    ) -> Self {
        Connections {
            net,
            device,
            hello: Hello { group, from: rank, to: 0, index: 0 },
            first,
            listener,
            handles,
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            active: Vec::new(),
            arriving: Vec::new(),
            turn: 0,
            ends,
        }
    }

    /// Whether a rank is reached by the network.
    #[must_use]
    pub fn reaches(&self, rank: u32) -> bool {
        self.handles.get(rank as usize).is_some_and(|handle| !handle.is_empty())
    }

    /// The next call has these steps to send.
    ///
    /// # Errors
    /// When there is no way to the peer.
    pub fn send(&mut self, key: Key, steps: Steps) -> Result<(), Failed> {
        let failed = |error| Failed { key, sending: true, seq: steps.seq, error };
        if !self.sending.contains_key(&key) {
            let handle = self.handles.get(key.peer as usize).filter(|handle| !handle.is_empty());
            let none = || NetError::new(self.net.name(), "connect", "the rank does not listen");
            let handle = handle.ok_or_else(|| failed(none().with_peer(key.peer)))?;
            let connecting = self.net.connect(self.device, handle);
            let connecting = connecting.map_err(|e| failed(e.with_peer(key.peer)))?;
            self.sending.insert(key, Outgoing::Connecting(connecting, Vec::new()));
        }
        match self.sending.get_mut(&key) {
            Some(Outgoing::Connecting(_, queue) | Outgoing::Greeting(_, queue)) => {
                queue.push(steps);
            }
            Some(Outgoing::Open(sending)) => sending.push(steps),
            Some(Outgoing::Broken) | None => {
                let error = NetError::new(self.net.name(), "isend", "the connection is broken");
                return Err(failed(error.with_peer(key.peer)));
            }
        }
        self.activate(key, true);
        Ok(())
    }

    /// The next call has these steps to receive.
    pub fn recv(&mut self, key: Key, steps: Steps) {
        match self.receiving.entry(key).or_insert_with(|| Incoming::Awaited(Vec::new())) {
            Incoming::Awaited(queue) => queue.push(steps),
            Incoming::Open(receiving) => receiving.push(steps),
        }
        self.activate(key, false);
    }

    fn activate(&mut self, key: Key, sending: bool) {
        if !self.active.contains(&(key, sending)) {
            self.active.push((key, sending));
        }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// A rank has left: what it has sent still comes, and what it has not sent never will.
    ///
    /// # Errors
    /// When we wait for a connection from it.
    pub fn left(&mut self, rank: u32) -> Result<(), Failed> {
        let awaited = |(key, incoming): (&Key, &Incoming)| match incoming {
            Incoming::Awaited(queue) if key.peer == rank => queue.first().map(|s| (*key, s.seq)),
            _ => None,
        };
        match self.receiving.iter().find_map(awaited) {
            None => Ok(()),
            Some((key, seq)) => {
                let error = NetError::new(self.net.name(), "accept", "it has left the group");
                Err(Failed { key, sending: false, seq, error: error.with_peer(rank) })
            }
        }
    }

    /// Moves all connections on, in turn, as far as can be done at once.
    ///
    /// # Errors
    /// The first connection that is broken. The others can go on.
    pub fn progress(&mut self) -> Result<Progress, Failed> {
        let mut moved = self.accept()?;
        let count = self.active.len();
        let mut done = Vec::new();
        for i in 0..count {
            let at = (self.turn + i) % count;
            let (key, sending) = self.active[at];
            let progress = if sending { self.advance(key) } else { self.take(key) };
            match progress {
                Ok(Progress::Done) => done.push((key, sending)),
                Ok(progress) => moved |= progress == Progress::Moved,
                Err((seq, error)) => {
                    self.active.remove(at);
                    let error = error.with_peer(key.peer);
                    return Err(Failed { key, sending, seq, error });
                }
            }
        }
        self.turn = self.turn.wrapping_add(1);
        if !done.is_empty() {
            self.active.retain(|entry| !done.contains(entry));
            moved = true;
        }
        Ok(match (self.active.is_empty(), moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            _ => Progress::Idle,
        })
    }

    /// Moves a connection on to send on; with an error comes the call.
    fn advance(&mut self, key: Key) -> Result<Progress, (u64, NetError)> {
        let Some(outgoing) = self.sending.get_mut(&key) else { return Ok(Progress::Done) };
        let seq = |queue: &[Steps]| queue.first().map_or(0, |steps| steps.seq);
        match std::mem::replace(outgoing, Outgoing::Broken) {
            Outgoing::Connecting(mut connecting, queue) => {
                match connecting.poll().map_err(|e| (seq(&queue), e))? {
                    None => {
                        *outgoing = Outgoing::Connecting(connecting, queue);
                        Ok(Progress::Idle)
                    }
                    Some(comm) => {
                        let hello = Hello { to: key.peer, index: key.index, ..self.hello };
                        let greeting = Greeting::new(comm, hello);
                        let greeting = greeting.map_err(|e| (seq(&queue), e))?;
                        *outgoing = Outgoing::Greeting(greeting, queue);
                        Ok(Progress::Moved)
                    }
                }
            }
            Outgoing::Greeting(mut greeting, queue) => {
                if !greeting.progress().map_err(|e| (seq(&queue), e))? {
                    *outgoing = Outgoing::Greeting(greeting, queue);
                    return Ok(Progress::Idle);
                }
                let no = || NetError::new("proxy", "connect", "there is no such connection");
                let ends = (self.ends)(key, true).ok_or_else(|| (seq(&queue), no()))?;
                let comm = greeting.open().map_err(|e| (seq(&queue), e))?;
                // SAFETY: `new`'s contract.
                let sending = unsafe { Sending::new(ends, comm, self.first) };
                let mut sending = sending.map_err(|e| (seq(&queue), e))?;
                queue.into_iter().for_each(|steps| sending.push(steps));
                debug!(peer = key.peer, index = key.index, "connected to send");
                *outgoing = Outgoing::Open(Box::new(sending));
                Ok(Progress::Moved)
            }
            Outgoing::Open(mut sending) => {
                let progress =
                    sending.progress().map_err(|e| (sending.seq().unwrap_or_default(), e))?;
                *outgoing = Outgoing::Open(sending);
                Ok(progress)
            }
            Outgoing::Broken => Ok(Progress::Done),
        }
    }

    /// Moves a connection on to receive on.
    fn take(&mut self, key: Key) -> Result<Progress, (u64, NetError)> {
        match self.receiving.get_mut(&key) {
            None => Ok(Progress::Done),
            Some(Incoming::Awaited(_)) => Ok(Progress::Idle),
            Some(Incoming::Open(receiving)) => {
                receiving.progress().map_err(|e| (receiving.seq().unwrap_or_default(), e))
            }
        }
    }

    /// Accepts who connects, as long as we wait for somebody, and hears what for.
    fn accept(&mut self) -> Result<bool, Failed> {
        let awaited =
            self.receiving.iter().find(|(_, incoming)| matches!(incoming, Incoming::Awaited(_)));
        let Some((&key, _)) = awaited else { return Ok(false) };
        let mut moved = false;
        while self.arriving.len() < MAX_ARRIVING {
            let comm = self.listener.accept();
            match comm.map_err(|error| Failed { key, sending: false, seq: 0, error })? {
                None => break,
                Some(comm) => match Arriving::new(comm) {
                    Ok(arriving) => self.arriving.push(arriving),
                    Err(error) => warn!("{error}"),
                },
            }
            moved = true;
        }
        let mut still = Vec::new();
        for mut arriving in std::mem::take(&mut self.arriving) {
            match arriving.progress() {
                Ok(None) => still.push(arriving),
                Ok(Some(hello)) => {
                    moved = true;
                    if let Err(error) = self.opened(hello, arriving) {
                        warn!("refused a connection of rank {}: {error}", hello.from);
                    }
                }
                Err(error) => warn!("refused a connection: {error}"),
            }
        }
        self.arriving = still;
        Ok(moved)
    }

    /// A connection has said which it is.
    fn opened(&mut self, hello: Hello, arriving: Arriving) -> Result<(), NetError> {
        let refused = |reason: String| Err(NetError::new(self.net.name(), "accept", reason));
        if hello.group != self.hello.group || hello.to != self.hello.from {
            return refused(format!("it is for rank {} of another group", hello.to));
        }
        let key = Key { peer: hello.from, index: hello.index };
        if !self.reaches(key.peer) {
            return refused(format!("rank {} is not reached by the network", key.peer));
        }
        let Some(ends) = (self.ends)(key, false) else {
            return refused(format!("there is no connection {}", key.index));
        };
        let queue = match self.receiving.remove(&key) {
            None => Vec::new(),
            Some(Incoming::Awaited(queue)) => queue,
            Some(open @ Incoming::Open(_)) => {
                self.receiving.insert(key, open);
                return refused(format!("connection {} is there already", key.index));
            }
        };
        let comm = arriving.open()?;
        // SAFETY: `new`'s contract.
        let mut receiving = unsafe { Receiving::new(ends, comm, self.first)? };
        queue.into_iter().for_each(|steps| receiving.push(steps));
        debug!(peer = key.peer, index = key.index, "connected to receive");
        self.receiving.insert(key, Incoming::Open(Box::new(receiving)));
        Ok(())
    }
}

impl Greeting {
    fn new(mut comm: Box<dyn SendComm>, hello: Hello) -> Result<Self, NetError> {
        let mut hello = Box::new(hello.bytes());
        // SAFETY: the bytes are in a box of their own, which outlives the registration: `open`, or the drop order of
        // fields.
        let memory = unsafe { comm.register(hello.as_mut_ptr(), HELLO_BYTES, MemoryKind::Host)? };
        Ok(Greeting { comm, hello, memory, request: None })
    }

    /// Whether it is said.
    fn progress(&mut self) -> Result<bool, NetError> {
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

    fn open(mut self) -> Result<Box<dyn SendComm>, NetError> {
        self.comm.deregister(self.memory)?;
        Ok(self.comm)
    }
}

impl Arriving {
    fn new(mut comm: Box<dyn RecvComm>) -> Result<Self, NetError> {
        let mut hello = Box::new([0; HELLO_BYTES]);
        // SAFETY: as in `Greeting::new`.
        let memory = unsafe { comm.register(hello.as_mut_ptr(), HELLO_BYTES, MemoryKind::Host)? };
        Ok(Arriving { comm, hello, memory, request: None })
    }

    /// What it is for, once it is heard.
    fn progress(&mut self) -> Result<Option<Hello>, NetError> {
        if self.request.is_none() {
            let address = self.hello.as_mut_ptr();
            let buffer = RecvBuffer { address, bytes: HELLO_BYTES, tag: 0, memory: self.memory };
            // SAFETY: as in `Greeting::new`; the bytes are read when the request is done.
            self.request = unsafe { self.comm.irecv(&[buffer])? };
        }
        let Some(request) = self.request else { return Ok(None) };
        let mut size = [0];
        if !self.comm.test(request, &mut size)? {
            return Ok(None);
        }
        Hello::parse(self.hello.get(..size[0]).unwrap_or_default()).map(Some)
    }

    fn open(mut self) -> Result<Box<dyn RecvComm>, NetError> {
        self.comm.deregister(self.memory)?;
        Ok(self.comm)
    }
}

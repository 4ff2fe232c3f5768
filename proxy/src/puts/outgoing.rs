//! The sending end of a rank's connections with another.

use std::collections::VecDeque;
use std::sync::Arc;

use super::header::{PUT_HEADER_BYTES, PutHeader, PutKind};
use super::windows::{PutAccess, PutWindow, Registered, StagedMemory};
use super::{HEADERS, NetError};
use crate::connection::{Hello, HelloSend};
use crate::net::{Connecting, MemoryHandle, MemoryKind, Net, Request, SendComm};

/// The connection of headers, and that of data.
pub(super) const HEADER_LANE: u32 = 0;
pub(super) const DATA_LANE: u32 = 1;

/// What the data of a put is sent from.
pub(super) enum Payload {
    /// There is none.
    None,
    /// A value.
    Value([u8; 8]),
    /// A place in a window of ours.
    Window {
        /// Its number.
        number: u64,
        /// In bytes.
        offset: u64,
        window: PutWindow,
    },
}

/// One of the connections with a rank.
enum Lane {
    Connecting(Box<dyn Connecting>, Hello),
    Hello(HelloSend),
    Open(Box<dyn SendComm>),
    Broken,
}

/// A request that is being sent.
struct Sending {
    /// The request's number; `None` for the last header.
    number: Option<u64>,
    header: PutHeader,
    payload: Payload,
    /// Whether `isend` was called for the header, and whether it is sent.
    announced: bool,
    header_sent: bool,
    /// Bytes of data for which `isend` was called, and that are sent.
    begun: u64,
    sent: u64,
}

/// Sends a rank's requests to another.
pub(super) struct Outgoing {
    headers: Lane,
    data: Lane,
    /// What is registered with the data's connection.
    registered: Registered,
    /// In the order in which they were asked for.
    queue: VecDeque<Sending>,
    /// The next header's number.
    next: u64,
    /// The headers that are under way, with their places.
    header_requests: VecDeque<Request>,
    /// The data that is under way: bytes of a request of the queue, the first that has not sent all.
    data_requests: VecDeque<(Request, u64)>,
    /// Bytes of headers, and behind each those of a value. Declared behind the connections, which are dropped first.
    places: Box<[[u8; PLACE]; HEADERS]>,
    places_memory: Option<[MemoryHandle; 2]>,
    /// What is copied on its way; registered when it is first needed.
    bounce: Option<(Box<[u8]>, MemoryHandle)>,
    piece: u64,
    /// Why nothing goes any more.
    failure: Option<NetError>,
}

/// Bytes of a header and a value.
const PLACE: usize = PUT_HEADER_BYTES + size_of::<u64>();

impl Sending {
    /// Bytes of its data.
    fn bytes(&self) -> u64 {
        match self.header.kind {
            PutKind::Put { bytes, .. } => bytes,
            _ => 0,
        }
    }

    fn is_done(&self) -> bool {
        self.header_sent && self.sent == self.bytes()
    }
}

impl Lane {
    fn open(
        net: &Arc<dyn Net>,
        (device, handle): (usize, &[u8]),
        hello: Hello,
    ) -> Result<Lane, NetError> {
        Ok(Lane::Connecting(net.connect(device, handle)?, hello))
    }

    /// The connection, once it is made.
    fn poll(&mut self) -> Result<Option<&mut Box<dyn SendComm>>, NetError> {
        if !matches!(self, Lane::Open(_)) {
            *self = match std::mem::replace(self, Lane::Broken) {
                Lane::Connecting(mut connecting, hello) => match connecting.poll()? {
                    None => Lane::Connecting(connecting, hello),
                    Some(comm) => Lane::Hello(HelloSend::new(comm, hello)?),
                },
                Lane::Hello(mut hello) => {
                    if hello.progress()? {
                        Lane::Open(hello.open()?)
                    } else {
                        Lane::Hello(hello)
                    }
                }
                other => other,
            };
        }
        match self {
            Lane::Open(comm) => Ok(Some(comm)),
            Lane::Broken => Err(NetError::new("proxy", "isend", "the connection is broken")),
            _ => Ok(None),
        }
    }
}

impl Outgoing {
    /// Begins to connect with the listener of this handle.
    pub(super) fn new(
        net: &Arc<dyn Net>,
        route: (usize, &[u8]),
        hello: Hello,
        piece: usize,
    ) -> Result<Self, NetError> {
        Ok(Outgoing {
            headers: Lane::open(net, route, Hello { index: HEADER_LANE, ..hello })?,
            data: Lane::open(net, route, Hello { index: DATA_LANE, ..hello })?,
            registered: Registered::default(),
            queue: VecDeque::new(),
            next: 0,
            header_requests: VecDeque::new(),
            data_requests: VecDeque::new(),
            places: Box::new([[0; PLACE]; HEADERS]),
            places_memory: None,
            bounce: None,
            piece: piece as u64,
            failure: None,
        })
    }

    /// Adds a request.
    pub(super) fn push(&mut self, number: u64, header: PutHeader, payload: Payload) {
        self.add(Some(number), header.kind, payload);
    }

    /// Adds the last header.
    pub(super) fn say_bye(&mut self) {
        self.add(None, PutKind::Bye, Payload::None);
    }

    fn add(&mut self, number: Option<u64>, kind: PutKind, payload: Payload) {
        let header = PutHeader { number: self.next, kind };
        self.next += 1;
        let (announced, header_sent, begun, sent) = (false, false, 0, 0);
        self.queue.push_back(Sending {
            number,
            header,
            payload,
            announced,
            header_sent,
            begun,
            sent,
        });
    }

    /// Whether all is sent.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Lets go of windows that are not there any more.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(u64) -> bool) {
        let Lane::Open(comm) = &mut self.data else { return };
        let queue = &self.queue;
        let is_used = |number: u64| {
            let from = |one: &Sending| matches!(one.payload, Payload::Window { number: n, .. } if n == number);
            queue.iter().any(from)
        };
        let forgotten = self.registered.forget(|number| is_gone(number) && !is_used(number), comm);
        self.failure = self.failure.take().or(forgotten.err());
    }

    /// Why nothing goes any more.
    pub(super) fn failure(&self) -> Option<&NetError> {
        self.failure.as_ref()
    }

    /// Nobody wants what is left: it counts as done.
    pub(super) fn give_up(&mut self, done: &mut dyn FnMut(u64)) {
        self.queue.drain(..).filter_map(|sending| sending.number).for_each(done);
    }

    /// Makes progress without waiting, and tells which requests are done; whether anything moved.
    pub(super) fn progress(&mut self, done: &mut dyn FnMut(u64)) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let moved = self.advance(done);
        moved.unwrap_or_else(|error| {
            self.failure = Some(error);
            false
        })
    }

    fn advance(&mut self, done: &mut dyn FnMut(u64)) -> Result<bool, NetError> {
        if self.queue.is_empty() {
            return Ok(false);
        }
        if self.headers.poll()?.is_none() | self.data.poll()?.is_none() {
            return Ok(false);
        }
        if self.places_memory.is_none() {
            self.places_memory = Some([self.register_places(true)?, self.register_places(false)?]);
        }
        let mut moved = self.announce()?;
        moved |= self.send_data()?;
        moved |= self.test()?;
        while self.queue.front().is_some_and(Sending::is_done) {
            if let Some(number) = self.queue.pop_front().and_then(|sending| sending.number) {
                done(number);
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Registers the places of headers and values with one of the connections.
    fn register_places(&mut self, of_headers: bool) -> Result<MemoryHandle, NetError> {
        let lane = if of_headers { &mut self.headers } else { &mut self.data };
        let (at, bytes) = (self.places.as_mut_ptr().cast(), HEADERS * PLACE);
        let Some(comm) = lane.poll()? else {
            return Err(NetError::new("proxy", "register", "the connection is not made"));
        };
        // SAFETY: the places are in a box of their own, which is dropped behind the connection.
        unsafe { comm.register(at, bytes, MemoryKind::Host) }
    }

    /// Where the header of a request is, and behind it a value. The place is free again when the request is done.
    fn place(&mut self, number: u64) -> &mut [u8; PLACE] {
        &mut self.places[(number % HEADERS as u64) as usize]
    }

    /// Sends headers, as far as there are places.
    fn announce(&mut self) -> Result<bool, NetError> {
        let mut moved = false;
        // The places of those that are not done are in use: the queue has them in order.
        for i in 0..self.queue.len().min(HEADERS) {
            let sending = &self.queue[i];
            if sending.announced {
                continue;
            }
            let header = sending.header;
            let value = match sending.payload {
                Payload::Value(value) => value,
                _ => [0; 8],
            };
            let place = self.place(header.number);
            place[..PUT_HEADER_BYTES].copy_from_slice(&header.bytes());
            place[PUT_HEADER_BYTES..].copy_from_slice(&value);
            let at = place.as_ptr();
            let (Some(comm), Some([memory, _])) = (self.headers.poll()?, self.places_memory) else {
                break;
            };
            // SAFETY: inside the registered places; nobody writes it again before the request is done.
            let request = unsafe { comm.isend(at, PUT_HEADER_BYTES, 0, memory)? };
            let Some(request) = request else { break };
            self.header_requests.push_back(request);
            self.queue[i].announced = true;
            moved = true;
        }
        Ok(moved)
    }

    /// Sends data, in the order of the headers that are announced.
    fn send_data(&mut self) -> Result<bool, NetError> {
        let mut moved = false;
        let first = self.queue.iter().position(|sending| sending.begun < sending.bytes());
        let Some(mut i) = first else { return Ok(false) };
        while i < self.queue.len().min(HEADERS) && self.queue[i].announced {
            if self.queue[i].begun == self.queue[i].bytes() {
                i += 1;
                continue;
            }
            let Some((at, bytes, memory)) = self.next_piece(i)? else { break };
            let Some(comm) = self.data.poll()? else { break };
            // SAFETY: inside registered memory; the kernel does not write it before the request is done.
            let request = unsafe { comm.isend(at, bytes as usize, 0, memory)? };
            let Some(request) = request else { break };
            self.data_requests.push_back((request, bytes));
            self.queue[i].begun += bytes;
            moved = true;
        }
        Ok(moved)
    }

    /// Where the next piece of a request's data is; `None` when that has to wait.
    fn next_piece(&mut self, i: usize) -> Result<Option<(*const u8, u64, MemoryHandle)>, NetError> {
        let sending = &self.queue[i];
        let bytes = (sending.bytes() - sending.begun).min(self.piece);
        let (begun, number) = (sending.begun, sending.header.number);
        let staged = match &sending.payload {
            Payload::None => return Ok(None),
            Payload::Value(_) => {
                let at = self.place(number)[PUT_HEADER_BYTES..].as_ptr();
                return Ok(self.places_memory.map(|[_, memory]| (at, bytes, memory)));
            }
            Payload::Window { number, offset, window } => match &window.access {
                PutAccess::Direct { .. } => {
                    let Lane::Open(comm) = &mut self.data else { return Ok(None) };
                    let memory = self.registered.of((*number, window), comm)?;
                    let at = window.address + offset + begun;
                    return Ok(Some((at as *const u8, bytes, memory)));
                }
                PutAccess::Staged(staged) => (Arc::clone(staged), offset + begun),
            },
        };
        if !self.data_requests.is_empty() {
            return Ok(None); // something may be in the bounce buffer
        }
        self.stage(staged, bytes)
    }

    /// Copies a piece into the bounce buffer.
    fn stage(
        &mut self,
        (staged, offset): (Arc<dyn StagedMemory>, u64),
        bytes: u64,
    ) -> Result<Option<(*const u8, u64, MemoryHandle)>, NetError> {
        let Lane::Open(comm) = &mut self.data else { return Ok(None) };
        if self.bounce.is_none() {
            let mut buffer = vec![0; self.piece as usize].into_boxed_slice();
            // SAFETY: the buffer is in a box of its own, which is dropped behind the connection.
            let memory =
                unsafe { comm.register(buffer.as_mut_ptr(), buffer.len(), MemoryKind::Host)? };
            self.bounce = Some((buffer, memory));
        }
        let Some((buffer, memory)) = &mut self.bounce else { return Ok(None) };
        let room = &mut buffer[..bytes as usize];
        staged.read(offset, room).map_err(|e| NetError::new("proxy", "read what is put", e))?;
        Ok(Some((room.as_ptr(), bytes, *memory)))
    }

    /// Looks what is sent.
    fn test(&mut self) -> Result<bool, NetError> {
        let mut moved = false;
        while let (Some(request), Some(comm)) = (self.header_requests.front(), self.headers.poll()?)
        {
            if !comm.test(*request)? {
                break;
            }
            self.header_requests.pop_front();
            if let Some(sending) = self.queue.iter_mut().find(|sending| !sending.header_sent) {
                sending.header_sent = true;
            }
            moved = true;
        }
        while let (Some((request, bytes)), Some(comm)) =
            (self.data_requests.front(), self.data.poll()?)
        {
            if !comm.test(*request)? {
                break;
            }
            let bytes = *bytes;
            self.data_requests.pop_front();
            if let Some(sending) = self.queue.iter_mut().find(|one| one.sent < one.bytes()) {
                sending.sent += bytes;
            }
            moved = true;
        }
        Ok(moved)
    }
}

//! The receiving end of another rank's connections with this one.

use std::collections::VecDeque;

use ferroccl_device::abi::DeviceComm;

use super::header::{PUT_HEADER_BYTES, PutHeader, PutKind};
use super::outgoing::{DATA_LANE, HEADER_LANE};
use super::windows::{PutAccess, PutWindow, Registered};
use super::{HEADERS, NetError, PutsConfig, orders};
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, RecvBuffer, RecvComm, Request};

/// What another rank puts here.
pub(super) struct Incoming {
    from: u32,
    headers: Option<Box<dyn RecvComm>>,
    data: Option<Box<dyn RecvComm>>,
    /// What is registered with the data's connection.
    registered: Registered,
    /// Buffers of headers that wait for one, in order, each with its place.
    posted: VecDeque<(Request, usize)>,
    /// Headers that have come by now.
    heard: u64,
    /// Those whose data has not arrived, in order.
    queue: VecDeque<Arriving>,
    /// Buffers of data that wait for it: where, and how much.
    data_requests: VecDeque<(Request, u64, usize)>,
    /// The flush that is under way, of the first in the queue.
    flush: Option<Request>,
    /// Whether the rank sends nothing more.
    left: bool,
    /// Declared behind the connections, which are dropped first.
    places: Box<[[u8; PUT_HEADER_BYTES]; HEADERS]>,
    places_memory: Option<MemoryHandle>,
    bounce: Option<(Box<[u8]>, MemoryHandle)>,
    piece: u64,
    /// Why nothing comes any more.
    failure: Option<NetError>,
}

/// A put whose header has come.
struct Arriving {
    kind: PutKind,
    /// Where its data goes, if it has some.
    window: Option<PutWindow>,
    /// Bytes for which `irecv` was called, and that have arrived.
    begun: u64,
    arrived: u64,
    /// Whether a GPU is sure to see it.
    flushed: bool,
}

impl Arriving {
    /// The window's number, where in it, and bytes.
    fn place(&self) -> (u64, u64, u64) {
        match self.kind {
            PutKind::Put { window, offset, bytes, .. } => (window, offset, bytes),
            _ => (0, 0, 0),
        }
    }

    fn is_whole(&self) -> bool {
        self.arrived == self.place().2
    }

    fn is_staged(&self) -> bool {
        self.window.as_ref().is_some_and(|w| matches!(w.access, PutAccess::Staged(_)))
    }

    fn flushes(&self) -> bool {
        let flushes =
            |window: &PutWindow| matches!(window.access, PutAccess::Direct { flush, .. } if flush);
        self.place().2 > 0 && self.window.as_ref().is_some_and(flushes)
    }
}

impl Incoming {
    pub(super) fn new(from: u32, piece: usize) -> Self {
        Incoming {
            from,
            headers: None,
            data: None,
            registered: Registered::default(),
            posted: VecDeque::new(),
            heard: 0,
            queue: VecDeque::new(),
            data_requests: VecDeque::new(),
            flush: None,
            left: false,
            places: Box::new([[0; PUT_HEADER_BYTES]; HEADERS]),
            places_memory: None,
            bounce: None,
            piece: piece as u64,
            failure: None,
        }
    }

    /// One of the two connections is there.
    pub(super) fn open(&mut self, index: u32, mut comm: Box<dyn RecvComm>) -> Result<(), NetError> {
        let refused = |reason: String| Err(NetError::new("proxy", "accept", reason));
        let lane = match index {
            HEADER_LANE => &mut self.headers,
            DATA_LANE => &mut self.data,
            other => return refused(format!("there is no connection {other}")),
        };
        if lane.is_some() {
            return refused(format!("connection {index} is there already"));
        }
        if index == HEADER_LANE {
            let bytes = HEADERS * PUT_HEADER_BYTES;
            // SAFETY: the places are in a box of their own, which is dropped behind the connection.
            let memory =
                unsafe { comm.register(self.places.as_mut_ptr().cast(), bytes, MemoryKind::Host)? };
            self.places_memory = Some(memory);
        }
        *lane = Some(comm);
        Ok(())
    }

    /// Whether both connections are there.
    pub(super) fn is_open(&self) -> bool {
        self.headers.is_some() && self.data.is_some()
    }

    /// Lets go of windows that are not there any more.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(u64) -> bool) {
        let Some(comm) = &mut self.data else { return };
        let queue = &self.queue;
        let is_used = |number: u64| queue.iter().any(|one| one.place().0 == number);
        let forgotten = self.registered.forget(|number| is_gone(number) && !is_used(number), comm);
        self.failure = self.failure.take().or(forgotten.err());
    }

    /// Why nothing comes any more, if that is not because the rank has left.
    pub(super) fn failure(&self) -> Option<&NetError> {
        self.failure.as_ref()
    }

    /// Whether the rank has told that it sends nothing more.
    pub(super) fn has_left(&self) -> bool {
        self.left
    }

    /// Makes progress without waiting; whether anything moved.
    pub(super) fn progress(&mut self, config: &PutsConfig) -> bool {
        if self.left || self.failure.is_some() || !self.is_open() {
            return false;
        }
        let moved = self.advance(config);
        moved.unwrap_or_else(|error| {
            self.failure = Some(error);
            false
        })
    }

    fn advance(&mut self, config: &PutsConfig) -> Result<bool, NetError> {
        let mut moved = self.hear(config)?;
        moved |= self.receive()?;
        moved |= self.deliver(config)?;
        Ok(moved)
    }

    /// Gives buffers for headers, and reads those that have come.
    fn hear(&mut self, config: &PutsConfig) -> Result<bool, NetError> {
        let (Some(comm), Some(memory)) = (&mut self.headers, self.places_memory) else {
            return Ok(false);
        };
        let mut moved = false;
        let has_heard_all = |queue: &VecDeque<Arriving>| {
            queue.back().is_some_and(|arriving| arriving.kind == PutKind::Bye)
        };
        while self.posted.len() + self.queue.len() < HEADERS && !has_heard_all(&self.queue) {
            // Headers have places in turn, and leave them in turn.
            let place = (self.heard as usize + self.posted.len()) % HEADERS;
            let address = self.places[place].as_mut_ptr();
            let buffer = RecvBuffer { address, bytes: PUT_HEADER_BYTES, tag: 0, memory };
            // SAFETY: inside the registered places; it is read when the request is done.
            let Some(request) = (unsafe { comm.irecv(&[buffer])? }) else { break };
            self.posted.push_back((request, place));
        }
        // Behind the last header the connection may end.
        while let Some(&(request, place)) =
            self.posted.front().filter(|_| !has_heard_all(&self.queue))
        {
            let mut size = [0];
            if !comm.test(request, &mut size)? {
                break;
            }
            self.posted.pop_front();
            let bytes = self.places[place].get(..size[0]).unwrap_or_default();
            let header = PutHeader::parse(bytes)?;
            let arriving = check(&header, self.heard, config)
                .map_err(|reason| NetError::new("proxy", "receive a put", reason))?;
            self.heard += 1;
            self.queue.push_back(arriving);
            moved = true;
        }
        Ok(moved)
    }

    /// Gives buffers for the data of the headers that have come, in their order, and looks what has arrived.
    fn receive(&mut self) -> Result<bool, NetError> {
        let Some(comm) = &mut self.data else { return Ok(false) };
        let mut moved = false;
        for arriving in &mut self.queue {
            let (number, offset, bytes) = arriving.place();
            let Some(window) = &arriving.window else { continue };
            // A flush is a request, too.
            while arriving.begun < bytes && self.data_requests.len() < MAX_REQUESTS - 1 {
                let piece = (bytes - arriving.begun).min(self.piece);
                let (address, memory) = match &window.access {
                    PutAccess::Direct { .. } => {
                        let memory = self.registered.of((number, window), comm)?;
                        (window.address + offset + arriving.begun, memory)
                    }
                    PutAccess::Staged(_) if !self.data_requests.is_empty() => break,
                    PutAccess::Staged(_) => {
                        if self.bounce.is_none() {
                            let mut buffer = vec![0; self.piece as usize].into_boxed_slice();
                            let (at, len) = (buffer.as_mut_ptr(), buffer.len());
                            // SAFETY: the buffer is in a box of its own, which is dropped behind the connection.
                            let memory = unsafe { comm.register(at, len, MemoryKind::Host)? };
                            self.bounce = Some((buffer, memory));
                        }
                        let Some((buffer, memory)) = &mut self.bounce else { break };
                        (buffer.as_mut_ptr() as u64, *memory)
                    }
                };
                let at = address as *mut u8;
                let buffer = RecvBuffer { address: at, bytes: piece as usize, tag: 0, memory };
                // SAFETY: inside registered memory: `check` has looked. It is the sender's to say who else uses it.
                let Some(request) = (unsafe { comm.irecv(&[buffer])? }) else { break };
                self.data_requests.push_back((request, address, piece as usize));
                arriving.begun += piece;
                moved = true;
            }
            if arriving.begun < bytes || arriving.is_staged() && !arriving.is_whole() {
                break;
            }
        }
        while let Some(&(request, _, piece)) = self.data_requests.front() {
            let mut size = [0];
            if !comm.test(request, &mut size)? {
                break;
            }
            self.data_requests.pop_front();
            if size[0] != piece {
                let reason = format!("a piece of {} bytes, of {piece}", size[0]);
                return Err(NetError::new("proxy", "receive a put", reason));
            }
            let Some(arriving) = self.queue.iter_mut().find(|arriving| !arriving.is_whole()) else {
                let reason = "data without a header";
                return Err(NetError::new("proxy", "receive a put", reason));
            };
            let (_, offset, _) = arriving.place();
            if let (Some(PutWindow { access: PutAccess::Staged(staged), .. }), Some((buffer, _))) =
                (&arriving.window, &self.bounce)
            {
                let written = staged.write(offset + arriving.arrived, &buffer[..piece]);
                written.map_err(|e| NetError::new("proxy", "write what is put", e))?;
            }
            arriving.arrived += piece as u64;
            moved = true;
        }
        Ok(moved)
    }

    /// Tells the kernels of what has arrived, in the order of the headers.
    fn deliver(&mut self, config: &PutsConfig) -> Result<bool, NetError> {
        let mut moved = false;
        while let Some(arriving) = self.queue.front_mut().filter(|arriving| arriving.is_whole()) {
            if let Some(request) = self.flush {
                let Some(comm) = &mut self.data else { return Ok(moved) };
                if !comm.test(request, &mut [0])? {
                    return Ok(moved);
                }
                self.flush = None;
                arriving.flushed = true;
            }
            if arriving.flushes() && !arriving.flushed {
                let (number, offset, bytes) = arriving.place();
                let (Some(window), Some(comm)) = (&arriving.window, &mut self.data) else {
                    return Ok(moved);
                };
                let memory = self.registered.of((number, window), comm)?;
                let address = (window.address + offset) as *mut u8;
                let buffer = RecvBuffer { address, bytes: bytes as usize, tag: 0, memory };
                // SAFETY: inside the registered memory.
                self.flush = unsafe { comm.iflush(&[buffer])? };
                arriving.flushed = self.flush.is_none();
                moved = true;
                continue;
            }
            let kind = arriving.kind;
            self.queue.pop_front();
            self.tell(kind, config)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Tells the kernels of one.
    fn tell(&mut self, kind: PutKind, config: &PutsConfig) -> Result<(), NetError> {
        let comm: &DeviceComm = &config.comm;
        let (index, add) = match kind {
            PutKind::Put { signal: None, .. } => return Ok(()),
            PutKind::Put { signal: Some(signal), .. } | PutKind::Signal(signal) => {
                (comm.network_sent(signal, self.from), true)
            }
            PutKind::Arrival { barrier, .. } => (comm.network_arrival(barrier, self.from), false),
            PutKind::Bye => {
                self.left = true;
                return Ok(());
            }
        };
        // SAFETY: `Puts::new`'s contract; only this connection writes the word.
        let word = unsafe { config.word(index) };
        let before = word.load(orders::OWN);
        let now = match kind {
            PutKind::Arrival { number, .. } => number,
            _ => before.wrapping_add(u64::from(add)),
        };
        if now <= before {
            let reason = format!("it comes to a barrier for time {now}, after time {before}");
            return Err(NetError::new("proxy", "receive a put", reason));
        }
        word.store(now, orders::WORD);
        Ok(())
    }
}

/// What a header announces, if that can be; what is wrong.
fn check(header: &PutHeader, heard: u64, config: &PutsConfig) -> Result<Arriving, String> {
    if header.number != heard {
        return Err(format!("header {} in place of {heard}", header.number));
    }
    header.check_index(&config.comm)?;
    let window = match header.kind {
        PutKind::Put { window: number, offset, bytes, .. } => {
            let window =
                (config.find)(number).ok_or_else(|| format!("there is no window {number}"))?;
            window.check(number, offset, bytes)?;
            Some(window)
        }
        _ => None,
    };
    let (begun, arrived, flushed) = (0, 0, false);
    Ok(Arriving { kind: header.kind, window, begun, arrived, flushed })
}

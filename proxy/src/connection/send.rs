//! The sending end.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, fence};

use ferroccl_device::abi::{Conn, ConnHeader, LL_LINE, LL128_LINE, ProtocolId, fifo_bytes};

use super::orders::{self, sending};
use super::registrations::Registrations;
use super::{
    ConnMemory, MessageKind, NextMessage, SIGNATURE_BYTES, StepCursor, StepEvent, Steps, word,
};
use crate::net::{MAX_REQUESTS, Request, SendComm};
use crate::{NetError, Progress};

/// Sends the steps that a kernel puts into slots: the receiver's part towards that kernel.
#[derive(Debug)]
pub struct Sending {
    memory: ConnMemory,
    comm: Box<dyn SendComm>,
    registrations: Registrations,
    cursor: StepCursor,
    requests: VecDeque<(Request, MessageKind)>,
    /// Signatures for which `isend` was called.
    told: u64,
    /// Steps for which `isend` was called.
    transmitted: u64,
    /// Steps that are sent.
    done: u64,
    /// Bytes of the next slot whose lines all have their flag.
    looked: usize,
    /// What has happened, for who is told.
    events: Option<Vec<StepEvent>>,
}

impl Sending {
    /// Over a network's connection, from step `first` on.
    ///
    /// # Errors
    /// When the network cannot reach the memory, or when slots whose flags the proxy has to read are in GPU memory.
    ///
    /// # Safety
    /// `memory` is laid out as [`Conn`] says and valid for as long as the value lives. Its only other user is the kernel that
    /// sends.
    pub unsafe fn new(
        memory: ConnMemory,
        mut comm: Box<dyn SendComm>,
        first: u64,
    ) -> Result<Self, NetError> {
        if let Some(slots) = memory.on_gpu {
            let conn = &memory.conn;
            let (start, end) = (slots.memory.0, slots.memory.0 + slots.memory.1 as u64);
            for protocol in [ProtocolId::Ll, ProtocolId::Ll128] {
                if (start..end).contains(&conn.buffers[protocol.index()]) {
                    let reason = format!("slots of {protocol} are in a GPU's memory");
                    return Err(NetError::new("proxy", "connect", reason).with_peer(conn.peer));
                }
            }
        }
        let registrations = Registrations::new(&memory, |(address, bytes), kind| {
            // SAFETY: the caller's.
            unsafe { comm.register(address as *mut u8, bytes, kind) }
        })?;
        Ok(Sending {
            memory,
            comm,
            registrations,
            cursor: StepCursor::default(),
            requests: VecDeque::new(),
            told: 0,
            transmitted: first,
            done: first,
            looked: 0,
            events: None,
        })
    }

    /// Adds the steps of the next call.
    pub fn push(&mut self, steps: Steps) {
        self.cursor.push(steps);
    }

    /// The number of the call whose data is awaited or sent; `None` when all is sent.
    pub fn seq(&mut self) -> Option<u64> {
        let more = self.cursor.next().is_some();
        self.cursor.seq().or((more || !self.requests.is_empty()).then_some(0))
    }

    /// Makes progress without waiting.
    ///
    /// # Errors
    /// When the connection is broken, or when what a kernel has written is impossible.
    pub fn progress(&mut self) -> Result<Progress, NetError> {
        let mut moved = false;
        self.comm.cork(true);
        while self.requests.len() < MAX_REQUESTS && self.begin()? {
            moved = true;
        }
        self.comm.cork(false);
        while let Some(&(request, message)) = self.requests.front() {
            if !self.comm.test(request)? {
                break;
            }
            self.requests.pop_front();
            self.sent(message);
            moved = true;
        }
        let done = self.requests.is_empty() && self.cursor.next().is_none();
        Ok(match (done, moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            _ => Progress::Idle,
        })
    }

    /// Sends the next message, if the kernel has posted it and the network accepts it.
    fn begin(&mut self) -> Result<bool, NetError> {
        let (at, bytes, message) = match self.cursor.next() {
            None => return Ok(false),
            Some(NextMessage::Signature) => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.memory.ring() };
                if ring.tail.load(sending::SIGNATURES) <= self.told {
                    return Ok(false);
                }
                (ring.entry(self.told).cast_const(), SIGNATURE_BYTES, MessageKind::Signature)
            }
            Some(NextMessage::Step(protocol)) => match self.slot(protocol)? {
                Some((at, bytes)) => (at, bytes, MessageKind::Step),
                None => return Ok(false),
            },
        };
        // SAFETY: inside the registered memory; the kernel writes neither before `sent` gives it back.
        let request = unsafe { self.comm.isend(at, bytes, 0, self.registrations.of(at as u64))? };
        let Some(request) = request else { return Ok(false) };
        self.requests.push_back((request, message));
        match message {
            MessageKind::Signature => {
                self.told += 1;
                self.cursor.signatures += 1;
            }
            MessageKind::Step => {
                self.tell(StepEvent::Begun(bytes));
                self.transmitted += 1;
                self.cursor.steps += 1;
                self.looked = 0;
            }
        }
        Ok(true)
    }

    /// A message is sent: gives its place back to the kernel.
    fn sent(&mut self, message: MessageKind) {
        match message {
            MessageKind::Signature => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.memory.ring() };
                // Signatures are sent in order.
                ring.ack.store(ring.ack.load(orders::OWN) + 1, sending::ACKNOWLEDGED);
            }
            MessageKind::Step => {
                self.tell(StepEvent::Ended);
                self.done += 1;
                // SAFETY: `new`'s contract.
                let head = unsafe { header(&self.memory.conn, offset_of!(ConnHeader, head)) };
                head.store(self.done, sending::HEAD);
            }
        }
    }

    /// Writes down what happens to steps from now on.
    pub(super) fn record(&mut self) {
        self.events = Some(Vec::new());
    }

    /// What has happened since the last time; nothing unless it is written down.
    pub(super) fn take_events(&mut self) -> Vec<StepEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn tell(&mut self, event: StepEvent) {
        if let Some(events) = &mut self.events {
            events.push(event);
        }
    }

    /// Address and bytes of the next slot, once the kernel has filled it.
    fn slot(&mut self, protocol: ProtocolId) -> Result<Option<(*const u8, usize)>, NetError> {
        let conn = &self.memory.conn;
        let step = self.transmitted;
        let index = step % u64::from(conn.slots);
        // SAFETY: `new`'s contract; an entry for each slot.
        let entry = unsafe { word(conn.fifo + 8 * index) }.load(sending::ENTRY);
        let Some(bytes) = fifo_bytes(entry, step) else { return Ok(None) };
        let (bytes, room) = (bytes as usize, conn.slot_bytes[protocol.index()] as usize);
        if bytes > room {
            let reason =
                format!("a kernel has put {bytes} bytes into a slot of {room} ({protocol})");
            return Err(NetError::new("proxy", "isend", reason).with_peer(conn.peer));
        }
        let at = conn.buffers[protocol.index()] + index * room as u64;
        let full = match protocol {
            // What flags another crate's protocol has nobody knows here: its sender publishes the tail.
            // SAFETY: `new`'s contract.
            ProtocolId::Simple | ProtocolId::Own(_) => unsafe {
                header(conn, offset_of!(ConnHeader, tail)).load(sending::TAIL) > step
            },
            ProtocolId::Ll => {
                // The flag of both halves of a line: see the device's `ll`.
                let flag = u64::from((step << 1 | 1) as u32);
                self.look(at, bytes, LL_LINE, |line| {
                    // SAFETY: as above; a line has two halves.
                    let halves = unsafe { [word(line), word(line + 8)] };
                    halves.iter().all(|half| half.load(sending::FLAG) >> 32 == flag)
                })
            }
            ProtocolId::Ll128 => self.look(at, bytes, LL128_LINE, |line| {
                let last = line + (LL128_LINE - 8) as u64;
                // SAFETY: as above; the last word of a line is its flag.
                unsafe { word(last) }.load(sending::FLAG) == step + 1
            }),
        };
        Ok(full.then_some((at as *const u8, bytes)))
    }

    /// Whether all lines have their flag; continues where the last call stopped.
    fn look(&mut self, at: u64, bytes: usize, line: usize, has_come: impl Fn(u64) -> bool) -> bool {
        while self.looked < bytes {
            if !has_come(at + self.looked as u64) {
                return false;
            }
            self.looked += line;
        }
        // The network reads the lines after the proxy has read the flags.
        fence(sending::LINES);
        true
    }
}

/// A word of a connection's header.
///
/// # Safety
/// As [`Sending::new`].
pub(super) unsafe fn header<'a>(conn: &Conn, offset: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's.
    unsafe { word(conn.header + offset as u64) }
}

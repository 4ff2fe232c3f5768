//! The sending end.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, fence};

use ferroccl_device::abi::{Conn, ConnHeader, LL_LINE, LL128_LINE, ProtocolId, fifo_bytes};

use super::orders::{self, sending};
use super::reach::Reach;
use super::{Cursor, Ends, Message, Next, SIGNATURE_BYTES, Steps, word};
use crate::net::{MAX_REQUESTS, Request, SendComm};
use crate::{NetError, Progress};

/// Sends what a kernel puts into slots.
#[derive(Debug)]
pub struct Sending {
    ends: Ends,
    comm: Box<dyn SendComm>,
    reach: Reach,
    cursor: Cursor,
    requests: VecDeque<(Request, Message)>,
    /// Signatures that are on their way.
    told: u64,
    /// Steps that are on their way.
    transmitted: u64,
    /// Steps that are sent.
    done: u64,
    /// Bytes of the next slot in which all lines have come.
    looked: usize,
}

impl Sending {
    /// Over a network's connection, from step `first` on.
    ///
    /// # Errors
    /// When the network can't reach the memory, or slots are in a GPU's whose lines the proxy has to see.
    ///
    /// # Safety
    /// The memory of `ends` is laid out as [`Conn`] says and valid for as long as the value lives; a kernel that sends is
    /// the only other user of it.
    pub unsafe fn new(
        ends: Ends,
        mut comm: Box<dyn SendComm>,
        first: u64,
    ) -> Result<Self, NetError> {
        if let (Some(slots), Some(conn)) = (ends.on_gpu, &ends.conn) {
            let (start, end) = (slots.memory.0, slots.memory.0 + slots.memory.1 as u64);
            for protocol in [ProtocolId::Ll, ProtocolId::Ll128] {
                if (start..end).contains(&conn.buffers[protocol as usize]) {
                    let reason = format!("slots of {protocol} are in a GPU's memory");
                    return Err(NetError::new("proxy", "connect", reason).with_peer(conn.peer));
                }
            }
        }
        let reach = Reach::new(&ends, |(address, bytes), kind| {
            // SAFETY: the caller's.
            unsafe { comm.register(address as *mut u8, bytes, kind) }
        })?;
        Ok(Sending {
            ends,
            comm,
            reach,
            cursor: Cursor::default(),
            requests: VecDeque::new(),
            told: 0,
            transmitted: first,
            done: first,
            looked: 0,
        })
    }

    /// Adds what the next call has.
    pub fn push(&mut self, steps: Steps) {
        self.cursor.push(steps);
    }

    /// The call whose data is awaited or sent; `None` when all is sent.
    pub fn seq(&mut self) -> Option<u64> {
        let more = self.cursor.next().is_some();
        self.cursor.seq().or((more || !self.requests.is_empty()).then_some(0))
    }

    /// Does what can be done at once.
    ///
    /// # Errors
    /// When the connection is broken, or a kernel says what makes no sense.
    pub fn progress(&mut self) -> Result<Progress, NetError> {
        let mut moved = false;
        while self.requests.len() < MAX_REQUESTS && self.begin()? {
            moved = true;
        }
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

    /// Begins the next message, if it is there and the network takes it.
    fn begin(&mut self) -> Result<bool, NetError> {
        let (at, bytes, message) = match self.cursor.next() {
            None => return Ok(false),
            Some(Next::Signature) => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.ends.ring() };
                if ring.tail.load(sending::SIGNATURES) <= self.told {
                    return Ok(false);
                }
                (ring.entry(self.told).cast_const(), SIGNATURE_BYTES, Message::Signature)
            }
            Some(Next::Step(protocol)) => match self.slot(protocol)? {
                Some((at, bytes)) => (at, bytes, Message::Step),
                None => return Ok(false),
            },
        };
        // SAFETY: inside the registered memory; the kernel writes neither before `sent` gives it back.
        let request = unsafe { self.comm.isend(at, bytes, 0, self.reach.of(at as u64))? };
        let Some(request) = request else { return Ok(false) };
        self.requests.push_back((request, message));
        match message {
            Message::Signature => {
                self.told += 1;
                self.cursor.signatures += 1;
            }
            Message::Step => {
                self.transmitted += 1;
                self.cursor.steps += 1;
                self.looked = 0;
            }
        }
        Ok(true)
    }

    /// A message is sent: its place is the kernel's again.
    fn sent(&mut self, message: Message) {
        match message {
            Message::Signature => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.ends.ring() };
                // Signatures are sent in order.
                ring.ack.store(ring.ack.load(orders::OWN) + 1, sending::ACKNOWLEDGED);
            }
            Message::Step => {
                self.done += 1;
                if let Some(conn) = &self.ends.conn {
                    // SAFETY: `new`'s contract.
                    unsafe { header(conn, offset_of!(ConnHeader, head)) }
                        .store(self.done, sending::HEAD);
                }
            }
        }
    }

    /// The next slot, once the kernel has filled it: where, and how many bytes.
    fn slot(&mut self, protocol: ProtocolId) -> Result<Option<(*const u8, usize)>, NetError> {
        let Some(conn) = &self.ends.conn else {
            return Err(NetError::new("proxy", "isend", "a connection without slots has steps"));
        };
        let step = self.transmitted;
        let index = step % u64::from(conn.slots);
        // SAFETY: `new`'s contract; an entry for each slot.
        let entry = unsafe { word(conn.fifo + 8 * index) }.load(sending::ENTRY);
        let Some(bytes) = fifo_bytes(entry, step) else { return Ok(None) };
        let (bytes, room) = (bytes as usize, conn.slot_bytes[protocol as usize] as usize);
        if bytes > room {
            let reason =
                format!("a kernel has put {bytes} bytes into a slot of {room} ({protocol})");
            return Err(NetError::new("proxy", "isend", reason).with_peer(conn.peer));
        }
        let at = conn.buffers[protocol as usize] + index * room as u64;
        let full = match protocol {
            // SAFETY: `new`'s contract.
            ProtocolId::Simple => unsafe {
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

    /// Whether all lines have come; goes on where it was the last time.
    fn look(&mut self, at: u64, bytes: usize, line: usize, has_come: impl Fn(u64) -> bool) -> bool {
        while self.looked < bytes {
            if !has_come(at + self.looked as u64) {
                return false;
            }
            self.looked += line;
        }
        // What the network reads comes after the flags.
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

//! The receiving end.

use std::collections::VecDeque;
use std::mem::offset_of;

use ferroccl_device::abi::{ConnHeader, ProtocolId, SIGNATURES};

use super::orders::{self, receiving};
use super::send::header;
use super::{Cursor, Ends, Message, Next, Registered, SIGNATURE_BYTES, Steps};
use crate::net::{MAX_REQUESTS, MemoryKind, RecvBuffer, RecvComm, Request};
use crate::{NetError, Progress};

/// Receives into slots for a kernel.
#[derive(Debug)]
pub struct Receiving {
    ends: Ends,
    comm: Box<dyn RecvComm>,
    memory: Registered,
    cursor: Cursor,
    requests: VecDeque<(Request, Message)>,
    /// Signatures for which there is a buffer.
    heard: u64,
    /// Steps for which there is a buffer.
    posted: u64,
    /// Steps that the kernel may read.
    done: u64,
}

impl Receiving {
    /// Over a network's connection, from step `first` on.
    ///
    /// # Errors
    /// When the network can't reach the memory.
    ///
    /// # Safety
    /// As [`Sending::new`](super::Sending::new), with a kernel that receives.
    pub unsafe fn new(
        ends: Ends,
        mut comm: Box<dyn RecvComm>,
        first: u64,
    ) -> Result<Self, NetError> {
        let (address, bytes) = ends.memory;
        // SAFETY: the caller's.
        let memory = unsafe { comm.register(address as *mut u8, bytes, MemoryKind::Host)? };
        Ok(Receiving {
            ends,
            comm,
            memory: Registered(memory),
            cursor: Cursor::default(),
            requests: VecDeque::new(),
            heard: 0,
            posted: first,
            done: first,
        })
    }

    /// Adds what the next call has.
    pub fn push(&mut self, steps: Steps) {
        self.cursor.push(steps);
    }

    /// The call whose data is awaited; `None` when all has come.
    pub fn seq(&mut self) -> Option<u64> {
        let more = self.cursor.next().is_some();
        self.cursor.seq().or((more || !self.requests.is_empty()).then_some(0))
    }

    /// Does what can be done at once.
    ///
    /// # Errors
    /// When the connection is broken, or a message is not what it should be.
    pub fn progress(&mut self) -> Result<Progress, NetError> {
        let mut moved = false;
        while self.requests.len() < MAX_REQUESTS && self.begin()? {
            moved = true;
        }
        while let Some(&(request, message)) = self.requests.front() {
            let mut size = [0];
            if !self.comm.test(request, &mut size)? {
                break;
            }
            self.requests.pop_front();
            self.arrived(message, size[0])?;
            moved = true;
        }
        let done = self.requests.is_empty() && self.cursor.next().is_none();
        Ok(match (done, moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            _ => Progress::Idle,
        })
    }

    /// Names the next buffer, if it is free and the network takes it.
    fn begin(&mut self) -> Result<bool, NetError> {
        let (address, bytes, message) = match self.cursor.next() {
            None => return Ok(false),
            Some(Next::Signature) => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.ends.ring() };
                if ring.ack.load(receiving::ACKNOWLEDGED) + SIGNATURES as u64 <= self.heard {
                    return Ok(false);
                }
                (ring.entry(self.heard), SIGNATURE_BYTES, Message::Signature)
            }
            Some(Next::Step(protocol)) => match self.slot(protocol)? {
                Some((at, bytes)) => (at, bytes, Message::Step),
                None => return Ok(false),
            },
        };
        let buffer = RecvBuffer { address, bytes, tag: 0, memory: self.memory.0 };
        // SAFETY: inside the registered memory; the kernel reads it only after `arrived`.
        let request = unsafe { self.comm.irecv(&[buffer])? };
        let Some(request) = request else { return Ok(false) };
        self.requests.push_back((request, message));
        match message {
            Message::Signature => {
                self.heard += 1;
                self.cursor.signatures += 1;
            }
            Message::Step => {
                self.posted += 1;
                self.cursor.steps += 1;
            }
        }
        Ok(true)
    }

    /// The next slot, once the kernel has emptied it.
    fn slot(&self, protocol: ProtocolId) -> Result<Option<(*mut u8, usize)>, NetError> {
        let Some(conn) = &self.ends.conn else {
            return Err(NetError::new("proxy", "irecv", "a connection without slots has steps"));
        };
        // SAFETY: `new`'s contract.
        let head = unsafe { header(conn, offset_of!(ConnHeader, head)) }.load(receiving::HEAD);
        if head + u64::from(conn.slots) <= self.posted {
            return Ok(None);
        }
        let room = conn.slot_bytes[protocol as usize] as usize;
        let index = self.posted % u64::from(conn.slots);
        let at = conn.buffers[protocol as usize] + index * room as u64;
        Ok(Some((at as *mut u8, room)))
    }

    /// A message has come: the kernel may read it.
    fn arrived(&mut self, message: Message, size: usize) -> Result<(), NetError> {
        match message {
            Message::Signature if size != SIGNATURE_BYTES => {
                let reason = format!("a signature of {size} bytes instead of {SIGNATURE_BYTES}");
                return Err(NetError::new("proxy", "irecv", reason));
            }
            Message::Signature => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.ends.ring() };
                // Signatures come in order.
                ring.tail.store(ring.tail.load(orders::OWN) + 1, receiving::SIGNATURES);
            }
            Message::Step => {
                self.done += 1;
                if let Some(conn) = &self.ends.conn {
                    // SAFETY: `new`'s contract.
                    unsafe { header(conn, offset_of!(ConnHeader, tail)) }
                        .store(self.done, receiving::TAIL);
                }
            }
        }
        Ok(())
    }
}

//! The receiving end.

use std::collections::VecDeque;
use std::mem::offset_of;

use ferroccl_device::abi::{ConnHeader, ProtocolId, SIGNATURES};

use super::orders::{self, receiving};
use super::registrations::Registrations;
use super::send::header;
use super::{ConnMemory, MessageKind, NextMessage, SIGNATURE_BYTES, StepCursor, StepEvent, Steps};
use crate::net::{MAX_REQUESTS, RecvBuffer, RecvComm, Request};
use crate::{NetError, Progress};

/// Receives steps into slots for a kernel: the sender's part towards that kernel.
#[derive(Debug)]
pub struct Receiving {
    memory: ConnMemory,
    comm: Box<dyn RecvComm>,
    registrations: Registrations,
    cursor: StepCursor,
    requests: VecDeque<(Request, Pending)>,
    /// The last message that has arrived in GPU memory since the last flush was begun: address and bytes.
    unflushed: Option<(u64, usize)>,
    /// The flush that is under way, and the number of steps that had arrived before it.
    flush: Option<(Request, u64)>,
    /// Signatures for which `irecv` was called.
    heard: u64,
    /// Steps for which `irecv` was called.
    posted: u64,
    /// Steps that have arrived.
    transmitted: u64,
    /// Steps that the kernel may read.
    done: u64,
    /// What has happened, for who is told.
    events: Option<Vec<StepEvent>>,
}

/// A message that is under way, and where it goes.
#[derive(Clone, Copy, Debug)]
struct Pending {
    message: MessageKind,
    at: u64,
    /// Whether it is the last one of a call.
    last: bool,
}

impl Receiving {
    /// Over a network's connection, from step `first` on.
    ///
    /// # Errors
    /// When the network cannot reach the memory.
    ///
    /// # Safety
    /// As [`Sending::new`](super::Sending::new), with a kernel that receives.
    pub unsafe fn new(
        memory: ConnMemory,
        mut comm: Box<dyn RecvComm>,
        first: u64,
    ) -> Result<Self, NetError> {
        let registrations = Registrations::new(&memory, |(address, bytes), kind| {
            // SAFETY: the caller's.
            unsafe { comm.register(address as *mut u8, bytes, kind) }
        })?;
        Ok(Receiving {
            memory,
            comm,
            registrations,
            cursor: StepCursor::default(),
            requests: VecDeque::new(),
            unflushed: None,
            flush: None,
            heard: 0,
            posted: first,
            transmitted: first,
            done: first,
            events: None,
        })
    }

    /// Adds the steps of the next call.
    pub fn push(&mut self, steps: Steps) {
        self.cursor.push(steps);
    }

    /// The number of the call whose data is awaited; `None` when all has arrived.
    pub fn seq(&mut self) -> Option<u64> {
        let more = self.cursor.next().is_some();
        self.cursor.seq().or((more || self.is_awaiting()).then_some(0))
    }

    /// Whether anything is under way.
    fn is_awaiting(&self) -> bool {
        !self.requests.is_empty() || self.done < self.transmitted
    }

    /// Makes progress without waiting.
    ///
    /// # Errors
    /// When the connection is broken, or a message is not what it should be.
    pub fn progress(&mut self) -> Result<Progress, NetError> {
        let mut moved = false;
        // A flush is a request, too.
        let most = MAX_REQUESTS - usize::from(self.registrations.ever_flushes());
        while self.requests.len() < most && self.begin()? {
            moved = true;
        }
        while let Some(&(request, pending)) = self.requests.front() {
            let mut size = [0];
            if !self.comm.test(request, &mut size)? {
                break;
            }
            self.requests.pop_front();
            self.arrived(pending, size[0])?;
            moved = true;
            if pending.last {
                // The kernel waits for it. What else may have come is the next call's.
                break;
            }
        }
        moved |= self.deliver()?;
        let done = !self.is_awaiting() && self.cursor.next().is_none();
        Ok(match (done, moved) {
            (true, _) => Progress::Done,
            (_, true) => Progress::Moved,
            _ => Progress::Idle,
        })
    }

    /// Gives the network the next buffer, if the kernel has emptied it and the network accepts it.
    fn begin(&mut self) -> Result<bool, NetError> {
        let (address, bytes, message) = match self.cursor.next() {
            None => return Ok(false),
            Some(NextMessage::Signature) => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.memory.ring() };
                if ring.ack.load(receiving::ACKNOWLEDGED) + SIGNATURES as u64 <= self.heard {
                    return Ok(false);
                }
                (ring.entry(self.heard), SIGNATURE_BYTES, MessageKind::Signature)
            }
            Some(NextMessage::Step(protocol)) => match self.slot(protocol) {
                Some((at, bytes)) => (at, bytes, MessageKind::Step),
                None => return Ok(false),
            },
        };
        let at = address as u64;
        // SAFETY: inside the registered memory; the kernel reads it only after `arrived`, or `deliver`.
        let request = unsafe { self.comm.irecv(&[self.buffer(at, bytes)])? };
        let Some(request) = request else { return Ok(false) };
        match message {
            MessageKind::Signature => {
                self.heard += 1;
                self.cursor.signatures += 1;
            }
            MessageKind::Step => {
                self.tell(StepEvent::Begun(0));
                self.posted += 1;
                self.cursor.steps += 1;
            }
        }
        let last = self.cursor.is_between_calls();
        self.requests.push_back((request, Pending { message, at, last }));
        Ok(true)
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

    /// The next slot, once the kernel has emptied it.
    fn slot(&self, protocol: ProtocolId) -> Option<(*mut u8, usize)> {
        let conn = &self.memory.conn;
        // SAFETY: `new`'s contract.
        let head = unsafe { header(conn, offset_of!(ConnHeader, head)) }.load(receiving::HEAD);
        if head + u64::from(conn.slots) <= self.posted {
            return None;
        }
        let room = conn.slot_bytes[protocol.index()] as usize;
        let index = self.posted % u64::from(conn.slots);
        let at = conn.buffers[protocol.index()] + index * room as u64;
        Some((at as *mut u8, room))
    }

    fn buffer(&self, at: u64, bytes: usize) -> RecvBuffer {
        RecvBuffer { address: at as *mut u8, bytes, tag: 0, memory: self.registrations.of(at) }
    }

    /// A message has arrived.
    fn arrived(
        &mut self,
        Pending { message, at, .. }: Pending,
        size: usize,
    ) -> Result<(), NetError> {
        match message {
            MessageKind::Signature if size != SIGNATURE_BYTES => {
                let reason = format!("a signature of {size} bytes instead of {SIGNATURE_BYTES}");
                return Err(NetError::new("proxy", "irecv", reason));
            }
            MessageKind::Signature => {
                // SAFETY: `new`'s contract.
                let ring = unsafe { self.memory.ring() };
                // Signatures come in order.
                ring.tail.store(ring.tail.load(orders::OWN) + 1, receiving::SIGNATURES);
            }
            MessageKind::Step => {
                self.tell(StepEvent::Arrived(size));
                self.transmitted += 1;
                if size > 0 && self.registrations.flushes(at) {
                    self.unflushed = Some((at, size));
                }
            }
        }
        Ok(())
    }

    /// Publishes what has arrived to the kernel, once its GPU is sure to see it. One flush serves all messages before it.
    fn deliver(&mut self) -> Result<bool, NetError> {
        let mut moved = false;
        if let Some((request, until)) = self.flush {
            if !self.comm.test(request, &mut [0])? {
                return Ok(false);
            }
            self.flush = None;
            self.publish(until);
            moved = true;
        }
        if self.done == self.transmitted {
            return Ok(moved);
        }
        if let Some((at, bytes)) = self.unflushed.take() {
            // SAFETY: inside the registered memory, and not written before the kernel has given it back.
            let request = unsafe { self.comm.iflush(&[self.buffer(at, bytes)])? };
            if let Some(request) = request {
                self.flush = Some((request, self.transmitted));
                return Ok(true);
            }
        }
        self.publish(self.transmitted);
        Ok(true)
    }

    /// The kernel may read all steps below `until`.
    fn publish(&mut self, until: u64) {
        for _ in self.done..until {
            self.tell(StepEvent::Ended);
        }
        self.done = until;
        // SAFETY: `new`'s contract.
        let tail = unsafe { header(&self.memory.conn, offset_of!(ConnHeader, tail)) };
        tail.store(until, receiving::TAIL);
    }
}

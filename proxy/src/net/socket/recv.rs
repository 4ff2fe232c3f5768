//! The receiving end.
//!
//! Headers are read only for buffers that have been given, so that what nobody has asked for stays in the sockets and
//! holds the sender up.

use std::io;

use super::line::{INLINE, Line};
use super::wire::{HEADER, Header};
use super::{error, stream};
use crate::NetError;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, RecvBuffer, RecvComm, Request};

/// Bytes read from the control socket at a time: the longest message that goes there, and some headers.
const READ: usize = INLINE + (4 << 10);

/// A buffer that is given, or holds a message that is not fetched.
#[derive(Debug)]
struct Buffer {
    at: *mut u8,
    bytes: usize,
    tag: u32,
    /// Of the message, once its header has come.
    size: Option<usize>,
    /// Bytes of it that are here, of one that comes with its header.
    here: usize,
}

/// What has come on the control socket and is not used yet: `bytes[start..end]`.
#[derive(Debug)]
struct Came {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Came {
    fn left(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads more; whether there was any.
    fn more(&mut self, control: &socket2::Socket) -> io::Result<bool> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = &mut self.bytes[self.end..];
        // SAFETY: these bytes are ours. There are some: at most a part of a header was left.
        let read = unsafe { stream::recv(control, room.as_mut_ptr(), room.len())? };
        self.end += read.unwrap_or(0);
        Ok(read.is_some())
    }
}

#[derive(Debug)]
pub(super) struct Receiver {
    line: Line,
    buffers: [Option<Buffer>; MAX_REQUESTS],
    came: Came,
    /// The message whose part on the control socket is being read; those before it are here, or on their way on the lanes.
    reading: u64,
    /// Why nothing more will come: told when the messages that are on their way are here.
    ending: Option<String>,
}

// SAFETY: whoever gives a buffer lets it be, from whatever thread, until it is filled or the connection dropped.
unsafe impl Send for Receiver {}

impl Receiver {
    pub(super) fn new(line: Line) -> Receiver {
        let came = Came { bytes: vec![0; READ].into(), start: 0, end: 0 };
        let buffers = [const { None }; MAX_REQUESTS];
        Receiver { line, buffers, came, reading: 0, ending: None }
    }

    /// Does what can be done at once.
    fn progress(&mut self) {
        if self.line.is_broken() {
            return;
        }
        while self.ending.is_none() && self.reading < self.line.next {
            match self.read_control() {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => self.ending = Some(reason),
            }
        }
        self.line.lanes.pump();
        if let Some(fault) = self.line.lanes.board().fault() {
            let fault = fault.to_owned();
            self.line.fail(fault);
        } else if self.ending.is_some() && self.lanes_are_through() {
            let reason = self.ending.take().unwrap_or_default();
            self.line.fail(reason);
        }
    }

    fn lanes_are_through(&self) -> bool {
        (0..MAX_REQUESTS).all(|slot| self.line.lanes.board().is_through(slot))
    }

    /// Moves the message on whose turn it is on the control socket; whether there may be more to do at once.
    fn read_control(&mut self) -> Result<bool, String> {
        let slot = Line::slot(self.reading);
        let Some(buffer) = &mut self.buffers[slot] else { return Ok(false) };
        let Some(size) = buffer.size else {
            let Some(bytes) = self.came.left().first_chunk::<HEADER>() else {
                return self.came.more(&self.line.control).map_err(|e| stream::lost(&e));
            };
            let header = Header::decode(bytes).map_err(|e| format!("a message's header {e}"))?;
            let size = checked(&header, self.reading, buffer)?;
            self.came.start += HEADER;
            buffer.size = Some(size);
            if size > INLINE {
                // SAFETY: `irecv`'s contract; that many bytes fit.
                unsafe { self.line.lanes.carry(buffer.at, size, slot) };
                self.reading += 1;
            }
            return Ok(true);
        };
        let left = self.came.left();
        let copied = left.len().min(size - buffer.here);
        // SAFETY: `irecv`'s contract; that many bytes fit, and `came` is no memory of the caller's.
        unsafe {
            left.as_ptr().copy_to_nonoverlapping(buffer.at.wrapping_add(buffer.here), copied);
        };
        self.came.start += copied;
        buffer.here += copied;
        let missing = size - buffer.here;
        if missing == 0 {
            self.reading += 1;
            return Ok(true);
        }
        // SAFETY: the same; nothing is left in between, and more than 0 bytes are missing.
        let read = unsafe {
            stream::recv(&self.line.control, buffer.at.wrapping_add(buffer.here), missing)
        };
        let read = read.map_err(|e| stream::lost(&e))?;
        buffer.here += read.unwrap_or(0);
        Ok(read.is_some())
    }
}

/// The size of a message, if it is the one that is due and fits.
fn checked(header: &Header, sequence: u64, buffer: &Buffer) -> Result<usize, String> {
    let Header { tag, sequence: theirs, size } = *header;
    if theirs != sequence {
        return Err(format!("message {theirs} came, where {sequence} is due"));
    }
    if tag != buffer.tag {
        return Err(format!("message {sequence} has tag {tag}, its buffer {}", buffer.tag));
    }
    usize::try_from(size)
        .ok()
        .filter(|&size| size <= buffer.bytes)
        .ok_or_else(|| format!("message {sequence} has {size} bytes, its buffer {}", buffer.bytes))
}

impl RecvComm for Receiver {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        self.line.memory.register(address, bytes, kind)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.line.memory.deregister(memory)
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.line.check("irecv")?;
        let &[RecvBuffer { address, bytes, tag, memory }] = buffers else {
            return Err(error("irecv", format!("{} buffers, where 1 goes", buffers.len())));
        };
        self.line.memory.check("irecv", address, bytes, memory)?;
        let sequence = self.line.next;
        let slot = Line::slot(sequence);
        if self.buffers[slot].is_some() {
            self.progress();
            return self.line.check("irecv").map(|()| None);
        }
        let at = if bytes == 0 { std::ptr::dangling_mut() } else { address };
        self.buffers[slot] = Some(Buffer { at, bytes, tag, size: None, here: 0 });
        self.line.next += 1;
        Ok(Some(self.line.request(sequence)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        self.line.check_told("test")?;
        let sequence = self.line.sequence(request)?;
        let slot = Line::slot(sequence);
        if self.buffers[slot].is_none() {
            return Err(self.line.no_such(request));
        }
        let Some(place) = sizes.first_mut() else {
            return Err(error("test", "there is no room for the size of 1 message"));
        };
        let mut looked = false;
        loop {
            if sequence < self.reading && self.line.lanes.board().is_through(slot) {
                *place = self.buffers[slot].take().and_then(|b| b.size).unwrap_or(0);
                return Ok(true);
            }
            if looked {
                return self.line.check("test").map(|()| false);
            }
            self.progress();
            looked = true;
        }
    }

    /// The host's memory has what has arrived.
    unsafe fn iflush(&mut self, _: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.line.check("iflush").map(|()| None)
    }
}

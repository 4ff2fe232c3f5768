//! The sending end.
//!
//! A message's part on the control socket is its header, and its bytes if they are few. Those parts are written in the
//! order of the messages; the other messages' bytes go over the [data sockets](super::data_sockets) meanwhile.

use std::slice;

use super::endpoint::SocketEndpoint;
use super::register;
use super::wire::{HEADER, Header};
use crate::NetError;
use crate::net::comm_base::CommBase;
use crate::net::handshake::stream;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, Request, SendComm};

/// A message that is under way, or done and not fetched.
#[derive(Debug)]
struct OutgoingMessage {
    at: *const u8,
    bytes: usize,
    header: [u8; HEADER],
}

#[derive(Debug)]
pub(super) struct SocketSendComm {
    endpoint: SocketEndpoint,
    messages: [Option<OutgoingMessage>; MAX_REQUESTS],
    /// The message whose part on the control socket is being written; those before it are there.
    writing: u64,
    /// Bytes of that part that are written.
    written: usize,
}

// SAFETY: whoever sends a message lets its bytes be, from whatever thread, until it is done or the connection dropped.
unsafe impl Send for SocketSendComm {}

impl SocketSendComm {
    pub(super) fn new(endpoint: SocketEndpoint) -> SocketSendComm {
        SocketSendComm {
            endpoint,
            messages: [const { None }; MAX_REQUESTS],
            writing: 0,
            written: 0,
        }
    }

    /// Does what can be done at once.
    fn progress(&mut self) {
        if self.endpoint.base.is_broken() {
            return;
        }
        let moved = self.write_control().unwrap_or_else(|error| {
            self.endpoint.fail_io(&error);
            true
        });
        let moved = self.endpoint.data_sockets.progress() || moved;
        if let Some(fault) = self.endpoint.data_sockets.status().fault() {
            let fault = fault.to_owned();
            self.endpoint.fail(fault);
        } else if !moved {
            self.look();
        }
    }

    fn write_control(&mut self) -> std::io::Result<bool> {
        let mut moved = false;
        while self.writing < self.endpoint.base.next {
            let Some(message) = &self.messages[CommBase::slot(self.writing)] else { break };
            let inline = if message.bytes <= self.endpoint.inline { message.bytes } else { 0 };
            let header = message.header.get(self.written..).unwrap_or_default();
            let offset = self.written.saturating_sub(HEADER);
            // SAFETY: a part of the message, which `isend`'s caller lets us read.
            let data =
                unsafe { slice::from_raw_parts(message.at.wrapping_add(offset), inline - offset) };
            let sent = match data {
                [] => stream::send(&self.endpoint.control, header)?,
                data => stream::send_both(&self.endpoint.control, header, data)?,
            };
            let Some(sent) = sent else { break };
            moved = true;
            self.written += sent;
            if self.written == HEADER + inline {
                (self.writing, self.written) = (self.writing + 1, 0);
            }
        }
        Ok(moved)
    }

    /// Notices that the receiver is gone: it says nothing on the control socket as long as it is there. On data sockets that
    /// wait for it, TCP would ask again for a quarter of an hour before it gave up; here its keepalive does so sooner.
    fn look(&mut self) {
        let mut byte = 0;
        // SAFETY: a byte of ours.
        match unsafe { stream::recv(&self.endpoint.control, &mut byte, 1) } {
            Ok(None) => {}
            Ok(Some(_)) => {
                self.endpoint.fail(format!("it said {byte:#04x}, where receivers are silent"));
            }
            Err(error) => self.endpoint.fail_io(&error),
        }
    }
}

impl SendComm for SocketSendComm {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        register(&mut self.endpoint.memory, (address, bytes), kind)
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.endpoint.memory.remove(memory)
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        self.endpoint.base.check("isend")?;
        self.endpoint.memory.check("isend", address, bytes, memory)?;
        let sequence = self.endpoint.base.next;
        let slot = CommBase::slot(sequence);
        if self.messages[slot].is_some() {
            self.progress();
            return self.endpoint.base.check("isend").map(|()| None);
        }
        let header = Header { tag, sequence, size: bytes as u64 }.encode();
        // The address of nothing may be anything, and a slice's may not.
        let at = if bytes == 0 { std::ptr::dangling() } else { address };
        self.messages[slot] = Some(OutgoingMessage { at, bytes, header });
        self.endpoint.base.next += 1;
        if bytes > self.endpoint.inline {
            // SAFETY: the caller's.
            unsafe { self.endpoint.data_sockets.submit(at.cast_mut(), bytes, slot) };
        }
        self.progress();
        self.endpoint.base.check("isend")?;
        Ok(Some(self.endpoint.base.request(sequence)))
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        self.endpoint.base.check_told("test")?;
        let sequence = self.endpoint.base.sequence(request)?;
        let slot = CommBase::slot(sequence);
        if self.messages[slot].is_none() {
            return Err(self.endpoint.base.no_such(request));
        }
        let mut looked = false;
        loop {
            if sequence < self.writing && self.endpoint.data_sockets.status().is_done(slot) {
                self.messages[slot] = None;
                return Ok(true);
            }
            if looked {
                return self.endpoint.base.check("test").map(|()| false);
            }
            self.progress();
            looked = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::super::data_sockets::Direction;
    use super::*;

    /// While a message waits on a data socket, the control socket tells what has become of the receiver.
    #[test]
    fn a_receiver_that_says_anything_or_goes_is_noticed_at_once() {
        for (says, wanted) in [(true, "it said 0x78"), (false, "it closed the connection")] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = listener.local_addr().unwrap();
            let ours = [0; 2].map(|_| socket2::Socket::from(TcpStream::connect(peer).unwrap()));
            ours.iter().for_each(|socket| stream::prepare(socket).unwrap());
            let [mut control, data] = [0; 2].map(|_| listener.accept().unwrap().0);
            let [our_control, our_data] = ours;
            let endpoint =
                SocketEndpoint::new(peer, our_control, vec![our_data], 0, Direction::Send);
            let mut sender = SocketSendComm::new(endpoint);
            let mut bytes = vec![1u8; 64 << 20];
            let (at, length) = (bytes.as_mut_ptr(), bytes.len());
            // SAFETY: the bytes outlive what is under way: it ends with an error.
            let request = unsafe {
                let memory = sender.register(at, length, MemoryKind::Host).unwrap();
                sender.isend(at, length, 0, memory).unwrap().unwrap()
            };
            for _ in 0..20 {
                assert_eq!(sender.test(request), Ok(false), "nobody reads it");
            }
            if says {
                control.write_all(b"x").unwrap();
            } else {
                drop(control);
            }
            let ask = |_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                sender.test(request).err()
            };
            let error = (0..10_000).find_map(ask).unwrap();
            assert!(error.reason.contains(wanted), "{error}");
            drop(data);
        }
    }
}

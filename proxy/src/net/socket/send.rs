//! The sending end.
//!
//! A message's part on the control socket is its header, and its bytes if they are few. Those parts are written in the
//! order of the messages; the other messages' bytes go over the [data sockets](super::data_sockets) meanwhile.

use std::io::IoSlice;
use std::slice;

use super::endpoint::SocketEndpoint;
use super::register;
use super::wire::{HEADER, Header};
use crate::NetError;
use crate::net::comm_base::CommBase;
use crate::net::handshake::stream;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, Request, SendComm};

/// Messages of which a system call writes at most. A call has two at once, its signature and its first step.
const MESSAGES_PER_CALL: usize = 8;

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
    /// Whether short messages wait for those that follow.
    corked: bool,
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
            corked: false,
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

    /// Writes the messages' parts on the control socket, several in a system call.
    fn write_control(&mut self) -> std::io::Result<bool> {
        let mut moved = false;
        while self.writing < self.endpoint.base.next {
            let (mut parts, mut skip) = ([IoSlice::new(&[]); 2 * MESSAGES_PER_CALL], self.written);
            let messages = self.writing..self.endpoint.base.next;
            for (sequence, parts) in messages.zip(parts.as_chunks_mut::<2>().0) {
                let Some(message) = &self.messages[CommBase::slot(sequence)] else { break };
                let header = message.header.get(skip..).unwrap_or_default();
                let offset = skip.saturating_sub(HEADER);
                let (at, bytes) = (message.at, self.inline_bytes(message));
                // SAFETY: a part of the message, which `isend`'s caller lets us read.
                let data =
                    unsafe { slice::from_raw_parts(at.wrapping_add(offset), bytes - offset) };
                *parts = [header, data].map(IoSlice::new);
                skip = 0;
            }
            let Some(sent) = stream::send_parts(&self.endpoint.control, &parts)? else { break };
            moved = true;
            self.written += sent;
            while self.writing < self.endpoint.base.next
                && let Some(message) = &self.messages[CommBase::slot(self.writing)]
                && let Some(beyond) = self.written.checked_sub(HEADER + self.inline_bytes(message))
            {
                (self.writing, self.written) = (self.writing + 1, beyond);
            }
        }
        Ok(moved)
    }

    /// How many of a message's bytes follow its header.
    fn inline_bytes(&self, message: &OutgoingMessage) -> usize {
        if message.bytes <= self.endpoint.inline { message.bytes } else { 0 }
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
        // A short one may wait for those that follow it: a call's signature and its first step are one system call.
        if !self.corked || bytes > self.endpoint.inline {
            self.progress();
        }
        self.endpoint.base.check("isend")?;
        Ok(Some(self.endpoint.base.request(sequence)))
    }

    fn cork(&mut self, corked: bool) {
        self.corked = corked;
        if !corked && self.writing < self.endpoint.base.next {
            self.progress();
        }
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
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::super::data_sockets::Direction;
    use super::*;

    /// A connection's sending end with one data socket, and the receiver's control and data sockets.
    fn sender() -> (SocketSendComm, [TcpStream; 2]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let ours = [0; 2].map(|_| socket2::Socket::from(TcpStream::connect(peer).unwrap()));
        ours.iter().for_each(|socket| stream::prepare(socket).unwrap());
        let theirs = [0; 2].map(|_| listener.accept().unwrap().0);
        let [our_control, our_data] = ours;
        let endpoint = SocketEndpoint::new(peer, our_control, vec![our_data], 0, Direction::Send);
        (SocketSendComm::new(endpoint), theirs)
    }

    /// More messages than a system call takes, with and without bytes, are kept back while the connection is corked, and are all
    /// there afterwards, in order.
    #[test]
    fn short_messages_of_a_corked_connection_go_when_it_is_uncorked() {
        let (mut sender, [mut control, _data]) = sender();
        let mut bytes: Vec<u8> = (0..=255).collect();
        let lengths: Vec<usize> = (0..MAX_REQUESTS).map(|i| i * 37 % 101).collect();
        let at = bytes.as_mut_ptr();
        sender.cork(true);
        // SAFETY: the bytes outlive what is under way.
        let requests: Vec<Request> = unsafe {
            let memory = sender.register(at, bytes.len(), MemoryKind::Host).unwrap();
            let isend = |&length: &usize| sender.isend(at, length, 0, memory).unwrap().unwrap();
            lengths.iter().map(isend).collect()
        };
        control.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        let nothing = control.read(&mut [0]).unwrap_err();
        assert!(matches!(nothing.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{nothing}");
        sender.cork(false);
        control.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        for (sequence, length) in (0..).zip(&lengths) {
            let mut header = [0; HEADER];
            control.read_exact(&mut header).unwrap();
            let wanted = Header { tag: 0, sequence, size: *length as u64 };
            assert_eq!(Header::decode(&header), Ok(wanted));
            let mut data = vec![0; *length];
            control.read_exact(&mut data).unwrap();
            assert_eq!(data, bytes[..*length]);
        }
        assert!(requests.into_iter().all(|request| sender.test(request) == Ok(true)));
    }

    /// While a message waits on a data socket, the control socket tells what has become of the receiver.
    #[test]
    fn a_receiver_that_says_anything_or_goes_is_noticed_at_once() {
        for (says, wanted) in [(true, "it said 0x78"), (false, "it closed the connection")] {
            let (mut sender, [mut control, data]) = sender();
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

//! The receiving end.
//!
//! Headers are read only for buffers that have been given, so that what nobody has asked for stays in the sockets and
//! holds the sender up.

use std::{fmt, io};

use super::endpoint::{INLINE, SocketEndpoint};
use super::wire::{HEADER, Header};
use super::{error, register};
use crate::NetError;
use crate::net::comm_base::CommBase;
use crate::net::handshake::stream;
use crate::net::{MAX_REQUESTS, MemoryHandle, MemoryKind, RecvBuffer, RecvComm, Request};

/// Bytes read from the control socket at a time: the longest message that is worth a copy, and some headers.
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
struct ReadBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether the last read took all that there was, so that another one at once would find nothing.
    drained: bool,
}

impl fmt::Debug for ReadBuffer {
    /// Without the bytes: 20 thousand are no line of a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, left) = (self.bytes.len(), self.left().len());
        f.debug_struct("ReadBuffer")
            .field("bytes", &bytes)
            .field("left", &left)
            .finish_non_exhaustive()
    }
}

impl ReadBuffer {
    fn left(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads more, of a header only if `sparing`; whether there was any.
    fn more(&mut self, control: &socket2::Socket, sparing: bool) -> io::Result<bool> {
        if self.drained {
            return Ok(false);
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let until = if sparing { HEADER } else { self.bytes.len() };
        let room = &mut self.bytes[self.end..until];
        // SAFETY: these bytes are ours. There are some: at most a part of a header was left.
        let read = unsafe { stream::recv(control, room.as_mut_ptr(), room.len())? };
        self.end += read.unwrap_or(0);
        self.drained = self.end < until;
        Ok(read.is_some())
    }
}

#[derive(Debug)]
pub(super) struct SocketRecvComm {
    endpoint: SocketEndpoint,
    buffers: [Option<Buffer>; MAX_REQUESTS],
    read_buffer: ReadBuffer,
    /// Whether messages are too long to be worth a copy, so that nothing but headers is to come into `read_buffer`.
    sparing: bool,
    /// The message whose part on the control socket is being read; those before it are here, or on their way on data sockets.
    reading: u64,
    /// Why nothing more will come: told when the messages that are on their way are here.
    ending: Option<String>,
}

// SAFETY: whoever gives a buffer lets it be, from whatever thread, until it is filled or the connection dropped.
unsafe impl Send for SocketRecvComm {}

impl SocketRecvComm {
    pub(super) fn new(endpoint: SocketEndpoint) -> SocketRecvComm {
        let read_buffer =
            ReadBuffer { bytes: vec![0; READ].into(), start: 0, end: 0, drained: false };
        let buffers = [const { None }; MAX_REQUESTS];
        SocketRecvComm { endpoint, buffers, read_buffer, sparing: false, reading: 0, ending: None }
    }

    /// Does what can be done at once.
    fn progress(&mut self) {
        if self.endpoint.base.is_broken() {
            return;
        }
        self.read_buffer.drained = false;
        while self.ending.is_none() && self.reading < self.endpoint.base.next {
            match self.read_control() {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => self.ending = Some(reason),
            }
        }
        self.endpoint.data_sockets.progress();
        if let Some(fault) = self.endpoint.data_sockets.status().fault() {
            let fault = fault.to_owned();
            self.endpoint.fail(fault);
        } else if self.ending.is_some() && self.data_sockets_are_done() {
            let reason = self.ending.take().unwrap_or_default();
            self.endpoint.fail(reason);
        }
    }

    fn data_sockets_are_done(&self) -> bool {
        (0..MAX_REQUESTS).all(|slot| self.endpoint.data_sockets.status().is_done(slot))
    }

    /// Moves the message on whose turn it is on the control socket; whether there may be more to do at once.
    fn read_control(&mut self) -> Result<bool, String> {
        let slot = CommBase::slot(self.reading);
        let Some(buffer) = &mut self.buffers[slot] else { return Ok(false) };
        let Some(size) = buffer.size else {
            let Some(bytes) = self.read_buffer.left().first_chunk::<HEADER>() else {
                let more = self.read_buffer.more(&self.endpoint.control, self.sparing);
                return more.map_err(|e| stream::lost(&e));
            };
            let header = Header::decode(bytes).map_err(|e| format!("a message's header {e}"))?;
            let size = checked(&header, self.reading, buffer)?;
            self.read_buffer.start += HEADER;
            buffer.size = Some(size);
            self.sparing = size > INLINE && size <= self.endpoint.inline;
            if size > self.endpoint.inline {
                // SAFETY: `irecv`'s contract; that many bytes fit.
                unsafe { self.endpoint.data_sockets.submit(buffer.at, size, slot) };
                self.reading += 1;
            }
            return Ok(true);
        };
        let left = self.read_buffer.left();
        let copied = left.len().min(size - buffer.here);
        // SAFETY: `irecv`'s contract; that many bytes fit, and `read_buffer` is no memory of the caller's.
        unsafe {
            left.as_ptr().copy_to_nonoverlapping(buffer.at.wrapping_add(buffer.here), copied);
        };
        self.read_buffer.start += copied;
        buffer.here += copied;
        let missing = size - buffer.here;
        if missing == 0 {
            self.reading += 1;
            return Ok(true);
        }
        // SAFETY: the same; nothing is left in between, and more than 0 bytes are missing.
        let read = unsafe {
            stream::recv(&self.endpoint.control, buffer.at.wrapping_add(buffer.here), missing)
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

impl RecvComm for SocketRecvComm {
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

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.endpoint.base.check("irecv")?;
        let &[RecvBuffer { address, bytes, tag, memory }] = buffers else {
            return Err(error("irecv", format!("{} buffers, where 1 goes", buffers.len())));
        };
        self.endpoint.memory.check("irecv", address, bytes, memory)?;
        let sequence = self.endpoint.base.next;
        let slot = CommBase::slot(sequence);
        if self.buffers[slot].is_some() {
            self.progress();
            return self.endpoint.base.check("irecv").map(|()| None);
        }
        let at = if bytes == 0 { std::ptr::dangling_mut() } else { address };
        self.buffers[slot] = Some(Buffer { at, bytes, tag, size: None, here: 0 });
        self.endpoint.base.next += 1;
        Ok(Some(self.endpoint.base.request(sequence)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        self.endpoint.base.check_told("test")?;
        let sequence = self.endpoint.base.sequence(request)?;
        let slot = CommBase::slot(sequence);
        if self.buffers[slot].is_none() {
            return Err(self.endpoint.base.no_such(request));
        }
        let Some(place) = sizes.first_mut() else {
            return Err(error("test", "there is no room for the size of 1 message"));
        };
        let mut looked = false;
        loop {
            if sequence < self.reading && self.endpoint.data_sockets.status().is_done(slot) {
                *place = self.buffers[slot].take().and_then(|b| b.size).unwrap_or(0);
                return Ok(true);
            }
            if looked {
                return self.endpoint.base.check("test").map(|()| false);
            }
            self.progress();
            looked = true;
        }
    }

    /// The host's memory has what has arrived.
    unsafe fn iflush(&mut self, _: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        self.endpoint.base.check("iflush").map(|()| None)
    }
}

/// What fuzzing gives the receiving end.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use std::io::Write as _;
    use std::net::SocketAddr;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::super::data_sockets::Direction;
    use super::*;

    /// Whoever sends: bytes on the control socket, in pieces of a length that the first byte says. The second byte has the
    /// buffers that are given, each of which is followed by bytes that nobody may write.
    pub(crate) fn messages(data: &[u8]) {
        const GUARD: u8 = 0xa5;
        let &[piece, given, ref said @ ..] = data else { return };
        let ((control, mut theirs), (more, _kept)) = (pair(), pair());
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        let endpoint = SocketEndpoint::new(peer, control, vec![more], 0, Direction::Recv);
        let mut receiver = SocketRecvComm::new(endpoint);
        let mut places: Vec<Vec<u8>> = (0..=given % 8)
            .map(|i| vec![GUARD; usize::from(given >> 3) * usize::from(i) + 16])
            .collect();
        let mut requests = Vec::new();
        for place in &mut places {
            let (address, bytes) = (place.as_mut_ptr(), place.len() - 16);
            // SAFETY: the receiver is dropped before the places.
            unsafe {
                let memory = receiver.register(address, bytes, MemoryKind::Host).unwrap();
                let buffer = RecvBuffer { address, bytes, tag: 0, memory };
                requests.push(receiver.irecv(&[buffer]).unwrap().unwrap());
            }
        }
        let mut received = vec![None; requests.len()];
        let mut test = |receiver: &mut SocketRecvComm| {
            for (request, size) in requests.iter().zip(&mut received) {
                let mut bytes = [usize::MAX];
                match receiver.test(*request, &mut bytes) {
                    Ok(true) if size.is_none() => *size = Some(bytes[0]),
                    Ok(false) => {}
                    Ok(true) => panic!("done twice"),
                    Err(_) if size.is_some() => {}
                    Err(_) => return false,
                }
            }
            true
        };
        for piece in said.chunks(usize::from(piece) + 1) {
            if theirs.write_all(piece).is_err() || !test(&mut receiver) {
                break;
            }
        }
        drop(theirs);
        test(&mut receiver);
        drop(receiver);
        for (place, size) in places.iter().zip(received) {
            let (buffer, guard) = place.split_at(place.len() - 16);
            assert!(guard.iter().all(|byte| *byte == GUARD), "written behind a buffer");
            let size = size.unwrap_or(0);
            assert!(size <= buffer.len(), "{size} bytes in a buffer of {}", buffer.len());
        }
    }

    fn pair() -> (socket2::Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (OwnedFd::from(ours).into(), theirs)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::super::data_sockets::Direction;
    use super::*;

    /// A receiver, and the sockets of whoever sends: control and data.
    fn receiver(data: usize) -> (SocketRecvComm, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = Vec::new();
        let mut ours = (0..=data).map(|_| {
            theirs.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let socket = socket2::Socket::from(listener.accept().unwrap().0);
            stream::prepare(&socket).unwrap();
            socket
        });
        let control = ours.next().unwrap();
        let data = ours.collect();
        let peer = listener.local_addr().unwrap();
        (SocketRecvComm::new(SocketEndpoint::new(peer, control, data, 0, Direction::Recv)), theirs)
    }

    fn give(receiver: &mut SocketRecvComm, place: &mut [u8], tag: u32) -> Request {
        let (address, bytes) = (place.as_mut_ptr(), place.len());
        // SAFETY: tests keep the place until they are done with the receiver.
        unsafe {
            let memory = receiver.register(address, bytes, MemoryKind::Host).unwrap();
            receiver.irecv(&[RecvBuffer { address, bytes, tag, memory }]).unwrap().unwrap()
        }
    }

    fn wait(receiver: &mut SocketRecvComm, request: Request) -> Result<usize, String> {
        let mut size = [0];
        for _ in 0..10_000 {
            if receiver.test(request, &mut size).map_err(|error| error.reason)? {
                return Ok(size[0]);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err("it hangs".to_owned())
    }

    fn header(tag: u32, sequence: u64, size: u64) -> [u8; HEADER] {
        Header { tag, sequence, size }.encode()
    }

    #[test]
    fn what_is_wrong_with_a_header_is_named() {
        let cases: [(&[u8], &str); 5] = [
            (&header(5, 1, 8), "message 1 came, where 0 is due"),
            (&header(6, 0, 8), "message 0 has tag 6, its buffer 5"),
            (&header(5, 0, 11), "message 0 has 11 bytes, its buffer 10"),
            (&header(5, 0, u64::MAX), "message 0 has 18446744073709551615 bytes, its buffer 10"),
            (&[0; HEADER], "a message's header speaks another protocol"),
        ];
        for (said, wanted) in cases {
            let (mut receiver, mut theirs) = receiver(1);
            let mut place = [0; 10];
            let request = give(&mut receiver, &mut place, 5);
            theirs[0].write_all(said).unwrap();
            let reason = wait(&mut receiver, request).unwrap_err();
            assert!(reason.ends_with(wanted), "{reason}");
            assert!(theirs[0].set_read_timeout(Some(Duration::from_secs(10))).is_ok());
            // The other end learns of it.
            assert!(matches!(io::Read::read(&mut theirs[0], &mut [0]), Ok(0) | Err(_)));
            assert_eq!(place, [0; 10]);
        }
    }

    #[test]
    fn a_message_in_single_bytes_is_one() {
        let (mut receiver, mut theirs) = receiver(1);
        let mut places = [[0; 40]; 2];
        let requests = places.each_mut().map(|place| give(&mut receiver, place, 0));
        let bytes: Vec<u8> = (0..40).collect();
        let said = [&header(0, 0, 40)[..], &bytes, &header(0, 1, 0)].concat();
        for byte in said {
            assert_eq!(receiver.test(requests[1], &mut [0]), Ok(false));
            theirs[0].write_all(&[byte]).unwrap();
        }
        assert_eq!(requests.map(|request| wait(&mut receiver, request)), [Ok(40), Ok(0)]);
        assert_eq!(places[0], *bytes);
    }

    #[test]
    fn what_is_here_may_be_fetched_after_the_end() {
        for (size, ends) in [(100_000, true), (100_000, false), (10, true), (10, false)] {
            let (mut receiver, mut theirs) = receiver(2);
            let mut places = [vec![0; size], vec![0; size], vec![0; size]];
            let requests = places.each_mut().map(|place| give(&mut receiver, place, 0));
            let data = vec![7; size];
            theirs[0].write_all(&header(0, 0, size as u64)).unwrap();
            if size > INLINE {
                // Two chunks, each on its data socket.
                theirs[1].write_all(&data[..64 << 10]).unwrap();
                theirs[2].write_all(&data[64 << 10..]).unwrap();
            } else {
                theirs[0].write_all(&data).unwrap();
            }
            if !ends {
                // And a part of the next.
                theirs[0].write_all(&header(0, 1, size as u64)).unwrap();
            }
            drop(theirs);
            // The last is asked first: all that is here is fetched then.
            let reason = loop {
                match receiver.test(requests[2], &mut [0]) {
                    Ok(done) => assert!(!done),
                    Err(error) => break error,
                }
            };
            assert!(reason.reason.ends_with("it closed the connection"), "{reason}");
            // The caller has been told: there are only errors.
            assert!(receiver.test(requests[0], &mut [0]).is_err());
        }
        // If it has not been told, what is here comes first.
        let (mut receiver, mut theirs) = receiver(1);
        let mut places = [[0; 10]; 2];
        let requests = places.each_mut().map(|place| give(&mut receiver, place, 0));
        theirs[0].write_all(&[&header(0, 0, 3)[..], b"abc"].concat()).unwrap();
        drop(theirs);
        assert_eq!(wait(&mut receiver, requests[0]), Ok(3));
        assert!(wait(&mut receiver, requests[1]).unwrap_err().ends_with("closed the connection"));
        assert!(receiver.test(requests[0], &mut [0]).is_err(), "it is fetched");
    }

    #[test]
    fn what_has_no_buffer_stays_in_the_sockets() {
        let (mut receiver, mut theirs) = receiver(1);
        theirs[0].set_nonblocking(true).unwrap();
        let message = [&header(0, 0, 0)[..]; 1].concat();
        let mut written = 0;
        while let Ok(n) = theirs[0].write(&message) {
            written += n;
        }
        let mut place = [0];
        let request = give(&mut receiver, &mut place, 0);
        assert_eq!(wait(&mut receiver, request), Ok(0));
        assert!(written > READ && receiver.read_buffer.end <= READ, "{written}");
    }
}

//! What both ends of a connection have.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::Socket;

use super::error;
use super::lanes::{Lanes, Way};
use super::memory::Memory;
use crate::NetError;
use crate::net::handshake::stream;
use crate::net::{MAX_REQUESTS, Request};

/// Messages of at most so many bytes go with their header, on the control socket: one system call instead of
/// three, and at the receiver a copy. Where that begins to cost more is not measured.
pub(super) const INLINE: usize = 16 << 10;

/// The same with one data socket: nothing is gained by going over that but that a thread may move it, and a packet for the
/// header alone is a sixth of the time of 64 KiB (`benches/records/2026-11-22-network.md`).
pub(super) const INLINE_ALONE: usize = 512 << 10;

/// Bits of a request that are the number of its message; a million messages a second last nine years.
const SEQUENCE_BITS: u32 = 48;

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) peer: SocketAddr,
    pub(super) control: Socket,
    pub(super) lanes: Lanes,
    pub(super) memory: Memory,
    /// Bytes of the longest message that goes with its header. Of two ends the same, as their sockets are.
    pub(super) inline: usize,
    /// Tells the requests of this process's connections apart.
    id: u64,
    /// The number of the next message.
    pub(super) next: u64,
    broken: Option<String>,
    /// The caller knows that it is broken.
    told: bool,
}

impl Line {
    pub(super) fn new(
        peer: SocketAddr,
        control: Socket,
        data: Vec<Socket>,
        threads: usize,
        way: Way,
    ) -> Line {
        static LINES: AtomicU64 = AtomicU64::new(0);
        // Numbers, and nothing else is ordered by them.
        let id = LINES.fetch_add(1, Ordering::Relaxed) << SEQUENCE_BITS;
        let inline = if data.len() == 1 { INLINE_ALONE } else { INLINE };
        let (lanes, memory) = (Lanes::new(data, threads, way), Memory::default());
        Line { peer, control, lanes, memory, inline, id, next: 0, broken: None, told: false }
    }

    /// The place of a message among those that are under way.
    pub(super) fn slot(sequence: u64) -> usize {
        (sequence % MAX_REQUESTS as u64) as usize
    }

    /// The request of a message.
    pub(super) fn request(&self, sequence: u64) -> Request {
        Request(self.id | sequence)
    }

    /// The message of a request, of those that may be under way.
    pub(super) fn sequence(&self, request: Request) -> Result<u64, NetError> {
        let sequence = request.0 ^ self.id;
        if sequence < self.next && self.next - sequence <= MAX_REQUESTS as u64 {
            return Ok(sequence);
        }
        Err(self.no_such(request))
    }

    pub(super) fn no_such(&self, request: Request) -> NetError {
        error("test", format!("request {:#x} is not under way to or from {}", request.0, self.peer))
    }

    /// Ends it: the other end learns of it, and no buffer is touched any more.
    pub(super) fn fail(&mut self, reason: String) {
        if self.broken.is_none() {
            self.broken = Some(reason);
            // That it cannot be shut down means that it is already.
            let _ = self.control.shutdown(std::net::Shutdown::Both);
            self.lanes.close();
        }
    }

    pub(super) fn fail_io(&mut self, error: &std::io::Error) {
        self.fail(stream::lost(error));
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Tells the caller if it is broken, and from then on each time.
    pub(super) fn check(&mut self, operation: &'static str) -> Result<(), NetError> {
        match &self.broken {
            None => Ok(()),
            Some(reason) => {
                self.told = true;
                Err(error(
                    operation,
                    format!("the connection with {} is broken: {reason}", self.peer),
                ))
            }
        }
    }

    /// The same if the caller knows already: before that, what is done may be had.
    pub(super) fn check_told(&mut self, operation: &'static str) -> Result<(), NetError> {
        if self.told { self.check(operation) } else { Ok(()) }
    }
}

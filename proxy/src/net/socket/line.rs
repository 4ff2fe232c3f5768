//! What both ends of a connection have.

use std::net::SocketAddr;

use socket2::Socket;

use super::NAME;
use super::lanes::{Lanes, Way};
use crate::net::end::End;
use crate::net::handshake::stream;
use crate::net::memory::Memory;

/// Messages of at most so many bytes go with their header, on the control socket: one system call instead of
/// three, and at the receiver a copy. Where that begins to cost more is not measured.
pub(super) const INLINE: usize = 16 << 10;

/// The same with one data socket: nothing is gained by going over that but that a thread may move it, and a packet for the
/// header alone is a sixth of the time of 64 KiB (`benches/records/2026-11-22-network.md`).
pub(super) const INLINE_ALONE: usize = 512 << 10;

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) end: End,
    pub(super) control: Socket,
    pub(super) lanes: Lanes,
    pub(super) memory: Memory,
    /// Bytes of the longest message that goes with its header. Of two ends the same, as their sockets are.
    pub(super) inline: usize,
}

impl Line {
    pub(super) fn new(
        peer: SocketAddr,
        control: Socket,
        data: Vec<Socket>,
        threads: usize,
        way: Way,
    ) -> Line {
        let inline = if data.len() == 1 { INLINE_ALONE } else { INLINE };
        let (lanes, memory) = (Lanes::new(data, threads, way), Memory::new(NAME));
        Line { end: End::new(NAME, peer), control, lanes, memory, inline }
    }

    /// Ends it: the other end learns of it, and no buffer is touched any more.
    pub(super) fn fail(&mut self, reason: String) {
        if self.end.breaks(reason) {
            // That it cannot be shut down means that it is already.
            let _ = self.control.shutdown(std::net::Shutdown::Both);
            self.lanes.close();
        }
    }

    pub(super) fn fail_io(&mut self, error: &std::io::Error) {
        self.fail(stream::lost(error));
    }
}

//! What both ends of a connection have.

use std::net::SocketAddr;

use socket2::Socket;

use super::NAME;
use super::data_sockets::{DataSockets, Direction};
use crate::net::comm_base::CommBase;
use crate::net::handshake::stream;
use crate::net::registered_memory::RegisteredMemory;

/// Messages of at most so many bytes go with their header, on the control socket: one system call instead of
/// three, and at the receiver a copy. Where that begins to cost more is not measured.
pub(super) const INLINE: usize = 16 << 10;

/// The same with one data socket: nothing is gained by going over that but that a thread may move it, and a packet for the
/// header alone is a sixth of the time of 64 KiB (`benches/records/2026-11-22-network.md`).
pub(super) const INLINE_ALONE: usize = 512 << 10;

/// An end of a connection.
#[derive(Debug)]
pub(super) struct SocketEndpoint {
    pub(super) base: CommBase,
    pub(super) control: Socket,
    pub(super) data_sockets: DataSockets,
    pub(super) memory: RegisteredMemory,
    /// Bytes of the longest message that goes with its header. Of two ends the same, as their sockets are.
    pub(super) inline: usize,
}

impl SocketEndpoint {
    pub(super) fn new(
        peer: SocketAddr,
        control: Socket,
        data: Vec<Socket>,
        threads: usize,
        direction: Direction,
    ) -> SocketEndpoint {
        let inline = if data.len() == 1 { INLINE_ALONE } else { INLINE };
        let (data_sockets, memory) =
            (DataSockets::new(data, threads, direction), RegisteredMemory::new(NAME));
        SocketEndpoint { base: CommBase::new(NAME, peer), control, data_sockets, memory, inline }
    }

    /// Ends it: the other end learns of it, and no buffer is touched any more.
    pub(super) fn fail(&mut self, reason: String) {
        if self.base.breaks(reason) {
            // That it cannot be shut down means that it is already.
            let _ = self.control.shutdown(std::net::Shutdown::Both);
            self.data_sockets.close();
        }
    }

    pub(super) fn fail_io(&mut self, error: &std::io::Error) {
        self.fail(stream::lost(error));
    }
}

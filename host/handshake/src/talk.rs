//! Messages on a socket that never blocks.

use std::io;

use socket2::Socket;

use crate::stream;

/// A socket, what is to be sent on it, and the message that is being received.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) socket: Socket,
    received: Vec<u8>,
    to_send: Vec<u8>,
}

impl Talk {
    pub(crate) fn new(socket: Socket) -> Talk {
        Talk { socket, received: Vec::new(), to_send: Vec::new() }
    }

    /// Queues a message.
    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        self.to_send.extend_from_slice(bytes);
    }

    /// Whether something is queued.
    pub(crate) fn has_queued(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Sends what the socket takes; whether all is sent.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while !self.to_send.is_empty() {
            match stream::send(&self.socket, &self.to_send)? {
                Some(sent) => drop(self.to_send.drain(..sent)),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The first `N` bytes of the message, once they have come. No byte behind them is taken off the socket.
    pub(crate) fn receive<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        while let missing @ 1.. = N.saturating_sub(self.received.len()) {
            let mut place = [0; N];
            match stream::recv_into(&self.socket, &mut place[..missing])? {
                Some(bytes) => self.received.extend_from_slice(&place[..bytes]),
                None => return Ok(None),
            }
        }
        Ok(self.received.first_chunk().copied())
    }

    /// What has come of the message.
    pub(crate) fn received(&self) -> &[u8] {
        &self.received
    }

    /// The message is done: another begins.
    pub(crate) fn next_message(&mut self) {
        self.received.clear();
    }
}

//! The data sockets of a connection.
//!
//! A message that is too long for the control socket is cut into chunks, which are assigned to the data sockets in turn. Both
//! ends compute the chunks from the message's size alone, and begin with the data socket after the last one of the message
//! before. So a chunk needs no header: the next bytes of a data socket belong to its oldest chunk.
//!
//! ```text
//! message 0: |---- a ----|---- b ----|-- c --|     socket 0:  a   e
//! message 1: |-- d --|-- e --|-- f --|             socket 1:  b   f
//!                                                  socket 2:  c         (d follows c, on the fourth socket)
//!                                                  socket 3:  d
//! ```

use std::collections::VecDeque;
use std::io;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use socket2::Socket;

use super::helper::HelperThread;
use crate::net::MAX_REQUESTS;
use crate::net::handshake::stream;

/// The shortest chunk, but for the last: NCCL's `MIN_CHUNKSIZE` (`net_socket.cc`).
const MIN_CHUNK: usize = 64 << 10;

/// Bytes that a data socket moves before others have their turn. Not measured: some system calls.
const BYTES_PER_TURN: usize = 4 << 20;

/// Bytes of a system call at most. Not measured: a part of what a socket's buffer grows to, 4 to 6 MiB (`tcp_wmem`,
/// `tcp_rmem` in tcp(7)).
const BYTES_PER_CALL: usize = 1 << 20;

/// Which direction bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send,
    Recv,
}

/// A part of a message that is under way.
#[derive(Debug)]
pub(super) struct Chunk {
    at: *mut u8,
    bytes: usize,
    /// The message's place in [`TransferStatus`].
    slot: usize,
}

// SAFETY: whoever has given the message lets it be until it is done, or the connection dropped; the data sockets are closed by then.
unsafe impl Send for Chunk {}

/// How many chunks of each message are left, and what has gone wrong.
#[derive(Debug, Default)]
pub(super) struct TransferStatus {
    chunks: [AtomicUsize; MAX_REQUESTS],
    fault: OnceLock<String>,
}

impl TransferStatus {
    /// Whether all chunks of the message in this slot have been moved.
    pub(super) fn is_done(&self, slot: usize) -> bool {
        // Pairs with the release in `DataSocket::progress`: the bytes of the chunks are there.
        self.chunks.get(slot).is_none_or(|left| left.load(Ordering::Acquire) == 0)
    }

    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// The first one counts.
    pub(super) fn fail(&self, reason: String) {
        let _ = self.fault.set(reason);
    }
}

/// A data socket, and what it is to carry.
#[derive(Debug)]
pub(super) struct DataSocket {
    pub(super) socket: Socket,
    queue: VecDeque<Chunk>,
    pub(super) direction: Direction,
}

impl DataSocket {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn give(&mut self, chunk: Chunk) {
        self.queue.push_back(chunk);
    }

    /// Moves what can be moved at once; whether that was anything.
    pub(super) fn progress(&mut self, status: &TransferStatus) -> io::Result<bool> {
        let mut turn = 0;
        while let Some(chunk) = self.queue.front_mut() {
            let bytes = chunk.bytes.min(BYTES_PER_CALL);
            let done = match self.direction {
                Direction::Send => {
                    // SAFETY: a part of the message that `isend`'s caller lets us read.
                    let part = unsafe { slice::from_raw_parts(chunk.at, bytes) };
                    stream::send(&self.socket, part)?
                }
                // SAFETY: a part of the buffer that `irecv`'s caller lets us write.
                Direction::Recv => unsafe { stream::recv(&self.socket, chunk.at, bytes)? },
            };
            let Some(done) = done else { break };
            turn += done;
            chunk.at = chunk.at.wrapping_add(done);
            chunk.bytes -= done;
            if chunk.bytes == 0 {
                let slot = chunk.slot;
                self.queue.pop_front();
                if let Some(left) = status.chunks.get(slot) {
                    // Pairs with the acquire in `TransferStatus::is_done`.
                    left.fetch_sub(1, Ordering::Release);
                }
            }
            if turn >= BYTES_PER_TURN || (done < bytes && self.direction == Direction::Send) {
                break; // the others' turn, or the socket is full
            }
        }
        Ok(turn > 0)
    }
}

/// All data sockets of a connection.
#[derive(Debug)]
pub(super) struct DataSockets {
    status: Arc<TransferStatus>,
    moved_by: MovedBy,
    /// How many there are.
    count: usize,
    /// The one that the next chunk goes to.
    next: usize,
}

/// Who moves the data sockets.
#[derive(Debug)]
enum MovedBy {
    Caller(Vec<DataSocket>),
    /// Socket i is the `i / n`th of thread `i % n`.
    Threads(Vec<HelperThread>),
}

impl DataSockets {
    /// Data sockets that are moved by `threads` threads, or by the caller's if that is 0.
    pub(super) fn new(sockets: Vec<Socket>, threads: usize, direction: Direction) -> DataSockets {
        let count = sockets.len();
        let data_sockets = sockets.into_iter().map(|socket| DataSocket {
            socket,
            queue: VecDeque::new(),
            direction,
        });
        let moved_by = match threads.min(count) {
            0 => MovedBy::Caller(data_sockets.collect()),
            n => {
                let mut threads: Vec<_> =
                    (0..n).map(|_| HelperThread::NotStarted(Vec::new())).collect();
                data_sockets.enumerate().for_each(|(i, socket)| threads[i % n].push(socket));
                MovedBy::Threads(threads)
            }
        };
        DataSockets { status: Arc::default(), moved_by, count, next: 0 }
    }

    pub(super) fn status(&self) -> &TransferStatus {
        &self.status
    }

    /// Cuts the message of this slot, of at least 1 byte, into chunks and submits them.
    ///
    /// # Safety
    /// The bytes may be read, or written where they come in, until the message is done or the sockets are closed.
    pub(super) unsafe fn submit(&mut self, at: *mut u8, bytes: usize, slot: usize) {
        let n = self.count.max(1);
        let most = bytes.div_ceil(n).max(MIN_CHUNK);
        if let Some(left) = self.status.chunks.get(slot) {
            // No other thread reads it yet: chunks are submitted below.
            left.store(bytes.div_ceil(most), Ordering::Relaxed);
        }
        for offset in (0..bytes).step_by(most) {
            let bytes = most.min(bytes - offset);
            let chunk = Chunk { at: at.wrapping_add(offset), bytes, slot };
            let socket = self.next;
            self.next = (socket + 1) % n;
            match &mut self.moved_by {
                MovedBy::Caller(data_sockets) => {
                    if let Some(socket) = data_sockets.get_mut(socket) {
                        socket.give(chunk);
                    }
                }
                MovedBy::Threads(threads) => {
                    let n = threads.len().max(1);
                    if let Some(helper) = threads.get_mut(socket % n)
                        && let Err(error) = helper.give(socket / n, chunk, &self.status)
                    {
                        self.status.fail(format!("a thread for its sockets: {error}"));
                    }
                }
            }
        }
    }

    /// Moves what the caller can move at once; whether that was anything.
    pub(super) fn progress(&mut self) -> bool {
        let MovedBy::Caller(data_sockets) = &mut self.moved_by else { return false };
        let mut moved = false;
        for socket in data_sockets {
            match socket.progress(&self.status) {
                Ok(any) => moved |= any,
                Err(error) => self.status.fail(stream::lost(&error)),
            }
        }
        moved
    }

    /// Closes them all: nothing is touched any more.
    pub(super) fn close(&mut self) {
        self.moved_by = MovedBy::Caller(Vec::new());
    }
}

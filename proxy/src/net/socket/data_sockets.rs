//! The data sockets of a connection.
//!
//! A message that is too long for the control socket is cut into pieces, which go over the lanes in turn. Both ends cut
//! alike, from the message's size alone, and begin where the message before it has ended: so a piece needs no header, and
//! what comes on a lane belongs to the piece that was given to it first.
//!
//! ```text
//! message 0: |---- a ----|---- b ----|-- c --|     lane 0:  a   e
//! message 1: |-- d --|-- e --|-- f --|             lane 1:  b   f
//!                                                  lane 2:  c         (d follows c, on the fourth lane)
//!                                                  lane 3:  d
//! ```

use std::collections::VecDeque;
use std::io;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use socket2::Socket;

use super::helper::Helper;
use crate::net::MAX_REQUESTS;
use crate::net::handshake::stream;

/// The shortest piece, but for the last: NCCL's `MIN_CHUNKSIZE` (`net_socket.cc`).
const MIN_PIECE: usize = 64 << 10;

/// Bytes that a lane moves before others have their turn. Not measured: some system calls.
const TURN: usize = 4 << 20;

/// Bytes of a system call at most. Not measured: a part of what a socket's buffer grows to, 4 to 6 MiB (`tcp_wmem`,
/// `tcp_rmem` in tcp(7)).
const CALL: usize = 1 << 20;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Out,
    In,
}

/// A part of a message that is under way.
#[derive(Debug)]
pub(super) struct Piece {
    at: *mut u8,
    bytes: usize,
    /// Of the message, on the board.
    slot: usize,
}

// SAFETY: whoever has given the message lets it be until it is done, or the connection dropped; lanes are gone by then.
unsafe impl Send for Piece {}

/// What is left of each message, and what has gone wrong.
#[derive(Debug, Default)]
pub(super) struct Board {
    pieces: [AtomicUsize; MAX_REQUESTS],
    fault: OnceLock<String>,
}

impl Board {
    /// Whether all pieces of the message in this slot are through.
    pub(super) fn is_through(&self, slot: usize) -> bool {
        // Pairs with the release in `Lane::pump`: what the pieces have brought is there.
        self.pieces.get(slot).is_none_or(|left| left.load(Ordering::Acquire) == 0)
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
pub(super) struct Lane {
    pub(super) socket: Socket,
    queue: VecDeque<Piece>,
    pub(super) way: Way,
}

impl Lane {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn give(&mut self, piece: Piece) {
        self.queue.push_back(piece);
    }

    /// Moves what can be moved at once; whether that was anything.
    pub(super) fn pump(&mut self, board: &Board) -> io::Result<bool> {
        let mut turn = 0;
        while let Some(piece) = self.queue.front_mut() {
            let bytes = piece.bytes.min(CALL);
            let done = match self.way {
                Way::Out => {
                    // SAFETY: a part of the message that `isend`'s caller lets us read.
                    let part = unsafe { slice::from_raw_parts(piece.at, bytes) };
                    stream::send(&self.socket, part)?
                }
                // SAFETY: a part of the buffer that `irecv`'s caller lets us write.
                Way::In => unsafe { stream::recv(&self.socket, piece.at, bytes)? },
            };
            let Some(done) = done else { break };
            turn += done;
            piece.at = piece.at.wrapping_add(done);
            piece.bytes -= done;
            if piece.bytes == 0 {
                let slot = piece.slot;
                self.queue.pop_front();
                if let Some(left) = board.pieces.get(slot) {
                    // Pairs with the acquire in `Board::is_through`.
                    left.fetch_sub(1, Ordering::Release);
                }
            }
            if turn >= TURN || (done < bytes && self.way == Way::Out) {
                break; // the others' turn, or the socket is full
            }
        }
        Ok(turn > 0)
    }
}

/// All lanes of a connection.
#[derive(Debug)]
pub(super) struct Lanes {
    board: Arc<Board>,
    movers: Movers,
    /// How many there are.
    count: usize,
    /// The one that the next piece goes to.
    next: usize,
}

/// Who moves the lanes.
#[derive(Debug)]
enum Movers {
    Caller(Vec<Lane>),
    /// Lane i is the `i / n`th of thread `i % n`.
    Helpers(Vec<Helper>),
}

impl Lanes {
    /// Lanes over these sockets, moved by so many threads; by the caller's if that is 0.
    pub(super) fn new(sockets: Vec<Socket>, threads: usize, way: Way) -> Lanes {
        let count = sockets.len();
        let lanes = sockets.into_iter().map(|socket| Lane { socket, queue: VecDeque::new(), way });
        let movers = match threads.min(count) {
            0 => Movers::Caller(lanes.collect()),
            n => {
                let mut helpers: Vec<_> = (0..n).map(|_| Helper::Unborn(Vec::new())).collect();
                lanes.enumerate().for_each(|(i, lane)| helpers[i % n].push(lane));
                Movers::Helpers(helpers)
            }
        };
        Lanes { board: Arc::default(), movers, count, next: 0 }
    }

    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// Cuts a message up, which is in this slot; of at least 1 byte.
    ///
    /// # Safety
    /// The bytes may be read, or written where they come in, until the message is through or the lanes are closed.
    pub(super) unsafe fn carry(&mut self, at: *mut u8, bytes: usize, slot: usize) {
        let n = self.count.max(1);
        let most = bytes.div_ceil(n).max(MIN_PIECE);
        if let Some(left) = self.board.pieces.get(slot) {
            // Nobody looks at it yet: pieces are given below.
            left.store(bytes.div_ceil(most), Ordering::Relaxed);
        }
        for offset in (0..bytes).step_by(most) {
            let bytes = most.min(bytes - offset);
            let piece = Piece { at: at.wrapping_add(offset), bytes, slot };
            let lane = self.next;
            self.next = (lane + 1) % n;
            match &mut self.movers {
                Movers::Caller(lanes) => {
                    if let Some(lane) = lanes.get_mut(lane) {
                        lane.give(piece);
                    }
                }
                Movers::Helpers(helpers) => {
                    let n = helpers.len().max(1);
                    if let Some(helper) = helpers.get_mut(lane % n)
                        && let Err(error) = helper.give(lane / n, piece, &self.board)
                    {
                        self.board.fail(format!("a thread for its sockets: {error}"));
                    }
                }
            }
        }
    }

    /// Moves what the caller can move at once; whether that was anything.
    pub(super) fn pump(&mut self) -> bool {
        let Movers::Caller(lanes) = &mut self.movers else { return false };
        let mut moved = false;
        for lane in lanes {
            match lane.pump(&self.board) {
                Ok(any) => moved |= any,
                Err(error) => self.board.fail(stream::lost(&error)),
            }
        }
        moved
    }

    /// Closes them all: nothing is touched any more.
    pub(super) fn close(&mut self) {
        self.movers = Movers::Caller(Vec::new());
    }
}

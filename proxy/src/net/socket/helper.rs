//! A thread that moves some lanes of a connection.
//!
//! It sleeps where there is nothing to do: on its bell when no piece is left, on its sockets, too, when those that are left
//! must wait. The bell is rung only for a thread that sleeps.
//!
//! ```text
//! caller                                  helper
//!   lock, put pieces, is it asleep?         lock, take pieces, none and nothing moved: say "asleep"
//!   unlock, ring if it was        ──bell──► unlock, poll(bell, sockets)
//! ```
//!
//! **Invariant:** "asleep" is said under the lock in which the helper has seen that there are no new pieces. So pieces that
//! are put later ring the bell, which keeps until it is heard.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::lanes::{Board, Lane, Piece, Way};
use crate::net::handshake::stream;

/// The lanes of a thread, and the thread once there has been something to do.
#[derive(Debug)]
pub(super) enum Helper {
    /// A connection of short messages never needs it.
    Unborn(Vec<Lane>),
    Running(Running),
}

#[derive(Debug)]
pub(super) struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    bell: EventFd,
}

#[derive(Debug, Default)]
struct Inbox {
    /// With the lane that each is for.
    pieces: Vec<(usize, Piece)>,
    asleep: bool,
    stop: bool,
}

impl Helper {
    pub(super) fn push(&mut self, lane: Lane) {
        if let Helper::Unborn(lanes) = self {
            lanes.push(lane);
        }
    }

    /// Gives it a piece for this of its lanes.
    pub(super) fn give(&mut self, lane: usize, piece: Piece, board: &Arc<Board>) -> io::Result<()> {
        if let Helper::Unborn(lanes) = self {
            let lanes = std::mem::take(lanes);
            *self = Helper::Running(Running::new(lanes, Arc::clone(board))?);
        }
        if let Helper::Running(Running { shared, .. }) = self {
            let mut inbox = shared.lock();
            inbox.pieces.push((lane, piece));
            let asleep = std::mem::take(&mut inbox.asleep);
            drop(inbox);
            if asleep {
                shared.bell.write(1)?;
            }
        }
        Ok(())
    }
}

impl Running {
    fn new(lanes: Vec<Lane>, board: Arc<Board>) -> io::Result<Running> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), bell });
        let its = Arc::clone(&shared);
        let run = move || its.run(lanes, &board);
        let thread = thread::Builder::new().name("ferroccl-socket".to_owned()).spawn(run)?;
        Ok(Running { shared, thread: Some(thread) })
    }
}

impl Drop for Running {
    /// When it returns, no piece is touched any more.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        // A bell that cannot be rung is rung already.
        let _ = self.shared.bell.write(1);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut lanes: Vec<Lane>, board: &Board) {
        if let Err(error) = self.serve(&mut lanes, board) {
            board.fail(stream::lost(&error));
        }
    }

    fn serve(&self, lanes: &mut [Lane], board: &Board) -> io::Result<()> {
        let mut moved = false;
        loop {
            let mut inbox = self.lock();
            if inbox.stop {
                return Ok(());
            }
            moved |= !inbox.pieces.is_empty();
            for (lane, piece) in inbox.pieces.drain(..) {
                if let Some(lane) = lanes.get_mut(lane) {
                    lane.give(piece);
                }
            }
            inbox.asleep = !moved;
            drop(inbox);
            if !moved {
                self.sleep(lanes)?;
                self.lock().asleep = false;
            }
            moved = false;
            for lane in &mut *lanes {
                moved |= lane.pump(board)?;
            }
        }
    }

    /// Until the bell rings, or something can be moved.
    fn sleep(&self, lanes: &[Lane]) -> io::Result<()> {
        let waiting = lanes.iter().filter(|lane| !lane.is_idle()).map(|lane| {
            let event = if lane.way == Way::Out { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            PollFd::new(lane.socket.as_fd(), event)
        });
        let mut all: Vec<_> = std::iter::once(PollFd::new(self.bell.as_fd(), PollFlags::POLLIN))
            .chain(waiting)
            .collect();
        match poll(&mut all, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        match self.bell.read() {
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

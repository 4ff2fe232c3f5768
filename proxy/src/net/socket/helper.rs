//! A thread that moves some data sockets of a connection.
//!
//! It sleeps while nothing can be moved: in `poll`, on an event file that wakes it, and on the sockets that have chunks left.
//! The event file is written only when the thread sleeps.
//!
//! ```text
//! caller                                  helper
//!   lock, push chunks, is it asleep?        lock, take chunks; none, and nothing moved: set `asleep`
//!   unlock, write if it was      ──event──► unlock, poll(event, sockets)
//! ```
//!
//! **Invariant:** `asleep` is set under the same lock under which the thread has seen that there are no new chunks. So chunks
//! that are pushed later write the event file, which stays readable until the thread has read it.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::data_sockets::{Chunk, DataSocket, Direction, TransferStatus};
use crate::net::handshake::stream;
use crate::sync::lock;

/// The data sockets of a thread, and the thread, which is started with the first chunk.
#[derive(Debug)]
pub(super) enum HelperThread {
    /// A connection of short messages never needs it.
    NotStarted(Vec<DataSocket>),
    Running(Running),
}

#[derive(Debug)]
pub(super) struct Running {
    shared: Arc<HelperShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct HelperShared {
    queue: Mutex<ChunkQueue>,
    wake: EventFd,
}

#[derive(Debug, Default)]
struct ChunkQueue {
    /// With the data socket that each is for.
    chunks: Vec<(usize, Chunk)>,
    asleep: bool,
    stop: bool,
}

impl HelperThread {
    pub(super) fn push(&mut self, socket: DataSocket) {
        if let HelperThread::NotStarted(data_sockets) = self {
            data_sockets.push(socket);
        }
    }

    /// Submits a chunk for one of its data sockets.
    pub(super) fn give(
        &mut self,
        socket: usize,
        chunk: Chunk,
        status: &Arc<TransferStatus>,
    ) -> io::Result<()> {
        if let HelperThread::NotStarted(data_sockets) = self {
            let data_sockets = std::mem::take(data_sockets);
            *self = HelperThread::Running(Running::new(data_sockets, Arc::clone(status))?);
        }
        if let HelperThread::Running(Running { shared, .. }) = self {
            let mut queue = shared.lock();
            queue.chunks.push((socket, chunk));
            let asleep = std::mem::take(&mut queue.asleep);
            drop(queue);
            if asleep {
                shared.wake.write(1)?;
            }
        }
        Ok(())
    }
}

impl Running {
    fn new(data_sockets: Vec<DataSocket>, status: Arc<TransferStatus>) -> io::Result<Running> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new(HelperShared { queue: Mutex::default(), wake });
        let its = Arc::clone(&shared);
        let run = move || its.run(data_sockets, &status);
        let thread = thread::Builder::new().name("ferroccl-socket".to_owned()).spawn(run)?;
        Ok(Running { shared, thread: Some(thread) })
    }
}

impl Drop for Running {
    /// When it returns, no chunk is touched any more.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        // An event file that cannot be written is not read yet.
        let _ = self.shared.wake.write(1);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl HelperShared {
    fn lock(&self) -> MutexGuard<'_, ChunkQueue> {
        lock(&self.queue)
    }

    fn run(&self, mut data_sockets: Vec<DataSocket>, status: &TransferStatus) {
        if let Err(error) = self.serve(&mut data_sockets, status) {
            status.fail(stream::lost(&error));
        }
    }

    fn serve(&self, data_sockets: &mut [DataSocket], status: &TransferStatus) -> io::Result<()> {
        let mut moved = false;
        loop {
            let mut queue = self.lock();
            if queue.stop {
                return Ok(());
            }
            moved |= !queue.chunks.is_empty();
            for (socket, chunk) in queue.chunks.drain(..) {
                if let Some(socket) = data_sockets.get_mut(socket) {
                    socket.give(chunk);
                }
            }
            queue.asleep = !moved;
            drop(queue);
            if !moved {
                self.sleep(data_sockets)?;
                self.lock().asleep = false;
            }
            moved = false;
            for socket in &mut *data_sockets {
                moved |= socket.progress(status)?;
            }
        }
    }

    /// Until there is an event, or something can be moved.
    fn sleep(&self, data_sockets: &[DataSocket]) -> io::Result<()> {
        let waiting = data_sockets.iter().filter(|socket| !socket.is_idle()).map(|socket| {
            let event = if socket.direction == Direction::Send {
                PollFlags::POLLOUT
            } else {
                PollFlags::POLLIN
            };
            PollFd::new(socket.socket.as_fd(), event)
        });
        let mut all: Vec<_> = std::iter::once(PollFd::new(self.wake.as_fd(), PollFlags::POLLIN))
            .chain(waiting)
            .collect();
        match poll(&mut all, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        match self.wake.read() {
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

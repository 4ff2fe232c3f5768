//! The other ranks that connect to a rank.
//!
//! A thread accepts them, so that a rank that is busy, or waits for somebody else, keeps no peer waiting in the handshake. It
//! hands each connection over by its purpose. Whoever waits for one waits for [`PeerAcceptor::wake`] too.

use std::collections::HashSet;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::acceptor::{Arrival, MemberAcceptor};
use super::link::Link;
use super::links;
use super::wire::{Message, Purpose, Refusal};
use crate::error::{BootstrapError, Result};
use crate::settings::LOG_TARGET;
use crate::sync::lock;

/// Connections of peers that have come, each with its rank.
#[derive(Debug, Default)]
struct Arrived {
    /// Those of the ring and of all-gathers.
    callers: Vec<(Purpose, u32, Link)>,
    messages: Vec<(u32, Link)>,
}

/// A rank's listening socket, and the connections that have come there.
#[derive(Debug)]
pub(super) struct PeerAcceptor {
    address: SocketAddr,
    arrived: Arc<Mutex<Arrived>>,
    /// Readable when something has arrived since it was read; closed to end the thread, which has the other end.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl PeerAcceptor {
    /// Starts the thread of a rank.
    pub(super) fn start(acceptor: MemberAcceptor, rank: u32, nranks: u32) -> Result<Self> {
        let system = |what: &'static str| move |e| BootstrapError::system(what, e);
        let address = acceptor.address().map_err(system("address of the rank's socket"))?;
        let (ours, theirs) = UnixStream::pair().map_err(system("socket pair of the rank"))?;
        let nonblocking = ours.set_nonblocking(true).and(theirs.set_nonblocking(true));
        nonblocking.map_err(system("socket pair of the rank"))?;
        let arrived = Arc::<Mutex<Arrived>>::default();
        let callers = links::callers_of(rank, nranks).collect();
        let thread = Thread { acceptor, rank, nranks, arrived: Arc::clone(&arrived), callers };
        let thread = std::thread::Builder::new()
            .name("ferroccl-accept".to_owned())
            .spawn(move || thread.run(&theirs))
            .map_err(system("thread of the rank's socket"))?;
        Ok(PeerAcceptor { address, arrived, wake: Some(ours), thread: Some(thread) })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Readable when a connection has come since connections were last taken.
    pub(super) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    /// The connections of the ring and of all-gathers that have come, each with its rank; to be called before each wait.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(super) fn take_callers(&self) -> Result<Vec<(Purpose, u32, Link)>> {
        self.take(|arrived| &mut arrived.callers)
    }

    /// The connections for messages that have come, each with its rank; to be called before each wait.
    ///
    /// # Errors
    /// When the thread has ended.
    pub(super) fn take_messages(&self) -> Result<Vec<(u32, Link)>> {
        self.take(|arrived| &mut arrived.messages)
    }

    /// Takes all of a queue, and the wake-ups. Who waits for what comes into two queues would miss some: its wake-up may be taken
    /// with the other queue.
    fn take<T>(&self, queue: fn(&mut Arrived) -> &mut Vec<T>) -> Result<Vec<T>> {
        // In tests there is time for a connection to come just before this, which is rare otherwise.
        #[cfg(test)]
        std::thread::sleep(std::time::Duration::from_millis(1));
        // First the wake-up, then the queue: what comes in between is woken for again.
        let ended = self.wake.as_ref().is_none_or(|mut wake| {
            let mut bytes = [0; 64];
            loop {
                match wake.read(&mut bytes) {
                    Ok(0) => return true,
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return false,
                }
            }
        });
        let mut arrived = lock(&self.arrived);
        let queue = queue(&mut arrived);
        if ended && queue.is_empty() {
            let e = io::Error::other("it has ended");
            return Err(BootstrapError::system("thread of the rank's socket", e));
        }
        Ok(std::mem::take(queue))
    }
}

impl Drop for PeerAcceptor {
    /// When it returns, nobody listens any more.
    fn drop(&mut self) {
        self.wake = None;
        // One that has panicked has ended, too.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The thread's.
struct Thread {
    acceptor: MemberAcceptor,
    rank: u32,
    nranks: u32,
    arrived: Arc<Mutex<Arrived>>,
    /// The ranks of the ring and of all-gathers that have not connected yet.
    callers: HashSet<(Purpose, u32)>,
}

impl Thread {
    /// Serves until the other end of `stop` is closed.
    fn run(mut self, stop: &UnixStream) {
        loop {
            match self.acceptor.serve(&[stop.as_fd()], None) {
                // Nobody writes to it: it is closed.
                Ok((_, ready)) if ready.first() == Some(&true) => return,
                Ok((arrivals, _)) => arrivals.into_iter().for_each(|one| self.hand_over(one, stop)),
                Err(e) => {
                    return tracing::warn!(target: LOG_TARGET, "rank {} accepts nobody: {e}", self.rank);
                }
            }
        }
    }

    fn hand_over(&mut self, Arrival { mut link, message }: Arrival, mut wake: &UnixStream) {
        let Message::Peer { purpose, from, to } = message else {
            return self.acceptor.refuse(&mut link, Refusal::NotExpected);
        };
        let is_expected = to == self.rank
            && from < self.nranks
            && match purpose {
                Purpose::Ring | Purpose::Rounds => self.callers.remove(&(purpose, from)),
                Purpose::Messages => from != to,
            };
        if !is_expected {
            return self.acceptor.refuse(&mut link, Refusal::NotExpected);
        }
        let mut arrived = lock(&self.arrived);
        match purpose {
            Purpose::Ring | Purpose::Rounds => arrived.callers.push((purpose, from, link)),
            Purpose::Messages => {
                link.open();
                arrived.messages.push((from, link));
            }
        }
        drop(arrived);
        // One that cannot be written has been written often enough.
        let _ = wake.write(&[0]);
    }
}

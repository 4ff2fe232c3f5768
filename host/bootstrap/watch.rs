//! Who is still there: the ring as a life line.
//!
//! A thread sleeps on the two connections of the ring. A process that ends, however it ends, has its
//! connections closed by the system, and its neighbours see that at once. A rank that means to leave says
//! goodbye first; without that it is lost. Neighbours pass the news on, so that every rank learns of the
//! same first cause; each rank is reported once.
//!
//! A host that disappears without closing anything is found by TCP's keep-alive, in half a minute.

use std::collections::HashSet;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::link::{Link, LinkError, is_ready, wait};
use super::ring::{Ring, next_of, prev_of};
use super::wire::Message;
use crate::log::BOOTSTRAP;
use crate::{Error, Result};

/// How long a leaving rank tries to say goodbye to a neighbour that does not read.
const FAREWELL: Duration = Duration::from_secs(1);

/// A rank is no longer there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It ended without a goodbye, or cannot be reached.
    Lost {
        /// The rank.
        peer: u32,
        /// How it was noticed, by this rank or another.
        reason: String,
    },
    /// It left as it should. What still waits for it waits in vain.
    Left {
        /// The rank.
        peer: u32,
    },
}

impl Departure {
    /// The rank.
    #[must_use]
    pub fn peer(&self) -> u32 {
        match self {
            Departure::Lost { peer, .. } | Departure::Left { peer } => *peer,
        }
    }

    /// As an error of `rank`.
    #[must_use]
    pub fn into_error(self, rank: u32) -> Error {
        match self {
            Departure::Lost { peer, reason } => Error::PeerLost { rank, peer, reason },
            Departure::Left { peer } => {
                Error::PeerLost { rank, peer, reason: "it has left the group".to_owned() }
            }
        }
    }
}

/// Watches over the group while it lives; dropping it says goodbye to the neighbours.
#[derive(Debug)]
pub struct Watch(Option<Thread>);

#[derive(Debug)]
struct Thread {
    /// Closed to wake the thread for the last time.
    wake: UnixStream,
    handle: JoinHandle<()>,
}

impl Watch {
    /// Of a group of one: nobody can go.
    pub(super) fn alone() -> Self {
        Watch(None)
    }

    pub(super) fn start(
        ring: Ring,
        on_gone: impl FnMut(Departure) + Send + 'static,
    ) -> Result<Self> {
        let (ours, theirs) =
            UnixStream::pair().map_err(|e| Error::system("socket pair of the watch", e))?;
        let (rank, nranks) = (ring.rank, ring.nranks);
        let sides = [
            Side::new(ring.next, next_of(rank, nranks)),
            Side::new(ring.prev, prev_of(rank, nranks)),
        ];
        let watcher = Watcher { rank, wake: theirs, sides, known: HashSet::from([rank]), on_gone };
        let handle = std::thread::Builder::new()
            .name("ferroccl-watch".to_owned())
            .spawn(move || watcher.run())
            .map_err(|e| Error::system("thread of the watch", e))?;
        Ok(Watch(Some(Thread { wake: ours, handle })))
    }

    /// Leaves the group: tells the neighbours, and returns when they have been told. The same as dropping.
    pub fn goodbye(self) {}
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(Thread { wake, handle }) = self.0.take() else { return };
        drop(wake);
        // The callback itself may drop the watch; its thread then ends by itself.
        if handle.thread().id() != std::thread::current().id() {
            // A callback that panicked has said so already.
            let _ = handle.join();
        }
    }
}

/// One neighbour.
struct Side {
    peer: u32,
    /// `None` once it is gone.
    link: Option<Link>,
    /// What it must still be told.
    unsent: Vec<u8>,
}

impl Side {
    fn new(link: Link, peer: u32) -> Self {
        Side { peer, link: Some(link), unsent: Vec::new() }
    }

    fn tell(&mut self, message: &Message) {
        if self.link.is_some() {
            self.unsent.extend(message.encode_plain());
            self.flush();
        }
    }

    /// Writes what can be written. A broken connection shows when it is read.
    fn flush(&mut self) {
        if let Some(link) = &mut self.link {
            match link.write_some(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(_) => self.unsent.clear(),
            }
        }
    }
}

struct Watcher<F> {
    rank: u32,
    wake: UnixStream,
    /// Next and previous; in a group of two the same rank.
    sides: [Side; 2],
    /// Who has been reported; ourselves from the start, we know better.
    known: HashSet<u32>,
    on_gone: F,
}

impl<F: FnMut(Departure)> Watcher<F> {
    fn run(mut self) {
        loop {
            let ready = match self.sleep() {
                Ok(ready) => ready,
                Err(e) => {
                    let reason = format!("rank {} can no longer watch it: {e}", self.rank);
                    for side in 0..2 {
                        let peer = self.sides[side].peer;
                        self.report(Departure::Lost { peer, reason: reason.clone() }, side);
                    }
                    return;
                }
            };
            if ready[0] && self.is_over() {
                return self.leave();
            }
            for side in 0..2 {
                self.sides[side].flush();
                if ready[1 + side] {
                    self.listen(side);
                }
            }
        }
    }

    /// Sleeps until the wake-up or a side moves.
    fn sleep(&self) -> std::io::Result<[bool; 3]> {
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        let mut place = [None; 2];
        for (side, place) in self.sides.iter().zip(&mut place) {
            if let Some(link) = &side.link {
                let out =
                    if side.unsent.is_empty() { PollFlags::empty() } else { PollFlags::POLLOUT };
                *place = Some(fds.len());
                fds.push(PollFd::new(link.as_fd(), PollFlags::POLLIN | out));
            }
        }
        wait(&mut fds, None)?;
        let ready = |place: Option<usize>| place.is_some_and(|i| is_ready(&fds[i]));
        Ok([is_ready(&fds[0]), ready(place[0]), ready(place[1])])
    }

    fn is_over(&mut self) -> bool {
        // Nothing is ever written: the only event is the other end's closing.
        !matches!(self.wake.read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::Interrupted)
    }

    /// Reads all that a neighbour said.
    fn listen(&mut self, side: usize) {
        loop {
            let peer = self.sides[side].peer;
            let Some(link) = &mut self.sides[side].link else { return };
            let departure = match link.read_some() {
                Ok(None) => return,
                Ok(Some(frame)) => match frame.message() {
                    Ok(Message::Goodbye) => Departure::Left { peer },
                    Ok(Message::Gone { peer, reason: None }) => {
                        self.report(Departure::Left { peer }, side);
                        continue;
                    }
                    Ok(Message::Gone { peer, reason: Some(reason) }) => {
                        self.report(Departure::Lost { peer, reason }, side);
                        continue;
                    }
                    Ok(_) => lost(peer, "it sent what has no place here"),
                    Err(e) => lost(peer, &e.to_string()),
                },
                Err(LinkError::Closed { .. }) => {
                    lost(peer, "its connection closed without a goodbye: its process has ended")
                }
                Err(e) => lost(peer, &e.to_string()),
            };
            self.sides[side].link = None;
            self.report(departure, side);
            return;
        }
    }

    /// Tells the caller and the other side, once for each rank.
    fn report(&mut self, departure: Departure, from: usize) {
        if !self.known.insert(departure.peer()) {
            return;
        }
        let (peer, reason) = match departure.clone() {
            Departure::Lost { peer, reason } => (peer, Some(reason)),
            Departure::Left { peer } => (peer, None),
        };
        tracing::info!(target: BOOTSTRAP, "rank {}: rank {peer} is gone: {}", self.rank,
            reason.as_deref().unwrap_or("it has left"));
        self.sides[1 - from].tell(&Message::Gone { peer, reason });
        (self.on_gone)(departure);
    }

    fn leave(mut self) {
        let until = Instant::now() + FAREWELL;
        for side in &mut self.sides {
            side.tell(&Message::Goodbye);
        }
        for side in &mut self.sides {
            if let Some(link) = &mut side.link {
                let _ = link.write_all(&side.unsent, until);
                // What is unread when a socket closes makes the system reset the connection, and the
                // neighbour might lose our goodbye with it.
                while matches!(link.read_some(), Ok(Some(_))) {}
            }
        }
    }
}

fn lost(peer: u32, reason: &str) -> Departure {
    Departure::Lost { peer, reason: reason.to_owned() }
}

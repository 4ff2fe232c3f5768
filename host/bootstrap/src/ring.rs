//! The ring: each rank has a connection to the next and one from the rank before it.
//!
//! An all-gather passes blocks around: in step `s` a rank sends the block of rank `rank - s` and receives that
//! of `rank - s - 1`. Sending and receiving go on at the same time, so that blocks larger than a socket's
//! buffer do not stop all ranks in their sends.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use ferroccl_handshake::Key;
use nix::poll::{PollFd, PollFlags};

use super::limit::{Deadline, Limit};
use super::link::{Link, wait};
use super::peers::PeerAcceptor;
use super::rounds::gather_rounds;
use super::wire::{Message, Purpose};
use crate::error::{BootstrapError, Result};

/// A rank's two edges of the ring.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) rank: u32,
    pub(super) nranks: u32,
    pub(super) next: Link,
    pub(super) prev: Link,
    /// Collective calls so far; ranks in different calls notice.
    calls: u32,
    /// Once it broke, it stays broken.
    broken: Option<BootstrapError>,
}

pub(super) fn next_of(rank: u32, nranks: u32) -> u32 {
    (rank + 1) % nranks
}

pub(super) fn prev_of(rank: u32, nranks: u32) -> u32 {
    (rank + nranks - 1) % nranks
}

/// A ring that is being closed.
struct Closing<'a> {
    rank: u32,
    nranks: u32,
    peers: &'a PeerAcceptor,
    next: Link,
    /// Whether the next rank has answered.
    met: bool,
    prev: Option<Link>,
}

impl Ring {
    /// With these neighbours.
    #[cfg(test)]
    pub(super) fn of_links(rank: u32, nranks: u32, next: Link, prev: Link) -> Self {
        Ring { rank, nranks, next, prev, calls: 0, broken: None }
    }

    /// Connects to the next rank at `address` and takes the connection of the one before.
    pub(super) fn close(
        rank: u32,
        nranks: u32,
        peers: &PeerAcceptor,
        key: &Key,
        address: SocketAddr,
        deadline: &Deadline,
    ) -> Result<Self> {
        let to = next_of(rank, nranks);
        let lost = |e: &dyn std::fmt::Display| BootstrapError::PeerLost {
            rank,
            peer: to,
            reason: format!("connecting to {address}: {e}"),
        };
        let hello = Message::Peer { purpose: Purpose::Ring, from: rank, to };
        let connected = Link::connect_to_peer(address, key, deadline);
        let connected = connected.map_err(|e| lost(&e)).and_then(|mut next| {
            next.send(&hello, deadline).map_err(|e| lost(&e))?;
            Ok(next)
        });
        let next = match connected {
            Ok(next) => next,
            Err(error) => {
                tell_prev(peers, &error);
                return Err(error);
            }
        };
        let mut closing = Closing { rank, nranks, peers, next, met: false, prev: None };
        loop {
            let prev = match (closing.met, closing.prev.take()) {
                (true, Some(prev)) => prev,
                (_, prev) => {
                    closing.prev = prev;
                    if let Err(error) = closing.step(deadline) {
                        closing.give_up(&error);
                        return Err(error);
                    }
                    continue;
                }
            };
            let next = closing.next;
            let what = |e| BootstrapError::system("keep-alive of the ring", e);
            next.keep_alive().and_then(|()| prev.keep_alive()).map_err(what)?;
            return Ok(Ring { rank, nranks, next, prev, calls: 0, broken: None });
        }
    }

    /// All-gathers so far.
    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    /// Every rank's bytes, in the order of ranks.
    pub(super) fn all_gather(&mut self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let result = self.pass_around(mine, limit).map_err(|error| self.give_up(error));
        self.broken = result.as_ref().err().cloned();
        result
    }

    /// Something has gone wrong: the cause of it, which a neighbour may know, and which both neighbours are told. Who only
    /// closed its connections would be blamed by them.
    fn give_up(&mut self, error: BootstrapError) -> BootstrapError {
        let heard = match &error {
            BootstrapError::PeerLost { .. } => self.cause_heard(Duration::ZERO),
            // Ranks whose time ran out a moment earlier may tell why.
            BootstrapError::Timeout { .. } => self.cause_heard(GIVING_UP),
            _ => None,
        };
        let error = match heard {
            Some((peer, reason)) => self.lost(peer, &reason),
            None => error,
        };
        if let BootstrapError::PeerLost { peer, reason, .. } = &error {
            let gone = Message::Gone { peer: *peer, reason: Some(reason.clone()) };
            self.next.send_last(&gone);
            self.prev.send_last(&gone);
        }
        error
    }

    /// The lost rank that a neighbour names, and why, within `time`.
    fn cause_heard(&mut self, time: Duration) -> Option<(u32, String)> {
        let soon = Deadline::within(time);
        let (mut prev_open, mut next_open) = (true, true);
        loop {
            for (link, open) in [(&mut self.prev, &mut prev_open), (&mut self.next, &mut next_open)]
            {
                while *open {
                    match link.read_some().map(|frame| frame.map(|f| f.message())) {
                        Ok(Some(Ok(Message::Gone { peer, reason: Some(reason) }))) => {
                            return Some((peer, reason));
                        }
                        Ok(Some(Ok(_))) => {} // data of a call that has failed here
                        Ok(None) => break,
                        Ok(Some(Err(_))) | Err(_) => *open = false,
                    }
                }
            }
            let mut fds = Vec::with_capacity(2);
            for (link, open) in [(&self.prev, prev_open), (&self.next, next_open)] {
                if open {
                    fds.push(PollFd::new(link.as_fd(), PollFlags::POLLIN));
                }
            }
            if fds.is_empty() || !wait(&mut fds, Some(&soon)).unwrap_or(false) {
                return None;
            }
        }
    }

    fn pass_around(&mut self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        let deadline = limit.start();
        let mut blocks = vec![Vec::new(); self.nranks as usize];
        blocks[self.rank as usize] = mine.to_vec();
        let mut held = self.rank;
        for step in 0..gather_rounds(self.nranks) {
            let tag = u64::from(self.calls) << 32 | u64::from(step);
            let bytes = self.exchange(tag, &blocks[held as usize], &deadline, limit)?;
            held = prev_of(held, self.nranks);
            blocks[held as usize] = bytes;
        }
        self.calls = self.calls.wrapping_add(1);
        Ok(blocks)
    }

    /// Sends to the next rank while receiving from the one before.
    fn exchange(
        &mut self,
        tag: u64,
        bytes: &[u8],
        deadline: &Deadline,
        limit: &Limit,
    ) -> Result<Vec<u8>> {
        let frame = self.next.seal(&Message::Data { tag, bytes: bytes.to_vec() });
        let mut to_send = &frame[..];
        let mut received = None;
        loop {
            if !to_send.is_empty() {
                let next = next_of(self.rank, self.nranks);
                let sent = self.next.write_some(to_send).map_err(|e| self.lost(next, &e))?;
                to_send = &to_send[sent..];
            }
            if received.is_none() {
                received = self.heard_from_prev(tag)?;
            }
            if to_send.is_empty()
                && let Some(bytes) = received
            {
                return Ok(bytes);
            }
            let mut fds = Vec::with_capacity(2);
            if !to_send.is_empty() {
                fds.push(PollFd::new(self.next.as_fd(), PollFlags::POLLOUT));
            }
            if received.is_none() {
                fds.push(PollFd::new(self.prev.as_fd(), PollFlags::POLLIN));
            }
            if !wait(&mut fds, Some(deadline))
                .map_err(|e| BootstrapError::system("sockets of the ring", e))?
            {
                let (verb, peer) = match received {
                    None => ("hear from", prev_of(self.rank, self.nranks)),
                    Some(_) => ("send to", next_of(self.rank, self.nranks)),
                };
                let what =
                    format!("rank {} waiting to {verb} rank {peer} in an all-gather", self.rank);
                return Err(BootstrapError::Timeout { what, limit: limit.time });
            }
        }
    }

    /// The block with this tag, once it is whole.
    fn heard_from_prev(&mut self, tag: u64) -> Result<Option<Vec<u8>>> {
        let prev = prev_of(self.rank, self.nranks);
        let frame = match self.prev.read_some() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(e) => return Err(self.lost(prev, &e)),
        };
        match frame.message().map_err(|e| self.lost(prev, &e))? {
            Message::Data { tag: theirs, bytes } if theirs == tag => Ok(Some(bytes)),
            Message::Data { tag: theirs, .. } => {
                let call = |tag: u64| format!("call {} step {}", tag >> 32, tag & 0xffff_ffff);
                let what = format!(
                    "rank {} is in all-gather {}, rank {prev} in {}",
                    self.rank,
                    call(tag),
                    call(theirs)
                );
                Err(BootstrapError::Mismatch(what))
            }
            Message::Goodbye => Err(self.lost(prev, &"it has left")),
            Message::Gone { peer, reason } => {
                Err(self.lost(peer, &reason.as_deref().unwrap_or("it has left")))
            }
            _ => Err(self.lost(prev, &"it sent what has no place here")),
        }
    }

    fn lost(&self, peer: u32, reason: &dyn std::fmt::Display) -> BootstrapError {
        BootstrapError::PeerLost { rank: self.rank, peer, reason: reason.to_string() }
    }

    /// Tells both neighbours that this rank leaves; whether they hear it is up to them.
    pub(super) fn say_goodbye(&mut self) {
        self.next.send_last(&Message::Goodbye);
        self.prev.send_last(&Message::Goodbye);
    }
}

/// How long a rank whose time is up listens whether a neighbour knows the cause: their times end at other moments.
const GIVING_UP: Duration = Duration::from_secs(1);

/// How long a rank that gives up waits for the rank before it, to tell it why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Tells the rank before this one, when it comes, why there will be no ring.
fn tell_prev(peers: &PeerAcceptor, error: &BootstrapError) {
    let BootstrapError::PeerLost { peer, reason, .. } = error else { return };
    let soon = Deadline::within(FAREWELL);
    loop {
        let Ok(arrived) = peers.take(Purpose::Ring) else { return };
        if let Some((_, mut prev)) = arrived.into_iter().next() {
            // Before it is met it listens to nothing else.
            if prev.send(&Message::Met, &soon).is_ok() {
                prev.send_last(&Message::Gone { peer: *peer, reason: Some(reason.clone()) });
            }
            return;
        }
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = peers.wake().map(readable).into_iter().collect();
        if soon.is_over() || wait(&mut fds, Some(&soon)).is_err() {
            return;
        }
    }
}

impl Closing<'_> {
    /// Tells both neighbours why there will be no ring.
    fn give_up(mut self, error: &BootstrapError) {
        let BootstrapError::PeerLost { peer, reason, .. } = error else { return };
        let gone = Message::Gone { peer: *peer, reason: Some(reason.clone()) };
        self.next.send_last(&gone);
        match &mut self.prev {
            Some(prev) => prev.send_last(&gone),
            None => tell_prev(self.peers, error),
        }
    }

    /// Does what can be done, or waits until something can.
    fn step(&mut self, deadline: &Deadline) -> Result<()> {
        let (rank, to, from) =
            (self.rank, next_of(self.rank, self.nranks), prev_of(self.rank, self.nranks));
        let lost = |peer: u32, e: &dyn std::fmt::Display| {
            let reason = format!("closing the ring: {e}");
            BootstrapError::PeerLost { rank, peer, reason }
        };
        // There is at most one.
        for (_, mut prev) in self.peers.take(Purpose::Ring)? {
            // An empty socket takes a message at once; if not, the peer's time runs out.
            prev.send(&Message::Met, deadline).map_err(|e| lost(from, &e))?;
            prev.open();
            self.prev = Some(prev);
        }
        match self.next.read_some() {
            Ok(None) => {}
            Ok(Some(frame)) => match frame.message() {
                Ok(Message::Met) if !self.met => {
                    self.next.open();
                    self.met = true;
                    return Ok(()); // more may have come with it
                }
                Ok(Message::Gone { peer, reason: Some(reason) }) if self.met => {
                    return Err(BootstrapError::PeerLost { rank, peer, reason });
                }
                Ok(Message::Refused(refusal)) => return Err(lost(to, &refusal)),
                _ => return Err(lost(to, &"it sent what has no place here")),
            },
            Err(e) => return Err(lost(to, &e)),
        }
        if self.met && self.prev.is_some() {
            return Ok(());
        }
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let fds = std::iter::once(self.next.as_fd()).chain(self.peers.wake());
        let mut fds: Vec<_> = fds.map(readable).collect();
        wait(&mut fds, Some(deadline))
            .map_err(|e| BootstrapError::system("sockets of the ring", e))?;
        if deadline.is_over() {
            let who = if self.prev.is_none() { from } else { to };
            return Err(BootstrapError::PeerLost {
                rank,
                peer: who,
                reason: "it reached the root, but not this rank in time".to_owned(),
            });
        }
        Ok(())
    }
}

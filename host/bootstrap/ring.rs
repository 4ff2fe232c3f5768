//! The ring: each rank has a connection to the next and one from the rank before it.
//!
//! An all-gather passes blocks around: in step `s` a rank sends the block of rank `rank - s` and receives that
//! of `rank - s - 1`. Sending and receiving go on at the same time, so that blocks larger than a socket's
//! buffer do not stop all ranks in their sends.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags};

use super::BootstrapError;
use super::auth::{Key, NO_CHALLENGE, nonce};
use super::door::Door;
use super::limit::{Deadline, Limit};
use super::link::{Link, LinkError, wait};
use super::wire::{Message, Nonce, Phase, Purpose, Refusal};
use crate::{Error, Result};

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
    broken: Option<Error>,
}

pub(super) fn next_of(rank: u32, nranks: u32) -> u32 {
    (rank + 1) % nranks
}

pub(super) fn prev_of(rank: u32, nranks: u32) -> u32 {
    (rank + nranks - 1) % nranks
}

/// What the ring's neighbours have still to do until it is closed.
struct Closing<'a> {
    rank: u32,
    nranks: u32,
    key: &'a Key,
    next: Link,
    /// What the next rank's answer must cover; `None` once it has answered.
    challenge: Option<Nonce>,
    prev: Option<Link>,
}

impl Ring {
    /// Connects to the next rank at `address` and takes the one before at our `door`.
    pub(super) fn close(
        rank: u32,
        nranks: u32,
        door: &mut Door,
        key: &Key,
        address: SocketAddr,
        deadline: &Deadline,
    ) -> Result<Self> {
        let to = next_of(rank, nranks);
        let lost = |e: &dyn std::fmt::Display| Error::PeerLost {
            rank,
            peer: to,
            reason: format!("connecting to {address}: {e}"),
        };
        let mut next = Link::connect(address, Phase::Handshake, deadline).map_err(|e| lost(&e))?;
        let challenge = nonce()?;
        let hello = Message::Peer { purpose: Purpose::Ring, from: rank, to, challenge };
        next.write_all(&key.seal(&NO_CHALLENGE, &hello), deadline).map_err(|e| lost(&e))?;
        let mut closing =
            Closing { rank, nranks, key, next, challenge: Some(challenge), prev: None };
        loop {
            let prev = match (closing.challenge, closing.prev.take()) {
                (None, Some(prev)) => prev,
                (_, prev) => {
                    closing.prev = prev;
                    closing.step(door, deadline)?;
                    continue;
                }
            };
            let next = closing.next;
            let what = |e| Error::system("keep-alive of the ring", e);
            next.keep_alive().and_then(|()| prev.keep_alive()).map_err(what)?;
            return Ok(Ring { rank, nranks, next, prev, calls: 0, broken: None });
        }
    }

    /// Every rank's bytes, in the order of ranks.
    pub(super) fn all_gather(&mut self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let result = self.pass_around(mine, limit);
        self.broken = result.as_ref().err().cloned();
        result
    }

    fn pass_around(&mut self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        let deadline = limit.start();
        let mut blocks = vec![Vec::new(); self.nranks as usize];
        blocks[self.rank as usize] = mine.to_vec();
        let mut held = self.rank;
        for step in 0..self.nranks - 1 {
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
        let frame = Message::Data { tag, bytes: bytes.to_vec() }.encode_plain();
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
                .map_err(|e| Error::system("sockets of the ring", e))?
            {
                let (verb, peer) = match received {
                    None => ("hear from", prev_of(self.rank, self.nranks)),
                    Some(_) => ("send to", next_of(self.rank, self.nranks)),
                };
                let what =
                    format!("rank {} waiting to {verb} rank {peer} in an all-gather", self.rank);
                return Err(BootstrapError::Timeout { what, limit: limit.time }.into());
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
                Err(BootstrapError::Mismatch(what).into())
            }
            Message::Goodbye => Err(self.lost(prev, &"it has left")),
            Message::Gone { peer, reason } => {
                Err(self.lost(peer, &reason.as_deref().unwrap_or("it has left")))
            }
            _ => Err(self.lost(prev, &"it sent what has no place here")),
        }
    }

    fn lost(&self, peer: u32, reason: &dyn std::fmt::Display) -> Error {
        Error::PeerLost { rank: self.rank, peer, reason: reason.to_string() }
    }

    /// Tells both neighbours that this rank leaves; whether they hear it is up to them.
    pub(super) fn say_goodbye(&mut self) {
        let goodbye = Message::Goodbye.encode_plain();
        let _ = self.next.write_some(&goodbye);
        let _ = self.prev.write_some(&goodbye);
    }
}

impl Closing<'_> {
    /// Waits for one thing to happen.
    fn step(&mut self, door: &mut Door, deadline: &Deadline) -> Result<()> {
        let (rank, to, from) =
            (self.rank, next_of(self.rank, self.nranks), prev_of(self.rank, self.nranks));
        let others = if self.challenge.is_some() { vec![self.next.as_fd()] } else { Vec::new() };
        let (arrivals, ready) = door
            .serve(&others, Some(deadline))
            .map_err(|e| Error::system("sockets of the ring", e))?;
        if let Some(challenge) = self.challenge
            && ready == [true]
        {
            let lost = |e: &dyn std::fmt::Display| Error::PeerLost {
                rank,
                peer: to,
                reason: format!("closing the ring: {e}"),
            };
            match self.next.read_some() {
                Ok(None) => {}
                Ok(Some(frame)) => match self.key.open(&challenge, &frame) {
                    Ok(Message::Met) => {
                        self.next.open();
                        self.challenge = None;
                    }
                    Ok(Message::Refused(refusal)) => return Err(lost(&refusal)),
                    _ => return Err(lost(&"it does not prove that it is of this group")),
                },
                Err(e) => return Err(lost(&e)),
            }
        }
        for mut arrival in arrivals {
            match arrival.message {
                Message::Peer { purpose: Purpose::Ring, from: who, to: whom, challenge }
                    if who == from && whom == rank && self.prev.is_none() =>
                {
                    // An empty socket takes a handshake at once; if not, the peer's time runs out.
                    let met = self.key.seal(&challenge, &Message::Met);
                    arrival.link.write_all(&met, deadline).map_err(|e: LinkError| {
                        Error::PeerLost {
                            rank,
                            peer: from,
                            reason: format!("closing the ring: {e}"),
                        }
                    })?;
                    arrival.link.open();
                    self.prev = Some(arrival.link);
                }
                Message::Peer { challenge, .. } => {
                    door.refuse(&mut arrival.link, &challenge, Refusal::NotExpected);
                }
                _ => door.refuse(&mut arrival.link, &NO_CHALLENGE, Refusal::NotExpected),
            }
        }
        if deadline.is_over() && (self.challenge.is_some() || self.prev.is_none()) {
            let who = if self.prev.is_none() { from } else { to };
            return Err(Error::PeerLost {
                rank,
                peer: who,
                reason: "it reached the root, but not this rank in time".to_owned(),
            });
        }
        Ok(())
    }
}

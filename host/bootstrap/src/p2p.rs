//! Messages between any two ranks, found again by peer and tag.
//!
//! A rank connects to a peer when it first sends to it, and keeps the connection. A receiver takes what comes,
//! in whatever order, and keeps what it was not asked for.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use ferroccl_handshake::Key;
use nix::poll::{PollFd, PollFlags};

use super::limit::{Deadline, Limit};
use super::link::{Link, is_ready, wait};
use super::peers::PeerAcceptor;
use super::wire::{MAX_DATA, Message, Purpose};
use crate::error::{BootstrapError, Result};

pub(super) fn check_length(argument: &'static str, bytes: &[u8]) -> Result<()> {
    if bytes.len() <= MAX_DATA {
        return Ok(());
    }
    let reason = format!("{} bytes are more than a message holds ({MAX_DATA})", bytes.len());
    Err(BootstrapError::argument(argument, reason))
}

/// What has arrived and was not yet asked for, by peer and tag.
#[derive(Debug, Default)]
pub(super) struct Queues(HashMap<(u32, u64), VecDeque<Vec<u8>>>);

impl Queues {
    pub(super) fn push(&mut self, peer: u32, tag: u64, bytes: Vec<u8>) {
        self.0.entry((peer, tag)).or_default().push_back(bytes);
    }

    pub(super) fn pop(&mut self, peer: u32, tag: u64) -> Option<Vec<u8>> {
        let queue = self.0.get_mut(&(peer, tag))?;
        let bytes = queue.pop_front();
        if queue.is_empty() {
            self.0.remove(&(peer, tag)); // tags come and go; their queues must not pile up
        }
        bytes
    }
}

/// The sending side.
#[derive(Debug)]
pub(super) struct Outbox {
    rank: u32,
    /// Where each rank listens.
    addresses: Vec<SocketAddr>,
    key: Key,
    links: HashMap<u32, Link>,
}

impl Outbox {
    pub(super) fn new(rank: u32, addresses: Vec<SocketAddr>, key: Key) -> Self {
        Outbox { rank, addresses, key, links: HashMap::new() }
    }

    /// Sends to `peer`, which is a rank of the group and not this one.
    pub(super) fn send(&mut self, peer: u32, tag: u64, bytes: &[u8], limit: &Limit) -> Result<()> {
        let until = &limit.start();
        let rank = self.rank;
        let address = self.addresses[peer as usize];
        let lost = |e: &dyn std::fmt::Display| BootstrapError::PeerLost {
            rank,
            peer,
            reason: format!("sending to {address}: {e}"),
        };
        let mut link = match self.links.remove(&peer) {
            Some(link) => link,
            None => {
                let mut link =
                    Link::connect_to_peer(address, &self.key, until).map_err(|e| lost(&e))?;
                let hello = Message::Peer { purpose: Purpose::Messages, from: rank, to: peer };
                link.send(&hello, until).map_err(|e| lost(&e))?;
                link
            }
        };
        let message = Message::Data { tag, bytes: bytes.to_vec() };
        link.send(&message, until).map_err(|e| lost(&e))?;
        // Only a connection that has carried a whole message is used again.
        self.links.insert(peer, link);
        Ok(())
    }
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct Inbox {
    rank: u32,
    peers: PeerAcceptor,
    /// Connections of peers.
    links: Vec<(u32, Link)>,
    queues: Queues,
    /// Peers whose connection has ended.
    gone: HashSet<u32>,
}

impl Inbox {
    pub(super) fn new(rank: u32, peers: PeerAcceptor) -> Self {
        Inbox { rank, peers, links: Vec::new(), queues: Queues::default(), gone: HashSet::new() }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.peers.address()
    }

    /// Receives from `peer`, which is a rank of the group and not this one.
    pub(super) fn recv(&mut self, peer: u32, tag: u64, limit: &Limit) -> Result<Vec<u8>> {
        let until = limit.start();
        loop {
            if let Some(bytes) = self.queues.pop(peer, tag) {
                return Ok(bytes);
            }
            if self.gone.contains(&peer) {
                let reason = format!("it closed its connection before it sent tag {tag}");
                return Err(BootstrapError::PeerLost { rank: self.rank, peer, reason });
            }
            if until.is_over() {
                let what = format!("rank {} waiting for tag {tag} of rank {peer}", self.rank);
                return Err(BootstrapError::Timeout { what, limit: limit.time });
            }
            self.take_what_comes(&until)?;
        }
    }

    fn take_what_comes(&mut self, until: &Deadline) -> Result<()> {
        let new = self.peers.take_messages()?;
        let has_new = !new.is_empty();
        // The first message may have come along with the connection.
        new.into_iter().for_each(|(peer, link)| self.drain(peer, link));
        if has_new {
            return Ok(());
        }
        let ready: Vec<bool> = {
            let links = self.links.iter().map(|(_, link)| link.as_fd());
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds: Vec<_> = links.chain(self.peers.wake()).map(readable).collect();
            wait(&mut fds, Some(until))
                .map_err(|e| BootstrapError::system("sockets of the rank", e))?;
            fds.iter().map(is_ready).collect()
        };
        for ((peer, link), ready) in std::mem::take(&mut self.links).into_iter().zip(ready) {
            if ready {
                self.drain(peer, link);
            } else {
                self.links.push((peer, link));
            }
        }
        Ok(())
    }

    /// Takes every message that has come, and keeps the connection while it lasts.
    fn drain(&mut self, peer: u32, mut link: Link) {
        loop {
            let end = match link.read_some() {
                Ok(None) => return self.links.push((peer, link)),
                Ok(Some(frame)) => match frame.message() {
                    Ok(Message::Data { tag, bytes }) => {
                        self.queues.push(peer, tag, bytes);
                        continue;
                    }
                    Ok(_) => "it sent what has no place here".to_owned(),
                    Err(e) => e.to_string(),
                },
                Err(e) => e.to_string(),
            };
            tracing::trace!(target: crate::settings::LOG_TARGET, "rank {}: rank {peer}: {end}", self.rank);
            self.gone.insert(peer);
            return;
        }
    }
}

//! A rank's connections with other ranks, and all-gathers over them while a communicator is set up.
//!
//! ```text
//!                  rank 1 of 8
//!   0 ◄───────────────┤├───────────────► 2     the ring: the rank before, and the next
//!   0 ◄── round 0 ────┤├─── round 1 ───► 3     the partners of recursive doubling (`doubling`); one that is a neighbour
//!                      ├─── round 2 ───► 5     in the ring, too, has no second connection
//! ```
//!
//! Of two ranks the one before in the ring connects to the next, and else the lower to the higher; the root has told it where
//! that listens (`opening`). In an all-gather a rank sends and receives at the same time, so that
//! blocks larger than a socket's buffer do not stop all ranks in their sends.
//!
//! A rank that has failed tells all of these ranks why. Each of them that waits fails, too, and passes that on: so every rank
//! learns of the first cause. Who waits for a rank is connected with it, or with one that waits for it in an earlier round.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};

use super::blocks::GatheredBlocks;
use super::doubling::{self, AllGathers, Misplaced};
use super::limit::{Deadline, Limit};
use super::link::{Link, LinkError, is_ready, wait};
use super::side::Side;
use super::wire::{Frame, MAX_DATA, Message, Purpose};
use crate::error::{BootstrapError, Result};

/// The tag of a piece of an all-gather; no other data travels on these connections during set-up.
pub(super) const GATHER: u64 = u64::from_be_bytes(*b"\0\0gather");

/// How long a rank whose time is up listens whether another knows the cause: their times end at other moments.
const GIVING_UP: Duration = Duration::from_secs(1);

/// How long a rank listens to the partner alone that it waits for. Not measured: long beside a round.
const SOON: Duration = Duration::from_millis(100);

/// The places of the ring's ranks among the sides.
pub(super) const NEXT: usize = 0;
pub(super) const PREV: usize = 1;

pub(super) fn next_of(rank: u32, nranks: u32) -> u32 {
    (rank + 1) % nranks
}

pub(super) fn prev_of(rank: u32, nranks: u32) -> u32 {
    (rank + nranks - 1) % nranks
}

/// The ranks that `rank` is connected with: the next, the one before, and those of its partners that are neither.
fn sides(rank: u32, nranks: u32) -> Vec<u32> {
    let ring = [next_of(rank, nranks), prev_of(rank, nranks)];
    let partners = doubling::partners(rank, nranks);
    ring.into_iter().chain(partners.into_iter().filter(|rank| !ring.contains(rank))).collect()
}

/// The side of each partner, by place. Both ends of a connection take the same one, also where two ranks have two.
fn places(rank: u32, nranks: u32) -> Vec<usize> {
    let sides = sides(rank, nranks);
    let side = |partner: u32| {
        let found = |side: &usize| sides[*side] == partner;
        let order = if rank < partner { [NEXT, PREV] } else { [PREV, NEXT] };
        order.into_iter().chain(2..sides.len()).find(found).unwrap_or(NEXT)
    };
    doubling::partners(rank, nranks).into_iter().map(side).collect()
}

/// The ranks that `rank` connects to: first the next, then its partners above it. Their addresses are in its welcome.
pub(super) fn called_by(rank: u32, nranks: u32) -> impl Iterator<Item = u32> {
    let sides = sides(rank, nranks).into_iter().enumerate();
    sides.filter(move |(side, peer)| calls(rank, *side, *peer)).map(|(_, peer)| peer)
}

/// The ranks that connect to `rank`, each with what for.
pub(super) fn callers_of(rank: u32, nranks: u32) -> impl Iterator<Item = (Purpose, u32)> {
    let sides = sides(rank, nranks).into_iter().enumerate();
    let callers = sides.filter(move |(side, peer)| !calls(rank, *side, *peer));
    callers.map(|(side, peer)| (purpose(side), peer))
}

/// Whether `rank` connects to the peer of a side, and not the other way around.
pub(super) fn calls(rank: u32, side: usize, peer: u32) -> bool {
    side == NEXT || (side != PREV && peer > rank)
}

pub(super) fn purpose(side: usize) -> Purpose {
    if side == NEXT || side == PREV { Purpose::Ring } else { Purpose::Rounds }
}

/// A rank's connections.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) rank: u32,
    pub(super) nranks: u32,
    /// [`NEXT`], [`PREV`], and the partners that are neither.
    pub(super) sides: Vec<Side>,
    /// The side of each partner.
    pub(super) places: Vec<usize>,
    pub(super) gathers: AllGathers,
    /// Once an all-gather has failed, all later ones fail.
    broken: Option<BootstrapError>,
}

impl Links {
    fn new(rank: u32, nranks: u32, sides: Vec<Side>, places: Vec<usize>) -> Self {
        let gathers = AllGathers::new(rank, nranks, MAX_DATA);
        Links { rank, nranks, sides, places, gathers, broken: None }
    }

    /// With these connections, in the order of sides.
    #[cfg(test)]
    pub(super) fn of_links(rank: u32, nranks: u32, links: impl IntoIterator<Item = Link>) -> Self {
        let sides = sides(rank, nranks).into_iter().zip(links);
        let sides = sides.map(|(peer, link)| Side::new(peer, Some(link))).collect();
        Self::new(rank, nranks, sides, places(rank, nranks))
    }

    /// The sides of `rank` without a connection.
    pub(super) fn without_links(rank: u32, nranks: u32) -> Self {
        let sides = sides(rank, nranks).into_iter().map(|peer| Side::new(peer, None)).collect();
        Self::new(rank, nranks, sides, places(rank, nranks))
    }

    /// Every rank's bytes, in the order of ranks.
    pub(super) fn all_gather(&mut self, mine: &[u8], limit: &Limit) -> Result<GatheredBlocks> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let result = self.gather(mine, limit).map_err(|error| self.give_up(error));
        self.broken = result.as_ref().err().cloned();
        result
    }

    fn gather(&mut self, mine: &[u8], limit: &Limit) -> Result<GatheredBlocks> {
        let deadline = limit.start();
        self.gathers.begin(mine.to_vec());
        // What has come with something else is not waited for.
        for side in 0..self.sides.len() {
            while self.is_wanted(side)
                && let Some(link) = &mut self.sides[side].link
                && let Some(frame) = link.take_held().transpose()
            {
                self.hear(side, frame)?;
            }
        }
        loop {
            while let Some((place, pieces)) = self.gathers.advance() {
                for bytes in pieces {
                    self.sides[self.places[place]].tell(&Message::Data { tag: GATHER, bytes });
                }
            }
            let waits_for = self.gathers.waits_for();
            if waits_for.is_none()
                && self.sides.iter().all(Side::is_flushed)
                && let Some(all) = self.gathers.finish()
            {
                return Ok(all);
            }
            let partner = waits_for.map(|place| self.places[place]);
            if let Some(side) = partner
                && self.listen(side)?
            {
                continue;
            }
            let ready = self.wait(partner, &deadline)?;
            if ready.is_empty() {
                let busy = || self.sides.iter().position(|side| !side.is_flushed());
                let (verb, side) = match partner {
                    Some(side) => ("hear from", side),
                    None => ("send to", busy().unwrap_or(NEXT)),
                };
                let (rank, peer) = (self.rank, self.sides[side].peer);
                let what = format!("rank {rank} waiting to {verb} rank {peer} in an all-gather");
                return Err(BootstrapError::Timeout { what, limit: limit.time });
            }
            for side in ready {
                self.sides[side].flush();
                self.listen(side)?;
            }
        }
    }

    /// Reads what a side has said in the all-gather that is made; whether that is anything.
    fn listen(&mut self, side: usize) -> Result<bool> {
        let mut heard = false;
        while self.is_wanted(side)
            && let Some(link) = &mut self.sides[side].link
            && let Some(frame) = link.read_some().transpose()
        {
            self.hear(side, frame)?;
            heard = true;
        }
        Ok(heard)
    }

    /// Waits until sides can go on: these; none if the time is up. What others than the `partner` say is read when it is their turn,
    /// unless the partner takes long, which has a cause that others may know.
    fn wait(&self, partner: Option<usize>, deadline: &Deadline) -> Result<Vec<usize>> {
        if partner.is_some() {
            let ready = self.wait_for(|side| Some(side) == partner, &deadline.or_within(SOON))?;
            if !ready.is_empty() {
                return Ok(ready);
            }
        }
        self.wait_for(|side| self.is_wanted(side), deadline)
    }

    /// Waits until what is unsent can go on, or one of these sides has said something.
    fn wait_for(&self, hears: impl Fn(usize) -> bool, deadline: &Deadline) -> Result<Vec<usize>> {
        let mut places = Vec::new();
        let mut fds = Vec::new();
        for (side, one) in self.sides.iter().enumerate() {
            if let Some(fd) = one.interest(hears(side)) {
                places.push(side);
                fds.push(fd);
            }
        }
        wait(&mut fds, Some(deadline))
            .map_err(|e| BootstrapError::system("sockets of an all-gather", e))?;
        let ready = places.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd));
        Ok(ready.map(|(side, _)| side).collect())
    }

    /// Whether something of the all-gather that is made is to come from a side. What is behind it is for the next one, or for the
    /// watch.
    fn is_wanted(&self, side: usize) -> bool {
        self.place_of(side).is_some_and(|place| self.gathers.wants(place))
    }

    fn place_of(&self, side: usize) -> Option<usize> {
        self.places.iter().position(|of_place| *of_place == side)
    }

    /// What a side has said, or why it says nothing more.
    pub(super) fn hear(&mut self, side: usize, frame: Result<Frame, LinkError>) -> Result<()> {
        let peer = self.sides[side].peer;
        let frame = frame.map_err(|e| self.lost(peer, &e))?;
        match frame.message().map_err(|e| self.lost(peer, &e))? {
            Message::Data { tag: GATHER, bytes } => {
                let heard = match self.place_of(side) {
                    Some(place) => self.gathers.hear(place, &bytes),
                    None => Err(Misplaced::Malformed),
                };
                heard.map_err(|error| match error {
                    Misplaced::Malformed => self.lost(peer, &"it sent what has no place here"),
                    Misplaced::Call { theirs } => BootstrapError::Mismatch(format!(
                        "rank {} is in all-gather {}, rank {peer} in {theirs}",
                        self.rank,
                        self.gathers.call()
                    )),
                })
            }
            Message::Goodbye => Err(self.lost(peer, &"it has left")),
            Message::Gone { peer, reason } => Err(self.lost(peer, &reason)),
            Message::Left { peers } => {
                Err(self.lost(peers.first().copied().unwrap_or(peer), &"it has left"))
            }
            _ => Err(self.lost(peer, &"it sent what has no place here")),
        }
    }

    /// Something has gone wrong: the cause of it, which another rank may know, and which all are told. Who only closed its
    /// connections would be blamed by them.
    pub(super) fn give_up(&mut self, error: BootstrapError) -> BootstrapError {
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
        let (_, gone) = self.gone(&error);
        self.sides.iter_mut().for_each(|side| side.tell(&gone));
        error
    }

    /// The rank that is lost by a failure of this one, and what others are told of it.
    pub(super) fn gone(&self, error: &BootstrapError) -> (u32, Message) {
        let (peer, reason) = match error {
            BootstrapError::PeerLost { peer, reason, .. } => (*peer, reason.clone()),
            error => (self.rank, format!("it gave up: {error}")),
        };
        (peer, Message::Gone { peer, reason })
    }

    /// The lost rank that another one names, and why, within `time`. That another's time is up, too, is no cause.
    fn cause_heard(&mut self, time: Duration) -> Option<(u32, String)> {
        let soon = Deadline::within(time);
        let sides = self.sides.iter_mut();
        let mut open: Vec<(u32, &mut Link)> =
            sides.filter_map(|side| Some((side.peer, side.link.as_mut()?))).collect();
        loop {
            let mut still_open = Vec::with_capacity(open.len());
            for (from, link) in open {
                loop {
                    match link.read_some().map(|frame| frame.map(|f| f.message())) {
                        Ok(Some(Ok(Message::Gone { peer, reason }))) if peer != from => {
                            return Some((peer, reason));
                        }
                        Ok(Some(Ok(_))) => {} // data of a call that has failed here
                        Ok(None) => {
                            still_open.push((from, link));
                            break;
                        }
                        Ok(Some(Err(_))) | Err(_) => break,
                    }
                }
            }
            open = still_open;
            let links = open.iter().map(|(_, link)| link.as_fd());
            let mut fds: Vec<_> = links.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            if fds.is_empty() || !wait(&mut fds, Some(&soon)).unwrap_or(false) {
                return None;
            }
        }
    }

    pub(super) fn lost(&self, peer: u32, reason: &dyn std::fmt::Display) -> BootstrapError {
        BootstrapError::PeerLost { rank: self.rank, peer, reason: reason.to_string() }
    }

    /// Tells all of these ranks that this one leaves; whether they hear it is up to them.
    pub(super) fn say_goodbye(&mut self) {
        self.sides.iter_mut().for_each(|side| side.tell(&Message::Goodbye));
    }
}

#[cfg(test)]
#[path = "links/tests.rs"]
mod tests;

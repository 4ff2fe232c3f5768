//! How a rank's connections come to be: all at the same time.
//!
//! ```text
//! the one that calls    connect ─► Peer ──────────────► waits for Met ─► open
//! the one that is called          PeerAcceptor ─► Met ─► open
//! ```
//!
//! A rank that cannot be reached is lost. Who finds that tells all others that it is connected with, and those that are still to
//! call it: else they would blame it, or wait until their time is up.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ferroccl_handshake::{AuthError, Connected, Connector, Key, Subject};
use nix::poll::{PollFd, PollFlags};

use super::limit::Deadline;
use super::link::{BUSY, Link, poll_flags, wait};
use super::links::{self, Links, PREV};
use super::peers::PeerAcceptor;
use super::side::Side;
use super::wire::{Message, Phase};
use crate::error::{BootstrapError, Result};

/// How long a rank that gives up waits for ranks that are to connect to it, to tell them why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Connections of which some are not there yet.
struct Opening<'a> {
    links: Links,
    /// Those that this rank makes, until they are met.
    calls: Vec<Call>,
    peers: &'a PeerAcceptor,
    key: &'a Key,
}

/// A connection that this rank makes.
struct Call {
    side: usize,
    address: SocketAddr,
    state: CallState,
}

enum CallState {
    /// To be made from then on.
    Pause(Instant),
    Connecting(Connector),
    /// The other rank has not answered yet.
    Unmet(Link),
}

impl Links {
    /// Makes the connections of `rank`: to `addresses` of the ranks that it [calls](links::called_by), and with those that call
    /// it.
    pub(super) fn open(
        rank: u32,
        nranks: u32,
        peers: &PeerAcceptor,
        key: &Key,
        addresses: &[SocketAddr],
        deadline: &Deadline,
    ) -> Result<Self> {
        let links = Links::without_links(rank, nranks);
        let called = links.sides.iter().enumerate();
        let called = called.filter(|(side, to)| links::calls(rank, *side, to.peer));
        let call = |((side, _), address): ((usize, _), &SocketAddr)| {
            let state = CallState::Pause(Instant::now());
            Call { side, address: *address, state }
        };
        let calls = called.zip(addresses).map(call).collect();
        let mut opening = Opening { links, calls, peers, key };
        loop {
            match opening.step(deadline) {
                Ok(true) => return Ok(opening.links),
                Ok(false) => {}
                Err(error) => return Err(opening.give_up(error)),
            }
        }
    }
}

impl Opening<'_> {
    /// Does what can be done; whether all are there. If not it has waited until something can.
    fn step(&mut self, deadline: &Deadline) -> Result<bool> {
        self.take_callers(deadline)?;
        for mut call in std::mem::take(&mut self.calls) {
            if !self.go_on(&mut call, deadline)? {
                self.calls.push(call);
            }
        }
        // Of an all-gather that others have begun, or why they have failed.
        for side in 0..self.links.sides.len() {
            while let Some(link) = &mut self.links.sides[side].link
                && let Some(frame) = link.read_some().transpose()
            {
                self.links.hear(side, frame)?;
            }
        }
        let Some(missing) = self.missing() else { return Ok(true) };
        if deadline.is_over() {
            let reason = "it reached the root, but not this rank in time";
            return Err(self.links.lost(missing, &reason));
        }
        self.wait(&self.links.sides, deadline)?;
        Ok(false)
    }

    /// A rank that there is no connection with: of those the one before first, which calls this rank.
    fn missing(&self) -> Option<u32> {
        let sides = &self.links.sides;
        let missing = sides[PREV..].iter().chain(sides).find(|side| side.link.is_none());
        missing.map(|side| side.peer)
    }

    /// The connections of ranks that have called this one.
    fn take_callers(&mut self, deadline: &Deadline) -> Result<()> {
        // Each is there once, and expected.
        for (purpose, from, mut link) in self.peers.take_callers()? {
            let lost = |e| self.links.lost(from, &format!("opening a connection: {e}"));
            // An empty socket takes a message at once; if not, the peer's time runs out.
            link.send(&Message::Met, deadline).map_err(lost)?;
            link.open();
            let sides = self.links.sides.iter_mut().enumerate();
            let mut sides = sides.filter(|(side, one)| {
                one.peer == from && links::purpose(*side) == purpose && *side != links::NEXT
            });
            if let Some((_, side)) = sides.next() {
                side.link = Some(link);
            }
        }
        Ok(())
    }

    /// Whether a call has been answered.
    fn go_on(&mut self, call: &mut Call, deadline: &Deadline) -> Result<bool> {
        let Call { side, address, state } = call;
        let (rank, to) = (self.links.rank, self.links.sides[*side].peer);
        let connecting = |e: &dyn std::fmt::Display| {
            let reason = format!("connecting to {address}: {e}");
            BootstrapError::PeerLost { rank, peer: to, reason }
        };
        let opening = |e: &dyn std::fmt::Display| {
            let reason = format!("opening a connection: {e}");
            BootstrapError::PeerLost { rank, peer: to, reason }
        };
        loop {
            match state {
                CallState::Pause(until) if Instant::now() < *until => return Ok(false),
                CallState::Pause(_) => {
                    let connector = Connector::new(*address, None, Subject::default(), self.key);
                    *state = CallState::Connecting(connector.map_err(|e| connecting(&e))?.once());
                }
                CallState::Connecting(connector) => match connector.step() {
                    Ok(None) => return Ok(false),
                    Ok(Some(Connected { socket, session })) => {
                        let link = Link::new(socket.into(), *address, session, Phase::Joining);
                        let mut link = link.map_err(|e| connecting(&e))?;
                        let purpose = links::purpose(*side);
                        let hello = Message::Peer { purpose, from: rank, to };
                        link.send(&hello, deadline).map_err(|e| connecting(&e))?;
                        *state = CallState::Unmet(link);
                    }
                    // It may have no room for a moment.
                    Err(AuthError::Rejected(reason)) if reason.is_temporary() => {
                        *state = CallState::Pause(Instant::now() + BUSY);
                    }
                    Err(e) => return Err(connecting(&e)),
                },
                CallState::Unmet(link) => {
                    let Some(frame) = link.read_some().map_err(|e| opening(&e))? else {
                        return Ok(false);
                    };
                    match frame.message() {
                        Ok(Message::Met) => {}
                        Ok(Message::Refused(refusal)) => return Err(opening(&refusal)),
                        _ => return Err(opening(&"it sent what has no place here")),
                    }
                    let state = std::mem::replace(state, CallState::Pause(Instant::now()));
                    if let CallState::Unmet(mut link) = state {
                        link.open();
                        self.links.sides[*side].link = Some(link);
                    }
                    return Ok(true);
                }
            }
        }
    }

    /// Waits until something can go on, or the time is up: with `sides` also until one of these has said something.
    fn wait(&self, sides: &[Side], deadline: &Deadline) -> Result<()> {
        let mut fds: Vec<PollFd<'_>> =
            sides.iter().filter_map(|side| side.interest(true)).collect();
        fds.extend(self.peers.wake().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let mut until = deadline.clone();
        for call in &self.calls {
            match &call.state {
                CallState::Pause(then) => until = until.or_at(*then),
                CallState::Connecting(connector) => {
                    let interest = connector.interest();
                    fds.extend(interest.map(|(fd, write)| PollFd::new(fd, poll_flags(write))));
                }
                CallState::Unmet(link) => fds.push(PollFd::new(link.as_fd(), PollFlags::POLLIN)),
            }
        }
        wait(&mut fds, Some(&until))
            .map(drop)
            .map_err(|e| BootstrapError::system("sockets of the ranks' connections", e))
    }

    /// Tells all others why there will be no group: those that are connected, and those that will be soon.
    fn give_up(mut self, error: BootstrapError) -> BootstrapError {
        let error = self.links.give_up(error);
        let (lost, gone) = self.links.gone(&error);
        let told = |side: &Side| side.link.is_some() || side.peer == lost;
        let mut told: Vec<bool> = self.links.sides.iter().map(told).collect();
        let soon = Deadline::within(FAREWELL);
        loop {
            // Whoever cannot be reached need not be told.
            let callers = self.take_callers(&soon);
            for mut call in std::mem::take(&mut self.calls) {
                match self.go_on(&mut call, &soon) {
                    Ok(false) => self.calls.push(call),
                    Ok(true) => {}
                    Err(_) => told[call.side] = true,
                }
            }
            for (told, side) in told.iter_mut().zip(&mut self.links.sides) {
                if !*told && side.link.is_some() {
                    side.tell(&gone);
                    *told = true;
                }
            }
            let all_told = told.iter().all(|told| *told);
            if all_told || callers.is_err() || soon.is_over() || self.wait(&[], &soon).is_err() {
                return error;
            }
        }
    }
}

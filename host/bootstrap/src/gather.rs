//! All-gathers of ranks that are watched: where who takes part waits.
//!
//! The thread of the [`watch`](super::watch) exchanges blocks with other ranks' between its other duties, by recursive doubling
//! (`doubling`), and gives all of a call at once. Ranks of one process give each other their blocks one by one.
//!
//! With recursive doubling a rank that has not come holds up ranks that hold up others. So that those that are missing can be
//! named, and nobody else, ranks that have waited for long say so to all others.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::blocks::GatheredBlocks;
use super::departure::Departure;
use super::limit::{Deadline, Limit};
use super::wire::{MAX_NAMED, MissingRanks};
use crate::error::{BootstrapError, Result};

/// How long what a departed rank has passed on may still be on its way, the other way around the ring, and the news of a rank
/// whose connection has closed.
const GRACE: Duration = Duration::from_secs(1);

/// When a rank says that it has waited for long, but not later than after half of its time. Not measured: far longer than an
/// all-gather of ranks that are there.
const LONG: Duration = Duration::from_secs(1);

/// The all-gathers of a rank.
#[derive(Debug)]
pub struct Gathers {
    rank: u32,
    nranks: u32,
    state: Mutex<State>,
    changed: Condvar,
    /// The number of the next call, or what went wrong in one: held during a call.
    calls: Mutex<Result<u32>>,
}

/// What a rank that takes part has to tell others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Its block.
    Block,
    /// That it has waited for long.
    Waiting,
}

#[derive(Debug, Default)]
struct State {
    /// The call that is made, or that is next.
    call: u32,
    /// By number. A rank can be one call ahead.
    calls: HashMap<u32, Call>,
    /// The rank that the call waits for, as far as it is known.
    waits_for: Option<u32>,
    /// It has ended the connection.
    ended: Option<(u32, Instant)>,
    gone: Option<(Departure, Instant)>,
}

#[derive(Debug, Default)]
struct Call {
    /// By rank.
    blocks: HashMap<u32, Vec<u8>>,
    /// The ranks that have waited for long.
    waiting: HashSet<u32>,
}

impl Gathers {
    /// Those of `rank` in a group of `nranks`.
    #[must_use]
    pub fn new(rank: u32, nranks: u32) -> Self {
        Self::beginning(rank, nranks, 0)
    }

    /// The same; the first call has this number.
    pub(super) fn beginning(rank: u32, nranks: u32, call: u32) -> Self {
        Gathers {
            rank,
            nranks,
            state: Mutex::new(State { call, ..State::default() }),
            changed: Condvar::new(),
            calls: Mutex::new(Ok(call)),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if change(&mut state) {
            self.changed.notify_all();
        }
    }

    /// What a rank says in a call has come, the first time.
    pub fn heard(&self, call: u32, rank: u32, bytes: Vec<u8>) {
        self.change(|state| {
            let blocks = &mut state.calls.entry(call).or_default().blocks;
            blocks.entry(rank).or_insert(bytes);
            // Nobody has anything of a part of them.
            blocks.len() == self.nranks as usize
        });
    }

    /// What all ranks say in a call has come.
    pub(super) fn finished(&self, call: u32, blocks: &GatheredBlocks) {
        self.change(|state| {
            let blocks = (0..).zip(blocks.iter().map(<[u8]>::to_vec));
            state.calls.entry(call).or_default().blocks = blocks.collect();
            true
        });
    }

    /// A rank has waited for long in a call.
    pub(super) fn is_waiting(&self, call: u32, rank: u32) {
        self.change(|state| {
            // What is told of earlier calls comes too late, and nobody is further ahead.
            if call.wrapping_sub(state.call) <= 1 {
                state.calls.entry(call).or_default().waiting.insert(rank);
            }
            // Who waits, too, says so at once.
            true
        });
    }

    /// The rank that the call waits for, and whether it has ended the connection.
    pub(super) fn waits_for(&self, peer: u32, ended: bool) {
        self.change(|state| {
            state.waits_for = Some(peer);
            if ended {
                state.ended.get_or_insert_with(|| (peer, Instant::now()));
            }
            ended
        });
    }

    /// A rank is gone.
    pub fn gone(&self, departure: &Departure) {
        self.change(|state| {
            state.gone.get_or_insert_with(|| (departure.clone(), Instant::now()));
            true
        });
    }

    /// Takes part in the next call; `tell` gets its number and what is to be brought on its way: the block `mine`, and
    /// later, if so, that this rank has waited for long.
    ///
    /// # Errors
    /// [`BootstrapError::PeerLost`] when a rank is gone, [`BootstrapError::MissingRanks`] when some do not come within `limit`,
    /// [`BootstrapError::Timeout`] when all have come and it takes longer, [`BootstrapError::System`] when it is stopped. All
    /// later calls fail, too: ranks would be in different ones.
    pub fn all_gather(
        &self,
        mine: &[u8],
        limit: &Limit,
        mut tell: impl FnMut(Told, u32),
    ) -> Result<Vec<Vec<u8>>> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let call = calls.clone()?;
        self.heard(call, self.rank, mine.to_vec());
        tell(Told::Block, call);
        let result = self.gathered(call, limit, || tell(Told::Waiting, call));
        *calls = result.as_ref().map(|_| call.wrapping_add(1)).map_err(Clone::clone);
        result
    }

    fn gathered(&self, call: u32, limit: &Limit, waiting: impl FnOnce()) -> Result<Vec<Vec<u8>>> {
        let deadline = limit.start();
        let long = Deadline::within(LONG.min(limit.time / 2));
        let mut waiting = Some(waiting);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (there, others_wait) = state
                .calls
                .get(&call)
                .map_or((0, false), |call| (call.blocks.len(), !call.waiting.is_empty()));
            if there == self.nranks as usize {
                let mut blocks = state.calls.remove(&call).unwrap_or_default().blocks;
                state.call = call.wrapping_add(1);
                state.waits_for = None;
                return Ok((0..self.nranks)
                    .map(|rank| blocks.remove(&rank).unwrap_or_default())
                    .collect());
            }
            deadline
                .look()
                .map_err(|e| BootstrapError::system("waiting for the other ranks", e))?;
            let mut nap = deadline.nap();
            if waiting.is_some() {
                if others_wait || long.is_over() {
                    drop(state);
                    waiting.take().map(|waiting| waiting()).unwrap_or_default();
                    state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                nap = nap.min(long.left());
            }
            let ended = state.ended.map(|(peer, since)| {
                let reason = "its connection for all-gathers has closed".to_owned();
                (Departure::Lost { peer, reason }, since)
            });
            if let Some((departure, since)) = state.gone.clone().or(ended) {
                let grace = GRACE.saturating_sub(since.elapsed());
                if grace.is_zero() {
                    return Err(departure.into_error(self.rank));
                }
                nap = nap.min(grace);
            }
            if deadline.is_over() {
                return Err(self.overdue(&mut state, call, limit));
            }
            let waited = self.changed.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The error of a call whose time is up.
    fn overdue(&self, state: &mut State, call: u32, limit: &Limit) -> BootstrapError {
        let Call { blocks, waiting } = state.calls.remove(&call).unwrap_or_default();
        let missing: Vec<u32> = (0..self.nranks)
            .filter(|rank| !blocks.contains_key(rank) && !waiting.contains(rank))
            .collect();
        match state.waits_for {
            Some(peer) if missing.is_empty() => {
                let rank = self.rank;
                let what = format!("rank {rank} waiting to hear from rank {peer} in an all-gather");
                BootstrapError::Timeout { what, limit: limit.time }
            }
            _ => BootstrapError::MissingRanks(MissingRanks {
                world_size: self.nranks,
                count: missing.len() as u32,
                named: missing.into_iter().take(MAX_NAMED).collect(),
            }),
        }
    }
}

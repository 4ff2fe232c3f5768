//! All-gathers of ranks whose ring is watched.
//!
//! Each rank tells the next its bytes, and the next passes them on until they are back. The thread of the
//! [`watch`](super::watch) carries them between its other duties; who takes part waits here.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::departure::Departure;
use super::limit::Limit;
use super::wire::{MAX_NAMED, MissingRanks};
use crate::error::{BootstrapError, Result};

/// How long what a departed rank has passed on may still be on its way, the other way around the ring.
const GRACE: Duration = Duration::from_secs(1);

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

#[derive(Debug, Default)]
struct State {
    /// By call, then by rank.
    blocks: HashMap<u32, HashMap<u32, Vec<u8>>>,
    gone: Option<(Departure, Instant)>,
}

impl Gathers {
    /// Those of `rank` in a group of `nranks`.
    #[must_use]
    pub fn new(rank: u32, nranks: u32) -> Self {
        Gathers {
            rank,
            nranks,
            state: Mutex::default(),
            changed: Condvar::new(),
            calls: Mutex::new(Ok(0)),
        }
    }

    /// What a rank says in a call has come, the first time.
    pub fn heard(&self, call: u32, rank: u32, bytes: Vec<u8>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.blocks.entry(call).or_default().entry(rank).or_insert(bytes);
        self.changed.notify_all();
    }

    /// A rank is gone.
    pub fn gone(&self, departure: &Departure) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.gone.get_or_insert_with(|| (departure.clone(), Instant::now()));
        self.changed.notify_all();
    }

    /// Takes part in the next call; `tell` gets its number and is to bring `mine` on its way.
    ///
    /// # Errors
    /// [`BootstrapError::PeerLost`] when a rank is gone, [`BootstrapError::MissingRanks`] when some do not come within `limit`,
    /// [`BootstrapError::System`] when it is stopped. All later calls fail, too: ranks would be in different ones.
    pub fn all_gather(
        &self,
        mine: &[u8],
        limit: &Limit,
        tell: impl FnOnce(u32),
    ) -> Result<Vec<Vec<u8>>> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let call = calls.clone()?;
        self.heard(call, self.rank, mine.to_vec());
        tell(call);
        let result = self.gathered(call, limit);
        *calls = result.as_ref().map(|_| call.wrapping_add(1)).map_err(Clone::clone);
        result
    }

    fn gathered(&self, call: u32, limit: &Limit) -> Result<Vec<Vec<u8>>> {
        let deadline = limit.start();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let there = state.blocks.get(&call).map_or(0, HashMap::len);
            if there == self.nranks as usize {
                let mut blocks = state.blocks.remove(&call).unwrap_or_default();
                return Ok((0..self.nranks)
                    .map(|rank| blocks.remove(&rank).unwrap_or_default())
                    .collect());
            }
            deadline
                .look()
                .map_err(|e| BootstrapError::system("waiting for the other ranks", e))?;
            let mut nap = deadline.nap();
            if let Some((departure, since)) = &state.gone {
                let grace = GRACE.saturating_sub(since.elapsed());
                if grace.is_zero() {
                    return Err(departure.clone().into_error(self.rank));
                }
                nap = nap.min(grace);
            }
            if deadline.is_over() {
                let blocks = state.blocks.remove(&call).unwrap_or_default();
                let missing = (0..self.nranks).filter(|rank| !blocks.contains_key(rank));
                let missing = MissingRanks {
                    world_size: self.nranks,
                    count: self.nranks - there as u32,
                    named: missing.take(MAX_NAMED).collect(),
                };
                return Err(BootstrapError::MissingRanks(missing));
            }
            let waited = self.changed.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

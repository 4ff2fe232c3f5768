//! What ranks tell each other beside their kernels' data: failures, and where to meet for a split.
//!
//! ```text
//! init_rank ─► the bootstrap's ring of TCP connections    Ring(Watch)
//! init_all  ─► memory that the ranks share                Local(LocalMember)
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::recorder::RankProgress;
use super::state::{CommState, Communicator};
use crate::error::{Error, Result};
use ferroccl_bootstrap::{Departure, Gathers, Limit, Watch};

/// The connection with all other ranks of a communicator.
#[derive(Debug)]
pub(super) enum OutOfBand {
    Ring(Watch),
    Local(LocalMember),
}

impl OutOfBand {
    /// Gives every rank's bytes to every rank. Collective. After a failure every later call fails, too.
    ///
    /// # Errors
    /// As [`Gathers::all_gather`].
    pub(super) fn all_gather(&self, mine: &[u8], limit: &Limit) -> Result<Vec<Vec<u8>>> {
        match self {
            OutOfBand::Ring(watch) => Ok(watch.all_gather(mine, limit)?),
            OutOfBand::Local(LocalMember { group, rank }) => Ok(group.gathers[*rank as usize]
                .all_gather(mine, limit, |call| {
                    for gathers in &group.gathers {
                        gathers.heard(call, *rank, mine.to_vec());
                    }
                })?),
        }
    }

    /// Tells all other ranks something. Only the first message of a rank is sure to arrive.
    pub(super) fn tell(&self, news: &[u8]) {
        match self {
            OutOfBand::Ring(watch) => watch.tell(news),
            OutOfBand::Local(LocalMember { group, rank }) => {
                for member in group.members() {
                    member.on_remote_fault(*rank, news);
                }
            }
        }
    }
}

/// The ranks of one [`Communicator::init_all`].
#[derive(Debug)]
pub(super) struct LocalGroup {
    gathers: Vec<Gathers>,
    members: OnceLock<Vec<Weak<CommState>>>,
    /// Communicators that one rank has made for others, by rank.
    made: Mutex<HashMap<u32, Communicator>>,
}

/// A rank of a local group. Dropping it tells the others that the rank has left.
#[derive(Debug)]
pub(super) struct LocalMember {
    pub group: Arc<LocalGroup>,
    rank: u32,
}

impl LocalGroup {
    /// Connects the ranks of a group.
    pub(super) fn form(ranks: &[Communicator]) {
        let nranks = ranks.len() as u32;
        let group = Arc::new(LocalGroup {
            gathers: (0..nranks).map(|rank| Gathers::new(rank, nranks)).collect(),
            members: OnceLock::from(ranks.iter().map(|r| Arc::downgrade(&r.0)).collect::<Vec<_>>()),
            made: Mutex::default(),
        });
        for communicator in ranks {
            let member = LocalMember { group: Arc::clone(&group), rank: communicator.rank() };
            // The cell is new.
            let _ = communicator.0.out_of_band.set(OutOfBand::Local(member));
        }
    }

    /// How far each rank is; `None` where it has left.
    pub(super) fn progress(&self) -> Vec<Option<RankProgress>> {
        let members = self.members.get().into_iter().flatten();
        members.map(|rank| Some(rank.upgrade()?.progress())).collect()
    }

    /// The ranks that are still there.
    pub(super) fn members(&self) -> impl Iterator<Item = Arc<CommState>> {
        self.members.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Keeps communicators for `ranks` of the group to take.
    pub(super) fn deposit(&self, ranks: &[u32], made: Vec<Communicator>) {
        let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(ranks.iter().copied().zip(made));
    }

    /// Takes the communicator for `rank`.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn take(&self, rank: u32) -> Result<Communicator> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
        made.ok_or_else(|| {
            Error::malformed(
                "the first rank of the new group has made no communicator for this one",
            )
        })
    }
}

impl Drop for LocalMember {
    fn drop(&mut self) {
        for gathers in &self.group.gathers {
            gathers.gone(&Departure::Left { peer: self.rank });
        }
    }
}

//! What ranks tell each other beside their kernels' data: failures, and where to meet for a split.
//!
//! ```text
//! init_rank ─► the bootstrap's ring of TCP connections    Ring(Watch)
//! init_all  ─► memory that the ranks share                Local(LocalMember)
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::CommConfig;
use super::recorder::KnownProgress;
use super::shared::{CommVisit, WeakComm};
use super::state::Communicator;
use crate::buffer::Device;
use crate::error::{Error, Result};
use ferroccl_bootstrap::{BootstrapError, Departure, Gathers, Limit, Told, Watch};

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
                .all_gather(mine, limit, |told, call| {
                    // All see who has come.
                    let told = group.gathers.iter().filter(|_| told == Told::Block);
                    told.for_each(|gathers| gathers.heard(call, *rank, mine.to_vec()));
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
    members: OnceLock<Vec<WeakComm>>,
    /// Communicators that one rank has made for others, by rank.
    made: Mutex<HashMap<u32, Communicator>>,
    /// Those that are left, and meet.
    reunions: Mutex<Vec<Reunion>>,
    /// Communicators have been made for some that meet.
    reunited: Condvar,
}

/// Ranks that are left of a group, and come together.
#[derive(Debug)]
struct Reunion {
    number: u64,
    /// All that are to come.
    left: Vec<u32>,
    /// Those that have come and not gone.
    come: Vec<(u32, Device)>,
    /// The new communicators by old rank, when all have come.
    made: Option<Result<HashMap<u32, Communicator>>>,
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
            members: OnceLock::from(ranks.iter().map(|r| r.0.downgrade()).collect::<Vec<_>>()),
            made: Mutex::default(),
            reunions: Mutex::default(),
            reunited: Condvar::new(),
        });
        for communicator in ranks {
            let member = LocalMember { group: Arc::clone(&group), rank: communicator.rank() };
            // The cell is new.
            let _ = communicator.0.out_of_band.set(OutOfBand::Local(member));
        }
    }

    /// How far each rank is.
    pub(super) fn progress(&self) -> Vec<KnownProgress> {
        let members = self.members.get().into_iter().flatten().map(WeakComm::visit);
        let known = |rank: Option<CommVisit>| {
            rank.map_or(KnownProgress::Left, |rank| KnownProgress::At(rank.progress()))
        };
        members.map(known).collect()
    }

    /// The ranks that are still there.
    pub(super) fn members(&self) -> impl Iterator<Item = CommVisit> {
        self.members.get().into_iter().flatten().filter_map(WeakComm::visit)
    }

    /// Keeps communicators for `ranks` of the group to take.
    pub(super) fn deposit(&self, ranks: &[u32], made: Vec<Communicator>) {
        let mut all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(ranks.iter().copied().zip(made));
    }

    /// The devices of `ranks`.
    ///
    /// # Errors
    /// When one of them has left.
    pub(super) fn devices(&self, ranks: &[u32]) -> Result<Vec<Device>> {
        let members: Vec<_> = self.members.get().into_iter().flatten().collect();
        let device = |rank: &u32| {
            let member = members.get(*rank as usize).and_then(|member| member.visit());
            let gone = || Error::malformed(format!("rank {rank} has left its group"));
            member.map(|member| member.device.clone()).ok_or_else(gone)
        };
        ranks.iter().map(device).collect()
    }

    /// The communicator of one rank of those that are `left`, all of which call it; who comes last makes them all. `purpose` is for
    /// the error.
    ///
    /// # Errors
    /// [`BootstrapError::Timeout`], which names who has not come, when the time is over; what making them ends in, on all
    /// ranks.
    pub(super) fn reunite(
        &self,
        (rank, device): (u32, &Device),
        left: &[u32],
        config: &CommConfig,
        limit: &Limit,
        purpose: &str,
    ) -> Result<Communicator> {
        let begun = Instant::now();
        let mut all = self.reunions.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have come, or that have what they came for and are about to go, are of an earlier one.
        let open = |one: &Reunion| one.left == left && !one.come.iter().any(|(r, _)| *r == rank);
        let number = match all.iter().find(|one| one.made.is_none() && open(one)) {
            Some(one) => one.number,
            None => {
                let number = all.last().map_or(0, |last| last.number + 1);
                let (left, come) = (left.to_vec(), Vec::new());
                all.push(Reunion { number, left, come, made: None });
                number
            }
        };
        let find = move |one: &&mut Reunion| one.number == number;
        let gone = || Error::malformed("those that meet were forgotten");
        let mine = all.iter_mut().find(find).ok_or_else(gone)?;
        mine.come.push((rank, device.clone()));
        if mine.come.len() == left.len() {
            mine.come.sort_by_key(|(rank, _)| *rank);
            let devices: Vec<_> = mine.come.iter().map(|(_, device)| device.clone()).collect();
            drop(all);
            let made = Communicator::init_all_on(&devices, config);
            let made = made.map(|made| left.iter().copied().zip(made).collect());
            all = self.reunions.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter_mut().find(find).ok_or_else(gone)?.made = Some(made);
            self.reunited.notify_all();
        }
        loop {
            let mine = all.iter_mut().find(find).ok_or_else(gone)?;
            let over = limit.stop.is_set() || begun.elapsed() >= limit.time;
            let result = match &mut mine.made {
                Some(Ok(made)) => made.remove(&rank).ok_or_else(gone),
                Some(Err(error)) => Err(error.clone()),
                // Who makes them will be done with it.
                None if over && mine.come.len() < left.len() => {
                    let has_come = |rank: &&u32| mine.come.iter().any(|(r, _)| r == *rank);
                    let missing: Vec<_> = left.iter().filter(|rank| !has_come(rank)).collect();
                    let what = format!("{purpose}: waiting for ranks {missing:?} of {left:?}");
                    Err(BootstrapError::Timeout { what, limit: limit.time }.into())
                }
                None => {
                    // Woken, or to look at `stop`.
                    let soon = Duration::from_millis(20);
                    let woken = self.reunited.wait_timeout(all, soon);
                    all = woken.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
            };
            mine.come.retain(|(r, _)| *r != rank);
            if mine.come.is_empty() {
                all.retain(|one| one.number != number);
            }
            return result;
        }
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

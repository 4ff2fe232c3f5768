//! Communicators of some of the ranks of another.
//!
//! ```text
//! 1. all-gather: everybody's color and key            ─► who is with me, and which rank I am among them
//! 2. the first of each color opens a place to meet:   ─► all-gather: where
//!      ranks that came by init_rank    a unique id, on the address that it is known to be reached at
//!      ranks of one init_all           the communicators, already made
//! 3. go there
//! ```
//!
//! The all-gathers go [out of band](super::oob): calls of the parent that are under way do not matter, nor do runtimes
//! that run only while somebody waits for them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use tracing::info;

use super::oob::OutOfBand;
use super::{CommConfig, Communicator, Inner};
use crate::bootstrap::{Limit, Stop, UniqueId};
use crate::config::Config;
use crate::log;
use crate::{Error, Result};

/// Where a rank wants to be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Vote {
    color: Option<u32>,
    key: i32,
}

impl Communicator {
    /// Divides the communicator: ranks that give the same `color` become one of their own (`ncclCommSplit`,
    /// `MPI_Comm_split`), in the order of their `key`s, and with equal keys of their ranks here. Who gives no color
    /// (`NCCL_SPLIT_NOCOLOR`) gets none. Collective: all ranks must take part, each from a thread of its own; for several
    /// ranks of one thread there is [`Communicator::split_all`].
    ///
    /// The new communicator has this one's settings, devices and network, and connections of its own, so that the two can
    /// be used at the same time. This one stays as it is.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when not all ranks take part within `FERROCCL_BOOTSTRAP_TIMEOUT`; [`Error::PeerLost`] when one
    /// is gone; [`Error::Aborted`] when this communicator fails or is aborted meanwhile, or has before; those of
    /// [`Communicator::init_rank`]. After an error there can be no other split; calls can still be made.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 4)?;
    /// let rows: Vec<_> = std::thread::scope(|scope| {
    ///     let split = |rank| scope.spawn(move || Communicator::split(rank, Some(rank.rank() / 2), 0));
    ///     let threads: Vec<_> = ranks.iter().map(split).collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_, _>>()
    /// })?;
    /// assert_eq!(rows[3].as_ref().map(|row| (row.rank(), row.world_size())), Some((1, 2)));
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        self.split_with(color, key, &CommConfig::default())
    }

    /// [`Communicator::split`] with settings; what is `None` in them is as it is here. Where the ranks came by
    /// [`Communicator::init_all`], those of the first rank of each new communicator count.
    ///
    /// # Errors
    /// As there, and [`Error::InvalidSetting`] when a setting makes no sense.
    pub fn split_with(
        &self,
        color: Option<u32>,
        key: i32,
        config: &CommConfig,
    ) -> Result<Option<Communicator>> {
        self.0.split(color, key, config)
    }

    /// [`Communicator::split`] of several ranks of this process at once, as `ncclCommSplit` in a group: `place` gives the
    /// color and key of each. The result has their order.
    ///
    /// # Errors
    /// As there: the first error.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 5)?;
    /// // Even and odd ranks, the last one first; rank 4 is in neither.
    /// let halves = Communicator::split_all(&ranks, |rank| {
    ///     ((rank < 4).then_some(rank % 2), -(rank as i32))
    /// })?;
    /// let place = |half: &Option<Communicator>| half.as_ref().map(|c| (c.rank(), c.world_size()));
    /// let places: Vec<_> = halves.iter().map(place).collect();
    /// assert_eq!(places, [Some((1, 2)), Some((1, 2)), Some((0, 2)), Some((0, 2)), None]);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn split_all(
        communicators: &[Communicator],
        place: impl Fn(u32) -> (Option<u32>, i32),
    ) -> Result<Vec<Option<Communicator>>> {
        std::thread::scope(|scope| {
            let start = |communicator| {
                let (color, key) = place(Communicator::rank(communicator));
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || communicator.split(color, key))
                    .map_err(|e| Error::system("thread of a rank that splits", e))
            };
            let threads: Vec<_> = communicators.iter().map(start).collect();
            // All are waited for, whatever one of them says.
            let panicked = || Error::malformed("a thread that splits panicked");
            let ends = threads.into_iter().map(|thread| thread?.join().map_err(|_| panicked())?);
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }
}

impl Inner {
    /// See [`Communicator::split_with`].
    pub(super) fn split(
        self: &Arc<Self>,
        color: Option<u32>,
        key: i32,
        config: &CommConfig,
    ) -> Result<Option<Communicator>> {
        // Two all-gathers belong together.
        let _one = self.forming.lock();
        drop(self.lock_order()?);
        let flag: Option<Arc<AtomicBool>> = config.abort.as_ref().map(super::AbortHandle::flag);
        let stop = Stop::any([Arc::clone(&self.failed)].into_iter().chain(flag));
        self.divide(Vote { color, key }, config, &stop).map_err(|error| {
            if !stop.is_set() {
                return error;
            }
            let cause = self.failure().unwrap_or(error).to_string();
            Error::Aborted { rank: self.rank, cause: format!("during a split: {cause}") }
        })
    }

    fn divide(
        self: &Arc<Self>,
        vote: Vote,
        config: &CommConfig,
        stop: &Stop,
    ) -> Result<Option<Communicator>> {
        let env = Config::from_env()?;
        let config = &CommConfig { abort: config.abort.clone(), ..config.or(&self.config) };
        let limit = Limit { time: env.bootstrap_timeout, stop: stop.clone() };
        let votes: Vec<Vote> = self.gather(&vote, &limit)?;
        let mut members: Vec<u32> =
            (0..self.nranks).filter(|rank| votes[*rank as usize].color == vote.color).collect();
        members.sort_by_key(|rank| (votes[*rank as usize].key, *rank));
        let first = members.first() == Some(&self.rank) && vote.color.is_some();
        let place = if first { self.open(&members, config) } else { Ok(String::new()) };
        // Everybody is told if it went wrong.
        let error = place.as_ref().err().cloned();
        let places: Vec<Result<String, String>> =
            self.gather(&place.map_err(|e| e.to_string()), &limit)?;
        if let Some(error) = error {
            return Err(error);
        }
        let Some(color) = vote.color else { return Ok(None) };
        let rank = members.iter().position(|rank| *rank == self.rank).unwrap_or_default() as u32;
        let nranks = members.len() as u32;
        info!(target: log::INIT, "rank {}: color {color} makes it rank {rank} of {nranks}", self.rank);
        let place = places[members[0] as usize].clone().map_err(Error::malformed)?;
        let child = match self.oob.get() {
            Some(OutOfBand::Process(seat)) => {
                let child = seat.room.take(self.rank)?;
                if let Some(abort) = &config.abort {
                    abort.guard(&child.0);
                }
                child
            }
            _ => {
                let id: UniqueId = place.parse()?;
                Communicator::come(&self.device, nranks, &id, rank, config, stop)?
            }
        };
        Ok(Some(child))
    }

    /// Opens the place where `members` meet, of which this rank is the first; says where it is.
    fn open(&self, members: &[u32], config: &CommConfig) -> Result<String> {
        match self.oob.get() {
            Some(OutOfBand::Process(seat)) => {
                let made = Communicator::init_all_with(&self.device, members.len() as u32, config)?;
                seat.room.leave(members, made);
                Ok(String::new())
            }
            Some(OutOfBand::Ring(watch)) => {
                let mut address = watch.address();
                address.set_port(0);
                Ok(UniqueId::listening_at(address)?.to_string())
            }
            None => Ok(UniqueId::listening_at(([127, 0, 0, 1], 0).into())?.to_string()),
        }
    }

    /// What each rank says.
    fn gather<T>(&self, mine: &T, limit: &Limit) -> Result<Vec<T>>
    where
        T: Serialize + serde::de::DeserializeOwned,
    {
        let bytes = serde_json::to_vec(mine).map_err(|e| Error::malformed(e.to_string()))?;
        let all = match self.oob.get() {
            Some(oob) => oob.all_gather(&bytes, limit)?,
            None => vec![bytes],
        };
        let read = |(rank, bytes): (usize, &Vec<u8>)| {
            serde_json::from_slice(bytes)
                .map_err(|e| Error::malformed(format!("what rank {rank} says in a split: {e}")))
        };
        all.iter().enumerate().map(read).collect()
    }
}

//! Splitting: communicators of some of the ranks of another.
//!
//! ```text
//! 1. all-gather the colors and keys                   ─► the new communicator's ranks, in order
//! 2. the first rank of each color opens a rendezvous  ─► all-gather its address
//!      after init_rank    an invitation, to the address by which the ring reaches this rank; the secret is not sent but derived
//!      after init_all     the communicators, already made
//! 3. connect there
//! ```
//!
//! The all-gathers go [out of band](super::out_of_band), so that they need no kernels and do not wait for the parent's calls.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use tracing::info;

use super::out_of_band::OutOfBand;
use super::shared::SharedComm;
use super::state::CommState;
use super::{CommConfig, Communicator};
use crate::config::Config;
use crate::encoding;
use crate::error::{Error, Result};
use crate::log;
use ferroccl_bootstrap::{Limit, Stop, UniqueId};

/// The color and key that a rank gives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ColorKey {
    color: Option<u32>,
    key: i32,
}

impl Communicator {
    /// Divides the communicator (`ncclCommSplit`, `MPI_Comm_split`). Ranks that give the same `color` get a communicator of
    /// their own. Their order there is the order of their `key`s, and for equal keys the order of their ranks here. A rank
    /// without a color (`NCCL_SPLIT_NOCOLOR`) gets none. Collective: all ranks must take part, each from a thread of its own.
    /// [`Communicator::split_all`] is for several ranks of one thread.
    ///
    /// The new communicator has this one's settings, devices and network, and connections of its own, so that the two can
    /// be used at the same time. This one stays as it is.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when not all ranks take part within `FERROCCL_BOOTSTRAP_TIMEOUT`; [`Error::PeerLost`] when one
    /// is gone; [`Error::Aborted`] when this communicator fails or is aborted, or was before; and the errors of
    /// [`Communicator::init_rank`]. After an error there can be no other split. Calls can still be made.
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

    /// [`Communicator::split`] with settings. Settings that are `None` are those of this communicator. If the ranks are of one
    /// [`Communicator::init_all`], the settings of the first rank of each new communicator count.
    ///
    /// # Errors
    /// As there, and [`Error::InvalidSetting`] when a setting makes no sense.
    pub fn split_with(
        &self,
        color: Option<u32>,
        key: i32,
        config: &CommConfig,
    ) -> Result<Option<Communicator>> {
        split(&self.0, color, key, config)
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
        place: impl Fn(u32) -> (Option<u32>, i32) + Sync,
    ) -> Result<Vec<Option<Communicator>>> {
        at_once(communicators, |communicator: &Communicator| {
            let (color, key) = place(communicator.rank());
            communicator.split(color, key)
        })
    }
}

/// What `body` gives for each of several ranks, in a thread each; the first error.
pub(super) fn at_once<R: Send, T: Send>(
    ranks: impl IntoIterator<Item = R>,
    body: impl Fn(R) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let body = &body;
        let start = |rank| {
            std::thread::Builder::new()
                .spawn_scoped(scope, move || body(rank))
                .map_err(|e| Error::system("thread of a rank that does what all do together", e))
        };
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        // Waits for all threads, also after an error of one.
        let panicked = || Error::malformed("a rank's thread panicked");
        let ends = threads.into_iter().map(|thread| thread?.join().map_err(|_| panicked())?);
        ends.collect::<Vec<_>>().into_iter().collect()
    })
}

/// See [`Communicator::split_with`].
pub(super) fn split(
    comm: &SharedComm,
    color: Option<u32>,
    key: i32,
    config: &CommConfig,
) -> Result<Option<Communicator>> {
    // A split's two all-gathers must not be mixed with another split's.
    let _one = comm.split_lock.lock();
    drop(comm.lock_order()?);
    let flag: Option<Arc<AtomicBool>> = config.abort.as_ref().map(super::AbortHandle::flag);
    let stop = Stop::any([Arc::clone(&comm.failed)].into_iter().chain(flag));
    split_locked(comm, ColorKey { color, key }, config, &stop).map_err(|error| {
        if !stop.is_set() {
            return error;
        }
        let cause = comm.failure().unwrap_or(error).to_string();
        Error::Aborted { rank: comm.rank, cause: format!("during a split: {cause}") }
    })
}

fn split_locked(
    comm: &SharedComm,
    mine: ColorKey,
    config: &CommConfig,
    stop: &Stop,
) -> Result<Option<Communicator>> {
    comm.check_maker()?;
    let env = Config::from_env()?;
    let config = &CommConfig { abort: config.abort.clone(), ..config.or(&comm.config) };
    let limit = Limit { time: env.bootstrap_timeout, stop: stop.clone() };
    let all: Vec<ColorKey> = all_gather(comm, &mine, &limit)?;
    let mut members: Vec<u32> =
        (0..comm.nranks).filter(|rank| all[*rank as usize].color == mine.color).collect();
    members.sort_by_key(|rank| (all[*rank as usize].key, *rank));
    let first = members.first() == Some(&comm.rank) && mine.color.is_some();
    let place = if first { open_rendezvous(comm, &members, config) } else { Ok(String::new()) };
    // An error is sent to all ranks, too.
    let error = place.as_ref().err().cloned();
    let places: Vec<Result<String, String>> =
        all_gather(comm, &place.map_err(|e| e.to_string()), &limit)?;
    if let Some(error) = error {
        return Err(error);
    }
    let Some(color) = mine.color else { return Ok(None) };
    let rank = members.iter().position(|rank| *rank == comm.rank).unwrap_or_default() as u32;
    let nranks = members.len() as u32;
    info!(target: log::INIT, "rank {}: color {color} makes it rank {rank} of {nranks}", comm.rank);
    let place = places[members[0] as usize].clone().map_err(Error::malformed)?;
    let child = match comm.out_of_band.get() {
        Some(OutOfBand::Local(member)) => {
            let child = member.group.take(comm.rank)?;
            if let Some(abort) = &config.abort {
                abort.guard(child.0.downgrade());
            }
            child
        }
        out_of_band => {
            let id: UniqueId = match out_of_band {
                Some(OutOfBand::Ring(watch)) => watch.accept(&place.parse()?),
                _ => place.parse()?,
            };
            Communicator::connect_rank(&comm.device, nranks, &id, rank, config, stop)?
        }
    };
    Ok(Some(child))
}

/// Opens the rendezvous of `members`, of which this rank is the first, and gives its address.
fn open_rendezvous(comm: &CommState, members: &[u32], config: &CommConfig) -> Result<String> {
    match comm.out_of_band.get() {
        Some(OutOfBand::Local(member)) => {
            let devices = member.group.devices(members)?;
            let made = Communicator::init_all_on(&devices, config)?;
            member.group.deposit(members, made);
            Ok(String::new())
        }
        Some(OutOfBand::Ring(watch)) => Ok(watch.invite()?.to_string()),
        // A group of one: it is not sent.
        None => Ok(UniqueId::listening_at(([127, 0, 0, 1], 0).into())?.to_secret_hex()),
    }
}

/// All ranks' values, by rank.
pub(super) fn all_gather<T>(comm: &CommState, mine: &T, limit: &Limit) -> Result<Vec<T>>
where
    T: Serialize + serde::de::DeserializeOwned,
{
    let bytes = encoding::to_bytes(mine)?;
    let all = match comm.out_of_band.get() {
        Some(out_of_band) => out_of_band.all_gather(&bytes, limit)?,
        None => vec![bytes],
    };
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        encoding::from_bytes(bytes).map_err(|e| {
            Error::malformed(format!("what rank {rank} sent for a split or a growth: {e}"))
        })
    };
    all.iter().enumerate().map(read).collect()
}

//! Growing: a communicator of another's ranks and of new ones.
//!
//! ```text
//! one rank        grow_id ─► an id, which the user gives to the new ranks
//! all ranks       grow: learn of the id out of band ─┐
//! the new ranks   join: with the id                  ├─► an init like any other
//! ```
//!
//! The id has a secret, which is not sent to the old ranks: they derive it from their group's key and an invitation.

use std::sync::{Arc, PoisonError};

use ferroccl_bootstrap::{Invitation, Limit, Stop, UniqueId};
use tracing::info;

use super::out_of_band::OutOfBand;
use super::shared::SharedComm;
use super::split::all_gather;
use super::state::CommState;
use super::{AbortHandle, CommConfig, Communicator};
use crate::buffer::Device;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::log;

/// The growth that a rank has made an id for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Growth {
    /// Others of its process take it from its memory.
    Local(UniqueId),
    Invited(Invitation),
}

impl Communicator {
    /// An id for new ranks, which are to join this communicator's (`ncclCommGetUniqueId`). One of the ranks makes it, and
    /// gives it to the processes that [join](Communicator::join). It is for one [`Communicator::grow`].
    ///
    /// # Errors
    /// [`Error::Aborted`] when this communicator has failed; the errors of [`UniqueId::new`].
    pub fn grow_id(&self) -> Result<UniqueId> {
        let comm = &self.0;
        drop(comm.lock_order()?);
        let (id, growth) = match comm.out_of_band.get() {
            Some(OutOfBand::Ring(watch)) => {
                let invitation = watch.invite()?;
                (watch.accept(&invitation), Growth::Invited(invitation))
            }
            _ => {
                // No communicator's setting, such as an NCCL_COMM_ID, is for this one.
                let env = Config::from_env()?;
                let settings = ferroccl_bootstrap::Settings { comm_id: None, ..env.bootstrap() };
                let id = UniqueId::new(&settings)?;
                (id, Growth::Local(id))
            }
        };
        *comm.growth.lock().unwrap_or_else(PoisonError::into_inner) = Some(growth);
        Ok(id)
    }

    /// A communicator of `nranks` ranks: these, with their numbers, and new ones (`ncclCommGrow`). All ranks of this
    /// communicator call it, each from a thread of its own, after one of them has made an id ([`Communicator::grow_id`]);
    /// the new ranks call [`Communicator::join`] meanwhile, with the numbers from [`Communicator::world_size`] on.
    ///
    /// The new communicator has this one's settings, and connections of its own. This one stays as it is, and can be dropped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `nranks` is not larger than this communicator, or no rank, or several, have made an id.
    /// [`Error::Aborted`] when this communicator fails or was aborted. [`Error::Bootstrap`], which names the missing ranks,
    /// when not all come within `FERROCCL_BOOTSTRAP_TIMEOUT`; the errors of [`Communicator::init_rank`].
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, Result};
    ///
    /// let device = Device::cpu();
    /// let ranks = Communicator::init_all(&device, 2)?;
    /// let id = ranks[0].grow_id()?;
    /// let all: Vec<Communicator> = std::thread::scope(|scope| {
    ///     let old = ranks.iter().map(|rank| scope.spawn(|| rank.grow(3))).collect::<Vec<_>>();
    ///     // In another process, most likely.
    ///     let new = scope.spawn(|| Communicator::join(&device, 3, &id, 2));
    ///     old.into_iter().chain([new]).map(|thread| thread.join().unwrap()).collect::<Result<_>>()
    /// })?;
    /// assert_eq!(all.iter().map(|c| (c.rank(), c.world_size())).collect::<Vec<_>>(), [(0, 3), (1, 3), (2, 3)]);
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn grow(&self, nranks: u32) -> Result<Communicator> {
        self.grow_with(nranks, &CommConfig::default())
    }

    /// [`Communicator::grow`] with settings. Settings that are `None` are those of this communicator. The new ranks need the
    /// same ([`Communicator::join_with`]).
    ///
    /// # Errors
    /// As there, and [`Error::InvalidSetting`] when a setting makes no sense.
    pub fn grow_with(&self, nranks: u32, config: &CommConfig) -> Result<Communicator> {
        grow(&self.0, nranks, config)
    }

    /// A new rank of a group that [grows](Communicator::grow): `rank` of `nranks`, from the group's old size on. `id` is what
    /// one of its ranks has made by [`Communicator::grow_id`].
    ///
    /// # Errors
    /// As [`Communicator::init_rank`].
    pub fn join(device: &Device, nranks: u32, id: &UniqueId, rank: u32) -> Result<Communicator> {
        Self::init_rank(device, nranks, id, rank)
    }

    /// [`Communicator::join`] with settings.
    ///
    /// # Errors
    /// As [`Communicator::init_rank_with`].
    pub fn join_with(
        device: &Device,
        nranks: u32,
        id: &UniqueId,
        rank: u32,
        config: &CommConfig,
    ) -> Result<Communicator> {
        Self::init_rank_with(device, nranks, id, rank, config)
    }
}

/// See [`Communicator::grow_with`].
pub(super) fn grow(comm: &SharedComm, nranks: u32, config: &CommConfig) -> Result<Communicator> {
    comm.check_maker()?;
    if nranks <= comm.nranks {
        let reason = format!("{nranks} is not more than the {} ranks that there are", comm.nranks);
        return Err(Error::argument("nranks", reason));
    }
    // Its all-gather must not be mixed with those of a split.
    let _one = comm.split_lock.lock();
    drop(comm.lock_order()?);
    let env = Config::from_env()?;
    let config = &CommConfig { abort: config.abort.clone(), ..config.or(&comm.config) };
    let flag = config.abort.as_ref().map(AbortHandle::flag);
    let stop = Stop::any([Arc::clone(&comm.failed)].into_iter().chain(flag));
    let limit = Limit { time: env.bootstrap_timeout, stop: stop.clone() };
    let grown = find_id(comm, &limit).and_then(|id| {
        Communicator::connect_rank(&comm.device, nranks, &id, comm.rank, config, &stop)
    });
    let made = grown.map_err(|error| {
        if !stop.is_set() {
            return error;
        }
        let cause = comm.failure().unwrap_or(error).to_string();
        Error::Aborted { rank: comm.rank, cause: format!("during a growth: {cause}") }
    })?;
    info!(target: log::INIT, "rank {}: the group of {} grows to {nranks}", comm.rank, comm.nranks);
    Ok(made)
}

/// The id that one of the ranks has made.
fn find_id(comm: &CommState, limit: &Limit) -> Result<UniqueId> {
    let mine = comm.growth.lock().unwrap_or_else(PoisonError::into_inner).take();
    // What is told: of a local group the id, which stays in this process; else the invitation, which is public.
    let told = mine.map(|growth| match growth {
        Growth::Local(id) => id.to_secret_hex(),
        Growth::Invited(invitation) => invitation.to_string(),
    });
    let all: Vec<Option<String>> = all_gather(comm, &told, limit)?;
    let mut made = all.iter().enumerate().filter_map(|(rank, told)| Some((rank, told.as_ref()?)));
    let Some((first, text)) = made.next() else {
        return Err(Error::argument("self", "no rank has made an id for new ranks (grow_id)"));
    };
    if let Some((second, _)) = made.next() {
        let reason = format!("ranks {first} and {second} have both made an id for new ranks");
        return Err(Error::argument("self", reason));
    }
    match comm.out_of_band.get() {
        Some(OutOfBand::Ring(watch)) => Ok(watch.accept(&text.parse()?)),
        _ => Ok(text.parse()?),
    }
}

//! Communicators of another's ranks: split, shrunk, grown.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use ferroccl::{Communicator, ShrinkMode};

use crate::answer::{Done, Failure, out};
use crate::config::CommSettings;
use crate::group::{self, QueuedJob};
use crate::handles;
use crate::init::{self, unique_id};
use crate::place::Place;
use crate::types::*;

/// Names of arguments in FerroCCL's calls and in `nccl.h`.
const NAMES: [(&str, &str); 4] =
    [("exclude", "excludeRanksList"), ("nranks", "nRanks"), ("rank", "rank"), ("self", "comm")];

fn named(error: ferroccl::Error) -> Failure {
    Failure::of(error, &NAMES)
}

export! {
    /// A communicator of the ranks that give the same color.
    grouped ncclCommSplit, pncclCommSplit(
        comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t,
    ) {
        let parent = handles::find(comm)?;
        let made = parent.made()?;
        let handle = out(newcomm, "newcomm")?;
        let settings = CommSettings::read(config, parent.settings.clone())?;
        if color < 0 && color != NCCL_SPLIT_NOCOLOR {
            let reason = format!("{color} is neither NCCL_SPLIT_NOCOLOR nor 0 at least");
            return Err(Failure::argument("color", reason));
        }
        let Ok(color) = u32::try_from(color) else {
            handle.write(std::ptr::null_mut());
            let config = settings.comm_config(None);
            return group::job(QueuedJob {
                comms: vec![Arc::clone(&parent)],
                of: parent.handle,
                sink: parent,
                undo: Box::new(|| {}),
                blocking: settings.blocking,
                run: Box::new(move || made.split_with(None, key, &config).map(drop).map_err(named)),
            });
        };
        let place = Arc::clone(&parent.place);
        init::make(newcomm, "newcomm", place, settings, Some(parent), move |own| {
            let config = own.settings.comm_config(Some(&own.abort));
            let child = made.split_with(Some(color), key, &config).map_err(named)?;
            child.ok_or_else(|| Failure::internal("a rank with a color is in no communicator"))
        })
    }

    /// A communicator of the ranks that are left without those of a list.
    grouped ncclCommShrink, pncclCommShrink(
        comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int, newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t, shrinkFlags: c_int,
    ) {
        let parent = handles::find(comm)?;
        let made = parent.made()?;
        out(newcomm, "newcomm")?;
        let settings = CommSettings::read(config, parent.settings.clone())?;
        let mode = match shrinkFlags {
            NCCL_SHRINK_DEFAULT => ShrinkMode::Healthy,
            NCCL_SHRINK_ABORT => ShrinkMode::Abort,
            _ => {
                let reason = format!("{shrinkFlags} is neither NCCL_SHRINK_DEFAULT nor NCCL_SHRINK_ABORT");
                return Err(Failure::argument("shrinkFlags", reason));
            }
        };
        // The rank that calls is left.
        let most = made.world_size() as usize - 1;
        let count = usize::try_from(excludeRanksCount).ok().filter(|count| *count > 0);
        let count = count.filter(|count| *count <= most).ok_or_else(|| {
            let reason = format!("{excludeRanksCount} is not 1 to {most}, the other ranks");
            Failure::argument("excludeRanksCount", reason)
        })?;
        if excludeRanksList.is_null() {
            return Err(Failure::argument("excludeRanksList", "is NULL"));
        }
        let exclude = std::slice::from_raw_parts(excludeRanksList, count).iter().map(|rank| {
            u32::try_from(*rank).ok().filter(|rank| *rank < made.world_size()).ok_or_else(|| {
                let reason = format!("{rank} is none of the {} ranks", made.world_size());
                Failure::argument("excludeRanksList", reason)
            })
        });
        let exclude: Vec<u32> = exclude.collect::<Result<_, _>>()?;
        let place = Arc::clone(&parent.place);
        init::make(newcomm, "newcomm", place, settings, Some(parent), move |own| {
            let config = own.settings.comm_config(Some(&own.abort));
            made.shrink_with(&exclude, mode, &config).map_err(named)
        })
    }

    /// An id for new ranks of a communicator, which `ncclCommGrow` takes once.
    answer ncclCommGetUniqueId, pncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let at = out(uniqueId, "uniqueId")?;
        let mut own = comm.grow_id.lock().unwrap_or_else(PoisonError::into_inner);
        if own.is_some() {
            return Err(Failure::usage("the communicator has an id already that no ncclCommGrow has used"));
        }
        let id = made.grow_id()?.to_bytes();
        *own = Some(id);
        at.write(ncclUniqueId { internal: id });
        Ok(Done::Yes)
    }

    /// A communicator of another's ranks and of new ones, which have no `comm`.
    grouped ncclCommGrow, pncclCommGrow(
        comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int, newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) {
        out(newcomm, "newcomm")?;
        if comm.is_null() {
            let (nranks, rank) = init::ranks(nRanks, rank, "rank")?;
            let id = uniqueId.as_ref().ok_or_else(|| Failure::argument("uniqueId", "is NULL, on a new rank"))?;
            let id = unique_id(id, "uniqueId")?;
            let settings = CommSettings::read(config, CommSettings::default())?;
            let place = Place::current()?;
            let device = place.device.clone();
            return init::make(newcomm, "newcomm", place, settings, None, move |own| {
                let config = own.settings.comm_config(Some(&own.abort));
                Communicator::join_with(&device, nranks, &id, rank, &config).map_err(named)
            });
        }
        let parent = handles::find(comm)?;
        let made = parent.ready()?;
        if rank != -1 {
            let reason = format!("{rank} is not -1: a rank of comm keeps its number");
            return Err(Failure::argument("rank", reason));
        }
        let nranks = u32::try_from(nRanks).unwrap_or(0);
        if nranks <= made.world_size() {
            let reason = format!("{nRanks} is not more than the {} ranks of comm", made.world_size());
            return Err(Failure::argument("nRanks", reason));
        }
        let settings = CommSettings::read(config, parent.settings.clone())?;
        let own = *parent.grow_id.lock().unwrap_or_else(PoisonError::into_inner);
        match (uniqueId.as_ref().map(|id| id.internal), own) {
            (given, own) if given == own => {}
            (None, Some(_)) => {
                return Err(Failure::argument("uniqueId", "is NULL, on the rank that has made an id"));
            }
            _ => {
                let reason = "is not the id that this rank has made (ncclCommGetUniqueId): other ranks give NULL";
                return Err(Failure::argument("uniqueId", reason));
            }
        }
        let place = Arc::clone(&parent.place);
        let growing = Arc::clone(&parent);
        init::make(newcomm, "newcomm", place, settings, Some(parent), move |own| {
            // Used, whatever becomes of it.
            growing.grow_id.lock().unwrap_or_else(PoisonError::into_inner).take();
            let config = own.settings.comm_config(Some(&own.abort));
            made.grow_with(nranks, &config).map_err(named)
        })
    }
}

//! The version, ids, and how communicators are made.

use std::ffi::c_int;
use std::sync::Arc;

use ferroccl::config::Config;
use ferroccl::{Communicator, Device, UniqueId};

use crate::answer::{Answer, Done, Failure, out};
use crate::config::CommSettings;
use crate::group::{self, QueuedJob};
use crate::handles::{self, Comm};
use crate::place::Place;
use crate::types::*;

/// Names of arguments in FerroCCL's calls and in `nccl.h`.
const NAMES: [(&str, &str); 3] = [("nranks", "nranks"), ("rank", "rank"), ("devices", "ndev")];

/// Ranks of one process: more is a mistake, and would take all memory.
const MOST_DEVICES: usize = 4096;

/// The id that a program has got by `ncclGetUniqueId`.
pub(crate) fn unique_id(id: &ncclUniqueId, name: &str) -> Result<UniqueId, Failure> {
    UniqueId::from_bytes(&id.internal).map_err(|error| Failure::argument(name, error.to_string()))
}

/// Ranks and their number, which C has as `int`.
pub(crate) fn ranks(nranks: c_int, rank: c_int, rank_name: &str) -> Result<(u32, u32), Failure> {
    let count = u32::try_from(nranks).ok().filter(|n| *n > 0);
    let count =
        count.ok_or_else(|| Failure::argument("nranks", format!("{nranks} is not 1 at least")))?;
    let rank = u32::try_from(rank).ok().filter(|rank| *rank < count).ok_or_else(|| {
        Failure::argument(rank_name, format!("{rank} is none of the {nranks} ranks"))
    })?;
    Ok((count, rank))
}

/// Enters a communicator, gives the caller its handle, and has `make` make it.
///
/// # Safety
/// `at` is a place for a handle until the group has ended.
pub(crate) unsafe fn make(
    at: *mut ncclComm_t,
    name: &str,
    place: Arc<Place>,
    settings: CommSettings,
    with: Option<Arc<Comm>>,
    make: impl FnOnce(&Comm) -> Result<Communicator, Failure> + Send + 'static,
) -> Answer {
    // SAFETY: the caller's.
    let handle = unsafe { out(at, name)? };
    let comm = handles::enter(place, settings);
    handle.write(comm.as_handle());
    let made = Arc::clone(&comm);
    let undone = Arc::clone(&comm);
    group::job(QueuedJob {
        of: with.as_ref().unwrap_or(&comm).handle,
        comms: [Arc::clone(&comm)].into_iter().chain(with).collect(),
        blocking: comm.settings.blocking,
        sink: comm,
        undo: Box::new(move || {
            handles::remove(&undone);
            // SAFETY: the caller's: it is there until the group has ended, and nothing is undone later.
            unsafe { at.write(std::ptr::null_mut()) };
        }),
        run: Box::new(move || {
            made.set_made(make(&made)?);
            Ok(())
        }),
    })
}

/// # Safety
/// As [`make`]; `config` as [`CommSettings::read`].
unsafe fn init_rank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: &ncclUniqueId,
    rank: c_int,
    (config, rank_name): (*const ncclConfig_t, &str),
) -> Answer {
    // SAFETY: the caller's.
    unsafe {
        out(comm, "comm")?;
        let (nranks, rank) = ranks(nranks, rank, rank_name)?;
        let id = unique_id(id, "commId")?;
        let settings = CommSettings::read(config, CommSettings::default())?;
        let place = Place::current()?;
        let device = place.device.clone();
        make(comm, "comm", place, settings, None, move |own| {
            let config = own.settings.comm_config(Some(&own.abort));
            Communicator::init_rank_with(&device, nranks, &id, rank, &config)
                .map_err(|e| Failure::of(e, &NAMES))
        })
    }
}

export! {
    /// The version of NCCL whose interface this is.
    answer ncclGetVersion, pncclGetVersion(version: *mut c_int) {
        out(version, "version")?.write(NCCL_VERSION_CODE);
        Ok(Done::Yes)
    }

    /// An id for one communicator: one process makes it, and gives it to all ranks.
    answer ncclGetUniqueId, pncclGetUniqueId(uniqueId: *mut ncclUniqueId) {
        let at = out(uniqueId, "uniqueId")?;
        let id = UniqueId::new(&Config::from_env()?.bootstrap()).map_err(ferroccl::Error::from)?;
        at.write(ncclUniqueId { internal: id.to_bytes() });
        Ok(Done::Yes)
    }

    /// One rank of a communicator.
    grouped ncclCommInitRank, pncclCommInitRank(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
    ) {
        init_rank(comm, nranks, &commId, rank, (std::ptr::null(), "rank"))
    }

    /// The same with settings.
    grouped ncclCommInitRankConfig, pncclCommInitRankConfig(
        comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int, config: *mut ncclConfig_t,
    ) {
        init_rank(comm, nranks, &commId, rank, (config, "rank"))
    }

    /// The same with several ids, of which FerroCCL takes the first: its ranks need no more to find each other.
    grouped ncclCommInitRankScalable, pncclCommInitRankScalable(
        newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) {
        out(newcomm, "newcomm")?;
        if nId < 1 || nId > nranks {
            return Err(Failure::argument("nId", format!("{nId} is not 1 to nranks, which is {nranks}")));
        }
        let ids = commIds.as_ref().ok_or_else(|| Failure::argument("commIds", "is NULL"))?;
        init_rank(newcomm, nranks, ids, myrank, (config, "myrank"))
    }

    /// All ranks of a communicator, in this process.
    grouped ncclCommInitAll, pncclCommInitAll(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) {
        out(comm, "comm")?;
        let count = usize::try_from(ndev).ok().filter(|n| (1..=MOST_DEVICES).contains(n));
        let count = count
            .ok_or_else(|| Failure::argument("ndev", format!("{ndev} is not 1 to {MOST_DEVICES}")))?;
        let numbers: Vec<c_int> = match devlist.is_null() {
            true => (0..ndev).collect(),
            false => std::slice::from_raw_parts(devlist, count).to_vec(),
        };
        let places: Vec<_> = numbers.into_iter().map(Place::numbered).collect::<Result<_, _>>()?;
        let devices: Vec<Device> = places.iter().map(|place| place.device.clone()).collect();
        let settings = CommSettings::default();
        let made = Communicator::init_all_on(&devices, &settings.comm_config(None));
        let made = made.map_err(|e| Failure::of(e, &NAMES))?;
        for (i, (place, made)) in places.into_iter().zip(made).enumerate() {
            let own = handles::enter(place, settings.clone());
            own.set_made(made);
            comm.add(i).write(own.as_handle());
        }
        Ok(Done::Yes)
    }
}

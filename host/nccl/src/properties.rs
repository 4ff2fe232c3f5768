//! What a communicator is, and its memory.

use std::ffi::c_int;

use ferroccl::MemoryUse;

use crate::answer::{Done, Failure, out};
use crate::handles;
use crate::lifecycle::int;
use crate::types::*;

export! {
    /// What a communicator is, and can.
    answer ncclCommQueryProperties, pncclCommQueryProperties(comm: ncclComm_t, props: *mut ncclCommProperties_t) {
        let comm = handles::find(comm)?;
        let (rank, ranks) = comm.place_in_group()?;
        out(props, "props")?;
        let asked = &mut *props;
        if asked.magic != NCCL_API_MAGIC {
            return Err(Failure::argument("props", "is not of NCCL_COMM_PROPERTIES_INITIALIZER"));
        }
        if asked.size != size_of::<ncclCommProperties_t>() {
            let reason = format!("has {} bytes, {} are known", asked.size, size_of::<ncclCommProperties_t>());
            return Err(Failure::argument("props", reason));
        }
        asked.rank = int(rank);
        asked.nRanks = int(ranks);
        asked.cudaDev = comm.place.ordinal;
        asked.nvmlDev = comm.place.ordinal;
        // NCCL's interface for kernels is not there: FerroCCL has its own.
        asked.deviceApiSupport = false;
        asked.multimemSupport = false;
        asked.ginType = 0;
        asked.nLsaTeams = 0;
        asked.hostRmaSupport = true;
        asked.railedGinType = 0;
        Ok(Done::Yes)
    }

    /// Bytes of the device's memory that a communicator has.
    answer ncclCommMemStats, pncclCommMemStats(comm: ncclComm_t, stat: c_int, value: *mut u64) {
        let comm = handles::find(comm)?;
        let at = out(value, "value")?;
        // A suspended one has none.
        let used = match comm.is_suspended() {
            true => MemoryUse::default(),
            false => comm.made()?.memory_use(),
        };
        let value = match stat {
            ncclStatGpuMemSuspend => used.calls,
            ncclStatGpuMemSuspended => u64::from(comm.is_suspended()),
            ncclStatGpuMemPersist => used.registrations,
            ncclStatGpuMemTotal => used.total(),
            _ => return Err(Failure::argument("stat", format!("{stat} is no ncclCommMemStat_t"))),
        };
        at.write(value);
        Ok(Done::Yes)
    }
}

//! What a communicator is, and its memory.

use std::ffi::c_int;

use crate::answer::{Done, Failure, out};
use crate::handles;
use crate::lifecycle::int;
use crate::types::*;

export! {
    /// What a communicator is, and can.
    answer ncclCommQueryProperties, pncclCommQueryProperties(comm: ncclComm_t, props: *mut ncclCommProperties_t) {
        let comm = handles::find(comm)?;
        let made = comm.made()?;
        out(props, "props")?;
        let asked = &mut *props;
        if asked.magic != NCCL_API_MAGIC {
            return Err(Failure::argument("props", "is not of NCCL_COMM_PROPERTIES_INITIALIZER"));
        }
        if asked.size != size_of::<ncclCommProperties_t>() {
            let reason = format!("has {} bytes, {} are known", asked.size, size_of::<ncclCommProperties_t>());
            return Err(Failure::argument("props", reason));
        }
        asked.rank = int(made.rank());
        asked.nRanks = int(made.world_size());
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

    /// Bytes of a communicator's memory, as far as they are known.
    answer ncclCommMemStats, pncclCommMemStats(comm: ncclComm_t, stat: c_int, value: *mut u64) {
        handles::find(comm)?.ready()?;
        let at = out(value, "value")?;
        match stat {
            // ncclStatGpuMemSuspend, ncclStatGpuMemSuspended: nothing can be suspended.
            0 | 1 => at.write(0),
            // ncclStatGpuMemPersist, ncclStatGpuMemTotal
            2 | 3 => return Err(Failure::absent("this statistic", "a communicator's memory is not counted")),
            _ => return Err(Failure::argument("stat", format!("{stat} is no ncclCommMemStat_t"))),
        };
        Ok(Done::Yes)
    }
}

//! What becomes of a communicator, and what is known of it.

use std::ffi::c_int;
use std::sync::Arc;

use crate::answer::{Done, Failure, out};
use crate::group::{self, QueuedJob};
use crate::handles::{self, Comm};
use crate::types::*;
use crate::windows;

export! {
    /// Waits until the calls of this rank have ended. No more can be made.
    grouped ncclCommFinalize, pncclCommFinalize(comm: ncclComm_t) {
        if comm.is_null() {
            return Ok(Done::Yes);
        }
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        comm.set_finalized();
        group::job(QueuedJob {
            comms: vec![Arc::clone(&comm)],
                of: comm.handle,
            blocking: comm.settings.blocking,
            sink: comm,
            undo: Box::new(|| {}),
            run: Box::new(move || Ok(made.finalize()?)),
        })
    }

    /// Ends a communicator: waits for its calls, unless it was finalized or has failed.
    answer ncclCommDestroy, pncclCommDestroy(comm: ncclComm_t) {
        if comm.is_null() {
            return Ok(Done::Yes);
        }
        let comm = handles::find(comm)?;
        if comm.is_busy() {
            let reason = "an earlier call of it is in progress: wait for it, or call ncclCommAbort";
            return Err(Failure::argument("comm", reason));
        }
        end(&comm, true)
    }

    /// Ends a communicator and its calls, on all ranks.
    answer ncclCommAbort, pncclCommAbort(comm: ncclComm_t) {
        if comm.is_null() {
            return Ok(Done::Yes);
        }
        let comm = handles::find(comm)?;
        comm.abort.abort();
        if let Some(made) = comm.peek() {
            made.abort();
        }
        end(&comm, false)
    }

    /// Ends the calls of all ranks, which then split or shrink the communicator, or destroy it.
    answer ncclCommRevoke, pncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) {
        let comm = handles::find(comm)?;
        if revokeFlags != 0 {
            let reason = format!("{revokeFlags} is not NCCL_REVOKE_DEFAULT");
            return Err(Failure::argument("revokeFlags", reason));
        }
        comm.made()?.revoke()?;
        Ok(Done::Yes)
    }

    /// Whether something is in progress, and what has failed.
    answer ncclCommGetAsyncError, pncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) {
        let comm = handles::find(comm)?;
        let at = out(asyncError, "asyncError")?;
        let (result, _) = comm.status();
        at.write(result);
        Ok(Done::Yes)
    }

    /// The number of ranks.
    answer ncclCommCount, pncclCommCount(comm: ncclComm_t, count: *mut c_int) {
        let comm = handles::find(comm)?;
        let at = out(count, "count")?;
        at.write(int(comm.place_in_group()?.1));
        Ok(Done::Yes)
    }

    /// The device.
    answer ncclCommCuDevice, pncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) {
        let comm = handles::find(comm)?;
        let at = out(device, "device")?;
        comm.place_in_group()?;
        at.write(comm.place.ordinal);
        Ok(Done::Yes)
    }

    /// This rank.
    answer ncclCommUserRank, pncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) {
        let comm = handles::find(comm)?;
        let at = out(rank, "rank")?;
        at.write(int(comm.place_in_group()?.0));
        Ok(Done::Yes)
    }
}

/// As C has ranks.
pub(crate) fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Takes a communicator's handle away, and what it has; waits for its calls if that is asked for and makes sense.
fn end(comm: &Arc<Comm>, wait: bool) -> crate::answer::Answer {
    if handles::remove(comm).is_none() {
        return Err(Failure::argument("comm", "another thread destroys it"));
    }
    comm.settle();
    let made = comm.take();
    let healthy = made.as_ref().is_some_and(|made| made.async_error().is_ok());
    let result = match &made {
        Some(made) if wait && healthy && !comm.is_finalized() => made.finalize(),
        _ => Ok(()),
    };
    windows::forget(comm);
    drop(made);
    result?;
    Ok(Done::Yes)
}

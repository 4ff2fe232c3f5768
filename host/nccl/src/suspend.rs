//! Communicators without memory: `ncclCommSuspend`, `ncclCommResume`.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use ferroccl::Error;

use crate::answer::Failure;
use crate::group::{self, QueuedJob};
use crate::handles::{self, Comm};
use crate::types::*;
use crate::windows;

export! {
    /// Gives the communicator's memory back, on all ranks, until `ncclCommResume`.
    grouped ncclCommSuspend, pncclCommSuspend(comm: ncclComm_t, flags: c_int) {
        let comm = handles::find(comm)?;
        comm.ready()?;
        if flags & NCCL_SUSPEND_MEM == 0 || flags & !NCCL_SUSPEND_MEM != 0 {
            return Err(Failure::argument("flags", format!("{flags} is not NCCL_SUSPEND_MEM")));
        }
        job(&comm, suspend)
    }

    /// Gives a suspended communicator memory again, on all ranks.
    grouped ncclCommResume, pncclCommResume(comm: ncclComm_t) {
        let comm = handles::find(comm)?;
        if comm.is_busy() || !comm.is_suspended() {
            comm.ready()?;
            return Err(Failure::usage("the communicator is not suspended"));
        }
        job(&comm, resume)
    }
}

fn job(comm: &Arc<Comm>, run: fn(&Comm) -> Result<(), Failure>) -> crate::answer::Answer {
    let own = Arc::clone(comm);
    group::job(QueuedJob {
        comms: vec![Arc::clone(comm)],
        of: comm.handle,
        blocking: comm.settings.blocking,
        sink: Arc::clone(comm),
        undo: Box::new(|| {}),
        run: Box::new(move || run(&own)),
    })
}

fn suspend(comm: &Comm) -> Result<(), Failure> {
    // The next window makes them again, on all ranks.
    if !windows::are_registered(comm) {
        drop(comm.one_sided.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
    let made = comm.lend().ok_or_else(|| Failure::internal("there is no communicator"))?;
    let made = Arc::try_unwrap(made).map_err(|shared| {
        comm.give_back(shared);
        Failure::usage(
            "a call of the communicator is in the same group, or is made by another thread",
        )
    })?;
    match made.suspend() {
        Ok(suspended) => {
            comm.set_suspended(suspended);
            Ok(())
        }
        Err(refused) => {
            comm.give_back(Arc::new(refused.communicator));
            Err(match refused.error {
                Error::InvalidArgument { reason, .. } => Failure::usage(reason),
                error => error.into(),
            })
        }
    }
}

fn resume(comm: &Comm) -> Result<(), Failure> {
    let not = || Failure::usage("the communicator is not suspended");
    let suspended = comm.suspended().ok_or_else(not)?;
    let made = suspended.resume_with(&comm.settings.comm_config(Some(&comm.abort)))?;
    comm.set_made(made);
    Ok(())
}

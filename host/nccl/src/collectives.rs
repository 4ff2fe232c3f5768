//! Collective calls.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ferroccl::{Communicator, Stream};

use crate::answer::{Answer, Failure};
use crate::buffers::{buffer, times};
use crate::group::{self, QueuedCall};
use crate::handles::{self, Comm};
use crate::operators::operator;
use crate::typed::data_type;
use crate::types::*;

/// Names of arguments in FerroCCL's calls and in `nccl.h`.
pub(crate) const NAMES: [(&str, &str); 3] =
    [("send", "sendbuff"), ("recv", "recvbuff"), ("self", "comm")];

/// Makes a call that has been checked, or keeps it for the end of the group.
pub(crate) fn submit(
    comm: Arc<Comm>,
    made: Arc<Communicator>,
    stream: cudaStream_t,
    call: impl FnOnce(&Communicator, &Stream) -> ferroccl::Result<()> + 'static,
) -> Answer {
    submit_as(false, comm, made, stream, call)
}

/// The same, for a call that is `one_sided`.
pub(crate) fn submit_as(
    one_sided: bool,
    comm: Arc<Comm>,
    made: Arc<Communicator>,
    stream: cudaStream_t,
    call: impl FnOnce(&Communicator, &Stream) -> ferroccl::Result<()> + 'static,
) -> Answer {
    let stream = comm.stream(stream)?;
    let call = move |made: &Communicator, stream: &Stream| {
        call(made, stream).map_err(|error| Failure::of(error, &NAMES))
    };
    group::call(QueuedCall { comm, made, stream, one_sided, call: Box::new(call) })
}

/// A rank that is an argument: `root`, `peer`.
pub(crate) fn rank(made: &Communicator, name: &str, rank: c_int) -> Result<u32, Failure> {
    u32::try_from(rank).ok().filter(|rank| *rank < made.world_size()).ok_or_else(|| {
        Failure::argument(name, format!("{rank} is none of the {} ranks", made.world_size()))
    })
}

fn broadcast(
    sendbuff: (*const c_void, &str),
    recvbuff: (*mut c_void, &str),
    (count, datatype, root): (usize, ncclDataType_t, c_int),
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> Answer {
    let comm = handles::find(comm)?;
    let made = comm.ready()?;
    let root = rank(&made, "root", root)?;
    typed!(data_type(datatype)?, T => {
        let recv = buffer::<T>(&comm.place, recvbuff.1, recvbuff.0, count)?;
        // Others than the root have nothing to send.
        let send = match made.rank() == root {
            true => buffer::<T>(&comm.place, sendbuff.1, sendbuff.0, count)?,
            false => recv.clone(),
        };
        submit(comm, made, stream, move |c, s| c.broadcast(&send, &recv, root, s))
    })
}

export! {
    /// Reduces over all ranks; every rank has the result.
    grouped ncclAllReduce, pncclAllReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        typed!(data_type(datatype)?, T => {
            let op = operator::<T>(&comm, op)?;
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, count)?;
            let recv = buffer::<T>(&comm.place, "recvbuff", recvbuff, count)?;
            submit(comm, made, stream, move |c, s| c.all_reduce(&send, &recv, op, s))
        })
    }

    /// Reduces over all ranks; the root has the result.
    grouped ncclReduce, pncclReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let root = rank(&made, "root", root)?;
        typed!(data_type(datatype)?, T => {
            let op = operator::<T>(&comm, op)?;
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, count)?;
            let recv = match made.rank() == root {
                true => buffer::<T>(&comm.place, "recvbuff", recvbuff, count)?,
                // It gets nothing.
                false => send.clone(),
            };
            submit(comm, made, stream, move |c, s| c.reduce(&send, &recv, op, root, s))
        })
    }

    /// Gives every rank what the root has.
    grouped ncclBroadcast, pncclBroadcast(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        broadcast((sendbuff, "sendbuff"), (recvbuff, "recvbuff"), (count, datatype, root), comm, stream)
    }

    /// The same in place.
    grouped ncclBcast, pncclBcast(
        buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        broadcast((buff, "buff"), (buff, "buff"), (count, datatype, root), comm, stream)
    }

    /// Reduces over all ranks; each has its block of the result.
    grouped ncclReduceScatter, pncclReduceScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let all = times("recvcount", recvcount, made.world_size())?;
        typed!(data_type(datatype)?, T => {
            let op = operator::<T>(&comm, op)?;
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, all)?;
            let recv = buffer::<T>(&comm.place, "recvbuff", recvbuff, recvcount)?;
            submit(comm, made, stream, move |c, s| c.reduce_scatter(&send, &recv, op, s))
        })
    }

    /// Gives every rank the blocks of all.
    grouped ncclAllGather, pncclAllGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let all = times("sendcount", sendcount, made.world_size())?;
        typed!(data_type(datatype)?, T => {
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, sendcount)?;
            let recv = buffer::<T>(&comm.place, "recvbuff", recvbuff, all)?;
            submit(comm, made, stream, move |c, s| c.all_gather(&send, &recv, s))
        })
    }

    /// Sends a block to every rank, and receives one from each.
    grouped ncclAlltoAll, pncclAlltoAll(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let all = times("count", count, made.world_size())?;
        typed!(data_type(datatype)?, T => {
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, all)?;
            let recv = buffer::<T>(&comm.place, "recvbuff", recvbuff, all)?;
            submit(comm, made, stream, move |c, s| c.all_to_all(&send, &recv, s))
        })
    }

    /// Gives the root the blocks of all ranks.
    grouped ncclGather, pncclGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let root = rank(&made, "root", root)?;
        let all = times("count", count, made.world_size())?;
        typed!(data_type(datatype)?, T => {
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, count)?;
            let recv = match made.rank() == root {
                true => buffer::<T>(&comm.place, "recvbuff", recvbuff, all)?,
                false => send.clone(),
            };
            submit(comm, made, stream, move |c, s| c.gather(&send, &recv, root, s))
        })
    }

    /// Gives every rank its block of what the root has.
    grouped ncclScatter, pncclScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let root = rank(&made, "root", root)?;
        let all = times("count", count, made.world_size())?;
        typed!(data_type(datatype)?, T => {
            let recv = buffer::<T>(&comm.place, "recvbuff", recvbuff, count)?;
            let send = match made.rank() == root {
                true => buffer::<T>(&comm.place, "sendbuff", sendbuff, all)?,
                false => recv.clone(),
            };
            submit(comm, made, stream, move |c, s| c.scatter(&send, &recv, root, s))
        })
    }
}

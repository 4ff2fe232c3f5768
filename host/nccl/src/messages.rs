//! Messages between two ranks.

use std::ffi::{c_int, c_void};

use crate::buffers::buffer;
use crate::collectives::{rank, submit};
use crate::handles;
use crate::typed::data_type;
use crate::types::*;

export! {
    /// Sends to a rank, which receives by `ncclRecv`.
    grouped ncclSend, pncclSend(
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let peer = rank(&made, "peer", peer)?;
        typed!(data_type(datatype)?, T => {
            let send = buffer::<T>(&comm.place, "sendbuff", sendbuff, count)?;
            submit(comm, made, stream, move |c, s| c.send(&send, peer, s))
        })
    }

    /// Receives what a rank sends by `ncclSend`.
    grouped ncclRecv, pncclRecv(
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let peer = rank(&made, "peer", peer)?;
        typed!(data_type(datatype)?, T => {
            let recv = buffer::<T>(&comm.place, "recvbuff", recvbuff, count)?;
            submit(comm, made, stream, move |c, s| c.recv(&recv, peer, s))
        })
    }
}

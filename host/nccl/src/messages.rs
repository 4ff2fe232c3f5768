//! Messages between two ranks.

use std::ffi::{c_int, c_uint, c_void};

use crate::answer::Failure;
use crate::buffers::buffer;
use crate::collectives::{rank, submit};
use crate::handles;
use crate::typed::data_type;
use crate::types::*;

/// Why there is nothing that is put by the host.
const NO_PUTS: &str = "FerroCCL puts from kernels only (docs/device-api.md)";

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

    /// It would write into a peer's window, and signal.
    grouped ncclPutSignal, pncclPutSignal(
        _localbuff: *const c_void, _count: usize, datatype: ncclDataType_t, peer: c_int, _peerWin: ncclWindow_t,
        _peerWinOffset: usize, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, comm: ncclComm_t, _stream: cudaStream_t,
    ) {
        let made = handles::find(comm)?.ready()?;
        rank(&made, "peer", peer)?;
        data_type(datatype)?;
        Err(Failure::absent("ncclPutSignal", NO_PUTS))
    }

    /// It would signal a peer.
    grouped ncclSignal, pncclSignal(
        peer: c_int, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, comm: ncclComm_t, _stream: cudaStream_t,
    ) {
        let made = handles::find(comm)?.ready()?;
        rank(&made, "peer", peer)?;
        Err(Failure::absent("ncclSignal", NO_PUTS))
    }

    /// It would wait for signals.
    grouped ncclWaitSignal, pncclWaitSignal(
        _nDesc: c_int, _signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, _stream: cudaStream_t,
    ) {
        handles::find(comm)?.ready()?;
        Err(Failure::absent("ncclWaitSignal", NO_PUTS))
    }
}

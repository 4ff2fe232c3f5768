//! One-sided calls: a rank writes into another's window and signals it, which waits for signals alone.
//!
//! Each is a launch of one of [`kernels`](crate::kernels). What they signal by, a device communicator, is made on all ranks
//! with their first window.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError};

use ferroccl::device::abi::DeviceWindow;
use ferroccl::{Communicator, DeviceCommConfig, DeviceCommunicator, Grid};

use crate::answer::{Done, Failure};
use crate::buffers::buffer;
use crate::collectives::{rank, submit_as};
use crate::handles::{self, Comm};
use crate::kernels::{PUT_SIGNAL, PutSignal, WAIT_SIGNAL, WaitSignal};
use crate::typed::data_type;
use crate::types::*;
use crate::windows;

/// Signals of a context that are told apart. NCCL 2.30 has one.
const SIGNALS: u32 = 8;

/// One block: a put is copied by its threads, and over a network by the proxy.
const GRID: Grid = Grid { blocks: 1, threads: 512 };

/// What the one-sided calls of a communicator go by; why there is nothing.
pub(crate) type OneSided = Result<Arc<DeviceCommunicator>, String>;

/// Makes it, on all ranks at the same time: with a window.
pub(crate) fn prepare(comm: &Comm, made: &Communicator) {
    let mut there = comm.one_sided.lock().unwrap_or_else(PoisonError::into_inner);
    if there.is_some() {
        return;
    }
    let mut config = DeviceCommConfig::default();
    config.signals = SIGNALS * comm.settings.rma_contexts;
    let own = made.device_comm(&config);
    *there = Some(own.map(Arc::new).map_err(|error| error.to_string()));
}

fn device_comm(comm: &Comm) -> Result<Arc<DeviceCommunicator>, Failure> {
    match &*comm.one_sided.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(Ok(own)) => Ok(Arc::clone(own)),
        Some(Err(why)) => Err(Failure::absent("a one-sided call", why)),
        None => Err(Failure::usage(
            "one-sided calls need a window of the communicator first (ncclCommWindowRegister with \
             NCCL_WIN_COLL_SYMMETRIC)",
        )),
    }
}

/// The number of a signal.
fn signal(comm: &Comm, sig_idx: c_int, ctx: c_int) -> Result<u32, Failure> {
    let below = |name: &str, number: c_int, limit: u32| {
        u32::try_from(number)
            .ok()
            .filter(|number| *number < limit)
            .ok_or_else(|| Failure::argument(name, format!("{number} is not 0 to {}", limit - 1)))
    };
    let sig_idx = below("sigIdx", sig_idx, SIGNALS)?;
    Ok(below("ctx", ctx, comm.settings.rma_contexts)? * SIGNALS + sig_idx)
}

fn no_flags(flags: c_uint) -> Result<(), Failure> {
    match flags {
        0 => Ok(()),
        _ => Err(Failure::argument("flags", format!("{flags:#x} is not 0"))),
    }
}

/// Puts bytes, if there are any, and signals.
fn put_signal(
    comm: Arc<Comm>,
    made: Arc<Communicator>,
    argument: impl FnOnce(&DeviceCommunicator) -> PutSignal,
    stream: cudaStream_t,
) -> crate::answer::Answer {
    let own = device_comm(&comm)?;
    let argument = argument(&own);
    submit_as(true, comm, made, stream, move |_, stream| {
        // SAFETY: as with NCCL, a program keeps windows and buffers until the call has ended; the ranges were checked.
        unsafe { own.launch(&PUT_SIGNAL, GRID, &argument, stream) }
    })
}

/// No memory: a signal alone has no bytes.
const NOTHING: DeviceWindow = DeviceWindow { address: 0, bytes: 0, peers: 0, number: 0 };

export! {
    /// Writes into a peer's window, and signals.
    grouped ncclPutSignal, pncclPutSignal(
        localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, peerWin: ncclWindow_t,
        peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let peer = rank(&made, "peer", peer)?;
        let size = data_type(datatype)?.size();
        let index = signal(&comm, sigIdx, ctx)?;
        no_flags(flags)?;
        let bytes = count.checked_mul(size);
        let bytes = bytes.ok_or_else(|| Failure::argument("count", format!("{count} elements are more than memory has")))?;
        let from = buffer::<u8>(&comm.place, "localbuff", localbuff, bytes)?;
        let (to, direct) = windows::for_kernels(&comm, peerWin)?;
        if peerWinOffset.checked_add(bytes).is_none_or(|end| end as u64 > to.bytes) {
            let reason = format!("{bytes} bytes from {peerWinOffset} on are not in the window's {}", to.bytes);
            return Err(Failure::argument("peerWinOffset", reason));
        }
        let (from, from_offset) = match windows::containing(&comm, from.address(), bytes as u64) {
            Some(found) => found,
            // Where the peer's memory is reached, only the address is looked at.
            None if direct || bytes == 0 => (DeviceWindow { address: from.address(), ..to }, 0),
            None => {
                let reason = "is in no window of this communicator, and a network sends only from windows";
                return Err(Failure::argument("localbuff", reason));
            }
        };
        let (offset, bytes) = (peerWinOffset as u64, bytes as u64);
        put_signal(comm, made, move |own| {
            PutSignal { comm: own.value(), to, from, offset, from_offset, bytes, peer, index }
        }, stream)
    }

    /// Signals a peer.
    grouped ncclSignal, pncclSignal(
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let peer = rank(&made, "peer", peer)?;
        let index = signal(&comm, sigIdx, ctx)?;
        no_flags(flags)?;
        put_signal(comm, made, move |own| PutSignal {
            comm: own.value(),
            to: NOTHING,
            from: NOTHING,
            offset: 0,
            from_offset: 0,
            bytes: 0,
            peer,
            index,
        }, stream)
    }

    /// Waits for signals of peers.
    grouped ncclWaitSignal, pncclWaitSignal(
        nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: cudaStream_t,
    ) {
        let comm = handles::find(comm)?;
        let made = comm.ready()?;
        let count = usize::try_from(nDesc);
        let count = count.map_err(|_| Failure::argument("nDesc", format!("{nDesc} is negative")))?;
        if count == 0 {
            return Ok(Done::Yes);
        }
        if signalDescs.is_null() {
            return Err(Failure::argument("signalDescs", "is NULL"));
        }
        let own = device_comm(&comm)?;
        let waits = std::slice::from_raw_parts(signalDescs, count).iter().enumerate().map(|(i, desc)| {
            let named = |field: &str, failure: Failure| {
                Failure::argument("signalDescs", format!("[{i}].{field}: {}", failure.text))
            };
            let peer = rank(&made, "peer", desc.peer).map_err(|e| named("peer", e))?;
            let index = signal(&comm, desc.sigIdx, desc.ctx).map_err(|e| named("sigIdx, ctx", e))?;
            let count = u64::try_from(desc.opCnt).map_err(|_| {
                Failure::argument("signalDescs", format!("[{i}].opCnt: {} is negative", desc.opCnt))
            })?;
            Ok(WaitSignal { comm: own.value(), count, peer, index })
        });
        let waits: Vec<WaitSignal> = waits.collect::<Result<_, Failure>>()?;
        submit_as(true, comm, made, stream, move |_, stream| {
            // One behind the other: all have come when the last has.
            waits.iter().filter(|wait| wait.count > 0).try_for_each(|wait| {
                // SAFETY: the argument leads to what the device communicator has.
                unsafe { own.launch(&WAIT_SIGNAL, GRID, wait, stream) }
            })
        })
    }
}

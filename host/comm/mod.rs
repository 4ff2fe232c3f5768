//! Communicators: a rank's membership in a group of ranks.
//!
//! A [`Communicator`] owns what its kernels use: the edges to its neighbours and the [`Control`] block
//! through which kernels and host tell each other of failures. A call is planned, given the next number
//! and launched; the calls of one communicator run in the order they were made, whatever the stream.

mod config;
mod control;
mod machine;
mod setup;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferroccl_device::abi::{Collective, Fault, FaultKind, Poison, ProtocolId, ReduceOp, Work};
use ferroccl_device::kernels::Kernel;
use tracing::{debug, info, warn};

use crate::bootstrap::{Departure, Watch};
use crate::buffer::{Device, DeviceBuffer, Element, Stream};
use crate::channel::{ConnLayout, EdgeEnd};
use crate::enqueue::{self, Call, Shape};
use crate::error::KernelFault;
use crate::log;
use crate::runtime::{Keep, Launch};
use crate::{Error, Result};

pub use config::CommConfig;
pub(crate) use config::default_buffers;
use control::Control;

/// One rank of a group. Calls may be made from any thread; those of one communicator are numbered in the
/// order they are made, and every rank must make the same calls in the same order.
///
/// Dropping it leaves the group, once the calls made have ended; a peer that goes on calling gets an error.
#[derive(Debug)]
pub struct Communicator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: u32,
    nranks: u32,
    device: Device,
    shape: Shape,
    layout: ConnLayout,
    /// What lets kernels reach the memory of `edges` and `control`: before them, to be dropped first.
    _registered: Vec<Keep>,
    /// `None` for a group of one.
    edges: Option<Edges>,
    control: Control,
    /// The number of the last call; held while a call is launched, so that numbers are in stream order.
    seq: Mutex<u64>,
    /// What lies behind a fault that says no more than that a peer is lost or that we have stopped.
    cause: OnceLock<Error>,
    /// Notices lost peers; `None` in one process.
    watch: OnceLock<Watch>,
}

/// A rank's two neighbours in the ring.
#[derive(Debug)]
struct Edges {
    send: EdgeEnd,
    recv: EdgeEnd,
}

impl Communicator {
    /// This rank, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.0.nranks
    }

    /// The device its buffers and streams are of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The channels that a large call uses.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.0.shape.channels
    }

    /// Reduces `send` over all ranks, element by element, into every rank's `recv`.
    ///
    /// Returns at once; the result is there when `stream` gets to it. `send` and `recv` have one length and
    /// may be the same buffer (in place). All ranks call with the same length, type and `op`: if not, every
    /// rank's stream gets an error that shows both calls. Semantics of `op`: [`ReduceOp`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when lengths differ or the buffers overlap without being the same;
    /// [`Error::Aborted`] when the communicator has failed before. What happens later is an error of `stream`.
    pub fn all_reduce<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        self.launch(send, recv, op, stream, None)
    }

    /// [`Communicator::all_reduce`] by a kernel of your own, over this communicator's connections: how a
    /// protocol is tried before it is in the table. `protocol` says which buffers of the connections it uses.
    ///
    /// # Safety
    /// `kernel` keeps the contract of [`AllReduceRing`](ferroccl_device::collectives::AllReduceRing): it
    /// is an instance for `T`, or does as it does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub unsafe fn all_reduce_with<T: Element>(
        &self,
        kernel: Kernel,
        protocol: ProtocolId,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        self.launch(send, recv, op, stream, Some((kernel, protocol)))
    }

    fn launch<T: Element>(
        &self,
        send: &DeviceBuffer<T>,
        recv: &DeviceBuffer<T>,
        op: ReduceOp,
        stream: &Stream,
        own: Option<(Kernel, ProtocolId)>,
    ) -> Result<()> {
        check_buffers(send, recv)?;
        let inner = &self.0;
        let call =
            Call { collective: Collective::AllReduce, count: send.len(), data_type: T::TYPE, op };
        let mut seq = inner.seq.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = inner.failure() {
            return Err(Error::Aborted { rank: inner.rank, cause: cause.to_string() });
        }
        let own_shape = own.map(|(_, protocol)| Shape {
            tuner: inner.shape.tuner.only(protocol),
            ..inner.shape.clone()
        });
        let shape = own_shape.as_ref().unwrap_or(&inner.shape);
        let mut plan = enqueue::plan(&call, shape, *seq + 1)?;
        if let Some((kernel, _)) = own {
            plan.kernel = kernel;
        }
        debug!(target: log::COLL, rank = inner.rank, seq = *seq + 1, kernel = plan.kernel.name,
               count = call.count, channels = plan.channels, "AllReduce");
        let work: Work =
            plan.work(inner.control.comm_address(), send.address(), recv.address(), inner.nranks);
        let done = Arc::clone(inner);
        let (send_memory, recv_memory) = (Arc::clone(send.memory()), Arc::clone(recv.memory()));
        let launch = Launch {
            kernel: plan.kernel,
            blocks: plan.channels,
            work: Box::new(work),
            keep: Vec::new(),
            bytes: call.bytes() as u64,
            // Holds the buffers too: one allocation instead of three, which is felt at 8 bytes.
            done: Box::new(move |failure| {
                drop((send_memory, recv_memory));
                if let Some(error) = failure {
                    done.broken(error);
                }
                done.failure().map_or(Ok(()), Err)
            }),
        };
        // SAFETY: the kernel is of the table, or the caller vouches for it (`all_reduce_with`); the buffers
        // hold the call's elements, and buffers and communicator are kept until the launch has ended.
        unsafe { stream.ops().launch(launch) }?;
        *seq += 1;
        Ok(())
    }

    /// Stops every kernel of this communicator, here and, through the ring, on all its ranks. The calls that
    /// are under way end with an error, and no more can be made.
    pub fn abort(&self) {
        self.0.fail(&Fault {
            kind: FaultKind::Aborted as u32,
            rank: self.0.rank,
            ..Fault::default()
        });
    }

    /// The failure of this communicator, if it has failed (NCCL's `ncclCommGetAsyncError`).
    ///
    /// # Errors
    /// The first failure.
    pub fn async_error(&self) -> Result<()> {
        self.0.failure().map_or(Ok(()), Err)
    }
}

fn check_buffers<T: Element>(send: &DeviceBuffer<T>, recv: &DeviceBuffer<T>) -> Result<()> {
    if send.len() != recv.len() {
        let reason = format!("has {} elements, send has {}", recv.len(), send.len());
        return Err(Error::argument("recv", reason));
    }
    let (a, b, bytes) = (send.address(), recv.address(), (send.len() * size_of::<T>()) as u64);
    if a != b && a < b + bytes && b < a + bytes {
        return Err(Error::argument("recv", "overlaps send without being the same"));
    }
    Ok(())
}

impl Inner {
    /// The failure of this communicator as an error.
    fn failure(&self) -> Option<Error> {
        let fault = self.control.fault()?;
        if matches!(FaultKind::from_raw(fault.kind), FaultKind::PeerLost | FaultKind::Aborted)
            && let Some(cause) = self.cause.get()
        {
            return Some(cause.clone());
        }
        Some(Error::Kernel(Arc::new(KernelFault(fault))))
    }

    /// Records `fault` unless there is one, stops our kernels and tells the neighbours.
    fn fail(&self, fault: &Fault) {
        self.control.fail(fault);
        if let (Some(edges), Some(fault)) = (&self.edges, self.control.fault()) {
            for edge in [&edges.send, &edges.recv] {
                edge.poison(&self.layout, self.shape.channels as usize, &fault, Poison::SET);
            }
        }
    }

    /// A kernel of ours ended somewhere in the middle: our edges are in no state to go on with.
    fn broken(&self, error: &Error) {
        if self.control.fault().is_none() {
            let _ = self.cause.set(error.clone());
        }
        let (kind, rank) = (FaultKind::Aborted as u32, self.rank);
        self.fail(&Fault { kind, rank, ..Fault::default() });
    }

    /// A peer is gone. One that left as it should has told its neighbours' kernels itself, in order with
    /// its data: only who still waits for it fails.
    fn gone(&self, departure: Departure) {
        let peer = departure.peer();
        if let Departure::Left { .. } = departure {
            info!(target: log::INIT, rank = self.rank, peer, "a rank has left the group");
            return;
        }
        let seq = *self.seq.lock().unwrap_or_else(PoisonError::into_inner);
        let error = departure.into_error(self.rank);
        warn!(target: log::INIT, "{error}");
        // Whoever is first: a failure that came before has its own cause.
        let _ = self.cause.set(error);
        self.fail(&Fault {
            kind: FaultKind::PeerLost as u32,
            rank: self.rank,
            peer,
            seq,
            ..Fault::default()
        });
    }
}

impl Drop for Inner {
    /// The last call has ended: the neighbours are told that we leave. A call of theirs that still waits for
    /// us fails; what we have sent them stays valid, as they hold the memory too.
    fn drop(&mut self) {
        let seq = *self.seq.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(edges) = &self.edges {
            let (left, kind) = match self.control.fault() {
                Some(fault) => (fault, Poison::SET),
                None => {
                    let kind = FaultKind::PeerLost as u32;
                    let rank = self.rank;
                    (Fault { kind, rank, peer: rank, seq, ..Fault::default() }, Poison::LEFT)
                }
            };
            for edge in [&edges.send, &edges.recv] {
                edge.poison(&self.layout, self.shape.channels as usize, &left, kind);
            }
        }
        debug!(target: log::INIT, rank = self.rank, "communicator dropped");
    }
}

//! Communicators: a rank's membership in a group of ranks.
//!
//! ```text
//! calls      what a user calls: checks its arguments, makes a Request
//! group      several requests that start together
//! launch     a Request -> enqueue::Plan -> kernels on a stream
//! collnet    the same with a network that reduces between kernels
//! p2p        sends and receives -> transfers of one kernel
//! setup      how ranks come together: edges with all peers, and what kernels see of them (control, nodes)
//! oob        what ranks tell each other later, beside their calls: failures, and where to meet (split)
//! progress   the same in the background; abort ends it, and what is stuck
//! ```
//!
//! A [`Communicator`] owns what its kernels use: the edges to its peers and the [`Control`] block
//! through which kernels and host tell each other of failures. A call is planned, given the next number
//! and launched; the calls of one communicator run in the order they were made, whatever the stream.

mod abort;
mod calls;
mod collnet;
mod config;
mod control;
mod gdr;
mod gpus;
mod group;
mod inbox;
mod launch;
mod machine;
mod net;
mod nodes;
#[path = "out_of_band.rs"]
mod oob;
mod p2p;
mod progress;
mod setup;
mod split;
mod steps;
mod terms;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferroccl_device::abi::{Fault, FaultKind, Poison};
use tracing::{debug, info, warn};

use crate::bootstrap::Departure;
use crate::buffer::{Device, Stream};
use crate::channel::{EdgeEnd, Edges};
use crate::enqueue::Shape;
use crate::error::KernelFault;
use crate::log;
use crate::runtime::{Event, Keep, Memory};
use crate::{Error, Result};

pub use abort::AbortHandle;
pub use config::CommConfig;
pub(crate) use config::default_buffers;
use control::Control;
pub use group::group;
use nodes::{Nodes, Trees};
use oob::OutOfBand;
pub use progress::InProgress;

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
    /// Its settings, for those that are split off.
    config: CommConfig,
    shape: Shape,
    nodes: Nodes,
    trees: Trees,
    /// What reaches ranks on other hosts.
    remote: Option<Arc<net::Remote>>,
    /// What joins the nodes' ranks by a network that reduces.
    heads: Option<collnet::Heads>,
    /// What lets kernels reach the memory of `edges` and `control`: before them, to be dropped first.
    _registered: Vec<Keep>,
    _scratch: Arc<dyn Memory>,
    /// Address of what barriers reduce.
    barrier: u64,
    /// With every other rank.
    edges: Vec<Edges>,
    control: Control,
    order: Mutex<Order>,
    /// What lies behind a fault that says no more than that a peer is lost or that we have stopped.
    cause: OnceLock<Error>,
    /// Whether it has failed or was aborted: ends what the host waits for.
    failed: Arc<AtomicBool>,
    /// The handle that guards it.
    abort: AbortHandle,
    /// The way to the other ranks beside the kernels; empty where there are none.
    oob: OnceLock<OutOfBand>,
    /// Held by a split.
    forming: Mutex<()>,
    /// Ranks that have this rank's device.
    sharing: u32,
    /// The most blocks of a launch of messages.
    message_blocks: u32,
}

/// The order of a communicator's calls. Held while a call is launched, so that numbers are in stream order.
#[derive(Debug, Default)]
struct Order {
    /// The number of the last collective call.
    seq: u64,
    /// The stream of the last call.
    stream: Option<Stream>,
    /// Streams of our own, for what runs beside the user's.
    beside: Vec<Stream>,
    /// Whether there are to be no more.
    finalized: bool,
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

    /// Stops every kernel of this communicator, here and, through the ring, on all its ranks. The calls that
    /// are under way end with an error, and no more can be made.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// A handle that aborts it from anywhere: that of its [`CommConfig`], where there was one.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.0.abort.clone()
    }

    /// Ends the communicator's calls in good order (`ncclCommFinalize`): waits until all that were made have ended, here,
    /// and what they have for other hosts is on its way. From then on no more can be made. Not collective, but returns
    /// only when the other ranks have made the same calls. A second time gives the same.
    ///
    /// Dropping a communicator without it leaves calls that are under way to themselves.
    ///
    /// # Errors
    /// The failure of the communicator, if it has failed.
    ///
    /// ```
    /// use ferroccl::{Communicator, Device, ReduceOp};
    ///
    /// let device = Device::cpu();
    /// let rank = Communicator::init_all(&device, 1)?.remove(0);
    /// let (stream, buffer) = (device.stream()?, device.upload(&[3.0f32; 100])?);
    /// rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
    /// rank.finalize()?;
    /// assert!(stream.query()?);
    /// assert!(rank.barrier(&stream).is_err());
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    pub fn finalize(&self) -> Result<()> {
        self.0.finalize()
    }

    /// The failure of this communicator, if it has failed (NCCL's `ncclCommGetAsyncError`).
    ///
    /// # Errors
    /// The first failure.
    pub fn async_error(&self) -> Result<()> {
        self.0.failure().map_or(Ok(()), Err)
    }
}

impl Inner {
    /// See [`Communicator::abort`].
    fn abort(&self) {
        let fault = Fault { kind: FaultKind::Aborted as u32, rank: self.rank, ..Fault::default() };
        if self.control.fault().is_none() {
            let _ = self.cause.set(Error::Kernel(Arc::new(KernelFault(fault))));
        }
        self.fail(&fault);
    }

    /// See [`Communicator::finalize`].
    fn finalize(&self) -> Result<()> {
        let last = {
            let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            order.finalized = true;
            order.stream.clone()
        };
        if let Some(last) = last {
            // The stream's errors stay the user's.
            let (end, own) = (Event::new(), self.device.stream()?);
            last.ops().record(&end, false);
            own.ops().wait(&end);
            own.synchronize()?;
        }
        self.drain(None);
        self.failure().map_or(Ok(()), Err)
    }

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

    /// Records `fault` unless there is one, stops our kernels and tells all peers.
    fn fail(&self, fault: &Fault) {
        self.control.fail(fault);
        self.tell_peers();
    }

    /// Kernels that were stopped by a peer's fault know that of the ring's neighbours only: looks whether another has
    /// left the cause.
    fn find_cause(&self) {
        let stopped = |fault: &Fault| FaultKind::from_raw(fault.kind) == FaultKind::Aborted;
        if self.cause.get().is_some() || !self.control.fault().as_ref().is_some_and(stopped) {
            return;
        }
        let ends = self.edges.iter().flat_map(|edges| [&edges.send, &edges.recv]);
        let mut left: Vec<(Fault, u64)> = ends.filter_map(EdgeEnd::left).collect();
        // What says more before what says no more, and a fault before a departure.
        left.sort_by_key(|(fault, kind)| (stopped(fault), *kind != Poison::SET));
        if let Some((fault, _)) = left.first() {
            let _ = self.cause.set(Error::Kernel(Arc::new(KernelFault(*fault))));
        }
    }

    /// A fault that a peer has left, if there is one.
    fn left(&self) -> Option<Error> {
        let ends = self.edges.iter().flat_map(|edges| [&edges.send, &edges.recv]);
        let mut left = ends.filter_map(EdgeEnd::left).filter(|(_, kind)| *kind == Poison::SET);
        left.next().map(|(fault, _)| Error::Kernel(Arc::new(KernelFault(fault))))
    }

    /// Tells all peers of our failure, if there is one: also those whom the failed call had nothing to do with.
    fn tell_peers(&self) {
        if let Some(fault) = self.control.fault() {
            // Nothing is published by it: what looks there asks for the failure then.
            self.failed.store(true, Ordering::Relaxed);
            for edge in self.edges.iter().flat_map(|edges| [&edges.send, &edges.recv]) {
                edge.poison(&fault, Poison::SET);
            }
            self.tell_hosts(&fault);
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
            self.has_left(peer);
            return;
        }
        let seq = self.order.lock().unwrap_or_else(PoisonError::into_inner).seq;
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

impl Drop for Communicator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Who would make the calls that its kernels, and its peers', wait for?
            self.0.abort();
        }
        self.0.drain(Some(net::FAREWELL));
    }
}

impl Drop for Inner {
    /// The last call has ended: the neighbours are told that we leave. A call of theirs that still waits for
    /// us fails; what we have sent them stays valid, as they hold the memory too.
    fn drop(&mut self) {
        let seq = self.order.get_mut().unwrap_or_else(PoisonError::into_inner).seq;
        let (left, kind) = match self.control.fault() {
            Some(fault) => (fault, Poison::SET),
            None => {
                let (kind, rank) = (FaultKind::PeerLost as u32, self.rank);
                (Fault { kind, rank, peer: rank, seq, ..Fault::default() }, Poison::LEFT)
            }
        };
        for edge in self.edges.iter().flat_map(|edges| [&edges.send, &edges.recv]) {
            edge.poison(&left, kind);
        }
        debug!(target: log::INIT, rank = self.rank, "communicator dropped");
    }
}

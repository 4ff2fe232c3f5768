//! The operation that moves a communicator's connections over the network on.
//!
//! It runs on the process's proxy thread, beside other communicators' operations, and ends when there is nothing more to
//! send or to receive. Meanwhile it keeps the communicator alive. A kernel's wait has a budget (`FERROCCL_TIMEOUT`), so this
//! has one only once the user has dropped or finalized the communicator: then no kernel may be left to give up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use ferroccl_proxy::{Operation, Progress};
use tracing::warn;

use super::NetConnections;
use crate::comm::shared::SharedComm;
use crate::error::{Error, Result};

/// How long a broken connection waits before it is reported, so that the peer's own failure, which closed the connection,
/// can arrive and be reported instead.
const FAILURE_GRACE: Duration = Duration::from_millis(500);
/// How long the operation stays after the last step, for the next call. A new operation has to wake the proxy's thread.
const PROGRESS_LINGER: Duration = Duration::from_millis(1);

/// The runtime has not said yet whether it takes the operation.
const STARTING: u8 = 0;
/// It has taken it.
const STARTED: u8 = 1;
/// It has dropped it before it said so.
const DROPPED: u8 = 2;

/// Moves a communicator's connections on.
pub(super) struct NetProgressOp {
    comm: SharedComm,
    ended: bool,
    /// [`STARTING`], [`STARTED`] or [`DROPPED`].
    start: Arc<AtomicU8>,
    /// Since when there is nothing to send or to receive.
    idle_since: Option<Instant>,
    /// Declared behind `comm`, to be dropped after it.
    _guard: ProgressGuard,
}

/// Counts the operations of a communicator that have not let go of it.
struct ProgressGuard(Arc<NetConnections>);

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        // Pairs with the acquire in `NetConnections::drain`.
        self.0.running_ops.fetch_sub(1, Ordering::Release);
    }
}

impl NetProgressOp {
    /// Hands an operation to the runtime.
    ///
    /// # Errors
    /// When there can be no proxy thread.
    pub(super) fn start(comm: &SharedComm, net: &Arc<NetConnections>) -> Result<()> {
        net.running_ops.fetch_add(1, Ordering::Relaxed);
        let guard = ProgressGuard(Arc::clone(net));
        let comm = comm.clone();
        let runtime = Arc::clone(comm.device.runtime());
        let start = Arc::new(AtomicU8::new(STARTING));
        let mine = Arc::clone(&start);
        let op = NetProgressOp { comm, ended: false, start, idle_since: None, _guard: guard };
        // The runtime's own error says more than that the operation was dropped.
        runtime.operate(Box::new(op))?;
        // Pairs with the swap in `drop`: one of the two sees the other's.
        match mine.swap(STARTED, Ordering::AcqRel) {
            DROPPED => Err(net.proxy_ended()),
            _ => Ok(()),
        }
    }

    fn step(&mut self, net: &NetConnections) -> Progress {
        let comm = &self.comm;
        let mut state = net.lock();
        if comm.control.fault().is_some() {
            state.progressing = false;
            return Progress::Done;
        }
        if let Some((failure, since)) = &state.failed {
            if since.elapsed() < FAILURE_GRACE {
                return Progress::Idle;
            }
            let (error, peer) = (net.error(comm.rank, failure), failure.failure.key.peer);
            state.progressing = false;
            drop(state);
            comm.on_net_broken(peer, &error);
            return Progress::Done;
        }
        let progress = state.progress();
        if !matches!(progress, Ok(Progress::Done)) {
            self.idle_since = None;
        }
        match progress {
            Ok(Progress::Done) => {
                let since = self.idle_since.get_or_insert_with(Instant::now);
                // A seeded runtime's schedule replays, so it must not depend on time.
                let lingers = state.released_at.is_none() && comm.device.runtime().is_driven();
                if lingers && since.elapsed() < PROGRESS_LINGER {
                    return Progress::Idle;
                }
                if net.stop_looking(&mut state) { Progress::Done } else { Progress::Moved }
            }
            Ok(Progress::Moved) => {
                state.released_at = state.released_at.map(|_| Instant::now());
                Progress::Moved
            }
            Ok(Progress::Idle) => {
                if let (Some(released_at), Some(limit)) =
                    (state.released_at, comm.control.timeout())
                    && released_at.elapsed() > limit
                {
                    warn!(target: crate::log::NET, "rank {}: gave up sending", comm.rank);
                    net.stop_looking(&mut state);
                    state.progressing = false;
                    return Progress::Done;
                }
                Progress::Idle
            }
            Err(failure) => {
                state.failed = Some((failure, Instant::now()));
                Progress::Idle
            }
        }
    }
}

impl NetConnections {
    /// Nobody moves the connections on any more.
    fn proxy_ended(&self) -> Error {
        let reason = "the proxy has ended before all steps were sent and received".to_owned();
        Error::Unavailable { what: self.name.clone(), reason }
    }
}

impl Operation for NetProgressOp {
    fn progress(&mut self) -> Progress {
        let comm = self.comm.clone();
        let Some(net) = &comm.net else { return Progress::Done };
        let progress = self.step(net);
        self.ended = progress == Progress::Done;
        progress
    }
}

impl Drop for NetProgressOp {
    /// An operation that is dropped before its end has panicked, or nobody runs it any more. Kernels must not wait for it.
    fn drop(&mut self) {
        if let Some(net) = self.comm.net.as_ref().filter(|_| !self.ended) {
            net.lock().progressing = false;
            // Pairs with the swap in `start`, which has the error where the operation was not yet started.
            if self.start.swap(DROPPED, Ordering::AcqRel) == STARTED {
                self.comm.on_launch_failed(&net.proxy_ended());
            }
        }
    }
}

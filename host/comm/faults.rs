//! How a communicator fails, and how its ranks learn of each other's failures.
//!
//! ```text
//! a launch has ended ──────────► on_launch_done ─┐
//! a launch was refused ────────► on_launch_failed┤                       ┌─► our kernels, by the abort word
//! the bootstrap's ring ────────► on_peer_lost ───┼─► fail: the first ────┼─► neighbours' kernels, by poison at the edges
//! a rank tells of its failure ─► on_remote_fault ┤   fault stays         └─► all ranks, out of band
//! a connection over the network► on_net_broken ──┘
//! ```
//!
//! The first fault is in the control block, where kernels leave theirs, too. Where the fault says only that a peer is lost
//! or that the rank has stopped, `cause` has the error behind it, if one is known by then. Behind a timeout are the ranks
//! that have not entered the call (`stall`).

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroccl_device::abi::{Fault, FaultKind, Poison};
use tracing::{debug, info, warn};

use super::revoke::revoked;
use super::stall;
use super::state::CommState;
use crate::channel::EdgeEnd;
use crate::error::KernelFault;
use crate::error::{Error, Result};
use crate::{flight_recorder, log};
use ferroccl_bootstrap::Departure;

/// Bytes of an error's text that other ranks are told, and ranks to blame. Both are within the bootstrap's limit of 4096
/// bytes.
const MAX_TEXT: usize = 1024;
const MAX_RANKS: usize = 512;

impl CommState {
    /// Stops its kernels; calls that have not ended fail.
    pub(super) fn abort(&self) {
        if !self.maker.is_here() {
            return; // its memory is shared with the parent
        }
        let fault = self.own_fault(FaultKind::Aborted);
        self.set_cause(&Error::Kernel(Arc::new(KernelFault(fault))));
        self.fail(&fault);
    }

    /// The failure of this communicator.
    pub(super) fn failure(&self) -> Option<Error> {
        let fault = self.control.fault()?;
        if let Some(revoked) = revoked(&fault, self.rank) {
            return Some(revoked);
        }
        if has_cause(&fault)
            && let Some(cause) = self.cause.get()
        {
            return Some(cause.clone());
        }
        Some(Error::Kernel(Arc::new(KernelFault(fault))))
    }

    /// A launch has ended, and `error` is what the runtime saw go wrong. The error that this returns becomes the stream's.
    pub(super) fn on_launch_done(&self, error: Option<&Error>) -> Result<()> {
        if let Some(error) = error {
            self.on_launch_failed(error);
        }
        let stopped = || self.own_fault(FaultKind::Aborted);
        let fault = self.control.settled_fault().unwrap_or_else(|_| Some(stopped()));
        let Some(fault) = fault else { return Ok(()) };
        self.find_root_cause(&fault);
        self.notify_peers();
        Err(self.failure().unwrap_or_else(|| Error::Kernel(Arc::new(KernelFault(fault)))))
    }

    /// Lets go of the memory of a call that has ended. After a failure it is kept until the last rank is gone that may still
    /// write to it: a sender whose kernels reach our buffers was offered one, and may be in the middle of a copy.
    pub(super) fn release(&self, memory: impl Any + Send + Sync, result: &Result<()>) {
        if result.is_ok() {
            return;
        }
        // A sender of this process has the mapping that this rank receives in, too.
        if let Some(end) = self.edges.iter().map(|edges| &edges.recv).find(|end| end.direct) {
            end.region.keep(Arc::new(memory));
        }
    }

    /// A launch was refused, or a kernel or an operation of the proxy has ended before it was complete. The edges are left in
    /// the middle of a call, so there can be no other.
    pub(super) fn on_launch_failed(&self, error: &Error) {
        self.set_cause(error);
        self.fail(&self.own_fault(FaultKind::Aborted));
    }

    /// The result of a step of a launch that must not fail here alone: the other ranks would wait for a call that never
    /// comes, so they are told. An invalid argument is the caller's, and leaves the communicator as it is.
    pub(super) fn must<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && !matches!(error, Error::InvalidArgument { .. })
        {
            self.on_launch_failed(error);
        }
        result
    }

    /// The bootstrap's ring has noticed that a peer is gone. A peer that left in good order has told the kernels of its
    /// neighbours itself, behind its data, so that only calls which still wait for it fail.
    pub(super) fn on_peer_lost(&self, departure: Departure) {
        let peer = departure.peer();
        if let Departure::Left { .. } = departure {
            info!(target: log::INIT, rank = self.rank, peer, "a rank has left the group");
            self.reports.left(peer);
            if let Some(net) = &self.net {
                net.on_peer_left(peer);
            }
            return;
        }
        let seq = self.last_seq();
        let error = Error::from(departure.into_error(self.rank));
        warn!(target: log::INIT, "{error}");
        // Kept if it is the first. An earlier failure has its own cause.
        let _ = self.cause.set(error);
        self.fail(&Fault { peer, seq, ..self.own_fault(FaultKind::PeerLost) });
    }

    /// The connection with a peer over the network is broken.
    pub(super) fn on_net_broken(&self, peer: u32, error: &Error) {
        warn!(target: log::NET, "{error}");
        self.set_cause(error);
        let seq = self.last_seq();
        self.fail(&Fault { peer, seq, ..self.own_fault(FaultKind::PeerLost) });
    }

    /// Rank `teller` has told of its failure, as [`CommState::tell_peers`] does.
    pub(super) fn on_remote_fault(&self, teller: u32, news: &[u8]) {
        if teller == self.rank {
            return;
        }
        let Some(FaultNews { fault, ranks, text }) = FaultNews::decode(news) else {
            warn!(target: log::COLL, "rank {}: rank {teller} has failed, and its news make no sense", self.rank);
            return;
        };
        info!(target: log::COLL, "rank {}: rank {teller} has failed: {text}", self.rank);
        if self.control.fault().is_some_and(|fault| !has_cause(&fault)) {
            return;
        }
        // All others hear of it from `teller`, with the cause.
        self.peers_told.store(true, Ordering::Relaxed);
        // The neighbours on this host may hear of it from us first, so the fault that they get has to name the cause.
        // A cause that is there already stays: it is the first.
        match FaultKind::from_raw(fault.kind) {
            FaultKind::PeerLost => {
                // It may be this rank that another has lost: the teller, or one that the teller has heard of it from.
                let other = |rank: &u32| *rank < self.nranks && *rank != self.rank;
                let noticed_by = Some(fault.rank).filter(other).unwrap_or(teller);
                let (rank, peer) = match fault.peer == self.rank {
                    true => (self.rank, noticed_by),
                    false => (noticed_by, fault.peer),
                };
                let reason = format!("rank {teller} says: {text}");
                let _ = self.cause.set(Error::PeerLost { rank: self.rank, peer, reason });
                // A neighbour on this host may see only this fault, and tell the lost rank of it. That rank takes `rank` for the one that
                // it is cut off from, so `rank` is who noticed, and not this rank, which has only heard of it.
                self.fail(&Fault {
                    rank,
                    peer,
                    seq: fault.seq,
                    ..self.own_fault(FaultKind::PeerLost)
                });
            }
            FaultKind::Aborted => {
                let cause = format!("rank {teller} says: {text}");
                let _ = self.cause.set(Error::Aborted { rank: self.rank, cause });
                self.fail(&fault);
            }
            FaultKind::Timeout if !ranks.is_empty() => {
                let _ = self.cause.set(Error::Timeout { ranks, reason: text });
                self.fail(&fault);
            }
            _ => self.fail(&fault),
        }
    }

    /// A fault that a peer has left at an edge.
    pub(super) fn peer_failure(&self) -> Option<Error> {
        let mut faults = self
            .edge_ends()
            .filter_map(EdgeEnd::peer_fault)
            .filter(|(_, kind)| *kind == Poison::SET);
        faults.next().map(|(fault, _)| Error::Kernel(Arc::new(KernelFault(fault))))
    }

    pub(super) fn own_fault(&self, kind: FaultKind) -> Fault {
        Fault { kind: kind as u32, rank: self.rank, ..Fault::default() }
    }

    fn edge_ends(&self) -> impl Iterator<Item = &EdgeEnd> {
        self.edges.iter().flat_map(|edges| [&edges.send, &edges.recv])
    }

    /// Leaves `fault` for the ranks that share the memory of an edge with this one; `kind` is [`Poison::SET`] or [`Poison::LEFT`]. Others
    /// hear of it out of band: memory of an edge over a network has no other rank that looks at it.
    fn poison(&self, fault: &Fault, kind: u64) {
        for end in self.edge_ends().filter(|end| !end.remote) {
            end.poison(fault, kind);
        }
    }

    /// Notes the error behind the fault that is about to be recorded, unless there is a fault already.
    fn set_cause(&self, error: &Error) {
        if self.control.fault().is_none() {
            let _ = self.cause.set(error.clone());
        }
    }

    /// Records `fault` unless there is one, stops our kernels and tells all peers.
    pub(super) fn fail(&self, fault: &Fault) {
        self.control.fail(fault);
        self.notify_peers();
    }

    /// A kernel that was stopped by a neighbour's fault knows that fault only, and one whose time is up does not know who
    /// it waited for in the end. Looks at all edges whether a peer has left a fault with the cause, and at who has not
    /// entered the call.
    fn find_root_cause(&self, fault: &Fault) {
        if self.cause.get().is_some() || revoked(fault, self.rank).is_some() {
            return;
        }
        let is = |fault: &Fault, kind| FaultKind::from_raw(fault.kind) == kind;
        let stopped = |fault: &Fault| is(fault, FaultKind::Aborted);
        let mut first = *fault;
        if stopped(fault) {
            let mut faults: Vec<(Fault, u64)> =
                self.edge_ends().filter_map(EdgeEnd::peer_fault).collect();
            // A fault with a cause comes before `Aborted`, and a failure before a departure.
            faults.sort_by_key(|(fault, kind)| (stopped(fault), *kind != Poison::SET));
            let Some((found, _)) = faults.first() else { return };
            if let Some(error) = revoked(found, self.rank) {
                let _ = self.cause.set(error);
                return;
            }
            first = *found;
        }
        let timeout = is(&first, FaultKind::Timeout).then(|| self.timeout_error()).flatten();
        if let Some(error) = timeout {
            let _ = self.cause.set(error);
        } else if stopped(fault) {
            let _ = self.cause.set(Error::Kernel(Arc::new(KernelFault(first))));
        }
    }

    /// Tells all peers of our failure, if there is one, including those that the failed call did not involve.
    fn notify_peers(&self) {
        if let Some(fault) = self.control.fault() {
            // Relaxed: the flag publishes nothing. A wait that it ends asks for the failure.
            let first = !self.failed.swap(true, Ordering::Relaxed);
            // Before the kernels of neighbours see it: those of this process then know the cause when they stop.
            self.tell_peers(&fault);
            self.poison(&fault, Poison::SET);
            if let (true, Some(file)) = (first, &self.dump) {
                flight_recorder::on_failure(file, self.rank);
            }
        }
    }

    /// Tells all ranks of our failure out of band, once. The kernels of other hosts do not see the poison at our edges, and
    /// who sees it does not see the error behind it.
    fn tell_peers(&self, fault: &Fault) {
        if self.peers_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut fault = *fault;
        let (ranks, text) = match self.failure() {
            Some(Error::Timeout { ranks, reason }) => (ranks, reason),
            Some(error) => {
                // A kernel that a neighbour has stopped knows only that; the cause knows who it was.
                if let Error::Kernel(cause) = &error {
                    fault = cause.0;
                }
                (Vec::new(), error.to_string())
            }
            None => (Vec::new(), String::new()),
        };
        if let Some(out_of_band) = self.out_of_band.get() {
            out_of_band.tell(&FaultNews { fault, ranks, text }.encode());
        }
    }
}

/// Whether this fault says less than the error behind it.
fn has_cause(fault: &Fault) -> bool {
    let kind = FaultKind::from_raw(fault.kind);
    matches!(kind, FaultKind::PeerLost | FaultKind::Aborted | FaultKind::Timeout)
}

/// What a rank tells the others of its failure.
pub(super) struct FaultNews {
    pub fault: Fault,
    /// The ranks to blame for a timeout.
    pub ranks: Vec<u32>,
    /// The error.
    pub text: String,
}

impl FaultNews {
    /// As many ranks and as much of the text as may be told.
    pub(super) fn encode(&self) -> Vec<u8> {
        let FaultNews { fault, ranks, text } = self;
        let ranks = &ranks[..ranks.len().min(MAX_RANKS)];
        let end = (0..=text.len().min(MAX_TEXT)).rev().find(|i| text.is_char_boundary(*i));
        let text = &text.as_bytes()[..end.unwrap_or(0)];
        let count = (ranks.len() as u32).to_le_bytes();
        let ranks = ranks.iter().flat_map(|rank| rank.to_le_bytes());
        bytemuck::bytes_of(fault)
            .iter()
            .copied()
            .chain(count)
            .chain(ranks)
            .chain(text.iter().copied())
            .collect()
    }

    /// `None` for what is no news of a fault.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (fault, rest) = bytes.split_at_checked(size_of::<Fault>())?;
        let fault = bytemuck::try_pod_read_unaligned(fault).ok()?;
        let (count, rest) = rest.split_first_chunk()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (ranks, text) = rest.split_at_checked(count.checked_mul(4)?)?;
        let ranks = ranks.as_chunks().0.iter().map(|rank| u32::from_le_bytes(*rank)).collect();
        Some(FaultNews { fault, ranks, text: String::from_utf8_lossy(text).into_owned() })
    }
}

impl Drop for CommState {
    /// The last call has ended. Tells the neighbours that this rank leaves, so that a call of theirs that still waits for it
    /// fails. What was sent to them stays valid, because they hold the memory, too.
    fn drop(&mut self) {
        let seq = self.last_seq();
        let (fault, kind) = match self.control.fault() {
            Some(fault) => (fault, Poison::SET),
            None => {
                let fault = self.own_fault(FaultKind::PeerLost);
                (Fault { peer: self.rank, seq, ..fault }, Poison::LEFT)
            }
        };
        self.poison(&fault, kind);
        stall::unwatch();
        debug!(target: log::INIT, rank = self.rank, "communicator dropped");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::{EdgeEnd, FaultNews};
    use crate::comm::Communicator;
    use crate::{Device, Error};
    use ferroccl_bootstrap::Departure;
    use ferroccl_device::abi::{Fault, FaultKind, Poison, ReduceOp};

    /// Ranks 0 and 3 are cut off from each other. Rank 1 has heard that from rank 0; rank 2 sees only the fault that rank 1 leaves at
    /// its edges, and tells rank 3 of it.
    #[test]
    fn news_that_are_passed_on_name_the_ranks_that_lost_each_other() {
        let ranks = Communicator::init_all(&Device::cpu(), 4).unwrap();
        let lost = Fault { kind: FaultKind::PeerLost as u32, rank: 0, peer: 3, ..Fault::default() };
        let news = |fault| FaultNews { fault, ranks: Vec::new(), text: "lost".to_owned() }.encode();
        let states = [1, 3].map(|rank: usize| ranks[rank].0.clone());
        states[0].on_remote_fault(0, &news(lost));
        let left = states[0].control.fault().unwrap();
        assert_eq!((left.rank, left.peer), (0, 3));
        states[1].on_remote_fault(2, &news(left));
        let error = states[1].failure().unwrap();
        assert!(matches!(error, Error::PeerLost { rank: 3, peer: 0, .. }), "{error}");
    }

    /// Rank 2 has left its fault where rank 1 waits for its data, and not yet at the ring's edges. Rank 1, whose kernel stops, leaves that
    /// fault for rank 0, and not one of its own.
    #[test]
    fn a_kernel_passes_on_what_stopped_it_from_whatever_connection() {
        let device = Device::cpu();
        let ranks = Communicator::init_all(&device, 3).unwrap();
        let states = [0, 1, 2].map(|rank: usize| ranks[rank].0.clone());
        let (stream, buffer) = (device.stream().unwrap(), device.upload(&[1_f32]).unwrap());
        ranks[1].all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream).unwrap();
        let fault = states[2].own_fault(FaultKind::Aborted);
        let to_one = |end: &&EdgeEnd| end.peer == 1 && !end.receiving;
        let end = states[2].edge_ends().find(to_one).unwrap();
        end.poison(&fault, Poison::SET);
        let _ = stream.synchronize().unwrap_err();
        let left: Vec<_> = states[0].edge_ends().filter_map(EdgeEnd::peer_fault).collect();
        assert!(!left.is_empty());
        assert!(left.iter().all(|(fault, _)| fault.rank == 2), "{left:?}");
        assert_eq!(states[1].control.fault().map(|fault| fault.rank), Some(2));
    }

    /// A launch holds the lock on the order of calls while the driver's queue is full of kernels that wait for the peer.
    #[test]
    fn a_lost_peer_stops_kernels_while_a_launch_is_under_way() {
        let ranks = Communicator::init_all(&Device::cpu(), 2).unwrap();
        let state = ranks[0].0.clone();
        let order = state.order.lock().unwrap();
        let (told, news) = mpsc::channel();
        let watch = ranks[0].0.clone();
        let watch = thread::spawn(move || {
            watch.on_peer_lost(Departure::Lost { peer: 1, reason: "it has ended".to_owned() });
            told.send(()).unwrap();
        });
        let in_time = news.recv_timeout(Duration::from_secs(20));
        drop(order);
        watch.join().unwrap();
        in_time.expect("told before the launch is over");
        assert!(matches!(state.failure(), Some(Error::PeerLost { rank: 0, peer: 1, .. })));
    }
}

//! Giving up: what a waiting lane looks at now and then, and what it does when there is a reason to stop.
//!
//! Every wait has a copy of this code, more of it than of the wait itself, and none is ever in a hurry. The PTX tells its
//! source lines only as far as this file's functions go (see the library's `build.rs`).

use crate::abi::{Channel, Comm, Conn, EdgeHeader, Fault, FaultKind, Peer, Poison};
use crate::args::KernelArgs;
use crate::gpu::{self, SPINS_PER_CHECK, Waiting};
use crate::orders;
use crate::prims::conn_state::ConnState;
use crate::prims::{poison, signature};

/// What a kernel knows its communicator by.
pub(crate) trait HasComm: Copy {
    /// The communicator.
    fn comm(self) -> *const Comm;
    /// The number of the call; 0 where there is none.
    fn seq(self) -> u64;
    /// Whether the rank at the other end of a connection is in another call, as far as it has said so.
    ///
    /// # Safety
    /// The connection is valid as long as the call.
    unsafe fn call_differs(self, recv: *const Conn) -> bool;
}

impl HasComm for KernelArgs {
    #[inline(always)]
    fn comm(self) -> *const Comm {
        KernelArgs::comm(self)
    }
    #[inline(always)]
    fn seq(self) -> u64 {
        self.signature().seq
    }
    #[inline(always)]
    unsafe fn call_differs(self, recv: *const Conn) -> bool {
        // SAFETY: the caller's.
        unsafe { signature::call_differs(recv, self) }
    }
}

/// What has stopped a communicator, or may: its abort word, its fault, and what the neighbours of the ring have left.
#[derive(Clone, Copy)]
pub(crate) struct CommFaults<C> {
    args: C,
    /// Whether this block compares its call with the ring's previous rank's.
    compares: bool,
}

impl<C: HasComm> CommFaults<C> {
    /// # Safety
    /// The call's communicator is valid as long as the call.
    #[inline(always)]
    pub(crate) unsafe fn new(args: C, compares: bool) -> Self {
        CommFaults { args, compares }
    }

    /// Has `write` record a fault, unless there is one already, and stops the communicator's blocks. The
    /// cell is zero before.
    #[inline(always)]
    pub(crate) fn fail(self, write: impl FnOnce(*mut Fault)) {
        // SAFETY: the communicator's cells live as long as it does. The cell's `state` goes 0 -> 1 -> 2;
        // only who took it from 0 to 1 writes the fault. The release pairs with the acquire in `fault`.
        unsafe {
            let cell = (*self.args.comm()).fault as *mut crate::abi::FaultCell;
            if gpu::claim(orders::FAULT, &raw mut (*cell).state, 0, 1) == 0 {
                write(&raw mut (*cell).fault);
                gpu::release(orders::FAULT, &raw mut (*cell).state, 2);
            }
            gpu::release(orders::ABORT, (*self.args.comm()).abort as *mut u64, 1);
        }
    }

    /// Whether the host or another block has stopped the communicator.
    #[inline(always)]
    fn aborted(self) -> bool {
        // SAFETY: the word lives as long as the communicator.
        unsafe { gpu::acquire(orders::ABORT, (*self.args.comm()).abort as *const u64) != 0 }
    }

    /// Whether one of the ring's neighbours has left a fault at our edge to it.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    fn neighbour_failed(self) -> bool {
        let [previous, next] = self.ring_edges();
        // SAFETY: the headers of the edges live as long as the communicator. A rank alone has none.
        unsafe {
            !previous.is_null()
                && (gpu::acquire(orders::POISON, &raw const (*previous).from_sender.set)
                    == Poison::SET
                    || gpu::acquire(orders::POISON, &raw const (*next).from_receiver.set)
                        == Poison::SET)
        }
    }

    /// Whether the ring's previous rank is in another call, as far as it has said so and this block compares calls.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    fn call_differs(self) -> bool {
        // SAFETY: the communicator's channels and connections live as long as it does; who compares has a previous rank.
        unsafe {
            if !self.compares {
                return false;
            }
            let first = (*self.args.comm()).channels as *const Channel;
            let peers = (*first).peers as *const Peer;
            let previous = peers.wrapping_add((*first).prev as usize);
            self.args.call_differs(&raw const (*previous).recv)
        }
    }

    /// The edges from the previous rank of the ring, and to the next; null for a rank alone.
    #[inline(always)]
    fn ring_edges(self) -> [*mut EdgeHeader; 2] {
        // SAFETY: the communicator's channels and connections live as long as it does.
        unsafe {
            let first = (*self.args.comm()).channels as *const Channel;
            let peers = (*first).peers as *const Peer;
            [
                (*peers.wrapping_add((*first).prev as usize)).recv.edge as *mut EdgeHeader,
                (*peers.wrapping_add((*first).next as usize)).send.edge as *mut EdgeHeader,
            ]
        }
    }

    /// A call has stopped: takes over what stopped us, if that was another rank, unless there is a fault already (no call that has stopped
    /// is without one), and leaves it for both neighbours. So a fault goes around the ring, kernel to kernel, whatever connections a call
    /// uses; all others are told by the host. One lane of a block calls it.
    ///
    /// Other connections are looked at, too: a rank leaves its fault at one after the other, and that by which we have seen it may be the
    /// first.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    #[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
    pub(crate) fn pass_on(self) {
        let [previous, next] = self.ring_edges();
        // SAFETY: the headers of the edges live as long as the communicator; each side writes its own cell.
        unsafe {
            if !previous.is_null() {
                self.adopt(&raw const (*previous).from_sender);
                self.adopt(&raw const (*next).from_receiver);
            }
            let comm = self.args.comm();
            let peers = (*((*comm).channels as *const Channel)).peers as *const Peer;
            // A loop it stays: it is never in a hurry.
            for peer in 0..gpu::opaque((*comm).nranks as usize) {
                let peer = peers.wrapping_add(peer);
                let from = (*peer).recv.edge as *const EdgeHeader;
                let to = (*peer).send.edge as *const EdgeHeader;
                // A peer that there is no connection with has none.
                if !from.is_null() {
                    self.adopt(&raw const (*from).from_sender);
                }
                if !to.is_null() {
                    self.adopt(&raw const (*to).from_receiver);
                }
            }
            let rank = (*comm).rank;
            // A zeroed cell.
            self.fail(|to| {
                (*to).kind = FaultKind::Aborted as u32;
                (*to).rank = rank;
            });
            // Where another block is just writing it, that one passes it on, or the host.
            if let Some(fault) = self.fault()
                && !previous.is_null()
            {
                poison::leave(&raw mut (*previous).from_receiver, fault);
                poison::leave(&raw mut (*next).from_sender, fault);
            }
        }
    }

    /// Takes over what a neighbour has left, if it has.
    #[inline(always)]
    fn adopt(self, at: *const Poison) {
        // SAFETY: as in `neighbour_failed`; a set word means a written fault, which stays as it is.
        unsafe {
            if gpu::acquire(orders::POISON, &raw const (*at).set) == Poison::SET {
                self.fail(|to| poison::copy_fault(to, &(*at).fault));
            }
        }
    }

    /// The communicator's first fault, once it is recorded.
    #[inline(always)]
    #[must_use]
    fn fault<'c>(self) -> Option<&'c Fault> {
        // SAFETY: the cell lives as long as the communicator; state 2 was released after the fault, which
        // nobody changes from then on.
        unsafe {
            let cell = (*self.args.comm()).fault as *const crate::abi::FaultCell;
            (gpu::acquire(orders::FAULT, &raw const (*cell).state) == 2).then(|| &(*cell).fault)
        }
    }

    /// Writes a fault of this lane.
    ///
    /// # Safety
    /// `at` is ours to write, and zero.
    #[inline(always)]
    pub(crate) unsafe fn describe(self, at: *mut Fault, kind: FaultKind, waiting: &Waiting) {
        // SAFETY: the caller's; `new`'s contract.
        unsafe {
            (*at).kind = kind as u32;
            (*at).rank = waiting.rank;
            (*at).peer = waiting.peer;
            (*at).channel = waiting.channel;
            (*at).wait = waiting.kind as u32;
            (*at).step = waiting.step;
            (*at).seq = self.args.seq();
        }
    }
}

/// Why a waiting lane gives up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    None,
    /// The communicator is being stopped.
    Aborted,
    /// The neighbour has left its fault at the edge.
    Poisoned,
    /// The scheduler or the clock says so.
    Verdict(FaultKind),
}

/// The looks that a waiting lane takes around, now and then.
#[derive(Default)]
pub(crate) struct AbortCheck {
    spins: u32,
    started: u64,
}

impl AbortCheck {
    /// Why to give up, if there is a reason. `conn` is asked for when there is a closer look, which is rare; `None` where nobody else is
    /// waited for.
    #[inline(always)]
    pub(crate) fn look<C: HasComm>(
        &mut self,
        faults: CommFaults<C>,
        conn: impl FnOnce() -> Option<ConnState>,
        receiving: bool,
        verdict: gpu::Verdict,
    ) -> StopReason {
        if let Some(kind) = verdict {
            return StopReason::Verdict(kind);
        }
        self.spins += 1;
        if self.spins < SPINS_PER_CHECK {
            return StopReason::None;
        }
        self.spins = 0;
        self.look_around(faults, conn(), receiving)
    }

    #[inline(always)]
    fn look_around<C: HasComm>(
        &mut self,
        faults: CommFaults<C>,
        conn: Option<ConnState>,
        receiving: bool,
    ) -> StopReason {
        if faults.aborted() {
            return StopReason::Aborted;
        }
        // A failure of any neighbour, not only of the one waited for: its own wait may be for us.
        let poisoned = match conn {
            Some(conn) => conn.poisoned(receiving),
            None => false,
        };
        if poisoned || faults.neighbour_failed() || faults.call_differs() {
            return StopReason::Poisoned;
        }
        // SAFETY: the communicator lives as long as its kernels.
        let budget = unsafe { (*faults.args.comm()).timeout_ns };
        if budget != 0 {
            let now = gpu::globaltimer().max(1);
            if self.started == 0 {
                self.started = now;
            } else if now.saturating_sub(self.started) > budget {
                return StopReason::Verdict(FaultKind::Timeout);
            }
        }
        StopReason::None
    }
}

//! Signals: how a block tells another rank that something is there, and how that waits for it.

use super::{ANY, Coop, GroupComm};
use crate::abi::{PutRequest, WaitKind};
use crate::element::Element;
use crate::gpu;
use crate::orders;

impl<C: Coop> GroupComm<C> {
    /// Tells a rank once that everything this block has read and written so far is done: it waits for signal `index` of ours. Several
    /// blocks may send one; what each of them has written is there for who has waited for as many.
    ///
    /// ```text
    /// rank 0   x = 1 ── signal(1, s) ───┐
    /// rank 1            wait_signal(s, 1) ──┤ waits ├──► sees x
    /// ```
    ///
    /// To a rank on another node the signal goes over the network, behind all that this rank's blocks have asked for it before.
    ///
    /// `peer` may be this rank; `index` is below what the host has asked for.
    #[inline(always)]
    pub fn signal(&mut self, peer: u32, index: u32) {
        // What other lanes have written is before what lane 0 tells.
        C::sync();
        if self.lanes().0 == 0 && !self.reaches(peer) {
            self.request(PutRequest { kind: PutRequest::SIGNAL, peer, index, ..PutRequest::NONE });
        } else if self.lanes().0 == 0 && !self.stopped {
            let comm = self.comm;
            // SAFETY: `open`'s contract; only this rank's blocks write the word, and all of them by adding to it.
            unsafe {
                // Pairs with the acquire in `wait_for`.
                gpu::add_release(
                    orders::SIGNAL,
                    comm.word_of(peer, comm.sent(index, comm.rank)),
                    1,
                );
            }
        }
        C::together();
    }

    /// [`GroupComm::put`], then [`GroupComm::signal`].
    ///
    /// # Safety
    /// As [`GroupComm::put`]; `to` is memory of rank `peer`, which is of this rank's node.
    #[inline(always)]
    pub unsafe fn put_with_signal<T: Element>(
        &mut self,
        (peer, index): (u32, u32),
        to: *mut T,
        from: *const T,
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { self.put(to, from, n) };
        self.signal(peer, index);
    }

    /// Waits for `n` more signals `index`, of whatever ranks. `false` when that will not happen.
    ///
    /// ```text
    /// rank 1   ── signal(0, s) ─────┐
    /// rank 2   ── signal(0, s) ──┐  │
    /// rank 0   wait_signal(s, 2) ┤  ├──►     both count, in whatever order they come
    /// ```
    ///
    /// A signal is waited for in this way or by [`GroupComm::wait_signal_of`], not in both.
    #[inline(always)]
    pub fn wait_signal(&mut self, index: u32, n: u64) -> bool {
        self.wait_for(ANY, index, n)
    }

    /// Waits for `n` more signals `index` of rank `peer`. `false` when that will not happen.
    #[inline(always)]
    pub fn wait_signal_of(&mut self, peer: u32, index: u32, n: u64) -> bool {
        self.wait_for(peer, index, n)
    }

    #[inline(always)]
    fn wait_for(&mut self, peer: u32, index: u32, n: u64) -> bool {
        let comm = self.comm;
        let taken = if peer == ANY { comm.taken_of_any(index) } else { comm.taken(index, peer) };
        let taken = comm.word(taken);
        if self.lanes().0 == 0 {
            let (first, last) = if peer == ANY { (0, comm.ranks) } else { (peer, peer + 1) };
            // SAFETY: `open`'s contract: the words are there. How many were taken is this block's to know.
            unsafe {
                let wanted = gpu::ld_data(taken) + n;
                let by = *self;
                let there = self.wait(WaitKind::Signal, (peer, index), wanted, || {
                    let mut sum = 0;
                    let mut from = first;
                    while from < last {
                        sum += by.sent_by(index, from);
                        from += 1;
                    }
                    sum >= wanted
                });
                if there {
                    gpu::st_data(taken, wanted, size_of::<u64>());
                }
            }
        }
        self.stopped = C::sync_or(self.stopped);
        !self.stopped
    }

    /// How many signals `index` a rank has sent in all.
    ///
    /// # Safety
    /// `open`'s contract: the words are there.
    #[inline(always)]
    unsafe fn sent_by(&self, index: u32, from: u32) -> u64 {
        let comm = self.comm;
        let (order, word) = if self.reaches(from) {
            // Pairs with the release in `signal`.
            (orders::SIGNAL, comm.word(comm.sent(index, from)))
        } else {
            // Pairs with the release of the proxy.
            (orders::NETWORK_WORD, comm.network_word(comm.network_sent(index, from)))
        };
        // SAFETY: the caller's.
        unsafe { gpu::acquire(order, word) }
    }

    /// How many signals `index` are there, of all ranks, that this rank has not waited for: without waiting. What was written before them
    /// is there.
    #[inline(always)]
    #[must_use]
    pub fn signals_there(&self, index: u32) -> u64 {
        let comm = self.comm;
        // SAFETY: as in `wait_for`.
        unsafe {
            let mut sum = 0;
            let mut from = 0;
            while from < comm.ranks {
                sum += self.sent_by(index, from);
                from += 1;
            }
            sum - gpu::ld_data(comm.word(comm.taken_of_any(index)))
        }
    }
}

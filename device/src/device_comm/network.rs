//! Puts to any rank: by memory where that is reached, and else by a request to the proxy, which sends over the network.
//!
//! ```text
//! kernel                                      proxy                              proxy of the receiver          its kernel
//! number = numbered++
//! wait until done + requests > number  ◄──┐
//! write the request, release its number ──┼─► acquire, send header, data  ═══►   the data into the window
//!                                         └── release done: data is sent         release the signal's word ──►  acquire
//! ```
//!
//! What stands in a block's way is only the room for requests. A [flush](GroupComm::flush) waits for `done`.

use super::{ANY, Coop, GroupComm};
use crate::abi::{DeviceComm, DeviceWindow, PutRequest, WaitKind, WindowPeers};
use crate::element::Element;
use crate::gpu;
use crate::orders;

impl PutRequest {
    /// Nothing is asked for.
    pub(super) const NONE: PutRequest = PutRequest {
        number: 0,
        kind: 0,
        peer: 0,
        window: 0,
        offset: 0,
        bytes: 0,
        from: 0,
        from_offset: 0,
        index: 0,
        pad: 0,
    };
}

/// Something that a block has put: [`GroupComm::last_put`].
#[derive(Clone, Copy, Debug)]
pub struct LastPut(u64);

impl DeviceComm {
    /// A word that kernels and the proxy talk by.
    #[inline(always)]
    pub(super) fn network_word(self, index: usize) -> *mut u64 {
        (self.network as *mut u64).wrapping_add(index)
    }
}

impl DeviceWindow {
    /// [`DeviceWindow::peer`] of a rank whose memory is reached, and else `None`.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    #[must_use]
    pub unsafe fn try_peer<T>(self, rank: u32, offset: usize) -> Option<*mut T> {
        let table = (self.peers as *const WindowPeers).wrapping_add(1).cast::<u64>();
        // SAFETY: the caller's; the table follows, and nobody writes it.
        let distance = unsafe { *table.add(rank as usize) };
        let at = (self.address as *mut u8).wrapping_add(offset);
        (distance != WindowPeers::UNREACHED).then(|| at.wrapping_byte_add(distance as usize).cast())
    }
}

impl<C: Coop> GroupComm<C> {
    /// Whether this rank reaches the memory of another directly: it is of the same node. Itself, too.
    #[inline(always)]
    #[must_use]
    pub fn reaches(&self, rank: u32) -> bool {
        let table = (self.comm.peers as *const WindowPeers).wrapping_add(1).cast::<u64>();
        // SAFETY: `open`'s contract: the table has all ranks, and nobody writes it.
        self.comm.network == 0 || unsafe { *table.add(rank as usize) } != WindowPeers::UNREACHED
    }

    /// Copies `n` elements of a window of this rank to a window of any rank; of both how many bytes from their beginning. Where the rank's
    /// memory is reached that is [`GroupComm::put`]; else the proxy sends the elements over the network (NCCL's `ncclGin::put`).
    ///
    /// ```text
    /// rank 0   from [1 2 3] ──┐ proxy
    ///                         ╞═══════════╗  network
    /// rank 5                              ╚═► to [1 2 3]
    /// ```
    ///
    /// Over the network the elements are on their way when it returns. They may be overwritten behind a [`GroupComm::flush`]. They are
    /// there for who has waited for a [signal](GroupComm::signal) behind them: all that a rank's blocks ask for goes to another rank in
    /// the order in which it was asked for.
    ///
    /// # Safety
    /// All lanes call it with equal arguments. The values are of windows of this communicator, which have such elements and are there until
    /// the kernel has ended; the elements are aligned, and nobody else uses them meanwhile; the two places are apart.
    #[inline(always)]
    pub unsafe fn put_to<T: Element>(
        &mut self,
        peer: u32,
        to: (DeviceWindow, usize),
        from: (DeviceWindow, usize),
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { self.put_or_ask::<T>((peer, 0), to, from, n, PutRequest::DATA) }
    }

    /// [`GroupComm::put_to`], then [`GroupComm::signal`]: over a network in one request.
    ///
    /// ```text
    /// rank 0   from [1 2 3] ── put_to_with_signal((5, s), ..) ═════╗
    /// rank 5                                wait_signal_of(0, s, 1) ┤ waits ├──► sees to [1 2 3]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::put_to`].
    #[inline(always)]
    pub unsafe fn put_to_with_signal<T: Element>(
        &mut self,
        (peer, index): (u32, u32),
        to: (DeviceWindow, usize),
        from: (DeviceWindow, usize),
        n: usize,
    ) {
        let kind = PutRequest::DATA | PutRequest::SIGNAL;
        // SAFETY: the caller's.
        unsafe { self.put_or_ask::<T>((peer, index), to, from, n, kind) }
    }

    /// # Safety
    /// As [`GroupComm::put_to`].
    #[inline(always)]
    unsafe fn put_or_ask<T: Element>(
        &mut self,
        (peer, index): (u32, u32),
        (to, offset): (DeviceWindow, usize),
        (from, from_offset): (DeviceWindow, usize),
        n: usize,
        kind: u32,
    ) {
        let bytes = (n * size_of::<T>()) as u64;
        // What other lanes have written is before what a lane copies, or lane 0 asks for.
        C::sync();
        if self.reaches(peer) {
            let from = (from.address as *const T).wrapping_byte_add(from_offset);
            // SAFETY: the caller's.
            unsafe { self.put(to.peer::<T>(peer, offset), from, n) };
            if kind & PutRequest::SIGNAL != 0 {
                self.signal(peer, index);
            }
            return;
        }
        if self.lanes().0 == 0 {
            self.request(PutRequest {
                kind,
                peer,
                window: to.number,
                offset: offset as u64,
                bytes,
                from: from.number,
                from_offset: from_offset as u64,
                index,
                ..PutRequest::NONE
            });
        }
        C::together();
    }

    /// Stores a value in a window of any rank (NCCL's `ncclGin::putValue`): nothing has to be kept for it.
    ///
    /// ```text
    /// rank 0   value 7 ═══► rank 5: to [7]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::put_to`], without a source.
    #[inline(always)]
    pub unsafe fn put_value_to<T: Element>(
        &mut self,
        peer: u32,
        (to, offset): (DeviceWindow, usize),
        value: T,
    ) {
        const { assert!(size_of::<T>() <= size_of::<u64>()) };
        C::sync();
        if self.lanes().0 == 0 {
            if self.reaches(peer) {
                // SAFETY: the caller's.
                unsafe { gpu::st_data(to.peer::<T>(peer, offset), value, size_of::<T>()) };
            } else {
                let mut bits = 0_u64;
                // SAFETY: it fits, as asserted; the bytes of an element are all there.
                unsafe { (&raw mut bits).cast::<T>().write(value) };
                self.request(PutRequest {
                    kind: PutRequest::VALUE,
                    peer,
                    window: to.number,
                    offset: offset as u64,
                    bytes: size_of::<T>() as u64,
                    from_offset: bits,
                    ..PutRequest::NONE
                });
            }
        }
        C::together();
    }

    /// Waits until all that this block has asked the proxy for in this kernel is sent, so that what it has put may be overwritten
    /// (NCCL's `ncclGin::flush`). `false` when that will not happen.
    ///
    /// ```text
    /// rank 0   put_to(5, .., from) ── flush ┤ waits until from is sent ├──► from = ..
    /// ```
    ///
    /// It says nothing of when that arrives: a signal behind it does. What went by memory is done already.
    #[inline(always)]
    pub fn flush(&mut self) -> bool {
        self.wait_sent(self.last_put())
    }

    /// The last of what this block has put so far, to [wait](GroupComm::wait_sent) for: what NCCL's kernels have a counter for
    /// (`ncclGin_CounterInc`).
    #[inline(always)]
    #[must_use]
    pub fn last_put(&self) -> LastPut {
        LastPut(self.asked)
    }

    /// Whether what this block has put up to there is sent, so that it may be overwritten: without waiting. Lane 0 knows; for the others
    /// it is `true`.
    #[inline(always)]
    #[must_use]
    pub fn is_sent(&self, LastPut(asked): LastPut) -> bool {
        // SAFETY: `open`'s contract: where something was asked for, the word is there. Pairs with the release of the proxy.
        let done =
            || unsafe { gpu::acquire(orders::PUT_DONE, self.comm.network_word(DeviceComm::DONE)) };
        asked == 0 || done() >= asked
    }

    /// [`GroupComm::flush`] of what this block has put up to there, and not of what it has put since. `false` when that will not happen.
    ///
    /// ```text
    /// put_to(5, .., a) ── first = last_put() ── put_to(5, .., b) ── wait_sent(first) ┤ a is sent ├──► a = ..
    /// ```
    #[inline(always)]
    pub fn wait_sent(&mut self, LastPut(asked): LastPut) -> bool {
        let comm = self.comm;
        if comm.network != 0 && self.lanes().0 == 0 {
            let done = comm.network_word(DeviceComm::DONE);
            // SAFETY: `open`'s contract: the word is there.
            unsafe {
                // Pairs with the release of the proxy.
                self.wait(WaitKind::Flush, (ANY, 0), asked, || {
                    gpu::acquire(orders::PUT_DONE, done) >= asked
                });
            }
        }
        self.stopped = C::sync_or(self.stopped);
        !self.stopped
    }

    /// Asks the proxy, once there is room. One lane calls it.
    #[inline(always)]
    pub(super) fn request(&mut self, request: PutRequest) {
        if self.stopped {
            return;
        }
        let comm = self.comm;
        // SAFETY: `open`'s contract: the words are there. The place is this lane's alone: it has the number, and all that had the
        // place before are done.
        unsafe {
            let number = gpu::fetch_add(comm.word(comm.numbered()), 1);
            let done = comm.network_word(DeviceComm::DONE);
            let room = u64::from(comm.requests);
            // Pairs with the release of the proxy.
            let there = self.wait(WaitKind::Request, (ANY, request.index), number, || {
                gpu::acquire(orders::PUT_DONE, done) + room > number
            });
            if !there {
                return;
            }
            let at = comm.network_word(comm.request(number));
            let who = u64::from(request.kind) | u64::from(request.peer) << 32;
            gpu::st_guarded(at.wrapping_add(1), who);
            gpu::st_guarded(at.wrapping_add(2), request.window);
            gpu::st_guarded(at.wrapping_add(3), request.offset);
            gpu::st_guarded(at.wrapping_add(4), request.bytes);
            gpu::st_guarded(at.wrapping_add(5), request.from);
            gpu::st_guarded(at.wrapping_add(6), request.from_offset);
            gpu::st_guarded(at.wrapping_add(7), request.index.into());
            // Pairs with the acquire of the proxy.
            gpu::release(orders::PUT_REQUEST, at, number + 1);
            self.asked = number + 1;
        }
    }
}

//! One end of a connection during one call: the step it is at, and the memory both ends share.

use core::ptr;

use crate::abi::{
    Conn, ConnHeader, Fault, FaultKind, Poison, ProtocolId, SIGNATURES, Signature, WaitKind,
};
use crate::gpu::{self, Waiting};
use crate::prims::Context;
use crate::prims::context::copy_fault;

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    conn: *mut Conn,
    header: *mut ConnHeader,
    buffer: *mut u8,
    slot_bytes: u32,
    /// Slots.
    pub slots: u32,
    /// `step % slots`, kept so that nothing divides.
    index: u32,
    /// The next step.
    pub step: u64,
    offers: bool,
    /// Where direct data goes: the receiver's output. Null when it passes through slots.
    pub direct: *mut u8,
}

impl Edge {
    /// # Safety
    /// `conn` is valid and this block its only user.
    #[inline(always)]
    pub(crate) unsafe fn open(conn: *mut Conn, protocol: ProtocolId) -> Self {
        // SAFETY: the caller's.
        let c = unsafe { &*conn };
        Edge {
            conn,
            header: c.header as *mut ConnHeader,
            buffer: c.buffers[protocol as usize] as *mut u8,
            slot_bytes: c.slot_bytes[protocol as usize],
            slots: c.slots,
            index: (c.step % u64::from(c.slots)) as u32,
            step: c.step,
            offers: c.direct != 0,
            direct: ptr::null_mut(),
        }
    }

    /// Bytes of a slot.
    #[inline(always)]
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes as usize
    }

    /// The rank at the other end: asked for when something goes wrong, so not kept in a register.
    #[inline(always)]
    #[must_use]
    pub fn peer(&self) -> u32 {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).peer }
    }

    /// The slot of the current step.
    #[inline(always)]
    #[must_use]
    pub fn slot(&self) -> *mut u8 {
        self.buffer.wrapping_add(self.index as usize * self.slot_bytes())
    }

    /// On to the next step.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.step += 1;
        self.index = if self.index + 1 == self.slots { 0 } else { self.index + 1 };
    }

    /// Whether the receiver has consumed what is in the slot of the current step. The acquire pairs with
    /// the release in [`Edge::give_credit`]: the receiver's reads are over before we overwrite.
    #[inline(always)]
    #[must_use]
    pub fn has_credit(&self) -> bool {
        // SAFETY: the header outlives the kernel.
        unsafe {
            gpu::ld_acquire(&raw const (*self.header).head) + gpu::fresh(self.slots as usize) as u64
                > self.step
        }
    }

    /// The receiver's: the current step is consumed. Pairs with the acquire in [`Edge::has_credit`].
    #[inline(always)]
    pub fn give_credit(&self) {
        // SAFETY: as above; only the receiver writes the head.
        unsafe { gpu::st_release(&raw mut (*self.header).head, self.step + 1) }
    }

    /// Whether the sender has published the current step (Simple). The acquire pairs with the release in
    /// [`Edge::publish`]: the data is there before we read it.
    #[inline(always)]
    #[must_use]
    pub fn has_tail(&self) -> bool {
        // SAFETY: as above.
        unsafe { gpu::ld_acquire(&raw const (*self.header).tail) > self.step }
    }

    /// The sender's (Simple): the current step is in its slot. Pairs with the acquire in [`Edge::has_tail`].
    #[inline(always)]
    pub fn publish(&self) {
        // SAFETY: as above; only the sender writes the tail.
        unsafe { gpu::st_release(&raw mut (*self.header).tail, self.step + 1) }
    }

    /// Keeps the step for the next call.
    ///
    /// # Safety
    /// Called by one lane, at the end of a call.
    #[inline(always)]
    pub(crate) unsafe fn keep_step(&self) {
        // SAFETY: this block is the only user of the view.
        unsafe { (*self.conn).step = self.step }
    }

    /// Whether the other end has left a fault for us. `receiving`: we are the receiver. The acquire pairs
    /// with the release in [`leave`].
    #[inline(always)]
    #[must_use]
    pub fn poisoned(&self, receiving: bool) -> bool {
        // SAFETY: the header outlives the kernel.
        let set = unsafe { gpu::ld_acquire(&raw const (*self.left_for_us(receiving)).set) };
        set == Poison::SET || set == Poison::LEFT
    }

    /// What the other end has left for us.
    #[inline(always)]
    #[must_use]
    pub fn poison(&self, receiving: bool) -> Option<&Fault> {
        // SAFETY: as above; a set word means a written fault, which stays as it is.
        self.poisoned(receiving).then(|| unsafe { &(*self.left_for_us(receiving)).fault })
    }

    #[inline(always)]
    fn left_for_us(&self, receiving: bool) -> *const Poison {
        // SAFETY: the header is valid; only addresses are computed.
        unsafe {
            if receiving {
                &raw const (*self.header).from_sender
            } else {
                &raw const (*self.header).from_receiver
            }
        }
    }

    /// Leaves `fault` for the sender of this edge.
    ///
    /// # Safety
    /// We are its receiver; one lane calls it.
    #[inline(always)]
    pub(crate) unsafe fn poison_sender(&self, fault: &Fault) {
        // SAFETY: the caller's.
        unsafe { leave(&raw mut (*self.header).from_receiver, fault) }
    }

    /// Leaves `fault` for the receiver of this edge.
    ///
    /// # Safety
    /// We are its sender; one lane calls it.
    #[inline(always)]
    pub(crate) unsafe fn poison_receiver(&self, fault: &Fault) {
        // SAFETY: the caller's.
        unsafe { leave(&raw mut (*self.header).from_sender, fault) }
    }

    /// The sender's: the address that the receiver has offered.
    #[inline(always)]
    pub(crate) fn take_offer(&mut self) {
        if self.offers {
            // SAFETY: lane 0 saw the offer's seq (`exchange_offers`), and a barrier lies between.
            self.direct =
                unsafe { gpu::ld_acquire(&raw const (*self.header).offer.address) } as *mut u8;
        }
    }

    /// The receiver's: where its sender will write.
    #[inline(always)]
    pub(crate) fn take_own_offer(&mut self, output: *mut u8) {
        if self.offers {
            self.direct = output;
        }
    }
}

/// # Safety
/// `at` is writable, by this side of the edge.
#[inline(always)]
unsafe fn leave(at: *mut Poison, fault: &Fault) {
    // SAFETY: the caller's; who takes `set` from 0 writes the fault. The release pairs with the acquire
    // in `Edge::poisoned`.
    unsafe {
        if gpu::cas_acq_rel(&raw mut (*at).set, 0, Poison::BUSY) == 0 {
            copy_fault(&raw mut (*at).fault, fault);
            gpu::st_release(&raw mut (*at).set, Poison::SET);
        }
    }
}

/// Tells the receivers which call we are in, and compares with what our senders say.
///
/// # Safety
/// One lane calls it, when the edges are opened.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) unsafe fn exchange_signatures(cx: &mut Context, recv: &[Edge], send: &[Edge]) {
    // SAFETY: `open`'s contract; entries are written by the sender alone and only when the receiver
    // has read what was there. The edge counts its own calls: a channel is not part of every call.
    unsafe {
        let ours = (*cx.work()).signature;
        for edge in send {
            let header = edge.header;
            // Ours to write, so this is its last value.
            let n = gpu::ld_acquire(&raw const (*header).signature_tail);
            // Pairs with the release of the receiver below.
            let free =
                || gpu::ld_acquire(&raw const (*header).signature_ack) + SIGNATURES as u64 > n;
            if !cx.wait(edge, WaitKind::SignatureCredit, n, free) {
                return;
            }
            let entry = entry(header, n);
            gpu::st_relaxed(&raw mut (*entry).seq, ours.seq);
            gpu::st_relaxed(&raw mut (*entry).count, ours.count);
            gpu::st_relaxed(&raw mut (*entry).call, ours.call);
            gpu::st_relaxed(&raw mut (*entry).root, ours.root);
            // Pairs with the acquire of the receiver below.
            gpu::st_release(&raw mut (*header).signature_tail, n + 1);
        }
        for edge in recv {
            let header = edge.header;
            let n = gpu::ld_acquire(&raw const (*header).signature_ack);
            let there = || gpu::ld_acquire(&raw const (*header).signature_tail) > n;
            if !cx.wait(edge, WaitKind::Signature, n, there) {
                return;
            }
            let entry = entry(header, n);
            let theirs = Signature {
                seq: gpu::ld_acquire(&raw const (*entry).seq),
                count: gpu::ld_acquire(&raw const (*entry).count),
                call: gpu::ld_acquire(&raw const (*entry).call),
                root: gpu::ld_acquire(&raw const (*entry).root),
            };
            gpu::st_release(&raw mut (*header).signature_ack, n + 1);
            if theirs != ours {
                let waiting = Waiting {
                    kind: WaitKind::Signature,
                    rank: (*cx.comm()).rank,
                    peer: edge.peer(),
                    channel: cx.channel(),
                    step: edge.step,
                };
                let this = *cx;
                cx.fail(
                    #[inline(always)]
                    |at| {
                        this.describe(at, FaultKind::Mismatch, &waiting);
                        (*at).expected = ours.words();
                        (*at).found = theirs.words();
                    },
                );
                return;
            }
        }
    }
}

/// Offers our `output` (of the channel's part) to our senders, and waits for our receivers' offers.
///
/// An offer is not overwritten before it is read: a receiver's call cannot end without data that its
/// sender only sends once it has the offer.
///
/// # Safety
/// One lane calls it, after [`exchange_signatures`] and only when the call has elements.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) unsafe fn exchange_offers(cx: &mut Context, output: u64, recv: &[Edge], send: &[Edge]) {
    // SAFETY: `open`'s contract; only the receiver writes the offer.
    unsafe {
        for edge in recv {
            if !edge.offers || cx.stopped {
                continue;
            }
            gpu::st_relaxed(&raw mut (*edge.header).offer.address, output);
            // Pairs with the acquire below.
            gpu::st_release(&raw mut (*edge.header).offer.seq, edge.step + 1);
        }
        for edge in send {
            if !edge.offers {
                continue;
            }
            let header = edge.header;
            let there = || gpu::ld_acquire(&raw const (*header).offer.seq) == edge.step + 1;
            if !cx.wait(edge, WaitKind::Offer, edge.step, there) {
                return;
            }
        }
    }
}

/// The entry of the edge's call number `n`.
///
/// # Safety
/// `header` is valid.
#[inline(always)]
unsafe fn entry(header: *mut ConnHeader, n: u64) -> *mut Signature {
    // SAFETY: the caller's; the index is in range.
    unsafe {
        (&raw mut (*header).signatures).cast::<Signature>().add((n % SIGNATURES as u64) as usize)
    }
}

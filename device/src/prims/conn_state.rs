//! One end of a connection during one call: the step it is at, and the memory both ends share.

use core::ptr;

use crate::abi::{
    Conn, ConnHeader, EdgeHeader, Fault, FaultKind, Poison, ProtocolId, SIGNATURES, Signature,
    SignatureRing, WaitKind, fifo_entry,
};
use crate::gpu::{self, Waiting};
use crate::prims::Context;
use crate::prims::context::copy_fault;

/// One end of a connection. What stays as it is in a call is in the [`Conn`] and asked for there: several edges of it
/// all would fill the registers.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    conn: *mut Conn,
    protocol: ProtocolId,
    /// `step % slots`, kept so that nothing divides.
    index: u32,
    /// The next step.
    pub step: u64,
    /// Where direct data goes: the receiver's output. Null when it passes through slots.
    pub direct: *mut u8,
}

impl Edge {
    /// An edge that is missing.
    pub(crate) const NONE: Edge = Edge {
        conn: ptr::null_mut(),
        protocol: ProtocolId::Simple,
        index: 0,
        step: 0,
        direct: ptr::null_mut(),
    };

    /// # Safety
    /// `conn` is valid and this block its only user; it may be null if it is `optional`, and the edge is then not
    /// used.
    #[inline(always)]
    pub(crate) unsafe fn open(conn: *mut Conn, protocol: ProtocolId, optional: bool) -> Self {
        let mut edge = Edge { conn, protocol, index: 0, step: 0, direct: ptr::null_mut() };
        if !optional || !conn.is_null() {
            // SAFETY: the caller's.
            let c = unsafe { &*conn };
            edge.index = (c.step % u64::from(c.slots)) as u32;
            edge.step = c.step;
        }
        edge
    }

    #[inline(always)]
    fn header(&self) -> *mut ConnHeader {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).header as *mut ConnHeader }
    }

    /// Slots.
    #[inline(always)]
    #[must_use]
    pub fn slots(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.conn).slots }
    }

    /// Bytes of a slot.
    #[inline(always)]
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.conn).slot_bytes[self.protocol as usize] as usize }
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
        // SAFETY: the view of the connection is valid as long as the call.
        let buffer = unsafe { (*self.conn).buffers[self.protocol as usize] } as *mut u8;
        buffer.wrapping_add(self.index as usize * self.slot_bytes())
    }

    /// On to the next step.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.step += 1;
        self.index = if self.index + 1 == self.slots() { 0 } else { self.index + 1 };
    }

    /// Whether the receiver has consumed what is in the slot of the current step. The acquire pairs with
    /// the release in [`Edge::give_credit`]: the receiver's reads are over before we overwrite.
    #[inline(always)]
    #[must_use]
    pub fn has_credit(&self) -> bool {
        // SAFETY: the header outlives the kernel.
        unsafe {
            gpu::ld_acquire(&raw const (*self.header()).head) + u64::from(self.slots()) > self.step
        }
    }

    /// The receiver's: the current step is consumed. Pairs with the acquire in [`Edge::has_credit`].
    #[inline(always)]
    pub fn give_credit(&self) {
        // SAFETY: as above; only the receiver writes the head.
        unsafe { gpu::st_release(&raw mut (*self.header()).head, self.step + 1) }
    }

    /// Whether the sender has published the current step (Simple). The acquire pairs with the release in
    /// [`Edge::publish`]: the data is there before we read it.
    #[inline(always)]
    #[must_use]
    pub fn has_tail(&self) -> bool {
        // SAFETY: as above.
        unsafe { gpu::ld_acquire(&raw const (*self.header()).tail) > self.step }
    }

    /// The sender's (Simple): the current step is in its slot. Pairs with the acquire in [`Edge::has_tail`].
    #[inline(always)]
    pub fn publish(&self) {
        // SAFETY: as above; only the sender writes the tail.
        unsafe { gpu::st_release(&raw mut (*self.header()).tail, self.step + 1) }
    }

    /// The sender's: tells the proxy, where there is one, that the current step has these bytes of the slot. Before
    /// the data, or before [`Edge::publish`].
    #[inline(always)]
    pub(crate) fn announce(&self, bytes: usize) {
        // SAFETY: the view of the connection is valid as long as the call; a FIFO has an entry for each slot, which the
        // proxy only reads.
        unsafe {
            let fifo = (*self.conn).fifo as *mut u64;
            if !fifo.is_null() {
                let entry = fifo_entry(self.step, bytes as u32);
                gpu::st_relaxed(fifo.wrapping_add(self.index as usize), entry);
            }
        }
    }

    /// The receiver's: whether to wait for the tail before anything is read, whatever the protocol.
    #[inline(always)]
    pub(crate) fn gated(&self) -> bool {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).gated != 0 }
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

    #[inline(always)]
    fn left_for_us(&self, receiving: bool) -> *const Poison {
        let header = self.edge();
        // SAFETY: the header is valid; only addresses are computed.
        unsafe {
            if receiving {
                &raw const (*header).from_sender
            } else {
                &raw const (*header).from_receiver
            }
        }
    }

    /// The calls of this connection.
    #[inline(always)]
    pub(crate) fn calls(&self) -> *mut SignatureRing {
        // SAFETY: the header is valid; only an address is computed.
        unsafe { &raw mut (*self.header()).calls }
    }

    /// The calls of the edge, whatever the connection.
    #[inline(always)]
    fn roll(&self) -> *mut SignatureRing {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).roll as *mut SignatureRing }
    }

    /// The receiver's: says where the data of a call goes that begins with the current step.
    ///
    /// # Safety
    /// One lane calls it; `address` holds the call's output.
    #[inline(always)]
    pub(crate) unsafe fn offer(&self, address: u64) {
        // SAFETY: only the receiver writes the offer, and the sender has read an earlier one (`exchange_offers`).
        unsafe {
            gpu::st_relaxed(&raw mut (*self.header()).offer.address, address);
            // Pairs with the acquire in `has_offer`.
            gpu::st_release(&raw mut (*self.header()).offer.seq, self.step + 1);
        }
    }

    /// Whether the receiver has said where data goes from the current step on.
    #[inline(always)]
    #[must_use]
    pub(crate) fn has_offer(&self) -> bool {
        // SAFETY: the header outlives the kernel.
        unsafe { gpu::ld_acquire(&raw const (*self.header()).offer.seq) == self.step + 1 }
    }

    /// Whether receivers make offers here.
    #[inline(always)]
    #[must_use]
    pub(crate) fn offers(&self) -> bool {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).direct != 0 }
    }

    /// What all connections of the edge share: needed when something goes wrong, so not kept in a register.
    #[inline(always)]
    fn edge(&self) -> *mut EdgeHeader {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).edge as *mut EdgeHeader }
    }

    /// The sender's: the address that the receiver has offered.
    #[inline(always)]
    pub(crate) fn take_offer(&mut self) {
        if self.offers() {
            // SAFETY: lane 0 saw the offer's seq (`exchange_offers`), and a barrier lies between.
            self.direct =
                unsafe { gpu::ld_acquire(&raw const (*self.header()).offer.address) } as *mut u8;
        }
    }

    /// The receiver's: where its sender will write.
    #[inline(always)]
    pub(crate) fn take_own_offer(&mut self, output: *mut u8) {
        if self.offers() {
            self.direct = output;
        }
    }
}

/// # Safety
/// `at` is writable, by this side of the edge.
#[inline(always)]
pub(super) unsafe fn leave(at: *mut Poison, fault: &Fault) {
    // SAFETY: the caller's; who takes `set` from 0 writes the fault. The release pairs with the acquire
    // in `Edge::poisoned`.
    unsafe {
        if gpu::cas_acq_rel(&raw mut (*at).set, 0, Poison::BUSY) == 0 {
            copy_fault(&raw mut (*at).fault, fault);
            gpu::st_release(&raw mut (*at).set, Poison::SET);
        }
    }
}

/// Tells the receivers which call we are in, and compares with what our senders say. `roll`: in the place that
/// [`roll_call`] uses, as the edges are those of the ring.
///
/// # Safety
/// One lane calls it, when the edges are opened.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(never))]
pub(crate) unsafe fn exchange_signatures<const NR: usize, const NS: usize>(
    cx: &mut Context,
    (recv, send): (&[Edge; NR], &[Edge; NS]),
    (nr, ns): (usize, usize),
    roll: bool,
) {
    // SAFETY: `open`'s contract.
    unsafe {
        let ours = cx.call().signature();
        each!(NS, ns, i => {
            let edge = &send[i];
            let ring = if roll { edge.roll() } else { edge.calls() };
            if !tell(cx, edge, ring, &ours) {
                return;
            }
        });
        each!(NR, nr, i => {
            let edge = &recv[i];
            let ring = if roll { edge.roll() } else { edge.calls() };
            if !hear(cx, edge, ring, &ours) {
                return;
            }
        });
    }
}

/// [`exchange_signatures`] with the neighbours in the ring, apart from the connections. All collectives do so in one
/// place: ranks that are in different calls may wait on different connections, and only here do they learn of it.
///
/// # Safety
/// One lane of one block of the call calls it.
#[inline(always)]
pub(crate) unsafe fn roll_call(cx: &mut Context, recv: &Edge, send: &Edge) {
    // SAFETY: the caller's.
    unsafe {
        exchange_signatures(cx, (&[*recv], &[*send]), (1, 1), true);
    }
}

/// Whether there is room for a call's signature.
///
/// # Safety
/// `ring` is of an edge on which we send.
#[inline(always)]
pub(crate) unsafe fn can_tell(ring: *mut SignatureRing) -> bool {
    // SAFETY: the caller's. The tail is ours to write, so this is its last value; the ack pairs with the release in
    // `compare`.
    unsafe {
        gpu::ld_acquire(&raw const (*ring).ack) + SIGNATURES as u64
            > gpu::ld_acquire(&raw const (*ring).tail)
    }
}

/// Writes a call's signature, for which there is room.
///
/// # Safety
/// As [`can_tell`], which was true.
#[inline(always)]
pub(crate) unsafe fn write_signature(ring: *mut SignatureRing, ours: &Signature) {
    // SAFETY: the caller's; the entry has been read.
    unsafe {
        let n = gpu::ld_acquire(&raw const (*ring).tail);
        let entry = entry(ring, n);
        gpu::st_relaxed(&raw mut (*entry).seq, ours.seq);
        gpu::st_relaxed(&raw mut (*entry).count, ours.count);
        gpu::st_relaxed(&raw mut (*entry).call, ours.call);
        gpu::st_relaxed(&raw mut (*entry).root, ours.root);
        // Pairs with the acquire in `can_hear`.
        gpu::st_release(&raw mut (*ring).tail, n + 1);
    }
}

/// Whether the sender has said which call it is in.
///
/// # Safety
/// `ring` is of an edge on which we receive.
#[inline(always)]
pub(crate) unsafe fn can_hear(ring: *mut SignatureRing) -> bool {
    // SAFETY: the caller's. The ack is ours to write; the tail pairs with the release in `write_signature`.
    unsafe { gpu::ld_acquire(&raw const (*ring).tail) > gpu::ld_acquire(&raw const (*ring).ack) }
}

/// Compares the sender's call, which it has told, with ours; a difference is a fault.
///
/// # Safety
/// As [`can_hear`], which was true.
#[inline(always)]
pub(crate) unsafe fn compare(
    cx: &mut Context,
    edge: &Edge,
    ring: *mut SignatureRing,
    ours: &Signature,
) {
    // SAFETY: the caller's.
    unsafe {
        let n = gpu::ld_acquire(&raw const (*ring).ack);
        let entry = entry(ring, n);
        let theirs = Signature {
            seq: gpu::ld_acquire(&raw const (*entry).seq),
            count: gpu::ld_acquire(&raw const (*entry).count),
            call: gpu::ld_acquire(&raw const (*entry).call),
            root: gpu::ld_acquire(&raw const (*entry).root),
        };
        // Pairs with the acquire in `can_tell`.
        gpu::st_release(&raw mut (*ring).ack, n + 1);
        if theirs == *ours {
            return;
        }
        let waiting = Waiting {
            kind: WaitKind::Signature,
            rank: (*cx.comm()).rank,
            peer: edge.peer(),
            channel: cx.channel(),
            step: edge.step,
        };
        let (this, ours) = (*cx, *ours);
        cx.fail(
            #[inline(always)]
            |at| {
                this.describe(at, FaultKind::Mismatch, &waiting);
                (*at).expected = ours.words();
                (*at).found = theirs.words();
            },
        );
    }
}

/// Tells the receiver of an edge; `false` after a stop.
///
/// # Safety
/// As [`can_tell`].
#[inline(always)]
unsafe fn tell(cx: &mut Context, edge: &Edge, ring: *mut SignatureRing, ours: &Signature) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let n = gpu::ld_acquire(&raw const (*ring).tail);
        let there = cx.wait(edge, WaitKind::SignatureCredit, n, || can_tell(ring));
        if there {
            write_signature(ring, ours);
        }
        there
    }
}

/// Compares with the sender of an edge; `false` after a stop.
///
/// # Safety
/// As [`can_hear`].
#[inline(always)]
unsafe fn hear(cx: &mut Context, edge: &Edge, ring: *mut SignatureRing, ours: &Signature) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let n = gpu::ld_acquire(&raw const (*ring).ack);
        if cx.wait(edge, WaitKind::Signature, n, || can_hear(ring)) {
            compare(cx, edge, ring, ours);
        }
        !cx.stopped
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
pub(crate) unsafe fn exchange_offers<const NR: usize, const NS: usize>(
    cx: &mut Context,
    output: u64,
    (recv, send): (&[Edge; NR], &[Edge; NS]),
    (nr, ns): (usize, usize),
) {
    // SAFETY: `open`'s contract.
    unsafe {
        each!(NR, nr, i => {
            if recv[i].offers() && !cx.stopped {
                recv[i].offer(output);
            }
        });
        each!(NS, ns, i => {
            let edge = &send[i];
            if edge.offers() && !cx.wait(edge, WaitKind::Offer, edge.step, || edge.has_offer()) {
                return;
            }
        });
    }
}

/// Entry number `n`.
///
/// # Safety
/// `ring` is valid.
#[inline(always)]
unsafe fn entry(ring: *mut SignatureRing, n: u64) -> *mut Signature {
    // SAFETY: the caller's; the index is in range.
    unsafe { (&raw mut (*ring).entries).cast::<Signature>().add((n % SIGNATURES as u64) as usize) }
}

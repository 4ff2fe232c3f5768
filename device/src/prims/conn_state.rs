//! One end of a connection during one call: the step it is at, and the memory both ends share.

use core::ptr;

use crate::abi::{Conn, ConnHeader, EdgeHeader, Poison, ProtocolId, PtrExchange, fifo_entry};
use crate::gpu;
use crate::orders;

/// One end of a connection. What stays the same in a call is read from the [`Conn`] each time: kept for several connections, it
/// would fill the registers.
#[derive(Clone, Copy, Debug)]
pub struct ConnState {
    conn: *mut Conn,
    /// [`ProtocolId::index`].
    protocol: u32,
    /// `step % slots`, kept so that nothing divides.
    index: u32,
    /// The next step.
    pub step: u64,
    /// Where direct data goes: the receiver's output. Null when it passes through slots.
    pub direct: *mut u8,
}

impl ConnState {
    /// A connection that is missing.
    pub(crate) const NONE: ConnState = ConnState {
        conn: ptr::null_mut(),
        protocol: ProtocolId::Simple.index() as u32,
        index: 0,
        step: 0,
        direct: ptr::null_mut(),
    };

    /// An end whose connection is not used: to say whom a wait for a step of something else is for, and to look for its failure.
    ///
    /// # Safety
    /// `conn` is valid as long as the call.
    #[inline(always)]
    pub(crate) unsafe fn named(conn: *mut Conn, step: u64) -> Self {
        ConnState { conn, step, ..Self::NONE }
    }

    /// # Safety
    /// `conn` is valid and this block its only user; it may be null if it is `optional`, and the connection is then not
    /// used.
    #[inline(always)]
    pub(crate) unsafe fn open(conn: *mut Conn, protocol: ProtocolId, optional: bool) -> Self {
        let mut state = ConnState { conn, protocol: protocol.index() as u32, ..Self::NONE };
        if !optional || !conn.is_null() {
            // SAFETY: the caller's.
            let (step, slots) = unsafe { ((*conn).step, (*conn).slots) };
            state.index = (step % u64::from(slots)) as u32;
            state.step = step;
        }
        state
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

    /// The header in which the receiver writes to the sender.
    #[inline(always)]
    fn reply(&self) -> *mut ConnHeader {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).reply as *mut ConnHeader }
    }

    /// Whether the receiver has consumed what is in the slot of the current step. It looks only when the credit that it knows
    /// of is used up. One lane of a block asks. The acquire pairs with the release in [`ConnState::post_head`]: the
    /// receiver's reads are over before we overwrite.
    #[inline(always)]
    #[must_use]
    pub fn has_credit(&self) -> bool {
        // SAFETY: the header outlives the kernel; the credit is this lane's.
        unsafe {
            if (*self.conn).credit > self.step {
                return true;
            }
            let head = gpu::acquire(orders::HEAD, &raw const (*self.reply()).head);
            let credit = head + u64::from(self.slots());
            let enough = credit > self.step;
            if enough {
                (*self.conn).credit = credit;
            }
            enough
        }
    }

    /// The receiver's: the current step is consumed, of which all lanes know by a barrier. Pairs with the acquire in
    /// [`ConnState::has_credit`].
    ///
    /// A release waits for all that is under way, so the sender is told of half of the slots at a time: see
    /// [`ConnState::usable`]. In LL the store needs no release, and says each step: a line that has the right flag is read with
    /// it, and no lane comes here before it has. Over a network the proxy is told, which is another program.
    #[inline(always)]
    pub fn post_head(&self) {
        let next = self.index + 1;
        // SAFETY: as above; only the receiver writes the head.
        unsafe {
            let head = &raw mut (*self.reply()).head;
            let each_step = self.protocol == ProtocolId::Ll.index() as u32;
            if each_step && !self.wait_tail_first() {
                gpu::st_relaxed(head, self.step + 1);
            } else if each_step || next == self.slots() || next == self.slots() / 2 {
                gpu::release(orders::HEAD, head, self.step + 1);
            }
        }
    }

    /// Steps that a sender can always be ahead of what has been consumed: slots, less those that the receiver has consumed
    /// and not told of. In LL as well: the call before may have used another protocol.
    #[inline(always)]
    pub(crate) fn usable(&self) -> u32 {
        self.slots() / 2 + 1
    }

    /// Whether the sender has published the current step (Simple). The acquire pairs with the release in
    /// [`ConnState::post_tail`]: the data is there before we read it.
    #[inline(always)]
    #[must_use]
    pub fn has_tail(&self) -> bool {
        // SAFETY: as above.
        unsafe { gpu::acquire(orders::TAIL, &raw const (*self.header()).tail) > self.step }
    }

    /// The sender's (Simple): the current step is in its slot. Pairs with the acquire in [`ConnState::has_tail`].
    #[inline(always)]
    pub fn post_tail(&self) {
        // SAFETY: as above; only the sender writes the tail.
        unsafe { gpu::release(orders::TAIL, &raw mut (*self.header()).tail, self.step + 1) }
    }

    /// The sender's: whether a proxy sends what is in the slots, to a receiver on another host.
    #[inline(always)]
    #[must_use]
    pub fn has_proxy(&self) -> bool {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).fifo != 0 }
    }

    /// The sender's: tells the proxy, where there is one, that the current step has these bytes of the slot. Before
    /// the data, or before [`ConnState::post_tail`].
    #[inline(always)]
    pub fn post_fifo(&self, bytes: usize) {
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

    /// The receiver's: whether to wait for the tail before anything is read, whatever the protocol: a network may deliver a flag
    /// before its data.
    #[inline(always)]
    #[must_use]
    pub fn wait_tail_first(&self) -> bool {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).wait_tail_first != 0 }
    }

    /// Keeps the step for the next call. One lane calls it, at the end of a call.
    #[inline(always)]
    pub(crate) fn keep_step(&self) {
        // SAFETY: this block is the only user of the view.
        unsafe { (*self.conn).step = self.step }
    }

    /// Whether a call has stopped here in the middle of its steps.
    #[inline(always)]
    pub(crate) fn has_failed(&self) -> bool {
        // SAFETY: the view of the connection is valid as long as the call.
        unsafe { (*self.conn).failed != 0 }
    }

    /// The call stops: no later one uses the connection. One lane calls it.
    #[inline(always)]
    pub(crate) fn set_failed(&self) {
        // SAFETY: this block is the only user of the view.
        unsafe { (*self.conn).failed = 1 }
    }

    /// Whether the other end has left a fault for us. `receiving`: we are the receiver. The acquire pairs
    /// with the release in [`poison::leave`](super::poison::leave).
    #[inline(always)]
    #[must_use]
    pub fn poisoned(&self, receiving: bool) -> bool {
        // SAFETY: the header outlives the kernel.
        let set =
            unsafe { gpu::acquire(orders::POISON, &raw const (*self.left_for_us(receiving)).set) };
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

    #[inline(always)]
    fn offer(&self) -> *mut PtrExchange {
        // SAFETY: the header is valid; only an address is computed.
        unsafe { &raw mut (*self.reply()).ptr_exchange }
    }

    /// The receiver's: says where the data of a call goes that begins with the current step, and which call that is.
    ///
    /// # Safety
    /// One lane calls it; `address` holds the call's output.
    #[inline(always)]
    pub(crate) unsafe fn post_ptr(&self, address: u64, digest: u64) {
        // SAFETY: only the receiver writes the offer, and the sender has read an earlier one (`exchange_ptrs`).
        unsafe {
            gpu::st_guarded(&raw mut (*self.offer()).address, address);
            gpu::st_guarded(&raw mut (*self.offer()).digest, digest);
            // Pairs with the acquire in `has_ptr`.
            gpu::release(orders::PTR, &raw mut (*self.offer()).seq, self.step + 1);
        }
    }

    /// Whether the receiver has said where data goes from the current step on, in the same call.
    #[inline(always)]
    #[must_use]
    pub(crate) fn has_ptr(&self, digest: u64) -> bool {
        // SAFETY: the header outlives the kernel.
        unsafe {
            gpu::acquire(orders::PTR, &raw const (*self.offer()).seq) == self.step + 1
                && gpu::ld_guarded(&raw const (*self.offer()).digest) == digest
        }
    }

    /// Whether receivers make offers here.
    #[inline(always)]
    #[must_use]
    pub(crate) fn exchanges_ptrs(&self) -> bool {
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
    pub(crate) fn take_ptr(&mut self) {
        if self.exchanges_ptrs() {
            // SAFETY: lane 0 saw the offer's seq (`exchange_ptrs`), and a barrier lies between.
            self.direct = unsafe { gpu::ld_guarded(&raw const (*self.offer()).address) } as *mut u8;
        }
    }

    /// The receiver's: where its sender will write.
    #[inline(always)]
    pub(crate) fn take_own_ptr(&mut self, output: *mut u8) {
        if self.exchanges_ptrs() {
            self.direct = output;
        }
    }
}

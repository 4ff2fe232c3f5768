//! Data that goes straight into the receiver's output, over a connection that is not opened for that from the start.
//!
//! [`Prims::open`] exchanges one address with each neighbour, of the whole output, and waits for the neighbours' at once. Where a rank
//! has other data from each rank, and for each, it [offers](Placement::offer) places one by one, and waits for a peer's when it comes to
//! that peer.

use crate::element::Element;
use crate::prims::{ConnState, KernelContext, Prims, Protocol};
use crate::reduce::Reduction;

/// Which data of a call goes straight into outputs. Both ends of a connection have the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    /// Elements that a rank sends to another.
    pub(super) count: usize,
    /// Bytes from which they are placed, or of a slot, if that has less.
    pub(super) least_bytes: usize,
}

impl Placement {
    /// Whether data over a connection is placed.
    #[inline(always)]
    fn holds<T: Element, P: Protocol>(&self, conn: &ConnState) -> bool {
        P::DIRECT
            && conn.exchanges_ptrs()
            && self.count * size_of::<T>() >= self.least_bytes.min(conn.slot_bytes())
    }

    /// Whether data to a rank is placed.
    ///
    /// # Safety
    /// The connection is valid, and this block its only user.
    #[inline(always)]
    pub(super) unsafe fn holds_to<T: Element, P: Protocol>(
        &self,
        cx: &KernelContext,
        peer: u32,
    ) -> bool {
        // SAFETY: the caller's.
        P::DIRECT
            && self.holds::<T, P>(&unsafe { ConnState::open(cx.connections(peer).1, P::ID, false) })
    }

    /// The receiver's: says to its peer where the data goes, if it is placed.
    ///
    /// # Safety
    /// All lanes call it, once a call for a peer, before they send anything. `to` has room for the data. The peer calls
    /// [`Placement::find`].
    #[inline(always)]
    pub(super) unsafe fn offer<T: Element, P: Protocol>(
        &self,
        cx: &mut KernelContext,
        peer: u32,
        to: *mut T,
    ) {
        if cx.tid() != 0 {
            return;
        }
        // SAFETY: the caller's; one lane does it.
        unsafe {
            let conn = ConnState::open(cx.connections(peer).0, P::ID, false);
            cx.stopped |= conn.has_failed();
            if self.holds::<T, P>(&conn) && !cx.stopped {
                conn.post_ptr(to as u64, cx.args().digest());
            }
        }
    }

    /// The sender's, when it has opened the connection: where the data goes, if it is placed. The `first` time in a call this waits for
    /// the receiver.
    ///
    /// # Safety
    /// All lanes call it. The receiver calls [`Placement::offer`] in the same call.
    #[inline(always)]
    pub(super) unsafe fn find<T: Element, R: Reduction, P: Protocol>(
        &self,
        prims: &mut Prims<T, R, P, 0, 1>,
        first: bool,
    ) {
        if self.holds::<T, P>(&prims.send[0]) {
            // SAFETY: the caller's.
            unsafe { prims.take_offer(first) }
        }
    }

    /// The receiver's, when it has opened the connection: the data goes to `to`, if it is placed.
    #[inline(always)]
    pub(super) fn expect<T: Element, R: Reduction, P: Protocol>(
        &self,
        prims: &mut Prims<T, R, P, 1, 0>,
        to: *mut T,
    ) {
        if self.holds::<T, P>(&prims.recv[0]) {
            prims.recv[0].take_own_ptr(to.cast());
        }
    }
}

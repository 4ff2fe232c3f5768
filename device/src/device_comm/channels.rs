//! Channels: connections on which a block has the primitives that the library's own collectives are written in.
//!
//! ```text
//!             rank 0                          rank 1                          rank 2
//! channel 0   block 0 ══ slots ═════════════► block 0 ══ slots ═════════════► block 0 ══ ... back to rank 0
//! channel 1   block 1 ══ slots ═════════════► block 1 ══ slots ═════════════► block 1
//! ```
//!
//! The host makes them with the communicator (`DeviceCommConfig::channels`), in memory that both ends reach. A block of a kernel opens
//! connections of a channel by [`GroupComm::prims`], uses the verbs of [`Prims`], and closes them by [`GroupComm::close`]. The steps of
//! a connection go on from there, in the same kernel or in the next, with whatever protocol.
//!
//! Calls of the library are compared between ranks; what a user's kernels do on a channel is not. Where one rank sends more than the
//! other receives, a wait ends when its time is up, as one for a signal does.
//!
//! In NCCL that is `Primitives` (`src/device/primitives.h`), which its device API does not have.

use super::BlockComm;
#[cfg(doc)]
use super::GroupComm;
use crate::abi::{Channel, Comm, Conn, DeviceComm, FaultKind, NO_RANK, Peer, WaitKind, Work};
use crate::element::Element;
use crate::gpu::{self, Waiting};
use crate::prims::{KernelContext, Prims, Protocol};
use crate::reduce::{Reducer, Reduction};
use crate::unroll_peers;

/// A rank's place in the ring of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Its position, from 0.
    pub index: u32,
    /// The rank before it: it receives from that.
    pub prev: u32,
    /// The rank behind it: it sends to that.
    pub next: u32,
}

impl DeviceComm {
    /// The work that primitives ask.
    #[inline(always)]
    fn work(self) -> *const Work {
        (self.words as *const u8).wrapping_add(self.work_offset()).cast()
    }
}

impl BlockComm {
    /// Channels that it has. A block uses one at a time, and no other block of the rank the same.
    #[inline(always)]
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.comm.channels
    }

    /// A channel as the host has made it.
    ///
    /// # Safety
    /// [`DeviceComm::open`]'s; there is one more than there are channels, if there are none.
    #[inline(always)]
    unsafe fn channel(&self, channel: u32) -> *const Channel {
        // SAFETY: the caller's: the work names a communicator, and that its channels.
        unsafe {
            let comm = (*self.comm.work()).comm as *const Comm;
            ((*comm).channels as *const Channel).wrapping_add(channel as usize)
        }
    }

    /// This rank's place in the ring of a channel: of all ranks, as the communicator's topology has it. Channels may have different
    /// rings.
    ///
    /// ```text
    /// channel 0   ──► 0 ──► 1 ──► 3 ──► 2 ──►       rank 3: index 2, prev 1, next 2
    /// ```
    ///
    /// # Safety
    /// The channel is below [`GroupComm::channels`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn ring(&self, channel: u32) -> RingPlace {
        // SAFETY: the caller's.
        let at = unsafe { &*self.channel(channel) };
        RingPlace { index: at.index, prev: at.prev, next: at.next }
    }

    /// The rank at a position of the ring of a channel.
    ///
    /// # Safety
    /// The channel is below [`GroupComm::channels`], the position below [`GroupComm::ranks`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn ring_rank(&self, channel: u32, position: u32) -> u32 {
        // SAFETY: the caller's; the ring has all ranks.
        unsafe {
            let order = (*self.channel(channel)).order as *const u32;
            *order.wrapping_add(position as usize)
        }
    }

    /// Opens connections of a channel, those to receive from and those to send to: this block's until [`GroupComm::close`]. `from` and
    /// `to` are ranks. Of several, the last may be missing ([`NO_RANK`]). The verbs that take places in buffers
    /// ([`Prims::send`], [`Prims::recv`]) take them in `input` and `output`, which may be null where only verbs on any memory
    /// ([`Prims::send_from`], [`Prims::recv_into`]) are used. Verbs move a [chunk](Prims::chunk) of elements at most.
    ///
    /// ```text
    /// rank 0   send(at, n) ─────► slot s % slots ─────► recv_reduce_send(at, n)   rank 1
    ///                             slot s' % slots ◄────
    /// ```
    ///
    /// What other lanes of the block have written before a verb is there for it; what it receives is there for all lanes behind it. The
    /// reduction is one without a scalar: no average, no pre-multiplied sum. Data passes through slots: a direct verb does what the other
    /// does.
    ///
    /// Where the host has not asked for such a connection, or not in this protocol, the communicator fails with an error that says so,
    /// and verbs do nothing.
    ///
    /// # Safety
    /// All lanes call it with equal arguments, and then the same verbs. No other block of this rank uses the channel until it is closed.
    /// `input` and `output` have the elements that verbs are given, and nobody else uses them meanwhile.
    #[inline(always)]
    #[must_use]
    pub unsafe fn prims<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize>(
        &mut self,
        channel: u32,
        (from, to): ([u32; NR], [u32; NS]),
        (input, output): (*const T, *mut T),
    ) -> Prims<T, R, P, NR, NS> {
        // Where the channel was closed, its steps are kept before a lane opens it again.
        gpu::sync_threads();
        let known = channel < self.comm.channels;
        let channel_or_first = if known { channel } else { 0 };
        // SAFETY: the caller's; what the host has made is valid as long as the communicator. A connection that is not there has an
        // entry all the same, without memory, which no verb uses after a stop.
        unsafe {
            let mut cx = KernelContext::of_user(self.comm.work(), channel_or_first, self.stopped);
            let (mut recv, mut send) = ([core::ptr::null_mut(); NR], [core::ptr::null_mut(); NS]);
            let mut missing = if known { None } else { Some(NO_RANK) };
            unroll_peers!(NR, usize::MAX, i => {
                if NR == 1 || from[i] != NO_RANK {
                    let (peer, there) = self.peer_of(&cx, from[i]);
                    recv[i] = &raw mut (*peer).recv;
                    if !there || !has_slots(recv[i], P::ID.index()) {
                        missing = Some(from[i]);
                    }
                }
            });
            unroll_peers!(NS, usize::MAX, i => {
                if NS == 1 || to[i] != NO_RANK {
                    let (peer, there) = self.peer_of(&cx, to[i]);
                    send[i] = &raw mut (*peer).send;
                    if !there || !has_slots(send[i], P::ID.index()) {
                        missing = Some(to[i]);
                    }
                }
            });
            if let Some(peer) = missing
                && !self.stopped
            {
                self.refuse(&mut cx, (peer, channel), P::ID.index() as u64);
            }
            Prims::open_on(
                cx,
                (recv, send),
                #[inline(always)]
                || (Reducer::without_scalar(), input, output),
            )
        }
    }

    /// The entry of a rank in the context's channel, and whether there is such a rank; if not, it is this rank's, which has no
    /// connections.
    #[inline(always)]
    fn peer_of(&self, cx: &KernelContext, rank: u32) -> (*mut Peer, bool) {
        let there = rank < self.comm.ranks;
        (cx.peer(if there { rank } else { self.comm.rank }), there)
    }

    /// Fails the communicator: there is no such connection.
    #[inline(always)]
    fn refuse(&self, cx: &mut KernelContext, (peer, channel): (u32, u32), protocol: u64) {
        let rank = self.comm.rank;
        let waiting = Waiting { kind: WaitKind::None, rank, peer, channel, step: protocol };
        let this = *cx;
        cx.fail(
            #[inline(always)]
            // SAFETY: a zeroed cell.
            |at| unsafe { this.describe(at, FaultKind::NoConnection, &waiting) },
        );
    }

    /// Closes connections that [`GroupComm::prims`] has opened, behind the last verb: their steps are kept. `false` when a wait has
    /// failed, now and ever after.
    ///
    /// All lanes of the block call it.
    #[inline(always)]
    pub fn close<T: Element, R: Reduction, P: Protocol, const NR: usize, const NS: usize>(
        &mut self,
        prims: Prims<T, R, P, NR, NS>,
    ) -> bool {
        self.stopped |= !prims.close();
        !self.stopped
    }
}

/// Whether a connection has slots of a protocol.
///
/// # Safety
/// It is an entry of the host's table.
#[inline(always)]
unsafe fn has_slots(conn: *const Conn, protocol: usize) -> bool {
    // SAFETY: the caller's.
    unsafe { (*conn).buffers[protocol] != 0 }
}

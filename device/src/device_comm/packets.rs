//! Packets: data that says by itself that it is there, as the lines of LL do. One way, without a barrier or a signal behind it.
//!
//! ```text
//! 16 bytes   | data, low half | flag | data, high half | flag |      one store, one load
//! ```
//!
//! 8 bytes of data travel with a flag in each half of a line, which is stored and loaded at once ([`Ll`](crate::prims::Ll) rests on the
//! same). Whoever reads looks for the flag, and has the data with it. That takes twice the bytes, and the least time.
//!
//! NCCL's device API has such in `ncclLLA2ASession` (`nccl_device/ll_a2a.h`, 2.28), MSCCL++ in `putPackets` of its memory channels.

use super::{Coop, GroupComm};
use crate::abi::{DeviceWindow, WaitKind};
use crate::element::Element;
use crate::gpu;
use crate::prims::{load_elements, store_elements};

/// Bytes of data in a packet, and of a packet.
const DATA_BYTES: usize = 8;
const PACKET_BYTES: usize = 16;

/// Bytes that packets of so many bytes of data take in a window.
///
/// ```
/// use ferroccl_device::device_comm::packet_bytes;
///
/// assert_eq!([0, 1, 8, 9, 100].map(packet_bytes), [0, 16, 16, 32, 208]);
/// ```
#[must_use]
pub const fn packet_bytes(bytes: usize) -> usize {
    bytes.div_ceil(DATA_BYTES) * PACKET_BYTES
}

/// A packet's place.
#[inline(always)]
fn packet(first: *mut u64, i: usize) -> *mut u64 {
    first.wrapping_byte_add(i * PACKET_BYTES)
}

impl<C: Coop> GroupComm<C> {
    /// Stores `n` elements as packets in a window of a rank of this rank's node, `offset` bytes from its beginning. That rank has them by
    /// [`GroupComm::wait_packets`] with the same flag; nothing else is needed.
    ///
    /// ```text
    /// rank 0   put_packets(1, .., flag 5) ──► | 1 5 2 5 | 3 5 4 5 |
    /// rank 1                     wait_packets(0, .., flag 5) ┤ waits ├──► to [1 2 3 4]
    /// ```
    ///
    /// `flag` is one that is not in the place yet: memory that was filled with zeros takes 1, then 2, and so on. A place may be written
    /// again when its reader is known to have read it: a packet, a signal or a barrier that it has sent since says so. With two places that take turns
    /// and ranks that wait for each other's packets in each round, that is always so.
    ///
    /// # Safety
    /// All lanes call it with equal arguments. The value is of a window of this communicator that lives until the kernel has ended; it has
    /// [`packet_bytes`] of the elements from `offset` on, which with the window's address is a multiple of 16; nobody else writes there
    /// meanwhile. The elements are readable and aligned.
    #[inline(always)]
    pub unsafe fn put_packets<T: Element>(
        &self,
        peer: u32,
        (to, offset): (DeviceWindow, usize),
        from: *const T,
        n: usize,
        flag: u32,
    ) {
        // What other lanes have written is before what a lane sends.
        C::sync();
        let each = DATA_BYTES / size_of::<T>();
        let packets = n.div_ceil(each);
        let flag = u64::from(flag) << 32;
        let (mut i, lanes) = self.lanes();
        // SAFETY: the caller's; a lane has packets of its own.
        unsafe {
            let to = to.peer::<u64>(peer, offset);
            while i < packets {
                let data = load_elements(from.wrapping_add(i * each), n - i * each);
                gpu::st_halves(packet(to, i), [data & 0xffff_ffff | flag, data >> 32 | flag]);
                i += lanes;
            }
        }
        C::together();
    }

    /// Waits for `n` elements that rank `peer` stores as packets with this flag in a window of this rank, `offset` bytes from its beginning,
    /// and copies them to `to`. `false` when they will not come.
    ///
    /// # Safety
    /// As [`GroupComm::put_packets`], of this rank's window; `to` is writable and aligned, and nobody else uses it meanwhile.
    #[inline(always)]
    pub unsafe fn wait_packets<T: Element>(
        &mut self,
        peer: u32,
        (from, offset): (DeviceWindow, usize),
        to: *mut T,
        n: usize,
        flag: u32,
    ) -> bool {
        let each = DATA_BYTES / size_of::<T>();
        let packets = n.div_ceil(each);
        let first = (from.address as *mut u64).wrapping_byte_add(offset);
        let (mut i, lanes) = self.lanes();
        while i < packets {
            let at = packet(first, i);
            let mut halves = [0; 2];
            // SAFETY: the caller's; a lane has elements of its own.
            unsafe {
                let there = self.wait(WaitKind::LlFlag, (peer, 0), flag.into(), || {
                    halves = gpu::ld_halves(at);
                    let right = |half: u64| (half >> 32) as u32 == flag;
                    right(halves[0]) & right(halves[1])
                });
                if !there {
                    break;
                }
                let data = halves[0] & 0xffff_ffff | halves[1] << 32;
                store_elements(to.wrapping_add(i * each), data, n - i * each);
            }
            i += lanes;
        }
        self.stopped = C::sync_or(self.stopped);
        !self.stopped
    }
}

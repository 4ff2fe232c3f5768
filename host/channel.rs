//! The memory of an edge, and the channels a kernel sees.
//!
//! All channels of an edge (one rank to the next) share one region, which the receiver makes and the
//! sender maps. Both compute the same layout from the same numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use ferroccl_device::abi::{Conn, ConnHeader, Fault, Poison};

use crate::transport::Region;

/// Slots and their sizes: equal on all ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ConnLayout {
    /// Slots of a buffer, at least 2.
    pub slots: u32,
    /// Bytes of one slot, by protocol; multiples of 256.
    pub slot_bytes: [u32; 3],
}

impl ConnLayout {
    /// Bytes of one channel of an edge.
    pub(crate) fn channel_bytes(&self) -> usize {
        let buffers: usize =
            self.slot_bytes.iter().map(|&b| b as usize * self.slots as usize).sum();
        (size_of::<ConnHeader>() + buffers).next_multiple_of(4096)
    }

    /// One end's view of a channel of the edge in `region`.
    fn conn(&self, region: &Region, channel: usize, peer: u32, direct: bool, step: u64) -> Conn {
        let header = region.address() + (channel * self.channel_bytes()) as u64;
        let mut buffers = [0; 3];
        let mut at = header + size_of::<ConnHeader>() as u64;
        for (buffer, &bytes) in buffers.iter_mut().zip(&self.slot_bytes) {
            *buffer = at;
            at += u64::from(bytes) * u64::from(self.slots);
        }
        Conn {
            header,
            buffers,
            slot_bytes: self.slot_bytes,
            slots: self.slots,
            peer,
            direct: direct.into(),
            step,
        }
    }
}

/// One end of an edge.
#[derive(Debug)]
pub(crate) struct EdgeEnd {
    /// The memory that both ends share.
    pub region: Region,
    /// The rank at the other end.
    pub peer: u32,
    /// Whether the sender reaches the receiver's buffers.
    pub direct: bool,
    /// Whether we are the receiver.
    pub receiving: bool,
}

impl EdgeEnd {
    /// The kernel's view of a channel.
    pub(crate) fn conn(&self, layout: &ConnLayout, channel: usize, first_step: u64) -> Conn {
        let conn = layout.conn(&self.region, channel, self.peer, self.direct, first_step);
        if first_step != 0 && self.receiving {
            // SAFETY: the region is ours until the sender is told; both counters start where the steps do.
            unsafe {
                let header = conn.header as *mut ConnHeader;
                AtomicU64::from_ptr(&raw mut (*header).tail).store(first_step, Ordering::Relaxed);
                AtomicU64::from_ptr(&raw mut (*header).head).store(first_step, Ordering::Relaxed);
            }
        }
        conn
    }

    /// Leaves `fault` for the other end, on every channel; the first one stays. `kind` is
    /// [`Poison::SET`] or [`Poison::LEFT`].
    pub(crate) fn poison(&self, layout: &ConnLayout, channels: usize, fault: &Fault, kind: u64) {
        for channel in 0..channels {
            let header = layout.conn(&self.region, channel, self.peer, self.direct, 0).header
                as *mut ConnHeader;
            // SAFETY: the region lives as long as `self`. A kernel of ours may write the same cell: it
            // takes it by the same word, 0 -> BUSY -> 1, so only one of us writes the fault.
            unsafe {
                let at: *mut Poison = if self.receiving {
                    &raw mut (*header).from_receiver
                } else {
                    &raw mut (*header).from_sender
                };
                let set = AtomicU64::from_ptr(&raw mut (*at).set);
                if set
                    .compare_exchange(0, Poison::BUSY, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                {
                    (*at).fault = *fault;
                    // Pairs with the acquire of `Edge::poisoned`.
                    set.store(kind, Ordering::Release);
                }
            }
        }
    }
}

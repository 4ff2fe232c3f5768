//! The step FIFO: what a kernel tells the proxy of a step that leaves the host.
//!
//! A connection whose other end is on another host has memory at both, and the proxies carry what is in it over the
//! network. For each slot there is an entry, which the sending kernel writes once it has credit for a step: which step it
//! is, and how many bytes of the slot it will have. When those are there the proxy knows as a receiver would: by the tail,
//! or by the flag of each line.
//!
//! ```text
//! kernel                             sender's proxy             receiver's proxy         kernel
//! credit, FIFO entry, data, tail ─►  isend the slot  ═network═► irecv into the slot  ─►  tail, data
//!                 head = step + 1 ◄─ sent                       post the next slot   ◄─  head = step + 1
//! ```
//!
//! The FIFO plays the part of NCCL's `ncclConnFifo` (`device.h`).

/// The entry of a step: 32 bits of `2 step + 1`, as LL's flag, above the bytes. Written at once, so that it speaks for
/// itself; memory starts as zeros, which is the entry of no step.
#[inline(always)]
#[must_use]
pub const fn fifo_entry(step: u64, bytes: u32) -> u64 {
    (step << 1 | 1) << 32 | bytes as u64
}

/// The bytes of a step, if the entry is that of this step.
///
/// ```
/// use ferroccl_device::abi::{fifo_bytes, fifo_entry};
///
/// let entry = fifo_entry(7, 4096);
/// assert_eq!(fifo_bytes(entry, 7), Some(4096));
/// assert_eq!(fifo_bytes(entry, 15), None);
/// assert_eq!(fifo_bytes(0, u64::MAX / 2), None);
/// ```
#[must_use]
pub const fn fifo_bytes(entry: u64, step: u64) -> Option<u32> {
    if (entry >> 32) as u32 == (step << 1 | 1) as u32 { Some(entry as u32) } else { None }
}

//! Poison: a fault that a rank leaves at its edges, for its neighbours to find.
//!
//! A block that gives up leaves its communicator's fault in the [`EdgeHeader`](crate::abi::EdgeHeader)s of the ring's
//! neighbours, whose blocks look there while they wait. So a fault travels from kernel to kernel, without the hosts.

use crate::abi::{Fault, Poison};
use crate::gpu;
use crate::orders;

/// Leaves a fault, unless one is there already.
///
/// # Safety
/// `at` is writable, by this side of the edge.
#[inline(always)]
pub(super) unsafe fn leave(at: *mut Poison, fault: &Fault) {
    // SAFETY: the caller's; who takes `set` from 0 writes the fault. The release pairs with the acquire
    // in `ConnState::poisoned`.
    unsafe {
        if gpu::claim(orders::POISON, &raw mut (*at).set, 0, Poison::BUSY) == 0 {
            copy_fault(&raw mut (*at).fault, fault);
            gpu::release(orders::POISON, &raw mut (*at).set, Poison::SET);
        }
    }
}

/// Copies a fault, word by word: a copy as a whole would be byte by byte, as the GPU has nothing longer
/// that is right for every alignment.
///
/// # Safety
/// `to` is writable.
#[inline(always)]
pub(super) unsafe fn copy_fault(to: *mut Fault, from: &Fault) {
    let from = (&raw const *from).cast::<u64>();
    // A loop it stays: there are many copies of it, and none is ever in a hurry.
    for i in 0..gpu::opaque(size_of::<Fault>() / 8) {
        // SAFETY: the caller's; a fault is words without padding.
        unsafe { gpu::st_guarded(to.cast::<u64>().add(i), gpu::ld_guarded(from.add(i))) }
    }
}

//! Memory of all ranks at one address: a switch's part is played by whoever loads and stores, rank by rank.

use super::{ld_data, st_data};
use crate::abi::WindowPeers;
use crate::arith::Unit;
use crate::element::{Array, Element};
use crate::reduce::Sum;

/// Whether this machine can.
pub(crate) const HAS_MULTICAST: bool = true;

/// Memory has one address.
#[inline(always)]
pub(crate) fn fence_aliases() {}

/// The same place in the buffers of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastAddress {
    peers: *const WindowPeers,
    nranks: usize,
    own: *mut u8,
}

impl MulticastAddress {
    /// Where `own`, in a buffer of this rank, is in those of all `nranks` ranks.
    ///
    /// # Safety
    /// `peers` is the table of the window that has the buffer, for so many ranks.
    #[inline(always)]
    pub(crate) unsafe fn of<T>(peers: *const WindowPeers, nranks: usize, own: *const T) -> Self {
        MulticastAddress { peers, nranks, own: own.cast_mut().cast() }
    }

    /// There is no address of all.
    #[inline(always)]
    pub(crate) fn pointer(self) -> Option<*mut u8> {
        None
    }

    /// So many bytes further.
    #[inline(always)]
    #[must_use]
    pub(crate) fn wrapping_add(self, bytes: usize) -> Self {
        MulticastAddress { own: self.own.wrapping_add(bytes), ..self }
    }

    /// The place in the memory of a rank.
    ///
    /// # Safety
    /// The contract of `of`; the rank is one of them.
    #[inline(always)]
    unsafe fn at(self, rank: usize) -> *mut [u64; 2] {
        // SAFETY: the caller's; the table follows.
        self.own.wrapping_add(unsafe { *self.peers.add(1).cast::<usize>().add(rank) }).cast()
    }
}

/// The sums of the 16 bytes of elements that all ranks have there, in the order of the ranks; of elements of 16 bits computed in
/// single precision and rounded once.
///
/// # Safety
/// It is readable in the memory of all ranks; nobody writes there meanwhile.
#[inline(always)]
pub(crate) unsafe fn ld_sum<T: Element>(from: MulticastAddress) -> [u64; 2] {
    // SAFETY: the caller's; a word of 8 bytes is what its units are made of, of which every pattern of bits is one.
    unsafe {
        let all = |rank| ld_data(from.at(rank)).map(|word| core::mem::transmute_copy(&word));
        let first: [T::Word; 2] = all(0);
        let sums = if T::Unit::WIDENS {
            let mut wide = first.map(T::Word::widen);
            for rank in 1..from.nranks {
                let [a, b] = all(rank);
                wide = [T::Word::gather::<Sum>(wide[0], a), T::Word::gather::<Sum>(wide[1], b)];
            }
            wide.map(T::Word::narrow)
        } else {
            (1..from.nranks).fold(first, |sums, rank| {
                let [a, b] = all(rank);
                [sums[0].zip::<Sum>(a), sums[1].zip::<Sum>(b)]
            })
        };
        sums.map(|word| core::mem::transmute_copy(&word))
    }
}

/// Stores 16 bytes in the memory of all ranks; `unit` is the size of what they are made of.
///
/// # Safety
/// It is writable in the memory of all ranks; nobody else touches it meanwhile.
#[inline(always)]
pub(crate) unsafe fn st_all(to: MulticastAddress, pack: [u64; 2], unit: usize) {
    for rank in 0..to.nranks {
        // SAFETY: the caller's.
        unsafe { st_data(to.at(rank), pack, unit) };
    }
}

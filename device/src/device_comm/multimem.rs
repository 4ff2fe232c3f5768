//! Windows by one address: where a switch joins the GPUs of all ranks, it stores to all of them, and sums what it loads from all
//! (`multimem`, PTX ISA 9.0, 9.7.9.14).
//!
//! ```text
//!                        ┌───────► rank 0  [1 2]
//! one address ── switch ─┼───────► rank 1  [3 4]       a load of the sum: [9 12]     a store: to all three
//!                        └───────► rank 2  [5 6]
//! ```
//!
//! What goes that way passes a rank's link once, and not once for each other rank. It is there for windows of
//! `Device::alloc_shared`, where GPUs and driver have multicast objects ([`GroupComm::multimem`] says so), in code for sm_90 and later. PTX
//! for older GPUs has none of the instructions. On the CPU whoever loads and stores goes from rank to rank.
//!
//! Sums are of [`F32`](DataType::F32), [`F16`](DataType::F16) and [`Bf16`](DataType::Bf16), those of 16 bits computed in single precision
//! and rounded once; in which order is up to the switch.
//!
//! The address is another of the same memory. Between stores by one of the two and loads by the other lies a fence, which the functions
//! for a block have in them (PTX ISA 9.0, 9.7.13.4, `fence.proxy.alias`; chapter 8, "Proxies").

use core::marker::PhantomData;

use super::{GroupComm, Warps};
#[cfg(doc)]
use crate::abi::DataType;
use crate::abi::{DeviceWindow, WindowPeers};
use crate::element::Element;
use crate::gpu::{self, MulticastAddress, PACK_BYTES};
use crate::peers::{Combined, spread_by_switch};
use crate::reduce::{Reducer, Sum};

/// The same place in the buffers of all ranks, by one address. Each lane uses it by itself.
#[derive(Clone, Copy, Debug)]
pub struct Multimem<T> {
    at: MulticastAddress,
    element: PhantomData<*mut T>,
}

impl<T: Element> Multimem<T> {
    /// The address, for `multimem` instructions alone. `None` on the CPU, where there is none.
    #[inline(always)]
    #[must_use]
    pub fn as_ptr(self) -> Option<*mut T> {
        self.at.pointer().map(<*mut u8>::cast)
    }

    /// The sums of pack number `pack` of all ranks: 16 bytes of elements.
    ///
    /// ```text
    /// rank 0   [1 2 3 4] ──┐
    /// rank 1   [1 1 1 1] ──┼─ switch ──► this lane: [4 5 6 7]
    /// rank 2   [2 2 2 2] ──┘
    /// ```
    ///
    /// # Safety
    /// The pack is in the buffers, at a multiple of 16 bytes, and nobody writes there meanwhile. What was stored by the ranks' own addresses
    /// is behind a [fence](fence_aliases).
    #[inline(always)]
    #[must_use]
    pub unsafe fn load_sum(self, pack: usize) -> [u64; 2] {
        // SAFETY: the caller's.
        unsafe { gpu::ld_sum::<T>(self.at.wrapping_add(pack * PACK_BYTES)) }
    }

    /// Stores 16 bytes of elements as pack number `pack` of all ranks.
    ///
    /// ```text
    /// this lane: [4 5 6 7] ── switch ─┬─► rank 0   [4 5 6 7]
    ///                                 ├─► rank 1   [4 5 6 7]
    ///                                 └─► rank 2   [4 5 6 7]
    /// ```
    ///
    /// # Safety
    /// As [`Multimem::load_sum`]; nobody else touches the elements meanwhile. Who loads them by the ranks' own addresses does so behind a
    /// [fence](fence_aliases) of this lane, and a barrier or a signal.
    #[inline(always)]
    pub unsafe fn store(self, pack: usize, value: [u64; 2]) {
        // SAFETY: the caller's.
        unsafe { gpu::st_all(self.at.wrapping_add(pack * PACK_BYTES), value, size_of::<T>()) }
    }
}

/// A fence between accesses by the ranks' own addresses and by that of all ranks: what comes before it is before what follows.
#[inline(always)]
pub fn fence_aliases() {
    gpu::fence_aliases();
}

impl DeviceWindow {
    /// The address that the same place has in the buffers of all ranks (NCCL's `ncclGetLsaMultimemPointer`), `offset` bytes from their
    /// beginning: for `multimem` instructions of the caller's own. `None` where the window has no multicast object, in code for GPUs
    /// before sm_90, and on the CPU.
    ///
    /// # Safety
    /// As [`DeviceWindow::peer`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn multimem_ptr<T>(self, offset: usize) -> Option<*mut T> {
        // SAFETY: the caller's. The number of ranks is of no use where there is an address.
        let at = unsafe { self.multicast(0, offset) };
        at.and_then(MulticastAddress::pointer).map(<*mut u8>::cast)
    }

    /// # Safety
    /// As [`DeviceWindow::peer`].
    #[inline(always)]
    unsafe fn multicast(self, ranks: u32, offset: usize) -> Option<MulticastAddress> {
        let peers = self.peers as *const WindowPeers;
        // SAFETY: the caller's; nobody writes the table.
        unsafe {
            if !gpu::HAS_MULTICAST || (*peers).multicast == 0 {
                return None;
            }
            let own = (self.address as *const u8).wrapping_add(offset);
            Some(MulticastAddress::of(peers, ranks as usize, own))
        }
    }
}

impl<C: Warps> GroupComm<C> {
    /// A place in the buffers of all ranks by one address, `offset` bytes from their beginning. `None` where the window has no multicast
    /// object, and in code for GPUs before sm_90.
    ///
    /// # Safety
    /// The value is of a window of this communicator that lives until the kernel has ended.
    #[inline(always)]
    #[must_use]
    pub unsafe fn multimem<T: Element>(
        &self,
        window: DeviceWindow,
        offset: usize,
    ) -> Option<Multimem<T>> {
        // SAFETY: the caller's.
        let at = unsafe { window.multicast(self.comm.ranks, offset) };
        at.map(|at| Multimem { at, element: PhantomData })
    }

    /// [`GroupComm::reduce`] of sums by the switch; where there is none, as that.
    ///
    /// ```text
    /// rank 0   [1 2 3] ──┐
    /// rank 1   [4 5 6] ──┼─ switch ──► rank 1: to [12 15 18]
    /// rank 2   [7 8 9] ──┘
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::reduce`].
    #[inline(always)]
    pub unsafe fn multimem_sum<T: Element>(
        &self,
        window: DeviceWindow,
        offset: usize,
        to: *mut T,
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if self.multimem::<T>(window, offset).is_none() {
                return self.reduce::<T, Sum>(window, offset, to, n);
            }
            fence_aliases();
            let input = (window.address as *const T).wrapping_byte_add(offset);
            let peers = window.peers();
            let reducer = Reducer::without_scalar();
            let (from, output) = (peers, to);
            let side = self;
            Combined::<T, Sum, _, false> { side, reducer, from, to: peers, input, output }
                .by_switch(n);
        }
    }

    /// [`GroupComm::reduce_to_all`] of sums by the switch; where it does not reach both windows, as that.
    ///
    /// ```text
    /// rank 0   [1 . .] ──┐                            ┌─► [12 . .]
    /// rank 1   [4 . .] ──┼─ switch ─ rank 0 ─ switch ─┼─► [12 . .]     ranks 1 and 2 do the other parts
    /// rank 2   [7 . .] ──┘                            └─► [12 . .]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::reduce_to_all`].
    #[inline(always)]
    pub unsafe fn multimem_sum_to_all<T: Element>(
        &self,
        from: (DeviceWindow, usize),
        to: (DeviceWindow, usize),
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if self.multimem::<T>(from.0, from.1).is_none()
                || self.multimem::<T>(to.0, to.1).is_none()
            {
                return self.reduce_to_all::<T, Sum>(from, to, n);
            }
            fence_aliases();
            let input = (from.0.address as *const T).wrapping_byte_add(from.1);
            let output = (to.0.address as *mut T).wrapping_byte_add(to.1);
            let (from, to) = (from.0.peers(), to.0.peers());
            let (side, reducer) = (self, Reducer::without_scalar());
            Combined::<T, Sum, _, true> { side, reducer, from, to, input, output }.by_switch(n);
            fence_aliases();
        }
    }

    /// [`GroupComm::put_to_all`] by the switch; where there is none, as that.
    ///
    /// ```text
    /// rank 0   from [1 2 3] ── switch ─┬─► [1 2 3]
    /// rank 1                           ├─► [1 2 3]
    /// rank 2                           └─► [1 2 3]
    /// ```
    ///
    /// # Safety
    /// As [`GroupComm::put_to_all`].
    #[inline(always)]
    pub unsafe fn multimem_put_to_all<T: Element>(
        &self,
        window: DeviceWindow,
        offset: usize,
        from: *const T,
        n: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if self.multimem::<T>(window, offset).is_none() {
                return self.put_to_all(window, offset, from, n);
            }
            fence_aliases();
            let to = (window.address as *mut u8).wrapping_add(offset);
            spread_by_switch(self, window.peers(), (from.cast(), to), n * size_of::<T>());
            fence_aliases();
        }
    }
}

//! Memory of all ranks at one address: `multimem`, of sm_90 and PTX ISA 8.1, or 8.2 where it says `.acc::f32`. The crate
//! `ferroccl-build` has the module be of that version, as the comments ask.

use core::arch::asm;

use crate::abi::{DataType, WindowPeers};
use crate::element::Element;

/// The same place in the buffers of all ranks: an address of a multicast object, which only [`ld_sum`] and [`st_all`] access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MulticastAddress(usize);

impl MulticastAddress {
    /// Where `own`, in a buffer of this rank, is in those of all.
    ///
    /// # Safety
    /// `peers` is the table of the window that has the buffer, which has a multicast object.
    #[inline(always)]
    pub(crate) unsafe fn of<T>(peers: *const WindowPeers, _: usize, own: *const T) -> Self {
        // SAFETY: the caller's.
        MulticastAddress(own.addr().wrapping_add(unsafe { (*peers).multicast } as usize))
    }

    /// The address, for instructions of others.
    #[inline(always)]
    pub(crate) fn pointer(self) -> Option<*mut u8> {
        Some(self.0 as *mut u8)
    }

    /// So many bytes further.
    #[inline(always)]
    #[must_use]
    pub(crate) fn wrapping_add(self, bytes: usize) -> Self {
        MulticastAddress(self.0.wrapping_add(bytes))
    }
}

/// Whether the GPU that this is compiled for has the instructions.
pub(crate) const HAS_MULTICAST: bool = cfg!(target_feature = "sm_90");

/// Orders what was accessed by one address of some memory before what is accessed by another, where there are such.
#[inline(always)]
pub(crate) fn fence_aliases() {
    if HAS_MULTICAST {
        // SAFETY: orders memory, nothing else. 9.7.13.4, `fence.proxy`, of PTX ISA 7.5.
        unsafe { asm!("fence.proxy.alias;", options(nostack, preserves_flags)) }
    }
}

/// A load of four registers, combined of all ranks'. Relaxed, as [`ld_data`](super::ld_data) is by `ld.volatile`.
macro_rules! sum {
    ($version:literal $text:literal $from:ident) => {{
        let (a, b, c, d): (u32, u32, u32, u32);
        asm!(concat!("//@version ", $version), concat!("multimem.ld_reduce.relaxed.sys.global.add.", $text, " {{{}, {}, {}, {}}}, [{}];"),
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) $from.0,
            options(nostack, preserves_flags, readonly));
        [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
    }};
}

/// The sums of the 16 bytes of elements that all ranks have there; of elements of 16 bits computed in single precision and rounded
/// once. In which order is up to the switch.
///
/// # Safety
/// It is a multiple of 16, and readable in the memory of all ranks; nobody writes there meanwhile.
#[inline(always)]
pub(crate) unsafe fn ld_sum<T: Element>(from: MulticastAddress) -> [u64; 2] {
    const { assert!(matches!(T::TYPE, DataType::F32 | DataType::F16 | DataType::Bf16)) };
    // SAFETY: the caller's. 9.7.9.14, `multimem.ld_reduce`: vectors are of floats.
    unsafe {
        match T::TYPE {
            DataType::F32 => sum!("8.1" "v4.f32" from),
            DataType::F16 => sum!("8.2" "acc::f32.v4.f16x2" from),
            _ => sum!("8.2" "acc::f32.v4.bf16x2" from),
        }
    }
}

/// Stores 16 bytes in the memory of all ranks.
///
/// # Safety
/// It is a multiple of 16, and writable in the memory of all ranks; nobody else touches it meanwhile.
#[inline(always)]
pub(crate) unsafe fn st_all(to: MulticastAddress, [low, high]: [u64; 2], _unit: usize) {
    // SAFETY: the caller's. 9.7.9.14, `multimem.st`: the type of a vector says how many bits are moved, as they are.
    unsafe {
        asm!("//@version 8.1", "multimem.st.global.v4.f32 [{}], {{{}, {}, {}, {}}};", in(reg64) to.0,
            in(reg32) low as u32, in(reg32) (low >> 32) as u32, in(reg32) high as u32,
            in(reg32) (high >> 32) as u32, options(nostack, preserves_flags));
    }
}

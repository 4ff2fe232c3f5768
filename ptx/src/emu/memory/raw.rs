//! Memory of the process, as kernels touch it: each access is atomic, as it is on a GPU up to 8 bytes.

#![allow(
    clippy::useless_conversion,
    reason = "the macro is for words of every size, of which one is a u64"
)]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

macro_rules! by_size {
    ($address:expr, $bytes:expr, |$word:ident: $ty:ident| $body:expr) => {
        match $bytes {
            1 => by_size!(@ $address, AtomicU8, u8, $word, $ty, $body),
            2 => by_size!(@ $address, AtomicU16, u16, $word, $ty, $body),
            4 => by_size!(@ $address, AtomicU32, u32, $word, $ty, $body),
            _ => by_size!(@ $address, AtomicU64, u64, $word, $ty, $body),
        }
    };
    (@ $address:expr, $atomic:ty, $int:ty, $word:ident, $ty:ident, $body:expr) => {{
        #[allow(dead_code)]
        type $ty = $int;
        // SAFETY: the caller's: aligned memory of the process that stays mapped.
        let $word = unsafe { <$atomic>::from_ptr(std::ptr::with_exposed_provenance_mut($address as usize)) };
        $body
    }};
}

/// Loads 1, 2, 4 or 8 bytes.
///
/// # Safety
/// `address` is a multiple of `bytes` in memory of the process that stays readable meanwhile, and that others change
/// by atomic accesses alone.
#[inline(always)]
pub(crate) unsafe fn load(address: u64, bytes: u8, order: Ordering) -> u64 {
    by_size!(address, bytes, |word: T| u64::from(word.load(order)))
}

/// Stores the low 1, 2, 4 or 8 bytes of `value`.
///
/// # Safety
/// As [`load`], writable.
#[inline(always)]
pub(crate) unsafe fn store(address: u64, bytes: u8, value: u64, order: Ordering) {
    by_size!(address, bytes, |word: T| word.store(value as T, order));
}

/// Changes 1, 2, 4 or 8 bytes at once; returns what they were.
///
/// # Safety
/// As [`store`].
pub(crate) unsafe fn update(address: u64, bytes: u8, mut new: impl FnMut(u64) -> u64) -> u64 {
    by_size!(address, bytes, |word: T| {
        let mut old = word.load(Ordering::Relaxed);
        loop {
            let wanted = new(u64::from(old)) as T;
            match word.compare_exchange_weak(old, wanted, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break u64::from(old),
                Err(now) => old = now,
            }
        }
    })
}

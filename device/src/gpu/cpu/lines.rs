//! Lines of LL and LL128, and data.

use super::super::LINE_WORDS;
use super::{Access, Order, acquire, adversary, ld, release, st};
use crate::orders;

/// Loads both halves of an LL line: each has its data in the low 32 bits, its flag in the high ones, and is
/// from one moment.
///
/// # Safety
/// `p` points to a slot of a connection and is a multiple of 16.
#[inline(always)]
pub unsafe fn ld_halves(p: *const u64) -> [u64; 2] {
    // SAFETY: the caller's.
    unsafe { [ld_half(p), ld_half(p.add(1))] }
}

/// # Safety
/// `p` is aligned and in a slot of a connection.
#[inline(always)]
unsafe fn ld_half(p: *const u64) -> u64 {
    // Relaxed is enough: the data is in the same word as its flag.
    // SAFETY: the caller's.
    unsafe { ld(p, Access::Relaxed) }
}

/// Stores an LL line: both halves, each at once, in no order.
///
/// # Safety
/// `p` points to a slot of a connection and is a multiple of 16.
#[inline(always)]
pub unsafe fn st_halves(p: *mut u64, halves: [u64; 2]) {
    // SAFETY: the caller's.
    unsafe {
        st(p, halves[0], Order::Relaxed);
        st(p.add(1), halves[1], Order::Relaxed);
    }
}

/// Loads this lane's part of an LL128 line, whose flag was right: see [`ld_flag`].
///
/// # Safety
/// `p` points to this lane's part of a line in a slot of a connection; while its flag is set the sender does not touch
/// it (it waits for credit).
#[inline(always)]
pub unsafe fn ld_line(p: *const u64) -> [u64; LINE_WORDS] {
    let mut words = [0; LINE_WORDS];
    if let Some(a) = adversary() {
        a.before_load(p.cast(), 8 * (LINE_WORDS - 1), Access::Data);
    }
    // SAFETY: the caller's.
    unsafe { core::ptr::copy_nonoverlapping(p, words.as_mut_ptr(), LINE_WORDS - 1) };
    words
}

/// Loads the flag of an LL128 line. Pairs with the release in [`st_line`].
///
/// # Safety
/// `p` points to the last word of a line in a slot of a connection.
#[inline(always)]
pub unsafe fn ld_flag(p: *const u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { acquire(orders::LL128_FLAG, p) }
}

/// Stores this lane's part of an LL128 line, the flag (its last word) after the data.
///
/// # Safety
/// `p` points to this lane's part of a line in a slot of a connection that the receiver has released.
#[inline(always)]
pub unsafe fn st_line(p: *mut u64, words: [u64; LINE_WORDS]) {
    const LAST: usize = LINE_WORDS - 1;
    // SAFETY: the caller's; the receiver reads the data only after the flag.
    unsafe {
        if let Some(a) = adversary() {
            a.store(p.cast(), bytemuck::cast_slice(&words[..LAST]), 8, Order::Plain);
        } else {
            core::ptr::copy_nonoverlapping(words.as_ptr(), p, LAST);
        }
        release(orders::LL128_FLAG, p.add(LAST), words[LAST]);
    }
}

/// Loads a value of user data or of a slot.
///
/// # Safety
/// `p` is readable; nobody writes there meanwhile.
#[inline(always)]
pub unsafe fn ld_data<V: Copy>(p: *const V) -> V {
    if let Some(a) = adversary() {
        a.before_load(p.cast(), size_of::<V>(), Access::Data);
    }
    // SAFETY: the caller's; any alignment is fine.
    unsafe { p.read_unaligned() }
}

/// Stores a value of user data or of a slot; `unit` is the size of what it is made of.
///
/// # Safety
/// `p` is writable; nobody else touches it meanwhile; `V` has no padding.
#[inline(always)]
pub unsafe fn st_data<V: Copy>(p: *mut V, value: V, unit: usize) {
    if let Some(a) = adversary() {
        // SAFETY: the caller's; `value` lives on the stack.
        let bytes =
            unsafe { core::slice::from_raw_parts((&raw const value).cast(), size_of::<V>()) };
        // SAFETY: the caller's; buffers outlive the blocks of a call.
        return unsafe { a.store(p.cast(), bytes, unit, Order::Plain) };
    }
    // SAFETY: the caller's.
    unsafe { p.write_unaligned(value) }
}

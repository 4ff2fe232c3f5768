//! Lines of LL and LL128, and data.
//!
//! A vector access is to the memory model so many scalar ones in no order (8.2.2), each at once:
//! that is all LL needs. LL128 needs more, that a warp's 128 bytes arrive together, which the hardware
//! does (for one aligned store of 8 lanes, over NVLink and within a GPU) though no manual says so.

use core::arch::asm;

use super::super::LINE_WORDS;

/// # Safety
/// `p` is a multiple of 16 in readable global memory.
#[inline(always)]
unsafe fn ld_volatile_v2(p: *const u64) -> [u64; 2] {
    let (a, b);
    // SAFETY: the caller's. 9.7.9.8, `ld`: volatile is relaxed at system scope and never cached.
    unsafe {
        asm!("ld.volatile.global.v2.u64 {{{}, {}}}, [{}];", out(reg64) a, out(reg64) b,
            in(reg64) p, options(nostack, preserves_flags, readonly));
    }
    [a, b]
}

/// # Safety
/// `p` is a multiple of 16 in writable global memory.
#[inline(always)]
unsafe fn st_volatile_v2(p: *mut u64, [a, b]: [u64; 2]) {
    // SAFETY: the caller's. 9.7.9.11, `st`.
    unsafe {
        asm!("st.volatile.global.v2.u64 [{}], {{{}, {}}};", in(reg64) p, in(reg64) a,
            in(reg64) b, options(nostack, preserves_flags));
    }
}

/// Loads both halves of an LL line, in one access: each has its data in the low 32 bits, its flag in the
/// high ones, and is from one moment.
///
/// # Safety
/// `p` points to a slot of a connection and is a multiple of 16.
#[inline(always)]
pub unsafe fn ld_halves(p: *const u64) -> [u64; 2] {
    // SAFETY: the caller's.
    unsafe { ld_volatile_v2(p) }
}

/// Stores an LL line: both halves, each at once, in no order.
///
/// # Safety
/// `p` points to a slot of a connection and is a multiple of 16.
#[inline(always)]
pub unsafe fn st_halves(p: *mut u64, halves: [u64; 2]) {
    // SAFETY: the caller's.
    unsafe { st_volatile_v2(p, halves) }
}

/// Loads this lane's part of an LL128 line, whose flag was right: see [`ld_flag`].
///
/// # Safety
/// `p` points to this lane's part of a line in a slot of a connection.
#[inline(always)]
pub unsafe fn ld_line(p: *const u64) -> [u64; LINE_WORDS] {
    // SAFETY: the caller's.
    unsafe { ld_volatile_v2(p) }
}

/// Loads the flag of an LL128 line: once it is right, so is the rest for who loads it afterwards.
///
/// # Safety
/// `p` points to the last word of a line in a slot of a connection.
#[inline(always)]
pub unsafe fn ld_flag(p: *const u64) -> u64 {
    let flag;
    // SAFETY: the caller's. 9.7.9.8, `ld`: volatile is relaxed at system scope and never cached.
    unsafe {
        asm!("ld.volatile.global.u64 {}, [{}];", out(reg64) flag, in(reg64) p,
            options(nostack, preserves_flags, readonly));
    }
    flag
}

/// Stores this lane's part of an LL128 line. The line arrives at once: there is no last word.
///
/// # Safety
/// `p` points to this lane's part of a line in a slot of a connection that the receiver has released.
#[inline(always)]
pub unsafe fn st_line(p: *mut u64, words: [u64; LINE_WORDS]) {
    // SAFETY: the caller's.
    unsafe { st_volatile_v2(p, words) }
}

/// A scalar load or store of `$p`. Every agent reads slots only after a counter told it to, so plain
/// stores do; loads are volatile as data is read once and must not come from a stale L1 line.
macro_rules! scalar {
    (load $class:ident $ty:literal $p:ident) => {{
        let bits;
        asm!(concat!("ld.volatile.global.", $ty, " {}, [{}];"), out($class) bits,
            in(reg64) $p, options(nostack, preserves_flags, readonly));
        bits
    }};
    (store $class:ident $ty:literal $p:ident $bits:expr) => {
        asm!(concat!("st.global.", $ty, " [{}], {};"), in(reg64) $p, in($class) $bits,
            options(nostack, preserves_flags))
    };
}

/// Loads a value of 1, 2, 4, 8 or 16 bytes in one access.
///
/// # Safety
/// `p` is a multiple of its size in readable global memory; nobody writes there meanwhile; every
/// pattern of bits is a `V`.
#[inline(always)]
pub unsafe fn ld_data<V: Copy>(p: *const V) -> V {
    // SAFETY: the caller's; the value has the size of its bits. 9.7.9.8, `ld`: a byte loads into a
    // 16-bit register, which is then truncated.
    unsafe {
        match size_of::<V>() {
            1 => {
                let bits: u16 = scalar!(load reg16 "u8" p);
                core::mem::transmute_copy(&(bits as u8))
            }
            2 => {
                let bits: u16 = scalar!(load reg16 "u16" p);
                core::mem::transmute_copy(&bits)
            }
            4 => {
                let bits: u32 = scalar!(load reg32 "u32" p);
                core::mem::transmute_copy(&bits)
            }
            8 => {
                let bits: u64 = scalar!(load reg64 "u64" p);
                core::mem::transmute_copy(&bits)
            }
            _ => {
                const { assert!(size_of::<V>() <= 8 || size_of::<V>() == 16) };
                core::mem::transmute_copy(&ld_volatile_v2(p.cast()))
            }
        }
    }
}

/// Stores a value of 1, 2, 4, 8 or 16 bytes in one access, whatever the size of its pieces.
///
/// # Safety
/// `p` is a multiple of its size in writable global memory; nobody else touches it meanwhile; `V`
/// has no padding.
#[inline(always)]
pub unsafe fn st_data<V: Copy>(p: *mut V, value: V, _unit: usize) {
    // SAFETY: the caller's; the value has the size of its bits. 9.7.9.11, `st`.
    unsafe {
        match size_of::<V>() {
            1 => {
                scalar!(store reg16 "u8" p u16::from(core::mem::transmute_copy::<V, u8>(&value)))
            }
            2 => scalar!(store reg16 "u16" p core::mem::transmute_copy::<V, u16>(&value)),
            4 => scalar!(store reg32 "u32" p core::mem::transmute_copy::<V, u32>(&value)),
            8 => scalar!(store reg64 "u64" p core::mem::transmute_copy::<V, u64>(&value)),
            _ => {
                const { assert!(size_of::<V>() <= 8 || size_of::<V>() == 16) };
                let [a, b] = core::mem::transmute_copy::<V, [u64; 2]>(&value);
                asm!("st.global.v2.u64 [{}], {{{}, {}}};", in(reg64) p, in(reg64) a,
                    in(reg64) b, options(nostack, preserves_flags));
            }
        }
    }
}

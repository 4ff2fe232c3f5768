//! Whole buffers at a time, with the best vector units that this processor has, and 16-bit floats.
//!
//! The loops are ordinary Rust over slices; [`vectorized`] has the compiler make each of them for several
//! levels of the processor, and picks one at run time. Each loop stands once per type and operator, out of
//! line: a kernel calls it for kilobytes.

use core::sync::atomic::{AtomicUsize, Ordering};

use half::slice::HalfFloatSliceExt;

use super::{Bf16Unit, F16Unit, adversary};
use crate::element::{Arith, BinOp, Element, Unit};

/// Whether bulk data moves by [`mem_copy`] and its like, which work on whole buffers with the machine's
/// vector units. Under an adversary it moves pack by pack, each access for itself.
#[inline(always)]
#[must_use]
pub fn whole_buffers() -> bool {
    adversary().is_none()
}

/// `destination[i] = source[i]`.
///
/// # Safety
/// Both hold `n` elements; they are the same or do not overlap; nobody else touches them meanwhile.
#[inline(always)]
pub unsafe fn mem_copy<T>(destination: *mut T, source: *const T, n: usize) {
    if destination.cast_const() != source {
        // SAFETY: the caller's.
        unsafe { core::ptr::copy_nonoverlapping(source, destination, n) }
    }
}

/// `destination[i] = a[i] op b[i]`.
///
/// # Safety
/// All hold `n` elements and are aligned to one; `destination` may be `a`, and otherwise none overlap;
/// nobody else touches them meanwhile.
#[inline(never)]
pub unsafe fn mem_zip<T: Element, O: BinOp>(
    destination: *mut T,
    a: *const T,
    b: *const T,
    n: usize,
) {
    const { assert!(size_of::<T>() == size_of::<T::Unit>()) };
    // SAFETY: the caller's; here a unit is an element.
    unsafe {
        let b = core::slice::from_raw_parts(b.cast::<T::Unit>(), n);
        let to = core::slice::from_raw_parts_mut(destination.cast::<T::Unit>(), n);
        if destination.cast_const() == a {
            vectorized(
                #[inline(always)]
                || T::Unit::zip_onto::<O>(to, b),
            );
        } else {
            let a = core::slice::from_raw_parts(a.cast::<T::Unit>(), n);
            vectorized(
                #[inline(always)]
                || T::Unit::zip_into::<O>(to, a, b),
            );
        }
    }
}

/// `destination[i] = source[i] over divisor` ([`Unit::over`]).
///
/// # Safety
/// As [`mem_copy`], and aligned to an element.
#[inline(never)]
pub unsafe fn mem_over<T: Element>(
    destination: *mut T,
    source: *const T,
    divisor: <T::Unit as Unit>::Divisor,
    n: usize,
) {
    // SAFETY: the caller's; here a unit is an element.
    unsafe {
        mem_copy(destination, source, n);
        let to = core::slice::from_raw_parts_mut(destination.cast::<T::Unit>(), n);
        vectorized(
            #[inline(always)]
            || to.iter_mut().for_each(|x| *x = x.over(divisor)),
        );
    }
}

/// Runs `body` compiled for the best vector units that this processor has.
///
/// `body` must be inlined into the branch that runs it (closures and `#[inline(always)]` functions are),
/// so that it is compiled once for each level.
#[inline(always)]
fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi2")]
        fn avx512<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        fn avx2<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        match x86_level() {
            // SAFETY: `x86_level` found the features.
            2 => return unsafe { avx512(body) },
            // SAFETY: as above.
            1 => return unsafe { avx2(body) },
            _ => {}
        }
    }
    body()
}

/// 2: AVX-512, 1: AVX2, 0: what every x86-64 has. Asked of the processor once.
#[cfg(target_arch = "x86_64")]
#[inline]
fn x86_level() -> usize {
    static LEVEL: AtomicUsize = AtomicUsize::new(usize::MAX);
    let level = LEVEL.load(Ordering::Relaxed);
    if level != usize::MAX {
        return level;
    }
    let has = |all: &[bool]| all.iter().all(|&x| x);
    let avx2 = has(&[
        std::is_x86_feature_detected!("avx2"),
        std::is_x86_feature_detected!("fma"),
        std::is_x86_feature_detected!("f16c"),
        std::is_x86_feature_detected!("bmi2"),
    ]);
    let avx512 = has(&[
        std::is_x86_feature_detected!("avx512f"),
        std::is_x86_feature_detected!("avx512bw"),
        std::is_x86_feature_detected!("avx512vl"),
        std::is_x86_feature_detected!("avx512dq"),
    ]);
    let level = if avx2 && avx512 { 2 } else { usize::from(avx2) };
    LEVEL.store(level, Ordering::Relaxed);
    level
}

/// 16-bit floats are computed in f32 and rounded once: the same bits as hardware that adds halves, since
/// 24 bits of significand are more than 2 x 11 + 2 (Figueroa, "When is double rounding innocuous?").
macro_rules! half_unit {
    ($($t:ident via $h:ident;)*) => { $(
        impl $t {
            #[inline(always)]
            fn wide(self) -> f32 { half::$h::from_bits(self.0).to_f32() }
            #[inline(always)]
            fn narrow(value: f32) -> Self { $t(half::$h::from_f32(value).to_bits()) }
        }
        impl Arith for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { Self::narrow(self.wide() + other.wide()) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { Self::narrow(self.wide() * other.wide()) }
            #[inline(always)]
            fn min(self, other: Self) -> Self { Self::narrow(self.wide().min(other.wide())) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { Self::narrow(self.wide().max(other.wide())) }
        }
        impl Unit for $t {
            type Divisor = f32;
            #[inline(always)]
            fn divisor(n: u64) -> f32 { f32::divisor(n) }
            #[inline(always)]
            fn over(self, factor: f32) -> Self { Self::narrow(self.wide() * factor) }

            #[inline(always)]
            fn zip_into<O: BinOp>(to: &mut [Self], a: &[Self], b: &[Self]) {
                for ((to, a), b) in to.chunks_mut(WIDE).zip(a.chunks(WIDE)).zip(b.chunks(WIDE)) {
                    let (mut x, mut y) = ([0.0f32; WIDE], [0.0f32; WIDE]);
                    let (x, y) = (&mut x[..a.len()], &mut y[..b.len()]);
                    bytemuck::cast_slice::<_, half::$h>(a).convert_to_f32_slice(x);
                    bytemuck::cast_slice::<_, half::$h>(b).convert_to_f32_slice(y);
                    x.iter_mut().zip(&*y).for_each(|(x, y)| *x = O::apply(*x, *y));
                    bytemuck::cast_slice_mut::<_, half::$h>(to).convert_from_f32_slice(x);
                }
            }

            #[inline(always)]
            fn zip_onto<O: BinOp>(to: &mut [Self], b: &[Self]) {
                for (to, b) in to.chunks_mut(WIDE).zip(b.chunks(WIDE)) {
                    let mut a = [Self::default(); WIDE];
                    let a = &mut a[..to.len()];
                    a.copy_from_slice(to);
                    Self::zip_into::<O>(to, a, b);
                }
            }
        }
    )* };
}

/// Halves that are widened at a time: `half` converts slices with the processor's instructions, and a
/// few hundred stay in the L1 cache.
const WIDE: usize = 256;

half_unit! { F16Unit via f16; Bf16Unit via bf16; }

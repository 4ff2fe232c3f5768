//! Whole buffers at a time, with the best vector units that this processor has, and small floats.
//!
//! The loops are ordinary Rust over slices; [`vectorized`] has the compiler make each of them for several
//! levels of the processor, and picks one at run time. Each loop stands once per type and operator, out of
//! line: a kernel calls it for kilobytes.

use core::sync::atomic::{AtomicUsize, Ordering};

use half::slice::HalfFloatSliceExt;

use super::{Bf16Unit, F8E4M3Unit, F8E5M2Unit, F16Unit, adversary, max_f32, min_f32};
use crate::arith::{Arith, BinOp, Unit, no_division};

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
/// All hold `n` units and are aligned to one; `destination` may be `a`, and otherwise none overlap;
/// nobody else touches them meanwhile.
#[inline(never)]
pub unsafe fn mem_zip<U: Unit, O: BinOp>(destination: *mut U, a: *const U, b: *const U, n: usize) {
    // SAFETY: the caller's.
    unsafe {
        let b = core::slice::from_raw_parts(b, n);
        let to = core::slice::from_raw_parts_mut(destination, n);
        if destination.cast_const() == a {
            vectorized(
                #[inline(always)]
                || U::zip_onto::<O>(to, b),
            );
        } else {
            let a = core::slice::from_raw_parts(a, n);
            vectorized(
                #[inline(always)]
                || U::zip_into::<O>(to, a, b),
            );
        }
    }
}

/// `destination[i] = sources[0][i] op sources[1][i] op ...`, in [`Unit::Wide`], rounded once.
///
/// # Safety
/// As [`mem_zip`], for every source.
#[inline(never)]
pub unsafe fn mem_gather<U: Unit, O: BinOp>(destination: *mut U, sources: &[*const U], n: usize) {
    let Some((&first, more)) = sources.split_first().filter(|_| n > 0) else { return };
    // SAFETY: the caller's; any value will do to begin with.
    let mut units = [unsafe { first.read() }; WIDE];
    let mut sum = units.map(Unit::widen);
    let mut next = sum;
    for at in (0..n).step_by(WIDE) {
        let len = WIDE.min(n - at);
        let (units, sum, next) = (&mut units[..len], &mut sum[..len], &mut next[..len]);
        // SAFETY: the caller's; and `units` is nobody else's. All sources are read
        // before the destination, which may be one of them, is written.
        unsafe {
            core::ptr::copy_nonoverlapping(first.add(at), units.as_mut_ptr(), len);
            vectorized(
                #[inline(always)]
                || U::widen_into(sum, units),
            );
            for source in more {
                core::ptr::copy_nonoverlapping(source.add(at), units.as_mut_ptr(), len);
                vectorized(
                    #[inline(always)]
                    || {
                        U::widen_into(next, units);
                        sum.iter_mut().zip(&*next).for_each(|(sum, x)| *sum = O::apply(*sum, *x));
                    },
                );
            }
            vectorized(
                #[inline(always)]
                || U::narrow_into(units, sum),
            );
            core::ptr::copy_nonoverlapping(units.as_ptr(), destination.add(at), len);
        }
    }
}

/// `destination[i] = f(source[i])`.
///
/// # Safety
/// As [`mem_copy`], and aligned to an element.
#[inline(never)]
pub unsafe fn mem_map<U: Unit>(
    destination: *mut U,
    source: *const U,
    n: usize,
    f: impl Fn(U) -> U,
) {
    // SAFETY: the caller's.
    unsafe {
        mem_copy(destination, source, n);
        let to = core::slice::from_raw_parts_mut(destination, n);
        vectorized(
            #[inline(always)]
            || to.iter_mut().for_each(|x| *x = f(*x)),
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

/// [`Unit`] of what is computed in f32 and rounded once.
///
/// 16 and 8 bits give the same bits as hardware that adds and multiplies them, since f32's 24 bits of significand are more
/// than 2 x 11 + 2 (Figueroa, "When is double rounding innocuous?").
macro_rules! in_f32 {
    ($t:ident) => {
        impl Arith for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                Self::narrow(self.widen() + other.widen())
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                Self::narrow(self.widen() * other.widen())
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Self::narrow(min_f32(self.widen(), other.widen()))
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Self::narrow(max_f32(self.widen(), other.widen()))
            }
        }
    };
}

/// [`Unit`]'s conversions and factor.
macro_rules! wide_unit {
    ($to_f32:expr, $of_f32:expr) => {
        type Wide = f32;
        const WIDENS: bool = true;
        #[inline(always)]
        fn widen(self) -> f32 {
            $to_f32(self)
        }
        #[inline(always)]
        fn narrow(wide: f32) -> Self {
            $of_f32(wide)
        }
        type Factor = f32;
        #[inline(always)]
        fn factor(scalar: u64) -> f32 {
            f32::factor(scalar)
        }
        #[inline(always)]
        fn scalar(self) -> u64 {
            self.widen().scalar()
        }
        #[inline(always)]
        fn times(self, factor: f32) -> Self {
            Self::narrow(self.widen() * factor)
        }
        no_division!();
    };
}

/// 16-bit floats: `half` converts slices with the processor's instructions.
macro_rules! half_unit {
    ($($t:ident via $h:ident;)*) => { $(
        in_f32!($t);

        impl Unit for $t {
            wide_unit!(
                |half: $t| half::$h::from_bits(half.0).to_f32(),
                |wide| $t(half::$h::from_f32(wide).to_bits())
            );

            #[inline(always)]
            fn zip_into<O: BinOp>(to: &mut [Self], a: &[Self], b: &[Self]) {
                for ((to, a), b) in to.chunks_mut(WIDE).zip(a.chunks(WIDE)).zip(b.chunks(WIDE)) {
                    let (mut x, mut y) = ([0.0f32; WIDE], [0.0f32; WIDE]);
                    let (x, y) = (&mut x[..a.len()], &mut y[..b.len()]);
                    Self::widen_into(x, a);
                    Self::widen_into(y, b);
                    x.iter_mut().zip(&*y).for_each(|(x, y)| *x = O::apply(*x, *y));
                    Self::narrow_into(to, x);
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

            /// The two are equally long.
            #[inline(always)]
            fn widen_into(to: &mut [f32], from: &[Self]) {
                bytemuck::cast_slice::<_, half::$h>(from).convert_to_f32_slice(to);
            }

            /// The two are equally long.
            #[inline(always)]
            fn narrow_into(to: &mut [Self], from: &[f32]) {
                bytemuck::cast_slice_mut::<_, half::$h>(to).convert_from_f32_slice(from);
            }
        }
    )* };
}

/// Small floats that are widened at a time: a few hundred stay in the L1 cache.
const WIDE: usize = 256;

half_unit! { F16Unit via f16; Bf16Unit via bf16; }

/// 8-bit floats: their conversions are vector code as they stand.
macro_rules! float8_unit {
    ($($t:ident;)*) => { $(
        in_f32!($t);

        impl Unit for $t {
            wide_unit!(f32::from, $t::from);
        }
    )* };
}
float8_unit! { F8E4M3Unit; F8E5M2Unit; }

//! Integer arithmetic (PTX ISA 9.7.1), without the carry flag.
//!
//! Results wrap unless `.sat` says otherwise. A division by zero, which the manual leaves to the machine,
//! gives all ones, and its remainder is the dividend. The most negative number divided by -1 is itself.

use super::Alu;
use super::lanes::{Lane, Pair, for_flag, for_type, held, value};
use super::modifiers::{Modifiers, Unsupported};
use crate::types::Type;

type Selected = Result<Alu, Unsupported>;

/// What multiplications need of an integer.
pub(super) trait Int: Lane {
    /// An integer of twice the width.
    type Wide;

    /// The whole product.
    fn wide_mul(a: Self, b: Self) -> Self::Wide;

    /// The upper half of the product.
    fn mul_hi(a: Self, b: Self) -> Self;
}

macro_rules! ints {
    ($($T:ident $Wide:ident;)*) => {
        $(impl Int for $T {
            type Wide = $Wide;

            #[inline(always)]
            fn wide_mul(a: $T, b: $T) -> $Wide {
                $Wide::from(a) * $Wide::from(b)
            }

            #[inline(always)]
            fn mul_hi(a: $T, b: $T) -> $T {
                (Self::wide_mul(a, b) >> $T::BITS) as $T
            }
        })*
    };
}
ints! { u16 u32; u32 u64; u64 u128; i16 i32; i32 i64; i64 i128; }

pub(super) fn add(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    if ty == Type::S32 && m.flag("sat") {
        return Ok(value!(|a: i32, b: i32| -> i32 { a.saturating_add(b) }));
    }
    match ty {
        Type::U16x2 | Type::S16x2 => Ok(value!(|a: Pair<u16>, b: Pair<u16>| -> Pair<u16> {
            Pair(a.0.wrapping_add(b.0), a.1.wrapping_add(b.1))
        })
        .typed(ty)),
        _ => for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
            value!(|a: T, b: T| -> T { a.wrapping_add(b) })
        }),
    }
}

pub(super) fn sub(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    if ty == Type::S32 && m.flag("sat") {
        return Ok(value!(|a: i32, b: i32| -> i32 { a.saturating_sub(b) }));
    }
    for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
        value!(|a: T, b: T| -> T { a.wrapping_sub(b) })
    })
}

/// Which part of a product is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Lo,
    Hi,
    Wide,
}

/// Takes `.lo`, `.hi` or `.wide`.
pub(super) fn part(m: &mut Modifiers<'_>) -> Result<Part, Unsupported> {
    let part = m.find(|m| match m {
        "lo" => Some(Part::Lo),
        "hi" => Some(Part::Hi),
        "wide" => Some(Part::Wide),
        _ => None,
    });
    part.ok_or_else(|| m.missing("`.lo`, `.hi` or `.wide`"))
}

pub(super) fn mul(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    match part(m)? {
        Part::Lo => for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
            value!(|a: T, b: T| -> T { a.wrapping_mul(b) })
        }),
        Part::Hi => for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
            value!(|a: T, b: T| -> T { T::mul_hi(a, b) })
        }),
        Part::Wide => for_type!(m, ty, T in [U16 U32 S16 S32], {
            value!(|a: T, b: T| -> <T as Int>::Wide { T::wide_mul(a, b) })
        }),
    }
}

pub(super) fn mad(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    match part(m)? {
        Part::Lo => for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
            value!(|a: T, b: T, c: T| -> T { a.wrapping_mul(b).wrapping_add(c) })
        }),
        Part::Hi if ty == Type::S32 && m.flag("sat") => {
            Ok(value!(|a: i32, b: i32, c: i32| -> i32 { i32::mul_hi(a, b).saturating_add(c) }))
        }
        Part::Hi => for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
            value!(|a: T, b: T, c: T| -> T { T::mul_hi(a, b).wrapping_add(c) })
        }),
        Part::Wide => for_type!(m, ty, T in [U16 U32 S16 S32], {
            type Wide = <T as Int>::Wide;
            value!(|a: T, b: T, c: Wide| -> Wide { T::wide_mul(a, b).wrapping_add(c) })
        }),
    }
}

/// The product of the low 24 bits.
trait Mul24: Lane {
    fn mul24(a: Self, b: Self) -> i64;
}

impl Mul24 for u32 {
    #[inline(always)]
    fn mul24(a: u32, b: u32) -> i64 {
        i64::from(a & 0xff_ffff) * i64::from(b & 0xff_ffff)
    }
}

impl Mul24 for i32 {
    #[inline(always)]
    fn mul24(a: i32, b: i32) -> i64 {
        i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)
    }
}

pub(super) fn mul24(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    match part(m)? {
        Part::Lo => for_type!(m, ty, T in [U32 S32], {
            value!(|a: T, b: T| -> T { T::mul24(a, b) as T })
        }),
        Part::Hi => for_type!(m, ty, T in [U32 S32], {
            value!(|a: T, b: T| -> T { (T::mul24(a, b) >> 16) as T })
        }),
        Part::Wide => Err(m.wrong("wide")),
    }
}

pub(super) fn mad24(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    match part(m)? {
        Part::Lo => for_type!(m, ty, T in [U32 S32], {
            value!(|a: T, b: T, c: T| -> T { (T::mul24(a, b) as T).wrapping_add(c) })
        }),
        Part::Hi if ty == Type::S32 && m.flag("sat") => {
            Ok(value!(|a: i32, b: i32, c: i32| -> i32 {
                ((i32::mul24(a, b) >> 16) as i32).saturating_add(c)
            }))
        }
        Part::Hi => for_type!(m, ty, T in [U32 S32], {
            value!(|a: T, b: T, c: T| -> T { ((T::mul24(a, b) >> 16) as T).wrapping_add(c) })
        }),
        Part::Wide => Err(m.wrong("wide")),
    }
}

pub(super) fn sad(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
        value!(|a: T, b: T, c: T| -> T {
            c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })
        })
    })
}

pub(super) fn div(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
        value!(|a: T, b: T| -> T { if b == 0 { !0 } else { a.wrapping_div(b) } })
    })
}

pub(super) fn rem(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [U16 U32 U64 S16 S32 S64], {
        value!(|a: T, b: T| -> T { if b == 0 { a } else { a.wrapping_rem(b) } })
    })
}

pub(super) fn abs(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [S16 S32 S64], value!(|a: T| -> T { a.wrapping_abs() }))
}

pub(super) fn neg(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [S16 S32 S64], value!(|a: T| -> T { a.wrapping_neg() }))
}

/// `.relu` makes the least result zero.
macro_rules! extremum {
    ($name:ident) => {
        pub(super) fn $name(m: &mut Modifiers<'_>) -> Selected {
            let ty = m.ty()?;
            let relu = matches!(ty, Type::S32 | Type::S16x2) && m.flag("relu");
            match ty {
                Type::S32 => Ok(for_flag!(relu => RELU, {
                    value!(|a: i32, b: i32| -> i32 {
                        let r = a.$name(b);
                        if RELU { r.max(0) } else { r }
                    })
                })),
                Type::S16x2 => Ok(for_flag!(relu => RELU, {
                    value!(|a: Pair<i16>, b: Pair<i16>| -> Pair<i16> {
                        let (lo, hi) = (a.0.$name(b.0), a.1.$name(b.1));
                        if RELU { Pair(lo.max(0), hi.max(0)) } else { Pair(lo, hi) }
                    })
                })),
                Type::U16x2 => Ok(value!(|a: Pair<u16>, b: Pair<u16>| -> Pair<u16> {
                    Pair(a.0.$name(b.0), a.1.$name(b.1))
                })),
                _ => for_type!(m, ty, T in [U16 U32 U64 S16 S64], {
                    value!(|a: T, b: T| -> T { a.$name(b) })
                }),
            }
        }
    };
}
extremum!(min);
extremum!(max);

/// The dot product of packed bytes, or of two halves and two bytes, onto an accumulator.
pub(super) fn dp(m: &mut Modifiers<'_>, four: bool) -> Selected {
    let high = if four { false } else { matches!(part(m)?, Part::Hi) };
    let (a, b) = (m.ty()?, m.ty()?);
    let to = match (a, b) {
        (Type::U32, Type::U32) => Type::U32,
        (Type::U32 | Type::S32, Type::U32 | Type::S32) => Type::S32,
        (Type::U32 | Type::S32, other) | (other, _) => return Err(m.wrong(other.name())),
    };
    let alu = for_flag!(a == Type::S32 => A_SIGNED, for_flag!(b == Type::S32 => B_SIGNED, {
        if four {
            value!(|a: u32, b: u32, c: u32| -> u32 {
                (0..4).fold(c, |sum, i| {
                    let product = byte::<A_SIGNED>(a, i) * byte::<B_SIGNED>(b, i);
                    sum.wrapping_add(product as u32)
                })
            })
        } else {
            for_flag!(high => HIGH, value!(|a: u32, b: u32, c: u32| -> u32 {
                (0..2).fold(c, |sum, i| {
                    let b = byte::<B_SIGNED>(b, i + if HIGH { 2 } else { 0 });
                    sum.wrapping_add((half::<A_SIGNED>(a, i) * b) as u32)
                })
            }))
        }
    }));
    Ok(alu.types(to, [a, b, to]))
}

#[inline(always)]
fn byte<const SIGNED: bool>(of: u32, i: u32) -> i32 {
    let byte = (of >> (8 * i)) as u8;
    if SIGNED { i32::from(byte as i8) } else { i32::from(byte) }
}

#[inline(always)]
fn half<const SIGNED: bool>(of: u32, i: u32) -> i32 {
    let half = (of >> (16 * i)) as u16;
    if SIGNED { i32::from(half as i16) } else { i32::from(half) }
}

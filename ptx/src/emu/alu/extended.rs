//! Integers of any width, piece by piece, through the carry flag (PTX ISA 9.7.2).
//!
//! The flag of a subtraction is the borrow. `.cc` writes the flag; `addc`, `subc` and `madc` read it. What
//! does not write it leaves it as it was.

use super::Alu;
use super::integer::{Int, Part, part};
use super::lanes::{carry, for_flag, for_type, held};
use super::modifiers::{Modifiers, Unsupported};

type Selected = Result<Alu, Unsupported>;

/// The sum of three, and whether it went over.
trait WithCarry: Sized {
    fn carrying(a: Self, b: Self, carry: bool) -> (Self, bool);
    fn borrowing(a: Self, b: Self, borrow: bool) -> (Self, bool);
}

macro_rules! with_carry {
    ($($T:ident $unsigned:ident;)*) => {
        $(impl WithCarry for $T {
            #[inline(always)]
            fn carrying(a: $T, b: $T, carry: bool) -> ($T, bool) {
                let (sum, over) = (a as $unsigned).overflowing_add(b as $unsigned);
                let (sum, again) = sum.overflowing_add($unsigned::from(carry));
                (sum as $T, over | again)
            }

            #[inline(always)]
            fn borrowing(a: $T, b: $T, borrow: bool) -> ($T, bool) {
                let (rest, under) = (a as $unsigned).overflowing_sub(b as $unsigned);
                let (rest, again) = rest.overflowing_sub($unsigned::from(borrow));
                (rest as $T, under | again)
            }
        })*
    };
}
with_carry! { u32 u32; u64 u64; i32 u32; i64 u64; }

/// `add.cc` (which takes no flag in) and `addc{.cc}`.
pub(super) fn add(m: &mut Modifiers<'_>, takes: bool) -> Selected {
    let writes = m.flag("cc");
    let ty = m.ty()?;
    for_type!(m, ty, T in [U32 S32 U64 S64], {
        for_flag!(takes => TAKES, for_flag!(writes => WRITES, {
            carry!(|a: T, b: T; flag| -> T {
                let (r, over) = T::carrying(a, b, TAKES & flag);
                (r, if WRITES { over } else { flag })
            })
        }))
    })
}

/// `sub.cc` and `subc{.cc}`.
pub(super) fn sub(m: &mut Modifiers<'_>, takes: bool) -> Selected {
    let writes = m.flag("cc");
    let ty = m.ty()?;
    for_type!(m, ty, T in [U32 S32 U64 S64], {
        for_flag!(takes => TAKES, for_flag!(writes => WRITES, {
            carry!(|a: T, b: T; flag| -> T {
                let (r, under) = T::borrowing(a, b, TAKES & flag);
                (r, if WRITES { under } else { flag })
            })
        }))
    })
}

/// `mad.cc` and `madc{.cc}`; the carry is that of the addition.
pub(super) fn mad(m: &mut Modifiers<'_>, takes: bool) -> Selected {
    let writes = m.flag("cc");
    let high = match part(m)? {
        Part::Lo => false,
        Part::Hi => true,
        Part::Wide => return Err(m.wrong("wide")),
    };
    let ty = m.ty()?;
    for_type!(m, ty, T in [U32 S32 U64 S64], {
        for_flag!(takes => TAKES, for_flag!(writes => WRITES, for_flag!(high => HIGH, {
            carry!(|a: T, b: T, c: T; flag| -> T {
                let product = if HIGH { T::mul_hi(a, b) } else { a.wrapping_mul(b) };
                let (r, over) = T::carrying(product, c, TAKES & flag);
                (r, if WRITES { over } else { flag })
            })
        })))
    })
}

//! Bits: logic and shifts (PTX ISA 9.7.8), counting and fields (in 9.7.1), bytes (`prmt`) and moves.

use super::Alu;
use super::lanes::{for_flag, for_type, held, value};
use super::modifiers::{Modifiers, Unsupported};
use crate::types::Type;

type Selected = Result<Alu, Unsupported>;

pub(super) fn and(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B16 B32 B64], value!(|a: T, b: T| -> T { a & b }).typed(ty))
}

pub(super) fn or(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B16 B32 B64], value!(|a: T, b: T| -> T { a | b }).typed(ty))
}

pub(super) fn xor(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B16 B32 B64], value!(|a: T, b: T| -> T { a ^ b }).typed(ty))
}

pub(super) fn not(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B16 B32 B64], value!(|a: T| -> T { !a }).typed(ty))
}

pub(super) fn cnot(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B16 B32 B64], value!(|a: T| -> T { T::from(a == 0) }).typed(ty))
}

/// Any function of three bits: bit `4 a + 2 b + c` of the table is its value.
pub(super) fn lop3(m: &mut Modifiers<'_>) -> Selected {
    match m.ty()? {
        Type::B32 => Ok(value!(|a: u32, b: u32, c: u32, table: u32| -> u32 {
            (0..8).fold(0, |d, row: u32| {
                let take = (table >> row & 1).wrapping_neg();
                let a = if row & 4 != 0 { a } else { !a };
                let b = if row & 2 != 0 { b } else { !b };
                let c = if row & 1 != 0 { c } else { !c };
                d | (a & b & c & take)
            })
        })
        .types(Type::B32, [Type::B32, Type::B32, Type::B32, Type::U32])),
        other => Err(m.wrong(other.name())),
    }
}

/// Amounts beyond the width shift everything out.
pub(super) fn shl(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B16 B32 B64], {
        value!(|a: T, b: u32| -> T { if b < T::BITS { a << (b & (T::BITS - 1)) } else { 0 } })
            .types(ty, [ty, Type::U32])
    })
}

/// Amounts beyond the width leave zeros, or the sign.
pub(super) fn shr(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    if ty.is_signed() {
        return for_type!(m, ty, T in [S16 S32 S64], {
            value!(|a: T, b: u32| -> T { a >> b.min(T::BITS - 1) })
        });
    }
    for_type!(m, ty, T in [B16 B32 B64 U16 U32 U64], {
        value!(|a: T, b: u32| -> T { if b < T::BITS { a >> (b & (T::BITS - 1)) } else { 0 } })
            .types(ty, [ty, Type::U32])
    })
}

/// The funnel shift of `b` over `a`.
pub(super) fn shf(m: &mut Modifiers<'_>) -> Selected {
    let left = m.flag("l");
    if !left && !m.flag("r") {
        return Err(m.missing("`.l` or `.r`"));
    }
    let wrap = wrap(m)?;
    match m.ty()? {
        Type::B32 => Ok(for_flag!(left => LEFT, for_flag!(wrap => WRAP, {
            value!(|a: u32, b: u32, c: u32| -> u32 {
                let n = if WRAP { c & 31 } else { c.min(32) };
                let both = u64::from(b) << 32 | u64::from(a);
                if LEFT { (both << n >> 32) as u32 } else { (both >> n) as u32 }
            })
            .types(Type::B32, [Type::B32, Type::B32, Type::U32])
        }))),
        other => Err(m.wrong(other.name())),
    }
}

/// Takes `.clamp` or `.wrap`; whether it was the latter.
fn wrap(m: &mut Modifiers<'_>) -> Result<bool, Unsupported> {
    let wrap = m.find(|m| match m {
        "clamp" => Some(false),
        "wrap" => Some(true),
        _ => None,
    });
    wrap.ok_or_else(|| m.missing("`.clamp` or `.wrap`"))
}

pub(super) fn popc(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B32 B64], {
        value!(|a: T| -> u32 { a.count_ones() }).types(Type::U32, [ty])
    })
}

pub(super) fn clz(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B32 B64], {
        value!(|a: T| -> u32 { a.leading_zeros() }).types(Type::U32, [ty])
    })
}

/// The highest bit that differs from the sign, or how far it is from the top; all ones if there is none.
pub(super) fn bfind(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    let amount = m.flag("shiftamt");
    for_type!(m, ty, T in [U32 U64 S32 S64], for_flag!(amount => AMOUNT, {
        value!(|a: T| -> u32 {
            let magnitude = if T::TYPE.is_signed() { a ^ a >> (T::BITS - 1) } else { a };
            match magnitude.leading_zeros() {
                T::BITS => u32::MAX,
                zeros if AMOUNT => zeros,
                zeros => T::BITS - 1 - zeros,
            }
        })
    }))
}

/// The n-th set bit of a mask from a base on, up or down.
pub(super) fn fns(m: &mut Modifiers<'_>) -> Selected {
    match m.ty()? {
        Type::B32 => {
            Ok(value!(|mask: u32, base: u32, offset: i32| -> u32 { nth_set(mask, base, offset) })
                .types(Type::B32, [Type::B32, Type::U32, Type::S32]))
        }
        other => Err(m.wrong(other.name())),
    }
}

/// The manual leaves a base beyond 31 undefined; here nothing is found from there.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    // An offset of zero looks at the base alone.
    let mut left = mask & if offset == 0 { 1 << base } else { u32::MAX };
    left &= if offset < 0 { u32::MAX >> (31 - base) } else { u32::MAX << base };
    if offset < 0 {
        left = left.reverse_bits();
    }
    let skip = offset.unsigned_abs().saturating_sub(1);
    if skip >= left.count_ones() {
        return u32::MAX;
    }
    for _ in 0..skip {
        left &= left - 1; // not zero: fewer are dropped than are set
    }
    if offset < 0 { 31 - left.trailing_zeros() } else { left.trailing_zeros() }
}

pub(super) fn brev(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B32 B64], value!(|a: T| -> T { a.reverse_bits() }).typed(ty))
}

/// A field of bits, zero- or sign-extended. What of it lies beyond the top is the sign.
pub(super) fn bfe(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [U32 U64 S32 S64], value!(|a: T, b: u32, c: u32| -> T {
        let (at, length) = (b & 0xff, c & 0xff);
        let out = at >= T::BITS && !T::TYPE.is_signed();
        let field = if out { 0 } else { a >> at.min(T::BITS - 1) };
        match length {
            0 => 0,
            1..T::BITS => field << (T::BITS - length) >> (T::BITS - length),
            _ => field,
        }
    }))
}

/// A field of bits put into another value.
pub(super) fn bfi(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [B32 B64], {
        value!(|a: T, b: T, c: u32, d: u32| -> T {
            let (at, length) = (c & 0xff, d & 0xff);
            let field = if length >= T::BITS { !0 } else { ((1 as T) << length) - 1 };
            if at >= T::BITS { b } else { (b & !(field << at)) | (a & field) << at }
        })
        .types(ty, [ty, ty, Type::U32, Type::U32])
    })
}

/// A mask of `b` ones from bit `a` on.
pub(super) fn bmsk(m: &mut Modifiers<'_>) -> Selected {
    let wrap = wrap(m)?;
    match m.ty()? {
        Type::B32 => Ok(for_flag!(wrap => WRAP, value!(|a: u32, b: u32| -> u32 {
            let (a, b) = if WRAP { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
            let width = (1u64 << b) - 1;
            (width << a) as u32
        }))
        .typed(Type::B32)),
        other => Err(m.wrong(other.name())),
    }
}

/// The low `b` bits of `a`, extended.
pub(super) fn szext(m: &mut Modifiers<'_>) -> Selected {
    let wrap = wrap(m)?;
    let ty = m.ty()?;
    for_type!(m, ty, T in [U32 S32], for_flag!(wrap => WRAP, value!(|a: T, b: u32| -> T {
        let bits = if WRAP { b & 31 } else { b.min(32) };
        if bits == 0 { 0 } else { a << (32 - bits) >> (32 - bits) }
    })))
}

/// Four bytes out of eight.
pub(super) fn prmt(m: &mut Modifiers<'_>) -> Selected {
    match m.ty()? {
        Type::B32 => {}
        other => return Err(m.wrong(other.name())),
    }
    /// Bytes `from[i]` of the eight, for a selector that has been counted to in a table of the manual.
    macro_rules! by_table {
        ($table:expr) => {
            value!(|a: u32, b: u32, c: u32| -> u32 {
                const TABLE: [u32; 4] = $table;
                let select = TABLE[c as usize & 3];
                permute(a, b, select)
            })
        };
    }
    // Tables of 9.7.9.7: the selectors of bytes 3, 2, 1 and 0 for each value of the control.
    let mode = m.find(|m| {
        Some(match m {
            "f4e" => by_table!([0x3210, 0x4321, 0x5432, 0x6543]),
            "b4e" => by_table!([0x5670, 0x6701, 0x7012, 0x0123]),
            "rc8" => by_table!([0x0000, 0x1111, 0x2222, 0x3333]),
            "ecl" => by_table!([0x3210, 0x3211, 0x3222, 0x3333]),
            "ecr" => by_table!([0x0000, 0x1110, 0x2210, 0x3210]),
            "rc16" => by_table!([0x1010, 0x3232, 0x1010, 0x3232]),
            _ => return None,
        })
    });
    let alu = mode.unwrap_or(value!(|a: u32, b: u32, c: u32| -> u32 { permute(a, b, c) }));
    Ok(alu.typed(Type::B32))
}

/// Byte `i` is that of the selector's digit `i`, or its sign eight times over if the digit's top bit is set.
#[inline(always)]
fn permute(a: u32, b: u32, select: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |d, i| {
        let digit = select >> (4 * i);
        let byte = (bytes >> (8 * (digit & 7))) as u8;
        let byte = if digit & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        d | u32::from(byte) << (8 * i)
    })
}

/// A move of a scalar.
pub(super) fn mov(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    match ty.bits() {
        16 => Ok(value!(|a: u16| -> u16 { a }).typed(ty)),
        32 => Ok(value!(|a: u32| -> u32 { a }).typed(ty)),
        64 => Ok(value!(|a: u64| -> u64 { a }).typed(ty)),
        _ => Err(m.wrong(ty.name())),
    }
}

/// Generic addresses of global, constant and parameter memory are the addresses themselves. What those of shared and
/// local memory are is for whoever lays out the memory to say.
pub(super) fn cvta(m: &mut Modifiers<'_>) -> Selected {
    m.flag("to");
    if !["global", "const", "param", "param::entry"].iter().any(|space| m.flag(space)) {
        return Err(m.missing("`.global`, `.const` or `.param`"));
    }
    match m.ty()? {
        Type::U32 => Ok(value!(|a: u32| -> u32 { a })),
        Type::U64 => Ok(value!(|a: u64| -> u64 { a })),
        other => Err(m.wrong(other.name())),
    }
}

//! Conversions into and out of packed and narrow types: `cvt` of f16x2, bf16x2, tf32, e4m3x2 and e5m2x2, and `cvt.pack`
//! (PTX ISA 9.7.9.21 and 9.7.9.22).
//!
//! Of two sources the first goes to the upper half.

use super::Alu;
use super::convert::{from_single, only_rn_rz};
use super::exact::{Away, Bfloat16, Binary16, Direction, E4m3, E5m2, Format, Tensor32, narrow};
use super::half::{Bf16, F16, Half};
use super::lanes::{Pair, for_flag, for_rounding, value};
use super::modifiers::{Modifiers, Unsupported};
use super::number::{Number, result};
use super::round::{Nearest, Rounding, Zero};
use crate::types::Type;

type Selected = Result<Alu, Unsupported>;

pub(super) fn cvt(m: &mut Modifiers<'_>, to: Type, from: Type) -> Selected {
    match (to, from) {
        (Type::F16x2 | Type::Bf16x2, Type::F32) => halves(m, to),
        (Type::Tf32, Type::F32) => tensor(m),
        (Type::E4m3x2, _) => to_bytes::<E4m3>(m, to, from),
        (Type::E5m2x2, _) => to_bytes::<E5m2>(m, to, from),
        (Type::F16x2, Type::E4m3x2 | Type::E5m2x2) => from_bytes(m, from),
        (Type::F16x2 | Type::Bf16x2 | Type::Tf32, other) => Err(m.wrong(other.name())),
        (other, _) => Err(m.wrong(other.name())),
    }
}

/// `cvt{.rn,.rz}{.relu}{.satfinite}.{f16x2,bf16x2}.f32 d, a, b`.
fn halves(m: &mut Modifiers<'_>, to: Type) -> Selected {
    let rounding = m.rounding().ok_or_else(|| m.missing("a rounding"))?;
    only_rn_rz(m, rounding)?;
    let (relu, satfinite) = (m.flag("relu"), m.flag("satfinite"));
    macro_rules! body {
        ($T:ty, $Format:ty) => {
            for_rounding!(rounding => R, for_flag!(relu => RELU, for_flag!(satfinite => FINITE, {
                value!(|a: f32, b: f32| -> Pair<$T> {
                    Pair(
                        from_single::<$T, $Format, R, RELU, FINITE>(b),
                        from_single::<$T, $Format, R, RELU, FINITE>(a),
                    )
                })
            })))
        };
    }
    Ok(match to {
        Type::F16x2 => body!(F16, Binary16),
        _ => body!(Bf16, Bfloat16),
    })
}

/// tf32 stands in the upper 19 bits of 32; the others are zero here (the manual leaves them open).
fn tensor(m: &mut Modifiers<'_>) -> Selected {
    #[inline(always)]
    fn of<D: Direction, const RELU: bool, const SATFINITE: bool>(a: f32) -> f32 {
        if a.is_nan() {
            return <f32 as Number>::NAN;
        }
        let r = f32::from_bits((narrow::<Tensor32, D>(a.into(), SATFINITE) << 13) as u32);
        result::<false, false, RELU, f32>(r)
    }
    let away = m.flag("rna");
    let rounding = if away { Some(Rounding::Nearest) } else { m.rounding() };
    let rounding = rounding.ok_or_else(|| m.missing("a rounding"))?;
    only_rn_rz(m, rounding)?;
    let relu = !away && m.flag("relu");
    let satfinite = m.flag("satfinite");
    let alu = for_flag!(relu => RELU, for_flag!(satfinite => FINITE, match (away, rounding) {
        (true, _) => value!(|a: f32| -> f32 { of::<Away, RELU, FINITE>(a) }),
        (_, Rounding::Nearest) => value!(|a: f32| -> f32 { of::<Nearest, RELU, FINITE>(a) }),
        _ => value!(|a: f32| -> f32 { of::<Zero, RELU, FINITE>(a) }),
    }));
    Ok(Alu { to: Type::Tf32, ..alu })
}

/// One byte; always to nearest and finite.
#[inline(always)]
fn byte<F: Format, const RELU: bool>(a: f64) -> u16 {
    let negative = a < 0.0 || a == 0.0 && a.is_sign_negative();
    if RELU && negative { 0 } else { narrow::<F, Nearest>(a, true) as u16 }
}

/// `cvt.rn.satfinite{.relu}` into two bytes, from two numbers or a pair.
fn to_bytes<F: Format>(m: &mut Modifiers<'_>, to: Type, from: Type) -> Selected {
    if m.rounding() != Some(Rounding::Nearest) {
        return Err(m.missing("`.rn`"));
    }
    if !m.flag("satfinite") {
        return Err(m.missing("`.satfinite`"));
    }
    let relu = m.flag("relu");
    macro_rules! pair {
        ($T:ty) => {
            for_flag!(relu => RELU, value!(|a: Pair<$T>| -> u16 {
                byte::<F, RELU>(a.1.to_f32().into()) << 8 | byte::<F, RELU>(a.0.to_f32().into())
            }))
        };
    }
    let alu = match from {
        Type::F32 => for_flag!(relu => RELU, value!(|a: f32, b: f32| -> u16 {
            byte::<F, RELU>(a.into()) << 8 | byte::<F, RELU>(b.into())
        })),
        Type::F16x2 => pair!(F16),
        Type::Bf16x2 => pair!(Bf16),
        other => return Err(m.wrong(other.name())),
    };
    Ok(Alu { to, ..alu })
}

/// e5m2 is binary16's upper half.
#[inline(always)]
fn of_e5m2(byte: u16) -> F16 {
    let half = F16(byte << 8);
    if half.not_a_number() { F16::NAN } else { half }
}

/// e4m3's exponent and mantissa in binary16's places are the number divided by 2^8, subnormal or not.
#[inline(always)]
fn of_e4m3(byte: u16) -> F16 {
    let magnitude = F16((byte & 0x7f) << 7).to_f32() * 256.0;
    let value = F16(F16::from_f32(magnitude).0 | (byte & 0x80) << 8);
    if byte & 0x7f == 0x7f { F16::NAN } else { value }
}

/// `cvt.rn{.relu}.f16x2` from two bytes, each of which is a number of binary16.
fn from_bytes(m: &mut Modifiers<'_>, from: Type) -> Selected {
    if m.rounding() != Some(Rounding::Nearest) {
        return Err(m.missing("`.rn`"));
    }
    let relu = m.flag("relu");
    macro_rules! body {
        ($of:ident) => {
            for_flag!(relu => RELU, value!(|a: u16| -> Pair<F16> {
                Pair(
                    result::<false, false, RELU, F16>($of(a & 0xff)),
                    result::<false, false, RELU, F16>($of(a >> 8)),
                )
            }))
        };
    }
    let alu = if from == Type::E4m3x2 { body!(of_e4m3) } else { body!(of_e5m2) };
    Ok(alu.types(Type::F16x2, [from]))
}

/// `cvt.pack.sat`: two integers saturated and put side by side, below what a third source holds.
pub(super) fn cvt_pack(m: &mut Modifiers<'_>) -> Selected {
    if !m.flag("sat") {
        return Err(m.missing("`.sat`"));
    }
    macro_rules! two {
        ($($name:literal $low:literal $high:literal $to:expr;)*) => {
            m.find(|m| match m {
                $($name => Some(value!(|a: i32, b: i32| -> u32 {
                    let (a, b) = (a.clamp($low, $high) as u16, b.clamp($low, $high) as u16);
                    u32::from(a) << 16 | u32::from(b)
                })),)*
                _ => None,
            })
        };
    }
    if let Some(alu) = two! { "u16" 0 65535 Type::U16; "s16" -32768 32767 Type::S16; } {
        let from = m.ty()?;
        return match from {
            Type::S32 => Ok(alu),
            other => Err(m.wrong(other.name())),
        };
    }
    macro_rules! three {
        ($($name:literal $bits:literal $low:literal $high:literal;)*) => {
            m.find(|m| match m {
                $($name => Some(value!(|a: i32, b: i32, c: u32| -> u32 {
                    const ONES: u32 = (1 << $bits) - 1;
                    let (a, b) = (a.clamp($low, $high) as u32, b.clamp($low, $high) as u32);
                    c << (2 * $bits) | (a & ONES) << $bits | b & ONES
                })),)*
                _ => None,
            })
        };
    }
    let alu = three! {
        "u8" 8 0 255; "s8" 8 -128 127; "u4" 4 0 15; "s4" 4 -8 7; "u2" 2 0 3; "s2" 2 -2 1;
    };
    let alu = alu.ok_or_else(|| m.missing("the type of the parts"))?;
    match (m.ty()?, m.ty()?) {
        (Type::S32, Type::B32) => Ok(alu.types(Type::B32, [Type::S32, Type::S32, Type::B32])),
        (Type::S32, other) | (other, _) => Err(m.wrong(other.name())),
    }
}

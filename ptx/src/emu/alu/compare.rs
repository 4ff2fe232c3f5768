//! Comparisons and what is selected by them: `setp`, `set`, `slct`, `testp` (PTX ISA 9.7.6, 9.7.7 and 9.7.3.1).

use super::half::{Bf16, F16};
use super::lanes::{Pair, compare, for_flag, for_type, held, value};
use super::modifiers::{Modifiers, Unsupported};
use super::number::{Number, source};
use super::{Alu, Combine};
use crate::types::Type;

type Selected = Result<Alu, Unsupported>;

const NAMES: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];

/// The comparison's name and what its result is combined with.
fn operators<'a>(m: &mut Modifiers<'a>) -> Result<(&'static str, Combine), Unsupported> {
    let op = m.find(|m| NAMES.iter().copied().find(|&name| name == m));
    let op = op.ok_or_else(|| m.missing("a comparison"))?;
    let combine = m.find(|m| match m {
        "and" => Some(Combine::And),
        "or" => Some(Combine::Or),
        "xor" => Some(Combine::Xor),
        _ => None,
    });
    Ok((op, combine.unwrap_or(Combine::No)))
}

/// The comparison of values of one type.
fn comparison(m: &mut Modifiers<'_>, op: &str, combine: Combine, ty: Type) -> Selected {
    /// The body once for each comparison of the list.
    macro_rules! each {
        ($T:ty: $($name:literal $x:ident $y:ident $truth:expr;)*) => {
            match op {
                $($name => Ok(compare!(combine, |$x: $T, $y: $T| $truth)),)*
                other => Err(m.wrong(other)),
            }
        };
    }
    match ty {
        Type::B16 | Type::B32 | Type::B64 => for_type!(m, ty, T in [B16 B32 B64], {
            each!(T: "eq" a b a == b; "ne" a b a != b;)?.comparing(ty)
        }),
        Type::S16 | Type::S32 | Type::S64 => for_type!(m, ty, T in [S16 S32 S64], {
            each!(T:
                "eq" a b a == b; "ne" a b a != b;
                "lt" a b a < b; "le" a b a <= b; "gt" a b a > b; "ge" a b a >= b;
            )?
        }),
        Type::U16 | Type::U32 | Type::U64 => for_type!(m, ty, T in [U16 U32 U64], {
            each!(T:
                "eq" a b a == b; "ne" a b a != b;
                "lt" a b a < b; "le" a b a <= b; "gt" a b a > b; "ge" a b a >= b;
                "lo" a b a < b; "ls" a b a <= b; "hi" a b a > b; "hs" a b a >= b;
            )?
        }),
        _ => {
            let ftz = matches!(ty, Type::F16 | Type::F32) && m.flag("ftz");
            for_type!(m, ty, T in [F16 Bf16 F32 F64], for_flag!(ftz => FTZ, {
                each!(T:
                    "eq" a b float::<FTZ, EQ, T>(a, b);
                    "ne" a b float::<FTZ, NE, T>(a, b);
                    "lt" a b float::<FTZ, LT, T>(a, b);
                    "le" a b float::<FTZ, LE, T>(a, b);
                    "gt" a b float::<FTZ, GT, T>(a, b);
                    "ge" a b float::<FTZ, GE, T>(a, b);
                    "equ" a b !float::<FTZ, NE, T>(a, b);
                    "neu" a b !float::<FTZ, EQ, T>(a, b);
                    "ltu" a b !float::<FTZ, GE, T>(a, b);
                    "leu" a b !float::<FTZ, GT, T>(a, b);
                    "gtu" a b !float::<FTZ, LE, T>(a, b);
                    "geu" a b !float::<FTZ, LT, T>(a, b);
                    "num" a b !(a.not_a_number() | b.not_a_number());
                    "nan" a b a.not_a_number() | b.not_a_number();
                )?
            }))
        }
    }
}

const EQ: u8 = 0;
const NE: u8 = 1;
const LT: u8 = 2;
const LE: u8 = 3;
const GT: u8 = 4;
const GE: u8 = 5;

/// An ordered comparison: false if either is a NaN. The unordered ones are the opposites of their complements.
#[inline(always)]
fn float<const FTZ: bool, const OP: u8, T: Number + PartialOrd>(a: T, b: T) -> bool {
    let (a, b) = (source::<FTZ, T>(a), source::<FTZ, T>(b));
    match OP {
        EQ => (a <= b) & (a >= b),
        NE => (a < b) | (a > b),
        LT => a < b,
        LE => a <= b,
        GT => a > b,
        _ => a >= b,
    }
}

/// `setp` of one destination or of one and its complement; the packed types' two are not here.
pub(super) fn setp(m: &mut Modifiers<'_>) -> Selected {
    let (op, combine) = operators(m)?;
    let ty = m.ty()?;
    comparison(m, op, combine, ty)
}

/// `set`: a comparison whose truth is written as a number. That of packed types computes its value at once, and has no
/// predicate to combine with.
pub(super) fn set(m: &mut Modifiers<'_>) -> Selected {
    let (op, combine) = operators(m)?;
    let (to, ty) = (m.ty()?, m.ty()?);
    if matches!(ty, Type::F16x2 | Type::Bf16x2) {
        if combine != Combine::No {
            return Err(m.wrong(ty.name()));
        }
        return packed(m, op, to, ty);
    }
    let goes = match to {
        Type::U32 | Type::S32 => true,
        Type::F32 => !matches!(ty, Type::F16 | Type::Bf16),
        Type::F16 => ty != Type::Bf16,
        Type::Bf16 => true,
        Type::U16 | Type::S16 => matches!(ty, Type::F16 | Type::Bf16),
        _ => false,
    };
    if !goes {
        return Err(m.wrong(to.name()));
    }
    Ok(Alu { to, ..comparison(m, op, combine, ty)? })
}

fn packed(m: &mut Modifiers<'_>, op: &str, to: Type, ty: Type) -> Selected {
    let truth: u16 = match (to, ty) {
        (Type::U32 | Type::S32, _) => 0xffff,
        (Type::F16x2, Type::F16x2) => F16::ONE.0,
        (Type::Bf16x2, Type::Bf16x2) => Bf16::ONE.0,
        _ => return Err(m.wrong(to.name())),
    };
    let ftz = ty == Type::F16x2 && m.flag("ftz");
    macro_rules! each {
        ($T:ty, $TRUTH:ident, $FTZ:ident: $($name:literal $not:literal $op:ident;)*) => {
            match op {
                $($name => Ok(value!(|a: Pair<$T>, b: Pair<$T>| -> Pair<u16> {
                    let lo = $not != float::<$FTZ, $op, $T>(a.0, b.0);
                    let hi = $not != float::<$FTZ, $op, $T>(a.1, b.1);
                    Pair(if lo { $TRUTH } else { 0 }, if hi { $TRUTH } else { 0 })
                })),)*
                "num" | "nan" => Ok(for_flag!(op == "nan" => NAN, {
                    value!(|a: Pair<$T>, b: Pair<$T>| -> Pair<u16> {
                        let lo = NAN == (a.0.not_a_number() | b.0.not_a_number());
                        let hi = NAN == (a.1.not_a_number() | b.1.not_a_number());
                        Pair(if lo { $TRUTH } else { 0 }, if hi { $TRUTH } else { 0 })
                    })
                })),
                other => Err(m.wrong(other)),
            }
        };
    }
    macro_rules! all {
        ($T:ty, $truth:expr, $FTZ:ident) => {{
            const TRUTH: u16 = $truth;
            each!($T, TRUTH, $FTZ:
                "eq" false EQ; "ne" false NE; "lt" false LT; "le" false LE; "gt" false GT;
                "ge" false GE; "equ" true NE; "neu" true EQ; "ltu" true GE; "leu" true GT;
                "gtu" true LE; "geu" true LT;
            )
        }};
    }
    const FALSE: bool = false;
    let alu = match (ty, truth) {
        (Type::F16x2, 0xffff) => for_flag!(ftz => FTZ, all!(F16, 0xffff, FTZ)),
        (Type::F16x2, _) => for_flag!(ftz => FTZ, all!(F16, F16::ONE.0, FTZ)),
        (_, 0xffff) => all!(Bf16, 0xffff, FALSE),
        _ => all!(Bf16, Bf16::ONE.0, FALSE),
    };
    Ok(Alu { to, ..alu? })
}

/// The first source if the third is zero or more, else the second; so also if it is a NaN.
pub(super) fn slct(m: &mut Modifiers<'_>) -> Selected {
    let ftz = m.flag("ftz");
    let (ty, by) = (m.ty()?, m.ty()?);
    let alu = match by {
        Type::S32 if !ftz => {
            for_type!(m, ty, T in [B16 B32 B64 U16 U32 U64 S16 S32 S64 F32 F64], {
                value!(|a: T, b: T, c: i32| -> T { if c >= 0 { a } else { b } })
            })
        }
        Type::F32 => for_type!(m, ty, T in [B16 B32 B64 U16 U32 U64 S16 S32 S64 F32 F64], {
            for_flag!(ftz => FTZ, value!(|a: T, b: T, c: f32| -> T {
                if source::<FTZ, f32>(c) >= 0.0 { a } else { b }
            }))
        }),
        Type::S32 => Err(m.wrong("ftz")),
        other => Err(m.wrong(other.name())),
    };
    Ok(alu?.types(ty, [ty, ty, by]))
}

/// Zeros are normal numbers here, as the manual says.
pub(super) fn testp(m: &mut Modifiers<'_>) -> Selected {
    const TESTS: [&str; 6] = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
    let test = m.find(|m| TESTS.iter().copied().find(|&name| name == m));
    let test = test.ok_or_else(|| m.missing("a property"))?;
    let ty = m.ty()?;
    for_type!(m, ty, T in [F32 F64], match test {
        "finite" => compare!(Combine::No, |a: T| a.is_finite()),
        "infinite" => compare!(Combine::No, |a: T| a.is_infinite()),
        "number" => compare!(Combine::No, |a: T| !a.is_nan()),
        "notanumber" => compare!(Combine::No, |a: T| a.is_nan()),
        "normal" => compare!(Combine::No, |a: T| a.is_normal() | (a == 0.0)),
        _ => compare!(Combine::No, |a: T| a.is_subnormal()),
    })
}

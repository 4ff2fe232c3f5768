//! Conversions of scalars: `cvt` between integers and floating-point types (PTX ISA 9.7.9.21).
//!
//! The manual asks for a rounding wherever a result may be inexact, and for an integer rounding from
//! floating-point to integer; without one there is nothing to select.
//!
//! * From floating-point to integer, results saturate. A NaN gives 0; but from binary64, or to 64 bits, it gives the
//!   integer with the top bit alone (the manual's "Integer Notes").
//! * Results that are NaNs are canonical. binary32 in binary64 keeps its payload, made quiet.

use super::Alu;
use super::exact::{Bfloat16, Binary16, Exact, Format, narrow};
use super::half::{Bf16, F16, Half};
use super::lanes::{Lane, for_flag, for_rounding, for_type, held, value};
use super::modifiers::{Modifiers, Unsupported};
use super::number::{Number, canonical, result, source};
use super::round::{Nearest, Round, Rounding, to_f32};
use crate::types::Type;

type Selected = Result<Alu, Unsupported>;

/// A number among the floating-point types.
trait Scalar: Number {
    /// Its value.
    fn wide(self) -> f64;

    /// A value, rounded.
    fn narrow<R: Round>(x: f64) -> Self;

    /// An integer, rounded.
    fn integer<R: Round>(x: i128) -> Self;
}

impl Scalar for f64 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow<R: Round>(x: f64) -> f64 {
        let nan = f64::nan_of(x, x).to_bits();
        f64::from_bits(if x.is_nan() { nan } else { x.to_bits() })
    }

    #[inline(always)]
    fn integer<R: Round>(x: i128) -> f64 {
        f64::from_bits(Exact::integer(x).round::<super::exact::Binary64, R>(false))
    }
}

impl Scalar for f32 {
    #[inline(always)]
    fn wide(self) -> f64 {
        let bits = u64::from(self.to_bits());
        let nan = (bits & 0x8000_0000) << 32 | 0x7ff8 << 48 | (bits & 0x7f_ffff) << 29;
        f64::from_bits(if self.is_nan() { nan } else { f64::from(self).to_bits() })
    }

    #[inline(always)]
    fn narrow<R: Round>(x: f64) -> f32 {
        canonical(to_f32::<R>(x))
    }

    #[inline(always)]
    fn integer<R: Round>(x: i128) -> f32 {
        f32::from_bits(Exact::integer(x).round::<super::exact::Binary32, R>(false) as u32)
    }
}

macro_rules! half {
    ($T:ident $Format:ident) => {
        impl Scalar for $T {
            #[inline(always)]
            fn wide(self) -> f64 {
                let wide = f64::from(self.to_f32()).to_bits();
                let nan = <f64 as Number>::NAN.to_bits();
                f64::from_bits(if self.not_a_number() { nan } else { wide })
            }

            #[inline(always)]
            fn narrow<R: Round>(x: f64) -> $T {
                $T::read(narrow::<$Format, R>(x, false))
            }

            #[inline(always)]
            fn integer<R: Round>(x: i128) -> $T {
                $T::read(Exact::integer(x).round::<$Format, R>(false))
            }
        }
    };
}
half!(F16 Binary16);
half!(Bf16 Bfloat16);

/// A value rounded to an integer, which may be a zero with a sign.
#[inline(always)]
fn integral<R: Round>(x: f64) -> f64 {
    match R::ROUNDING {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}

/// Takes `.rni`, `.rzi`, `.rmi` or `.rpi`.
fn integer_rounding(m: &mut Modifiers<'_>) -> Option<Rounding> {
    m.find(|m| match m {
        "rni" => Some(Rounding::Nearest),
        "rzi" => Some(Rounding::Zero),
        "rmi" => Some(Rounding::Down),
        "rpi" => Some(Rounding::Up),
        _ => None,
    })
}

fn is_integer(ty: Type) -> bool {
    use Type::{S8, S16, S32, S64, U8, U16, U32, U64};
    matches!(ty, U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
}

pub(super) fn cvt(m: &mut Modifiers<'_>) -> Selected {
    if m.flag("pack") {
        return super::pack::cvt_pack(m);
    }
    let (to, from) = (m.ty()?, m.ty()?);
    match (is_integer(to), is_integer(from)) {
        (true, true) => between_integers(m, to, from),
        (true, false) => to_integer(m, to, from),
        (false, true) => from_integer(m, to, from),
        (false, false) => match (to, from) {
            (Type::F16 | Type::Bf16 | Type::F32 | Type::F64, _) => between_floats(m, to, from),
            _ => super::pack::cvt(m, to, from),
        },
    }
}

/// Truncation, extension by the source's type, or saturation.
fn between_integers(m: &mut Modifiers<'_>, to: Type, from: Type) -> Selected {
    let sat = m.flag("sat");
    for_type!(m, to, D in [U8 U16 U32 U64 S8 S16 S32 S64], {
        for_type!(m, from, S in [U8 U16 U32 U64 S8 S16 S32 S64], {
            if sat {
                value!(|a: S| -> D {
                    (a as i128).clamp(D::MIN as i128, D::MAX as i128) as D
                })
            } else {
                value!(|a: S| -> D { a as D })
            }
        })?
    })
}

fn to_integer(m: &mut Modifiers<'_>, to: Type, from: Type) -> Selected {
    let rounding = integer_rounding(m).ok_or_else(|| m.missing("an integer rounding"))?;
    m.flag("sat"); // as it is in any case
    let ftz = from == Type::F32 && m.flag("ftz");
    macro_rules! body {
        ($S:ty, $D:ty, $R:ty, $FTZ:expr) => {
            value!(|a: $S| -> $D {
                const TOP: bool = <$D>::BITS == 64 || matches!(<$S as Lane>::TYPE, Type::F64);
                let x = source::<{ $FTZ }, $S>(a).wide();
                // The conversion itself rounds to zero.
                let towards_zero = matches!(<$R as Round>::ROUNDING, Rounding::Zero);
                let x = if towards_zero { x } else { integral::<$R>(x) };
                if TOP && x.is_nan() { (1 as $D) << (<$D>::BITS - 1) } else { x as $D }
            })
        };
    }
    for_type!(m, to, D in [U8 U16 U32 U64 S8 S16 S32 S64], for_rounding!(rounding => R, {
        if from == Type::F32 {
            for_flag!(ftz => FTZ, body!(f32, D, R, FTZ))
        } else {
            for_type!(m, from, S in [F16 Bf16 F64], body!(S, D, R, false))?
        }
    }))
}

fn from_integer(m: &mut Modifiers<'_>, to: Type, from: Type) -> Selected {
    let rounding = m.rounding().ok_or_else(|| m.missing("a rounding"))?;
    if to == Type::F32 {
        m.flag("ftz"); // an integer is no subnormal number, nor becomes one
    }
    let sat = to != Type::Bf16 && m.flag("sat");
    for_type!(m, from, S in [U8 U16 U32 U64 S8 S16 S32 S64], match (to, rounding) {
        (Type::F32, Rounding::Nearest) if !sat => value!(|a: S| -> f32 { a as f32 }),
        (Type::F64, Rounding::Nearest) if !sat => value!(|a: S| -> f64 { a as f64 }),
        _ => for_type!(m, to, D in [F16 Bf16 F32 F64], for_rounding!(rounding => R, {
            for_flag!(sat => SAT, value!(|a: S| -> D {
                result::<false, SAT, false, D>(D::integer::<R>(a as i128))
            }))
        }))?,
    })
}

/// Whether all numbers of one type are numbers of another, which then takes no rounding.
fn widens(to: Type, from: Type) -> bool {
    match to {
        Type::F64 => true,
        Type::F32 => from != Type::F64,
        _ => to == from,
    }
}

fn between_floats(m: &mut Modifiers<'_>, to: Type, from: Type) -> Selected {
    let ftz = (to == Type::F32 || from == Type::F32) && m.flag("ftz");
    if to == from
        && let Some(rounding) = integer_rounding(m)
    {
        let sat = to != Type::Bf16 && m.flag("sat");
        return for_type!(m, to, T in [F16 Bf16 F32 F64], for_rounding!(rounding => R, {
            for_flag!(ftz => FTZ, for_flag!(sat => SAT, value!(|a: T| -> T {
                // An integer between two numbers of a format that has fractions there is one of them.
                let x = integral::<R>(source::<FTZ, T>(a).wide());
                result::<FTZ, SAT, false, T>(T::narrow::<Nearest>(x))
            })))
        }));
    }
    let rounding = m.rounding();
    if rounding.is_none() && !widens(to, from) {
        return Err(m.missing("a rounding"));
    }
    // A rounding where nothing is lost is illegal, says the manual; it does no harm.
    let rounding = rounding.unwrap_or(Rounding::Nearest);
    if from == Type::F32 && matches!(to, Type::F16 | Type::Bf16) {
        let (satfinite, relu) = (m.flag("satfinite"), m.flag("relu"));
        if satfinite || relu {
            return saturated(m, to, rounding, satfinite, relu);
        }
    }
    let sat = to != Type::Bf16 && m.flag("sat");
    if rounding == Rounding::Nearest && !ftz && !sat {
        // What kernels do all the time, without the detour through binary64.
        match (to, from) {
            (Type::F16, Type::F32) => return Ok(value!(|a: f32| -> F16 { F16::from_f32(a) })),
            (Type::Bf16, Type::F32) => return Ok(value!(|a: f32| -> Bf16 { Bf16::from_f32(a) })),
            (Type::F32, Type::F16) => return Ok(value!(|a: F16| -> f32 { widened(a) })),
            (Type::F32, Type::Bf16) => return Ok(value!(|a: Bf16| -> f32 { widened(a) })),
            _ => {}
        }
    }
    for_type!(m, to, D in [F16 Bf16 F32 F64], for_type!(m, from, S in [F16 Bf16 F32 F64], {
        for_rounding!(rounding => R, for_flag!(ftz => FTZ, for_flag!(sat => SAT, {
            value!(|a: S| -> D {
                let r = D::narrow::<R>(single::<FTZ, S>(a).wide());
                result::<false, SAT, false, D>(single::<FTZ, D>(r))
            })
        })))
    })?)
}

/// `.ftz` is for binary32 alone.
#[inline(always)]
fn single<const FTZ: bool, T: Number>(a: T) -> T {
    if FTZ && matches!(T::TYPE, Type::F32) { a.flushed() } else { a }
}

#[inline(always)]
fn widened<T: Half>(a: T) -> f32 {
    canonical(a.to_f32())
}

/// `cvt{.rn,.rz}{.relu}{.satfinite}` of a half precision from binary32.
fn saturated(
    m: &mut Modifiers<'_>,
    to: Type,
    rounding: Rounding,
    satfinite: bool,
    relu: bool,
) -> Selected {
    only_rn_rz(m, rounding)?;
    macro_rules! body {
        ($T:ty, $Format:ty) => {
            for_rounding!(rounding => R, for_flag!(relu => RELU, for_flag!(satfinite => FINITE, {
                value!(|a: f32| -> $T { from_single::<$T, $Format, R, RELU, FINITE>(a) })
            })))
        };
    }
    Ok(match to {
        Type::F16 => body!(F16, Binary16),
        _ => body!(Bf16, Bfloat16),
    })
}

/// Of binary32's conversions to narrower formats, some have these two roundings only.
pub(super) fn only_rn_rz(m: &Modifiers<'_>, rounding: Rounding) -> Result<(), Unsupported> {
    match rounding {
        Rounding::Nearest | Rounding::Zero => Ok(()),
        other => Err(m.wrong(other.name())),
    }
}

/// One number of binary32 in a half precision.
#[inline(always)]
pub(super) fn from_single<T: Half, F: Format, R: Round, const RELU: bool, const SATFINITE: bool>(
    a: f32,
) -> T {
    let r = if !SATFINITE && matches!(R::ROUNDING, Rounding::Nearest) {
        T::from_f32(a)
    } else {
        T::read(narrow::<F, R>(a.into(), SATFINITE))
    };
    result::<false, false, RELU, T>(r)
}

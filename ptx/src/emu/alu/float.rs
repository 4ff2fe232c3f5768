//! Floating-point arithmetic (PTX ISA 9.7.3, 9.7.4 and 9.7.5).
//!
//! What the manual calls approximate is computed to the nearest here: quotients and roots exactly so, the
//! transcendental functions in binary64 and then rounded. A GPU's approximations differ from these within the
//! bounds that the manual gives, also where it gives up: `div.approx.f32` by more than 2^126 is 0 on a GPU.

use super::Alu;
use super::exact::{Bfloat16, Binary16, Format, narrow};
use super::half::{Bf16, F16, Half};
use super::lanes::{Lane, for_flag, for_rounding, for_type, held, value};
use super::modifiers::{Modifiers, Unsupported};
use super::number::{Divided, Elements, Number, canonical, extremum, result, source};
use super::round::{Nearest, Rounding};
use crate::types::Type;

type Selected = Result<Alu, Unsupported>;

/// Whether `.ftz` goes with the type: not with binary64, which has none, nor with bfloat16.
fn ftz(m: &mut Modifiers<'_>, ty: Type) -> bool {
    matches!(ty, Type::F32 | Type::F32x2 | Type::F16 | Type::F16x2) && m.flag("ftz")
}

fn sat(m: &mut Modifiers<'_>, ty: Type) -> bool {
    matches!(ty, Type::F32 | Type::F16 | Type::F16x2) && m.flag("sat")
}

/// The halves are rounded to nearest alone.
fn nearest(m: &Modifiers<'_>, rounding: Rounding) -> Result<(), Unsupported> {
    if rounding == Rounding::Nearest { Ok(()) } else { Err(m.wrong(rounding.name())) }
}

/// `add`, `sub` and `mul`.
macro_rules! two_sources {
    ($name:ident $(, $mixed:expr)?) => {
        pub(super) fn $name(m: &mut Modifiers<'_>) -> Selected {
            let rounding = m.rounding().unwrap_or(Rounding::Nearest);
            let ty = m.ty()?;
            $(if ty == Type::F32 && m.last_type().is_ok() {
                return $mixed(m, rounding);
            })?
            let (ftz, sat) = (ftz(m, ty), sat(m, ty));
            macro_rules! body {
                ($T:ty, $R:ty, $FTZ:expr, $SAT:expr) => {
                    value!(|a: $T, b: $T| -> $T {
                        <$T as Elements>::map2(a, b, |a, b| {
                            let (a, b) = (source::<{ $FTZ }, _>(a), source::<{ $FTZ }, _>(b));
                            result::<{ $FTZ }, { $SAT }, false, _>(Number::$name::<$R>(a, b))
                        })
                    })
                };
            }
            match ty {
                Type::F32 => Ok(for_rounding!(rounding => R, for_flag!(ftz => FTZ, {
                    for_flag!(sat => SAT, body!(f32, R, FTZ, SAT))
                }))),
                Type::F32x2 => for_type!(m, ty, T in [F32x2], for_rounding!(rounding => R, {
                    for_flag!(ftz => FTZ, body!(T, R, FTZ, false))
                })),
                Type::F64 => Ok(for_rounding!(rounding => R, body!(f64, R, false, false))),
                Type::F16 | Type::F16x2 => {
                    nearest(m, rounding)?;
                    for_type!(m, ty, T in [F16 F16x2], for_flag!(ftz => FTZ, {
                        for_flag!(sat => SAT, body!(T, Nearest, FTZ, SAT))
                    }))
                }
                _ => {
                    nearest(m, rounding)?;
                    for_type!(m, ty, T in [Bf16 Bf16x2], body!(T, Nearest, false, false))
                }
            }
        }
    };
}
two_sources!(add, mixed::add);
two_sources!(sub, mixed::sub);
two_sources!(mul);

/// Half precisions in binary32's arithmetic (PTX ISA 9.7.5).
mod mixed {
    use super::*;

    macro_rules! mixed {
        ($name:ident, |$($x:ident),+|) => {
            pub(super) fn $name(m: &mut Modifiers<'_>, rounding: Rounding) -> Selected {
                let ty = m.ty()?;
                let sat = m.flag("sat");
                for_type!(m, ty, T in [F16 Bf16], for_rounding!(rounding => R, {
                    for_flag!(sat => SAT, value!(|$($x: T,)+ c: f32| -> f32 {
                        let r = <f32 as Number>::$name::<R>($($x.to_f32(),)+ c);
                        result::<false, SAT, false, f32>(r)
                    }))
                }))
            }
        };
    }
    mixed!(add, |a|);
    mixed!(sub, |a|);
    mixed!(fma, |a, b|);
}

/// `fma`, and `mad` where `rounded` is not asked for.
pub(super) fn fma(m: &mut Modifiers<'_>, rounded: bool) -> Selected {
    let rounding = match m.rounding() {
        Some(rounding) => rounding,
        None if rounded => return Err(m.missing("a rounding")),
        None => Rounding::Nearest,
    };
    let ty = m.ty()?;
    if ty == Type::F32 && m.last_type().is_ok() {
        return mixed::fma(m, rounding);
    }
    let (ftz, sat) = (ftz(m, ty), sat(m, ty));
    let half = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
    let relu = half && !sat && m.flag("relu");
    macro_rules! body {
        ($T:ty, $R:ty, $FTZ:expr, $SAT:expr, $RELU:expr) => {
            value!(|a: $T, b: $T, c: $T| -> $T {
                <$T as Elements>::map3(a, b, c, |a, b, c| {
                    let (a, b) = (source::<{ $FTZ }, _>(a), source::<{ $FTZ }, _>(b));
                    let r = Number::fma::<$R>(a, b, source::<{ $FTZ }, _>(c));
                    result::<{ $FTZ }, { $SAT }, { $RELU }, _>(r)
                })
            })
        };
    }
    match ty {
        Type::F32 => Ok(for_rounding!(rounding => R, for_flag!(ftz => FTZ, {
            for_flag!(sat => SAT, body!(f32, R, FTZ, SAT, false))
        }))),
        Type::F32x2 => for_type!(m, ty, T in [F32x2], for_rounding!(rounding => R, {
            for_flag!(ftz => FTZ, body!(T, R, FTZ, false, false))
        })),
        Type::F64 => Ok(for_rounding!(rounding => R, body!(f64, R, false, false, false))),
        Type::F16 | Type::F16x2 => {
            nearest(m, rounding)?;
            for_type!(m, ty, T in [F16 F16x2], for_flag!(ftz => FTZ, {
                if relu {
                    body!(T, Nearest, FTZ, false, true)
                } else {
                    for_flag!(sat => SAT, body!(T, Nearest, FTZ, SAT, false))
                }
            }))
        }
        _ => {
            nearest(m, rounding)?;
            for_type!(m, ty, T in [Bf16 Bf16x2], for_flag!(relu => RELU, {
                body!(T, Nearest, false, false, RELU)
            }))
        }
    }
}

/// A rounding, or `.approx` or what else `names` says for the nearest.
fn accuracy(m: &mut Modifiers<'_>, ty: Type, names: &[&str]) -> Result<Rounding, Unsupported> {
    if let Some(rounding) = m.rounding() {
        return Ok(rounding);
    }
    if ty == Type::F32 && names.iter().any(|name| m.flag(name)) {
        return Ok(Rounding::Nearest);
    }
    Err(m.missing("a rounding or `.approx`"))
}

pub(super) fn div(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    let rounding = accuracy(m, ty, &["approx", "full"])?;
    let ftz = ftz(m, ty);
    for_type!(m, ty, T in [F32 F64], for_rounding!(rounding => R, for_flag!(ftz => FTZ, {
        value!(|a: T, b: T| -> T {
            let q = T::div::<R>(source::<FTZ, T>(a), source::<FTZ, T>(b));
            result::<FTZ, false, false, T>(q)
        })
    })))
}

pub(super) fn rcp(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    if ty == Type::F64 && m.flag("approx") {
        return upper_half(m, value!(|a: f64| -> f64 { in_upper_half(a, |a| 1.0 / a) }));
    }
    let rounding = accuracy(m, ty, &["approx"])?;
    let ftz = ftz(m, ty);
    for_type!(m, ty, T in [F32 F64], for_rounding!(rounding => R, for_flag!(ftz => FTZ, {
        value!(|a: T| -> T {
            result::<FTZ, false, false, T>(T::div::<R>(T::ONE, source::<FTZ, T>(a)))
        })
    })))
}

/// The forms on a binary64's upper 32 bits are there with `.ftz` alone.
fn upper_half(m: &mut Modifiers<'_>, alu: Alu) -> Selected {
    if m.flag("ftz") { Ok(alu) } else { Err(m.missing("`.ftz`")) }
}

/// `.approx.ftz.f64` reads and writes the upper 32 bits of a number; the lower are zero (PTX ISA 9.7.3.14).
#[inline(always)]
fn in_upper_half(a: f64, f: impl Fn(f64) -> f64) -> f64 {
    let upper = |x: f64| f64::from_bits(x.to_bits() & !0xffff_ffff);
    let r = upper(f(upper(a).flushed()).flushed());
    f64::from_bits(if r.is_nan() { 0x7fff_ffff << 32 } else { r.to_bits() })
}

pub(super) fn sqrt(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    let rounding = accuracy(m, ty, &["approx"])?;
    let ftz = ftz(m, ty);
    for_type!(m, ty, T in [F32 F64], for_rounding!(rounding => R, for_flag!(ftz => FTZ, {
        value!(|a: T| -> T {
            result::<FTZ, false, false, T>(<T as Divided>::sqrt::<R>(source::<FTZ, T>(a)))
        })
    })))
}

pub(super) fn rsqrt(m: &mut Modifiers<'_>) -> Selected {
    if m.last_type()? == Type::F64 {
        m.ty()?;
        if !m.flag("approx") {
            return Err(m.missing("`.approx`"));
        }
        return Ok(if m.flag("ftz") {
            value!(|a: f64| -> f64 { in_upper_half(a, |a| 1.0 / a.sqrt()) })
        } else {
            value!(|a: f64| -> f64 {
                <f64 as Divided>::div::<Nearest>(1.0, <f64 as Divided>::sqrt::<Nearest>(a))
            })
        });
    }
    transcendental(m, |_, ftz| {
        Ok(for_flag!(ftz => FTZ, value!(|a: f32| -> f32 {
            function::<FTZ>(a, |a| 1.0 / a.sqrt())
        })))
    })
}

/// Takes `.approx{.ftz}.f32`.
fn transcendental(
    m: &mut Modifiers<'_>,
    alu: impl Fn(&mut Modifiers<'_>, bool) -> Selected,
) -> Selected {
    if !m.flag("approx") {
        return Err(m.missing("`.approx`"));
    }
    let ftz = m.flag("ftz");
    match m.ty()? {
        Type::F32 => alu(m, ftz),
        other => Err(m.wrong(other.name())),
    }
}

#[inline(always)]
fn function<const FTZ: bool>(a: f32, f: impl Fn(f64) -> f64) -> f32 {
    let r = f(f64::from(source::<FTZ, f32>(a))) as f32;
    let r = canonical(r);
    result::<FTZ, false, false, f32>(r)
}

macro_rules! transcendental {
    ($($name:ident $f:ident;)*) => {
        $(pub(super) fn $name(m: &mut Modifiers<'_>) -> Selected {
            transcendental(m, |_, ftz| {
                Ok(for_flag!(ftz => FTZ, value!(|a: f32| -> f32 { function::<FTZ>(a, f64::$f) })))
            })
        })*
    };
}
transcendental! { sin sin; cos cos; lg2 log2; }

/// A half precision's function, computed in binary64 and rounded once.
trait ByF64: Number {
    fn by_f64(self, f: impl Fn(f64) -> f64) -> Self;
}

impl ByF64 for F16 {
    #[inline(always)]
    fn by_f64(self, f: impl Fn(f64) -> f64) -> F16 {
        F16::read(rounded::<Binary16>(f(self.to_f32().into())))
    }
}

impl ByF64 for Bf16 {
    #[inline(always)]
    fn by_f64(self, f: impl Fn(f64) -> f64) -> Bf16 {
        Bf16::read(rounded::<Bfloat16>(f(self.to_f32().into())))
    }
}

fn rounded<F: Format>(x: f64) -> u64 {
    narrow::<F, Nearest>(x, false)
}

/// `.ftz` is there for binary32 and, always, for bfloat16.
pub(super) fn ex2(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.last_type()?;
    if ty == Type::F32 {
        return transcendental(m, |_, ftz| {
            Ok(for_flag!(ftz => FTZ, value!(|a: f32| -> f32 { function::<FTZ>(a, f64::exp2) })))
        });
    }
    if !m.flag("approx") {
        return Err(m.missing("`.approx`"));
    }
    m.ty()?;
    if matches!(ty, Type::Bf16 | Type::Bf16x2) {
        if !m.flag("ftz") {
            return Err(m.missing("`.ftz`"));
        }
        return for_type!(m, ty, T in [Bf16 Bf16x2], value!(|a: T| -> T {
            T::map(a, |a| a.flushed().by_f64(f64::exp2).flushed())
        }));
    }
    for_type!(m, ty, T in [F16 F16x2], value!(|a: T| -> T {
        T::map(a, |a| a.by_f64(f64::exp2))
    }))
}

pub(super) fn tanh(m: &mut Modifiers<'_>) -> Selected {
    if !m.flag("approx") {
        return Err(m.missing("`.approx`"));
    }
    match m.ty()? {
        Type::F32 => Ok(value!(|a: f32| -> f32 { function::<false>(a, f64::tanh) })),
        ty => for_type!(m, ty, T in [F16 F16x2 Bf16 Bf16x2], value!(|a: T| -> T {
            T::map(a, |a| a.by_f64(f64::tanh))
        })),
    }
}

macro_rules! signs {
    ($($name:ident $method:ident;)*) => {
        $(pub(super) fn $name(m: &mut Modifiers<'_>) -> Selected {
            let ty = m.ty()?;
            let ftz = ftz(m, ty);
            for_type!(m, ty, T in [F32 F64 F16 F16x2 Bf16 Bf16x2], for_flag!(ftz => FTZ, {
                value!(|a: T| -> T { T::map(a, |a| source::<FTZ, _>(a).$method()) })
            }))
        })*
    };
}
signs! { abs magnitude; neg negated; }

/// The sign of the first and the magnitude of the second.
pub(super) fn copysign(m: &mut Modifiers<'_>) -> Selected {
    let ty = m.ty()?;
    for_type!(m, ty, T in [F32 F64], value!(|a: T, b: T| -> T { b.copysign(a) }))
}

/// `min` if `least`, else `max`. Of the form with three sources, which has the same name, nothing is here.
pub(super) fn min_max(m: &mut Modifiers<'_>, least: bool) -> Selected {
    let ty = m.ty()?;
    let ftz = ftz(m, ty);
    let (nan, xor) = (ty != Type::F64 && m.flag("NaN"), ty != Type::F64 && m.flag("xorsign"));
    if xor && !m.flag("abs") {
        return Err(m.missing("`.abs` with `.xorsign`"));
    }
    for_type!(m, ty, T in [F32 F64 F16 F16x2 Bf16 Bf16x2], for_flag!(ftz => FTZ, {
        for_flag!(least => LEAST, for_flag!(nan => NAN, for_flag!(xor => XOR, {
            value!(|a: T, b: T| -> T {
                T::map2(a, b, |a, b| {
                    let (a, b) = (source::<FTZ, _>(a), source::<FTZ, _>(b));
                    extremum::<LEAST, NAN, XOR, _>(a, b)
                })
            })
        })))
    }))
}

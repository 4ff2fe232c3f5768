//! Minima, maxima, comparisons, `.ftz`, `.sat` and `.relu`: all pairs of special values, by the manual's pseudo-code.

use ferroccl_ptx::types::Type;

use crate::Test;
use crate::reference::Format;
use crate::rounding::one;
use crate::run::selected;

pub(crate) const TRIALS: &[(&str, Test)] = &[
    ("min_and_max_of_special_values", extrema),
    ("comparisons_of_special_values", comparisons),
    ("flushing_and_saturation", modifiers),
    ("packed_is_twice", packed),
    ("nans_are_canonical", nans),
];

const TYPES: [Type; 4] = [Type::F64, Type::F32, Type::F16, Type::Bf16];

/// Zeros, subnormal numbers, ones, the ends, infinities and NaNs, of both signs.
fn special(format: &Format) -> Vec<u64> {
    let one = format.exactly(1.0).expect("every format has a one");
    let least = format.place(format.exactly(1.0).unwrap_or(0)).unwrap_or(0);
    let normal = 1i64 << (format.bits() - 2 - exponent_bits(format));
    let end = format.end();
    let mut places = vec![0, 1, normal - 1, normal, normal + 1, end - 1, end];
    places.extend([least, least - 1, least + 1, least / 2, least + normal]);
    let mut all: Vec<u64> = places.iter().map(|&k| format.at(k)).collect();
    all.extend([format.at(end) + 1, format.at(end) | format.at(normal / 2), one]);
    let sign = 1 << (format.bits() - 1);
    let negative: Vec<u64> = all.iter().map(|x| x | sign).collect();
    all.extend(negative);
    all
}

/// Bits of the exponent, less one, which stand above the mantissa.
fn exponent_bits(format: &Format) -> u32 {
    match format.ty {
        Type::F64 => 10,
        Type::F16 => 4,
        _ => 7,
    }
}

fn sign(format: &Format) -> u64 {
    1 << (format.bits() - 1)
}

/// The zero of its sign for a subnormal number.
fn flushed(format: &Format, x: u64, ftz: bool) -> u64 {
    let normal = 1u64 << (format.bits() - 2 - exponent_bits(format));
    if ftz && x & !sign(format) < normal { x & sign(format) } else { x }
}

/// The pseudo-code of 9.7.4.7 and 9.7.4.8, and the order -0 < +0.
fn extremum(format: &Format, least: bool, (nan, xor): (bool, bool), a: u64, b: u64) -> u64 {
    let sign = sign(format);
    let product = (a ^ b) & sign;
    let (a, b) = if xor { (a & !sign, b & !sign) } else { (a, b) };
    let order = |x: u64| {
        let k = format.place(x).unwrap_or(0);
        (k, !format.negative(x))
    };
    let (a_nan, b_nan) = (format.is_nan(a), format.is_nan(b));
    let d = if a_nan && b_nan || nan && (a_nan || b_nan) {
        return format.nan();
    } else if a_nan {
        b
    } else if b_nan || (order(a) < order(b)) == least {
        a
    } else {
        b
    };
    if xor { d & !sign | product } else { d }
}

fn extrema() -> Result<(), String> {
    for ty in TYPES {
        let format = Format::of(ty).ok_or("a format")?;
        let values = special(&format);
        for (op, least) in [("min", true), ("max", false)] {
            for case in 0..8 {
                let (ftz, nan, xor) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
                if ftz && ty == Type::Bf16 || case != 0 && ty == Type::F64 {
                    continue;
                }
                let mut what = op.to_string();
                what += if ftz { ".ftz" } else { "" };
                what += if nan { ".NaN" } else { "" };
                what += if xor { ".xorsign.abs" } else { "" };
                what += &ty.to_string();
                let alu = selected(&what)?;
                for &a in &values {
                    for &b in &values {
                        let got = one(&alu, &[a, b]);
                        let (x, y) = (flushed(&format, a, ftz), flushed(&format, b, ftz));
                        let expected = extremum(&format, least, (nan, xor), x, y);
                        // binary64 keeps a NaN's payload.
                        let payload = ty == Type::F64 && format.is_nan(expected);
                        if got != expected && !(payload && format.is_nan(got)) {
                            return Err(format!(
                                "{what} of {a:#x}, {b:#x} gives {got:#x}, not {expected:#x}"
                            ));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// What a comparison's name says of an order, if there is one.
fn truth(op: &str, order: Option<std::cmp::Ordering>) -> bool {
    let Some(order) = order else { return op.ends_with('u') || op == "nan" };
    match op.trim_end_matches('u') {
        "eq" => order.is_eq(),
        "ne" => order.is_ne(),
        "lt" | "lo" => order.is_lt(),
        "le" | "ls" => order.is_le(),
        "gt" | "hi" => order.is_gt(),
        "ge" | "hs" => order.is_ge(),
        _ => op == "n" || op == "num", // `num` without its last letter is no comparison's
    }
}

const COMPARISONS: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

fn comparisons() -> Result<(), String> {
    for ty in TYPES {
        let format = Format::of(ty).ok_or("a format")?;
        let values = special(&format);
        for ftz in [false, true] {
            if ftz && !matches!(ty, Type::F32 | Type::F16) {
                continue;
            }
            let flag = if ftz { ".ftz" } else { "" };
            for op in COMPARISONS {
                let setp = selected(&format!("setp.{op}{flag}{ty}"))?;
                let set = selected(&format!("set.{op}{flag}.u32{ty}"))?;
                let pair = match ty {
                    Type::F16 | Type::Bf16 => Some(selected(&format!("set.{op}{flag}.u32{ty}x2"))?),
                    _ => None,
                };
                for &a in &values {
                    for &b in &values {
                        let at = |x| format.place(flushed(&format, x, ftz));
                        let order = at(a).zip(at(b)).map(|(a, b)| a.cmp(&b));
                        let expected = truth(op, order);
                        let got = one(&setp, &[a, b]) != 0;
                        let all = if expected { 0xffff_ffff } else { 0 };
                        let mut right = got == expected && one(&set, &[a, b]) == all;
                        if let Some(pair) = &pair {
                            let other = u64::from(truth(op, at(b).map(|b| b.cmp(&b)))) * 0xffff;
                            let both = one(pair, &[b << 16 | a, b << 16 | b]);
                            right &= both == other << 16 | all & 0xffff;
                        }
                        if !right {
                            return Err(format!("{op}{flag}{ty} of {a:#x}, {b:#x} gives {got}"));
                        }
                    }
                }
            }
        }
    }
    // Integers: the order of the values; `lo`, `ls`, `hi`, `hs` are the unsigned ones again.
    for (ty, ops) in [
        (Type::S16, &COMPARISONS[..6]),
        (Type::S32, &COMPARISONS[..6]),
        (Type::S64, &COMPARISONS[..6]),
        (Type::U16, &["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"]),
        (Type::U32, &["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"]),
        (Type::U64, &["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"]),
        (Type::B32, &["eq", "ne"]),
    ] {
        let top = 1 << (ty.bits() - 1);
        let values = [0, 1, 2, top - 1, top, top + 1, top | (top - 1)];
        for op in ops {
            let alu = selected(&format!("setp.{op}{ty}"))?;
            for a in values {
                for b in values {
                    let turn = if ty.is_signed() { top } else { 0 };
                    let expected = truth(op, Some((a ^ turn).cmp(&(b ^ turn))));
                    if (one(&alu, &[a, b]) != 0) != expected {
                        return Err(format!("setp.{op}{ty} of {a:#x}, {b:#x} gives {}", !expected));
                    }
                }
            }
        }
    }
    Ok(())
}

/// A modifier is the plain instruction on flushed sources, with its result flushed, saturated or clamped.
fn modifiers() -> Result<(), String> {
    for (name, sources) in [
        ("add.rn.f32", 2),
        ("mul.rz.f32", 2),
        ("sub.rp.f32", 2),
        ("fma.rn.f32", 3),
        ("fma.rm.f32", 3),
        ("add.f16", 2),
        ("sub.f16", 2),
        ("mul.f16", 2),
        ("fma.rn.f16", 3),
        ("fma.rn.bf16", 3),
        ("mad.rn.f32", 3),
    ] {
        let (stem, ty) = name.rsplit_once('.').ok_or("a type")?;
        let ty = Type::from_name(ty).ok_or("a type")?;
        let format = Format::of(ty).ok_or("a format")?;
        let values = special(&format);
        let unit = format.exactly(1.0).ok_or("a one")?;
        let plain = selected(name)?;
        let mut cases: Vec<(&str, bool, bool, bool)> = Vec::new();
        if ty != Type::Bf16 {
            cases.extend([
                (".ftz", true, false, false),
                (".sat", false, true, false),
                (".ftz.sat", true, true, false),
            ]);
        }
        if stem.starts_with("fma") && ty != Type::F32 {
            cases.push((".relu", false, false, true));
        }
        for (flags, ftz, sat, relu) in cases {
            let what = format!("{stem}{flags}{ty}");
            let alu = selected(&what)?;
            for (i, &a) in values.iter().enumerate() {
                for &b in &values {
                    let mut operands = vec![a, b, values[(i * 7 + 3) % values.len()]];
                    operands.truncate(sources);
                    let got = one(&alu, &operands);
                    let clean: Vec<u64> =
                        operands.iter().map(|&x| flushed(&format, x, ftz)).collect();
                    let r = flushed(&format, one(&plain, &clean), ftz);
                    let negative = r & sign(&format) != 0;
                    let expected = match format.place(r) {
                        None if sat => 0,
                        None => r,
                        Some(_) if (sat || relu) && negative => 0,
                        Some(_) if sat && r > unit => unit,
                        Some(_) => r,
                    };
                    if got != expected {
                        return Err(format!("{what} of {operands:x?} gives {got:#x}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Packed instructions are the scalar one on each half.
fn packed() -> Result<(), String> {
    for (name, sources) in [
        ("add.", 2),
        ("sub.", 2),
        ("mul.", 2),
        ("fma.rn.", 3),
        ("min.", 2),
        ("max.NaN.", 2),
        ("min.xorsign.abs.", 2),
        ("neg.", 1),
        ("abs.", 1),
        ("tanh.approx.", 1),
        ("fma.rn.relu.", 3),
        ("ex2.approx.", 1),
        ("ex2.approx.ftz.", 1),
        ("add.ftz.", 2),
        ("fma.rz.ftz.", 3),
        ("mul.rp.", 2),
        ("add.rm.", 2),
    ] {
        for ty in ["f16", "bf16", "f32", "u16", "s16"] {
            let (scalar, pair) = (format!("{name}{ty}"), format!("{name}{ty}x2"));
            let (Ok(scalar), Ok(pair_alu)) = (selected(&scalar), selected(&pair)) else { continue };
            let ty = Type::from_name(ty).ok_or("a type")?;
            let format = Format::of(ty).or(Format::of(Type::F16)).ok_or("a format")?;
            let values = special(&format);
            for (i, &a) in values.iter().enumerate() {
                for (j, &b) in values.iter().enumerate() {
                    let low = [a, b, values[(i * 5 + j) % values.len()]];
                    let high = [values[(i + 3) % values.len()], a, b];
                    let both: Vec<u64> =
                        (0..sources).map(|i| high[i] << ty.bits() | low[i]).collect();
                    let expected =
                        one(&scalar, &high[..sources]) << ty.bits() | one(&scalar, &low[..sources]);
                    let got = one(&pair_alu, &both);
                    if got != expected {
                        return Err(format!(
                            "{pair} of {both:x?} gives {got:#x}, not {expected:#x}"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whatever NaN goes in, one NaN comes out; binary64 keeps the first payload.
fn nans() -> Result<(), String> {
    for (name, sources) in [
        ("add", 2),
        ("sub", 2),
        ("mul", 2),
        ("fma.rn", 3),
        ("fma.rz", 3),
        ("add.rm", 2),
        ("mul.rp", 2),
        ("div.rn", 2),
        ("div.rz", 2),
        ("sqrt.rn", 1),
        ("sqrt.rp", 1),
        ("rcp.rn", 1),
        ("sin.approx", 1),
        ("tanh.approx", 1),
        ("ex2.approx", 1),
        ("ex2.approx.ftz", 1),
        ("rsqrt.approx", 1),
    ] {
        for ty in TYPES {
            let what = format!("{name}{ty}");
            let Ok(alu) = selected(&what) else { continue };
            let format = Format::of(ty).ok_or("a format")?;
            let infinity = format.at(format.end());
            let payload = infinity | 5 | sign(&format);
            let some = format.exactly(1.5).ok_or("one and a half")?;
            for at in 0..sources {
                let mut values = vec![some; sources];
                values[at] = payload;
                let got = one(&alu, &values);
                let expected = if ty == Type::F64 { payload | 1 << 51 } else { format.nan() };
                if got != expected {
                    return Err(format!("{what} of {values:x?} gives {got:#x}"));
                }
            }
            let invalid = match name.split('.').next() {
                Some("add") => vec![infinity, infinity | sign(&format)],
                Some("sub") => vec![infinity, infinity],
                Some("mul") => vec![infinity, 0],
                Some("fma") => vec![infinity, some, infinity | sign(&format)],
                Some("div") => vec![0, 0],
                Some("sqrt") => vec![some | sign(&format)],
                _ => continue,
            };
            let got = one(&alu, &invalid);
            if got != format.nan() {
                return Err(format!("{what} of {invalid:x?} gives {got:#x}"));
            }
        }
    }
    Ok(())
}

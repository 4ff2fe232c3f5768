//! Conversions: the narrow formats exhaustively, the wide ones at random, all against exact values.

use ferroccl_ptx::types::Type;

use crate::Test;
use crate::reference::{Dyadic, Format, Mode};
use crate::rng::{Rng, seed};
use crate::rounding::{number, one};
use crate::run::selected;

pub(crate) const TRIALS: &[(&str, Test)] = &[
    ("halves_widen_exactly", halves_widen),
    ("floats_narrow_to_every_format", narrow),
    ("bytes_both_ways", bytes),
    ("integers_to_floats", from_integers),
    ("floats_to_integers", to_integers),
    ("floats_to_integral_floats", integral),
    ("integers_to_integers", between_integers),
    ("packed_conversions_are_two", packed),
    ("cvt_pack_puts_side_by_side", pack),
];

fn format(ty: Type) -> Format {
    Format::of(ty).expect("the types of these tests are floating-point")
}

/// All 65536 values of both halves, to both wider types.
fn halves_widen() -> Result<(), String> {
    for from in [Type::F16, Type::Bf16] {
        for to in [Type::F32, Type::F64] {
            let alu = selected(&format!("cvt{to}{from}"))?;
            let (narrow, wide) = (format(from), format(to));
            for bits in 0..=0xffff {
                let got = one(&alu, &[bits]);
                let right = match narrow.place(bits) {
                    None => got == wide.nan(),
                    Some(k) if k.abs() == narrow.end() => {
                        wide.place(got).map(i64::abs) == Some(wide.end())
                            && wide.negative(got) == narrow.negative(bits)
                    }
                    Some(k) => {
                        wide.finite(got).is_some_and(|x| x.compare(&narrow.value(k)).is_eq())
                            && wide.negative(got) == narrow.negative(bits)
                    }
                };
                if !right {
                    return Err(format!("cvt{to}{from} of {bits:#x} gives {got:#x}"));
                }
            }
        }
    }
    Ok(())
}

/// Inputs that try every rounding of a narrow format: each of its values and midpoints, exactly and one unit off.
fn around(narrow: &Format, wide: &Format) -> Vec<u64> {
    let mut inputs = Vec::new();
    let step = if narrow.bits() > 16 { 97 } else { 1 };
    for k in (0..=narrow.end()).step_by(step) {
        let middle = narrow.value(k).plus(&narrow.value(k + 1));
        for (point, halved) in [(narrow.value(k).plus(&narrow.value(k)), true), (middle, true)] {
            debug_assert!(halved);
            let Some(bits) = half_of(&point, wide) else { continue };
            inputs.extend([bits.saturating_sub(1), bits, bits + 1]);
        }
    }
    let sign = 1 << (wide.bits() - 1);
    let negative: Vec<u64> = inputs.iter().map(|x| x | sign).collect();
    inputs.extend(negative);
    inputs.extend([wide.nan(), sign | wide.nan() ^ 1, 1, sign | 1]);
    inputs.push(wide.at(wide.end()));
    inputs.push(wide.at(-wide.end()));
    inputs
}

/// The bits of half of a number, found by halving the line.
fn half_of(twice: &Dyadic, wide: &Format) -> Option<u64> {
    let double = |k: i64| wide.value(k).plus(&wide.value(k));
    let (mut low, mut high) = (0, wide.end());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if double(middle).compare(twice).is_le() { low = middle } else { high = middle }
    }
    (double(low).compare(twice).is_eq()).then(|| wide.at(low))
}

/// Whether `got` is what a conversion makes of `bits`.
fn converted(
    (wide, narrow): (&Format, &Format),
    mode: Mode,
    (saturate, relu): (bool, bool),
    bits: u64,
    got: u64,
) -> bool {
    let Some(k) = wide.place(bits) else { return got == narrow.nan() };
    if relu && wide.negative(bits) {
        return got == 0;
    }
    if k.abs() == wide.end() {
        let last = if saturate { narrow.end() - 1 } else { narrow.end() };
        return got == narrow.at(last * k.signum());
    }
    let x = wide.value(k);
    let sign = narrow.negative(got) == wide.negative(bits);
    sign && narrow.rounded(mode, got, x.sign(), saturate, &|c| c.compare(&x))
}

fn narrow() -> Result<(), String> {
    let seed = seed() + 20;
    let mut rng = Rng(seed);
    let mut names: Vec<(String, Type, Type, Mode, bool, bool)> = Vec::new();
    for (rnd, mode) in Mode::FOUR {
        for (to, from) in [
            (Type::F16, Type::F32),
            (Type::Bf16, Type::F32),
            (Type::F16, Type::F64),
            (Type::Bf16, Type::F64),
            (Type::F32, Type::F64),
            (Type::Bf16, Type::F16),
            (Type::F16, Type::Bf16),
        ] {
            names.push((format!("cvt.{rnd}{to}{from}"), to, from, mode, false, false));
        }
        if !matches!(mode, Mode::Rn | Mode::Rz) {
            continue;
        }
        for to in [Type::F16, Type::Bf16, Type::Tf32] {
            for (name, saturate, relu) in [
                ("", false, false),
                (".relu", false, true),
                (".satfinite", true, false),
                (".relu.satfinite", true, true),
            ] {
                let name = format!("cvt.{rnd}{name}{to}.f32");
                names.push((name, to, Type::F32, mode, saturate, relu));
            }
        }
    }
    names.push(("cvt.rna.tf32.f32".into(), Type::Tf32, Type::F32, Mode::Rna, false, false));
    names.push((
        "cvt.rna.satfinite.tf32.f32".into(),
        Type::Tf32,
        Type::F32,
        Mode::Rna,
        true,
        false,
    ));
    for (name, to, from, mode, saturate, relu) in names {
        let alu = selected(&name)?;
        let (narrow, wide) = (format(to), format(from));
        let mut inputs = match (to, from) {
            (_, Type::F16 | Type::Bf16) => (0..=0xffff).collect(),
            (Type::F32, _) => Vec::new(),
            _ => around(&narrow, &wide),
        };
        if inputs.len() > 20_000 && mode != Mode::Rn {
            // Exhaustive to nearest; the others take a part, another each time.
            let keep = rng.below(7);
            inputs = inputs.into_iter().skip(keep as usize).step_by(7).collect();
        }
        inputs.extend((0..5_000).map(|_| number(&mut rng, &wide)));
        if to == Type::F32 {
            // binary64 numbers beside those of binary32, and in its subnormal range.
            for _ in 0..5_000 {
                let x = f64::from(f32::from_bits(rng.next() as u32));
                inputs.push(
                    (x.to_bits() & !0x1fff_ffff).wrapping_add(rng.below(5) << 28).wrapping_sub(1),
                );
            }
        }
        for bits in inputs {
            let got = one(&alu, &[bits]);
            if !converted((&wide, &narrow), mode, (saturate, relu), bits, got) {
                return Err(format!("{name} of {bits:#x} gives {got:#x} (seed {seed})"));
            }
        }
    }
    Ok(())
}

fn bytes() -> Result<(), String> {
    let seed = seed() + 21;
    let mut rng = Rng(seed);
    let half = format(Type::F16);
    for (pair, ty) in [(Type::E4m3x2, Type::E4m3), (Type::E5m2x2, Type::E5m2)] {
        let byte = format(ty);
        let out = selected(&format!("cvt.rn.f16x2{pair}"))?;
        let out_relu = selected(&format!("cvt.rn.relu.f16x2{pair}"))?;
        for high in 0..256 {
            for low in 0..256 {
                let bits = high << 8 | low;
                let (got, relu) = (one(&out, &[bits]), one(&out_relu, &[bits]));
                for (b, shift) in [(low, 0), (high, 16)] {
                    let (h, r) = (got >> shift & 0xffff, relu >> shift & 0xffff);
                    let right = match byte.place(b) {
                        None => h == half.nan() && r == half.nan(),
                        Some(k) => {
                            let value = byte.value(k);
                            let same = match half.place(h) {
                                Some(place) => half.value(place).compare(&value).is_eq(),
                                None => false,
                            };
                            let infinite = byte.negative(b) == half.negative(h)
                                && (k.abs() == byte.end()) == (h & 0x7fff == 0x7c00);
                            let r_right = r == if byte.negative(b) { 0 } else { h };
                            infinite && r_right && (same || k.abs() == byte.end())
                        }
                    };
                    if !right {
                        return Err(format!("{pair} {b:#x} gives {h:#x}, with relu {r:#x}"));
                    }
                }
            }
        }
        for (relu, name) in [(false, ""), (true, ".relu")] {
            let what = format!("cvt.rn.satfinite{name}{pair}");
            let single = selected(&format!("{what}.f32"))?;
            let mode = (true, relu);
            let wide = format(Type::F32);
            let mut inputs = around(&byte, &wide);
            inputs.extend((0..20_000).map(|_| number(&mut rng, &wide)));
            for &a in &inputs {
                let b = inputs[rng.below(inputs.len() as u64) as usize];
                let got = one(&single, &[a, b]);
                let right = converted((&wide, &byte), Mode::Rn, mode, a, got >> 8)
                    && converted((&wide, &byte), Mode::Rn, mode, b, got & 0xff);
                if !right {
                    return Err(format!(
                        "{what}.f32 of {a:#x}, {b:#x} gives {got:#x} (seed {seed})"
                    ));
                }
            }
            for from in [Type::F16, Type::Bf16] {
                let alu = selected(&format!("{what}{from}x2"))?;
                let wide = format(from);
                for a in 0..=0xffff {
                    let b = rng.below(0x10000);
                    let got = one(&alu, &[a << 16 | b]);
                    let right = converted((&wide, &byte), Mode::Rn, mode, a, got >> 8)
                        && converted((&wide, &byte), Mode::Rn, mode, b, got & 0xff);
                    if !right {
                        return Err(format!(
                            "{what}{from}x2 of {a:#x}, {b:#x}: {got:#x} (seed {seed})"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

const INTEGERS: [Type; 8] =
    [Type::U8, Type::U16, Type::U32, Type::U64, Type::S8, Type::S16, Type::S32, Type::S64];
const FLOATS: [Type; 4] = [Type::F16, Type::Bf16, Type::F32, Type::F64];

fn value(bits: u64, ty: Type) -> i128 {
    let shift = 64 - ty.bits();
    if ty.is_signed() { i128::from((bits << shift) as i64 >> shift) } else { i128::from(bits) }
}

fn range(ty: Type) -> (i128, i128) {
    let all = i128::from(u64::MAX >> (64 - ty.bits()));
    if ty.is_signed() { (-(all >> 1) - 1, all >> 1) } else { (0, all) }
}

fn from_integers() -> Result<(), String> {
    let seed = seed() + 22;
    let mut rng = Rng(seed);
    for from in INTEGERS {
        for to in FLOATS {
            let float = format(to);
            for (rnd, mode) in Mode::FOUR {
                let what = format!("cvt.{rnd}{to}{from}");
                let alu = selected(&what)?;
                for _ in 0..1_500 {
                    let bits = rng.bits(from.bits());
                    let x = Dyadic::integer(value(bits, from));
                    let got = one(&alu, &[bits]);
                    let right = float.rounded(mode, got, x.sign(), false, &|c| c.compare(&x));
                    if !right || value(bits, from) == 0 && got != 0 {
                        return Err(format!("{what} of {bits:#x} gives {got:#x} (seed {seed})"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// The integer that a number rounds to: the one that the definition admits, among those beside it.
fn rounded(x: f64, rnd: &str) -> i128 {
    // Beyond 2^120 there is nothing to round, and all saturates.
    let x = x.clamp(-2f64.powi(120), 2f64.powi(120));
    let floor = (x as i128) - i128::from((x as i128) as f64 > x);
    let fraction = x - floor as f64; // exact: of numbers that have one
    match rnd {
        "rmi" => floor,
        "rpi" => floor + i128::from(fraction > 0.0),
        "rzi" => floor + i128::from(fraction > 0.0 && x < 0.0),
        _ if fraction == 0.5 => floor + (floor & 1),
        _ => floor + i128::from(fraction > 0.5),
    }
}

/// The value in binary64, to which all of these widen exactly (see [`halves_widen`]).
fn wide(bits: u64, ty: Type) -> f64 {
    match ty {
        Type::F64 => f64::from_bits(bits),
        Type::F32 => f32::from_bits(bits as u32).into(),
        Type::Bf16 => f32::from_bits((bits as u32) << 16).into(),
        _ => f64::from_bits(one(&selected("cvt.f64.f16").expect("it is there"), &[bits])),
    }
}

/// Numbers about as large as integers are, with halves among them.
fn about_integers(rng: &mut Rng, ty: Type) -> u64 {
    let float = format(ty);
    if rng.below(3) == 0 {
        return number(rng, &float);
    }
    let x = (rng.next() as i64 >> rng.below(64)) as f64 / [1.0, 2.0, 4.0][rng.below(3) as usize];
    match ty {
        Type::F64 => x.to_bits(),
        Type::F32 => (x as f32).to_bits().into(),
        Type::Bf16 => u64::from((x as f32).to_bits() >> 16),
        _ => one(&selected("cvt.rn.f16.f64").expect("it is there"), &[x.to_bits()]),
    }
}

fn to_integers() -> Result<(), String> {
    let seed = seed() + 23;
    let mut rng = Rng(seed);
    for from in FLOATS {
        for to in INTEGERS {
            for rnd in ["rni", "rzi", "rmi", "rpi"] {
                let what = format!("cvt.{rnd}{to}{from}");
                let alu = selected(&what)?;
                let sat = selected(&format!("cvt.{rnd}.sat{to}{from}"))?;
                let (least, most) = range(to);
                let mask = u64::MAX >> (64 - to.bits());
                for _ in 0..1_500 {
                    let bits = about_integers(&mut rng, from);
                    let x = wide(bits, from);
                    let expected = if !x.is_nan() {
                        rounded(x, rnd).clamp(least, most) as u64 & mask
                    } else if from == Type::F64 || to.bits() == 64 {
                        1 << (to.bits() - 1)
                    } else {
                        0
                    };
                    let got = one(&alu, &[bits]);
                    if got != expected || one(&sat, &[bits]) != got {
                        return Err(format!(
                            "{what} of {bits:#x} gives {got:#x}, not {expected:#x} (seed {seed})"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

fn integral() -> Result<(), String> {
    let seed = seed() + 24;
    let mut rng = Rng(seed);
    for ty in FLOATS {
        for rnd in ["rni", "rzi", "rmi", "rpi"] {
            let what = format!("cvt.{rnd}{ty}{ty}");
            let alu = selected(&what)?;
            for _ in 0..4_000 {
                let bits = about_integers(&mut rng, ty);
                let (x, got) = (wide(bits, ty), one(&alu, &[bits]));
                let y = wide(got, ty);
                let right = if x.is_nan() {
                    y.is_nan()
                } else {
                    // A zero keeps the sign of what it was.
                    let whole = x.abs() >= 2f64.powi(53);
                    let value = if whole { y == x } else { y == rounded(x, rnd) as f64 };
                    value && y.is_sign_negative() == x.is_sign_negative()
                };
                if !right {
                    return Err(format!("{what} of {bits:#x} gives {got:#x} (seed {seed})"));
                }
            }
        }
    }
    Ok(())
}

fn between_integers() -> Result<(), String> {
    let seed = seed() + 25;
    let mut rng = Rng(seed);
    for from in INTEGERS {
        for to in INTEGERS {
            let what = format!("cvt{to}{from}");
            let (alu, sat) = (selected(&what)?, selected(&format!("cvt.sat{to}{from}"))?);
            let (least, most) = range(to);
            let mask = u64::MAX >> (64 - to.bits());
            for _ in 0..1_000 {
                let bits = rng.bits(from.bits());
                let x = value(bits, from);
                let (got, clamped) = (one(&alu, &[bits]), one(&sat, &[bits]));
                if got != x as u64 & mask || clamped != x.clamp(least, most) as u64 & mask {
                    return Err(format!("{what} of {bits:#x} gives {got:#x} and {clamped:#x}"));
                }
            }
        }
    }
    Ok(())
}

/// Two sources: the first is the upper half, and each half is the conversion of one number.
fn packed() -> Result<(), String> {
    let seed = seed() + 26;
    let mut rng = Rng(seed);
    let single = format(Type::F32);
    for ty in [Type::F16, Type::Bf16] {
        for rnd in ["rn", "rz"] {
            for rest in ["", ".relu", ".satfinite", ".relu.satfinite"] {
                let one_of = selected(&format!("cvt.{rnd}{rest}{ty}.f32"))?;
                let what = format!("cvt.{rnd}{rest}{ty}x2.f32");
                let two = selected(&what)?;
                for _ in 0..3_000 {
                    let (a, b) = (number(&mut rng, &single), number(&mut rng, &single));
                    let expected = one(&one_of, &[a]) << 16 | one(&one_of, &[b]);
                    let got = one(&two, &[a, b]);
                    if got != expected {
                        return Err(format!(
                            "{what} of {a:#x}, {b:#x} gives {got:#x} (seed {seed})"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

fn pack() -> Result<(), String> {
    let seed = seed() + 27;
    let mut rng = Rng(seed);
    for (name, bits, signed) in [
        ("u16", 16, false),
        ("s16", 16, true),
        ("u8", 8, false),
        ("s8", 8, true),
        ("u4", 4, false),
        ("s4", 4, true),
        ("u2", 2, false),
        ("s2", 2, true),
    ] {
        let tail = if bits == 16 { "" } else { ".b32" };
        let what = format!("cvt.pack.sat.{name}.s32{tail}");
        let alu = selected(&what)?;
        let ones = (1i64 << bits) - 1;
        let (least, most) = if signed { (-(ones >> 1) - 1, ones >> 1) } else { (0, ones) };
        for _ in 0..5_000 {
            let mut values = vec![rng.bits(32), rng.bits(32), rng.bits(32)];
            if rng.below(2) == 0 {
                values[0] = rng.below(600).wrapping_sub(300) & 0xffff_ffff;
            }
            let sat = |x: u64| (i64::from(x as i32).clamp(least, most) & ones) as u64;
            let (a, b) = (sat(values[0]), sat(values[1]));
            let above = if bits == 16 { 0 } else { values[2] << (2 * bits) & 0xffff_ffff };
            values.truncate(if bits == 16 { 2 } else { 3 });
            let got = one(&alu, &values);
            if got != above | a << bits | b {
                return Err(format!("{what} of {values:x?} gives {got:#x} (seed {seed})"));
            }
        }
    }
    Ok(())
}

//! Floating-point arithmetic in every rounding, judged exactly, on seeded random operands.

use std::cmp::Ordering;

use ferroccl_ptx::emu::alu::Alu;
use ferroccl_ptx::types::Type;

use crate::Test;
use crate::reference::{Dyadic, Format, Mode};
use crate::rng::{Rng, seed};
use crate::run::{operands, selected, warp};

pub(crate) const TRIALS: &[(&str, Test)] = &[
    ("rounding_of_sums_and_products", rounding),
    ("rounding_of_quotients_and_roots", quotients),
    ("signs_of_exact_zeros", zeros),
];

/// One result of one instruction.
pub(crate) fn one(alu: &Alu, values: &[u64]) -> u64 {
    let (from, _) = operands(alu);
    assert_eq!(from.len(), values.len(), "a test gives all operands");
    let sources: Vec<[u64; 32]> = values.iter().map(|&v| [v; 32]).collect();
    warp(alu, &sources)[0][7]
}

/// Bits of a number: of any size, or near one, or special, or of few bits.
pub(crate) fn number(rng: &mut Rng, format: &Format) -> u64 {
    let width = format.bits();
    let any = rng.next() & u64::MAX >> (64 - width);
    let sign = any & 1 << (width - 1);
    let one = format.exactly(1.0).expect("every format has a one");
    match rng.below(8) {
        0 => any,
        1 => rng.bits(width),
        // Exponents beside that of one, so that sums cancel and fractions meet.
        2 | 3 => sign | ((one + (any >> 1) % (one / 8)) - rng.below(one / 16)),
        // Few bits: ties and exact results.
        4 => sign | (one - one / 16 + any % (one / 8)) & !(u64::MAX >> (64 - width / 2)),
        5 => sign | (any % (one / 32).max(2)), // small
        6 => sign | (format.at(format.end()) - any % (one / 32).max(2)), // large
        _ => sign | format.at((any % 4) as i64),
    }
}

pub(crate) fn fail(what: &str, seed: u64, values: &[u64], got: u64) -> String {
    format!("{what} of {values:#x?} gives {got:#x} (seed {seed})")
}

const TYPES: [Type; 4] = [Type::F64, Type::F32, Type::F16, Type::Bf16];

fn modes(ty: Type) -> &'static [(&'static str, Mode)] {
    if matches!(ty, Type::F16 | Type::Bf16) { &Mode::FOUR[..1] } else { &Mode::FOUR }
}

fn rounding() -> Result<(), String> {
    let seed = seed();
    let mut rng = Rng(seed);
    for ty in TYPES {
        let format = Format::of(ty).ok_or("a format")?;
        for (op, sources) in [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)] {
            for &(rnd, mode) in modes(ty) {
                let what = format!("{op}.{rnd}{ty}");
                let alu = selected(&what)?;
                for _ in 0..6_000 {
                    let mut values: Vec<u64> =
                        (0..sources).map(|_| number(&mut rng, &format)).collect();
                    if op == "fma" && rng.below(3) == 0 {
                        // An addend that all but cancels the product, or is just out of its reach.
                        let product = one(&selected(&format!("mul.rn{ty}"))?, &values[..2]);
                        values[2] = product ^ 1 << (format.bits() - 1) ^ rng.below(3);
                    }
                    let Some(x) = finite(&format, &values) else { continue };
                    let exact = match op {
                        "add" => x[0].plus(&x[1]),
                        "sub" => x[0].plus(&x[1].negated()),
                        "mul" => x[0].times(&x[1]),
                        _ => x[0].times(&x[1]).plus(&x[2]),
                    };
                    let got = one(&alu, &values);
                    let versus = |c: &Dyadic| c.compare(&exact);
                    if !format.rounded(mode, got, exact.sign(), false, &versus) {
                        return Err(fail(&what, seed, &values, got));
                    }
                }
            }
        }
    }
    Ok(())
}

/// The values, if all are finite.
pub(crate) fn finite(format: &Format, values: &[u64]) -> Option<Vec<Dyadic>> {
    values.iter().map(|&v| format.finite(v)).collect()
}

fn quotients() -> Result<(), String> {
    let seed = seed() + 1;
    let mut rng = Rng(seed);
    for ty in [Type::F64, Type::F32] {
        let format = Format::of(ty).ok_or("a format")?;
        for (op, sources) in [("div", 2), ("rcp", 1), ("sqrt", 1)] {
            for (rnd, mode) in Mode::FOUR {
                let what = format!("{op}.{rnd}{ty}");
                let alu = selected(&what)?;
                for _ in 0..10_000 {
                    let mut values: Vec<u64> =
                        (0..sources).map(|_| number(&mut rng, &format)).collect();
                    if rng.below(4) == 0 {
                        // A dividend or a square that is a product of two: exact, or one unit off.
                        let mul = selected(&format!("mul.rn{ty}"))?;
                        let last = values[sources - 1];
                        let other = if op == "sqrt" { last } else { number(&mut rng, &format) };
                        values[0] =
                            one(&mul, &[other, last]).wrapping_add(rng.below(3)).wrapping_sub(1);
                        values[0] &= u64::MAX >> (64 - format.bits());
                    }
                    let Some(x) = finite(&format, &values) else { continue };
                    let got = one(&alu, &values);
                    let right = match op {
                        "sqrt" if x[0].sign().is_lt() => format.is_nan(got),
                        // A candidate's square says where the root lies from it; it is not negative.
                        "sqrt" => format
                            .rounded(mode, got, x[0].sign(), false, &|c| c.times(c).compare(&x[0])),
                        _ => {
                            let unit = Dyadic::integer(1);
                            let (a, b) = if op == "rcp" { (&unit, &x[0]) } else { (&x[0], &x[1]) };
                            let sign = match b.sign() {
                                Ordering::Equal => continue,
                                Ordering::Less => a.sign().reverse(),
                                Ordering::Greater => a.sign(),
                            };
                            format.rounded(mode, got, sign, false, &|c| {
                                let order = c.times(b).compare(a);
                                if b.sign().is_lt() { order.reverse() } else { order }
                            })
                        }
                    };
                    if !right {
                        return Err(fail(&what, seed, &values, got));
                    }
                }
            }
        }
    }
    Ok(())
}

/// IEEE 754, 6.3: opposite numbers sum to plus zero, or to minus zero downwards; like zeros keep their sign.
fn zeros() -> Result<(), String> {
    for ty in TYPES {
        let format = Format::of(ty).ok_or("a format")?;
        let sign = 1 << (format.bits() - 1);
        let unit = format.exactly(1.0).ok_or("a one")?;
        let some = format.exactly(1.5).ok_or("one and a half")?;
        for &(rnd, mode) in modes(ty) {
            let add = selected(&format!("add.{rnd}{ty}"))?;
            let sub = selected(&format!("sub.{rnd}{ty}"))?;
            let fma = selected(&format!("fma.{rnd}{ty}"))?;
            let cancelled = if mode == Mode::Rm { sign } else { 0 };
            for x in [0, sign, unit, some, sign | unit, 3, format.at(format.end() - 1)] {
                let like = |y: u64| if x & !sign == 0 && x == y { x } else { cancelled };
                let opposite = x ^ sign;
                let cases = [
                    (&add, vec![x, opposite], cancelled),
                    (&sub, vec![x, x], cancelled),
                    (&fma, vec![unit, x, opposite], cancelled),
                    (&fma, vec![x, sign | unit, x], cancelled),
                ];
                for (alu, values, expected) in cases {
                    let got = one(alu, &values);
                    if got != expected {
                        return Err(fail(&format!("{rnd}{ty}"), 0, &values, got));
                    }
                }
                if x & !sign == 0 {
                    for (alu, values) in
                        [(&add, vec![x, x]), (&sub, vec![x, opposite]), (&fma, vec![x, unit, x])]
                    {
                        let got = one(alu, &values);
                        if got != like(x) {
                            return Err(fail(&format!("{rnd}{ty}"), 0, &values, got));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

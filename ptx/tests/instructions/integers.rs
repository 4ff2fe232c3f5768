//! Integer arithmetic, against arithmetic in wider integers.

use ferroccl_ptx::types::Type;
use num_bigint::{BigInt, BigUint};

use crate::Test;
use crate::rng::{Rng, seed};
use crate::rounding::{fail, one};
use crate::run::{lane, selected};

pub(crate) const TRIALS: &[(&str, Test)] =
    &[("integers_against_wide_arithmetic", integers), ("carries_make_wide_integers", carries)];

/// An integer of the type that the bits are.
pub(crate) fn signed(bits: u64, ty: Type) -> i128 {
    let shift = 64 - ty.bits();
    if ty.is_signed() { i128::from((bits << shift) as i64 >> shift) } else { i128::from(bits) }
}

fn integers() -> Result<(), String> {
    use Type::{S16, S32, S64, U16, U32, U64};
    let seed = seed() + 2;
    let mut rng = Rng(seed);
    for ty in [U16, U32, U64, S16, S32, S64] {
        let bits = ty.bits();
        let low = |x: i128| x as u64 & u64::MAX >> (64 - bits);
        // The product of 64 bits twice does not fit i128 if unsigned: take both halves of the bits.
        let product = |a: i128, b: i128| {
            let wide = BigInt::from(a) * BigInt::from(b);
            let high: BigInt = &wide >> bits;
            let part = |x: &BigInt| {
                let modulus = BigInt::from(1) << bits;
                let x = ((x % &modulus) + &modulus) % &modulus;
                x.iter_u64_digits().next().unwrap_or(0)
            };
            (part(&wide), part(&high))
        };
        type Binary<'a> = Box<dyn Fn(i128, i128) -> u64 + 'a>;
        let mut ops: Vec<(&str, Binary<'_>)> = vec![
            ("add", Box::new(move |a, b| low(a + b))),
            ("sub", Box::new(move |a, b| low(a - b))),
            ("mul.lo", Box::new(move |a, b| product(a, b).0)),
            ("mul.hi", Box::new(move |a, b| product(a, b).1)),
            ("div", Box::new(move |a, b| if b == 0 { low(-1) } else { low(a / b) })),
            ("rem", Box::new(move |a, b| if b == 0 { low(a) } else { low(a % b) })),
            ("min", Box::new(move |a, b| low(a.min(b)))),
            ("max", Box::new(move |a, b| low(a.max(b)))),
        ];
        let all = i128::from(u64::MAX >> (64 - bits));
        let (least, most) = if ty.is_signed() { (-(all >> 1) - 1, all >> 1) } else { (0, all) };
        if ty == S32 {
            ops.push(("add.sat", Box::new(move |a, b| low((a + b).clamp(least, most)))));
            ops.push(("sub.sat", Box::new(move |a, b| low((a - b).clamp(least, most)))));
            ops.push(("min.relu", Box::new(move |a, b| low(a.min(b).max(0)))));
            ops.push(("max.relu", Box::new(move |a, b| low(a.max(b).max(0)))));
        }
        for (op, expected) in &ops {
            let what = format!("{op}{ty}");
            let alu = selected(&what)?;
            for _ in 0..4_000 {
                let values = [rng.bits(bits), rng.bits(bits)];
                let got = lane(&alu, &values)?[0];
                if got != expected(signed(values[0], ty), signed(values[1], ty)) {
                    return Err(fail(&what, seed, &values, got));
                }
            }
        }
        for _ in 0..4_000 {
            let values = [rng.bits(bits), rng.bits(bits), rng.bits(bits)];
            let [a, b, c] = values.map(|v| signed(v, ty));
            let (lo, hi) = product(a, b);
            let mut cases = vec![
                ("mad.lo", low(signed(lo, ty) + c)),
                ("mad.hi", low(signed(hi, ty) + c)),
                ("sad", low(c + (a - b).abs())),
            ];
            if ty == S32 {
                cases.push(("mad.hi.sat", low((signed(hi, ty) + c).clamp(least, most))));
            }
            for (op, expected) in cases {
                let what = format!("{op}{ty}");
                let got = one(&selected(&what)?, &values);
                if got != expected {
                    return Err(fail(&what, seed, &values, got));
                }
            }
            if ty.is_signed() {
                for (op, expected) in [("abs", a.abs()), ("neg", -a)] {
                    let what = format!("{op}{ty}");
                    let got = one(&selected(&what)?, &values[..1]);
                    if got != low(expected) {
                        return Err(fail(&what, seed, &values, got));
                    }
                }
            }
            if bits < 64 {
                let wide = u64::MAX >> (64 - 2 * bits);
                let c = rng.bits(2 * bits);
                let mul = one(&selected(&format!("mul.wide{ty}"))?, &values[..2]);
                let mad = one(&selected(&format!("mad.wide{ty}"))?, &[values[0], values[1], c]);
                let expected = (a * b) as u64 & wide;
                if (mul, mad) != (expected, expected.wrapping_add(c) & wide) {
                    return Err(fail(&format!("wide{ty}"), seed, &values, mul));
                }
            }
        }
    }
    Ok(())
}

/// Sums, differences and products of 256 bits, made of pieces as the manual's examples do (9.7.2).
fn carries() -> Result<(), String> {
    let seed = seed() + 3;
    let mut rng = Rng(seed);
    for ty in [Type::U32, Type::S32, Type::U64, Type::S64] {
        let bits = ty.bits();
        let n = (256 / bits) as usize;
        let wide = |pieces: &[u64]| {
            pieces.iter().rev().fold(BigUint::ZERO, |sum, &piece| (sum << bits) + piece)
        };
        let modulus = BigUint::from(1u32) << 256;
        for _ in 0..300 {
            let a: Vec<u64> = (0..n).map(|_| rng.bits(bits)).collect();
            let b: Vec<u64> = (0..n).map(|_| rng.bits(bits)).collect();
            for (first, then, last) in
                [("add.cc", "addc.cc", "addc"), ("sub.cc", "subc.cc", "subc")]
            {
                // The flag before the first is whatever; the last leaves it as it was.
                let mut flag = rng.below(2);
                let mut r = Vec::new();
                for i in 0..n {
                    let op = if i == 0 {
                        first
                    } else if i == n - 1 {
                        last
                    } else {
                        then
                    };
                    let alu = selected(&format!("{op}{ty}"))?;
                    let out = lane(&alu, &[a[i], b[i], flag])?;
                    if i == n - 1 && out[1] != flag {
                        return Err(format!("{op}{ty} writes the flag (seed {seed})"));
                    }
                    r.push(out[0]);
                    flag = out[1];
                }
                let expected = if first == "add.cc" {
                    (wide(&a) + wide(&b)) % &modulus
                } else {
                    (wide(&a) + &modulus - wide(&b)) % &modulus
                };
                if wide(&r) != expected {
                    return Err(format!("{first}{ty} of {a:x?} and {b:x?} (seed {seed})"));
                }
            }
            if !ty.is_signed() {
                let mad = |op: &str, values: [u64; 4]| {
                    let out = lane(&selected(&format!("{op}{ty}"))?, &values)?;
                    Ok::<_, String>((out[0], out[1]))
                };
                // Row by row: the low halves in one chain, the high halves in the next.
                let mut r = vec![0; 2 * n];
                for (i, &b) in b.iter().enumerate() {
                    for (half, at) in [("lo", i), ("hi", i + 1)] {
                        let mut flag = 0;
                        for j in 0..n {
                            let op = if j == 0 { "mad" } else { "madc" };
                            let op = format!("{op}.{half}.cc");
                            (r[at + j], flag) = mad(&op, [a[j], b, r[at + j], flag])?;
                        }
                        let addc = selected(&format!("addc{ty}"))?;
                        for rest in r.iter_mut().skip(at + n) {
                            let out = lane(&addc, &[*rest, 0, flag])?;
                            flag = u64::from(flag != 0 && out[0] == 0);
                            *rest = out[0];
                        }
                    }
                }
                if wide(&r) != wide(&a) * wide(&b) {
                    return Err(format!("mad{ty} of {a:x?} and {b:x?} (seed {seed})"));
                }
            }
        }
    }
    Ok(())
}

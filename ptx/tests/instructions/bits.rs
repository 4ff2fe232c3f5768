//! Instructions on bits, against the manual's pseudo-code followed bit by bit.

use ferroccl_ptx::types::Type;

use crate::Test;
use crate::integers::signed;
use crate::rng::{Rng, seed};
use crate::rounding::{fail, one};
use crate::run::{lane, operands, selected};

pub(crate) const TRIALS: &[(&str, Test)] =
    &[("bits_against_pseudo_code", bits), ("lop3_is_its_table", lop3)];

/// One instruction's bits, by the manual's pseudo-code: `bit(x, i)` is `x[i]`.
type PseudoCode = fn(&[u64], u32, bool) -> u64;

fn bit(x: u64, i: u32) -> u64 {
    x >> i & 1
}

const BFE: PseudoCode = |v, msb, signed| {
    let (a, pos, len) = (v[0], (v[1] & 0xff) as u32, (v[2] & 0xff) as u32);
    let sign = if !signed || len == 0 { 0 } else { bit(a, (pos + len - 1).min(msb)) };
    (0..=msb)
        .fold(0, |d, i| d | if i < len && pos + i <= msb { bit(a, pos + i) } else { sign } << i)
};

const BFI: PseudoCode = |v, msb, _| {
    let (a, b, pos, len) = (v[0], v[1], (v[2] & 0xff) as u32, (v[3] & 0xff) as u32);
    (0..len)
        .take_while(|i| pos + i <= msb)
        .fold(b, |f, i| f & !(1 << (pos + i)) | bit(a, i) << (pos + i))
};

const BFIND: PseudoCode = |v, msb, signed| {
    let a = if signed && bit(v[0], msb) == 1 { !v[0] } else { v[0] };
    (0..=msb).rev().find(|&i| bit(a, i) == 1).map_or(0xffff_ffff, u64::from)
};

const SHIFTAMT: PseudoCode = |v, msb, signed| match BFIND(v, msb, signed) {
    0xffff_ffff => 0xffff_ffff,
    d => u64::from(msb) - d,
};

const FNS: PseudoCode = |v, _, _| {
    let (mask, base, offset) = (v[0], v[1] as i64, v[2] as i32);
    if base > 31 {
        return 0xffff_ffff;
    }
    if offset == 0 {
        return if bit(mask, base as u32) == 1 { base as u64 } else { 0xffff_ffff };
    }
    let (mut pos, mut count) = (base, offset.unsigned_abs() - 1);
    while (0..32).contains(&pos) {
        if bit(mask, pos as u32) == 1 {
            if count == 0 {
                return pos as u64;
            }
            count -= 1;
        }
        pos += if offset > 0 { 1 } else { -1 };
    }
    0xffff_ffff
};

/// `mask0 & ~mask1` of 9.7.1.22.
fn bmsk(a: u64, b: u64, clamp: bool) -> u64 {
    let (a1, b1) = (a & 31, b & 31);
    let ones = u64::from(u32::MAX);
    let mut mask0 = ones << a1 & ones;
    let sum = a1 + b1;
    let mut over = sum >= 32;
    if clamp && a >= 32 {
        over = true;
        mask0 = 0;
    }
    over |= clamp && b >= 32;
    let mask1 = if over {
        0
    } else if b1 == 0 {
        ones
    } else {
        ones << sum & ones
    };
    mask0 & !mask1
}

fn szext(a: u64, b: u64, clamp: bool, signed: bool) -> u64 {
    let b1 = b & 31;
    let large = b >= 32 && clamp;
    let ones = u64::from(u32::MAX);
    let mask = if large { 0 } else { ones << b1 & ones };
    let position = b1.wrapping_sub(1) & 31;
    let sign = !(b1 == 0 || large || !signed) && a >> position & 1 != 0;
    a & !mask | if sign { mask } else { 0 }
}

/// The bytes that a mode takes, 9.7.9.7: rows of the control's value, bytes 3, 2, 1, 0.
const PRMT: [(&str, [[u64; 4]; 4]); 6] = [
    ("f4e", [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
    ("b4e", [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
    ("rc8", [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]]),
    ("ecl", [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
    ("ecr", [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
    ("rc16", [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
];

fn bits() -> Result<(), String> {
    let seed = seed() + 4;
    let mut rng = Rng(seed);
    let pseudo: [(&str, &[Type], PseudoCode); 6] = [
        ("bfe", &[Type::U32, Type::U64, Type::S32, Type::S64], BFE),
        ("bfi", &[Type::B32, Type::B64], BFI),
        ("bfind", &[Type::U32, Type::U64, Type::S32, Type::S64], BFIND),
        ("bfind.shiftamt", &[Type::U32, Type::U64, Type::S32, Type::S64], SHIFTAMT),
        ("fns", &[Type::B32], FNS),
        ("brev", &[Type::B32, Type::B64], |v, msb, _| {
            (0..=msb).fold(0, |d, i| d | bit(v[0], msb - i) << i)
        }),
    ];
    let near = |rng: &mut Rng, ty: Type| match rng.below(3) {
        0 => rng.bits(ty.bits()),
        // Small numbers: positions, widths and offsets.
        1 => rng.below(70),
        _ => rng.below(70).wrapping_neg() & u64::MAX >> (64 - ty.bits()),
    };
    for (op, types, expected) in pseudo {
        for &ty in types {
            let what = format!("{op}{ty}");
            let alu = selected(&what)?;
            let (from, _) = operands(&alu);
            for _ in 0..10_000 {
                let values: Vec<u64> = from.iter().map(|&ty| near(&mut rng, ty)).collect();
                let got = one(&alu, &values);
                if got != expected(&values, ty.bits() - 1, ty.is_signed()) {
                    return Err(fail(&what, seed, &values, got));
                }
            }
        }
    }
    for _ in 0..20_000 {
        let (a, b, c) = (rng.bits(32), rng.bits(32), near(&mut rng, Type::U32));
        let both = u128::from(b << 32 | a);
        let byte = |i: u64| (both >> (8 * i)) as u64 & 0xff;
        let mut cases = vec![("prmt.b32".to_string(), vec![a, b, c], {
            (0..4).fold(0, |d, i| {
                let digit = c >> (4 * i) & 15;
                let byte = byte(digit & 7);
                let byte = if digit < 8 { byte } else { (byte >> 7) * 0xff };
                d | byte << (8 * i)
            })
        })];
        for (mode, rows) in PRMT {
            let row = rows[(c & 3) as usize];
            let expected = row.iter().fold(0, |d, &i| d << 8 | byte(i));
            cases.push((format!("prmt.b32.{mode}"), vec![a, b, c], expected));
        }
        for (mode, clamp) in [("clamp", true), ("wrap", false)] {
            let n = if clamp { c.min(32) } else { c & 31 };
            let left = (both << n >> 32) as u64 & 0xffff_ffff;
            let right = (both >> n) as u64 & 0xffff_ffff;
            cases.push((format!("shf.l.{mode}.b32"), vec![a, b, c], left));
            cases.push((format!("shf.r.{mode}.b32"), vec![a, b, c], right));
            let other = near(&mut rng, Type::U32);
            cases.push((format!("bmsk.{mode}.b32"), vec![other, c], bmsk(other, c, clamp)));
            cases.push((format!("szext.{mode}.u32"), vec![a, c], szext(a, c, clamp, false)));
            cases.push((format!("szext.{mode}.s32"), vec![a, c], szext(a, c, clamp, true)));
        }
        for ty in [Type::B16, Type::B32, Type::B64, Type::S16, Type::S32, Type::S64, Type::U16] {
            let x = rng.bits(ty.bits());
            let n = c.min(100);
            let mask = u128::from(u64::MAX >> (64 - ty.bits()));
            let right = (signed(x, ty) >> n) as u64 & mask as u64;
            cases.push((format!("shr{ty}"), vec![x, c], right));
            if matches!(ty, Type::B16 | Type::B32 | Type::B64) {
                let left = if n >= 64 { 0 } else { (u128::from(x) << n & mask) as u64 };
                cases.push((format!("shl{ty}"), vec![x, c], left));
            }
        }
        for (what, values, expected) in cases {
            let got = one(&selected(&what)?, &values);
            if got != expected {
                return Err(fail(&what, seed, &values, got));
            }
        }
    }
    Ok(())
}

fn lop3() -> Result<(), String> {
    let mut rng = Rng(seed() + 5);
    let alu = selected("lop3.b32")?;
    for table in 0..256 {
        let (a, b, c) = (rng.next() >> 32, rng.next() >> 32, rng.next() >> 32);
        let expected = (0..32).fold(0, |d, i| {
            let row = bit(a, i) << 2 | bit(b, i) << 1 | bit(c, i);
            d | (table >> row & 1) << i
        });
        let values = [a, b, c, table];
        let got = lane(&alu, &values)?[0];
        if got != expected {
            return Err(fail("lop3.b32", 0, &values, got));
        }
    }
    Ok(())
}

//! Arithmetic: what an instruction makes of its operands, without any state but the carry.
//!
//! A register of a warp is [`Lanes`]: the value of lane `i` is element `i`, **zero-extended** from the
//! register's width. All 32 lanes are computed whatever the mask, so that the loops vectorise; whoever
//! runs an instruction keeps the lanes that count. Predicates are masks: bit `i` is lane `i`'s.
//!
//! [`select`] turns a name into a function. Each combination of types, roundings and flags has a function of its
//! own, written once as a body in a macro of [`lanes`]; nothing is decided lane by lane.
//!
//! What is deliberately not known here: operands and their syntax, the mask, memory, predicates' own logic (`selp`,
//! `and.pred`), instructions of two destinations (`setp.f16x2`, `lop3.or`), and registers wider than an instruction's
//! type. Of a source too wide the low bits are read, as the manual says (PTX ISA 9.4.1); where a destination is too
//! wide, whoever writes it extends the result by the sign if [`Alu::to`] is signed.
//!
//! Invariants: results are zero-extended from [`Alu::to`]; no operands make a function panic; the same operands
//! give the same bits on every host but for the transcendental functions' last bit.
//!
//! Sources: PTX ISA 9.0, 9.7.1 to 9.7.8 and the conversions of 9.7.9; IEEE 754-2019 where that says "IEEE 754". What the
//! manual leaves open is said where it is decided: [`integer`] for divisions by zero, [`number`] for NaNs, [`float`] for
//! approximations.

#![allow(clippy::needless_range_loop, reason = "a loop over lanes indexes several registers")]

mod bits;
mod compare;
mod convert;
mod exact;
mod extended;
mod float;
mod half;
mod integer;
mod lanes;
mod modifiers;
mod number;
mod pack;
mod round;

use crate::types::Type;
use modifiers::Modifiers;
pub use modifiers::Unsupported;

/// A register of a warp.
pub type Lanes = [u64; 32];

/// What computes an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Alu {
    /// How, and what comes out.
    pub kind: Kind,
    /// The type of the destination; for [`Kind::Compare`] [`Type::Pred`], or what `set` writes.
    pub to: Type,
    /// The types of the sources, of which the first [`Alu::sources`] count. An immediate operand is encoded by them.
    pub from: [Type; 4],
    /// How many sources there are, a compare's optional predicate not counted.
    pub sources: usize,
}

/// The forms of instructions.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `d = f(a, b, c, e)`. Sources beyond [`Alu::sources`] are whatever.
    Value(fn(&mut Lanes, [&Lanes; 4])),
    /// The same with the carry flag of each lane, read or written or both.
    Carry(fn(&mut Lanes, [&Lanes; 4], &mut u32)),
    /// A truth value for each lane: the comparison of `setp` before its optional combination with a predicate.
    Compare(fn([&Lanes; 4]) -> u32, Combine),
}

/// What `setp` and `set` do with the predicate that may follow: `d = compare OP c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// There is none.
    No,
    /// `.and`
    And,
    /// `.or`
    Or,
    /// `.xor`
    Xor,
}

impl Alu {
    /// What a truth is in the destination: 1 in a predicate, all ones in an integer and 1.0 in a
    /// floating-point number, which is what `set` writes (PTX ISA 9.7.6.1 and 9.7.7.1).
    #[must_use]
    pub const fn truth(&self) -> u64 {
        match self.to {
            Type::F16 => 0x3c00,
            Type::Bf16 => 0x3f80,
            Type::F32 => 0x3f80_0000,
            Type::U16 | Type::S16 => 0xffff,
            Type::U32 | Type::S32 => 0xffff_ffff,
            _ => 1,
        }
    }

    /// With this type for the destination and all sources.
    const fn typed(self, ty: Type) -> Alu {
        Alu { to: ty, from: [ty; 4], ..self }
    }

    /// With this type for all sources.
    const fn comparing(self, ty: Type) -> Alu {
        Alu { from: [ty; 4], ..self }
    }

    /// With these types.
    const fn types<const N: usize>(self, to: Type, from: [Type; N]) -> Alu {
        Alu { to, from: lanes::from(from), ..self }
    }
}

/// What computes an instruction: `select("add", &["rn", "ftz", "f32"])` for `add.rn.ftz.f32`.
///
/// `set` is a [`Kind::Compare`] whose [`Alu::to`] is not a predicate: [`Alu::truth`] is written where the
/// combined comparison holds, and zero elsewhere. Of packed types it is a [`Kind::Value`].
///
/// # Errors
///
/// There is no such instruction here, or not with a modifier, or a modifier is missing.
pub fn select(opcode: &str, modifiers: &[&str]) -> Result<Alu, Unsupported> {
    let mut left = Modifiers::new(opcode, modifiers);
    let m = &mut left;
    // The last type tells the integer's arithmetic from the floating-point number's.
    let float = || Ok(Modifiers::new(opcode, modifiers).last_type()?.is_float());
    let carry = modifiers.contains(&"cc");
    let alu = match opcode {
        "add" | "sub" | "mad" if carry => match opcode {
            "add" => extended::add(m, false),
            "sub" => extended::sub(m, false),
            _ => extended::mad(m, false),
        },
        "add" => {
            if float()? {
                float::add(m)
            } else {
                integer::add(m)
            }
        }
        "sub" => {
            if float()? {
                float::sub(m)
            } else {
                integer::sub(m)
            }
        }
        "mul" => {
            if float()? {
                float::mul(m)
            } else {
                integer::mul(m)
            }
        }
        "mad" => {
            if float()? {
                float::fma(m, false)
            } else {
                integer::mad(m)
            }
        }
        "fma" => float::fma(m, true),
        "div" => {
            if float()? {
                float::div(m)
            } else {
                integer::div(m)
            }
        }
        "abs" => {
            if float()? {
                float::abs(m)
            } else {
                integer::abs(m)
            }
        }
        "neg" => {
            if float()? {
                float::neg(m)
            } else {
                integer::neg(m)
            }
        }
        "min" => {
            if float()? {
                float::min_max(m, true)
            } else {
                integer::min(m)
            }
        }
        "max" => {
            if float()? {
                float::min_max(m, false)
            } else {
                integer::max(m)
            }
        }
        "mul24" => integer::mul24(m),
        "mad24" => integer::mad24(m),
        "sad" => integer::sad(m),
        "rem" => integer::rem(m),
        "dp4a" => integer::dp(m, true),
        "dp2a" => integer::dp(m, false),
        "addc" => extended::add(m, true),
        "subc" => extended::sub(m, true),
        "madc" => extended::mad(m, true),
        "rcp" => float::rcp(m),
        "sqrt" => float::sqrt(m),
        "rsqrt" => float::rsqrt(m),
        "sin" => float::sin(m),
        "cos" => float::cos(m),
        "lg2" => float::lg2(m),
        "ex2" => float::ex2(m),
        "tanh" => float::tanh(m),
        "copysign" => float::copysign(m),
        "testp" => compare::testp(m),
        "setp" => compare::setp(m),
        "set" => compare::set(m),
        "slct" => compare::slct(m),
        "and" => bits::and(m),
        "or" => bits::or(m),
        "xor" => bits::xor(m),
        "not" => bits::not(m),
        "cnot" => bits::cnot(m),
        "lop3" => bits::lop3(m),
        "shl" => bits::shl(m),
        "shr" => bits::shr(m),
        "shf" => bits::shf(m),
        "popc" => bits::popc(m),
        "clz" => bits::clz(m),
        "bfind" => bits::bfind(m),
        "fns" => bits::fns(m),
        "brev" => bits::brev(m),
        "bfe" => bits::bfe(m),
        "bfi" => bits::bfi(m),
        "bmsk" => bits::bmsk(m),
        "szext" => bits::szext(m),
        "prmt" => bits::prmt(m),
        "mov" => bits::mov(m),
        "cvta" => bits::cvta(m),
        "cvt" => convert::cvt(m),
        _ => Err(m.unknown()),
    }?;
    left.finish()?;
    Ok(alu)
}

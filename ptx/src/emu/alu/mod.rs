//! Arithmetic: what an instruction makes of its operands, without any state but the carry.
//!
//! A register of a warp is [`Lanes`]: the value of lane `i` is element `i`, **zero-extended** from the
//! register's width. All 32 lanes are computed whatever the mask, so that the loops vectorise; whoever
//! runs an instruction keeps the lanes that count. Predicates are masks: bit `i` is lane `i`'s.

use crate::types::Type;

/// A register of a warp.
pub type Lanes = [u64; 32];

/// What computes an instruction.
#[derive(Clone, Copy, Debug)]
pub struct Alu {
    /// How, and what comes out.
    pub kind: Kind,
    /// The type of the destination; [`Type::Pred`] for [`Kind::Compare`].
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

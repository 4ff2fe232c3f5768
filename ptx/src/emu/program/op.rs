//! Instructions as the emulator runs them.

use super::Special;
use crate::emu::alu::{Combine, Lanes};
use crate::isa::{Order, Scope};

/// A value register of a warp; from [`Program::registers`](super::Program) on, a constant.
pub(crate) type Reg = u16;
/// A predicate register.
pub(crate) type Pred = u16;

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) guard: Option<(Pred, bool)>,
    pub(crate) op: Op,
}

/// A predicate that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Truth {
    /// A register, maybe negated.
    Reg(Pred, bool),
    Always(bool),
}

/// What it does.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Value {
        run: fn(&mut Lanes, [&Lanes; 4]),
        d: Reg,
        s: [Reg; 4],
    },
    Carry {
        run: fn(&mut Lanes, [&Lanes; 4], &mut u32),
        d: Reg,
        s: [Reg; 4],
    },
    Compare {
        run: fn([&Lanes; 4]) -> u32,
        d: Pred,
        other: Option<Pred>,
        s: [Reg; 4],
        combine: Combine,
        with: Truth,
    },
    /// `set`: all ones, or 1.0, where the comparison holds.
    SetValue {
        run: fn([&Lanes; 4]) -> u32,
        d: Reg,
        s: [Reg; 4],
        one: u64,
        combine: Combine,
        with: Truth,
    },
    Select {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Truth,
    },
    Logic {
        how: PredicateLogic,
        d: Pred,
        a: Truth,
        b: Truth,
    },
    Special {
        d: Reg,
        which: Special,
    },
    /// `mov.b64 d, {lo, hi}`: each part has so many bits.
    Pack {
        d: Reg,
        parts: Vec<Reg>,
        bits: u32,
    },
    Unpack {
        parts: Vec<Option<Reg>>,
        s: Reg,
        bits: u32,
    },
    Convert {
        d: Reg,
        s: Reg,
        add: u64,
    },
    /// The generic address of a parameter, or `to` its offset: the parameters of a kernel are within the window of global
    /// memory (6.4.1.1).
    ParameterAddress {
        d: Reg,
        s: Reg,
        to: bool,
    },
    IsSpace {
        d: Pred,
        s: Reg,
        space: Space,
    },
    Branch {
        target: u32,
    },
    BranchIndexed {
        index: Reg,
        targets: Vec<u32>,
    },
    Exit,
    Trap,
    Nop,
    Load(Load),
    Store(Store),
    Atomic(Box<Atomic>),
    Multimem(Box<Multimem>),
    Mbarrier(Box<Mbarrier>),
    AsyncCopy(Box<AsyncCopy>),
    AsyncCommit {
        group: AsyncGroup,
    },
    AsyncWait {
        group: AsyncGroup,
        /// Groups that may still be under way.
        most: u32,
        /// Whether they need only have read.
        read: bool,
    },
    /// `fence.proxy.async`.
    ProxyFence,
    /// `__assertfail`: where the addresses of its message, file and function, and the line, are in local memory.
    AssertFail([u64; 4]),
    Fence {
        order: Order,
        scope: Scope,
    },
    Barrier(Box<Barrier>),
    WarpSync {
        mask: Reg,
        how: WarpSync,
    },
    Activemask {
        d: Reg,
    },
    Nanosleep {
        time: Reg,
    },
}

/// Operations on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PredicateLogic {
    Move,
    Not,
    And,
    Or,
    Xor,
}

/// The state spaces that are told apart when a kernel runs (5.1): constants lie in global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// Where memory is accessed, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) base: Reg,
    pub(crate) offset: i64,
    /// Bytes of one element: 1, 2, 4, 8 or 16.
    pub(crate) bytes: u8,
    /// Elements.
    pub(crate) count: u8,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    /// Whether 16 bytes arrive together (`.b128`), however small the memory's units are.
    pub(crate) whole: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) access: Access,
    pub(crate) d: Vec<Option<Reg>>,
    /// Sign-extends to so many bits; 0 for none.
    pub(crate) extend: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) access: Access,
    pub(crate) s: Vec<Reg>,
}

#[derive(Clone, Debug)]
pub(crate) struct Atomic {
    pub(crate) access: Access,
    /// `None` for `red`.
    pub(crate) d: Option<Reg>,
    pub(crate) b: Reg,
    pub(crate) c: Reg,
    pub(crate) how: Rmw,
}

/// An access to all members of a multicast object (9.7.9.14 to 9.7.9.16).
#[derive(Clone, Debug)]
pub(crate) struct Multimem {
    pub(crate) access: Access,
    pub(crate) how: MultimemKind,
}

#[derive(Clone, Debug)]
pub(crate) enum MultimemKind {
    /// Loads what all members have, combined.
    LoadReduce { d: Vec<Option<Reg>>, combine: Combination },
    /// Stores to all members.
    Store(Vec<Reg>),
    /// Changes all members: for each element its operand.
    Reduce { b: Vec<Reg>, how: Rmw },
}

/// An address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) space: Space,
    pub(crate) base: Reg,
    pub(crate) offset: i64,
}

/// An asynchronous copy.
#[derive(Clone, Debug)]
pub(crate) struct AsyncCopy {
    pub(crate) to: Address,
    pub(crate) source: AsyncSource,
    pub(crate) done: AsyncDone,
    /// What becomes of what is there: the bytes of an element, and how.
    pub(crate) reduce: Option<(u8, Rmw)>,
    /// Whether it is a bulk copy, by the asynchronous proxy.
    pub(crate) bulk: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum AsyncSource {
    /// Of `bytes` bytes so many are `given`, the others are zeros.
    Memory { from: Address, bytes: Reg, given: Option<Reg> },
    /// Registers of so many bytes each.
    Values { values: Vec<Reg>, bytes: u8 },
}

/// How a copy says that it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AsyncDone {
    Barrier(Address),
    Group(AsyncGroup),
}

/// Groups of bulk copies, and of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AsyncGroup {
    Bulk,
    Small,
}

/// An instruction on barriers in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Mbarrier {
    pub(crate) access: Access,
    pub(crate) how: MbarrierKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MbarrierKind {
    Init {
        count: Reg,
    },
    Invalidate,
    Arrive {
        d: Option<Reg>,
        count: Reg,
        /// Bytes that are expected besides.
        expect: Option<Reg>,
        drops: bool,
    },
    Expect {
        bytes: Reg,
    },
    Complete {
        bytes: Reg,
    },
    /// Whether the phase is over that a state is of, or of a parity.
    Test {
        p: Pred,
        phase: Reg,
        parity: bool,
    },
}

/// How the elements of all members become one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Combination {
    Each(fn(&mut Lanes, [&Lanes; 4])),
    /// In single precision, and rounded once (`.acc::f32`).
    Single {
        widen: fn(&mut Lanes, [&Lanes; 4]),
        add: fn(&mut Lanes, [&Lanes; 4]),
        narrow: fn(&mut Lanes, [&Lanes; 4]),
        /// Whether an element has two.
        packed: bool,
    },
}

/// What an atomic makes of the old value and its operand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rmw {
    Exchange,
    Cas,
    /// `inc`: 0 when it has reached the operand (9.7.13.5).
    Inc,
    /// `dec`: the operand when it is 0 or above the operand.
    Dec,
    /// Any other: an instruction of two sources. Run on lanes of which the first counts.
    Value(fn(&mut Lanes, [&Lanes; 4])),
}

#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    pub(crate) id: Reg,
    /// Threads that take part; `None` for all of the block.
    pub(crate) threads: Option<Reg>,
    pub(crate) aligned: bool,
    pub(crate) how: BarrierKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    Popc(Reg, Truth),
    And(Pred, Truth),
    Or(Pred, Truth),
}

/// Instructions that the lanes of a mask run together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WarpSync {
    Barrier,
    VoteAll(Pred, Truth),
    VoteAny(Pred, Truth),
    VoteUni(Pred, Truth),
    Ballot(Reg, Truth),
    Shuffle {
        kind: Shuffle,
        d: Reg,
        valid: Option<Pred>,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    MatchAny {
        d: Reg,
        a: Reg,
    },
    MatchAll {
        d: Reg,
        p: Option<Pred>,
        a: Reg,
    },
    /// The function of two sources, and the type's width in bits.
    Reduce {
        run: fn(&mut Lanes, [&Lanes; 4]),
        d: Reg,
        a: Reg,
    },
    Elect {
        d: Option<Reg>,
        p: Pred,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What an instruction does with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Truth {
    fn visit(&mut self, f: &mut impl FnMut(&mut Pred, Use)) {
        if let Truth::Reg(p, _) = self {
            f(p, Use::Read);
        }
    }
}

impl Inst {
    /// Calls `f` with each value register, `g` with each predicate: reads first, then writes.
    pub(crate) fn visit(
        &mut self,
        f: &mut impl FnMut(&mut Reg, Use),
        g: &mut impl FnMut(&mut Pred, Use),
    ) {
        use Use::{Read, Write};
        if let Some((p, _)) = &mut self.guard {
            g(p, Read);
        }
        match &mut self.op {
            Op::Value { d, s, .. } | Op::Carry { d, s, .. } => {
                s.iter_mut().for_each(|s| f(s, Read));
                f(d, Write);
            }
            Op::Compare { d, other, s, with, .. } => {
                s.iter_mut().for_each(|s| f(s, Read));
                with.visit(g);
                g(d, Write);
                if let Some(other) = other {
                    g(other, Write);
                }
            }
            Op::SetValue { d, s, with, .. } => {
                s.iter_mut().for_each(|s| f(s, Read));
                with.visit(g);
                f(d, Write);
            }
            Op::Select { d, a, b, p } => {
                f(a, Read);
                f(b, Read);
                p.visit(g);
                f(d, Write);
            }
            Op::Logic { d, a, b, .. } => {
                a.visit(g);
                b.visit(g);
                g(d, Write);
            }
            Op::Special { d, .. } | Op::Activemask { d } => f(d, Write),
            Op::Pack { d, parts, .. } => {
                parts.iter_mut().for_each(|s| f(s, Read));
                f(d, Write);
            }
            Op::Unpack { parts, s, .. } => {
                f(s, Read);
                parts.iter_mut().flatten().for_each(|d| f(d, Write));
            }
            Op::Convert { d, s, .. } | Op::ParameterAddress { d, s, .. } => {
                f(s, Read);
                f(d, Write);
            }
            Op::IsSpace { d, s, .. } => {
                f(s, Read);
                g(d, Write);
            }
            Op::BranchIndexed { index, .. } => f(index, Read),
            Op::Branch { .. }
            | Op::Exit
            | Op::Trap
            | Op::Nop
            | Op::Fence { .. }
            | Op::AsyncCommit { .. }
            | Op::AsyncWait { .. }
            | Op::ProxyFence
            | Op::AssertFail(_) => {}
            Op::Mbarrier(barrier) => {
                f(&mut barrier.access.base, Read);
                match &mut barrier.how {
                    MbarrierKind::Init { count: s }
                    | MbarrierKind::Expect { bytes: s }
                    | MbarrierKind::Complete { bytes: s } => f(s, Read),
                    MbarrierKind::Invalidate => {}
                    MbarrierKind::Arrive { d, count, expect, .. } => {
                        f(count, Read);
                        expect.iter_mut().for_each(|s| f(s, Read));
                        d.iter_mut().for_each(|d| f(d, Write));
                    }
                    MbarrierKind::Test { p, phase, .. } => {
                        f(phase, Read);
                        g(p, Write);
                    }
                }
            }
            Op::AsyncCopy(copy) => {
                f(&mut copy.to.base, Read);
                match &mut copy.source {
                    AsyncSource::Memory { from, bytes, given } => {
                        f(&mut from.base, Read);
                        f(bytes, Read);
                        given.iter_mut().for_each(|s| f(s, Read));
                    }
                    AsyncSource::Values { values, .. } => {
                        values.iter_mut().for_each(|s| f(s, Read));
                    }
                }
                if let AsyncDone::Barrier(barrier) = &mut copy.done {
                    f(&mut barrier.base, Read);
                }
            }
            Op::Multimem(multimem) => {
                f(&mut multimem.access.base, Read);
                match &mut multimem.how {
                    MultimemKind::LoadReduce { d, .. } => {
                        d.iter_mut().flatten().for_each(|d| f(d, Write));
                    }
                    MultimemKind::Store(s) | MultimemKind::Reduce { b: s, .. } => {
                        s.iter_mut().for_each(|s| f(s, Read));
                    }
                }
            }
            Op::Load(Load { access, d, .. }) => {
                f(&mut access.base, Read);
                d.iter_mut().flatten().for_each(|d| f(d, Write));
            }
            Op::Store(Store { access, s }) => {
                f(&mut access.base, Read);
                s.iter_mut().for_each(|s| f(s, Read));
            }
            Op::Atomic(atomic) => {
                f(&mut atomic.access.base, Read);
                f(&mut atomic.b, Read);
                f(&mut atomic.c, Read);
                if let Some(d) = &mut atomic.d {
                    f(d, Write);
                }
            }
            Op::Barrier(barrier) => {
                f(&mut barrier.id, Read);
                if let Some(threads) = &mut barrier.threads {
                    f(threads, Read);
                }
                match &mut barrier.how {
                    BarrierKind::Sync | BarrierKind::Arrive => {}
                    BarrierKind::Popc(d, p) => {
                        p.visit(g);
                        f(d, Write);
                    }
                    BarrierKind::And(d, p) | BarrierKind::Or(d, p) => {
                        p.visit(g);
                        g(d, Write);
                    }
                }
            }
            Op::WarpSync { mask, how } => {
                f(mask, Read);
                how.visit(f, g);
            }
            Op::Nanosleep { time } => f(time, Read),
        }
    }
}

impl WarpSync {
    fn visit(&mut self, f: &mut impl FnMut(&mut Reg, Use), g: &mut impl FnMut(&mut Pred, Use)) {
        use Use::{Read, Write};
        match self {
            WarpSync::Barrier => {}
            WarpSync::VoteAll(d, p) | WarpSync::VoteAny(d, p) | WarpSync::VoteUni(d, p) => {
                p.visit(g);
                g(d, Write);
            }
            WarpSync::Ballot(d, p) => {
                p.visit(g);
                f(d, Write);
            }
            WarpSync::Shuffle { d, valid, a, b, c, .. } => {
                [a, b, c].into_iter().for_each(|s| f(s, Read));
                f(d, Write);
                if let Some(p) = valid {
                    g(p, Write);
                }
            }
            WarpSync::MatchAny { d, a } | WarpSync::Reduce { d, a, .. } => {
                f(a, Read);
                f(d, Write);
            }
            WarpSync::MatchAll { d, p, a } => {
                f(a, Read);
                f(d, Write);
                if let Some(p) = p {
                    g(p, Write);
                }
            }
            WarpSync::Elect { d, p } => {
                if let Some(d) = d {
                    f(d, Write);
                }
                g(p, Write);
            }
        }
    }
}

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

//! Which registers an instruction reads and writes.

use super::{
    AsyncDone, AsyncSource, BarrierKind, Inst, Load, MbarrierKind, MultimemKind, Op, Pred, Reg,
    Store, Truth, WarpSync,
};

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

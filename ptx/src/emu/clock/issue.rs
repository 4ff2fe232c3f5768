//! When an instruction of a warp is issued, and what it waits for until then.

use super::super::block::Common;
use super::super::exec::Env;
use super::super::program::{Access, Inst, Op, Order, Scope, Space, WarpSync};
use super::super::warp::Warp;
use super::path::{Spent, Wait};
use super::{Issue, SCHEDULERS, SLACK, Timing};

/// The kinds of instructions that differ in what they wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IssueClass {
    /// Touches nothing but the warp's own.
    Own {
        cycles: u32,
    },
    /// Touches what others touch. `releases` waits for what the block has stored.
    Memory {
        releases: Option<Scope>,
    },
    Fence(Scope),
    /// Meets the other warps, or ends.
    Meets,
}

fn kind(inst: &Inst, timing: &Timing) -> IssueClass {
    let own = |cycles| IssueClass::Own { cycles };
    let released = |order: Order, scope: Scope| order.releases().then_some(scope);
    match &inst.op {
        Op::Load(load) => match load.access.space {
            Space::Param | Space::Local => own(timing.l1_cycles),
            _ => IssueClass::Memory { releases: None },
        },
        Op::Store(store) => match store.access.space {
            Space::Local => own(timing.alu_cycles),
            _ => IssueClass::Memory { releases: released(store.access.order, store.access.scope) },
        },
        Op::Atomic(atomic) => {
            IssueClass::Memory { releases: released(atomic.access.order, atomic.access.scope) }
        }
        Op::Multimem(multimem) => {
            let Access { order, scope, .. } = multimem.access;
            IssueClass::Memory { releases: released(order, scope) }
        }
        Op::Mbarrier(barrier) => {
            let Access { order, scope, .. } = barrier.access;
            IssueClass::Memory { releases: released(order, scope) }
        }
        Op::AsyncCopy(_) | Op::AsyncCommit { .. } | Op::AsyncWait { .. } => {
            IssueClass::Memory { releases: None }
        }
        Op::ProxyFence => IssueClass::Fence(Scope::Cta),
        Op::Fence { scope, .. } => IssueClass::Fence(*scope),
        Op::Barrier(_) | Op::Exit | Op::Trap | Op::AssertFail(_) => IssueClass::Meets,
        Op::WarpSync { how: WarpSync::Barrier, .. } => own(timing.alu_cycles),
        Op::WarpSync { .. } => own(timing.warp_cycles),
        Op::Branch { .. } | Op::BranchIndexed { .. } => own(timing.branch_cycles),
        _ => own(timing.alu_cycles),
    }
}

/// How long a fence towards a scope takes, beyond the wait for stores.
fn fence(timing: &Timing, scope: Scope) -> u64 {
    timing.cycles(u64::from(match scope {
        Scope::Cta => timing.fence_cta_cycles,
        Scope::Cluster | Scope::Gpu => timing.fence_gpu_cycles,
        Scope::Sys => timing.fence_sys_cycles,
    }))
}

/// Something else has to be waited for, until `then`.
fn later(at: &mut u64, wait: &mut Wait, then: u64, what: Wait) {
    if then > *at {
        (*at, *wait) = (then, what);
    }
}

/// The warp waits for an answer.
fn waits(warp: &mut Warp) -> Issue {
    warp.time.waits = true;
    Issue::Waits
}

/// An instruction of a warp is next: it takes its time now, or has to wait.
pub(crate) fn issue(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    pc: u32,
    active: u32,
) -> Issue {
    let Some(clock) = env.clock.as_deref_mut() else { return Issue::Now };
    let timing = clock.timing;
    let program = &common.grid.program;
    let inst = &program.code[pc as usize];
    let (touched, predicates) = program.touches(pc);
    let mut at = warp.time.at;
    // What it waits for longest.
    let mut wait = Wait { spent: Spent::Issue, pc, cause: None };
    for register in touched {
        let register = usize::from(*register);
        if warp.time.owed[register] > 0 {
            return waits(warp);
        }
        if warp.time.ready[register] > at {
            at = warp.time.ready[register];
            let made = Wait { spent: Spent::Result, pc, cause: None };
            wait = warp.time.makers[register].unwrap_or(made);
        }
    }
    for predicate in predicates {
        if warp.time.predicates[usize::from(*predicate)] > at {
            at = warp.time.predicates[usize::from(*predicate)];
            wait = Wait { spent: Spent::Result, pc, cause: None };
        }
    }
    let answered = warp.time.answer.unwrap_or(wait);
    let kind = if active == 0 { IssueClass::Own { cycles: 0 } } else { kind(inst, &timing) };
    let fences = match kind {
        IssueClass::Own { .. } => None,
        IssueClass::Meets => {
            if warp.time.requests > 0 {
                return waits(warp);
            }
            later(&mut at, &mut wait, warp.time.answered, answered);
            None
        }
        IssueClass::Memory { releases } => {
            if warp.time.acquires > 0 || releases.is_some() && warp.time.requests > 0 {
                return waits(warp);
            }
            later(&mut at, &mut wait, warp.time.memory, answered);
            if releases.is_some() {
                later(&mut at, &mut wait, warp.time.answered, answered);
            }
            releases
        }
        IssueClass::Fence(scope) => {
            if warp.time.requests > 0 {
                return waits(warp);
            }
            later(&mut at, &mut wait, warp.time.answered, answered);
            Some(scope)
        }
    };
    if let Some(scope) = fences.filter(|_| !std::mem::take(&mut warp.time.fenced)) {
        if scope > Scope::Cta {
            let stored = Wait { spent: Spent::Stored, pc, cause: None };
            later(&mut at, &mut wait, common.sm.stored, stored);
        }
        warp.time.at = at + fence(&timing, scope);
        warp.time.fenced = true;
        if scope > Scope::Cta {
            common.sm.forget_lines();
        }
        if let Some(trace) = &mut clock.trace {
            let id = (common.number, warp.index);
            trace.waited(id, warp.time.since, at, wait);
            trace.waited(id, at, warp.time.at, Wait { spent: Spent::Fence, pc, cause: None });
            warp.time.since = warp.time.at;
        }
        return Issue::Later;
    }
    let scheduler = warp.index as usize % SCHEDULERS;
    at = at.max(common.sm.schedulers[scheduler]);
    let slack = if matches!(kind, IssueClass::Own { .. }) { SLACK } else { 0 };
    if at > clock.limit.saturating_add(slack) {
        if let Some(trace) = &mut clock.trace {
            trace.waited((common.number, warp.index), warp.time.since, at, wait);
            warp.time.since = at;
        }
        warp.time.at = at;
        warp.time.fenced = fences.is_some();
        return Issue::Later;
    }
    if let Some(trace) = &mut clock.trace {
        let waited = if wait.spent == Spent::Issue { at } else { warp.time.since };
        trace.waited((common.number, warp.index), waited, at, wait);
        warp.time.since = at;
    }
    let issue = timing.cycles(timing.issue_cycles.into());
    common.sm.schedulers[scheduler] = at + issue;
    warp.time.at = at + issue;
    let cycles = match kind {
        IssueClass::Own { cycles } => cycles,
        _ => timing.alu_cycles,
    };
    if let Op::Branch { .. } | Op::BranchIndexed { .. } = inst.op
        && active != 0
    {
        warp.time.at = at + timing.cycles(cycles.into());
    }
    let ready = at + timing.cycles(cycles.into());
    let (written, predicates) = program.writes(pc);
    for register in written {
        warp.time.ready[usize::from(*register)] = ready;
        warp.time.makers[usize::from(*register)] = None;
    }
    for predicate in predicates {
        warp.time.predicates[usize::from(*predicate)] = ready;
    }
    (env.now, env.cycles) = (warp.time.at / 1000, timing.cycles_in(warp.time.at));
    Issue::Now
}

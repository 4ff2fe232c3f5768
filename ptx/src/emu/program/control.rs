//! Where control goes: which instructions it may come to from elsewhere, and which loops only wait.

use super::{Op, Order, Program};

/// The instructions that may follow `pc`.
pub(super) fn successors(program: &Program, pc: usize) -> ([Option<usize>; 2], &[u32]) {
    let Some(inst) = program.code.get(pc) else { return ([None, None], &[]) };
    let next = (pc + 1 < program.code.len()).then_some(pc + 1);
    let guarded = inst.guard.is_some();
    match &inst.op {
        Op::Branch { target } => ([Some(*target as usize), next.filter(|_| guarded)], &[]),
        Op::BranchIndexed { targets, .. } => ([next.filter(|_| guarded), None], targets),
        Op::Exit | Op::Trap => ([next.filter(|_| guarded), None], &[]),
        _ => ([next, None], &[]),
    }
}

/// Finds leaders and loops that wait.
///
/// A backward branch closes a loop of the instructions between its target and itself. Such a loop *waits* when it
/// loads with an order (relaxed, acquire, volatile), stores nothing, and has no loop within: it goes round until
/// somebody else has stored. Its rounds are counted as spins.
pub(super) fn analyse(program: &mut Program) {
    let len = program.code.len();
    let mut leaders = vec![false; len];
    let mut backward = Vec::new();
    for (pc, inst) in program.code.iter().enumerate() {
        let targets: &[u32] = match &inst.op {
            Op::Branch { target } => std::slice::from_ref(target),
            Op::BranchIndexed { targets, .. } => targets,
            _ => continue,
        };
        for &target in targets {
            if let Some(leader) = leaders.get_mut(target as usize) {
                *leader = true;
            }
            if target as usize <= pc {
                backward.push((target as usize, pc));
            }
        }
    }
    let mut spins = vec![false; len];
    for &(start, end) in &backward {
        let innermost =
            !backward.iter().any(|&(s, e)| (s, e) != (start, end) && s >= start && e < end);
        let mut waits = false;
        let mut works = false;
        for inst in &program.code[start..=end] {
            match &inst.op {
                Op::Load(load) => waits |= load.access.order != Order::Weak,
                Op::Store(_) | Op::Atomic(_) | Op::Barrier(_) => works = true,
                _ => {}
            }
        }
        spins[end] = innermost && waits && !works;
    }
    (program.leaders, program.spins) = (leaders, spins);
}

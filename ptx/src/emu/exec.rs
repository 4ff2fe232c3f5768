//! Runs the instructions of a warp, until it has to stop.

use super::alu::{Combine, Lanes};
use super::block::Common;
use super::clock::{self, Clock, Issue};
use super::fault::{FaultKind, Trouble};
use super::memory::model::{Model, lanes};
use super::program::{
    LOCAL_WINDOW, Op, Order, PredicateLogic, SHARED_WINDOW, Space, Special, WINDOW_BYTES, WarpSync,
};
use super::warp::{Fragment, Park, Warp};
use super::{access, assert, asynchronous, atomics, late, mbarrier, multimem, sync};

/// What a warp runs in.
pub(crate) struct Env<'a> {
    /// The memory system; `None` for memory as the host has it.
    pub(crate) model: Option<&'a mut Model>,
    /// Nanoseconds, for `%globaltimer`.
    pub(crate) now: u64,
    /// Cycles, for `%clock`; without virtual time the same.
    pub(crate) cycles: u64,
    /// Whether it is noted what loads see, to tell who only waits.
    pub(crate) watch: bool,
    /// Virtual time, where it is kept.
    pub(crate) clock: Option<&'a mut Clock>,
}

/// Why a warp stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Budget,
    /// `nanosleep`.
    Asleep,
    /// By the memory system, for somebody else to come first.
    Interrupted,
    /// Others come first in virtual time.
    Later,
    /// No fragment can run.
    Waits,
    /// Some lanes have exited.
    Exited,
    /// The fragment is at a barrier of the block.
    Barrier {
        fragment: usize,
    },
}

/// Runs at most `left` instructions. An error comes with the instruction that it is about.
pub(crate) fn run<const CLOCK: bool>(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    left: &mut u32,
) -> Result<Stop, (Box<Trouble>, u32)> {
    loop {
        // Nothing but what makes lanes meet keeps them together: an adversary has them part where they may.
        let model = env.model.as_deref_mut().filter(|m| m.checks.adversity.is_some());
        let other = model.and_then(|m| m.random.one_in(4).then(|| m.random.next()));
        let Some(picked) = warp.pick(other) else {
            return Ok(if warp.live == 0 { Stop::Exited } else { Stop::Waits });
        };
        let Fragment { mut pc, mask, .. } = warp.fragments[picked];
        let alone = warp.fragments.len() == 1;
        let program = std::sync::Arc::clone(&common.grid.program);
        loop {
            if *left == 0 {
                warp.fragments[picked].pc = pc;
                return Ok(Stop::Budget);
            }
            *left -= 1;
            let inst = &program.code[pc as usize];
            let active = match inst.guard {
                None => mask,
                Some((p, negated)) => {
                    let p = warp.predicates[usize::from(p)];
                    mask & if negated { !p } else { p }
                }
            };
            if CLOCK && clock::issue(warp, common, env, pc, active) != Issue::Now {
                warp.fragments[picked].pc = pc;
                return Ok(Stop::Later);
            }
            common.counts.warp_instructions += 1;
            common.counts.lane_instructions += u64::from(active.count_ones());
            if !warp.pending.is_empty() {
                late::settle_for(warp, common, env, pc, active)?;
            }
            let fail = |kind, lanes| Err((Trouble::new(kind, lanes), pc));
            match &inst.op {
                Op::Value { run, d, s } => {
                    let mut to = [0; 32];
                    run(&mut to, s.map(|s| warp.read(&program, s)));
                    warp.write(*d, &to, active);
                }
                Op::Convert { d, s, add } => {
                    let mut to = *warp.read(&program, *s);
                    if *add != 0 {
                        to.iter_mut().for_each(|v| *v = v.wrapping_add(*add));
                    }
                    warp.write(*d, &to, active);
                }
                Op::ParameterAddress { d, s, to } => {
                    let base = common.grid.parameters.address();
                    let base = if *to { base.wrapping_neg() } else { base };
                    let to = warp.read(&program, *s).map(|v| v.wrapping_add(base));
                    warp.write(*d, &to, active);
                }
                Op::Compare { run, d, other, s, combine, with } => {
                    let truth = run(s.map(|s| warp.read(&program, s)));
                    let with = warp.truth(*with);
                    warp.set_predicate(*d, combined(truth, *combine, with), active);
                    if let Some(other) = other {
                        warp.set_predicate(*other, combined(!truth, *combine, with), active);
                    }
                }
                Op::SetValue { run, d, s, one, combine, with } => {
                    let truth = combined(
                        run(s.map(|s| warp.read(&program, s))),
                        *combine,
                        warp.truth(*with),
                    );
                    let to =
                        std::array::from_fn(|lane| if truth >> lane & 1 != 0 { *one } else { 0 });
                    warp.write(*d, &to, active);
                }
                Op::Carry { run, d, s } => {
                    let (mut to, mut carry) = ([0; 32], warp.carry);
                    run(&mut to, s.map(|s| warp.read(&program, s)), &mut carry);
                    warp.write(*d, &to, active);
                    warp.carry = warp.carry & !active | carry & active;
                }
                Op::Select { d, a, b, p } => {
                    let p = warp.truth(*p);
                    let (a, b) = (warp.read(&program, *a), warp.read(&program, *b));
                    let mut to = *b;
                    for lane in 0..32 {
                        let take = u64::from(p >> lane & 1).wrapping_neg();
                        to[lane] = a[lane] & take | to[lane] & !take;
                    }
                    warp.write(*d, &to, active);
                }
                Op::Logic { how, d, a, b } => {
                    let (a, b) = (warp.truth(*a), warp.truth(*b));
                    let truth = match how {
                        PredicateLogic::Move => a,
                        PredicateLogic::Not => !a,
                        PredicateLogic::And => a & b,
                        PredicateLogic::Or => a | b,
                        PredicateLogic::Xor => a ^ b,
                    };
                    warp.set_predicate(*d, truth, active);
                }
                Op::Special { d, which } => {
                    let to = special(*which, warp, common, env);
                    warp.write(*d, &to, active);
                }
                Op::Pack { d, parts, bits } => {
                    let mut to = [0; 32];
                    for (i, part) in parts.iter().enumerate() {
                        let part = warp.read(&program, *part);
                        let mask = u64::MAX >> (64 - bits);
                        (0..32).for_each(|l| to[l] |= (part[l] & mask) << (i as u32 * bits));
                    }
                    warp.write(*d, &to, active);
                }
                Op::Unpack { parts, s, bits } => {
                    let from = *warp.read(&program, *s);
                    for (i, part) in parts.iter().enumerate() {
                        let Some(part) = part else { continue };
                        let to = from.map(|v| v >> (i as u32 * bits) & u64::MAX >> (64 - bits));
                        warp.write(*part, &to, active);
                    }
                }
                Op::IsSpace { d, s, space } => {
                    let s = warp.read(&program, *s);
                    let truth =
                        (0..32).filter(|&l| space_of(s[l]) == *space).fold(0, |m, l| m | 1 << l);
                    warp.set_predicate(*d, truth, active);
                }
                Op::Activemask { d } => warp.write(*d, &[active.into(); 32], active),
                Op::Nop => {}
                Op::Fence { order, scope } => {
                    common.counts.fences += 1;
                    match env.model.as_deref_mut() {
                        Some(model) => model.fence(warp.slot, active, *order, *scope),
                        None => std::sync::atomic::fence(if *order == Order::Sc {
                            std::sync::atomic::Ordering::SeqCst
                        } else {
                            std::sync::atomic::Ordering::AcqRel
                        }),
                    }
                }
                Op::Load(load) if active != 0 => {
                    access::load(warp, common, env, load, active, pc).map_err(|t| (t, pc))?;
                }
                Op::Store(store) if active != 0 => {
                    access::store(warp, common, env, store, active, pc).map_err(|t| (t, pc))?;
                }
                Op::Atomic(atomic) if active != 0 => {
                    atomics::atomic(warp, common, env, atomic, active, pc).map_err(|t| (t, pc))?;
                }
                Op::Multimem(op) if active != 0 => {
                    multimem::multimem(warp, common, env, op, active, pc).map_err(|t| (t, pc))?;
                }
                Op::Mbarrier(op) if active != 0 => {
                    mbarrier::mbarrier(warp, common, env, op, active, pc).map_err(|t| (t, pc))?;
                }
                Op::AsyncCopy(op) if active != 0 => {
                    asynchronous::issue(warp, common, env, op, active, pc).map_err(|t| (t, pc))?;
                }
                Op::Load(_) | Op::Store(_) | Op::Atomic(_) | Op::Multimem(_) => {}
                Op::Mbarrier(_) | Op::AsyncCopy(_) => {}
                Op::AsyncCommit { group } => asynchronous::commit(warp, common, *group, active),
                Op::AsyncWait { group, most, read } => {
                    let wait = (*group, *most, *read);
                    let then = asynchronous::wait(warp, common, env, wait, active);
                    if let Some(then) = then.map_err(|t| (t, pc))? {
                        warp.time.at = warp.time.at.max(then);
                        warp.fragments[picked].pc = pc;
                        return Ok(Stop::Later);
                    }
                }
                Op::ProxyFence => {
                    common.counts.fences += 1;
                    if let Some(model) = env.model.as_deref_mut() {
                        model.fence_proxy(warp.slot, active);
                    }
                }
                Op::AssertFail(at) => {
                    if active != 0 {
                        return fail(
                            FaultKind::Trap(assert::failed(warp, common, *at, active)),
                            active,
                        );
                    }
                }
                Op::Branch { target } => {
                    if active != 0 && program.spins[pc as usize] {
                        common.counts.spins += 1;
                    }
                    if active == mask {
                        pc = *target;
                        if alone {
                            continue;
                        }
                        warp.fragments[picked].pc = pc;
                        break;
                    }
                    if active != 0 {
                        common.counts.divergences += 1;
                        warp.fragments[picked] =
                            Fragment { pc: pc + 1, mask: mask & !active, park: Park::Runs };
                        warp.fragments.push(Fragment {
                            pc: *target,
                            mask: active,
                            park: Park::Runs,
                        });
                        break;
                    }
                }
                Op::BranchIndexed { index, targets } => {
                    if active != 0 {
                        let index = *warp.read(&program, *index);
                        for lane in lanes(active) {
                            let Some(&target) = targets.get(index[lane] as usize) else {
                                let what =
                                    format!("index {} of {} targets", index[lane], targets.len());
                                return fail(FaultKind::Trap(what), 1 << lane);
                            };
                            warp.fragments.push(Fragment {
                                pc: target,
                                mask: 1 << lane,
                                park: Park::Runs,
                            });
                        }
                        warp.fragments[picked] =
                            Fragment { pc: pc + 1, mask: mask & !active, park: Park::Runs };
                        warp.fragments.retain(|f| f.mask != 0);
                        break;
                    }
                }
                Op::Exit => {
                    if active != 0 {
                        warp.fragments[picked].pc = pc + 1;
                        warp.exit(active);
                        return Ok(Stop::Exited);
                    }
                }
                Op::Trap => {
                    if active != 0 {
                        return fail(FaultKind::Trap("the kernel has given up".to_owned()), active);
                    }
                }
                Op::Nanosleep { time } => {
                    if active != 0 {
                        let time =
                            lanes(active).map(|l| warp.read(&program, *time)[l]).max().unwrap_or(0);
                        if let Some(clock) = env.clock.as_deref_mut().filter(|_| CLOCK) {
                            clock.sleep(warp, common.number, pc, time);
                        } else {
                            warp.sleeps_until = env.now.saturating_add(time);
                        }
                        warp.fragments[picked].pc = pc + 1;
                        return Ok(Stop::Asleep);
                    }
                }
                Op::Barrier(_) => {
                    if active != 0 {
                        common.counts.barriers += 1;
                        let fragment = part(warp, picked, pc, mask, active);
                        return Ok(Stop::Barrier { fragment });
                    }
                }
                Op::WarpSync { mask: named, how } => {
                    if active != 0 {
                        let fragment = part(warp, picked, pc, mask, active);
                        let done = together(warp, common, env, *named, *how, fragment)
                            .map_err(|t| (t, pc))?;
                        if !done || !alone || active != mask {
                            break;
                        }
                    }
                }
            }
            let moves = matches!(
                inst.op,
                Op::Load(_)
                    | Op::Store(_)
                    | Op::Atomic(_)
                    | Op::Multimem(_)
                    | Op::Mbarrier(_)
                    | Op::AsyncCopy(_)
            );
            pc += 1;
            // An adversary takes over where it matters: around accesses.
            if moves && env.model.as_deref_mut().is_some_and(Model::interrupts) {
                warp.fragments[picked].pc = pc;
                return Ok(Stop::Interrupted);
            }
            if !alone && program.leaders[pc as usize] {
                warp.fragments[picked].pc = pc;
                break;
            }
        }
    }
}

/// Parts the active lanes from those that a guard holds back; returns the fragment of the active ones, which stays at
/// `pc`.
fn part(warp: &mut Warp, picked: usize, pc: u32, mask: u32, active: u32) -> usize {
    warp.fragments[picked] = Fragment { pc, mask: active, park: Park::Runs };
    if active != mask {
        warp.fragments.push(Fragment { pc: pc + 1, mask: mask & !active, park: Park::Runs });
    }
    picked
}

fn combined(truth: u32, how: Combine, with: u32) -> u32 {
    match how {
        Combine::No => truth,
        Combine::And => truth & with,
        Combine::Or => truth | with,
        Combine::Xor => truth ^ with,
    }
}

/// Runs an instruction for the lanes of which all that their masks name have come; the others wait. Whether
/// the whole fragment has gone on.
fn together(
    warp: &mut Warp,
    common: &mut Common,
    env: &mut Env<'_>,
    named: u16,
    how: WarpSync,
    fragment: usize,
) -> Result<bool, Box<Trouble>> {
    let program = std::sync::Arc::clone(&common.grid.program);
    let at = warp.fragments[fragment];
    let masks = *warp.read(&program, named);
    let mut rest = at.mask;
    let mut gone = 0;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        let wanted = masks[lane] as u32;
        let group =
            lanes(rest).filter(|&l| masks[l] as u32 == wanted).fold(0u32, |m, l| m | 1 << l);
        rest &= !group;
        if wanted & group != group {
            let what =
                format!("the mask {wanted:#010x} does not name the lanes that run the instruction");
            return Err(Trouble::new(FaultKind::Divergence(what), group & !wanted));
        }
        if wanted & !warp.live != 0 {
            let what = format!("the mask {wanted:#010x} names lanes that have exited");
            return Err(Trouble::new(FaultKind::Divergence(what), wanted & !warp.live));
        }
        if group != wanted {
            continue;
        }
        common.counts.warp_syncs += 1;
        sync::run(warp, &program, how, group)?;
        if let (WarpSync::Barrier, Some(model)) = (how, env.model.as_deref_mut()) {
            let mut joined = super::memory::model::Knowledge::default();
            model.arrive(warp.slot, group, &mut joined);
            model.leave(warp.slot, group, &joined);
        }
        gone |= group;
    }
    if gone == at.mask {
        warp.fragments[fragment].pc = at.pc + 1;
        return Ok(true);
    }
    warp.fragments[fragment] = Fragment { mask: at.mask & !gone, park: Park::Gathers, ..at };
    if gone != 0 {
        warp.fragments.push(Fragment { pc: at.pc + 1, mask: gone, park: Park::Runs });
    }
    Ok(false)
}

/// The space that a generic address lies in.
pub(crate) fn space_of(address: u64) -> Space {
    let within = |window| (window..window + WINDOW_BYTES).contains(&address);
    if within(SHARED_WINDOW) {
        Space::Shared
    } else if within(LOCAL_WINDOW) {
        Space::Local
    } else {
        Space::Global
    }
}

fn special(which: Special, warp: &Warp, common: &Common, env: &Env<'_>) -> Lanes {
    let grid = &common.grid;
    let each = |f: &dyn Fn(u32) -> u64| std::array::from_fn(|lane| f(lane as u32));
    let thread = |lane: u32| warp.index * 32 + lane;
    let [x, y, _] = grid.block;
    let [gx, gy, _] = grid.grid;
    match which {
        Special::Tid(0) => each(&|l| (thread(l) % x).into()),
        Special::Tid(1) => each(&|l| (thread(l) / x % y).into()),
        Special::Tid(_) => each(&|l| (thread(l) / x / y).into()),
        Special::Ntid(d) => [grid.block[usize::from(d)].into(); 32],
        Special::Ctaid(0) => [(common.index % gx).into(); 32],
        Special::Ctaid(1) => [(common.index / gx % gy).into(); 32],
        Special::Ctaid(_) => [(common.index / gx / gy).into(); 32],
        Special::Nctaid(d) => [grid.grid[usize::from(d)].into(); 32],
        Special::LaneId => each(&u64::from),
        Special::WarpId => [warp.index.into(); 32],
        Special::NWarpId => [common.warps.into(); 32],
        Special::SmId => [common.index.into(); 32],
        Special::NSmId => [grid.blocks.into(); 32],
        Special::GridId => [grid.number; 32],
        Special::LaneMaskEq => each(&|l| 1 << l),
        Special::LaneMaskLe => each(&|l| (2u64 << l) - 1),
        Special::LaneMaskLt => each(&|l| (1u64 << l) - 1),
        Special::LaneMaskGe => each(&|l| u64::from(u32::MAX) & !((1u64 << l) - 1)),
        Special::LaneMaskGt => each(&|l| u64::from(u32::MAX) & !((2u64 << l) - 1)),
        Special::Clock64 => [env.cycles; 32],
        Special::Clock => [env.cycles & u64::from(u32::MAX); 32],
        Special::ClockHi => [env.cycles >> 32; 32],
        Special::GlobalTimer => [env.now; 32],
        Special::GlobalTimerLo => [env.now & u64::from(u32::MAX); 32],
        Special::GlobalTimerHi => [env.now >> 32; 32],
        Special::DynamicSharedBytes => [grid.dynamic_shared.into(); 32],
        Special::TotalSharedBytes => [common.shared_bytes as u64; 32],
    }
}

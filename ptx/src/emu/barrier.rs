//! Barriers of a block: 16, each of which a number of threads come to.
//!
//! Source: PTX ISA 9.0, 9.7.13.1 `bar{.cta}, barrier{.cta}`.

use super::exec::Env;
use super::fault::{FaultKind, Trouble};
use super::memory::model::Knowledge;
use super::program::{Barrier, BarrierKind, Op, Program};
use super::warp::{Park, Warp};

/// Barriers of a block (the same section: "numbered 0 through 15").
const BARRIERS: usize = 16;

/// The barriers of a block.
#[derive(Default)]
pub(crate) struct Barriers([State; BARRIERS]);

/// One barrier, from the first arrival on.
#[derive(Default)]
struct State {
    /// Threads that have come, whole warps where the instruction is aligned.
    arrived: u32,
    /// Lanes that have come.
    lanes: u32,
    /// Threads that take part; `None` when all of the block do.
    expected: Option<u32>,
    /// What came first: the others must be like it.
    kind: Option<&'static str>,
    popc: u32,
    and: bool,
    or: bool,
    joined: Knowledge,
    /// When the last one has come, in virtual time, and which one.
    time: u64,
    last: u32,
}

impl Barriers {
    /// A fragment has come to its barrier.
    pub(crate) fn arrive(
        &mut self,
        block: u64,
        warps: &mut [Warp],
        warp: usize,
        fragment: usize,
        program: &Program,
        env: &mut Env<'_>,
    ) -> Result<(), Box<Trouble>> {
        let at = warps[warp].fragments[fragment];
        let trouble = |what: String| Err(Trouble::new(FaultKind::Barrier(what), at.mask));
        let Op::Barrier(barrier) = &program.code[at.pc as usize].op else { return Ok(()) };
        if barrier.aligned && at.mask != warps[warp].live {
            warps[warp].fragments[fragment].park = Park::Gathers;
            return Ok(());
        }
        let Some(id) = warps[warp].uniform(program, barrier.id, at.mask) else {
            return trouble("its number is not the same in all lanes".to_owned());
        };
        let Some(state) = usize::try_from(id).ok().and_then(|id| self.0.get_mut(id)) else {
            return trouble(format!("there is no barrier {id}, there are 0 to {}", BARRIERS - 1));
        };
        let expected = match barrier.threads {
            None => None,
            Some(threads) => match warps[warp].uniform(program, threads, at.mask) {
                Some(n) if n > 0 && n % 32 == 0 => Some(n as u32),
                Some(n) => {
                    return trouble(format!("{n} threads: a barrier is for whole warps of 32"));
                }
                None => return trouble("its threads are not the same in all lanes".to_owned()),
            },
        };
        let (kind, p) = match barrier.how {
            BarrierKind::Arrive => (None, 0),
            BarrierKind::Sync => (Some("sync"), 0),
            BarrierKind::Popc(_, p) => (Some("red.popc"), warps[warp].truth(p) & at.mask),
            BarrierKind::And(_, p) => (Some("red.and"), warps[warp].truth(p) & at.mask),
            BarrierKind::Or(_, p) => (Some("red.or"), warps[warp].truth(p) & at.mask),
        };
        if state.arrived == 0 {
            *state = State { expected, and: true, ..State::default() };
        } else if state.expected != expected {
            let text =
                |n: Option<u32>| n.map_or("all threads".to_owned(), |n| format!("{n} threads"));
            let what = format!(
                "barrier {id} is for {} here, for {} where others wait",
                text(expected),
                text(state.expected)
            );
            return trouble(what);
        }
        match (state.kind, kind) {
            (Some(a), Some(b)) if a != b => {
                return trouble(format!("barrier {id} is .{b} here, .{a} where others wait"));
            }
            (None, Some(_)) => state.kind = kind,
            _ => {}
        }
        state.lanes += at.mask.count_ones();
        state.arrived += if barrier.aligned { 32 } else { at.mask.count_ones() };
        if warps[warp].time.at >= state.time {
            (state.time, state.last) = (warps[warp].time.at, warp as u32);
        }
        state.popc += p.count_ones();
        state.and &= p == at.mask;
        state.or |= p != 0;
        if let Some(most) = state.expected.filter(|&most| state.arrived > most) {
            return trouble(format!(
                "{} threads have come to barrier {id}, which is for {most}",
                state.arrived
            ));
        }
        if let Some(model) = env.model.as_deref_mut() {
            model.arrive(warps[warp].slot, at.mask, &mut state.joined);
        }
        warps[warp].progress = true;
        let fragment = &mut warps[warp].fragments[fragment];
        match barrier.how {
            BarrierKind::Arrive => fragment.pc += 1,
            _ => fragment.park = Park::Barrier(id as u8),
        }
        self.look(block, warps, program, env);
        Ok(())
    }

    /// Opens the barriers to which all have come.
    pub(crate) fn look(
        &mut self,
        block: u64,
        warps: &mut [Warp],
        program: &Program,
        env: &mut Env<'_>,
    ) {
        let live: u32 = warps.iter().map(|warp| warp.live.count_ones()).sum();
        for (id, state) in self.0.iter_mut().enumerate() {
            let complete = match state.expected {
                Some(expected) => state.arrived >= expected,
                None => state.lanes >= live,
            };
            if state.arrived == 0 || !complete {
                continue;
            }
            let state = std::mem::take(state);
            for warp in warps.iter_mut() {
                for i in 0..warp.fragments.len() {
                    let at = warp.fragments[i];
                    if at.park != Park::Barrier(id as u8) {
                        continue;
                    }
                    let Op::Barrier(barrier) = &program.code[at.pc as usize].op else { continue };
                    state.open(barrier, warp, at.mask);
                    if let Some(model) = env.model.as_deref_mut() {
                        model.leave(warp.slot, at.mask, &state.joined);
                    }
                    warp.fragments[i].pc += 1;
                    warp.fragments[i].park = Park::Runs;
                    if let Some(clock) = env.clock.as_deref_mut() {
                        clock.leave_barrier(warp, at.pc, block, (state.last, state.time));
                    }
                    warp.progress = true;
                }
            }
        }
    }
}

impl State {
    /// Gives the result of a reduction to the lanes of a mask.
    fn open(&self, barrier: &Barrier, warp: &mut Warp, mask: u32) {
        let all = |truth: bool| if truth { u32::MAX } else { 0 };
        match barrier.how {
            BarrierKind::Popc(d, _) => warp.write(d, &[self.popc.into(); 32], mask),
            BarrierKind::And(d, _) => warp.set_predicate(d, all(self.and), mask),
            BarrierKind::Or(d, _) => warp.set_predicate(d, all(self.or), mask),
            BarrierKind::Sync | BarrierKind::Arrive => {}
        }
    }
}

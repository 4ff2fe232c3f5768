//! Virtual time: when each instruction of each warp would run on a GPU.
//!
//! ```text
//! Lockstep ─► the earliest of: a warp that can go on, a request that has come to where its memory is
//!   warp      issue: registers there? memory in order? ─► Later, Waits, or it runs and takes its time
//!   request   a load or an atomic takes place, and its answer goes back ─► the registers' time
//! ```
//!
//! * A warp issues in order. An instruction waits for the registers that it reads or writes, for its SM's scheduler, and where it
//!   orders memory for what it orders. Loads and atomics do not hold up what does not need them.
//! * A request goes to the memory's place: this GPU's L2, another GPU's, the host. It takes half the latency there, and the
//!   answer the other half. What L2 and links move has a rate, and is queued for.
//! * A store is on its way until it arrives. A load that comes there before sees what was there ([`shadow`]). A release and a fence
//!   wait until all that the block has stored has arrived.
//!
//! The schedule always runs what is earliest, so that a run is the same every time. Left out: L1 as a cache of lines that differ
//! from warp to warp, DRAM behind L2, register banks, dual issue, the time between kernels.

pub(crate) mod requests;
mod shadow;
mod timing;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use self::shadow::Shadow;
pub use self::timing::{A100_NVLINK, H100_NVLINK, H200_ONE_GPU, MachineModel, Timing};
use super::block::Common;
use super::exec::Env;
use super::program::{Inst, Op, Order, Scope, Space, WarpSync};
use super::warp::Warp;

/// Where memory is: a GPU's number, or [`HOST`].
pub(crate) type Place = u32;
/// The place of the host's memory.
pub(crate) const HOST: Place = u32::MAX;
/// Schedulers of an SM (CUDA C++ Programming Guide, "Compute Capability 8.x" and "9.0").
const SCHEDULERS: usize = 4;
/// How far a warp may run ahead of the others where it touches nothing of theirs: picoseconds.
const SLACK: u64 = 10_000;

/// What comes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A warp of a block goes on.
    Warp { block: u64, warp: u32 },
    /// A request of a warp has come to where its memory is.
    Request { block: u64, warp: u32, id: u64 },
}

/// The time of a schedule.
pub(crate) struct Clock {
    pub(crate) timing: Timing,
    /// The time of what runs now, in picoseconds.
    pub(crate) now: u64,
    /// When something else comes.
    limit: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Due)>>,
    /// Orders what comes at one time, and numbers requests.
    order: u64,
    /// Until when what each place sends, and what it receives, is under way.
    sends: HashMap<(Place, bool), u64>,
    receives: HashMap<(Place, bool), u64>,
    /// Until when each GPU's L2 is busy.
    l2: HashMap<Place, u64>,
    /// When the last store from one place to another arrives.
    last: HashMap<(Place, Place), u64>,
    pub(crate) shadow: Shadow,
}

/// What an SM is busy with.
#[derive(Debug, Default)]
pub(crate) struct Sm {
    schedulers: [u64; SCHEDULERS],
    /// Until when its way to memory is busy.
    memory: u64,
    /// When all that the block has stored so far has arrived.
    pub(crate) stored: u64,
}

/// A warp's time.
#[derive(Debug, Default)]
pub(crate) struct WarpTime {
    /// When it can issue its next instruction.
    pub(crate) at: u64,
    /// When each register's value is there, and each predicate's.
    ready: Vec<u64>,
    predicates: Vec<u64>,
    /// Requests whose answers a register waits for.
    owed: Vec<u8>,
    /// Requests under way, and those of them that acquire.
    requests: u32,
    acquires: u32,
    /// When the last answer so far is there.
    answered: u64,
    /// From when on it may touch memory.
    memory: u64,
    /// Whether the fence of the next instruction is over.
    fenced: bool,
    /// Whether nothing of it can go on before a request is answered.
    pub(crate) waits: bool,
    /// Whether it is in the schedule's queue.
    pub(crate) queued: bool,
}

/// Whether an instruction runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Issue {
    Now,
    /// When the schedule comes back to the warp.
    Later,
    /// When a request has been answered.
    Waits,
}

impl WarpTime {
    pub(crate) fn new(at: u64, registers: usize, predicates: usize) -> Self {
        WarpTime {
            at,
            ready: vec![0; registers],
            predicates: vec![0; predicates],
            owed: vec![0; registers],
            ..WarpTime::default()
        }
    }
}

impl Clock {
    pub(crate) fn new(timing: Timing) -> Self {
        Clock {
            timing,
            now: 0,
            limit: u64::MAX,
            queue: BinaryHeap::new(),
            order: 0,
            sends: HashMap::new(),
            receives: HashMap::new(),
            l2: HashMap::new(),
            last: HashMap::new(),
            shadow: Shadow::default(),
        }
    }

    pub(crate) fn push(&mut self, at: u64, due: Due) {
        self.order += 1;
        self.limit = self.limit.min(at);
        self.queue.push(Reverse((at, self.order, due)));
    }

    /// What comes next; time goes on to it.
    pub(crate) fn pop(&mut self) -> Option<Due> {
        let Reverse((at, _, due)) = self.queue.pop()?;
        self.now = self.now.max(at);
        self.limit = self.queue.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        self.shadow.forget(self.now);
        Some(due)
    }

    /// Nothing comes any more.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// From the last arrival at a barrier until all go on.
    pub(crate) fn barrier(&self) -> u64 {
        self.timing.cycles(self.timing.barrier_cycles.into())
    }

    /// Half of the way to a place and back.
    fn way(&self, from: Place, to: Place) -> u64 {
        let timing = &self.timing;
        match to {
            _ if to == from => timing.cycles(timing.l2_cycles.into()) / 2,
            HOST => u64::from(timing.host_ns) * 500,
            _ => u64::from(timing.peer_ns) * 500,
        }
    }

    /// When so many bytes that leave a place at `at` have come to another one; both ends move one thing after the other.
    fn moved(&mut self, from: Place, to: Place, at: u64, bytes: u64) -> u64 {
        let timing = self.timing;
        let way =
            self.way(if from == HOST { to } else { from }, if from == HOST { HOST } else { to });
        if from == to {
            return at + way;
        }
        let host = from == HOST || to == HOST;
        let takes = Timing::moving(bytes, if host { timing.host_gbs } else { timing.peer_gbs });
        let sends = self.sends.entry((from, host)).or_default();
        let start = at.max(*sends);
        *sends = start + takes;
        let receives = self.receives.entry((to, host)).or_default();
        let comes = (start + way).max(*receives);
        *receives = comes + takes;
        comes + takes
    }

    /// When L2 of a GPU has moved so many bytes that are asked for at `at`.
    fn through_l2(&mut self, gpu: Place, at: u64, bytes: u64) -> u64 {
        if gpu == HOST {
            return at;
        }
        let busy = self.l2.entry(gpu).or_default();
        let start = at.max(*busy);
        *busy = start + Timing::moving(bytes, self.timing.l2_gbs);
        start
    }

    /// When a store arrives that a GPU issues at `at`.
    fn store(&mut self, from: Place, to: Place, at: u64, bytes: u64) -> u64 {
        let comes = self.moved(from, to, at, bytes);
        let arrives = self.through_l2(to, comes, bytes);
        let last = self.last.entry((from, to)).or_default();
        *last = arrives.max(*last);
        *last
    }
}

/// The kinds of instructions that differ in what they wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
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

fn kind(inst: &Inst, timing: &Timing) -> Kind {
    let own = |cycles| Kind::Own { cycles };
    let released = |order: Order, scope: Scope| order.releases().then_some(scope);
    match &inst.op {
        Op::Load(load) => match load.access.space {
            Space::Param | Space::Local => own(timing.l1_cycles),
            _ => Kind::Memory { releases: None },
        },
        Op::Store(store) => match store.access.space {
            Space::Local => own(timing.alu_cycles),
            _ => Kind::Memory { releases: released(store.access.order, store.access.scope) },
        },
        Op::Atomic(atomic) => {
            Kind::Memory { releases: released(atomic.access.order, atomic.access.scope) }
        }
        Op::Fence { scope, .. } => Kind::Fence(*scope),
        Op::Barrier(_) | Op::Exit | Op::Trap => Kind::Meets,
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
    for register in touched {
        let register = usize::from(*register);
        if warp.time.owed[register] > 0 {
            return waits(warp);
        }
        at = at.max(warp.time.ready[register]);
    }
    for predicate in predicates {
        at = at.max(warp.time.predicates[usize::from(*predicate)]);
    }
    let kind = if active == 0 { Kind::Own { cycles: 0 } } else { kind(inst, &timing) };
    let fences = match kind {
        Kind::Own { .. } => None,
        Kind::Meets => {
            if warp.time.requests > 0 {
                return waits(warp);
            }
            at = at.max(warp.time.answered);
            None
        }
        Kind::Memory { releases } => {
            if warp.time.acquires > 0 || releases.is_some() && warp.time.requests > 0 {
                return waits(warp);
            }
            at = at.max(warp.time.memory);
            if releases.is_some() {
                at = at.max(warp.time.answered);
            }
            releases
        }
        Kind::Fence(scope) => {
            if warp.time.requests > 0 {
                return waits(warp);
            }
            at = at.max(warp.time.answered);
            Some(scope)
        }
    };
    if let Some(scope) = fences.filter(|_| !std::mem::take(&mut warp.time.fenced)) {
        if scope > Scope::Cta {
            at = at.max(common.sm.stored);
        }
        warp.time.at = at + fence(&timing, scope);
        warp.time.fenced = true;
        return Issue::Later;
    }
    let scheduler = warp.index as usize % SCHEDULERS;
    at = at.max(common.sm.schedulers[scheduler]);
    let slack = if matches!(kind, Kind::Own { .. }) { SLACK } else { 0 };
    if at > clock.limit.saturating_add(slack) {
        warp.time.at = at;
        warp.time.fenced = fences.is_some();
        return Issue::Later;
    }
    let issue = timing.cycles(timing.issue_cycles.into());
    common.sm.schedulers[scheduler] = at + issue;
    warp.time.at = at + issue;
    let cycles = match kind {
        Kind::Own { cycles } => cycles,
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
    }
    for predicate in predicates {
        warp.time.predicates[usize::from(*predicate)] = ready;
    }
    env.now = warp.time.at / 1000;
    Issue::Now
}

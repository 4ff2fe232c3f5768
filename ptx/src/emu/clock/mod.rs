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
//! * A store is on its way until it arrives. A load of another block that comes there before sees what was there
//!   ([`in_flight`]). A release and a fence
//!   wait until all that the block has stored has arrived.
//!
//! The schedule always runs what is earliest, so that a run is the same every time. L1 has the lines that weak loads of
//! the block have fetched since its last fence or acquiring load. Each block has an SM of its own. L2 has what was used last
//! ([`l2`]). Left out: the parts of L2 and how far they are, translation of addresses, register banks, dual issue, the time between
//! kernels.

mod file;
mod in_flight;
mod issue;
mod l2;
mod models;
pub(crate) mod path;
mod rate;
pub(crate) mod requests;
mod timing;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use self::in_flight::StoresInFlight;
pub(crate) use self::issue::issue;
use self::l2::L2;
pub use self::models::{
    A100_NVLINK, ASSUMED, H100_NVLINK, H200_ONE_GPU, MachineModel, Source, UnknownFigure,
};
use self::path::{Cause, Trace, Wait};
pub use self::path::{PathStep, Spent, totals};
use self::rate::Rate;
pub use self::timing::Timing;
use super::program::Pred;
use super::warp::Warp;

/// Where memory is: a GPU's number, or [`HOST`].
pub(crate) type Place = u32;
/// The place of the host's memory.
pub(crate) const HOST: Place = u32::MAX;
/// Schedulers of an SM (CUDA C++ Programming Guide, "Compute Capability 8.x" and "9.0").
const SCHEDULERS: usize = 4;
/// Bytes of a line of L1 and of L2.
const LINE: u64 = 128;
/// Lines that L1 holds at most: half of the 256 KiB that it shares with shared memory (NVIDIA's H100 whitepaper).
const L1_LINES: usize = 1024;
/// How far a warp may run ahead of the others where it touches nothing of theirs: picoseconds.
const SLACK: u64 = 10_000;

/// What comes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClockEvent {
    /// A warp of a block goes on.
    Warp { block: u64, warp: u32 },
    /// A request of a warp has come to where its memory is.
    Request { block: u64, warp: u32, id: u64 },
    /// A copy that a warp has issued has read, or written.
    Copy { block: u64, warp: u32, id: u64 },
}

impl ClockEvent {
    /// The number of the block, and the warp in it.
    pub(crate) fn warp(self) -> (u64, usize) {
        let (ClockEvent::Warp { block, warp }
        | ClockEvent::Request { block, warp, .. }
        | ClockEvent::Copy { block, warp, .. }) = self;
        (block, warp as usize)
    }
}

/// The time of a schedule.
pub(crate) struct Clock {
    pub(crate) timing: Timing,
    /// The time of what runs now, in picoseconds.
    pub(crate) now: u64,
    /// When something else comes.
    limit: u64,
    queue: BinaryHeap<Reverse<(u64, u64, ClockEvent)>>,
    /// Orders what comes at one time, and numbers requests.
    order: u64,
    /// What each place sends, and what it receives: to and from GPUs, or the host.
    sends: HashMap<(Place, bool), Rate>,
    receives: HashMap<(Place, bool), Rate>,
    /// Each GPU's L2, and the memory behind it.
    l2: HashMap<Place, L2>,
    pub(crate) in_flight: StoresInFlight,
    /// What warps wait for, where it is noted.
    pub(crate) trace: Option<Trace>,
}

/// What an SM is busy with.
#[derive(Debug, Default)]
pub(crate) struct Sm {
    schedulers: [u64; SCHEDULERS],
    /// Until when its way to memory is busy.
    memory: u64,
    /// When it is known that all has arrived that the block has stored so far.
    pub(crate) stored: u64,
    /// When the last of its stores to each place arrives: what it loads from there comes after.
    last: HashMap<Place, u64>,
    /// The lines that L1 has, each from a time on.
    l1: HashMap<u64, u64>,
}

impl Sm {
    /// When all that was stored to a place has arrived there.
    fn stored_at(&self, place: Place) -> u64 {
        self.last.get(&place).copied().unwrap_or(0)
    }

    /// A store arrives at a place.
    fn stores_to(&mut self, place: Place, arrives: u64) {
        let last = self.last.entry(place).or_default();
        *last = arrives.max(*last);
    }

    /// From when on L1 has all of these lines; `None` where it has not loaded some of them.
    fn lines_from(&self, mut lines: impl Iterator<Item = u64>) -> Option<u64> {
        lines.try_fold(0, |from, line| Some(from.max(*self.l1.get(&line)?)))
    }

    /// L1 has these lines from then on.
    fn keep_lines(&mut self, lines: impl Iterator<Item = u64>, from: u64) {
        if self.l1.len() > L1_LINES {
            self.l1.clear();
        }
        for line in lines {
            self.l1.entry(line).or_insert(from);
        }
    }

    /// What others have stored is to be seen: L1 has nothing any more.
    fn forget_lines(&mut self) {
        self.l1.clear();
    }
}

/// A warp's time.
#[derive(Debug, Default)]
pub(crate) struct WarpTime {
    /// When it can issue its next instruction.
    pub(crate) at: u64,
    /// When each register's value is there, and each predicate's.
    ready: Vec<u64>,
    predicates: Vec<u64>,
    /// What makes each register's value, where it is noted.
    makers: Vec<Option<Wait>>,
    /// What the last answer came from.
    answer: Option<Wait>,
    /// When it has issued its last instruction, or left a barrier.
    since: u64,
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
    /// A predicate is there then.
    pub(crate) fn set_predicate(&mut self, p: Pred, then: u64) {
        let there = &mut self.predicates[usize::from(p)];
        *there = then.max(*there);
    }

    pub(crate) fn new(at: u64, registers: usize, predicates: usize) -> Self {
        WarpTime {
            at,
            ready: vec![0; registers],
            predicates: vec![0; predicates],
            owed: vec![0; registers],
            makers: vec![None; registers],
            since: at,
            ..WarpTime::default()
        }
    }
}

impl Clock {
    pub(crate) fn new(timing: Timing, trace: bool) -> Self {
        Clock {
            timing,
            now: 0,
            limit: u64::MAX,
            queue: BinaryHeap::new(),
            order: 0,
            sends: HashMap::new(),
            receives: HashMap::new(),
            l2: HashMap::new(),
            in_flight: StoresInFlight::default(),
            trace: trace.then(Trace::default),
        }
    }

    pub(crate) fn push(&mut self, at: u64, due: ClockEvent) {
        self.order += 1;
        self.limit = self.limit.min(at);
        self.queue.push(Reverse((at, self.order, due)));
    }

    /// What comes next; time goes on to it.
    pub(crate) fn pop(&mut self) -> Option<ClockEvent> {
        let Reverse((at, _, due)) = self.queue.pop()?;
        self.now = self.now.max(at);
        self.limit = self.queue.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        self.in_flight.forget(self.now);
        Some(due)
    }

    /// Nothing comes any more.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// A warp of a block leaves a barrier, to which `last` has come last, at a time.
    pub(crate) fn leave_barrier(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        block: u64,
        (last, time): (u32, u64),
    ) {
        let opens = time + self.timing.cycles(self.timing.barrier_cycles.into());
        warp.time.at = warp.time.at.max(opens);
        if let Some(trace) = &mut self.trace {
            let others = || Cause { warp: (block, last), at: time, spent: Spent::Barrier };
            let cause = (last != warp.index).then(others);
            let since = if cause.is_some() { warp.time.since } else { time };
            let wait = Wait { spent: Spent::Barrier, pc, cause };
            trace.waited((block, warp.index), since, warp.time.at, wait);
            warp.time.since = warp.time.at;
        }
    }

    /// A warp sleeps for so many nanoseconds.
    pub(crate) fn sleep(&mut self, warp: &mut Warp, block: u64, pc: u32, nanoseconds: u64) {
        let from = warp.time.at;
        warp.time.at += nanoseconds.saturating_mul(1000);
        if let Some(trace) = &mut self.trace {
            let wait = Wait { spent: Spent::Sleep, pc, cause: None };
            trace.waited((block, warp.index), from, warp.time.at, wait);
            warp.time.since = warp.time.at;
        }
    }

    /// The way between a GPU and a place: half the latency of a load.
    fn way(&self, one: Place, other: Place) -> u64 {
        let timing = &self.timing;
        if one == other {
            timing.cycles(timing.l2_cycles.into()) / 2
        } else if one == HOST || other == HOST {
            u64::from(timing.host_ns) * 500
        } else {
            u64::from(timing.peer_ns) * 500
        }
    }

    /// When so many bytes that leave a place at `at` have come to another one; both ends move one thing after the other.
    fn moved(&mut self, from: Place, to: Place, at: u64, bytes: u64) -> u64 {
        let timing = self.timing;
        let way = self.way(from, to);
        if from == to {
            return at + way;
        }
        let host = from == HOST || to == HOST;
        let takes = Timing::moving(bytes, if host { timing.host_gbs } else { timing.peer_gbs });
        let (start, _) = self.sends.entry((from, host)).or_default().take(self.now, at, takes);
        let receives = self.receives.entry((to, host)).or_default();
        receives.take(self.now, start + way, takes).1
    }

    /// When L2 of a GPU, or the memory behind it, gives these bytes that are asked for at `at`.
    fn read(&mut self, gpu: Place, at: u64, bytes: u64, lines: impl Iterator<Item = u64>) -> u64 {
        if gpu == HOST {
            at
        } else {
            self.l2.entry(gpu).or_default().read(&self.timing, (self.now, at), bytes, lines)
        }
    }

    /// When a store arrives that a GPU issues at `at`.
    fn store(
        &mut self,
        (from, to): (Place, Place),
        at: u64,
        bytes: u64,
        lines: impl Iterator<Item = u64>,
    ) -> u64 {
        let mut arrives = self.moved(from, to, at, bytes);
        if to != HOST {
            let l2 = self.l2.entry(to).or_default();
            arrives = l2.write(&self.timing, (self.now, arrives), bytes, lines);
        }
        arrives
    }

    /// The way to the switch that joins all GPUs, there and to a GPU.
    fn way_by_switch(&self) -> u64 {
        u64::from(self.timing.peer_ns) * 500
    }

    /// When a store that a GPU issues at `at` arrives at each of `members`, whose lines are given: it is sent once, and the switch
    /// sends it to all.
    fn store_to_all(
        &mut self,
        from: Place,
        members: &[(Place, Vec<u64>)],
        at: u64,
        bytes: u64,
    ) -> Vec<u64> {
        let (way, takes) = (self.way_by_switch(), Timing::moving(bytes, self.timing.peer_gbs));
        let (start, _) = self.sends.entry((from, false)).or_default().take(self.now, at, takes);
        let arrive = |(place, lines): &(Place, Vec<u64>)| {
            let receives = self.receives.entry((*place, false)).or_default();
            let (_, comes) = receives.take(self.now, start + way, takes);
            let l2 = self.l2.entry(*place).or_default();
            l2.write(&self.timing, (self.now, comes), bytes, lines.iter().copied())
        };
        members.iter().map(arrive).collect()
    }

    /// When what a load has asked all of `members` for, at `at`, has come to a GPU: each sends it, and the switch sends one
    /// result on.
    fn load_from_all(
        &mut self,
        to: Place,
        members: &[(Place, Vec<u64>)],
        at: u64,
        bytes: u64,
    ) -> u64 {
        let (way, takes) = (self.way_by_switch(), Timing::moving(bytes, self.timing.peer_gbs));
        let mut all = at;
        for (place, lines) in members {
            let answered = self.read(*place, at, bytes, lines.iter().copied());
            let sends = self.sends.entry((*place, false)).or_default();
            all = all.max(sends.take(self.now, answered, takes).0);
        }
        let receives = self.receives.entry((to, false)).or_default();
        receives.take(self.now, all + way, takes).1
    }
}

//! Memory as PTX allows it to be: what is unordered may be late, out of order, torn; and what races is found.
//!
//! ```text
//! each 8 bytes (cell.rs)   stores   s1   s2   s3 = what memory holds     reads since
//!                                    │
//!             a load of lane l reads any store from the newest that l must see on:
//!             one that happens before the load (clock.rs), one that l has seen, one that is overdue
//! ```
//!
//! Stores take effect in memory at once, in the order in which they run, and leave what they replaced in the
//! cell's history. A load may be served from history: to its lane the later stores are not visible yet.
//! That is how stores come late and out of order, without any being held back. What a lane *must* see follows from
//! happens-before, which is kept as vector clocks: program order, barriers, and releases that are acquired at scopes
//! that include both sides. Accesses of which neither happens before the other, one of them a store, are a data race
//! unless both are strong and each within the other's scope.
//!
//! Loads may also be late: who runs them may ask for the value only when it is needed, after later
//! stores of the lane ([`Adversity::late_loads`]).
//!
//! The accesses of a vector are separate ones, cell by cell, unless [`Unit`] says more.
//!
//! **What it leaves out.** Coherence order is the order in which stores run, so that two lanes' stores are seen
//! in one order by all; a store never waits for an earlier one. Of proxies there are the generic and the asynchronous one: a
//! copy by the latter sees what came before a `fence.proxy.async`. A launch starts after all that have ended.
//!
//! Sources: PTX ISA 9.0, chapter 8 "Memory Consistency Model"; Lustig, Sahasrabuddhe, Giroux, "A Formal Analysis of the
//! NVIDIA PTX Memory Consistency Model", ASPLOS 2019; Lidbury and Donaldson, "Dynamic Race Detection for C++11", POPL
//! 2017 (histories of stores with vector clocks); Flanagan and Freund, "FastTrack", PLDI 2009.

mod access;
mod cell;
mod clock;

pub(crate) use access::{Request, Target};
pub(crate) use cell::Cells;
use clock::{Floors, WarpClock};
pub(crate) use clock::{Knowledge, Origin};

use crate::emu::fault::Site;
use crate::emu::program::{Order, Scope};
use crate::emu::random::Random;

/// What becomes visible in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Unit {
    /// 8 bytes: what a GPU does for every aligned access. (The manual promises an element of a vector, 8.2.2.)
    #[default]
    Eight,
    /// 16 bytes: a whole vector of a lane.
    Sixteen,
    /// 128 bytes: a line that a warp stores, or loads, in one instruction. No manual promises it; it is
    /// what LL128 stands on.
    Line,
}

impl Unit {
    pub(crate) const fn shift(self) -> u32 {
        match self {
            Unit::Eight => 3,
            Unit::Sixteen => 4,
            Unit::Line => 7,
        }
    }
}

/// How unhelpful memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adversity {
    /// The longest time, in steps of the schedule, that a store stays invisible to those who need not see it.
    pub late: u32,
    /// Whether loads may happen as late as their values are needed.
    pub late_loads: bool,
    /// What becomes visible in one piece.
    pub unit: Unit,
}

impl Default for Adversity {
    fn default() -> Self {
        Adversity { late: 2000, late_loads: true, unit: Unit::Eight }
    }
}

/// What the memory system looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Reports data races.
    pub races: bool,
    /// Reports loads of memory that nobody has written: shared memory, and what was mapped as such.
    pub uninitialised: bool,
    /// Is as unhelpful as allowed; `None` for memory that does everything at once.
    pub adversity: Option<Adversity>,
}

impl Default for Checks {
    fn default() -> Self {
        Checks { races: true, uninitialised: true, adversity: Some(Adversity::default()) }
    }
}

/// The memory system of one schedule.
pub(crate) struct Model {
    pub(crate) checks: Checks,
    pub(crate) random: Random,
    /// The schedule's time.
    pub(crate) tick: u64,
    /// Whether some store has changed memory, or something else has happened that others may wait for. Taken by the
    /// schedule.
    pub(crate) changed: bool,
    /// Stores so far.
    sequence: u64,
    global: Cells,
    warps: Vec<WarpClock>,
    free: Vec<u32>,
    /// What all that has ended has done and seen.
    ended: Knowledge,
    /// What has been known at each `fence.sc`, by block and scope.
    sequential: Vec<SequentialFences>,
}

/// The `fence.sc`s of a block towards a scope.
struct SequentialFences {
    block: BlockId,
    scope: Scope,
    knows: Knowledge,
    /// What those had read who have run one.
    floors: Floors,
}

/// Launch, block, and GPU.
type BlockId = (u64, u32, u32);

/// Whether what two blocks do towards scopes is each within the other's (8.6.1, "morally strong").
fn inclusive(a: (BlockId, Scope), b: (BlockId, Scope)) -> bool {
    match a.1.min(b.1) {
        Scope::Cta | Scope::Cluster => (a.0.0, a.0.1) == (b.0.0, b.0.1),
        Scope::Gpu => a.0.2 == b.0.2,
        Scope::Sys => true,
    }
}

impl Model {
    pub(crate) fn new(checks: Checks, random: Random) -> Self {
        Model {
            checks,
            random,
            tick: 0,
            changed: false,
            sequence: 0,
            global: Cells::new(true),
            warps: Vec::new(),
            free: Vec::new(),
            ended: Knowledge::default(),
            sequential: Vec::new(),
        }
    }

    /// Whether the warp that has just accessed memory should give way.
    pub(crate) fn interrupts(&mut self) -> bool {
        self.checks.adversity.is_some() && self.random.one_in(4)
    }

    /// A warp that starts now, after all that has ended.
    pub(crate) fn start_warp(&mut self, origin: Origin) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.warps.push(WarpClock::default());
            (self.warps.len() - 1) as u32
        });
        let mut knows = self.ended.clone();
        // Between launches there is nothing that a proxy would not see.
        knows.fence_proxy();
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.start(origin, knows);
        }
        slot
    }

    /// A place for the asynchronous copies that a warp issues: each is an agent of its own.
    pub(crate) fn start_copies(&mut self, issuer: u32) -> u32 {
        let origin = self.warps.get(issuer as usize).and_then(|warp| warp.origin.clone());
        let Some(origin) = origin else { return issuer };
        let slot = self.start_warp(origin);
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.start_copies();
        }
        slot
    }

    /// Copy number `copy` of `slot` begins, which `lane` of warp `issuer` issues. One by the asynchronous proxy sees only what
    /// came before a proxy fence.
    pub(crate) fn start_copy(
        &mut self,
        (slot, copy): (u32, usize),
        (issuer, lane): (u32, usize),
        asynchronous_proxy: bool,
    ) {
        let Some(warp) = self.warps.get_mut(issuer as usize) else { return };
        let mut knows = warp.snapshot(issuer, lane);
        warp.clock += 1;
        if !asynchronous_proxy {
            knows.fence_proxy();
        }
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.start_copy(copy, lane as u8, knows);
        }
    }

    /// What a copy has done and seen so far.
    pub(crate) fn copied(&mut self, (slot, copy): (u32, usize)) -> Knowledge {
        let mut knows = Knowledge::default();
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.contribute(slot, 1 << copy, &mut knows);
        }
        knows
    }

    /// A lane learns of what copies have done.
    pub(crate) fn learn(&mut self, slot: u32, lane: usize, knows: &Knowledge) {
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.learn(lane, knows);
        }
    }

    /// `fence.proxy.async`.
    pub(crate) fn fence_proxy(&mut self, slot: u32, mask: u32) {
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.fence_proxy(slot, mask);
        }
    }

    /// A block has ended.
    pub(crate) fn end_warps(&mut self, slots: &[u32]) {
        for &slot in slots {
            let Some(warp) = self.warps.get_mut(slot as usize) else { continue };
            warp.contribute(slot, u32::MAX, &mut self.ended);
            self.free.push(slot);
        }
        self.changed = true;
        if self.free.len() == self.warps.len() {
            // Nobody runs: who starts next starts after all of it, and needs no record of it.
            self.global.forget_records();
            self.warps.iter_mut().for_each(WarpClock::forget);
            self.sequential.clear();
        }
    }

    /// Declares that nobody has written `start..start + bytes`.
    pub(crate) fn uninitialised(&mut self, start: u64, bytes: u64) {
        self.global.uninitialised(start, bytes);
    }

    /// Where a lane was when it ran `pc`.
    fn site(&self, slot: u32, lanes: u32, pc: u32) -> Option<Site> {
        let warp = self.warps.get(slot as usize)?;
        let (origin, lanes) = (warp.origin.as_ref()?, warp.issuers(lanes));
        Some(Site::new(&origin.program, origin.launch, origin.block, origin.warp, lanes, pc))
    }

    /// `fence` by the lanes of `mask`.
    pub(crate) fn fence(&mut self, slot: u32, mask: u32, order: Order, scope: Scope) {
        let Some(warp) = self.warps.get_mut(slot as usize) else { return };
        for lane in lanes(mask) {
            if order.acquires() {
                warp.take_acquired(lane, scope);
            }
        }
        let (block, sc) = (warp.block(), order == Order::Sc);
        let meets = |fences: &SequentialFences| {
            block.is_some_and(|block| inclusive((block, scope), (fences.block, fences.scope)))
        };
        for fences in self.sequential.iter().filter(|fences| sc && meets(fences)) {
            lanes(mask).for_each(|lane| warp.learn(lane, &fences.knows));
            // Who runs one later reads nothing older than what was read before this one (8.9.4, from-reads
            // through the order of the fences).
            merge(&fences.floors, &mut warp.floors);
        }
        if order.releases() {
            warp.note_release(slot, mask, scope);
        }
        if let Some(block) = block.filter(|_| sc) {
            let at = self.sequential.iter().position(|f| (f.block, f.scope) == (block, scope));
            let at = at.unwrap_or_else(|| {
                let (knows, floors) = (Knowledge::default(), Floors::default());
                self.sequential.push(SequentialFences { block, scope, knows, floors });
                self.sequential.len() - 1
            });
            let fences = &mut self.sequential[at];
            warp.contribute(slot, mask, &mut fences.knows);
            merge(&warp.floors, &mut fences.floors);
        }
    }

    /// Lanes have come to a barrier: what they know goes to `joined`.
    pub(crate) fn arrive(&mut self, slot: u32, mask: u32, joined: &mut Knowledge) {
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            warp.contribute(slot, mask, joined);
        }
    }

    /// Lanes leave a barrier at which all have come together.
    pub(crate) fn leave(&mut self, slot: u32, mask: u32, joined: &Knowledge) {
        self.changed = true;
        if let Some(warp) = self.warps.get_mut(slot as usize) {
            lanes(mask).for_each(|lane| warp.learn(lane, joined));
        }
    }
}

/// Raises the floors `to` to those of `from`.
fn merge(from: &Floors, to: &mut Floors) {
    for (&unit, &floor) in from {
        let known = to.entry(unit).or_default();
        *known = (*known).max(floor);
    }
}

/// The lanes of a mask.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(lane)
    })
}

//! Who knows of what: happens-before as vector clocks.
//!
//! A warp has one clock, which its lanes share; it moves on when one of them releases what it knows. What a lane knows
//! of another is the last time of that lane's clock whose accesses happen before the lane's next one.

use std::collections::HashMap;
use std::sync::Arc;

use super::lanes;
use crate::emu::Program;
use crate::emu::program::Scope;

/// For each lane of each warp a time.
type Times = Arc<Vec<u32>>;

/// For each lane of each warp the time up to which its accesses are known. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    all: Times,
    /// The same for what the asynchronous proxy sees of them: what came before a proxy fence (chapter 8, "Causality
    /// Order": proxy-preserved base causality order), and what it has done itself.
    proxied: Times,
}

fn of(times: &Times, agent: usize) -> u32 {
    times.get(agent).copied().unwrap_or(0)
}

fn join(mine: &mut Times, other: &Times) {
    if Arc::ptr_eq(mine, other) || other.is_empty() {
        return;
    }
    if mine.len() <= other.len() && mine.iter().zip(other.iter()).all(|(a, b)| a <= b) {
        *mine = Arc::clone(other);
        return;
    }
    if other.len() <= mine.len() && other.iter().zip(mine.iter()).all(|(b, a)| b <= a) {
        return;
    }
    let mine = Arc::make_mut(mine);
    if mine.len() < other.len() {
        mine.resize(other.len(), 0);
    }
    mine.iter_mut().zip(other.iter()).for_each(|(a, b)| *a = (*a).max(*b));
}

fn set(times: &mut Times, agent: usize, time: u32) {
    let times = Arc::make_mut(times);
    if times.len() <= agent {
        times.resize(agent + 1, 0);
    }
    times[agent] = times[agent].max(time);
}

impl Knowledge {
    fn same(&self, other: &Knowledge) -> bool {
        Arc::ptr_eq(&self.all, &other.all) && Arc::ptr_eq(&self.proxied, &other.proxied)
    }

    /// Takes over what `other` knows.
    pub(crate) fn join(&mut self, other: &Knowledge) {
        join(&mut self.all, &other.all);
        join(&mut self.proxied, &other.proxied);
    }

    /// What it knows is what the asynchronous proxy sees, too.
    pub(super) fn fence_proxy(&mut self) {
        self.proxied = Arc::clone(&self.all);
    }
}

/// What a store releases: what was known, and to whom.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) knows: Knowledge,
    pub(super) scope: Scope,
}

/// Where a warp belongs.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) program: Arc<Program>,
    pub(crate) launch: u64,
    pub(crate) block: u32,
    pub(crate) warp: u32,
    /// The GPU that it runs on: scope `.gpu` ends there.
    pub(crate) device: u32,
}

/// For each unit the store that was read, by its number, and when it was read.
pub(super) type Floors = HashMap<u64, (u64, u64)>;

/// The clock of a warp, and what its lanes know.
#[derive(Default)]
pub(super) struct WarpClock {
    pub(super) origin: Option<Origin>,
    pub(super) clock: u32,
    /// Its first time: earlier ones were another warp's in this place.
    started: u32,
    /// Of asynchronous copies, for each the lane that has issued it, and when it began; each copy is a lane here.
    copies: Option<Box<[(u8, u32); 32]>>,
    knows: [Knowledge; 32],
    /// What a lane has read from strong stores without acquiring, by how far away they were made: of its block, of its GPU, anywhere. The
    /// next fence that reaches as far makes it known.
    acquired: [[Knowledge; 3]; 32],
    /// What the last fence of a lane released, to be passed on by its strong stores.
    released: [Option<Release>; 32],
    /// For each unit that was read, the store it was read from: a lane never reads an older one. With the time of the
    /// reading.
    pub(super) floors: Floors,
}

impl WarpClock {
    pub(super) fn start(&mut self, origin: Origin, knows: Knowledge) {
        self.origin = Some(origin);
        self.clock += 1;
        self.started = self.clock;
        self.knows = std::array::from_fn(|_| knows.clone());
        self.copies = None;
        self.forget();
    }

    /// Becomes that of asynchronous copies.
    pub(super) fn start_copies(&mut self) {
        self.copies = Some(Box::new([(0, 0); 32]));
    }

    /// Copy `copy` begins, which `lane` has issued, after all of which is known.
    pub(super) fn start_copy(&mut self, copy: usize, lane: u8, knows: Knowledge) {
        self.clock += 1;
        self.knows[copy] = knows;
        if let Some(copies) = &mut self.copies {
            copies[copy] = (lane, self.clock);
        }
    }

    /// The lanes that have issued these copies; of a warp the same lanes.
    pub(super) fn issuers(&self, mask: u32) -> u32 {
        match &self.copies {
            Some(copies) => lanes(mask).fold(0, |all, copy| all | 1 << copies[copy].0),
            None => mask,
        }
    }

    /// Drops what matters while it runs only.
    pub(super) fn forget(&mut self) {
        self.acquired = Default::default();
        self.released = Default::default();
        self.floors.clear();
    }

    /// Whether what lane `theirs` of warp `other` did at `time` happens before what our `lane` does now.
    #[inline]
    pub(super) fn ordered(
        &self,
        me: u32,
        lane: usize,
        other: u32,
        theirs: usize,
        time: u32,
    ) -> bool {
        (me == other && lane == theirs && time >= self.own(lane))
            || of(&self.knows[lane].all, other as usize * 32 + theirs) >= time
    }

    /// The same of what a store has done. An asynchronous copy sees what came before a proxy fence alone.
    #[inline]
    pub(super) fn sees(&self, me: u32, lane: usize, other: u32, theirs: usize, time: u32) -> bool {
        if self.copies.is_none() {
            return self.ordered(me, lane, other, theirs, time);
        }
        (me == other && lane == theirs && time >= self.own(lane))
            || of(&self.knows[lane].proxied, other as usize * 32 + theirs) >= time
    }

    /// The first time of a lane.
    #[inline]
    fn own(&self, lane: usize) -> u32 {
        self.copies.as_ref().map_or(self.started, |copies| copies[lane].1)
    }

    /// The asynchronous proxy sees what a lane knows and has done.
    pub(super) fn fence_proxy(&mut self, slot: u32, mask: u32) {
        for lane in lanes(mask) {
            let mut knows = self.snapshot(slot, lane);
            knows.fence_proxy();
            self.knows[lane] = knows;
        }
        self.clock += 1;
    }

    pub(super) fn learn(&mut self, lane: usize, other: &Knowledge) {
        self.knows[lane].join(other);
    }

    /// A lane has read what a block has released.
    pub(super) fn acquire_later(
        &mut self,
        lane: usize,
        other: &Knowledge,
        by: Option<super::BlockId>,
    ) {
        let far = match (self.block(), by) {
            (Some(mine), Some(by)) if (mine.0, mine.1) == (by.0, by.1) => 0,
            (Some(mine), Some(by)) if mine.2 == by.2 => 1,
            _ => 2,
        };
        self.acquired[lane][far].join(other);
    }

    /// A fence towards a scope.
    pub(super) fn take_acquired(&mut self, lane: usize, scope: Scope) {
        let far = match scope {
            Scope::Cta | Scope::Cluster => 1,
            Scope::Gpu => 2,
            Scope::Sys => 3,
        };
        for acquired in &mut self.acquired[lane][..far] {
            self.knows[lane].join(&std::mem::take(acquired));
        }
    }

    /// Adds what lanes know and have done to `joined`, and moves the clock on.
    pub(super) fn contribute(&mut self, slot: u32, mask: u32, joined: &mut Knowledge) {
        let mut last: Option<&Knowledge> = None;
        for lane in lanes(mask) {
            let knows = &self.knows[lane];
            if last.is_none_or(|last| !last.same(knows)) {
                joined.join(knows);
            }
            last = Some(knows);
        }
        for lane in lanes(mask) {
            self.add_own(slot, lane, joined);
        }
        self.clock += 1;
    }

    /// What a lane has done and knows, for a release of it alone. The clock must be moved on after all lanes of the
    /// instruction.
    pub(super) fn snapshot(&self, slot: u32, lane: usize) -> Knowledge {
        let mut knows = self.knows[lane].clone();
        self.add_own(slot, lane, &mut knows);
        knows
    }

    /// Adds what a lane has done so far.
    fn add_own(&self, slot: u32, lane: usize, to: &mut Knowledge) {
        let agent = slot as usize * 32 + lane;
        set(&mut to.all, agent, self.clock);
        if self.copies.is_some() {
            set(&mut to.proxied, agent, self.clock);
        }
    }

    pub(super) fn note_release(&mut self, slot: u32, mask: u32, scope: Scope) {
        for lane in lanes(mask) {
            self.released[lane] = Some(Release { knows: self.snapshot(slot, lane), scope });
        }
        self.clock += 1;
    }

    pub(super) fn fence_release(&self, lane: usize) -> Option<&Release> {
        self.released[lane].as_ref()
    }

    pub(super) fn block(&self) -> Option<super::BlockId> {
        self.origin.as_ref().map(|o| (o.launch, o.block, o.device))
    }
}

//! Who knows of what: happens-before as vector clocks.
//!
//! A warp has one clock, which its lanes share; it moves on when one of them releases what it knows. What a lane knows
//! of another is the last time of that lane's clock whose accesses happen before the lane's next one.

use std::collections::HashMap;
use std::sync::Arc;

use super::lanes;
use crate::emu::Program;
use crate::emu::program::Scope;

/// For each lane of each warp the time up to which its accesses are known. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge(Arc<Vec<u32>>);

impl Knowledge {
    fn of(&self, agent: usize) -> u32 {
        self.0.get(agent).copied().unwrap_or(0)
    }

    fn same(&self, other: &Knowledge) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Takes over what `other` knows.
    pub(super) fn join(&mut self, other: &Knowledge) {
        if self.same(other) || other.0.is_empty() {
            return;
        }
        if self.0.len() <= other.0.len() && self.0.iter().zip(other.0.iter()).all(|(a, b)| a <= b) {
            self.0 = Arc::clone(&other.0);
            return;
        }
        let covered =
            other.0.len() <= self.0.len() && other.0.iter().zip(self.0.iter()).all(|(b, a)| b <= a);
        if covered {
            return;
        }
        let mine = Arc::make_mut(&mut self.0);
        if mine.len() < other.0.len() {
            mine.resize(other.0.len(), 0);
        }
        mine.iter_mut().zip(other.0.iter()).for_each(|(a, b)| *a = (*a).max(*b));
    }

    fn set(&mut self, agent: usize, time: u32) {
        let mine = Arc::make_mut(&mut self.0);
        if mine.len() <= agent {
            mine.resize(agent + 1, 0);
        }
        mine[agent] = mine[agent].max(time);
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
    knows: [Knowledge; 32],
    /// What a lane has read from strong stores without acquiring: the next fence makes it known.
    acquired: [Knowledge; 32],
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
        self.forget();
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
        (me == other && lane == theirs && time >= self.started)
            || self.knows[lane].of(other as usize * 32 + theirs) >= time
    }

    pub(super) fn learn(&mut self, lane: usize, other: &Knowledge) {
        self.knows[lane].join(other);
    }

    pub(super) fn acquire_later(&mut self, lane: usize, other: &Knowledge) {
        self.acquired[lane].join(other);
    }

    pub(super) fn take_acquired(&mut self, lane: usize) {
        let acquired = std::mem::take(&mut self.acquired[lane]);
        self.knows[lane].join(&acquired);
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
            joined.set(slot as usize * 32 + lane, self.clock);
        }
        self.clock += 1;
    }

    /// What a lane has done and knows, for a release of it alone. The clock must be moved on after all lanes of the
    /// instruction.
    pub(super) fn snapshot(&self, slot: u32, lane: usize) -> Knowledge {
        let mut knows = self.knows[lane].clone();
        knows.set(slot as usize * 32 + lane, self.clock);
        knows
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

    pub(super) fn block(&self) -> Option<(u64, u32, u32)> {
        self.origin.as_ref().map(|o| (o.launch, o.block, o.device))
    }
}

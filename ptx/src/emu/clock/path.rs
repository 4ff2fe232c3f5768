//! Where the time of a run goes: what each warp waited for, and the chain of waits that nothing else was faster than.
//!
//! ```text
//! warp 0  ──run── wait L2 ──run── store ┐
//! warp 1  ──run───────── wait NVLink ◄──┘ ──run── end
//! ```
//!
//! The chain is followed from the end back. Where a warp waited for what another one had stored, it goes on there, at the store;
//! where it waited at a barrier, at the last one to come.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use super::Place;
use super::in_flight::CellHasher;
use crate::emu::fault::Site;

/// What time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spent {
    /// Instructions, one after the other.
    Issue,
    /// The result of an arithmetic instruction, a parameter, a shuffle.
    Result,
    /// A load from shared memory.
    Shared,
    /// A load that L1 has.
    L1,
    /// A load or an atomic in this GPU's L2.
    L2,
    /// A load or an atomic in another GPU's memory.
    Peer,
    /// A load or an atomic in the host's memory.
    Host,
    /// The way of a store to a warp of this GPU that waits for it.
    StoreToL2,
    /// The way of a store to a warp of another GPU that waits for it, or to the memory of another one.
    StoreToPeer,
    /// The way of a store by the host's memory.
    StoreToHost,
    /// Until all that the block had stored has arrived, before a fence, a release or the end.
    Stored,
    /// A fence or a release itself.
    Fence,
    /// A barrier of the block, from the last one's coming on.
    Barrier,
    /// `nanosleep`.
    Sleep,
}

impl Spent {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Spent::Issue => "instructions",
            Spent::Result => "results of arithmetic",
            Spent::Shared => "loads from shared memory",
            Spent::L1 => "loads from L1",
            Spent::L2 => "loads from L2",
            Spent::Peer => "loads from another GPU",
            Spent::Host => "loads from the host",
            Spent::StoreToL2 => "stores waited for, in L2",
            Spent::StoreToPeer => "stores waited for, over NVLink",
            Spent::StoreToHost => "stores waited for, in the host's memory",
            Spent::Stored => "own stores waited for",
            Spent::Fence => "fences and releases",
            Spent::Barrier => "barriers",
            Spent::Sleep => "sleep",
        }
    }
}

/// A warp of a schedule: the number of its block, and its own in the block.
pub(crate) type WarpId = (u64, u32);

/// Where else a wait began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) warp: WarpId,
    /// When it did what was waited for.
    pub(crate) at: u64,
    pub(crate) spent: Spent,
}

/// What a warp waited for, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) spent: Spent,
    /// The instruction that took so long: the load, where its register is waited for.
    pub(crate) pc: u32,
    pub(crate) cause: Option<Cause>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
    wait: Wait,
}

/// The last store to 8 bytes.
#[derive(Clone, Copy, Debug)]
struct LastStore {
    warp: WarpId,
    gpu: Place,
    issued: u64,
    arrives: u64,
}

/// What is noted of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    waits: HashMap<WarpId, Vec<Segment>>,
    writers: HashMap<u64, LastStore, BuildHasherDefault<CellHasher>>,
    /// When each load of a warp last came by where its memory is, and the first of the cells that it looked at.
    polls: HashMap<(WarpId, u32), (u64, u64)>,
}

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// The GPU.
    pub gpu: u32,
    /// The warp, and the instruction that has taken so long, or the last one where instructions have.
    pub site: Site,
    /// From then on, in picoseconds.
    pub start: u64,
    /// Until then.
    pub end: u64,
    /// What for.
    pub spent: Spent,
}

/// The same, by numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarpStep {
    pub(crate) warp: WarpId,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) spent: Spent,
    pub(crate) pc: u32,
}

impl Trace {
    /// A warp has waited from `start` to `end`.
    pub(crate) fn waited(&mut self, warp: WarpId, start: u64, end: u64, wait: Wait) {
        if end > start {
            self.waits.entry(warp).or_default().push(Segment { start, end, wait });
        }
    }

    /// A warp stores to a cell, which arrives then.
    pub(crate) fn stores(
        &mut self,
        (warp, gpu): (WarpId, Place),
        cell: u64,
        (issued, arrives): (u64, u64),
    ) {
        self.writers.insert(cell, LastStore { warp, gpu, issued, arrives });
    }

    /// A load of a warp comes by its memory: the store that it has waited for, if it was not there the last time.
    pub(crate) fn looks(
        &mut self,
        (warp, pc): (WarpId, u32),
        cells: &[u64],
        now: u64,
        (from, to): (Place, Place),
    ) -> Option<Cause> {
        let first = *cells.first()?;
        let (before, place) = self.polls.insert((warp, pc), (now, first))?;
        if place != first {
            return None; // a loop over memory, which waits for nobody
        }
        let arrived = cells.iter().filter_map(|cell| self.writers.get(cell)).filter(|writer| {
            writer.warp != warp && writer.arrives > before && writer.arrives <= now
        });
        let last = arrived.max_by_key(|writer| writer.arrives)?;
        let spent = match to {
            super::HOST => Spent::StoreToHost,
            to if to == from && last.gpu == from => Spent::StoreToL2,
            _ => Spent::StoreToPeer,
        };
        Some(Cause { warp: last.warp, at: last.issued, spent })
    }

    /// What each warp has waited for since a time.
    pub(crate) fn all(&self, start: u64) -> impl Iterator<Item = WarpStep> {
        let mut warps: Vec<&WarpId> = self.waits.keys().collect();
        warps.sort_unstable();
        let of = move |warp: &WarpId| {
            let (warp, waits) = (*warp, &self.waits[warp]);
            let first = waits.partition_point(|wait| wait.end <= start);
            waits[first..].iter().map(move |&Segment { start: began, end, wait }| {
                let spent = wait.cause.map_or(wait.spent, |cause| cause.spent);
                WarpStep { warp, start: began.max(start), end, spent, pc: wait.pc }
            })
        };
        warps.into_iter().flat_map(of)
    }

    /// The chain that ends with a warp's end, back to `start`; its parts in the order of time.
    pub(crate) fn path(&self, warp: WarpId, end: u64, start: u64) -> Vec<WarpStep> {
        let mut steps = Vec::new();
        let (mut warp, mut at) = (warp, end);
        let mut step = |warp: WarpId, start, end, spent, pc| {
            if end > start {
                steps.push(WarpStep { warp, start, end, spent, pc });
            }
        };
        while at > start {
            let waits = self.waits.get(&warp).map_or(&[][..], Vec::as_slice);
            let before = waits.partition_point(|wait| wait.start < at);
            let Some(segment) = before.checked_sub(1).map(|i| waits[i]) else {
                step(warp, start, at, Spent::Issue, 0);
                break;
            };
            let Segment { start: began, end: ended, wait } = segment;
            if ended < at {
                step(warp, ended, at, Spent::Issue, wait.pc);
                at = ended;
                continue;
            }
            match wait.cause.filter(|cause| cause.at < at) {
                Some(cause) => {
                    step(warp, cause.at.max(start), at, cause.spent, wait.pc);
                    (warp, at) = (cause.warp, cause.at);
                }
                None => {
                    step(warp, began.max(start), at, wait.spent, wait.pc);
                    at = began;
                }
            }
        }
        steps.reverse();
        steps
    }
}

/// What a path's parts come to: how often, and how long in picoseconds, the longest first.
#[must_use]
pub fn totals(path: &[PathStep]) -> Vec<(Spent, usize, u64)> {
    let mut all: BTreeMap<Spent, (usize, u64)> = BTreeMap::new();
    for step in path {
        let (count, time) = all.entry(step.spent).or_default();
        *count += 1;
        *time += step.end - step.start;
    }
    let mut all: Vec<_> = all.into_iter().map(|(spent, (n, time))| (spent, n, time)).collect();
    all.sort_by_key(|(.., time)| std::cmp::Reverse(*time));
    all
}

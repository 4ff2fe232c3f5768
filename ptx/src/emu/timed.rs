//! A schedule in virtual time: which blocks there are, when launches ran, and what they waited for.

use std::collections::HashMap;
use std::sync::Arc;

use super::block::Block;
use super::clock::path::{WarpId, WarpStep};
use super::clock::{Clock, ClockEvent, PathStep, Spent, Timing};
use super::exec::Env;
use super::fault::{Fault, Site};
use super::machine::Grid;

/// Instructions that a warp runs at a time, where nothing else comes.
const MOST_AT_A_TIME: u32 = 4096;

/// The time of a schedule, and what has run when.
pub(crate) struct Timed {
    pub(crate) clock: Clock,
    /// Blocks that have started.
    started: u64,
    /// When each launch ran, by its number.
    spans: HashMap<u64, LaunchSpan>,
    /// When the last launch of each GPU ended.
    ended: HashMap<u32, u64>,
    last: Option<Last>,
    /// The grid of each block, and its place in it, where waits are noted.
    origins: HashMap<u64, (Arc<Grid>, u32)>,
}

/// What ended last.
#[derive(Clone, Copy)]
struct Last {
    /// The warp of its block that ended last, and when.
    warp: WarpId,
    at: u64,
    /// When all that the block had stored had arrived.
    end: u64,
}

/// When a launch ran, in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchSpan {
    /// Its first instruction, in picoseconds since the schedule was made.
    pub start: u64,
    /// When all that it has stored has arrived.
    pub end: u64,
}

impl Timed {
    /// `trace`: whether it is noted what warps wait for.
    pub(crate) fn new(timing: Timing, trace: bool) -> Self {
        Timed {
            clock: Clock::new(timing, trace),
            started: 0,
            spans: HashMap::new(),
            ended: HashMap::new(),
            last: None,
            origins: HashMap::new(),
        }
    }

    /// A launch starts; when: now, but behind what its GPU has run before.
    pub(crate) fn start(&mut self, grid: &Grid) -> u64 {
        let start = self.clock.now.max(self.ended.get(&grid.device).copied().unwrap_or(0));
        self.spans.insert(grid.number(), LaunchSpan { start, end: start });
        start
    }

    /// A block of it begins.
    pub(crate) fn begin(&mut self, block: &mut Block, start: u64) {
        self.started += 1;
        block.begin(self.started, start);
        if self.clock.trace.is_some() {
            let origin = (Arc::clone(&block.common.grid), block.common.index);
            self.origins.insert(self.started, origin);
        }
        queue(&mut self.clock, block);
    }

    /// A block has ended.
    pub(crate) fn end(&mut self, block: &Block) {
        let grid = &block.common.grid;
        let Some(span) = self.spans.get_mut(&grid.number()) else { return };
        let ((warp, at), end) = (block.last(), block.end());
        span.end = span.end.max(end);
        let last = self.ended.entry(grid.device).or_default();
        *last = span.end.max(*last);
        if self.last.is_none_or(|last| end >= last.end) {
            self.last = Some(Last { warp: (block.common.number, warp), at, end });
        }
    }

    pub(crate) fn launch_span(&mut self, launch: u64) -> Option<LaunchSpan> {
        self.spans.remove(&launch)
    }

    /// What each warp has waited for since a time: warp by warp, in the order of time.
    pub(crate) fn waits(&self, start: u64) -> Vec<PathStep> {
        let Some(trace) = &self.clock.trace else { return Vec::new() };
        let mut sites: HashMap<(u64, u32), Site> = HashMap::new();
        let place = |step: WarpStep| {
            let WarpStep { warp: (block, warp), start, end, spent, pc } = step;
            let (grid, index) = self.origins.get(&block)?;
            let new = || Site::new(&grid.program, grid.number(), *index, warp, u32::MAX, pc);
            let site = sites.entry((grid.number(), pc)).or_insert_with(new).clone();
            Some(PathStep {
                gpu: grid.device,
                site: Site { block: *index, warp, ..site },
                start,
                end,
                spent,
            })
        };
        trace.all(start).filter_map(place).collect()
    }

    pub(crate) fn critical_path(&self, start: u64) -> Vec<PathStep> {
        let Some((trace, last)) = self.clock.trace.as_ref().zip(self.last) else {
            return Vec::new();
        };
        let place = |step: WarpStep| {
            let WarpStep { warp: (block, warp), start, end, spent, pc } = step;
            let (grid, index) = self.origins.get(&block)?;
            let site = Site::new(&grid.program, grid.number(), *index, warp, u32::MAX, pc);
            Some(PathStep { gpu: grid.device, site, start, end, spent })
        };
        let Last { warp, at, end } = last;
        let mut steps = trace.path(warp, at, start);
        if end > at {
            // A launch is over when all that it has stored has arrived.
            let pc = steps.last().map_or(0, |step| step.pc);
            steps.push(WarpStep { warp, start: at.max(start), end, spent: Spent::Stored, pc });
        }
        steps.into_iter().filter_map(place).collect()
    }
}

/// Does what comes next of a block; how many instructions were run.
pub(crate) fn run(
    block: &mut Block,
    due: ClockEvent,
    env: &mut Env<'_>,
) -> Result<u32, Box<Fault>> {
    let (_, warp) = due.warp();
    let mut ran = 0;
    match due {
        ClockEvent::Request { id, .. } => block.arrive(warp, id, env)?,
        ClockEvent::Copy { id, .. } => block.copy_arrives(warp, id, env)?,
        ClockEvent::Warp { .. } => {
            block.warps[warp].time.queued = false;
            ran = block.step(warp, MOST_AT_A_TIME, env)?;
        }
    }
    if let Some(clock) = env.clock.as_deref_mut() {
        queue(clock, block);
    }
    Ok(ran)
}

/// Puts the warps of a block into the queue that can go on, and are not in it.
fn queue(clock: &mut Clock, block: &mut Block) {
    let number = block.common.number;
    for warp in 0..block.warps.len() {
        let goes_on = !block.warps[warp].time.queued && block.runnable(warp) && !block.waits(warp);
        if goes_on {
            let time = &mut block.warps[warp].time;
            time.queued = true;
            clock.push(time.at, ClockEvent::Warp { block: number, warp: warp as u32 });
        }
    }
}

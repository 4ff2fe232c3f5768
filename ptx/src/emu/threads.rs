//! Blocks on threads of the host: as fast as it goes, on memory as the host has it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::block::Block;
use super::counts::Counts;
use super::exec::Env;
use super::fault::{Fault, FaultKind};
use super::machine::Grid;

/// Instructions that a warp runs before the next one of its block has a turn.
const TURN: u32 = 512;

/// What a block has done when it was run for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has stored something, or passed a barrier.
    Moved,
    /// It may be waiting for others.
    Stuck,
    /// It has ended.
    Ended,
}

/// A block that is run by and by, on any thread.
///
/// What is checked is what costs nothing: that accesses are aligned and memory, barriers, and
/// divergence. Races and late stores are for [`Lockstep`](super::Lockstep).
pub struct BlockRun {
    block: Block,
    started: Instant,
}

impl std::fmt::Debug for BlockRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockRun").field("index", &self.block.common.index).finish_non_exhaustive()
    }
}

impl BlockRun {
    /// Block `index` of a grid, which has not run yet. `started` is the zero of its clocks: one moment for
    /// all blocks that compare times.
    #[must_use]
    pub fn new(grid: &Arc<Grid>, index: u32, started: Instant) -> Self {
        BlockRun { block: Block::new(grid, index, None), started }
    }

    /// Gives each warp that can run a turn.
    ///
    /// # Errors
    /// The [`Fault`] that ends the block.
    pub fn run(&mut self) -> Result<Progress, Box<Fault>> {
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut env = Env { model: None, now, cycles: now, watch: false, clock: None };
        let (mut moved, mut runnable) = (false, false);
        for warp in 0..self.block.warps.len() {
            if !self.block.runnable(warp) {
                continue;
            }
            runnable = true;
            if self.block.warps[warp].sleeps_until > now {
                continue;
            }
            self.block.step(warp, TURN, &mut env)?;
            moved |= std::mem::take(&mut self.block.warps[warp].progress);
        }
        if self.block.ended() {
            return Ok(Progress::Ended);
        }
        if !runnable && !moved {
            let mut places = self.block.places();
            if let Some(site) = places.next() {
                return Err(Box::new(Fault {
                    kind: FaultKind::Deadlock,
                    site,
                    others: places.collect(),
                }));
            }
        }
        Ok(if moved { Progress::Moved } else { Progress::Stuck })
    }

    /// Its figures so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.block.common.counts
    }
}

/// Runs grids at the same time on `threads` threads, all blocks of them together; returns the figures of each.
///
/// # Errors
/// The first [`Fault`] of any block; the others are given up then.
pub fn run_on_threads(grids: &[Arc<Grid>], threads: usize) -> Result<Vec<Counts>, Box<Fault>> {
    let threads = threads.max(1);
    let started = Instant::now();
    let stop = AtomicBool::new(false);
    let outcome = Mutex::new((vec![Counts::default(); grids.len()], None));
    let all: Vec<(usize, u32)> = grids
        .iter()
        .enumerate()
        .flat_map(|(grid, g)| (0..g.blocks()).map(move |index| (grid, index)))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..threads.min(all.len()) {
            let (stop, outcome, all) = (&stop, &outcome, &all);
            scope.spawn(move || {
                let mine = all.iter().skip(thread).step_by(threads);
                let mut blocks: Vec<_> = mine
                    .map(|&(grid, index)| (grid, BlockRun::new(&grids[grid], index, started)))
                    .collect();
                while !blocks.is_empty() && !stop.load(Ordering::Relaxed) {
                    let mut moved = false;
                    blocks.retain_mut(|(grid, block)| {
                        let result = block.run();
                        moved |= !matches!(result, Ok(Progress::Stuck));
                        if matches!(result, Ok(Progress::Moved | Progress::Stuck)) {
                            return true;
                        }
                        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                        if let Some(counts) = outcome.0.get_mut(*grid) {
                            *counts += block.counts();
                        }
                        if let Err(fault) = result {
                            stop.store(true, Ordering::Relaxed);
                            outcome.1.get_or_insert(fault);
                        }
                        false
                    });
                    if !moved {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let (counts, fault) = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
    fault.map_or(Ok(counts), Err)
}

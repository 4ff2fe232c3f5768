//! A block: its warps, its shared memory, its barriers.

use std::sync::Arc;

use super::asynchronous::{self, Copies};
use super::barrier::Barriers;
use super::clock::{Sm, WarpTime, requests};
use super::counts::Counts;
use super::exec::{Env, Stop, run};
use super::fault::{Fault, FaultKind, Site, Trouble};
use super::machine::Grid;
use super::memory::map::View;
use super::memory::model::{Cells, Model, Origin};
use super::warp::{Park, Warp};

/// What a warp shares with the others of its block.
pub(crate) struct Common {
    pub(crate) grid: Arc<Grid>,
    pub(crate) index: u32,
    pub(crate) shared: Vec<u64>,
    pub(crate) shared_bytes: usize,
    pub(crate) cells: Cells,
    pub(crate) barriers: Barriers,
    pub(crate) copies: Copies,
    pub(crate) counts: Counts,
    pub(crate) view: View,
    pub(crate) warps: u32,
    /// Its number among all blocks of a schedule with a clock.
    pub(crate) number: u64,
    pub(crate) sm: Sm,
}

/// A block between its start and its end.
pub(crate) struct Block {
    pub(crate) common: Common,
    pub(crate) warps: Vec<Warp>,
    slots: Vec<u32>,
}

impl Block {
    /// Block `index` of a grid, which starts now.
    pub(crate) fn new(grid: &Arc<Grid>, index: u32, mut model: Option<&mut Model>) -> Self {
        let program = &grid.program;
        let count = grid.threads.div_ceil(32);
        let shared_bytes = program.shared_bytes + grid.dynamic_shared as usize;
        let mut slots = Vec::new();
        let warps = (0..count)
            .map(|warp| {
                let lanes = (grid.threads - warp * 32).min(32);
                let mask = u32::MAX >> (32 - lanes);
                let slot = model.as_deref_mut().map_or(0, |model| {
                    model.start_warp(Origin {
                        program: Arc::clone(program),
                        launch: grid.number,
                        block: index,
                        warp,
                        device: grid.device,
                    })
                });
                slots.push(slot);
                Warp::new(program, warp, mask, slot)
            })
            .collect();
        let common = Common {
            grid: Arc::clone(grid),
            index,
            shared: vec![0; shared_bytes.div_ceil(8)],
            shared_bytes,
            cells: Cells::new(false),
            barriers: Barriers::default(),
            copies: Copies::default(),
            counts: Counts::default(),
            view: View::new(&grid.machine.map),
            warps: count,
            number: 0,
            sm: Sm::default(),
        };
        Block { common, warps, slots }
    }

    /// Begins its virtual time, as block `number` of the schedule.
    pub(crate) fn begin(&mut self, number: u64, at: u64) {
        self.common.number = number;
        let program = &self.common.grid.program;
        for warp in &mut self.warps {
            warp.time = WarpTime::new(at, program.registers, program.predicates);
        }
    }

    /// A request of a warp has come to where its memory is.
    pub(crate) fn arrive(
        &mut self,
        warp: usize,
        id: u64,
        env: &mut Env<'_>,
    ) -> Result<(), Box<Fault>> {
        requests::arrive(&mut self.warps[warp], &mut self.common, env, id)
            .map_err(|(trouble, pc)| self.fault(warp, *trouble, pc))
    }

    /// A copy has come as far as its time says.
    pub(crate) fn copy_arrives(
        &mut self,
        warp: usize,
        id: u64,
        env: &mut Env<'_>,
    ) -> Result<(), Box<Fault>> {
        self.warps[warp].progress = true;
        asynchronous::arrive(&mut self.common, env, id)
            .map_err(|trouble| self.fault(warp, *trouble, 0))
    }

    /// Whether a warp has to wait for the answer to a request.
    pub(crate) fn waits(&self, warp: usize) -> bool {
        self.warps[warp].time.waits
    }

    /// The warp that has ended last, and when.
    pub(crate) fn last(&self) -> (u32, u64) {
        let ends = self.warps.iter().map(|warp| (warp.index, warp.time.at));
        ends.max_by_key(|(_, at)| *at).unwrap_or((0, 0))
    }

    /// When all that it has done is over, in virtual time.
    pub(crate) fn end(&self) -> u64 {
        let warps = self.warps.iter().map(|warp| warp.time.at).max().unwrap_or(0);
        warps.max(self.common.sm.stored).max(self.common.copies.over)
    }

    pub(crate) fn ended(&self) -> bool {
        self.exited() && self.common.copies.is_empty()
    }

    fn exited(&self) -> bool {
        self.warps.iter().all(|warp| warp.live == 0)
    }

    /// Tells the memory model that it has ended.
    pub(crate) fn finish(&self, model: &mut Model) {
        let slots: Vec<u32> =
            self.slots.iter().copied().chain(self.common.copies.slots()).collect();
        model.end_warps(&slots);
    }

    /// Whether a warp could run an instruction.
    pub(crate) fn runnable(&self, warp: usize) -> bool {
        self.warps[warp].fragments.iter().any(|f| f.park == Park::Runs)
    }

    /// Runs a warp for at most `budget` instructions; returns how many it has run.
    pub(crate) fn step(
        &mut self,
        warp: usize,
        budget: u32,
        env: &mut Env<'_>,
    ) -> Result<u32, Box<Fault>> {
        let mut left = budget;
        asynchronous::drift(&mut self.common, env)
            .map_err(|trouble| self.fault(warp, *trouble, 0))?;
        loop {
            let run = if env.clock.is_some() { run::<true> } else { run::<false> };
            let stop = run(&mut self.warps[warp], &mut self.common, env, &mut left)
                .map_err(|(trouble, pc)| self.fault(warp, *trouble, pc))?;
            match stop {
                Stop::Budget | Stop::Asleep | Stop::Interrupted | Stop::Later => break,
                Stop::Waits => {
                    self.check_gathering(warp)?;
                    break;
                }
                Stop::Exited => {
                    let Common { barriers, grid, number, .. } = &mut self.common;
                    barriers.look(*number, &mut self.warps, &grid.program, env);
                    if self.warps[warp].live == 0 {
                        break;
                    }
                }
                Stop::Barrier { fragment } => {
                    let pc = self.warps[warp].fragments[fragment].pc;
                    let Common { barriers, grid, number, .. } = &mut self.common;
                    barriers
                        .arrive(*number, &mut self.warps, warp, fragment, &grid.program, env)
                        .map_err(|trouble| self.fault(warp, *trouble, pc))?;
                }
            }
        }
        if self.exited() {
            asynchronous::finish(&mut self.common, env)
                .map_err(|trouble| self.fault(warp, *trouble, 0))?;
        }
        Ok(budget - left)
    }

    /// No fragment of the warp runs: is there one that waits for lanes which will never come?
    fn check_gathering(&self, warp: usize) -> Result<(), Box<Fault>> {
        let fragments = &self.warps[warp].fragments;
        let gathers = fragments.iter().find(|f| f.park == Park::Gathers);
        let elsewhere = fragments.iter().any(|f| matches!(f.park, Park::Barrier(_)));
        let Some(first) = gathers.filter(|_| !elsewhere) else { return Ok(()) };
        let what = if fragments.len() == 1 {
            "lanes that take part have exited, or the mask names other lanes than those that came"
        } else {
            "the warp's lanes wait at different instructions for each other"
        };
        let others = fragments
            .iter()
            .filter(|f| f.mask != first.mask)
            .map(|f| self.site(warp, f.mask, f.pc));
        Err(Box::new(Fault {
            kind: FaultKind::Divergence(what.to_owned()),
            site: self.site(warp, first.mask, first.pc),
            others: others.collect(),
        }))
    }

    fn site(&self, warp: usize, lanes: u32, pc: u32) -> Site {
        let grid = &self.common.grid;
        Site::new(&grid.program, grid.number, self.common.index, self.warps[warp].index, lanes, pc)
    }

    fn fault(&self, warp: usize, trouble: Trouble, pc: u32) -> Box<Fault> {
        let (warp, pc) = trouble.at.map_or((warp, pc), |(warp, pc)| (warp as usize, pc));
        let site = self.site(warp, trouble.lanes, pc);
        Box::new(Fault { kind: trouble.kind, site, others: trouble.other.into_iter().collect() })
    }

    /// Where each of its warps is.
    pub(crate) fn places(&self) -> impl Iterator<Item = Site> {
        (0..self.warps.len()).flat_map(move |warp| {
            self.warps[warp].fragments.iter().map(move |f| self.site(warp, f.mask, f.pc))
        })
    }
}

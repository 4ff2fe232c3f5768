//! One schedule for everything: warps run one at a time, in an order that a seed decides, so that a run replays exactly.

use std::collections::HashMap;
use std::sync::Arc;

use super::block::Block;
use super::clock::{PathStep, Timing};
use super::counts::Counts;
use super::exec::Env;
use super::fault::{Fault, FaultKind};
use super::machine::Grid;
use super::memory::model::{Checks, Model};
use super::random::Random;
use super::timed::{self, LaunchSpan, Timed};

/// In which order warps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarpSchedule {
    /// One after the other, for as many instructions each. The figures of a run depend on nothing else.
    RoundRobin,
    /// As the seed decides: some for long, some not at all for a while.
    Random,
}

/// How a [`Lockstep`] runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What decides all that is left open.
    pub seed: u64,
    /// In which order warps run.
    pub schedule: WarpSchedule,
    /// The memory system; `None` for plain memory, where every access takes effect at once and nothing is
    /// checked but that it is memory.
    pub checks: Option<Checks>,
    /// Instructions of warps after which a run is given up, counted from when something starts while nothing runs; 0
    /// for no limit.
    pub most_steps: u64,
    /// What things take, for a run in virtual time: what is earliest on that machine runs first, and neither the schedule nor the
    /// seed decides ([`Lockstep::launch_span`]). What comes out is a simulation.
    pub clock: Option<Timing>,
    /// Whether it is noted what warps wait for ([`Lockstep::critical_path`]); it takes memory for each wait.
    pub trace: bool,
}

impl Options {
    /// All checks, an adversarial memory and a random schedule, from a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Options {
            seed,
            schedule: WarpSchedule::Random,
            checks: Some(Checks::default()),
            most_steps: 0,
            clock: None,
            trace: false,
        }
    }

    /// Plain memory and warps in turn: for figures.
    #[must_use]
    pub fn plain() -> Self {
        let schedule = WarpSchedule::RoundRobin;
        Options { seed: 0, schedule, checks: None, most_steps: 0, clock: None, trace: false }
    }

    /// Plain memory, in virtual time.
    #[must_use]
    pub fn simulated(timing: Timing) -> Self {
        Options { clock: Some(timing), ..Self::plain() }
    }
}

/// Instructions that a warp runs at a time when warps take turns. As long as a chunk of straight code, and
/// short enough that who waits for another warp does not spin for long.
const TURN: u32 = 64;
/// Instructions that a warp runs without seeing or doing anything new before it counts as one that only waits. A wait of
/// the device code looks at the clock and its abort flag once in some thousand.
const IDLE: u64 = 20_000;

/// Who is left out of a schedule for a while.
#[derive(Clone, Copy)]
enum Lazy {
    Nobody,
    Block(usize),
    Warp(usize, usize),
}

impl Lazy {
    fn has(self, (block, warp): (usize, usize)) -> bool {
        match self {
            Lazy::Nobody => false,
            Lazy::Block(lazy) => block == lazy,
            Lazy::Warp(lazy, one) => (block, warp) == (lazy, one),
        }
    }
}

/// A schedule and what it runs.
pub struct Lockstep {
    options: Options,
    model: Option<Model>,
    random: Random,
    blocks: Vec<Block>,
    /// Blocks that still run, and the figures of those that have ended, by launch.
    launches: HashMap<u64, (u32, Counts)>,
    /// The block and warp whose turn it is.
    turn: (usize, usize),
    steps: u64,
    /// Steps before what runs now.
    before: u64,
    /// Nanoseconds: one an instruction, and what was slept while nobody could run.
    now: u64,
    trace: u64,
    /// Whether anybody has got on since it was last asked whether all only wait.
    moved: bool,
    /// Who is left out for a while, and until when.
    lazy: (Lazy, u64),
    timed: Option<Timed>,
}

impl std::fmt::Debug for Lockstep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lockstep")
            .field("options", &self.options)
            .field("blocks", &self.blocks.len())
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl Lockstep {
    /// A schedule without anything to run.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut random = Random::new(options.seed);
        let model = options.checks.map(|checks| Model::new(checks, Random::new(random.next())));
        Lockstep {
            options,
            model,
            random,
            blocks: Vec::new(),
            launches: HashMap::new(),
            turn: (0, 0),
            steps: 0,
            before: 0,
            now: 0,
            trace: 0,
            moved: false,
            lazy: (Lazy::Nobody, 0),
            timed: options.clock.map(|timing| Timed::new(timing, options.trace)),
        }
    }

    /// Starts a launch: after all that has ended, at the same time as all that runs.
    pub fn start(&mut self, grid: &Arc<Grid>) {
        if self.is_idle() {
            self.before = self.steps;
        }
        self.launches.insert(grid.number(), (grid.blocks(), Counts::default()));
        let start = self.timed.as_mut().map_or(0, |timed| timed.start(grid));
        for index in 0..grid.blocks() {
            let mut block = Block::new(grid, index, self.model.as_mut());
            if let Some(timed) = &mut self.timed {
                timed.begin(&mut block, start);
            }
            self.blocks.push(block);
        }
    }

    /// When a launch ran that has ended; `None` without a clock, and when it was asked for before.
    pub fn launch_span(&mut self, launch: u64) -> Option<LaunchSpan> {
        self.timed.as_mut()?.launch_span(launch)
    }

    /// The chain of waits that ended last, back to the time `start` in picoseconds: what would have to be faster for all that has
    /// run since then to end sooner. Empty without [`Options::trace`].
    #[must_use]
    pub fn critical_path(&self, start: u64) -> Vec<PathStep> {
        self.timed.as_ref().map_or_else(Vec::new, |timed| timed.critical_path(start))
    }

    /// What all warps have waited for since the time `start` in picoseconds: warp by warp, in the order of time. Between two waits a
    /// warp runs, or waits for its turn. Empty without [`Options::trace`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ferroccl_ptx::emu::{H100_NVLINK, Launch, Lockstep, Machine, Options, Program, Spent};
    ///
    /// let source = ".version 8.0\n.target sm_90\n.address_size 64\n.entry k() {
    ///     .reg .b32 %t; .shared .b32 s; ld.shared.u32 %t, [s]; add.u32 %t, %t, 1; bar.sync 0; ret; }";
    /// let grid = Machine::new().launch(Launch::new(&Arc::new(Program::load(source, "k")?), 1, 64, vec![]))?;
    /// let mut schedule = Lockstep::new(Options { trace: true, ..Options::simulated(H100_NVLINK) });
    /// schedule.start(&grid);
    /// schedule.run()?;
    /// let waits = schedule.waits(0);
    /// assert!(waits.iter().any(|wait| wait.site.warp == 1 && wait.spent == Spent::Shared));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn waits(&self, start: u64) -> Vec<PathStep> {
        self.timed.as_ref().map_or_else(Vec::new, |timed| timed.waits(start))
    }

    /// Whether there is nothing to run.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.blocks.is_empty()
    }

    /// A hash of who has run when, and for how long. Two runs of one program with one seed have the same.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Instructions of warps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Declares that nobody has written the memory from `start` on, so that a load of it is an error
    /// ([`Checks::uninitialised`]).
    pub fn uninitialised(&mut self, start: u64, bytes: usize) {
        if let Some(model) = &mut self.model {
            model.uninitialised(start, bytes as u64);
        }
    }

    /// Ends all that runs, wherever it is.
    pub fn stop(&mut self) {
        for block in self.blocks.drain(..) {
            if let Some(model) = &mut self.model {
                block.finish(model);
            }
        }
        self.launches.clear();
        if let Some(timed) = &mut self.timed {
            timed.clock.clear();
        }
    }

    /// Runs everything to its end; returns the figures of each launch, in the order in which they have ended.
    ///
    /// # Errors
    /// The first [`Fault`]; everything has been stopped then.
    pub fn run(&mut self) -> Result<Vec<(u64, Counts)>, Box<Fault>> {
        let mut ended = Vec::new();
        while !self.is_idle() {
            ended.extend(self.step()?);
        }
        Ok(ended)
    }

    /// Runs a warp for a turn; returns the launch that has ended with it.
    ///
    /// # Errors
    /// As [`Lockstep::run`].
    pub fn step(&mut self) -> Result<Option<(u64, Counts)>, Box<Fault>> {
        let result = if self.timed.is_some() { self.next() } else { self.turn() };
        if result.is_err() {
            self.stop();
        }
        result
    }

    /// Runs what comes next in virtual time.
    fn next(&mut self) -> Result<Option<(u64, Counts)>, Box<Fault>> {
        let Some(timed) = &mut self.timed else { return Ok(None) };
        let Some(due) = timed.clock.pop() else {
            let kind = FaultKind::Deadlock;
            return if self.blocks.is_empty() { Ok(None) } else { Err(self.stuck(kind)) };
        };
        let (number, warp) = due.warp();
        let Some(at) = self.blocks.iter().position(|block| block.common.number == number) else {
            return Ok(None);
        };
        self.now = timed.clock.now / 1000;
        if let Some(model) = &mut self.model {
            model.tick = self.now;
        }
        let (model, now) = (self.model.as_mut(), self.now);
        let mut env = Env { model, now, cycles: now, watch: true, clock: Some(&mut timed.clock) };
        let ran = timed::run(&mut self.blocks[at], due, &mut env)?;
        self.after(at, warp, ran)
    }

    fn turn(&mut self) -> Result<Option<(u64, Counts)>, Box<Fault>> {
        let Some((block, warp)) = self.choose() else {
            return self.nobody().map(|()| None);
        };
        let budget = match self.options.schedule {
            WarpSchedule::RoundRobin => TURN,
            WarpSchedule::Random => {
                let most = 1 << self.random.below(8);
                1 + self.random.below(most) as u32
            }
        };
        let (model, now) = (self.model.as_mut(), self.now);
        let mut env = Env { model, now, cycles: now, watch: true, clock: None };
        let ran = self.blocks[block].step(warp, budget, &mut env)?;
        self.now += u64::from(ran).max(1);
        if let Some(model) = &mut self.model {
            model.tick = self.now;
        }
        self.after(block, warp, ran)
    }

    /// A warp has run so many instructions.
    fn after(
        &mut self,
        block: usize,
        warp: usize,
        ran: u32,
    ) -> Result<Option<(u64, Counts)>, Box<Fault>> {
        self.steps += u64::from(ran);
        for n in [block as u64, warp as u64, ran.into()] {
            self.trace = (self.trace.rotate_left(7) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let one = &mut self.blocks[block].warps[warp];
        if std::mem::take(&mut one.progress) {
            (one.idle, one.looked) = (0, false);
            self.moved = true;
        } else {
            one.idle += u64::from(ran);
        }
        if one.idle > IDLE && one.looked {
            self.check_deadlock()?;
        }
        let most = self.options.most_steps;
        let steps = self.steps - self.before;
        if most > 0 && steps >= most {
            return Err(self.stuck(FaultKind::Steps(steps)));
        }
        Ok(self.end(block))
    }

    /// Takes a block away that has ended.
    fn end(&mut self, block: usize) -> Option<(u64, Counts)> {
        if !self.blocks[block].ended() {
            return None;
        }
        let block = self.blocks.remove(block);
        if let Some(model) = &mut self.model {
            block.finish(model);
        }
        let number = block.common.grid.number();
        if let Some(timed) = &mut self.timed {
            timed.end(&block);
        }
        let (left, counts) = self.launches.get_mut(&number)?;
        *left -= 1;
        *counts += block.common.counts;
        (*left == 0)
            .then(|| self.launches.remove(&number))
            .flatten()
            .map(|(_, counts)| (number, counts))
    }

    /// A warp that can run.
    fn choose(&mut self) -> Option<(usize, usize)> {
        let now = self.now;
        let can = |blocks: &[Block], (block, warp): (usize, usize)| {
            blocks[block].warps[warp].sleeps_until <= now && blocks[block].runnable(warp)
        };
        let count = self.blocks.len();
        match self.options.schedule {
            WarpSchedule::RoundRobin => {
                let warps: usize = self.blocks.iter().map(|b| b.warps.len()).sum();
                for _ in 0..=warps {
                    let (block, warp) = self.turn;
                    if block >= count {
                        self.turn = (0, 0);
                        continue;
                    }
                    if warp >= self.blocks[block].warps.len() {
                        self.turn = (block + 1, 0);
                        if block + 1 >= count {
                            self.turn = (0, 0);
                        }
                        continue;
                    }
                    self.turn = (block, warp + 1);
                    if can(&self.blocks, (block, warp)) {
                        return Some((block, warp));
                    }
                }
                // The turns above were partly spent on going round.
                self.first(|blocks, at| can(blocks, at), 0)
            }
            WarpSchedule::Random => {
                if count == 0 {
                    return None;
                }
                // From time to time a block or a warp is left out, so that others get far ahead of it.
                if now >= self.lazy.1 {
                    let block = self.random.below(count as u64) as usize;
                    let warp = self.random.below(self.blocks[block].warps.len() as u64) as usize;
                    let out = match self.random.below(4) {
                        0 => Lazy::Block(block),
                        1 => Lazy::Warp(block, warp),
                        _ => Lazy::Nobody,
                    };
                    self.lazy = (out, now + 1 + self.random.below(20_000));
                }
                for _ in 0..4 {
                    let block = self.random.below(count as u64) as usize;
                    let warp = self.random.below(self.blocks[block].warps.len() as u64) as usize;
                    if !self.lazy.0.has((block, warp)) && can(&self.blocks, (block, warp)) {
                        return Some((block, warp));
                    }
                }
                let start = self.random.below(count as u64) as usize;
                let lazy = self.lazy.0;
                self.first(|blocks, at| !lazy.has(at) && can(blocks, at), start)
                    .or_else(|| self.first(|blocks, at| can(blocks, at), start))
            }
        }
    }

    /// The first warp from a block on that satisfies `can`.
    fn first(
        &self,
        can: impl Fn(&[Block], (usize, usize)) -> bool,
        start: usize,
    ) -> Option<(usize, usize)> {
        let count = self.blocks.len();
        (0..count)
            .map(|i| (start + i) % count)
            .flat_map(|block| (0..self.blocks[block].warps.len()).map(move |warp| (block, warp)))
            .find(|&at| can(&self.blocks, at))
    }

    /// Nobody can run now: time passes until somebody wakes, or it is a deadlock.
    fn nobody(&mut self) -> Result<(), Box<Fault>> {
        let wakes = self
            .blocks
            .iter()
            .flat_map(|block| (0..block.warps.len()).map(move |warp| (block, warp)))
            .filter(|(block, warp)| block.runnable(*warp))
            .map(|(block, warp)| block.warps[warp].sleeps_until)
            .min();
        match wakes {
            Some(time) => {
                self.now = self.now.max(time);
                Ok(())
            }
            None if self.blocks.is_empty() => Ok(()),
            None => Err(self.stuck(FaultKind::Deadlock)),
        }
    }

    /// Whether all that can run only waits. What somebody has stored meanwhile may be news to one that has waited for
    /// long, so all of them get as much time again.
    fn check_deadlock(&mut self) -> Result<(), Box<Fault>> {
        let waits = |block: &Block, warp: usize| {
            let one = &block.warps[warp];
            !block.runnable(warp) || (one.idle > IDLE && one.looked)
        };
        let all =
            self.blocks.iter().all(|block| (0..block.warps.len()).all(|warp| waits(block, warp)));
        if !all {
            return Ok(());
        }
        if !std::mem::take(&mut self.moved) {
            return Err(self.stuck(FaultKind::Deadlock));
        }
        for warp in self.blocks.iter_mut().flat_map(|block| &mut block.warps) {
            (warp.idle, warp.looked) = (0, false);
        }
        Ok(())
    }

    /// A fault of everybody who is left.
    fn stuck(&self, kind: FaultKind) -> Box<Fault> {
        let mut places = self.blocks.iter().flat_map(Block::places);
        match places.next() {
            Some(site) => Box::new(Fault { kind, site, others: places.collect() }),
            None => unreachable_fault(kind),
        }
    }
}

/// Nobody is left, so nobody is stuck; it needs a place all the same.
fn unreachable_fault(kind: FaultKind) -> Box<Fault> {
    let site = super::Site {
        kernel: String::new(),
        launch: 0,
        block: 0,
        warp: 0,
        lanes: 0,
        position: crate::syntax::Position { line: 0, column: 0 },
        text: String::new(),
        source: None,
    };
    Box::new(Fault { kind, site, others: Vec::new() })
}

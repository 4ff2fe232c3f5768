//! The CPU runtime for tests: one thread, one schedule drawn from a seed, an error in place of a hang.
//!
//! At each step a random block that may have something to do is resumed, until it waits or the
//! [adversary](super::adversary) takes the thread from it. The same seed and the same sequence of calls
//! give the same schedule, bit for bit ([`SeededRuntime::trace`]). When launches start is as in
//! [`scheduler`](crate::runtime::scheduler).
//!
//! **Deadlock.** A block that paused without having moved is left alone until memory may have changed. When
//! all blocks are, and no store is pending, each gets another look, and another, [`DEADLOCK_LOOKS`]
//! times, because device code looks at abort flags only now and then. Then nothing can move any more,
//! and `pause` says so to every block.

use std::fmt;
use std::sync::{Arc, Mutex};

use corosensei::stack::DefaultStack;
use ferroccl_device::abi::{Comm, Fault, FaultKind, WaitKind};
use ferroccl_device::gpu::cpu::CheckedGuard;
use ferroccl_device::gpu::{SPINS_PER_CHECK, Verdict, Waiting};

use super::adversary::{Adversity, Chaos, Cruel};
use super::block::{self, BlockRun, Resumed, YieldReason};
use super::history::{Conflict, History, MemoryEvent};
use super::native::same;
use super::one_thread::one_thread_runtime;
use crate::runtime::op::panicked;
use crate::runtime::scheduler::{self, ScheduledStreams, Scheduler, StreamId};
use crate::runtime::sync::lock;
use crate::runtime::{Launch, Memory};
use crate::{Error, KernelFault, Result};

/// Looks of every block without any change that make a deadlock: enough for the device code to look at
/// its abort flag in between.
const DEADLOCK_LOOKS: u32 = 2 * SPINS_PER_CHECK + 2;
/// Pauses after which a block that was told to give up, and does not, is ended by force.
const PATIENCE: u32 = 10_000;
/// The longest time, in steps, that a block is left out for no reason.
const LAZY_STEPS: usize = 400;

/// A CPU device with one seeded schedule; see [`CpuRuntime::seeded`](super::CpuRuntime::seeded).
pub struct SeededRuntime(Arc<ScheduledStreams<Coroutines>>);

/// Blocks as coroutines that a seed schedules.
struct Coroutines {
    chaos: Arc<Mutex<Chaos>>,
    _checked: CheckedGuard,
}

type Launched = scheduler::Launched<Coroutines>;

/// What a run needs. All but `stacks` is empty between two runs.
#[derive(Default)]
struct Schedule {
    blocks: Vec<Live>,
    /// Launches of blocks that have ended, but not all that they stored is visible; with their buffers.
    draining: Vec<(usize, Arc<Launched>)>,
    /// Resumes of this run.
    steps: u64,
    /// Looks of all blocks since something changed.
    looks: u32,
    /// The step at which it is drawn anew which blocks are lazy.
    redraw: u64,
    stacks: Vec<DefaultStack>,
}

/// A block that runs.
struct Live {
    block: BlockRun,
    launch: Arc<Launched>,
    /// Its index in its grid.
    index: u32,
    /// Its buffer of stores.
    slot: usize,
    waiting: Option<Waiting>,
    /// Whether it has nothing to do until something changes.
    quiet: bool,
    /// Whether the schedule leaves it out for a while.
    lazy: bool,
    verdict: Verdict,
    /// How often it has stopped since it got a verdict.
    ignored: u32,
}

impl SeededRuntime {
    pub(super) fn new(adversity: Adversity) -> Self {
        let chaos = Arc::new(Mutex::new(Chaos::new(adversity)));
        let coroutines = Coroutines { chaos, _checked: CheckedGuard::new() };
        SeededRuntime(ScheduledStreams::new(coroutines, Schedule::default()))
    }

    /// A hash of everything that has happened so far: each switch, each store and when it became visible.
    /// Two runs of the same program with the same seed have the same.
    #[must_use]
    pub fn trace(&self) -> u64 {
        lock(&self.0.scheduler.chaos).trace
    }

    /// The first accesses to data that nothing ordered, with [`Adversity::races`].
    #[must_use]
    pub fn race(&self) -> Option<String> {
        lock(&self.0.scheduler.chaos).watch.races.as_ref().and_then(|races| races.found.clone())
    }
}

impl SeededRuntime {
    fn allocated(&self, _: &Arc<dyn Memory>) {}

    /// What blocks did to memory, in order, with [`Adversity::history`]: the last quarter of a million of accesses.
    #[must_use]
    pub fn history(&self) -> Vec<MemoryEvent> {
        let chaos = lock(&self.0.scheduler.chaos);
        chaos.watch.history.as_ref().map_or_else(Vec::new, History::events)
    }

    /// The first two accesses to the same data that were in no order, with [`Adversity::history`]: a race, which takes
    /// [`Adversity::races`], or a load of what another block had stored and nobody saw yet.
    #[must_use]
    pub fn conflict(&self) -> Option<Conflict> {
        let chaos = lock(&self.0.scheduler.chaos);
        chaos.watch.history.as_ref().and_then(|history| history.conflict)
    }
}

impl fmt::Debug for SeededRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeededRuntime").field(&lock(&self.0.scheduler.chaos).adversity).finish()
    }
}

one_thread_runtime!(SeededRuntime);

impl Scheduler for Coroutines {
    type Ready = ();
    type Schedule = Schedule;

    fn address_space(&self) -> u64 {
        0
    }

    fn prepare(&self, _: &Launch, _: StreamId, _: u64) -> Result<()> {
        Ok(())
    }

    fn begin(&self, schedule: &mut Schedule) {
        (schedule.steps, schedule.looks, schedule.redraw) = (0, 0, 0);
    }

    fn is_idle(&self, schedule: &Schedule) -> bool {
        schedule.blocks.is_empty() && schedule.draining.is_empty()
    }

    fn start(&self, schedule: &mut Schedule, launched: Launched, ended: &mut Vec<Launched>) {
        let blocks = launched.blocks;
        let launch = Arc::new(launched);
        for index in 0..blocks {
            match schedule.stacks.pop().map_or_else(block::new_stack, Ok) {
                Ok(stack) => {
                    let live = Live::new(stack, &launch, index, &self.chaos);
                    schedule.blocks.push(live);
                }
                Err(e) => launch.fail(Error::system("allocating the stack of a block", e)),
            }
        }
        self.touched();
        ended.extend(Arc::into_inner(launch));
    }

    /// Resumes a block that may have something to do, if there is one.
    fn step(&self, schedule: &mut Schedule, ended: &mut Vec<Launched>) {
        let Some(choice) = self.choose(schedule, ended) else { return };
        schedule.steps += 1;
        let live = &mut schedule.blocks[choice];
        let resumed = live.block.resume(live.verdict);
        let mut chaos = lock(&self.chaos);
        match resumed {
            Resumed::Paused(reason) => {
                if !live.stopped(reason, &mut chaos) {
                    if schedule.steps >= chaos.adversity.max_steps {
                        schedule.stop(FaultKind::Timeout);
                    }
                    return;
                }
                drop(chaos);
                let live = schedule.blocks.remove(choice);
                let message = format!(
                    "block {} was told to give up and did not; it waits for {}",
                    live.index,
                    live.waiting.map_or("nothing", |w| w.kind.words())
                );
                live.launch.fail(panicked(live.launch.kernel.name, message));
                live.block.abandon(); // stores, like any code of the block
                schedule.draining.push((live.slot, live.launch));
            }
            Resumed::Ended | Resumed::Panicked(_) => {
                chaos.record(live.event(5));
                drop(chaos);
                let live = schedule.blocks.remove(choice);
                if let Resumed::Panicked(message) = resumed {
                    live.launch.fail(panicked(live.launch.kernel.name, message));
                }
                schedule.stacks.push(live.block.into_stack());
                schedule.draining.push((live.slot, live.launch));
            }
        }
        self.touched();
    }

    fn touched(&self) {
        lock(&self.chaos).changed = true;
    }
}

impl Coroutines {
    /// Lets time pass, and draws the block to resume. When all are quiet, a store becomes visible; when
    /// there is none, each block gets another look.
    fn choose(&self, schedule: &mut Schedule, ended: &mut Vec<Launched>) -> Option<usize> {
        let mut chaos = lock(&self.chaos);
        chaos.tick();
        if std::mem::take(&mut chaos.changed) {
            schedule.looks = 0;
            schedule.blocks.iter_mut().for_each(|live| live.quiet = false);
            let drained = schedule.draining.extract_if(.., |(slot, _)| chaos.close(*slot));
            ended.extend(drained.filter_map(|(_, launch)| Arc::into_inner(launch)));
        }
        schedule.draw_laziness(&mut chaos);
        let choice = schedule.choose(&mut chaos);
        if choice.is_none() && !chaos.perform_one() {
            schedule.look_again();
        }
        choice
    }
}

impl Schedule {
    /// A block that may have something to do.
    fn choose(&self, chaos: &mut Chaos) -> Option<usize> {
        let eager = |live: &&Live| !live.quiet && !live.lazy;
        let any = |live: &&Live| !live.quiet;
        let pick = |chaos: &mut Chaos, wanted: &dyn Fn(&&Live) -> bool| {
            let count = self.blocks.iter().filter(wanted).count();
            let nth = if count > 0 { chaos.rng.below(count) } else { return None };
            self.blocks.iter().enumerate().filter(|(_, live)| wanted(live)).nth(nth).map(|(i, _)| i)
        };
        pick(chaos, &eager).or_else(|| pick(chaos, &any))
    }

    /// Leaves other blocks out from time to time, so that some get far ahead of others.
    fn draw_laziness(&mut self, chaos: &mut Chaos) {
        if self.steps >= self.redraw {
            self.redraw = self.steps + 1 + chaos.rng.below(LAZY_STEPS) as u64;
            for live in &mut self.blocks {
                live.lazy = chaos.rng.chance(0.25);
            }
        }
    }

    /// No block has moved and no store is pending.
    fn look_again(&mut self) {
        self.blocks.iter_mut().for_each(|live| live.quiet = false);
        self.looks += 1;
        if self.looks >= DEADLOCK_LOOKS {
            self.looks = 0;
            self.stop(FaultKind::Deadlock);
        }
    }

    /// Tells every block to give up.
    fn stop(&mut self, kind: FaultKind) {
        for live in &mut self.blocks {
            if live.verdict.is_none() {
                live.verdict = Some(kind);
                live.launch
                    .give_up(Error::Kernel(Arc::new(KernelFault(fault(kind, live.waiting)))));
            }
        }
    }
}

fn fault(kind: FaultKind, waiting: Option<Waiting>) -> Fault {
    let nothing = Waiting { kind: WaitKind::None, rank: 0, peer: 0, channel: 0, step: 0 };
    let Waiting { kind: wait, rank, peer, channel, step } = waiting.unwrap_or(nothing);
    let (kind, wait) = (kind as u32, wait as u32);
    Fault { kind, rank, peer, channel, wait, step, ..Fault::default() }
}

impl Live {
    /// Notes that it has stopped; `true` when it had been told to give up long ago.
    fn stopped(&mut self, reason: YieldReason, chaos: &mut Chaos) -> bool {
        match reason {
            YieldReason::Preempted => chaos.record(self.event(4)),
            YieldReason::Waits(waiting) => {
                chaos.record(self.event(3));
                chaos.record((waiting.step << 3) | waiting.kind as u64);
                chaos.changed |= self.waiting.is_none_or(|before| !same(&before, &waiting));
                (self.waiting, self.quiet) = (Some(waiting), true);
            }
        }
        self.ignored += u32::from(self.verdict.is_some());
        self.ignored > PATIENCE
    }

    /// An event of this block, for the trace.
    fn event(&self, kind: u64) -> u64 {
        (u64::from(self.index) << 32) | ((self.slot as u64) << 8) | kind
    }

    fn new(
        stack: DefaultStack,
        launch: &Arc<Launched>,
        index: u32,
        chaos: &Arc<Mutex<Chaos>>,
    ) -> Self {
        let slot = lock(chaos).open(&stack, index, || {
            // SAFETY: the contract of `launch`: a communicator is valid until it has ended.
            unsafe { (launch.comm() as *const Comm).as_ref() }.map_or(0, |comm| comm.rank)
        });
        let (kernel, work, shared) = (launch.kernel, launch.work(), Arc::clone(chaos));
        let block = BlockRun::new(stack, move |yielder| {
            let work = work; // the whole of it, which is `Send`; not the pointer inside
            let machine = Cruel { yielder, chaos: shared, slot };
            // SAFETY: the contract of `launch`; `Live::launch` keeps the work until after this.
            unsafe { block::enter(index, &machine, kernel, work.0) }
        });
        let launch = Arc::clone(launch);
        let (verdict, waiting) = (None, None);
        Live { block, launch, index, slot, waiting, quiet: false, lazy: false, verdict, ignored: 0 }
    }
}

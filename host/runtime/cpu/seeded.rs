//! The CPU runtime for tests: one thread, one schedule drawn from a seed, an error in place of a hang.
//!
//! Launches only queue up. Whoever waits for a stream runs everything that is queued on all streams, to
//! its end, on its own thread: at each step a random block that may have something to do is resumed,
//! until it waits or the [adversary](super::adversary) takes the thread from it. The same seed and the
//! same sequence of calls give the same schedule, bit for bit ([`SeededRuntime::trace`]).
//!
//! **Deadlock.** A block that paused without having moved is left alone until memory may have changed. When
//! all blocks are, and no store is pending, each gets another look, and another, [`DEADLOCK_LOOKS`]
//! times, because device code looks at abort flags only now and then. Then nothing can move any more,
//! and `pause` says so to every block.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use corosensei::stack::DefaultStack;
use ferroccl_device::abi::{Fault, FaultKind, WaitKind};
use ferroccl_device::gpu::cpu::CheckedGuard;
use ferroccl_device::gpu::{SPINS_PER_CHECK, Verdict, Waiting};

use super::adversary::{Adversity, Chaos, Cruel};
use super::block::{self, BlockRun, Resumed, Why};
use super::executor::lock;
use super::memory::{self, HostMemory};
use super::op::{Launched, Op, copy_in, copy_out, run_host};
use super::queue::same;
use crate::runtime::{Launch, Memory, Runtime, StreamOps};
use crate::{Error, KernelFault, Result};

/// Looks of every block without any change that make a deadlock: enough for the device code to look at
/// its abort flag in between.
const DEADLOCK_LOOKS: u32 = 2 * SPINS_PER_CHECK + 2;
/// Pauses after which a block that was told to give up, and does not, is ended by force.
const PATIENCE: u32 = 10_000;
/// The longest time, in steps, that a block is left out for no reason.
const LAZY_STEPS: usize = 400;

/// A CPU device with one seeded schedule; see [`CpuRuntime::seeded`](super::CpuRuntime::seeded).
pub struct SeededRuntime(Arc<World>);

struct World {
    streams: Mutex<Vec<Stream>>,
    /// Locked by the thread that runs the schedule.
    schedule: Mutex<Schedule>,
    /// That thread, so that it is not run from within.
    runner: Mutex<Option<ThreadId>>,
    chaos: Arc<Mutex<Chaos>>,
    _checked: CheckedGuard,
}

#[derive(Default)]
struct Stream {
    waiting: VecDeque<Op>,
    /// Whether a kernel of it runs.
    busy: bool,
    error: Option<Error>,
}

/// A stream's index.
type StreamId = usize;

/// What a run needs. All but `stacks` is empty between two runs.
#[derive(Default)]
struct Schedule {
    blocks: Vec<Live>,
    /// Launches of blocks that have ended, but not all that they stored is visible; with their buffers.
    draining: Vec<(usize, Arc<Launched<StreamId>>)>,
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
    launch: Arc<Launched<StreamId>>,
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
        SeededRuntime(Arc::new(World {
            streams: Mutex::default(),
            schedule: Mutex::default(),
            runner: Mutex::default(),
            chaos: Arc::new(Mutex::new(Chaos::new(adversity))),
            _checked: CheckedGuard::new(),
        }))
    }

    /// A hash of everything that has happened so far: each switch, each store and when it became visible.
    /// Two runs of the same program with the same seed have the same.
    #[must_use]
    pub fn trace(&self) -> u64 {
        lock(&self.0.chaos).trace
    }
}

impl fmt::Debug for SeededRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeededRuntime").field(&lock(&self.0.chaos).adversity).finish()
    }
}

impl Runtime for SeededRuntime {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(HostMemory::allocate(bytes)?))
    }

    fn stream(&self) -> Result<Arc<dyn StreamOps>> {
        let mut streams = lock(&self.0.streams);
        streams.push(Stream::default());
        Ok(Arc::new(SeededStream { world: Arc::clone(&self.0), id: streams.len() - 1 }))
    }

    /// Two, as it has one thread but is there to have things happen at the same time.
    fn parallelism(&self) -> u32 {
        2
    }

    fn share_host(&self, _local_processes: usize) {} // it has one thread anyway
}

struct SeededStream {
    world: Arc<World>,
    id: StreamId,
}

impl fmt::Debug for SeededStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededStream").field("id", &self.id).finish()
    }
}

impl SeededStream {
    fn push(&self, op: Op) {
        lock(&self.world.streams)[self.id].waiting.push_back(op);
    }
}

impl StreamOps for SeededStream {
    unsafe fn launch(&self, launch: Launch) -> Result<()> {
        self.push(Op::Kernel(launch));
        Ok(())
    }

    fn copy_in(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        memory::range(to, offset, bytes.len())?;
        self.push(Op::CopyIn { to: Arc::clone(to), offset, bytes: bytes.into() });
        Ok(())
    }

    fn copy_out(&self, from: &Arc<dyn Memory>, offset: usize, bytes: &mut [u8]) -> Result<()> {
        memory::range(from, offset, bytes.len())?;
        self.synchronize()?;
        copy_out(from, offset, bytes)
    }

    fn host_function(&self, function: Box<dyn FnOnce() + Send>) {
        self.push(Op::Host(function));
    }

    fn synchronize(&self) -> Result<()> {
        self.world.run()?;
        lock(&self.world.streams)[self.id].error.take().map_or(Ok(()), Err)
    }

    /// Runs everything, as `synchronize` does: nothing else makes progress.
    fn query(&self) -> Result<bool> {
        self.synchronize().map(|()| true)
    }
}

impl World {
    /// Runs all that is queued on all streams.
    fn run(&self) -> Result<()> {
        let me = thread::current().id();
        if *lock(&self.runner) == Some(me) {
            let reason = "a function that runs in a seeded schedule cannot wait for it";
            return Err(Error::argument("stream", reason));
        }
        let mut schedule = lock(&self.schedule);
        *lock(&self.runner) = Some(me);
        (schedule.steps, schedule.looks, schedule.redraw) = (0, 0, 0);
        while self.start_all(&mut schedule) {
            self.step(&mut schedule);
        }
        *lock(&self.runner) = None;
        Ok(())
    }

    /// Starts what the streams have next; `false` when nothing runs and nothing is queued.
    fn start_all(&self, schedule: &mut Schedule) -> bool {
        let mut id = 0;
        loop {
            let mut streams = lock(&self.streams);
            let Some(stream) = streams.get_mut(id) else { break };
            if stream.busy {
                id += 1;
                continue;
            }
            let Some(op) = stream.waiting.pop_front() else {
                id += 1;
                continue;
            };
            let kernel = matches!(op, Op::Kernel(_));
            stream.busy = kernel;
            drop(streams); // what follows may call the streams
            let result = match op {
                Op::Kernel(launch) => {
                    self.spawn(schedule, launch, id);
                    continue;
                }
                Op::CopyIn { to, offset, bytes } => copy_in(&to, offset, &bytes),
                Op::Host(function) => run_host(function),
            };
            self.ended(id, result);
        }
        !schedule.blocks.is_empty() || !schedule.draining.is_empty()
    }

    /// An operation of a stream has ended.
    fn ended(&self, id: StreamId, result: Result<()>) {
        let mut streams = lock(&self.streams);
        streams[id].busy = false;
        if let Err(error) = result {
            streams[id].error.get_or_insert(error);
        }
        drop(streams);
        lock(&self.chaos).changed = true; // the operation may have written anywhere
    }

    fn spawn(&self, schedule: &mut Schedule, launch: Launch, id: StreamId) {
        let blocks = launch.blocks;
        let launch = Arc::new(Launched::new(launch, id));
        for index in 0..blocks {
            match schedule.stacks.pop().map_or_else(block::new_stack, Ok) {
                Ok(stack) => {
                    let live = Live::new(stack, &launch, index, &self.chaos);
                    schedule.blocks.push(live);
                }
                Err(e) => launch.fail(Error::system("allocating the stack of a block", e)),
            }
        }
        lock(&self.chaos).changed = true;
        self.release(launch);
    }

    /// Lets go of a launch; the last one to do so ends it.
    fn release(&self, launch: Arc<Launched<StreamId>>) {
        if let Some(launched) = Arc::into_inner(launch) {
            let (result, id) = launched.result();
            self.ended(id, result);
        }
    }

    /// Resumes a block that may have something to do, if there is one.
    fn step(&self, schedule: &mut Schedule) {
        let Some(choice) = self.choose(schedule) else { return };
        schedule.steps += 1;
        let live = &mut schedule.blocks[choice];
        let resumed = live.block.resume(live.verdict);
        let mut chaos = lock(&self.chaos);
        match resumed {
            Resumed::Paused(why) => {
                if !live.stopped(why, &mut chaos) {
                    if schedule.steps >= chaos.adversity.max_steps {
                        schedule.stop(FaultKind::Timeout);
                    }
                    return;
                }
                drop(chaos);
                let live = schedule.blocks.remove(choice);
                live.launch.fail(live.launch.panicked(format!(
                    "block {} was told to give up and did not; it waits for {}",
                    live.index,
                    live.waiting.map_or("nothing", |w| w.kind.words())
                )));
                live.block.abandon(); // stores, like any code of the block
                schedule.draining.push((live.slot, live.launch));
            }
            Resumed::Ended | Resumed::Panicked(_) => {
                chaos.record(live.event(5));
                drop(chaos);
                let live = schedule.blocks.remove(choice);
                if let Resumed::Panicked(message) = resumed {
                    live.launch.fail(live.launch.panicked(message));
                }
                schedule.stacks.push(live.block.into_stack());
                schedule.draining.push((live.slot, live.launch));
            }
        }
        lock(&self.chaos).changed = true;
    }

    /// Lets time pass, and draws the block to resume. When all are quiet, a store becomes visible; when
    /// there is none, each block gets another look.
    fn choose(&self, schedule: &mut Schedule) -> Option<usize> {
        let mut chaos = lock(&self.chaos);
        chaos.tick();
        if std::mem::take(&mut chaos.changed) {
            schedule.looks = 0;
            schedule.blocks.iter_mut().for_each(|live| live.quiet = false);
            let drained =
                schedule.draining.extract_if(.., |(slot, _)| chaos.close(*slot)).collect();
            drop(chaos);
            self.release_all(drained);
            chaos = lock(&self.chaos);
        }
        schedule.draw_laziness(&mut chaos);
        let choice = schedule.choose(&mut chaos);
        if choice.is_none() && !chaos.perform_one() {
            schedule.look_again();
        }
        choice
    }

    fn release_all(&self, launches: Vec<(usize, Arc<Launched<StreamId>>)>) {
        launches.into_iter().for_each(|(_, launch)| self.release(launch));
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
    fn stopped(&mut self, why: Why, chaos: &mut Chaos) -> bool {
        match why {
            Why::Preempted => chaos.record(self.event(4)),
            Why::Waits(waiting) => {
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
        launch: &Arc<Launched<StreamId>>,
        index: u32,
        chaos: &Arc<Mutex<Chaos>>,
    ) -> Self {
        let slot = lock(chaos).open(&stack);
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

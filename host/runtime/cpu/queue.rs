//! A queue of blocks that belong to one core, and the loop that runs them.
//!
//! Block `i` of every launch goes to queue `i % queues`: channel `i` of all ranks of the process runs on
//! one core, and its slots stay in that core's cache. Whoever holds the lock of [`Run`] **drives** the
//! queue; there is at most one driver, and it resumes the blocks round robin. Who drives when is the
//! business of [`executor`](super::executor).
//!
//! Invariant: no closure of the user runs under a lock. A stint ends with the block that ended a launch,
//! and the driver finishes the launch after it has let go of the queue.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use corosensei::stack::DefaultStack;
use ferroccl_device::abi::WaitKind;
use ferroccl_device::gpu::Waiting;
use ferroccl_device::gpu::cpu::{Adversary, Machine};

use super::block::{self, BlockRun, Resumed, Why, Yielder};
use super::executor::lock;
use super::op;
use super::stream::{Job, StreamState};
use crate::Error;

/// Rounds without progress before a driver lets go of the queue and yields. Where processes outnumber the
/// cores every further round delays the one that could move: on 2 cores, 4 processes took 19 to 26 us for
/// a ring all-reduce of 8 bytes with 32 rounds, and 9 to 20 us with 1 (single runs, no record).
const SPIN_ROUNDS: u32 = 1;
/// Rounds with progress between two looks whether another queue has work and no driver.
const ROUNDS_PER_LOOK: u32 = 16;
/// Stacks that a queue keeps for later blocks: MAX_CHANNELS of two ranks.
const POOLED_STACKS: usize = 64;

/// A launch of a stream of this mode.
pub(super) type Launched = op::Launched<Arc<StreamState>>;

/// What is put into a queue.
pub(super) enum Task {
    /// Block `index` of a launch.
    Block { launch: Arc<Launched>, index: u32 },
    /// Something of a stream to be run once, outside of any block.
    Job(Job),
}

/// What a driver did in one stint.
pub(super) enum Stint {
    /// Nothing: another thread drives, or there is no work.
    Nothing,
    /// It ran blocks, and some moved.
    Moved,
    /// It ran blocks, and none moved.
    Stuck,
    /// The last block of this launch has ended.
    Finished(Launched),
    /// This is to be run now.
    Job(Job),
}

/// One queue. On cache lines of its own: `load` is looked at by every thread that seeks work.
#[repr(align(128))]
pub(super) struct Queue {
    /// Tasks put in and not ended.
    load: AtomicUsize,
    /// Blocks among them of launches that are worth waking a core for.
    heavy: AtomicUsize,
    /// Whether somebody drives: a hint, the truth is `run`'s lock.
    driven: AtomicBool,
    /// Whether `inbox` has something: a hint for the driver, set after the push.
    fresh: AtomicBool,
    inbox: Mutex<Vec<Task>>,
    run: Mutex<Run>,
}

/// What the driver of a queue owns.
#[derive(Default)]
struct Run {
    blocks: Vec<Resident>,
    /// The block to resume next.
    cursor: usize,
    /// Blocks resumed since the round began.
    resumed: usize,
    /// Whether one of them moved.
    moved: bool,
    /// The inbox's other buffer.
    arrived: Vec<Task>,
    stacks: Vec<DefaultStack>,
}

/// A block that has started.
struct Resident {
    block: BlockRun,
    launch: Arc<Launched>,
    /// What it waited for when it paused last.
    waiting: Waiting,
}

/// A machine without an adversary.
struct Plain<'a>(&'a Yielder);

impl Machine for Plain<'_> {
    #[inline]
    fn pause(&self, waiting: &Waiting) -> ferroccl_device::gpu::Verdict {
        self.0.suspend(Why::Waits(*waiting))
    }

    fn adversary(&self) -> Option<&dyn Adversary> {
        None
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        Queue {
            load: AtomicUsize::new(0),
            heavy: AtomicUsize::new(0),
            driven: AtomicBool::new(false),
            fresh: AtomicBool::new(false),
            inbox: Mutex::default(),
            run: Mutex::default(),
        }
    }

    /// Puts in a task.
    pub(super) fn push(&self, task: Task) {
        if let Task::Block { launch, .. } = &task
            && launch.heavy
        {
            self.heavy.fetch_add(1, Ordering::Relaxed);
        }
        let mut inbox = lock(&self.inbox);
        inbox.push(task);
        // Under the lock, so that the driver that empties the inbox also clears it.
        self.fresh.store(true, Ordering::Relaxed);
        drop(inbox);
        // Pairs with the fence of a worker that goes to sleep (`Crew::doze`): either it sees this, or
        // the launch that pushed sees that it sleeps.
        self.load.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether it has work that nobody runs.
    #[inline]
    pub(super) fn wants_driver(&self) -> bool {
        self.load.load(Ordering::SeqCst) > 0 && !self.driven.load(Ordering::Relaxed)
    }

    /// Whether it has work that nobody runs and that is worth another core.
    pub(super) fn wants_core(&self) -> bool {
        self.heavy.load(Ordering::Relaxed) > 0 && self.wants_driver()
    }

    /// Whether all that was put in has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.load.load(Ordering::SeqCst) == 0
    }

    /// Drives the queue, if nobody else does, until a launch ends, nothing moves, the thread is `done`, or
    /// another queue wants a driver (`elsewhere`); at most `rounds` rounds.
    #[inline]
    pub(super) fn stint(
        &self,
        rounds: u32,
        done: impl Fn() -> bool,
        elsewhere: impl Fn() -> bool,
    ) -> Stint {
        if !self.wants_driver() {
            return Stint::Nothing;
        }
        let mut run = match self.run.try_lock() {
            Ok(run) => run,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Stint::Nothing,
        };
        self.driven.store(true, Ordering::Relaxed);
        let stint = self.drive(&mut run, rounds, done, elsewhere);
        self.driven.store(false, Ordering::Relaxed);
        stint
    }

    fn drive(
        &self,
        run: &mut Run,
        rounds: u32,
        done: impl Fn() -> bool,
        elsewhere: impl Fn() -> bool,
    ) -> Stint {
        let (mut quiet, mut any) = (0, false);
        for round in 1..=rounds {
            if self.fresh.load(Ordering::Relaxed)
                && let Some(stint) = self.admit(run)
            {
                return stint;
            }
            if run.blocks.is_empty() {
                return if any { Stint::Moved } else { Stint::Nothing };
            }
            if let Some(launched) = self.round(run) {
                return Stint::Finished(launched);
            }
            any |= run.moved;
            if run.moved {
                quiet = 0;
            } else {
                quiet += 1;
                if quiet >= SPIN_ROUNDS {
                    break;
                }
                spin_loop();
            }
            if done() || ((quiet > 0 || round % ROUNDS_PER_LOOK == 0) && elsewhere()) {
                break;
            }
        }
        if any { Stint::Moved } else { Stint::Stuck }
    }

    /// Resumes each block once, from where the last round stopped; stops early with the launch of
    /// which the last block has ended.
    fn round(&self, run: &mut Run) -> Option<Launched> {
        if run.resumed == 0 {
            run.moved = false;
        }
        while run.resumed < run.blocks.len() {
            if run.cursor >= run.blocks.len() {
                run.cursor = 0;
            }
            let resident = &mut run.blocks[run.cursor];
            let failure = match resident.block.resume(None) {
                Resumed::Paused(Why::Waits(waiting)) => {
                    run.moved |= !same(&waiting, &resident.waiting);
                    resident.waiting = waiting;
                    run.cursor += 1;
                    run.resumed += 1;
                    continue;
                }
                Resumed::Paused(Why::Preempted) => {
                    run.cursor += 1;
                    run.resumed += 1;
                    continue;
                }
                Resumed::Ended => None,
                Resumed::Panicked(message) => Some(message),
            };
            run.moved = true;
            let Resident { block, launch, .. } = run.blocks.swap_remove(run.cursor);
            if run.stacks.len() < POOLED_STACKS {
                run.stacks.push(block.into_stack());
            }
            if let Some(message) = failure {
                launch.fail(launch.panicked(message));
            }
            if let Some(launched) = self.ended(launch) {
                run.resumed = 0;
                return Some(launched);
            }
        }
        run.resumed = 0;
        None
    }

    /// Takes in what was pushed. What cannot become a block ends here.
    #[cold]
    fn admit(&self, run: &mut Run) -> Option<Stint> {
        if run.arrived.is_empty() {
            let mut inbox = lock(&self.inbox);
            std::mem::swap(&mut *inbox, &mut run.arrived);
            self.fresh.store(false, Ordering::Relaxed);
            drop(inbox);
            run.arrived.reverse(); // popped from the end, in the order of their arrival
        }
        while let Some(task) = run.arrived.pop() {
            let over = match task {
                Task::Job(job) => {
                    self.load.fetch_sub(1, Ordering::SeqCst);
                    Some(Stint::Job(job))
                }
                Task::Block { launch, index } => {
                    match run.stacks.pop().map_or_else(block::new_stack, Ok) {
                        Ok(stack) => {
                            run.blocks.push(Resident::new(stack, launch, index));
                            None
                        }
                        Err(e) => {
                            launch.fail(Error::system("allocating the stack of a block", e));
                            self.ended(launch).map(Stint::Finished)
                        }
                    }
                }
            };
            if over.is_some() {
                if !run.arrived.is_empty() {
                    // The rest is taken in by the next stint.
                    self.fresh.store(true, Ordering::Relaxed);
                }
                return over;
            }
        }
        None
    }

    /// Counts off a block; the last one of a launch gives the launch.
    fn ended(&self, launch: Arc<Launched>) -> Option<Launched> {
        if launch.heavy {
            self.heavy.fetch_sub(1, Ordering::Relaxed);
        }
        self.load.fetch_sub(1, Ordering::SeqCst);
        Arc::into_inner(launch)
    }
}

impl Resident {
    fn new(stack: DefaultStack, launch: Arc<Launched>, index: u32) -> Self {
        let (kernel, work) = (launch.kernel, launch.work());
        let block = BlockRun::new(stack, move |yielder| {
            let work = work; // the whole of it, which is `Send`; not the pointer inside
            // SAFETY: the contract of `launch`; the resident's `launch` keeps the work until after this.
            unsafe { block::enter(index, &Plain(yielder), kernel, work.0) }
        });
        let waiting = Waiting { kind: WaitKind::None, rank: 0, peer: 0, channel: 0, step: 0 };
        Resident { block, launch, waiting }
    }
}

/// Whether a block that paused with `a` and then with `b` has not moved.
#[inline]
pub(super) fn same(a: &Waiting, b: &Waiting) -> bool {
    (a.step, a.kind, a.peer, a.channel) == (b.step, b.kind, b.peer, b.channel)
}

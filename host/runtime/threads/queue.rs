//! A queue of blocks that belong to one core or to one caller, and the loop that runs them.
//!
//! Block `i` of every large launch goes to queue `i % cores`: channel `i` of all ranks of the process runs on
//! one core, and its slots stay in that core's cache. A small launch goes to the queue of the thread that makes it. Whoever holds the lock of [`Run`] **drives** the
//! queue; there is at most one driver, and it resumes the blocks round robin. Who drives when is the
//! business of [`executor`](super::executor).
//!
//! Invariant: no closure of the user runs under a lock. A go ends with the block that ended a launch,
//! and the driver finishes the launch after it has let go of the queue.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::yield_now;
use std::time::Instant;

use super::stream::{Job, StreamState};
use super::{Blocks, Turn};
use crate::runtime::sync::lock;
use crate::runtime::{WaitingBlock, op};

/// Rounds without progress before a driver lets go of the queue and yields. Where processes outnumber the
/// cores every further round delays the one that could move: on 2 cores, 4 processes took 19 to 26 us for
/// a ring all-reduce of 8 bytes with 32 rounds, and 9 to 20 us with 1 (single runs, no record).
const SPIN_ROUNDS: u32 = 1;
/// Rounds with progress between two looks whether another queue has work and no driver.
const ROUNDS_PER_LOOK: u32 = 16;

/// A launch of a stream of threads.
pub(super) type Launched<B> = op::Launched<Arc<StreamState<B>>, <B as Blocks>::Ready>;

/// What is put into a queue.
pub(super) enum Task<B: Blocks> {
    /// Block `index` of a launch.
    Block { launch: Arc<Launched<B>>, index: u32 },
    /// Something of a stream to be run once, outside of any block.
    Job(Job<B>),
}

/// What a driver did in one go.
pub(super) enum DriveOutcome<B: Blocks> {
    /// Nothing: another thread drives, or there is no work.
    Nothing,
    /// It ran blocks, and some moved.
    Moved,
    /// It ran blocks, and none moved.
    Stuck,
    /// The last block of this launch has ended.
    Finished(Arc<Launched<B>>),
    /// This is to be run now.
    Job(Job<B>),
}

/// One queue. On cache lines of its own: `load` is looked at by every thread that seeks work.
#[repr(align(128))]
pub(super) struct Queue<B: Blocks> {
    /// Tasks put in and not ended.
    load: AtomicUsize,
    /// Blocks among them of launches that are worth waking a core for.
    heavy: AtomicUsize,
    /// Whether somebody drives: a hint, the truth is `run`'s lock.
    driven: AtomicBool,
    /// Whether `inbox` has something: a hint for the driver, set after the push.
    fresh: AtomicBool,
    inbox: Mutex<Vec<Task<B>>>,
    run: Mutex<Run<B>>,
}

/// What the driver of a queue owns.
struct Run<B: Blocks> {
    blocks: Vec<Resident<B>>,
    /// The block to resume next.
    cursor: usize,
    /// Blocks resumed since the round began.
    resumed: usize,
    /// Whether one of them moved.
    moved: bool,
    /// The inbox's other buffer.
    arrived: Vec<Task<B>>,
    pool: B::Pool,
}

/// A block that has started.
struct Resident<B: Blocks> {
    block: B::Block,
    launch: Arc<Launched<B>>,
}

impl<B: Blocks> Queue<B> {
    pub(super) fn new() -> Self {
        let (blocks, arrived, pool) = (Vec::new(), Vec::new(), B::Pool::default());
        Queue {
            load: AtomicUsize::new(0),
            heavy: AtomicUsize::new(0),
            driven: AtomicBool::new(false),
            fresh: AtomicBool::new(false),
            inbox: Mutex::default(),
            run: Mutex::new(Run { blocks, cursor: 0, resumed: 0, moved: false, arrived, pool }),
        }
    }

    /// Puts in a task.
    pub(super) fn push(&self, task: Task<B>) {
        if let Task::Block { launch, .. } = &task
            && heavy(launch)
        {
            self.heavy.fetch_add(1, Ordering::Relaxed);
        }
        let mut inbox = lock(&self.inbox);
        inbox.push(task);
        // Under the lock, so that the driver that empties the inbox also clears it.
        self.fresh.store(true, Ordering::Relaxed);
        drop(inbox);
        // Pairs with the fence of a worker that goes to sleep (`WorkerPool::doze`): either it sees this, or
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
    pub(super) fn drive_some(
        &self,
        blocks: &B,
        rounds: u32,
        done: impl Fn() -> bool,
        elsewhere: impl Fn() -> bool,
    ) -> DriveOutcome<B> {
        if !self.wants_driver() {
            return DriveOutcome::Nothing;
        }
        let mut run = match self.run.try_lock() {
            Ok(run) => run,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return DriveOutcome::Nothing,
        };
        self.driven.store(true, Ordering::Relaxed);
        let outcome = self.drive(blocks, &mut run, rounds, done, elsewhere);
        self.driven.store(false, Ordering::Relaxed);
        outcome
    }

    /// The blocks that wait; none when whoever drives the queue does not let go of it until then.
    pub(super) fn waiting_blocks(&self, deadline: Instant) -> Vec<WaitingBlock> {
        let run = loop {
            match self.run.try_lock() {
                Ok(run) => break run,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Vec::new(),
                // A driver lets go after some rounds, for a moment.
                Err(TryLockError::WouldBlock) => yield_now(),
            }
        };
        let waiting = |resident: &Resident<B>| {
            let (comm, kernel) = (resident.launch.comm(), resident.launch.kernel.name);
            Some(WaitingBlock { comm, kernel, waiting: B::waiting(&resident.block)? })
        };
        run.blocks.iter().filter_map(waiting).collect()
    }

    fn drive(
        &self,
        blocks: &B,
        run: &mut Run<B>,
        rounds: u32,
        done: impl Fn() -> bool,
        elsewhere: impl Fn() -> bool,
    ) -> DriveOutcome<B> {
        let (mut quiet, mut any) = (0, false);
        for round in 1..=rounds {
            if self.fresh.load(Ordering::Relaxed)
                && let Some(outcome) = self.admit(blocks, run)
            {
                return outcome;
            }
            if run.blocks.is_empty() {
                return if any { DriveOutcome::Moved } else { DriveOutcome::Nothing };
            }
            if let Some(launched) = self.round(blocks, run) {
                return DriveOutcome::Finished(launched);
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
        if any { DriveOutcome::Moved } else { DriveOutcome::Stuck }
    }

    /// Resumes each block once, from where the last round stopped; stops early with the launch of
    /// which the last block has ended.
    fn round(&self, blocks: &B, run: &mut Run<B>) -> Option<Arc<Launched<B>>> {
        if run.resumed == 0 {
            run.moved = false;
        }
        while run.resumed < run.blocks.len() {
            if run.cursor >= run.blocks.len() {
                run.cursor = 0;
            }
            let resident = &mut run.blocks[run.cursor];
            let failure = match blocks.run(&mut resident.block) {
                turn @ (Turn::Moved | Turn::Stuck) => {
                    run.moved |= matches!(turn, Turn::Moved);
                    run.cursor += 1;
                    run.resumed += 1;
                    continue;
                }
                Turn::Ended => None,
                Turn::Failed(error) => Some(error),
            };
            run.moved = true;
            let Resident { block, launch } = run.blocks.swap_remove(run.cursor);
            blocks.end(block, &mut run.pool);
            if let Some(error) = failure {
                launch.fail(error);
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
    fn admit(&self, blocks: &B, run: &mut Run<B>) -> Option<DriveOutcome<B>> {
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
                    Some(DriveOutcome::Job(job))
                }
                Task::Block { launch, index } => {
                    let (kernel, work) = (launch.kernel, launch.work());
                    // SAFETY: the contract of `StreamOps::launch`; the resident's `launch` keeps the work
                    // until the block has ended.
                    match unsafe { blocks.start(kernel, work, &launch.ready, index, &mut run.pool) }
                    {
                        Ok(block) => {
                            run.blocks.push(Resident { block, launch });
                            None
                        }
                        Err(error) => {
                            launch.fail(error);
                            self.ended(launch).map(DriveOutcome::Finished)
                        }
                    }
                }
            };
            if over.is_some() {
                if !run.arrived.is_empty() {
                    // The rest is taken in by the next go.
                    self.fresh.store(true, Ordering::Relaxed);
                }
                return over;
            }
        }
        None
    }

    /// Counts off a block; the last one of a launch gives the launch.
    fn ended(&self, launch: Arc<Launched<B>>) -> Option<Arc<Launched<B>>> {
        if heavy(&launch) {
            self.heavy.fetch_sub(1, Ordering::Relaxed);
        }
        self.load.fetch_sub(1, Ordering::SeqCst);
        launch.is_last_block().then_some(launch)
    }
}

/// Whether a launch is worth another core.
#[inline]
pub(super) fn heavy<B: Blocks>(launch: &Launched<B>) -> bool {
    launch.bytes >= B::heavy_bytes(launch.sharing)
}

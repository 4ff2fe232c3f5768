//! Who drives which queue, and what a thread does that has nothing to run.
//!
//! ```text
//! large launch --> core 0's queue | core 1's | ...      block i -> core i % active
//!                     ^               ^
//!       synchronize --+               +-- worker        whoever has time takes a queue that nobody drives
//!                     v
//! small launch --> caller 0's queue | caller 1's | ...  the queue of the thread that launches
//! ```
//!
//! A thread that waits for a stream drives queues itself (*caller runs*): a small collective is launched,
//! run and finished on one thread, without a hand-over. Background [workers](super::workers) see to it
//! that work goes on when nobody waits, and that large calls use all cores.
//!
//! A launch that moves little has its blocks in the queue of its [`CallerId`]. So threads that have a rank each write to no
//! queue of another: with one queue for all, whose lines then went from core to core, 4 threads on 2 cores took twice as long for
//! 8 bytes (`benches/records/2026-11-27-callers-intel.md`). A thread runs blocks of other callers when its own have waited for a while, and
//! those of threads that sleep.
//!
//! A thread that finds nothing to do climbs down a [`Backoff`]. What blocks wait for may be written by another process, which cannot
//! wake anybody here, so a stuck driver sleeps only for short and growing times.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

use super::Blocks;
use super::backoff::Backoff;
use super::callers::{CALLERS, CallerId, Callers, SeenPasses};
use super::queue::{DriveOutcome, Launched, Queue, Task, heavy};
use super::stream::StreamState;
use super::workers::WorkerPool;
use crate::error::Result;
use crate::runtime::sync::lock;
use crate::runtime::{PROXY, WaitingBlock};

/// Rounds of one go of a thread that waits. It looks at its stream after each round anyway.
const STINT_ROUNDS: u32 = 256;
/// Passes without progress before a thread looks into the queues of other callers, whose lines their cores have. Each ends with a yield,
/// so that they get on by themselves if they are there. With 8 and with 100 passes calls of 4 and 16 threads took as long; with none, one-shot of 16
/// threads took 100 us instead of 33 (single runs, no record).
const PASSES_ALONE: u32 = 16;

/// The queues, the workers and the waiting threads of one runtime.
pub(super) struct Executor<B: Blocks> {
    pub(super) blocks: B,
    /// Those of the cores, then those of the callers.
    queues: Box<[Queue<B>]>,
    /// How many of the cores' queues, and of the workers, are in use: fewer when other processes share the host.
    active: AtomicUsize,
    /// The most processes that shared the host so far.
    processes: AtomicUsize,
    sleepers: Sleepers,
    callers: Callers,
    pub(super) pool: WorkerPool,
}

/// What one pass over the queues came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Something moved.
    Moved,
    /// There are blocks, and none moved.
    Stuck,
    /// There was nothing to run.
    Idle,
}

impl<B: Blocks> Executor<B> {
    pub(super) fn new(cores: usize, blocks: B) -> Self {
        let cores = cores.max(1);
        Executor {
            blocks,
            queues: (0..cores + CALLERS).map(|_| Queue::new()).collect(),
            active: AtomicUsize::new(cores),
            processes: AtomicUsize::new(1),
            sleepers: Sleepers::default(),
            callers: Callers::default(),
            pool: WorkerPool::new(cores),
        }
    }

    /// The queues of the cores.
    #[inline]
    fn cores(&self) -> &[Queue<B>] {
        &self.queues[..self.queues.len() - CALLERS]
    }

    /// The queues of the cores, and of the callers so far.
    #[inline]
    fn used(&self) -> &[Queue<B>] {
        &self.queues[..self.cores().len() + self.callers.count()]
    }

    /// The place of a caller's queue among all.
    #[inline]
    fn place_of(&self, caller: CallerId) -> usize {
        self.cores().len() + caller.index()
    }

    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Leaves the other cores to `processes - 1` other processes. Never takes back what it left.
    pub(super) fn share_host(&self, processes: usize) {
        let share = (self.cores().len() / processes.max(1)).max(1);
        self.active.fetch_min(share, Ordering::Relaxed);
        self.processes.fetch_max(processes, Ordering::Relaxed);
    }

    /// How many ranks share a core, if each has a process, or a thread of this one.
    pub(super) fn ranks_a_core(&self) -> usize {
        let ranks = self.callers.count().max(self.processes.load(Ordering::Relaxed));
        // Not those that this process may use: where each process is bound to a core, that is one for each.
        let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
        let cores = online.and_then(|cores| usize::try_from(cores).ok());
        ranks.div_ceil(cores.unwrap_or(1).max(1))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used().iter().all(Queue::is_empty)
    }

    /// Whether some queue has work that nobody runs.
    pub(super) fn wants_driver(&self) -> bool {
        self.used().iter().any(Queue::wants_driver)
    }

    /// Whether some queue has work that nobody runs and that is worth another core.
    pub(super) fn wants_core(&self) -> bool {
        self.cores().iter().any(Queue::wants_core)
    }

    /// Whether threads that wait for streams do all that there is to do, and it is not worth another core. A worker beside them would
    /// only take theirs: with 16 processes on 2 cores, a thread and a worker each, a call of 8 bytes took 27 switches instead of 18.
    ///
    /// `seen` is what this has stored there before. A caller without a pass since then does not count.
    pub(super) fn is_attended(&self, seen: &mut SeenPasses) -> bool {
        self.attended(|caller| self.callers.goes_on(caller, seen))
    }

    /// Whether threads that wait attend to the queues, if they go on.
    pub(super) fn may_be_attended(&self) -> bool {
        self.attended(|caller| self.callers.attends(caller))
    }

    /// Whether some caller attends, and no other has work that nobody runs: who waits looks into the queues of others last. `attends` is
    /// asked of each.
    fn attended(&self, mut attends: impl FnMut(CallerId) -> bool) -> bool {
        let (mut some, mut all) = (false, true);
        for caller in self.callers.used() {
            let attends = attends(caller);
            some |= attends;
            all &= attends || !self.queues[self.place_of(caller)].wants_driver();
        }
        some && all && !self.wants_core()
    }

    /// The blocks that wait, of those queues that can be looked into until then.
    pub(super) fn waiting_blocks(&self, deadline: Instant) -> Vec<WaitingBlock> {
        self.used().iter().flat_map(|queue| queue.waiting_blocks(deadline)).collect()
    }

    /// Makes sure that what is pushed next will run, whatever its launcher does afterwards.
    ///
    /// # Errors
    /// When there is no worker and none can be started.
    pub(super) fn prepare(self: &Arc<Self>, heavy: bool) -> Result<()> {
        self.pool.start(self, if heavy { self.active() } else { 1 })
    }

    /// Starts the blocks of a launch of a caller; there is at least one.
    pub(super) fn spawn(&self, launch: Arc<Launched<B>>, caller: CallerId) {
        let (heavy, blocks) = (heavy(&launch), launch.blocks);
        let active = self.active();
        let home = if heavy { B::home(&launch.ready) } else { self.place_of(caller) };
        let queue = |index: u32| match heavy {
            true => &self.queues[(home + index as usize) % active],
            false => &self.queues[home],
        };
        if !heavy {
            self.callers.mark_used(caller);
        }
        for index in 0..blocks - 1 {
            queue(index).push(Task::Block { launch: Arc::clone(&launch), index });
        }
        queue(blocks - 1).push(Task::Block { launch, index: blocks - 1 });
        self.pool.notify(if heavy { active.min(blocks as usize) } else { 0 });
    }

    /// Has a task that is not a block run by whoever comes first.
    pub(super) fn push_job(&self, task: Task<B>) {
        self.queues[0].push(task);
        self.pool.notify(0);
    }

    /// One go on each queue that nobody drives, from `home` on; `home` becomes the last one that moved,
    /// so that a thread stays with its queue. It ends early when the thread is `done`.
    #[inline]
    pub(super) fn pass(&self, home: &mut usize, rounds: u32, done: impl Fn() -> bool) -> Pass {
        self.pass_over(self.used(), home, rounds, done)
    }

    /// A look of a caller that does not wait.
    pub(super) fn poll(&self) -> Pass {
        self.pass(&mut self.place_of(CallerId::current()), 1, || true)
    }

    #[inline]
    fn pass_over(
        &self,
        queues: &[Queue<B>],
        home: &mut usize,
        rounds: u32,
        done: impl Fn() -> bool,
    ) -> Pass {
        let mut pass = Pass::Idle;
        for i in 0..queues.len() {
            let at = (*home + i) % queues.len();
            let elsewhere =
                || queues.iter().enumerate().any(|(i, queue)| i != at && queue.wants_driver());
            match self.go(&queues[at], rounds, &done, elsewhere) {
                (Pass::Idle, _) => {}
                (Pass::Stuck, _) => pass = if pass == Pass::Idle { Pass::Stuck } else { pass },
                (Pass::Moved, ended) => {
                    (pass, *home) = (Pass::Moved, at);
                    if ended {
                        return pass;
                    }
                }
            }
        }
        pass
    }

    /// One go on a queue, and whether something ended with it: the thread's own work may have.
    #[inline]
    fn go(
        &self,
        queue: &Queue<B>,
        rounds: u32,
        done: impl Fn() -> bool,
        elsewhere: impl Fn() -> bool,
    ) -> (Pass, bool) {
        match queue.drive_some(&self.blocks, rounds, done, elsewhere) {
            DriveOutcome::Nothing => (Pass::Idle, false),
            DriveOutcome::Stuck => (Pass::Stuck, false),
            DriveOutcome::Moved => (Pass::Moved, false),
            DriveOutcome::Finished(launched) => {
                launched.finish();
                (Pass::Moved, true)
            }
            DriveOutcome::Job(job) => {
                job.run();
                (Pass::Moved, true)
            }
        }
    }

    /// A pass of a caller that waits: over its own queue first, then over those of the cores. `alone` counts its passes without progress.
    #[inline]
    fn pass_of(
        &self,
        caller: CallerId,
        alone: &mut u32,
        home: &mut usize,
        done: impl Fn() -> bool,
    ) -> Pass {
        let own = &self.queues[self.place_of(caller)];
        let elsewhere = || self.cores().iter().any(Queue::wants_driver);
        let own = self.go(own, STINT_ROUNDS, &done, elsewhere).0;
        if own == Pass::Moved {
            *alone = 0;
            return own;
        }
        *alone = alone.saturating_add(1);
        // What a thread that has nothing of its own waits for is in the queue of another, or of a core.
        let all = own == Pass::Idle || *alone > PASSES_ALONE || self.sleepers.any();
        let queues = if all { self.used() } else { self.cores() };
        match self.pass_over(queues, home, STINT_ROUNDS, done) {
            Pass::Idle => own,
            Pass::Stuck => Pass::Stuck,
            Pass::Moved => {
                *alone = 0;
                Pass::Moved
            }
        }
    }

    /// Runs blocks until `done`, which comes about as `stream` goes on, or until `end`.
    pub(super) fn wait(
        &self,
        stream: &StreamState<B>,
        done: impl Fn() -> bool,
        end: Option<Instant>,
    ) {
        let caller = CallerId::current();
        self.callers.mark_used(caller);
        let (mut alone, mut home, mut backoff) = (0, 0, Backoff::default());
        // Only a thread that has to wait: what it can do at once it does, whoever else is there.
        let mut attends = None;
        while !done() && end.is_none_or(|end| Instant::now() < end) {
            self.callers.count_pass(caller);
            let nap = match self.pass_of(caller, &mut alone, &mut home, &done) {
                Pass::Moved => {
                    backoff.reset();
                    continue;
                }
                // What the blocks wait for may be the proxy's to bring.
                Pass::Stuck | Pass::Idle if PROXY.help() => {
                    backoff.reset();
                    continue;
                }
                Pass::Stuck => {
                    attends.get_or_insert_with(|| self.callers.attend(caller));
                    backoff.stuck(|| self.ranks_a_core())
                }
                Pass::Idle => {
                    attends.get_or_insert_with(|| self.callers.attend(caller));
                    backoff.idle(|| self.ranks_a_core())
                }
            };
            if let Some(nap) = nap {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                attends = None;
                self.sleepers.sleep(stream, &done, left.map_or(nap, |left| left.min(nap)));
            }
        }
        drop(attends);
        if self.sleepers.any() {
            self.go_on_for_sleepers();
            return self.hand_over();
        }
        // Callers that do not sleep look into their queues themselves.
        if self.queues[self.place_of(caller)].wants_driver()
            || self.cores().iter().any(Queue::wants_driver)
        {
            self.relay();
        }
    }

    /// Runs the blocks of threads that sleep, for which this one was the one to come late: they would see it at the end of their naps.
    /// What is in the queues of cores is for workers.
    #[cold]
    fn go_on_for_sleepers(&self) {
        let (queues, mut home) = (&self.used()[self.cores().len()..], 0);
        for _ in queues {
            if self.pass_over(queues, &mut home, 1, || false) != Pass::Moved {
                break;
            }
        }
    }

    /// Called by a thread that stops driving: sees to it that somebody else goes on.
    pub(super) fn hand_over(&self) {
        if self.wants_driver() {
            self.relay();
        }
    }

    /// Has another thread go on.
    fn relay(&self) {
        if !self.sleepers.wake_any() {
            self.pool.notify(if self.wants_core() { self.active() } else { 0 });
        }
    }

    /// Tells the threads that wait for `stream` that something of it is done.
    #[inline]
    pub(super) fn stream_moved(&self, stream: &StreamState<B>) {
        // Between the counter that the caller has advanced and the look at the sleepers; pairs with the
        // fence in `Sleepers::sleep`.
        fence(Ordering::SeqCst);
        self.sleepers.wake_for(stream);
    }
}

/// Threads in `synchronize` that sleep because others do the work.
#[derive(Default)]
struct Sleepers {
    count: AtomicUsize,
    list: Mutex<Vec<Sleeper>>,
}

struct Sleeper {
    thread: Thread,
    /// Which stream: its address.
    stream: usize,
}

impl Sleepers {
    /// Sleeps for at most `nap`, or until woken. Nobody relies on being woken: it only comes sooner.
    fn sleep<B: Blocks>(&self, stream: &StreamState<B>, done: impl Fn() -> bool, nap: Duration) {
        let me = thread::current();
        let id = me.id();
        let mut list = lock(&self.list);
        list.push(Sleeper { thread: me, stream: (&raw const *stream).addr() });
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        // Pairs with the fence in `Executor::stream_moved`: either that sees the count, or this what is done.
        fence(Ordering::SeqCst);
        if !done() {
            thread::park_timeout(nap);
        }
        let mut list = lock(&self.list);
        list.retain(|sleeper| sleeper.thread.id() != id);
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// Whether some thread sleeps: a hint.
    #[inline]
    fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    #[inline]
    fn wake_for<B: Blocks>(&self, stream: &StreamState<B>) {
        if self.any() {
            let list = lock(&self.list);
            let stream = (&raw const *stream).addr();
            list.iter().filter(|s| s.stream == stream).for_each(|s| s.thread.unpark());
        }
    }

    /// Wakes the thread that sleeps longest; `false` when none does.
    fn wake_any(&self) -> bool {
        if !self.any() {
            return false;
        }
        lock(&self.list).first().map(|sleeper| sleeper.thread.unpark()).is_some()
    }
}

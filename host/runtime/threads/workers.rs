//! Background threads: work goes on when nobody synchronizes, and large calls use all cores.
//!
//! A worker is in one of three states. *Awake* it drives queues or looks for one. It *naps* with a
//! timeout after it has had nothing to do for a moment: small launches do not wake it, so they pay no
//! system call, and what nobody has picked up by the end of its nap it picks up. When no launch came
//! for a while it sleeps *deeply*, until woken. As long as one worker is awake or naps, somebody watches
//! and the others may sleep on.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::Blocks;
use super::backoff::Backoff;
use super::callers::SeenPasses;
use super::executor::{Executor, Pass};
use crate::error::{Error, Result};
use crate::runtime::PROXY;
use crate::runtime::sync::lock;

const AWAKE: u8 = 0;
const NAPS: u8 = 1;
const SLEEPS: u8 = 2;

/// Rounds of one go of a worker. Long: it has nothing else to look at.
const STINT_ROUNDS: u32 = 4096;
/// For how long a worker that has run a heavy block stays awake for the next one: waking it again would
/// take as long.
const LINGER: Duration = Duration::from_micros(50);
/// The first and the longest nap.
const NAP: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));
/// The nap while threads that wait do the work.
const ATTENDED_NAP: Duration = Duration::from_millis(2);
/// After this long without a launch a worker sleeps deeply.
const DROWSY: Duration = Duration::from_millis(100);

/// The workers of an executor.
pub(super) struct WorkerPool {
    workers: Box<[Worker]>,
    /// How many threads were started.
    started: AtomicUsize,
    starting: Mutex<()>,
    /// Workers that are awake or nap.
    watching: AtomicUsize,
    /// Launches so far: whether there is life.
    launches: AtomicU64,
    closed: AtomicBool,
}

#[derive(Default)]
struct Worker {
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

impl WorkerPool {
    pub(super) fn new(size: usize) -> Self {
        WorkerPool {
            workers: (0..size).map(|_| Worker::default()).collect(),
            started: AtomicUsize::new(0),
            starting: Mutex::new(()),
            watching: AtomicUsize::new(0),
            launches: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Starts threads until there are `count`.
    ///
    /// # Errors
    /// When there is none at all, and none can be started. With some, all works, only slower.
    #[inline]
    pub(super) fn start<B: Blocks>(&self, executor: &Arc<Executor<B>>, count: usize) -> Result<()> {
        // Acquire pairs with the release in `start_slow`: who sees the count sees the threads' handles.
        if self.started.load(Ordering::Acquire) >= count {
            return Ok(());
        }
        self.start_slow(executor, count)
    }

    #[cold]
    fn start_slow<B: Blocks>(&self, executor: &Arc<Executor<B>>, count: usize) -> Result<()> {
        let _guard = lock(&self.starting);
        for id in self.started.load(Ordering::Relaxed)..count.min(self.workers.len()) {
            let shared = Arc::clone(executor);
            self.watching.fetch_add(1, Ordering::SeqCst);
            let thread = thread::Builder::new()
                .name(format!("ferroccl-{id}"))
                .spawn(move || shared.pool.work(&shared, id));
            match thread {
                Ok(handle) => {
                    let _ = self.workers[id].thread.set(handle.thread().clone());
                    self.started.store(id + 1, Ordering::Release);
                }
                Err(e) => {
                    self.watching.fetch_sub(1, Ordering::SeqCst);
                    return if id == 0 {
                        Err(Error::system("starting a worker thread", e))
                    } else {
                        Ok(())
                    };
                }
            }
        }
        Ok(())
    }

    /// There is new work, or work without a driver: makes sure that `cores` workers are awake, and that
    /// at least one watches.
    #[inline]
    pub(super) fn notify(&self, cores: usize) {
        // Whether it changes is what counts: of two launches at the same time one may be lost.
        self.launches
            .store(self.launches.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // SeqCst pairs with `doze`: the work was pushed before this load.
        if cores > 0 || self.watching.load(Ordering::SeqCst) == 0 {
            self.wake(cores.max(1));
        }
    }

    #[cold]
    fn wake(&self, mut cores: usize) {
        for worker in &self.workers[..self.started.load(Ordering::Acquire)] {
            if cores == 0 {
                break;
            }
            if worker.state.load(Ordering::SeqCst) != AWAKE {
                self.rouse(worker);
            }
            cores -= 1;
        }
    }

    /// Ends a worker's nap or sleep.
    fn rouse(&self, worker: &Worker) {
        if self.mark_awake(worker)
            && let Some(thread) = worker.thread.get()
        {
            thread.unpark();
        }
    }

    /// Whether it was not awake before.
    fn mark_awake(&self, worker: &Worker) -> bool {
        let before = worker.state.swap(AWAKE, Ordering::SeqCst);
        if before == SLEEPS {
            self.watching.fetch_add(1, Ordering::SeqCst);
        }
        before != AWAKE
    }

    /// Nobody can launch any more: the workers end when all work has.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for worker in &self.workers[..self.started.load(Ordering::Acquire)] {
            self.rouse(worker);
        }
    }

    fn work<B: Blocks>(&self, executor: &Arc<Executor<B>>, id: usize) {
        let me = &self.workers[id];
        let (mut home, mut backoff) = (id, Backoff::default());
        let (mut nap, mut launches, mut life) = (NAP.0, 0, Instant::now());
        let (mut warm, mut passes) = (false, SeenPasses::default());
        loop {
            if executor.is_attended(&mut passes) && !self.closed.load(Ordering::SeqCst) {
                // Whoever attends may leave work behind: it is picked up at the end of the nap.
                self.doze(me, NAPS, Some(ATTENDED_NAP), || !executor.may_be_attended());
                (warm, life) = (false, Instant::now());
                continue;
            }
            match executor.pass(&mut home, STINT_ROUNDS, || false) {
                Pass::Moved => {
                    backoff.reset();
                    (nap, warm) = (NAP.0, true);
                    continue;
                }
                Pass::Stuck if PROXY.help() => {
                    backoff.reset();
                    continue;
                }
                Pass::Stuck => {
                    if let Some(time) = backoff.stuck(|| executor.ranks_a_core()) {
                        self.doze(me, NAPS, Some(time), || false);
                    }
                    continue;
                }
                // A queue that another thread drives just now may be as stuck as before.
                Pass::Idle if executor.is_empty() => backoff.reset(),
                Pass::Idle => {}
            }
            let closed = self.closed.load(Ordering::SeqCst);
            if closed && executor.is_empty() {
                return;
            }
            if std::mem::take(&mut warm) && linger(executor) {
                continue;
            }
            let (seen, now) = (self.launches.load(Ordering::Relaxed), Instant::now());
            if seen != launches || closed {
                (launches, life) = (seen, now);
            }
            if now.duration_since(life) < DROWSY {
                self.doze(me, NAPS, Some(nap), || executor.wants_core());
                nap = (nap * 2).min(NAP.1);
            } else {
                let closed = || self.closed.load(Ordering::SeqCst);
                self.doze(me, SLEEPS, None, || executor.wants_driver() || closed());
                (life, nap) = (Instant::now(), NAP.0);
            }
        }
    }

    /// Sleeps until roused or `time` is over, unless there is `work` by now.
    fn doze(&self, me: &Worker, state: u8, time: Option<Duration>, work: impl Fn() -> bool) {
        me.state.store(state, Ordering::SeqCst);
        if state == SLEEPS {
            self.watching.fetch_sub(1, Ordering::SeqCst);
        }
        // Pairs with `Queue::push` and the load in `notify`: either the push is seen here, or the state
        // there.
        fence(Ordering::SeqCst);
        if !work() {
            match time {
                Some(time) => thread::park_timeout(time),
                None => {
                    while me.state.load(Ordering::SeqCst) == state {
                        thread::park();
                    }
                }
            }
        }
        self.mark_awake(me);
    }
}

/// Waits a moment for heavy work; `true` when there is some.
fn linger<B: Blocks>(executor: &Executor<B>) -> bool {
    let start = Instant::now();
    while start.elapsed() < LINGER {
        if executor.wants_core() {
            return true;
        }
        thread::yield_now();
    }
    false
}

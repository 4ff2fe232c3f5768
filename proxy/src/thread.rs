//! The progress loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use std::{io, thread};

use tracing::error;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::sync::{lock, wait, wait_timeout};

/// Work that is done in steps, none of which waits (NCCL's `ncclProxyArgs`).
///
/// It is dropped when it is done, when it panics, and when the proxy ends before it is done. Its `Drop` must tell whoever
/// waits for it.
pub trait Operation: Send {
    /// Does what can be done at once.
    fn progress(&mut self) -> Progress;
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing could be done.
    Idle,
    /// Something was done, and more is to do.
    Moved,
    /// All is done.
    Done,
}

/// Makes one step of each operation, and drops those that are done or panic; whether anything moved.
pub fn round(operations: &mut Vec<Box<dyn Operation>>) -> bool {
    let mut moved = false;
    operations.retain_mut(|operation| {
        let step = AssertUnwindSafe(|| operation.progress());
        let progress = catch_unwind(step).unwrap_or_else(|_| {
            error!("an operation of the proxy panicked");
            Progress::Done
        });
        moved |= progress != Progress::Idle;
        progress != Progress::Done
    });
    moved
}

/// A thread that makes steps of operations, round-robin. It starts with the first operation and sleeps while there is none.
///
/// A thread that waits for an operation can [help](Proxy::help): a round on the waiting thread comes sooner than one on a
/// thread that has to be woken or scheduled first. While another thread helps, the proxy's thread makes a round only now and
/// then, and looks for new operations by itself as often: who helps does not wake it for each.
///
/// ```
/// use std::sync::mpsc;
///
/// use ferroccl_proxy::{Operation, Progress, Proxy};
///
/// struct Countdown(u32, mpsc::Sender<&'static str>);
/// impl Operation for Countdown {
///     fn progress(&mut self) -> Progress {
///         self.0 -= 1;
///         if self.0 > 0 {
///             return Progress::Moved;
///         }
///         let _ = self.1.send("done");
///         Progress::Done
///     }
/// }
///
/// let (done, was_done) = mpsc::channel();
/// let proxy = Proxy::new("example");
/// proxy.append(Box::new(Countdown(3, done)))?;
/// assert_eq!(was_done.recv(), Ok("done"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Something is in the queue, or it is closed.
    changed: Condvar,
    /// Its holder makes a round.
    operations: Mutex<Vec<Box<dyn Operation>>>,
    /// Operations, new ones too: whether there is anything to help with.
    count: AtomicUsize,
    /// Rounds of helpers.
    helped: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("count", &self.count).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Queue {
    new: Vec<Box<dyn Operation>>,
    /// Whether there is a thread.
    started: bool,
    /// The thread, when it runs.
    running: Option<Thread>,
    /// Whether the thread looks for new operations by itself soon, so that it need not be woken for one.
    dozes: bool,
    closed: bool,
    /// The cores that the thread is to run on; `None` for those that it had in the beginning.
    cores: Option<CpuSet>,
}

#[derive(Clone, Copy)]
struct Thread {
    id: Pid,
    /// The cores that it had in the beginning.
    cores: CpuSet,
}

/// For how long nothing moves before the thread sleeps between rounds: some steps over a network. It yields meanwhile.
const AWAKE: Duration = Duration::from_micros(300);
/// How long it sleeps then.
const PAUSE: Duration = Duration::from_micros(20);
/// After so long a time of nothing it sleeps longer: a waiting operation should cost no core.
const LONG_IDLE: Duration = Duration::from_millis(20);
/// How long then, and while others make its rounds.
const LONG_PAUSE: Duration = Duration::from_millis(1);

impl Queue {
    /// Has the thread run where it is to, if there is one.
    fn place(&self) -> io::Result<()> {
        let Some(Thread { id, cores }) = self.running else { return Ok(()) };
        Ok(sched_setaffinity(id, &self.cores.unwrap_or(cores))?)
    }
}

impl Proxy {
    /// A proxy without operations, whose thread will have this name.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Proxy { name, shared: Arc::default() }
    }

    /// Adds an operation.
    ///
    /// # Errors
    /// When there is no thread and none can be started; the operation is dropped then.
    pub fn append(&self, operation: Box<dyn Operation>) -> io::Result<()> {
        let mut queue = self.shared.lock();
        if !queue.started {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.run())?;
            queue.started = true;
        }
        queue.new.push(operation);
        self.shared.count.fetch_add(1, Ordering::Relaxed);
        let dozes = queue.dozes;
        drop(queue);
        if !dozes {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// Has the thread run on these cores, now or when it starts; `None` is those that it had in the beginning. Cores from 1024 on
    /// are not counted.
    ///
    /// # Errors
    /// What the system says, such as that there are no such cores.
    ///
    /// ```
    /// let proxy = ferroccl_proxy::Proxy::new("example");
    /// proxy.run_on(Some(&mut [0].into_iter()))?;
    /// proxy.run_on(None)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn run_on(&self, cores: Option<&mut dyn Iterator<Item = usize>>) -> io::Result<()> {
        let set = |cores: &mut dyn Iterator<Item = usize>| {
            let mut set = CpuSet::new();
            cores.for_each(|core| set.set(core).unwrap_or_default());
            set
        };
        let mut queue = self.shared.lock();
        queue.cores = cores.map(set);
        queue.place()
    }

    /// Makes a round on the calling thread, unless another thread is making one; whether anything moved. Returns quickly when
    /// there are no operations. An operation must not call it.
    pub fn help(&self) -> bool {
        // Only a hint: the thread is there for what is missed.
        if self.shared.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let Some(mut operations) = self.shared.operations() else { return false };
        self.shared.helped.fetch_add(1, Ordering::Relaxed);
        self.shared.round(&mut operations)
    }
}

impl Drop for Proxy {
    /// The thread ends, and drops what is not done.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// The operations, unless somebody makes a round. To wait for them would have each helper wake the waiting thread after each of its
    /// rounds, and begin the next before that thread is there.
    fn operations(&self) -> Option<MutexGuard<'_, Vec<Box<dyn Operation>>>> {
        match self.operations.try_lock() {
            Ok(operations) => Some(operations),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until there is something to do, or so long at most. Whoever has `queue` has seen that there is nothing.
    fn doze(&self, mut queue: MutexGuard<'_, Queue>, time: Duration) {
        queue.dozes = true;
        wait_timeout(&self.changed, queue, time).dozes = false;
    }

    /// Takes in what is new, and moves all on; whether anything moved.
    fn round(&self, operations: &mut Vec<Box<dyn Operation>>) -> bool {
        operations.append(&mut self.lock().new);
        let before = operations.len();
        let moved = round(operations);
        self.count.fetch_sub(before - operations.len(), Ordering::Relaxed);
        moved
    }

    /// Whether others have made rounds since `helped` was noted, which it is again.
    fn is_helped(&self, helped: &mut u64) -> bool {
        let helps = self.helped.load(Ordering::Relaxed);
        std::mem::replace(helped, helps) != helps
    }

    fn run(&self) {
        be_woken_in_time();
        if let Ok(cores) = sched_getaffinity(Pid::from_raw(0)) {
            let mut queue = self.lock();
            queue.running = Some(Thread { id: nix::unistd::gettid(), cores });
            if let Err(error) = queue.place() {
                tracing::warn!(target: "ferroccl::proxy", "the proxy thread stays where it is: {error}");
            }
        }
        let mut idle_since = None;
        let mut helped = 0;
        loop {
            let Some(mut operations) = self.operations() else {
                idle_since = None;
                self.doze(self.lock(), LONG_PAUSE);
                continue;
            };
            let mut queue = self.lock();
            if queue.closed {
                let left = std::mem::take(&mut queue.new);
                drop(queue); // an operation's drop may use this proxy
                let all = std::mem::take(&mut *operations);
                drop((operations, all, left));
                return;
            }
            if operations.is_empty() && queue.new.is_empty() {
                drop(operations); // a helper may have it meanwhile, and leave nothing or something
                idle_since = None;
                if self.is_helped(&mut helped) {
                    self.doze(queue, LONG_PAUSE);
                } else {
                    drop(wait(&self.changed, queue));
                }
                continue;
            }
            drop(queue);
            let moved = self.round(&mut operations);
            drop(operations);

            if moved {
                idle_since = None;
                continue;
            }
            let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
            let is_helped = self.is_helped(&mut helped);
            if idle < AWAKE && !is_helped {
                thread::yield_now();
                continue;
            }
            let queue = self.lock();
            if !queue.new.is_empty() || queue.closed {
                continue;
            }
            if is_helped {
                self.doze(queue, LONG_PAUSE);
            } else {
                // Woken by a new operation; whether it was that or the time does not matter.
                let pause = if idle < LONG_IDLE { PAUSE } else { LONG_PAUSE };
                drop(wait_timeout(&self.changed, queue, pause));
            }
        }
    }
}

/// Has the calling thread's sleeps end when they should: the system adds 50 us to each otherwise.
fn be_woken_in_time() {
    const SLACK_NS: libc::c_ulong = 1;
    // SAFETY: changes a number of the calling thread's (prctl(2)). Without it, pauses are longer.
    let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Told<F>(F, mpsc::Sender<&'static str>);

    impl<F: FnMut() -> Progress + Send> Operation for Told<F> {
        fn progress(&mut self) -> Progress {
            (self.0)()
        }
    }

    impl<F> Drop for Told<F> {
        fn drop(&mut self) {
            let _ = self.1.send("dropped");
        }
    }

    #[test]
    fn one_that_waits_holds_nobody_up() {
        let (tell, told) = mpsc::channel();
        let proxy = Proxy::new("test");
        let (open, gate) = mpsc::channel();
        let waits = move || if gate.try_recv().is_ok() { Progress::Done } else { Progress::Idle };
        proxy.append(Box::new(Told(waits, tell.clone()))).unwrap();
        proxy.append(Box::new(Told(|| Progress::Done, tell.clone()))).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "the first is not done");
        open.send(()).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
        // It sleeps, and goes on.
        proxy.append(Box::new(Told(|| Progress::Done, tell))).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
    }

    #[test]
    fn a_panic_and_an_end_drop_what_is_left() {
        let (tell, told) = mpsc::channel();
        let proxy = Proxy::new("test");
        proxy.append(Box::new(Told(|| panic!("on purpose"), tell.clone()))).unwrap();
        assert_eq!(told.recv(), Ok("dropped"));
        proxy.append(Box::new(Told(|| Progress::Idle, tell))).unwrap();
        drop(proxy);
        assert_eq!(told.recv(), Ok("dropped"));
    }

    /// How often the thread of this process that has that name has waited; `None` until there is one.
    fn waits(name: &str) -> Option<u64> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let of = |file| move |task: &std::path::PathBuf| std::fs::read_to_string(task.join(file));
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let is_named = |task: &_| of("comm")(task).is_ok_and(|is| is.trim_end() == name);
        let status = of("status")(&tasks.find(is_named)?).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count?.trim().parse().ok()
    }

    #[test]
    fn who_helps_does_not_wake_the_thread_for_each_round() {
        const ROUNDS: u64 = 2000;
        let proxy = Proxy::new("is-helped");
        let (tell, told) = mpsc::channel();
        let (me, rounds) = (thread::current().id(), Arc::new(AtomicU64::new(0)));
        let of_me = Arc::clone(&rounds);
        let round = move || {
            let since = Instant::now();
            // The thread may come for its turn meanwhile.
            while since.elapsed() < Duration::from_micros(100) {}
            let mine = u64::from(thread::current().id() == me);
            of_me.fetch_add(mine, Ordering::Relaxed);
            if of_me.load(Ordering::Relaxed) < ROUNDS { Progress::Idle } else { Progress::Done }
        };
        proxy.append(Box::new(Told(round, tell))).unwrap();
        let before = loop {
            proxy.help();
            if let Some(waits) = waits("is-helped") {
                break waits;
            }
        };
        let since = Instant::now();
        while rounds.load(Ordering::Relaxed) < ROUNDS {
            proxy.help();
        }
        let looks = since.elapsed().as_micros() / LONG_PAUSE.as_micros();
        let waits = waits("is-helped").unwrap() - before;
        assert_eq!(told.recv(), Ok("dropped"));
        // It looks each millisecond, however long a round takes here.
        assert!(u128::from(waits) <= looks + 100, "{waits} waits in {ROUNDS} rounds, {looks} ms");
    }

    /// Says the cores of the thread that runs it.
    struct Where(mpsc::Sender<CpuSet>);

    impl Operation for Where {
        fn progress(&mut self) -> Progress {
            self.0.send(sched_getaffinity(Pid::from_raw(0)).unwrap()).unwrap();
            Progress::Done
        }
    }

    #[test]
    fn the_thread_runs_on_the_cores_that_it_is_given() {
        let proxy = Proxy::new("test");
        let (say, said) = mpsc::channel();
        let cores = || {
            proxy.append(Box::new(Where(say.clone()))).unwrap();
            said.recv_timeout(Duration::from_secs(60)).unwrap()
        };
        let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let last = (0..CpuSet::count()).rfind(|core| own.is_set(*core).unwrap()).unwrap();
        let mut only = CpuSet::new();
        only.set(last).unwrap();
        // Before there is a thread, and after.
        proxy.run_on(Some(&mut [last].into_iter())).unwrap();
        assert_eq!(cores(), only);
        proxy.run_on(None).unwrap();
        assert_eq!(cores(), own);
        proxy.run_on(Some(&mut [last, 5000].into_iter())).unwrap();
        assert_eq!(cores(), only);
        // No core at all is an error, and changes nothing.
        proxy.run_on(Some(&mut std::iter::empty())).unwrap_err();
        assert_eq!(cores(), only);
    }
}

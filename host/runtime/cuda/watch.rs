//! What has ended: who notices, and what is then done.
//!
//! A stream of the driver calls nobody back without stopping for it. So behind each launch it writes a number to a word of pinned
//! memory (`cuStreamWriteValue64`), and whoever wants to know reads the word: the driver is not asked. Where streams write no
//! words there is an event behind each launch. What is to happen at its end ([`Pending`]) waits in a list of the stream, in order, and is done by whoever comes first: the thread
//! that waits for the stream, or else the watch, a thread of the process that looks at all streams while something is
//! under way and sleeps otherwise. A word says nothing of a context that is lost. So each stream has one event, at its first launch,
//! about which the driver is asked now and then: what it says of the context ends all that is pending, with that error.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::driver::{NOT_READY, RawEvent};
use super::gpu::Gpu;
use super::word::Word;
use crate::error::{Error, Result};
use crate::runtime::Done;
use crate::runtime::op::{panic_message, panicked};
use crate::runtime::sync::lock;

/// How long the watch sleeps between two looks. Nothing waits for it but the end of what is kept alive, and other hosts.
const PAUSE: Duration = Duration::from_micros(100);
/// How often the driver is asked whether a context is well in which something is under way. Not measured.
const ASKING: Duration = Duration::from_millis(10);
/// `CUDA_ERROR_DEINITIALIZED`: the process is about to end.
const DEINITIALIZED: i32 = 4;

/// What is to happen when an event has.
pub(super) struct Pending {
    pub(super) end: End,
    /// What ends, for a panic.
    pub(super) what: &'static str,
    /// Is given what the driver says, if that is an error; what it returns becomes the stream's error.
    pub(super) then: Done,
}

/// By what it is noticed that a stream has come to a place.
pub(super) enum End {
    Event(Recorded),
    /// The stream's word is this number, or a later one.
    Number(u64),
}

/// What has been put behind launches.
#[derive(Default)]
pub(super) struct Ends {
    /// The last number.
    pub(super) last: u64,
    /// An event of the stream by which errors of the context are noticed.
    pub(super) sentinel: Option<Arc<Recorded>>,
}

/// An event in a stream, which is given back when this is dropped.
pub(super) struct Recorded {
    pub(super) gpu: Arc<Gpu>,
    pub(super) raw: RawEvent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Recorded {}
// SAFETY: as above.
unsafe impl Sync for Recorded {}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.gpu.return_event(self.raw);
    }
}

impl Recorded {
    /// Whether it has happened; an error is that of the context.
    fn look(&self) -> Option<Result<()>> {
        let gpu = &self.gpu;
        // SAFETY: the event is ours, and recorded.
        let result = gpu.run(|| match unsafe { gpu.driver.event_query(self.raw) } {
            Err(e) if e.code() == NOT_READY => Ok(false),
            other => other.map(|()| true).map_err(|e| gpu.error(&e)),
        });
        match result {
            Ok(false) => None,
            other => Some(other.map(drop)),
        }
    }
}

/// What a stream has pending, and its error.
pub(super) struct Progress {
    pending: Mutex<VecDeque<Pending>>,
    error: Mutex<Option<Error>>,
    /// Where the stream writes its numbers, if it does.
    word: Option<Word>,
    ends: Mutex<Ends>,
    /// When the driver was last asked whether the context is well.
    asked: Mutex<Option<Instant>>,
}

/// One thread at a time does what is to happen at ends, so that it is in order; what it does may look at other streams.
static REAPING: Mutex<()> = Mutex::new(());
thread_local! {
    static REAPS: Cell<bool> = const { Cell::new(false) };
}

impl Progress {
    /// Of a new stream.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let word = if gpu.writes_words { Some(Word::new(gpu)?) } else { None };
        let (pending, error) = (Mutex::default(), Mutex::default());
        Ok(Progress { pending, error, word, ends: Mutex::default(), asked: Mutex::default() })
    }

    /// The address of the word that the stream writes its numbers to.
    pub(super) fn word(&self) -> Option<u64> {
        self.word.as_ref().map(Word::address)
    }

    /// What has been put behind launches; what comes next is put behind them while this is locked.
    pub(super) fn ends(&self) -> MutexGuard<'_, Ends> {
        lock(&self.ends)
    }

    /// Has the driver asked about errors at the next look.
    pub(super) fn look_for_errors(&self) {
        *lock(&self.asked) = None;
    }

    /// Whether the stream has come to a place; an error is that of the context.
    fn look(&self, end: &End) -> Option<Result<()>> {
        match (end, &self.word) {
            (End::Event(event), _) => event.look(),
            // Acquire: pairs with the stream's write, and so with all that came before it in the stream.
            (End::Number(number), Some(word)) if word.get().load(Ordering::Acquire) >= *number => {
                Some(Ok(()))
            }
            (End::Number(_), _) => self.lost().map(Err),
        }
    }

    /// The error of the context, if the driver says so. It is asked now and then.
    fn lost(&self) -> Option<Error> {
        let mut asked = lock(&self.asked);
        if asked.is_some_and(|asked| asked.elapsed() < ASKING) {
            return None;
        }
        // Not while something is put in: that may wait for room in the driver's queue.
        let sentinel = self.ends.try_lock().ok()?.sentinel.clone()?;
        match sentinel.look() {
            Some(Err(error)) => Some(error),
            _ => {
                *asked = Some(Instant::now());
                None
            }
        }
    }

    /// Notes an error; the first one stays until it is taken.
    pub(super) fn fail(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
    }

    pub(super) fn take_error(&self) -> Result<()> {
        lock(&self.error).take().map_or(Ok(()), Err)
    }

    /// Adds what is to happen behind all that is there.
    pub(super) fn push(self: &Arc<Self>, pending: Pending) {
        lock(&self.pending).push_back(pending);
        WATCH.see(self);
    }

    /// Does what is to happen at all ends that there are by now; whether anything is left.
    pub(super) fn reap(&self) -> bool {
        if REAPS.get() {
            return self.go_through();
        }
        let _reaping = lock(&REAPING);
        REAPS.set(true);
        let left = self.go_through();
        REAPS.set(false);
        left
    }

    fn go_through(&self) -> bool {
        loop {
            let mut pending = lock(&self.pending);
            let Some(first) = pending.front() else { return false };
            let Some(result) = self.look(&first.end) else { return true };
            let Some(Pending { end, what, then }) = pending.pop_front() else { return false };
            drop(pending);
            let failure = result.err();
            let result = catch_unwind(AssertUnwindSafe(|| then(failure.as_ref())));
            let result = result.unwrap_or_else(|panic| {
                Err(panicked(what, format!("at its end: {}", panic_message(panic.as_ref()))))
            });
            if let Err(error) = failure.map_or(result, Err) {
                self.fail(error);
            }
            drop(end);
        }
    }
}

/// The thread that looks when nobody else does.
struct Watch {
    seen: Mutex<Seen>,
    more: Condvar,
}

#[derive(Default)]
struct Seen {
    started: bool,
    /// Whether the thread sleeps. Only then a launch wakes it, which is a system call.
    sleeps: bool,
    streams: Vec<Arc<Progress>>,
    /// What a graph has let go of: it may not be dropped where the driver says so.
    dropped: Vec<Box<dyn FnOnce() + Send>>,
    /// Memory to be freed when nothing runs.
    retired: Vec<Retired>,
}

/// Memory of a GPU, with what frees it.
struct Retired {
    gpu: Arc<Gpu>,
    free: Box<dyn FnOnce() + Send>,
}

static WATCH: LazyLock<Watch> =
    LazyLock::new(|| Watch { seen: Mutex::default(), more: Condvar::new() });

/// Has something done by the watch, soon.
pub(super) fn later(f: Box<dyn FnOnce() + Send>) {
    let mut seen = lock(&WATCH.seen);
    seen.dropped.push(f);
    WATCH.start(&mut seen);
}

/// Looks what has ended in all streams.
pub(super) fn look() {
    let streams = lock(&WATCH.seen).streams.clone();
    for stream in streams {
        stream.reap();
    }
}

/// Has memory freed, by `free`, when nothing that we have launched runs.
pub(super) fn retire(gpu: &Arc<Gpu>, free: impl FnOnce() + Send + 'static) {
    let mut seen = lock(&WATCH.seen);
    seen.retired.push(Retired { gpu: Arc::clone(gpu), free: Box::new(free) });
    WATCH.start(&mut seen);
}

/// Frees now what of a GPU waits for that, as there is no other memory; whether there was any.
pub(super) fn free_retired(gpu: &Arc<Gpu>) -> bool {
    let mut any = false;
    loop {
        let mut seen = lock(&WATCH.seen);
        let all = std::mem::take(&mut seen.retired);
        let (ours, others) =
            all.into_iter().partition::<Vec<_>, _>(|retired| Arc::ptr_eq(&retired.gpu, gpu));
        seen.retired = others;
        drop(seen);
        if ours.is_empty() {
            return any;
        }
        any = true;
        // What is freed may have been the last to keep something else, which is retired by that.
        ours.into_iter().for_each(Retired::free);
    }
}

impl Retired {
    fn free(self) {
        // A panic must not end the thread that frees.
        let _ = catch_unwind(AssertUnwindSafe(self.free));
    }
}

/// Does what may wait for kernels, such as closing memory of another process. Not while ends are gone through: who waits for a stream
/// waits for that, too, and may be about to launch what those kernels wait for.
pub(super) fn outside(f: impl FnOnce() + Send + 'static) {
    if REAPS.get() { later(Box::new(f)) } else { f() }
}

impl Watch {
    fn see(&'static self, stream: &Arc<Progress>) {
        let mut seen = lock(&self.seen);
        if seen.streams.iter().all(|other| !Arc::ptr_eq(other, stream)) {
            seen.streams.push(Arc::clone(stream));
        }
        self.start(&mut seen);
    }

    fn start(&'static self, seen: &mut Seen) {
        if !seen.started {
            let thread = std::thread::Builder::new().name("ferroccl-cuda".to_owned());
            // Without it, ends are noticed by who waits for a stream.
            seen.started = thread.spawn(|| self.run()).is_ok();
        }
        if seen.sleeps {
            self.more.notify_one();
        }
    }

    fn run(&self) {
        loop {
            let mut seen = lock(&self.seen);
            while seen.streams.is_empty() && seen.dropped.is_empty() && seen.retired.is_empty() {
                seen.sleeps = true;
                seen = self.more.wait(seen).unwrap_or_else(std::sync::PoisonError::into_inner);
                seen.sleeps = false;
            }
            let (streams, dropped) = (seen.streams.clone(), std::mem::take(&mut seen.dropped));
            drop(seen);
            for f in dropped {
                let _ = catch_unwind(AssertUnwindSafe(f));
            }
            for stream in &streams {
                stream.reap();
            }
            drop(streams);
            // What has nothing pending is told of by `push` when it has again: both are under the lock.
            let mut seen = lock(&self.seen);
            seen.streams.retain(|stream| !lock(&stream.pending).is_empty());
            let quiet = seen.streams.is_empty();
            let retired = if quiet { std::mem::take(&mut seen.retired) } else { Vec::new() };
            drop(seen);
            // What is launched from here on may hold it up, and waits for nothing that this thread does: whoever waits for a
            // stream goes through its ends.
            retired.into_iter().for_each(Retired::free);
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether an error means no more than that the process ends.
pub(super) fn is_farewell(error: &Error) -> bool {
    matches!(error, Error::Cuda(error) if error.code() == DEINITIALIZED)
}

//! Streams of which everything runs on one thread, in one schedule.
//!
//! Launches only queue up. Whoever waits for a stream runs everything that is queued on all streams, to
//! its end, on its own thread. What runs next is the business of [`Scheduler`]: the coroutines of
//! [`cpu`](super::cpu) or the warps of [`ptx`](super::ptx), by a seed or in turn. The same sequence of calls
//! gives it the same launches in the same order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use ferroccl_proxy::Operation;

use super::op::{self, Op, copy_in, copy_out, run_host};
use super::sync::lock;
use super::{Event, Launch, Memory, StreamOps, memory};
use crate::error::{Error, Result};

/// A stream's index.
pub(super) type StreamId = usize;

/// A launch of a stream of this mode.
pub(super) type Launched<T> = op::Launched<StreamId, <T as Scheduler>::Ready>;

/// Who has a turn, and what happens in it.
pub(super) trait Scheduler: Send + Sync + 'static {
    /// What a launch needs besides its blocks. Made when it is put in, dropped when it has ended.
    type Ready: Send + Sync;
    /// What runs. Only the thread that runs the schedule has it.
    type Schedule: Send;

    /// As [`Runtime::address_space`](crate::runtime::Runtime::address_space).
    fn address_space(&self) -> u64;

    /// Makes a launch ready that is put into a stream.
    ///
    /// # Errors
    /// Why it cannot run.
    fn prepare(&self, launch: &Launch, stream: StreamId, space: u64) -> Result<Self::Ready>;

    /// Whether the launches of a stream are started together: the schedule has them run one behind the other, and end together.
    fn chains(&self) -> bool {
        false
    }

    /// A run begins, with nothing that runs.
    fn begin(&self, schedule: &mut Self::Schedule);

    /// Whether nothing runs.
    fn is_idle(&self, schedule: &Self::Schedule) -> bool;

    /// Starts a launch. Launches that have ended by that go to `ended`.
    fn start(
        &self,
        schedule: &mut Self::Schedule,
        launched: Launched<Self>,
        ended: &mut Vec<Launched<Self>>,
    ) where
        Self: Sized;

    /// Gives somebody a turn. Launches that have ended by that go to `ended`.
    fn step(&self, schedule: &mut Self::Schedule, ended: &mut Vec<Launched<Self>>)
    where
        Self: Sized;

    /// Something else than a kernel may have written anywhere.
    fn touched(&self);
}

/// The streams of a runtime, and their one schedule.
pub(super) struct ScheduledStreams<T: Scheduler> {
    pub(super) scheduler: T,
    streams: Mutex<Vec<Stream<T::Ready>>>,
    /// Whether a stream may have something to start.
    fresh: AtomicBool,
    /// Locked by the thread that runs the schedule.
    schedule: Mutex<T::Schedule>,
    /// That thread, so that it is not run from within.
    runner: Mutex<Option<ThreadId>>,
    /// What a proxy thread would do.
    operations: Mutex<Vec<Box<dyn Operation>>>,
}

/// Scheduler of kernels between two of the operations.
const TURNS: u32 = 16;
/// Rounds in which operations do nothing until they are not waited for: given up if nothing else runs, and else no reason
/// why blocks that wait should not be in a deadlock.
const IDLE_ROUNDS: u32 = 1000;

struct Stream<R> {
    waiting: VecDeque<Op<(Launch, R)>>,
    /// Whether a kernel of it runs.
    busy: bool,
    error: Option<Error>,
}

impl<T: Scheduler> ScheduledStreams<T> {
    pub(super) fn new(scheduler: T, schedule: T::Schedule) -> Arc<Self> {
        Arc::new(ScheduledStreams {
            scheduler,
            streams: Mutex::default(),
            fresh: AtomicBool::new(false),
            schedule: Mutex::new(schedule),
            runner: Mutex::default(),
            operations: Mutex::default(),
        })
    }

    pub(super) fn stream(self: &Arc<Self>) -> Arc<dyn StreamOps> {
        self.stream_of(self.scheduler.address_space())
    }

    /// A stream of the device with this address space, one of several that share the schedule.
    pub(super) fn stream_of(self: &Arc<Self>, space: u64) -> Arc<dyn StreamOps> {
        let mut streams = lock(&self.streams);
        streams.push(Stream { waiting: VecDeque::new(), busy: false, error: None });
        Arc::new(ScheduledStream { streams: Arc::clone(self), id: streams.len() - 1, space })
    }

    /// What is asked of the schedule, between two runs of it.
    #[cfg(feature = "emulator")]
    pub(super) fn ask<R>(&self, what: impl FnOnce(&T::Schedule) -> R) -> Result<R> {
        self.refuse_from_within()?;
        Ok(what(&lock(&self.schedule)))
    }

    fn refuse_from_within(&self) -> Result<()> {
        if *lock(&self.runner) == Some(thread::current().id()) {
            let reason = "a function that runs in a schedule of one thread cannot wait for it";
            return Err(Error::argument("stream", reason));
        }
        Ok(())
    }

    /// Runs all that is queued on all streams.
    fn run(self: &Arc<Self>) -> Result<()> {
        self.refuse_from_within()?;
        let mut schedule = lock(&self.schedule);
        *lock(&self.runner) = Some(thread::current().id());
        self.scheduler.begin(&mut schedule);
        let mut ended = Vec::new();
        let (mut turn, mut idle, mut still) = (0, 0, 0);
        loop {
            if self.fresh.swap(false, Ordering::SeqCst) {
                self.start_all(&mut schedule, &mut ended);
                idle = 0;
            } else if self.scheduler.is_idle(&schedule) {
                match self.operate() {
                    None => break,
                    Some(true) => idle = 0,
                    Some(false) => idle += 1,
                }
                if idle == IDLE_ROUNDS {
                    // Nobody is there for whom they could wait: who waits for them is told by their drop.
                    drop(std::mem::take(&mut *lock(&self.operations)));
                }
            } else {
                self.scheduler.step(&mut schedule, &mut ended);
                turn += 1;
                if turn == TURNS {
                    turn = 0;
                    still = match self.operate() {
                        Some(false) => still + 1,
                        _ => 0,
                    };
                    if still > 0 && still < IDLE_ROUNDS {
                        self.scheduler.touched(); // they may yet do something
                    }
                }
            }
            for launched in ended.drain(..) {
                self.ended(*launched.stream(), launched.result());
            }
        }
        *lock(&self.runner) = None;
        Ok(())
    }

    /// Takes an operation that goes on whenever the schedule runs.
    pub(super) fn append(&self, operation: Box<dyn Operation>) {
        lock(&self.operations).push(operation);
    }

    /// Moves the operations on; whether anything moved, `None` if there are none.
    fn operate(&self) -> Option<bool> {
        // Not locked meanwhile: an operation may append another.
        let mut operations = std::mem::take(&mut *lock(&self.operations));
        if operations.is_empty() {
            return None;
        }
        let moved = ferroccl_proxy::round(&mut operations);
        if moved {
            self.scheduler.touched();
        }
        let mut all = lock(&self.operations);
        operations.append(&mut all);
        *all = operations;
        Some(moved)
    }

    /// Starts what the streams have next.
    fn start_all(self: &Arc<Self>, schedule: &mut T::Schedule, ended: &mut Vec<Launched<T>>) {
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
            stream.busy = matches!(op, Op::Kernel(_) | Op::Wait(_));
            drop(streams); // what follows may call the streams
            let result = match op {
                Op::Kernel(launch) => {
                    let launches =
                        std::iter::once(launch).chain(std::iter::from_fn(|| self.chained(id)));
                    for (launch, ready) in launches {
                        let launched = Launched::<T>::new(launch, ready, id);
                        launched.begin(false);
                        self.scheduler.start(schedule, launched, ended);
                    }
                    continue;
                }
                Op::CopyIn { to, offset, bytes } => copy_in(&to, offset, &bytes),
                Op::Host(function) => run_host(function),
                Op::Record(event, with_error) => {
                    let error =
                        if with_error { lock(&self.streams)[id].error.take() } else { None };
                    event.complete(error.map_or(Ok(()), Err));
                    Ok(())
                }
                Op::Wait(event) => {
                    let streams = Arc::clone(self);
                    match event.result_or(move |result| streams.ended(id, result)) {
                        Some(result) => result,
                        None => continue,
                    }
                }
            };
            self.ended(id, result);
        }
    }

    /// The launch that a stream has next, for a scheduler of chains.
    fn chained(&self, id: StreamId) -> Option<(Launch, T::Ready)> {
        let mut streams = lock(&self.streams);
        let waiting = &mut streams.get_mut(id)?.waiting;
        match waiting.pop_front_if(|op| self.scheduler.chains() && matches!(op, Op::Kernel(_)))? {
            Op::Kernel(launch) => Some(launch),
            _ => None,
        }
    }

    /// An operation of a stream has ended.
    fn ended(&self, id: StreamId, result: Result<()>) {
        let mut streams = lock(&self.streams);
        streams[id].busy = false;
        if let Err(error) = result {
            streams[id].error.get_or_insert(error);
        }
        drop(streams);
        self.fresh.store(true, Ordering::SeqCst);
        self.scheduler.touched();
    }
}

struct ScheduledStream<T: Scheduler> {
    streams: Arc<ScheduledStreams<T>>,
    id: StreamId,
    space: u64,
}

impl<T: Scheduler> fmt::Debug for ScheduledStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduledStream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<T: Scheduler> ScheduledStream<T> {
    fn push(&self, op: Op<(Launch, T::Ready)>) {
        lock(&self.streams.streams)[self.id].waiting.push_back(op);
        self.streams.fresh.store(true, Ordering::SeqCst);
    }
}

impl<T: Scheduler> StreamOps for ScheduledStream<T> {
    fn address_space(&self) -> u64 {
        self.space
    }

    unsafe fn launch(&self, launch: Launch) -> Result<()> {
        let ready = self.streams.scheduler.prepare(&launch, self.id, self.space)?;
        self.push(Op::Kernel((launch, ready)));
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

    fn record(&self, event: &Event, with_error: bool) {
        self.push(Op::Record(event.clone(), with_error));
    }

    fn wait(&self, event: &Event) {
        self.push(Op::Wait(event.clone()));
    }

    fn synchronize(&self) -> Result<()> {
        self.streams.run()?;
        lock(&self.streams.streams)[self.id].error.take().map_or(Ok(()), Err)
    }

    /// Runs everything, as `synchronize` does: nothing else makes progress.
    fn query(&self) -> Result<bool> {
        self.synchronize().map(|()| true)
    }
}

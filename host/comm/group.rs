//! Groups: calls that start together.
//!
//! The calls that a thread makes within [`group`] are kept, and launched at its end. A communicator's collectives run one
//! after the other, as everywhere. Its sends and receives run together, in one kernel. Calls of different communicators,
//! and collectives beside sends and receives, run at the same time. So a call waits for another one of its group only if
//! both are collectives of one communicator, which have the same order on all ranks.
//!
//! ```text
//! user's stream  ──●─ A's collectives ──────────────●──
//!                  ├─ A's sends and receives ───────┤      streams of the communicators'
//!                  └─ B's collectives ──────────────┘
//! ```

use std::cell::RefCell;
use std::sync::PoisonError;
use std::time::Duration;

use super::collective::CollTask;
use super::p2p::{self, P2pBatch, P2pTask};
use super::shared::SharedComm;
use crate::buffer::Stream;
use crate::error::{Error, Result};
use crate::profiler::{Happened, Parents, ProfilerEvent, State};
use crate::runtime::Event;

/// A checked call.
pub(super) enum AnyTask {
    Coll(CollTask),
    P2p(P2pTask),
}

/// A kept call, with its communicator and stream.
struct QueuedTask {
    comm: SharedComm,
    task: AnyTask,
    stream: Stream,
}

/// A group that has not ended.
#[derive(Default)]
struct OpenGroup {
    queued: Vec<QueuedTask>,
    /// What a profiler is told of it, from the first call on.
    event: Option<ProfilerEvent>,
}

thread_local! {
    /// The group that this thread is in.
    static GROUP: RefCell<Option<OpenGroup>> = const { RefCell::new(None) };
}

/// Makes the calls of `body` start together (`ncclGroupStart`, `ncclGroupEnd`): any mix of collectives, sends and
/// receives, of several communicators and on several streams. They run at the same time. So one thread can make the calls
/// of several ranks, and two ranks can send to each other. A group within a group is part of the outer one.
///
/// Later work in a stream waits for all calls of the group that were made on that stream.
///
/// # Errors
/// The error of `body`; then nothing is launched. [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a message of a
/// rank to itself without its counterpart; then nothing is launched, either. [`Error::Aborted`](crate::Error::Aborted) when a
/// communicator has failed before.
///
/// ```
/// use ferroccl::{Communicator, Device, group};
///
/// let device = Device::cpu();
/// let ranks = Communicator::init_all(&device, 2)?;
/// let streams = [device.stream()?, device.stream()?];
/// let mine = [device.upload(&[1.0f64; 8])?, device.upload(&[2.0f64; 8])?];
/// let theirs = [device.alloc::<f64>(8)?, device.alloc::<f64>(8)?];
/// group(|| {
///     for (r, rank) in ranks.iter().enumerate() {
///         let peer = 1 - rank.rank();
///         rank.send(&mine[r], peer, &streams[r])?;
///         rank.recv(&theirs[r], peer, &streams[r])?;
///     }
///     Ok(())
/// })?;
/// assert_eq!(theirs[0].to_vec(&streams[0])?, [2.0; 8]);
/// assert_eq!(theirs[1].to_vec(&streams[1])?, [1.0; 8]);
/// # Ok::<(), ferroccl::Error>(())
/// ```
pub fn group<R>(body: impl FnOnce() -> Result<R>) -> Result<R> {
    if GROUP.with_borrow(Option::is_some) {
        return body();
    }
    let (result, OpenGroup { queued, event }) = collect(body)?;
    event.iter().for_each(|event| event.record(State::GroupEndStart, 0));
    launch(queued)?;
    Ok(result)
}

/// How long the calls of `body` are predicted to take that [`group`] would make together: nothing is launched
/// (`ncclGroupSimulateEnd`). It is the tuning model's time, for the algorithm and protocol that each call would take. Collectives of a
/// communicator follow each other; its messages are one kernel beside them; communicators run at the same time.
///
/// # Errors
/// The error of `body`, and those of its calls that are known before their launch.
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) within a group, whose end is not known.
///
/// ```
/// use ferroccl::{Communicator, Device, ReduceOp, group_time};
///
/// let device = Device::cpu();
/// let ranks = Communicator::init_all(&device, 2)?;
/// let (stream, buffer) = (device.stream()?, device.alloc::<f32>(1 << 20)?);
/// let time = |len: usize| {
///     let part = buffer.slice(0..len);
///     group_time(|| ranks[0].all_reduce(&part, &part, ReduceOp::Sum, &stream))
/// };
/// assert!(time(1)? < time(1 << 20)?);
/// # Ok::<(), ferroccl::Error>(())
/// ```
pub fn group_time(body: impl FnOnce() -> Result<()>) -> Result<Duration> {
    if GROUP.with_borrow(Option::is_some) {
        return Err(Error::argument("body", "this thread is in a group, which has not ended"));
    }
    let ((), OpenGroup { queued, .. }) = collect(body)?;
    let mut longest = Duration::ZERO;
    for batch in &mut batches(queued) {
        longest = longest.max(batch.time()?);
    }
    Ok(longest)
}

/// Keeps the calls of `body`, with what it gives.
fn collect<R>(body: impl FnOnce() -> Result<R>) -> Result<(R, OpenGroup)> {
    // A drop, so that the thread leaves the group also after a panic.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            GROUP.take();
        }
    }
    GROUP.set(Some(OpenGroup::default()));
    let _leave = Leave;
    let result = body()?;
    Ok((result, GROUP.take().unwrap_or_default()))
}

/// Whether this thread is in a group.
#[cfg(feature = "cuda-core")]
pub(crate) fn in_group() -> bool {
    GROUP.with_borrow(Option::is_some)
}

/// Launches a task, or keeps it for the end of the group that this thread is in.
pub(super) fn submit(comm: &SharedComm, mut task: AnyTask, stream: &Stream) -> Result<()> {
    if GROUP.with_borrow(Option::is_some) {
        GROUP.with_borrow_mut(|group| {
            let OpenGroup { queued, event } = group.get_or_insert_default();
            if queued.is_empty() {
                *event = comm.tell_group(2, stream);
            }
            comm.tell_call(&mut task, event.as_ref(), stream);
            queued.push(QueuedTask { comm: comm.clone(), task, stream: stream.clone() });
        });
        return Ok(());
    }
    let alone = comm.tell_group(1, stream);
    comm.tell_call(&mut task, alone.as_ref(), stream);
    match task {
        AnyTask::Coll(ref mut task) => {
            let mut order = comm.lock_order()?;
            order.continue_on(stream);
            let group = comm.tell(|| Happened::Group, Parents::default());
            task.parents.group = group.as_ref().map(ProfilerEvent::parent).unwrap_or_default();
            task.launch(comm, &mut order, stream)
        }
        AnyTask::P2p(task) => {
            let batch = P2pBatch::new(comm, vec![task])?;
            let mut order = comm.lock_order()?;
            order.continue_on(stream);
            batch.launch(comm, comm.last_seq(), stream)
        }
    }
}

/// Calls of one communicator and of one kind, which run one after the other.
struct TaskBatch {
    comm: SharedComm,
    /// The streams that its calls were made on. The batch runs in the first, or beside it.
    streams: Vec<Stream>,
    tasks: BatchTasks,
}

enum BatchTasks {
    Collectives(Vec<CollTask>),
    /// Sends and receives as they were called.
    Messages(Vec<P2pTask>),
    /// The same, ready to be launched.
    P2p(Box<P2pBatch>),
}

/// The batches of a group: of each communicator one of collectives, and one of sends and receives.
fn batches(queued: Vec<QueuedTask>) -> Vec<TaskBatch> {
    let mut batches: Vec<TaskBatch> = Vec::new();
    for QueuedTask { comm, task, stream } in queued {
        let is_message = matches!(task, AnyTask::P2p(_));
        let at = batches.iter().position(|batch| {
            batch.comm.is(&comm) && matches!(batch.tasks, BatchTasks::Messages(_)) == is_message
        });
        let at = at.unwrap_or_else(|| {
            let tasks = if is_message {
                BatchTasks::Messages(Vec::new())
            } else {
                BatchTasks::Collectives(Vec::new())
            };
            batches.push(TaskBatch { comm: comm.clone(), streams: Vec::new(), tasks });
            batches.len() - 1
        });
        batches[at].add_stream(stream);
        match (&mut batches[at].tasks, task) {
            (BatchTasks::Collectives(all), AnyTask::Coll(task)) => all.push(task),
            (BatchTasks::Messages(all), AnyTask::P2p(task)) => all.push(task),
            _ => {}
        }
    }
    batches
}

/// Launches all calls of a group.
fn launch(queued: Vec<QueuedTask>) -> Result<()> {
    let mut batches = batches(queued);
    // All errors that can be known before the first launch.
    for batch in &mut batches {
        batch.prepare()?;
    }
    let forks = ForkPoints::of(&batches);
    // The streams that batches run in, and their ends where other streams wait for them.
    let mut taken: Vec<Stream> = Vec::new();
    let mut joins: Vec<JoinPoint> = Vec::new();
    let mut result = Ok(());
    for batch in batches {
        let beside = taken.iter().any(|stream| stream.is(&batch.streams[0]));
        match batch.launch(beside, &forks) {
            Ok((on, join)) => {
                taken.push(on);
                joins.extend(join);
            }
            Err(error) => result = result.and(Err(error)),
        }
    }
    // After the last launch, because other batches may run in the streams that wait.
    joins.iter().for_each(JoinPoint::join);
    result
}

/// The end of a batch, and the streams that wait for it.
struct JoinPoint {
    event: Event,
    waiting: Vec<Stream>,
}

impl JoinPoint {
    fn join(&self) {
        for stream in &self.waiting {
            stream.ops().wait(&self.event);
        }
    }
}

/// Events at the place where the group begins, in the streams whose earlier calls a batch in another stream waits for.
struct ForkPoints(Vec<(Stream, Event)>);

impl ForkPoints {
    /// None in the usual group, in which each communicator has a stream of its own: an event costs a launch's time.
    fn of(batches: &[TaskBatch]) -> Self {
        let mut forks = ForkPoints(Vec::new());
        let mut taken: Vec<&Stream> = Vec::new();
        for batch in batches {
            let main = &batch.streams[0];
            let beside = taken.iter().any(|stream| stream.is(main));
            if !beside {
                taken.push(main);
            }
            let last =
                batch.comm.order.lock().unwrap_or_else(PoisonError::into_inner).stream.clone();
            // Calls that are captured in a graph run at the graph's launch, which the user orders.
            let last = last.filter(|last| last.is(main) || last.is_captured_with(main));
            for stream in batch.streams.iter().chain(&last) {
                let waits = beside || !stream.is(main);
                if waits && forks.0.iter().all(|(other, _)| !other.is(stream)) {
                    let event = Event::new();
                    stream.ops().record(&event, false);
                    forks.0.push((stream.clone(), event));
                }
            }
        }
        forks
    }

    /// Has `on` wait for the calls before the group in `stream`.
    fn fork(&self, stream: &Stream, on: &Stream) {
        if let Some((_, event)) =
            self.0.iter().find(|(other, _)| other.is(stream) && !on.is(stream))
        {
            on.ops().wait(event);
        }
    }
}

impl TaskBatch {
    fn add_stream(&mut self, stream: Stream) {
        if self.streams.iter().all(|other| !other.is(&stream)) {
            self.streams.push(stream);
        }
    }

    /// What the tuning model predicts.
    fn time(&self) -> Result<Duration> {
        drop(self.comm.lock_order()?);
        match &self.tasks {
            BatchTasks::Collectives(tasks) => tasks.iter().map(|task| task.time(&self.comm)).sum(),
            BatchTasks::Messages(tasks) => p2p::time(&self.comm, tasks),
            BatchTasks::P2p(_) => Ok(Duration::ZERO),
        }
    }

    /// Makes ready what may fail, or may wait for kernels that run.
    fn prepare(&mut self) -> Result<()> {
        drop(self.comm.lock_order()?);
        match &mut self.tasks {
            BatchTasks::Collectives(tasks) => {
                tasks.iter().try_for_each(|task| task.prepare(&self.comm))?;
            }
            BatchTasks::Messages(tasks) => {
                P2pBatch::prepare(&self.comm)?;
                let batch = P2pBatch::new(&self.comm, std::mem::take(tasks))?;
                self.tasks = BatchTasks::P2p(Box::new(batch));
            }
            BatchTasks::P2p(_) => {}
        }
        Ok(())
    }

    /// Launches the calls, in a stream of the communicator's if they run `beside` a batch in the first stream. Gives the
    /// stream that they run in, and their end for the other streams.
    fn launch(self, beside: bool, forks: &ForkPoints) -> Result<(Stream, Option<JoinPoint>)> {
        let TaskBatch { comm, streams, tasks } = self;
        let mut order = comm.lock_order()?;
        let main = streams[0].clone();
        let on = if beside {
            let index = usize::from(!matches!(tasks, BatchTasks::Collectives(_)));
            order.side_stream(index, &comm.device)?
        } else {
            main.clone()
        };
        if forks.0.is_empty() {
            order.continue_on(&on);
        } else {
            let last = order.stream.iter().filter(|last| streams.iter().all(|s| !s.is(last)));
            for stream in streams.iter().chain(last) {
                forks.fork(stream, &on);
            }
        }
        let mut result = Ok(());
        match tasks {
            BatchTasks::Collectives(tasks) => {
                let group = comm.tell(|| Happened::Group, Parents::default());
                for mut task in tasks {
                    task.parents.group =
                        group.as_ref().map(ProfilerEvent::parent).unwrap_or_default();
                    result = result.and_then(|()| task.launch(&comm, &mut order, &on));
                }
            }
            BatchTasks::P2p(batch) => result = batch.launch(&comm, comm.last_seq(), &on),
            BatchTasks::Messages(_) => {}
        }
        let waiting: Vec<Stream> = streams.into_iter().filter(|stream| !stream.is(&on)).collect();
        let join = (!waiting.is_empty()).then(|| {
            let event = Event::new();
            on.ops().record(&event, beside);
            JoinPoint { event, waiting }
        });
        order.set_last(&main);
        match result {
            Ok(()) => Ok((on, join)),
            Err(error) => {
                // Some of the calls may have been launched: the streams wait for those.
                join.iter().for_each(JoinPoint::join);
                Err(error)
            }
        }
    }
}

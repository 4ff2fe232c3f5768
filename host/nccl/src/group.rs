//! Groups: what a thread does between `ncclGroupStart` and `ncclGroupEnd`.
//!
//! Jobs are what waits for other ranks: making, splitting, shrinking and growing communicators, finalizing, registering. At the
//! group's end all of them start, those of each communicator in a thread, one after the other: ranks meet in that order. Blocking communicators wait for them, and then make the group's calls. With
//! `blocking = 0` the end returns at once, and a group has either jobs or calls.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ferroccl::{Communicator, Stream};

use crate::answer::{Answer, Done, Failure, out};
use crate::handles::Comm;
use crate::jobs::{self, Job, Run};
use crate::types::*;

/// Something that waits for other ranks.
pub(crate) struct QueuedJob {
    /// The communicators that are in progress meanwhile.
    pub(crate) comms: Vec<Arc<Comm>>,
    /// The one whose jobs it is one of.
    pub(crate) of: usize,
    /// The one that fails with it.
    pub(crate) sink: Arc<Comm>,
    /// Takes back the handle that the caller has got, when there will be nothing for it.
    pub(crate) undo: Box<dyn Fn()>,
    pub(crate) blocking: bool,
    pub(crate) run: Run,
}

/// What a call does when it is made.
pub(crate) type Call = Box<dyn FnOnce(&Communicator, &Stream) -> Result<(), Failure>>;

/// A call of a communicator's.
pub(crate) struct QueuedCall {
    pub(crate) comm: Arc<Comm>,
    pub(crate) made: Arc<Communicator>,
    pub(crate) stream: Stream,
    /// It is launched as soon as it is made, also in a group.
    pub(crate) one_sided: bool,
    pub(crate) call: Call,
}

#[derive(Default)]
struct Group {
    depth: u32,
    /// The first failure of a call.
    spoiled: Option<Failure>,
    blocking: Option<bool>,
    jobs: Vec<QueuedJob>,
    calls: Vec<QueuedCall>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::new(Group::default());
}

/// A call of the group that this thread is in has failed: nothing of the group will start.
pub(crate) fn spoil(function: &str, failure: &Failure) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && group.spoiled.is_none() {
            let text = format!("nothing of the group was started: {function}: {}", failure.text);
            group.spoiled = Some(Failure { code: failure.code, text });
        }
    });
}

impl Group {
    /// All communicators of a group block, or none does.
    fn agree(&mut self, blocking: bool) -> Result<(), Failure> {
        if *self.blocking.get_or_insert(blocking) == blocking {
            return Ok(());
        }
        Err(Failure::argument(
            "comm",
            "a group has either blocking communicators or others (ncclConfig_t::blocking)",
        ))
    }
}

/// Starts a job, or keeps it for the end of the group.
pub(crate) fn job(job: QueuedJob) -> Answer {
    let now = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Ok(Some(job));
        }
        if let Err(failure) = group.agree(job.blocking) {
            (job.undo)();
            return Err(failure);
        }
        group.jobs.push(job);
        Ok(None)
    })?;
    match now {
        Some(job) => run(vec![job], Vec::new()),
        None => Ok(Done::Yes),
    }
}

/// Makes a call, or keeps it for the end of the group.
pub(crate) fn call(call: QueuedCall) -> Answer {
    let now = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Ok(Some(call));
        }
        group.agree(call.comm.settings.blocking)?;
        group.calls.push(call);
        Ok::<_, Failure>(None)
    })?;
    match now {
        Some(call) => run(Vec::new(), vec![call]),
        None => Ok(Done::Yes),
    }
}

/// What a group, or a call by itself, does.
fn run(jobs: Vec<QueuedJob>, calls: Vec<QueuedCall>) -> Answer {
    let mut done = Done::Yes;
    if !jobs.is_empty() {
        if !jobs[0].blocking && !calls.is_empty() {
            jobs.iter().for_each(|job| (job.undo)());
            return Err(Failure::usage(
                "with blocking = 0 a group has either calls or what makes communicators, not both",
            ));
        }
        if start(jobs)? == Done::InProgress {
            done = Done::InProgress;
        }
    }
    if !calls.is_empty() && make(calls)? == Done::InProgress {
        done = Done::InProgress;
    }
    Ok(done)
}

/// Starts jobs; waits for those of blocking communicators.
fn start(mut jobs: Vec<QueuedJob>) -> Answer {
    // The caller's thread has nothing else to do.
    if jobs.len() == 1 && jobs[0].blocking {
        let mut job = jobs.remove(0);
        let run = std::mem::replace(&mut job.run, Box::new(|| Ok(())));
        return job.ended(jobs::caught(run)).map(|()| Done::Yes);
    }
    let mut started: Vec<(QueuedJob, Result<Arc<Job>, Failure>)> = Vec::new();
    while let Some(of) = jobs.first().map(|job| job.of) {
        let (chain, rest) = jobs.into_iter().partition(|job| job.of == of);
        jobs = rest;
        started.extend(start_chain(chain));
    }
    let mut first = Ok(Done::Yes);
    for (job, thread) in started {
        let result = match thread {
            Ok(thread) if job.blocking => job.ended(thread.wait()).map(|()| Done::Yes),
            Ok(_) => Ok(Done::InProgress),
            Err(failure) => job.ended(Err(failure)).map(|()| Done::Yes),
        };
        first = match (first, result) {
            (Ok(Done::Yes), result) => result,
            (Ok(Done::InProgress), Err(failure)) => Err(failure),
            (first, _) => first,
        };
    }
    first
}

/// Starts the jobs of one communicator.
fn start_chain(mut chain: Vec<QueuedJob>) -> Vec<(QueuedJob, Result<Arc<Job>, Failure>)> {
    let runs = chain.iter_mut().map(|job| {
        let run = std::mem::replace(&mut job.run, Box::new(|| Ok(())));
        let sink = (!job.blocking).then(|| Arc::clone(&job.sink));
        // Nobody waits for it to tell.
        let run: Run = Box::new(move || {
            let result = run();
            if let (Some(sink), Err(failure)) = (sink, &result) {
                sink.fail(failure);
            }
            result
        });
        run
    });
    match Job::start(runs.collect()) {
        Err(failure) => chain.into_iter().map(|job| (job, Err(failure.clone()))).collect(),
        Ok(started) => {
            for (job, started) in chain.iter().zip(&started).filter(|(job, _)| !job.blocking) {
                job.comms.iter().for_each(|comm| comm.joins(started));
            }
            chain.into_iter().zip(started.into_iter().map(Ok)).collect()
        }
    }
}

impl QueuedJob {
    fn ended(&self, result: Result<(), Failure>) -> Result<(), Failure> {
        if let Err(failure) = &result {
            self.sink.note(failure);
            (self.undo)();
        }
        result
    }
}

/// Makes calls, all at the same time. On the CPU waits for those of blocking communicators.
fn make(calls: Vec<QueuedCall>) -> Answer {
    let mut streams: Vec<(Arc<Comm>, Stream)> = Vec::new();
    let mut seen = HashSet::new();
    for call in calls.iter().filter(|call| call.comm.place.is_cpu()) {
        if seen.insert(call.comm.handle) {
            streams.push((Arc::clone(&call.comm), call.stream.clone()));
        }
    }
    let launched = launch(calls);
    let mut done = Done::Yes;
    let mut first = launched;
    for (comm, stream) in streams {
        if !comm.settings.blocking {
            comm.set_running();
            if comm.answer_of_status() == Done::InProgress {
                done = Done::InProgress;
            }
            continue;
        }
        if let Err(error) = stream.synchronize() {
            let failure = Failure::from(error);
            comm.note(&failure);
            first = first.and(Err(failure));
        }
    }
    first.map(|()| done)
}

fn launch(mut calls: Vec<QueuedCall>) -> Result<(), Failure> {
    if calls.len() == 1 {
        return calls.pop().map_or(Ok(()), one);
    }
    let mut wrong = None;
    let launched = ferroccl::group(|| all(calls, &mut wrong));
    told(wrong, launched)
}

/// How long calls would take. There is no estimate for one-sided ones, which would be launched at once.
fn predict(mut calls: Vec<QueuedCall>) -> Result<Duration, Failure> {
    calls.retain(|call| !call.one_sided);
    let mut wrong = None;
    let predicted = ferroccl::group_time(|| all(calls, &mut wrong));
    told(wrong, predicted)
}

fn one(call: QueuedCall) -> Result<(), Failure> {
    let result = (call.call)(&call.made, &call.stream);
    result.inspect_err(|failure| call.comm.note(failure))
}

/// Makes the calls of a group. What is wrong with one is in `wrong`; the error keeps the group from starting.
fn all(calls: Vec<QueuedCall>, wrong: &mut Option<Failure>) -> ferroccl::Result<()> {
    for call in calls {
        if let Err(failure) = one(call) {
            *wrong = Some(failure);
            return Err(ferroccl::Error::argument("comm", "a call of the group is wrong"));
        }
    }
    Ok(())
}

/// What came of a group.
fn told<R>(wrong: Option<Failure>, result: ferroccl::Result<R>) -> Result<R, Failure> {
    match wrong {
        Some(failure) => Err(failure),
        None => result.map_err(|e| Failure::of(e, &crate::collectives::NAMES)),
    }
}

/// Leaves a group. The outermost gives what is in it.
fn leave() -> Result<Option<Group>, Failure> {
    GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(Failure::usage("ncclGroupEnd without ncclGroupStart")),
        1 => Ok(Some(std::mem::take(group))),
        _ => {
            group.depth -= 1;
            Ok(None)
        }
    })
}

/// A group in which a call has failed.
fn unspoiled(mut group: Group) -> Result<Group, Failure> {
    match group.spoiled.take() {
        None => Ok(group),
        Some(failure) => {
            group.jobs.iter().for_each(|job| (job.undo)());
            Err(failure)
        }
    }
}

export! {
    /// Begins a group: what follows starts at its end.
    answer ncclGroupStart, pncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(Done::Yes)
    }

    /// Ends a group.
    answer ncclGroupEnd, pncclGroupEnd() {
        let Some(group) = leave()? else { return Ok(Done::Yes) };
        let group = unspoiled(group)?;
        run(group.jobs, group.calls)
    }

    /// Ends a group and starts nothing: says how long its calls would take.
    answer ncclGroupSimulateEnd, pncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) {
        let Some(group) = leave()? else { return Ok(Done::Yes) };
        let group = unspoiled(group)?;
        group.jobs.iter().for_each(|job| (job.undo)());
        let info = out(simInfo, "simInfo")?.assume_init_mut();
        if info.magic != NCCL_SIM_INFO_MAGIC {
            return Err(Failure::argument("simInfo", "is not of NCCL_SIM_INFO_INITIALIZER"));
        }
        if info.size != size_of::<ncclSimInfo_t>() {
            let reason = format!("has {} bytes, {} are known", info.size, size_of::<ncclSimInfo_t>());
            return Err(Failure::argument("simInfo", reason));
        }
        // Microseconds, as with NCCL.
        info.estimatedTime = predict(group.calls)?.as_secs_f32() * 1e6;
        Ok(Done::Yes)
    }
}

//! Streams whose blocks run on threads: one operation at a time, in order.
//!
//! A stream is a list of operations of which the first is under way. Whoever ends it (the driver that
//! saw a launch's last block end) starts the next one, so a stream needs no thread of its own.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::callers::CallerId;
use super::executor::{Executor, Pass};
use super::queue::{Launched, Task};
use super::{Blocks, Handle};
use crate::error::{Error, Result};
use crate::runtime::op::{Op, copy_in, copy_out, run_host};
use crate::runtime::sync::lock;
use crate::runtime::{Event, Launch, Memory, StreamOps, memory};

/// An operation of a stream.
type StreamOp<B> = Op<Arc<Launched<B>>>;

/// What a stream shares with its operations under way.
pub(super) struct StreamState<B: Blocks> {
    executor: Arc<Executor<B>>,
    list: Mutex<List<B>>,
    /// Operations that were put in. Written under `list`'s lock.
    submitted: AtomicU64,
    /// Operations that have ended. Written under `list`'s lock, with release: who reads it sees what
    /// they did.
    completed: AtomicU64,
    /// Whether `list` has an error. Written under its lock, before `completed`.
    failed: AtomicBool,
    /// The [`CallerId`] that has put in an operation last: its queue has the blocks. Which one it is only makes a difference of speed.
    caller: AtomicUsize,
}

struct List<B: Blocks> {
    waiting: VecDeque<StreamOp<B>>,
    /// Whether an operation is under way.
    busy: bool,
    /// The first error since the last `synchronize`.
    error: Option<Error>,
    /// What happens with the end of the operation under way.
    happens: Option<(Event, Result<()>)>,
}

impl<B: Blocks> StreamState<B> {
    #[inline]
    pub(super) fn has_done(&self, ticket: u64) -> bool {
        // Acquire pairs with the release in `end`.
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// Puts in an operation, or gives it back to be started by the caller, who then must.
    fn submit(&self, op: StreamOp<B>) -> Option<StreamOp<B>> {
        let mut list = lock(&self.list);
        self.count_submitted();
        if list.busy {
            list.waiting.push_back(op);
            return None;
        }
        list.busy = true;
        Some(op)
    }

    /// Ends the operation under way and starts those that follow.
    fn end(self: &Arc<Self>, mut result: Result<()>) {
        loop {
            let mut list = lock(&self.list);
            if let Err(error) = result {
                list.error.get_or_insert(error);
                self.failed.store(true, Ordering::Relaxed);
            }
            // Not by a read-modify-write: only who has the lock writes it. Release pairs with the acquire in `has_done`.
            self.completed.store(self.completed.load(Ordering::Relaxed) + 1, Ordering::Release);
            let next = list.waiting.pop_front();
            list.busy = next.is_some();
            let happens = list.happens.take();
            drop(list);
            // Only now: who waits for it may ask this stream how far it is.
            if let Some((event, result)) = happens {
                event.complete(result);
            }
            self.executor.stream_moved(self);
            let Some(next) = next else { return };
            match self.start(next, false) {
                Some(ended) => result = ended,
                None => return,
            }
        }
    }

    /// Starts an operation, `at_once` when it was put in just now; `Some` result when it has ended already.
    fn start(self: &Arc<Self>, op: StreamOp<B>, at_once: bool) -> Option<Result<()>> {
        match op {
            Op::Kernel(launched) => {
                launched.begin(at_once);
                if launched.blocks == 0 {
                    return Some(launched.result());
                }
                let caller = CallerId::of_index(self.caller.load(Ordering::Relaxed));
                self.executor.spawn(launched, caller);
                None
            }
            Op::CopyIn { to, offset, bytes } => Some(copy_in(&to, offset, &bytes)),
            Op::Host(function) => Some(run_host(function)),
            Op::Record(event, with_error) => {
                let mut list = lock(&self.list);
                let error = if with_error { self.take_from(&mut list) } else { None };
                list.happens = Some((event, error.map_or(Ok(()), Err)));
                Some(Ok(()))
            }
            Op::Wait(event) => {
                let stream = Arc::clone(self);
                event.result_or(move |result| {
                    stream.end(result);
                    stream.executor.hand_over();
                })
            }
        }
    }

    /// Puts in an operation, and starts it if nothing is before it.
    fn put(self: &Arc<Self>, op: StreamOp<B>) {
        if let Some(op) = self.submit(op)
            && let Some(result) = self.start(op, true)
        {
            self.end(result);
        }
    }

    /// An operation is put in. The caller has locked the list.
    fn count_submitted(&self) {
        self.submitted.store(self.submitted.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.caller.store(CallerId::current().index(), Ordering::Relaxed);
    }

    /// Everything put in so far: by this thread, or before something that this thread has seen.
    fn ticket(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    fn take_error(&self) -> Result<()> {
        // Who has seen that an operation has ended sees whether it failed.
        if !self.failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.take_from(&mut lock(&self.list)).map_or(Ok(()), Err)
    }

    fn take_from(&self, list: &mut List<B>) -> Option<Error> {
        self.failed.store(false, Ordering::Relaxed);
        list.error.take()
    }
}

/// An operation that waits in a queue to be run by its driver.
pub(super) struct Job<B: Blocks> {
    stream: Arc<StreamState<B>>,
    op: StreamOp<B>,
}

impl<B: Blocks> Job<B> {
    pub(super) fn run(self) {
        if let Some(result) = self.stream.start(self.op, false) {
            self.stream.end(result);
        }
    }
}

impl<B: Blocks> Launched<B> {
    /// Ends the launch, and with it the operation of its stream.
    pub(super) fn finish(self: Arc<Self>) {
        let (result, stream) = (self.result(), Arc::clone(self.stream()));
        // The launch is dropped before the stream says that it has ended: who waits for the stream may count what is in use. A thread that has
        // ended another block of the launch may drop its share later.
        drop(self);
        stream.end(result);
    }
}

/// A stream, as its owner holds it.
pub(super) struct ThreadStream<B: Blocks> {
    state: Arc<StreamState<B>>,
    /// Its number among the streams of its runtime.
    number: u32,
    _handle: Arc<Handle<B>>,
}

impl<B: Blocks> ThreadStream<B> {
    pub(super) fn new(handle: &Arc<Handle<B>>, number: u32) -> Self {
        let executor = Arc::clone(&handle.0);
        let list = List { waiting: VecDeque::new(), busy: false, error: None, happens: None };
        let [submitted, completed] = [0, 0].map(AtomicU64::new);
        let caller = AtomicUsize::new(0);
        let (list, failed) = (Mutex::new(list), AtomicBool::new(false));
        let state = StreamState { executor, list, submitted, completed, failed, caller };
        ThreadStream { state: Arc::new(state), number, _handle: Arc::clone(handle) }
    }

    fn drain(&self) -> Result<()> {
        let ticket = self.state.ticket();
        if !self.state.has_done(ticket) {
            self.state.executor.wait(&self.state, || self.state.has_done(ticket), None);
        }
        self.state.take_error()
    }
}

impl<B: Blocks> fmt::Debug for ThreadStream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let completed = self.state.completed.load(Ordering::Relaxed);
        f.debug_struct("ThreadStream").field("completed", &completed).finish_non_exhaustive()
    }
}

impl<B: Blocks> StreamOps for ThreadStream<B> {
    fn address_space(&self) -> u64 {
        self.state.executor.blocks.address_space()
    }

    unsafe fn launch(&self, launch: Launch) -> Result<()> {
        let executor = &self.state.executor;
        let ready = executor.blocks.prepare(&launch, self.number)?;
        executor.prepare(launch.bytes >= B::heavy_bytes(launch.sharing))?;
        // Where it is now it stays: to move it from step to step was a tenth of a small call.
        let launched = Launched::<B>::new(launch, ready, Arc::clone(&self.state));
        self.state.put(Op::Kernel(Arc::new(launched)));
        Ok(())
    }

    fn copy_in(&self, to: &Arc<dyn Memory>, offset: usize, bytes: &[u8]) -> Result<()> {
        memory::range(to, offset, bytes.len())?;
        let mut list = lock(&self.state.list);
        self.state.count_submitted();
        if list.busy {
            let (to, bytes) = (Arc::clone(to), bytes.into());
            list.waiting.push_back(Op::CopyIn { to, offset, bytes });
            return Ok(());
        }
        // Nothing to wait for: no copy of the copy.
        list.busy = true;
        drop(list);
        let result = copy_in(to, offset, bytes);
        self.state.end(result);
        Ok(())
    }

    fn copy_out(&self, from: &Arc<dyn Memory>, offset: usize, bytes: &mut [u8]) -> Result<()> {
        memory::range(from, offset, bytes.len())?;
        self.drain()?;
        copy_out(from, offset, bytes)
    }

    fn host_function(&self, function: Box<dyn FnOnce() + Send>) {
        // Without any worker it runs when somebody waits for the stream.
        let _ = self.state.executor.prepare(false);
        if let Some(op) = self.state.submit(Op::Host(function)) {
            // Not on this thread: the caller does not wait for it.
            let job = Job { stream: Arc::clone(&self.state), op };
            self.state.executor.push_job(Task::Job(job));
        }
    }

    fn record(&self, event: &Event, with_error: bool) {
        self.state.put(Op::Record(event.clone(), with_error));
    }

    fn wait(&self, event: &Event) {
        self.state.put(Op::Wait(event.clone()));
    }

    fn wait_for(&self, event: &Event, limit: Duration) -> Option<Result<()>> {
        if event.result().is_none() {
            // A limit that no clock reaches is none.
            let end = Instant::now().checked_add(limit);
            self.state.executor.wait(&self.state, || event.result().is_some(), end);
        }
        event.result()
    }

    fn synchronize(&self) -> Result<()> {
        self.drain()
    }

    fn query(&self) -> Result<bool> {
        let ticket = self.state.ticket();
        if !self.state.has_done(ticket) {
            let state = &self.state;
            if state.executor.poll() != Pass::Idle {
                state.executor.hand_over();
            }
            if !state.has_done(ticket) {
                return Ok(false);
            }
        }
        self.state.take_error().map(|()| true)
    }
}

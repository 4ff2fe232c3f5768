//! Streams and events: those of the CPU runtime.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use ferroccl::device::abi::Work;
use ferroccl::device::kernels::Kernel;
use ferroccl::runtime::{Argument, Event, Launch, Runtime, StreamOps};

use crate::LOST;
use crate::emulated;
use crate::graph::{Captured, Node, Recording};
use crate::module::Code;
use crate::{
    Ctx, INVALID_CONTEXT, INVALID_VALUE, Kind, LAUNCH_FAILED, RUNTIME, STACK, count, driver, lock,
    memory, module, ordered, setting,
};

/// A queue of the hardware, which streams share: what is put into any of them is begun in the order in which it was put in.
#[derive(Default)]
pub(crate) struct Queue {
    streams: AtomicU64,
    /// The beginning of what was last put in, and by which stream.
    last: Mutex<Option<(u64, Event)>>,
}

impl Queue {
    /// The queue of the fewest streams, which has one more now. Threads that ask at the same time get different ones, as long as there are
    /// empty ones: kernels that wait for each other hang in one.
    fn join_emptiest(queues: &'static [Queue]) -> Option<&'static Queue> {
        loop {
            let all = queues.iter().map(|queue| (queue, queue.streams.load(Ordering::Relaxed)));
            let (queue, streams) = all.min_by_key(|(_, streams)| *streams)?;
            let more = streams + 1;
            let joined =
                queue.streams.compare_exchange(streams, more, Ordering::Relaxed, Ordering::Relaxed);
            if joined.is_ok() {
                return Some(queue);
            }
        }
    }
}

/// `CUstream`.
pub(crate) struct Stream {
    id: u64,
    queue: &'static Queue,
    pub(crate) ops: Arc<dyn StreamOps>,
    pub(crate) context: &'static Ctx,
    /// What it is being captured in, and as which lane.
    pub(crate) capture: Mutex<Option<(Weak<Recording>, usize)>>,
}

/// `CUevent`.
pub(crate) struct RawEvent {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    event: Option<Event>,
    done: Option<Arc<AtomicBool>>,
    time: Arc<Mutex<Option<Instant>>>,
    captured: Option<Captured>,
}

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// What the host calls in stream order.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: HostFunction,
    pub(crate) data: *mut c_void,
}

// SAFETY: it is the caller's to make it so (cuLaunchHostFunc).
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    pub(crate) fn put(self, ops: &dyn StreamOps) {
        ops.host_function(Box::new(move || {
            let call = self;
            // SAFETY: the function takes what came with it.
            unsafe { (call.function)(call.data) }
        }));
    }
}

/// A launch.
#[derive(Clone, Copy)]
pub(crate) struct Start {
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// The argument, as it was when it was launched.
    pub(crate) work: Work,
    pub(crate) context: &'static Ctx,
}

/// Of a multiprocessor.
const PARTS: i64 = 5040;

impl Start {
    /// Puts it into a stream.
    pub(crate) fn put(self, ops: &Arc<dyn StreamOps>) {
        let Start { kernel, blocks, threads, work, context } = self;
        let trap = move || context.sticky.store(LAUNCH_FAILED, Ordering::Relaxed);
        if ordered(&format!("kernel:{}", kernel.name)).is_some() {
            return ops.host_function(Box::new(trap));
        }
        let (sharing, bytes) = (1, work.count);
        context.running.fetch_add(1, Ordering::AcqRel);
        // A GPU would have the blocks for which there is no room wait for others to end. Here none may be without.
        let parts = i64::from(blocks) * PARTS / i64::from(module::per_multiprocessor(threads));
        // While the kernel runs.
        let reaching = Arc::new(Mutex::new(None));
        let begins = Arc::clone(&reaching);
        ops.host_function(Box::new(move || {
            let taken = context.taken.fetch_add(parts, Ordering::AcqRel) + parts;
            let all = i64::from(setting("FAKE_CUDA_MULTIPROCESSORS", 16)) * PARTS;
            if taken > all {
                eprintln!("no room for {}: {taken} of {all} parts of multiprocessors", kernel.name);
                trap();
            }
            *lock(&begins) = Some(memory::Reaching::new());
        }));
        let done = Box::new(move |failure: Option<&ferroccl::Error>| {
            drop(lock(&reaching).take());
            context.taken.fetch_sub(parts, Ordering::AcqRel);
            context.running.fetch_sub(1, Ordering::AcqRel);
            if failure.is_some() {
                trap();
            }
            Ok(())
        });
        let argument = Argument::of_work(&work);
        let keep = Vec::new();
        let launch = Launch {
            kernel,
            blocks,
            threads: 1,
            sharing,
            argument,
            keep,
            bytes,
            observer: None,
            done,
        };
        // SAFETY: the kernel is of the table, and takes a `Work`; the rest is the caller's.
        if unsafe { ops.launch(launch) }.is_err() {
            trap();
        }
    }
}

pub(crate) fn stream<'a>(raw: *mut c_void) -> Result<&'a Stream, c_int> {
    if raw.is_null() {
        return legacy();
    }
    // SAFETY: what `cuStreamCreate` gave.
    Ok(unsafe { &*raw.cast::<Stream>() })
}

/// The legacy stream of the current context: in order by itself alone, where a driver's waits for others, too.
fn legacy() -> Result<&'static Stream, c_int> {
    let context = STACK.with_borrow(|stack| stack.last().copied()).ok_or(INVALID_CONTEXT)?;
    if let Some(stream) = context.legacy.get() {
        return Ok(stream);
    }
    let made = Stream::new(context)?;
    Ok(context.legacy.get_or_init(|| made))
}

fn event<'a>(raw: *mut c_void) -> Result<&'a RawEvent, c_int> {
    if raw.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: what `cuEventCreate` gave.
    Ok(unsafe { &*raw.cast::<RawEvent>() })
}

impl Stream {
    fn new(context: &'static Ctx) -> Result<Self, c_int> {
        let ops = RUNTIME.stream().map_err(|_| 2)?;
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let queue = Queue::join_emptiest(&context.queues).ok_or(INVALID_VALUE)?;
        Ok(Stream { id, queue, ops, context, capture: Mutex::default() })
    }

    /// What is put in next begins when all that came before it in the stream's queue has begun.
    pub(crate) fn enter(&self) {
        let mut last = lock(&self.queue.last);
        let begins = Event::new();
        if let Some((of, before)) = last.replace((self.id, begins.clone()))
            && of != self.id
        {
            self.ops.wait(&before);
        }
        // All before it in its own stream has ended.
        self.ops.record(&begins, false);
    }

    /// What it is being captured in, if that goes on.
    pub(crate) fn capturing(&self) -> Option<(Arc<Recording>, usize)> {
        let (recording, lane) = lock(&self.capture).clone()?;
        let recording = recording.upgrade().filter(|recording| !recording.has_ended())?;
        Some((recording, lane))
    }

    /// Waits, as long as the context is well.
    fn drain(&self) -> Result<(), c_int> {
        loop {
            match self.context.sticky.load(Ordering::Relaxed) {
                0 => {}
                code => return Err(code),
            }
            // An error of a kernel has been noted by its end.
            if !matches!(self.ops.query(), Ok(false)) {
                return match self.context.sticky.load(Ordering::Relaxed) {
                    0 => Ok(()),
                    code => Err(code),
                };
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Copies within device memory.
pub(crate) fn copy(ops: &dyn StreamOps, to: u64, from: u64, bytes: usize) {
    ops.host_function(Box::new(move || {
        let _reaching = memory::Reaching::new();
        // SAFETY: memory that was known; the stream's order keeps others away.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
    }));
}

driver! {
    cuStreamCreate(to: *mut *mut c_void, _flags: c_uint) |context| {
        let stream = Stream::new(context)?;
        count(Kind::Stream, 1);
        // SAFETY: the caller's place.
        unsafe { *to = Box::into_raw(Box::new(stream)).cast() };
        Ok(())
    }
    cuStreamDestroy_v2(raw: *mut c_void) |_context| {
        stream(raw)?.queue.streams.fetch_sub(1, Ordering::Relaxed);
        count(Kind::Stream, -1);
        // SAFETY: what `cuStreamCreate` gave, once. What is in it runs on.
        drop(unsafe { Box::from_raw(raw.cast::<Stream>()) });
        Ok(())
    }
    cuStreamGetCtx(raw: *mut c_void, to: *mut *mut c_void) |_context| {
        // SAFETY: the caller's place.
        unsafe { *to = std::ptr::from_ref(stream(raw)?.context).cast_mut().cast() };
        Ok(())
    }
    cuStreamSynchronize(raw: *mut c_void) |_context| {
        let stream = stream(raw)?;
        if stream.capturing().is_some() {
            return Err(900);
        }
        stream.drain()
    }
    cuStreamQuery(raw: *mut c_void) |_context| {
        let stream = stream(raw)?;
        if stream.capturing().is_some() {
            return Err(900);
        }
        if matches!(stream.ops.query(), Ok(false)) { Err(600) } else { Ok(()) }
    }
    cuStreamWaitEvent(raw: *mut c_void, which: *mut c_void, _flags: c_uint) |_context| {
        let (stream, which) = (stream(raw)?, event(which)?);
        let state = lock(&which.state);
        match (&state.captured, stream.capturing()) {
            (Some(captured), Some((recording, lane))) => recording.wait(lane, captured),
            (Some(captured), None) => {
                // It is captured from here on, too.
                let (recording, lane) = captured.fork()?;
                *lock(&stream.capture) = Some((Arc::downgrade(&recording), lane));
                Ok(())
            }
            (None, Some(_)) => Err(905),
            (None, None) => {
                if let Some(event) = &state.event {
                    stream.ops.wait(event);
                    stream.enter(); // nothing of the queue passes a stream that waits
                }
                Ok(())
            }
        }
    }
    cuStreamWaitValue32_v2(raw: *mut c_void, at: u64, value: u32, flags: c_uint) |_context| {
        if flags != 0 || !memory::known(at, 4) {
            return Err(INVALID_VALUE);
        }
        let reached = Event::new();
        let stream = stream(raw)?;
        stream.ops.wait(&reached);
        stream.enter();
        std::thread::spawn(move || {
            // SAFETY: memory that kernels reach; the waiter keeps it until the stream has passed.
            let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
            while word.load(Ordering::Acquire) < value {
                std::thread::sleep(Duration::from_micros(50));
            }
            reached.complete(Ok(()));
        });
        Ok(())
    }
    cuStreamWriteValue64_v2(raw: *mut c_void, at: u64, value: u64, flags: c_uint) |context| {
        let stream = stream(raw)?;
        if flags != 0 || !at.is_multiple_of(8) || !memory::known(at, 8) || stream.capturing().is_some() {
            return Err(INVALID_VALUE);
        }
        stream.enter();
        let lost = LOST.load(Ordering::Relaxed);
        stream.ops.host_function(Box::new(move || {
            // Nothing runs in a context that is lost, also when it has been made well again.
            if context.sticky.load(Ordering::Relaxed) == 0 && lost == LOST.load(Ordering::Relaxed) {
                // SAFETY: memory that kernels reach; the writer keeps it until the stream has passed.
                unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(value, Ordering::Release);
            }
        }));
        Ok(())
    }
    cuEventCreate(to: *mut *mut c_void, _flags: c_uint) |_context| {
        count(Kind::Event, 1);
        // SAFETY: the caller's place.
        unsafe { *to = Box::into_raw(Box::new(RawEvent { state: Mutex::default() })).cast() };
        Ok(())
    }
    cuEventDestroy_v2(raw: *mut c_void) |_context| {
        event(raw)?;
        count(Kind::Event, -1);
        // SAFETY: what `cuEventCreate` gave, once.
        drop(unsafe { Box::from_raw(raw.cast::<RawEvent>()) });
        Ok(())
    }
    cuEventRecord(raw: *mut c_void, into: *mut c_void) |_context| {
        let (which, stream) = (event(raw)?, stream(into)?);
        let mut state = lock(&which.state);
        *state = State::default();
        if let Some((recording, lane)) = stream.capturing() {
            state.captured = Some(recording.record(lane));
            return Ok(());
        }
        let (event, done) = (Event::new(), Arc::new(AtomicBool::new(false)));
        stream.enter();
        stream.ops.record(&event, false);
        let (told, time) = (Arc::clone(&done), Arc::clone(&state.time));
        stream.ops.host_function(Box::new(move || {
            *lock(&time) = Some(Instant::now());
            told.store(true, Ordering::Release);
        }));
        (state.event, state.done) = (Some(event), Some(done));
        Ok(())
    }
    cuEventQuery(raw: *mut c_void) |_context| {
        let state = lock(&event(raw)?.state);
        if state.captured.is_some() {
            return Err(907);
        }
        let done = state.done.as_ref().is_none_or(|done| done.load(Ordering::Acquire));
        if done { Ok(()) } else { Err(600) }
    }
    cuEventSynchronize(raw: *mut c_void) |context| {
        let done = lock(&event(raw)?.state).done.clone();
        while done.as_ref().is_some_and(|done| !done.load(Ordering::Acquire)) {
            match context.sticky.load(Ordering::Relaxed) {
                0 => std::thread::sleep(Duration::from_micros(20)),
                code => return Err(code),
            }
        }
        Ok(())
    }
    cuEventElapsedTime(to: *mut f32, from: *mut c_void, until: *mut c_void) |_context| {
        let time = |raw| Ok::<_, c_int>(*lock(&lock(&event(raw)?.state).time));
        let (Some(from), Some(until)) = (time(from)?, time(until)?) else { return Err(600) };
        // SAFETY: the caller's place.
        unsafe { *to = until.saturating_duration_since(from).as_secs_f32() * 1e3 };
        Ok(())
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, into: *mut c_void) |_context| {
        let stream = stream(into)?;
        if !memory::known(to, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        if memory::known(from as u64, bytes as u64) {
            // Pinned memory is read when the stream comes by. It is also copied at once, as what it mostly holds is the
            // argument of the launch behind it, which is looked at when that is put in; nobody else has the place then.
            let _reaching = memory::Reaching::new();
            // SAFETY: memory that is known, on both sides.
            unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes) };
            match stream.capturing() {
                Some((recording, lane)) => recording.push(lane, Node::Copy(to, from as u64, bytes)),
                None => {
                    stream.enter();
                    copy(&*stream.ops, to, from as u64, bytes);
                }
            }
            return Ok(());
        }
        if stream.capturing().is_some() {
            return Err(900);
        }
        let _copying = lock(&stream.context.copying);
        // SAFETY: as much as is said. Pageable memory is read before the call returns.
        let copy = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        stream.enter();
        stream.ops.host_function(Box::new(move || {
            let _reaching = memory::Reaching::new();
            // SAFETY: memory that was known; the stream's order keeps others away.
            unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), to as *mut u8, copy.len()) }
        }));
        Ok(())
    }
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, into: *mut c_void) |_context| {
        let stream = stream(into)?;
        if !memory::known(from, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        let (to, pageable) = (to as usize, !memory::known(to as u64, bytes as u64));
        let pageable = pageable && stream.capturing().is_none();
        // A driver waits with what all copies of the context need (seen on an H200).
        let _copying = pageable.then(|| lock(&stream.context.copying));
        stream.enter();
        stream.ops.host_function(Box::new(move || {
            let _reaching = memory::Reaching::new();
            // SAFETY: as much as was said, on both sides.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) }
        }));
        // Into pageable memory a driver copies before it returns, and there are those who count on it.
        if pageable { stream.drain() } else { Ok(()) }
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, into: *mut c_void) |_context| {
        let stream = stream(into)?;
        if !memory::known(to, bytes as u64) || !memory::known(from, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        match stream.capturing() {
            Some((recording, lane)) => recording.push(lane, Node::Copy(to, from, bytes)),
            None => {
                stream.enter();
                copy(&*stream.ops, to, from, bytes);
            }
        }
        Ok(())
    }
    cuMemsetD8Async(at: u64, value: u8, bytes: usize, into: *mut c_void) |_context| {
        let stream = stream(into)?;
        if !memory::known(at, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        stream.enter();
        stream.ops.host_function(Box::new(move || {
            let _reaching = memory::Reaching::new();
            // SAFETY: memory that was known; the stream's order keeps others away.
            unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) }
        }));
        Ok(())
    }
    cuLaunchHostFunc(into: *mut c_void, function: HostFunction, data: *mut c_void) |_context| {
        let stream = stream(into)?;
        let call = Call { function, data };
        match stream.capturing() {
            Some((recording, lane)) => recording.push(lane, Node::Host(call)),
            None => {
                stream.enter();
                call.put(&*stream.ops);
            }
        }
        Ok(())
    }
    cuLaunchKernel(function: *const c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, into: *mut c_void, arguments: *mut *mut c_void, _extra: *mut *mut c_void) |context| {
        let stream = stream(into)?;
        let kernel = match module::launched(function, context)? {
            Code::Table(kernel) => kernel,
            Code::Ptx(_) if stream.capturing().is_some() => return Err(900),
            Code::Ptx(kernel) => {
                // SAFETY: the caller's: as many arguments as it has parameters.
                let launch = unsafe { kernel.launch([gx, gy, gz], [bx, by, bz], shared, arguments) };
                stream.enter();
                stream.ops.host_function(Box::new(move || {
                    let _reaching = memory::Reaching::new();
                    if let Err(code) = emulated::run(launch) {
                        context.sticky.store(code, Ordering::Relaxed);
                    }
                }));
                return Ok(());
            }
        };
        if gx == 0 || (gy, gz, by, bz) != (1, 1, 1, 1) || bx == 0 || bx > kernel.threads || !bx.is_multiple_of(32) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: one argument, a work, or what a kernel of the tests' own takes: that begins with a communicator, too, and then has
        // the address of memory.
        let argument = unsafe { std::slice::from_raw_parts((*arguments).cast::<u8>(), kernel.argument) };
        let mut work = <Work as bytemuck::Zeroable>::zeroed();
        bytemuck::bytes_of_mut(&mut work)[..argument.len()].copy_from_slice(argument);
        if !memory::known(work.comm, 1) || (work.input != 0 && work.count > 0 && !memory::known(work.input, 1)) {
            return Err(700);
        }
        let start = Start { kernel, blocks: gx, threads: bx, work, context };
        match stream.capturing() {
            Some((recording, lane)) => recording.push(lane, Node::Kernel(start)),
            None => {
                stream.enter();
                start.put(&stream.ops);
            }
        }
        Ok(())
    }
}

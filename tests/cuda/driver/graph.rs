//! Graphs: what was captured, by lane, each lane a stream; replayed with events of their own.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ferroccl::runtime::{Event, Runtime, StreamOps};

use crate::stream::{Call, HostFunction, Start, copy, stream};
use crate::{INVALID_VALUE, Kind, RUNTIME, count, driver, lock};

/// A step of a lane.
#[derive(Clone, Copy)]
#[allow(clippy::large_enum_variant, reason = "a kernel's argument is copied, as a driver does")]
pub(crate) enum Node {
    Kernel(Start),
    Host(Call),
    /// To, from, bytes.
    Copy(u64, u64, usize),
    Record(u64),
    Wait(u64),
}

/// A capture, and the graph that it becomes.
pub(crate) struct Recording {
    id: u64,
    lanes: Mutex<Vec<Vec<Node>>>,
    ended: AtomicBool,
    /// Where lanes but the first run.
    streams: Mutex<Vec<Arc<dyn StreamOps>>>,
    /// What is let go of with it. After everything else: it is dropped last.
    objects: Mutex<Vec<Object>>,
}

/// `CUuserObject`, as its one owner has it.
struct Object(Call);

impl Drop for Object {
    fn drop(&mut self) {
        count(Kind::UserObject, -1);
        // SAFETY: the function takes what came with it, once.
        unsafe { (self.0.function)(self.0.data) }
    }
}

/// A place in a capture.
#[derive(Clone)]
pub(crate) struct Captured {
    /// An event does not keep what it was captured in.
    recording: Weak<Recording>,
    key: u64,
}

impl Captured {
    /// A new lane that begins here.
    pub(crate) fn fork(&self) -> Result<(Arc<Recording>, usize), c_int> {
        let recording = self.recording.upgrade().filter(|it| !it.has_ended()).ok_or(905)?;
        let lane = {
            let mut lanes = lock(&recording.lanes);
            lanes.push(vec![Node::Wait(self.key)]);
            lanes.len() - 1
        };
        Ok((recording, lane))
    }
}

impl Recording {
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn push(&self, lane: usize, node: Node) {
        lock(&self.lanes)[lane].push(node);
    }

    pub(crate) fn record(self: &Arc<Self>, lane: usize) -> Captured {
        static KEYS: AtomicU64 = AtomicU64::new(1);
        let key = KEYS.fetch_add(1, Ordering::Relaxed);
        self.push(lane, Node::Record(key));
        Captured { recording: Arc::downgrade(self), key }
    }

    pub(crate) fn wait(self: &Arc<Self>, lane: usize, captured: &Captured) -> Result<(), c_int> {
        if !std::ptr::eq(Arc::as_ptr(self), captured.recording.as_ptr()) {
            return Err(901); // captures of two streams are joined
        }
        self.push(lane, Node::Wait(captured.key));
        Ok(())
    }

    fn run(self: &Arc<Self>, on: &Arc<dyn StreamOps>) -> Result<(), c_int> {
        let lanes = lock(&self.lanes);
        let mut streams = lock(&self.streams);
        while streams.len() + 1 < lanes.len() {
            streams.push(RUNTIME.stream().map_err(|_| 2)?);
        }
        let mut events: HashMap<u64, Event> = HashMap::new();
        for (i, lane) in lanes.iter().enumerate() {
            let ops = if i == 0 { on } else { &streams[i - 1] };
            for node in lane {
                match node {
                    Node::Kernel(start) => start.put(ops),
                    Node::Host(call) => call.put(&**ops),
                    Node::Copy(to, from, bytes) => copy(&**ops, *to, *from, *bytes),
                    Node::Record(key) => ops.record(events.entry(*key).or_default(), false),
                    Node::Wait(key) => ops.wait(events.entry(*key).or_default()),
                }
            }
        }
        // What it owns lives until it has run.
        let keep = Arc::clone(self);
        on.host_function(Box::new(move || drop(keep)));
        Ok(())
    }
}

fn graph<'a>(raw: *mut c_void) -> Result<&'a Recording, c_int> {
    if raw.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: what a capture gave.
    Ok(unsafe { &*raw.cast::<Recording>() })
}

/// Another owner of a graph, or of what was made of it.
fn again(raw: *mut c_void) -> Result<*mut c_void, c_int> {
    graph(raw)?;
    count(Kind::Graph, 1);
    // SAFETY: it is alive, so it has an owner.
    unsafe { Arc::increment_strong_count(raw.cast::<Recording>().cast_const()) };
    Ok(raw)
}

fn let_go(raw: *mut c_void) -> Result<(), c_int> {
    graph(raw)?;
    count(Kind::Graph, -1);
    // SAFETY: an owner of it goes, once.
    drop(unsafe { Arc::from_raw(raw.cast::<Recording>().cast_const()) });
    Ok(())
}

/// Captures that have not ended.
static UNDER_WAY: Mutex<Vec<Arc<Recording>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::missing_safety_doc)]
pub(crate) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    // SAFETY: the caller's place.
    unsafe { *mode = MODE.replace(*mode) };
    0
}

driver! {
    cuStreamBeginCapture_v2(raw: *mut c_void, _mode: c_int) |_context| {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let stream = stream(raw)?;
        if stream.capturing().is_some() {
            return Err(901);
        }
        let recording = Recording {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            lanes: Mutex::new(vec![Vec::new()]),
            ended: AtomicBool::new(false),
            streams: Mutex::default(),
            objects: Mutex::default(),
        };
        let recording = Arc::new(recording);
        *lock(&stream.capture) = Some((Arc::downgrade(&recording), 0));
        lock(&UNDER_WAY).push(recording);
        Ok(())
    }
    cuStreamEndCapture(raw: *mut c_void, to: *mut *mut c_void) |_context| {
        let (recording, lane) = stream(raw)?.capturing().ok_or(903)?;
        if lane != 0 {
            return Err(904);
        }
        recording.ended.store(true, Ordering::Release);
        *lock(&stream(raw)?.capture) = None;
        lock(&UNDER_WAY).retain(|other| !Arc::ptr_eq(other, &recording));
        count(Kind::Graph, 1);
        // SAFETY: the caller's place.
        unsafe { *to = Arc::into_raw(recording).cast_mut().cast() };
        Ok(())
    }
    cuStreamIsCapturing(raw: *mut c_void, to: *mut c_int) |_context| {
        // SAFETY: the caller's place.
        unsafe { *to = c_int::from(stream(raw)?.capturing().is_some()) };
        Ok(())
    }
    cuStreamGetCaptureInfo_v2(raw: *mut c_void, status: *mut c_int, id: *mut u64, to: *mut *mut c_void,
        _dependencies: *mut *const c_void, _n: *mut usize) |_context| {
        let capture = stream(raw)?.capturing();
        // SAFETY: the caller's places.
        unsafe {
            *status = c_int::from(capture.is_some());
            if let Some((recording, _)) = capture {
                *id = recording.id;
                *to = Arc::as_ptr(&recording).cast_mut().cast();
            }
        }
        Ok(())
    }
    cuGraphInstantiateWithFlags(to: *mut *mut c_void, raw: *mut c_void, _flags: u64) |_context| {
        // SAFETY: the caller's place.
        unsafe { *to = again(raw)? };
        Ok(())
    }
    cuGraphLaunch(raw: *mut c_void, into: *mut c_void) |_context| {
        graph(raw)?;
        // SAFETY: it is alive, so it has an owner.
        let recording = unsafe {
            Arc::increment_strong_count(raw.cast::<Recording>().cast_const());
            Arc::from_raw(raw.cast::<Recording>().cast_const())
        };
        recording.run(&stream(into)?.ops)
    }
    cuGraphDestroy(raw: *mut c_void) |_context| { let_go(raw) }
    cuGraphExecDestroy(raw: *mut c_void) |_context| { let_go(raw) }
    cuUserObjectCreate(to: *mut *mut c_void, value: *mut c_void, destroy: HostFunction, references: c_uint,
        _flags: c_uint) |_context| {
        if references != 1 {
            return Err(INVALID_VALUE);
        }
        count(Kind::UserObject, 1);
        let object = Object(Call { function: destroy, data: value });
        // SAFETY: the caller's place.
        unsafe { *to = Box::into_raw(Box::new(object)).cast() };
        Ok(())
    }
    cuGraphRetainUserObject(raw: *mut c_void, object: *mut c_void, references: c_uint, flags: c_uint) |_context| {
        if references != 1 || flags != 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: what `cuUserObjectCreate` gave, moved.
        let object = unsafe { Box::from_raw(object.cast::<Object>()) };
        lock(&graph(raw)?.objects).push(*object);
        Ok(())
    }
}

//! Streams that are captured in a graph: what a call puts in runs each time the graph does.
//!
//! What a launch needs (the communicator, buffers) lives as long as the graph, as an object that the graph
//! owns ("CUDA User Objects" in NVIDIA's programming guide). The driver may not be called where it lets go of it, so the
//! watch drops it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::driver::{self, Graph, RawStream};
use super::gpu::Gpu;
use super::watch;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;

/// The capture that a stream is in: its number, and the graph.
///
/// # Errors
/// When the capture has failed: it cannot go on.
pub(super) fn find(gpu: &Gpu, stream: RawStream) -> Result<Option<(u64, Graph)>> {
    gpu.enqueue(|| {
        let mut status = 0;
        // SAFETY: writes to a place that is there.
        unsafe { gpu.driver.stream_is_capturing(stream, &raw mut status) }
            .map_err(|e| gpu.error(&e))?;
        if status == 0 {
            return Ok(None);
        }
        if status != driver::CAPTURE_ACTIVE {
            let reason = "its capture in a graph has failed: end it (cuStreamEndCapture)";
            return Err(Error::argument("stream", reason));
        }
        let (mut id, mut graph) = (0, std::ptr::null_mut());
        // SAFETY: writes to places that are there; what is null is not asked for.
        unsafe {
            gpu.driver.stream_get_capture_info(
                stream,
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        }
        .map_err(|e| gpu.error(&e))?;
        Ok(Some((id, graph)))
    })
}

/// The number of the capture.
pub(super) fn id(gpu: &Gpu, stream: RawStream) -> Option<u64> {
    find(gpu, stream).ok().flatten().map(|(id, _)| id)
}

/// What is asked each time a graph has run, with the driver's error if there is one.
pub(super) type Check = crate::runtime::Check;

/// By capture.
static CHECKS: Mutex<Option<HashMap<u64, Vec<Check>>>> = Mutex::new(None);

/// Adds what is asked when the graph of a capture has run.
pub(super) fn add_check(id: u64, check: Check) {
    lock(&CHECKS).get_or_insert_default().entry(id).or_default().push(check);
}

/// All that has been added. Who captures by the driver's own calls asks communicators itself.
pub(super) fn take_checks(id: u64) -> Vec<Check> {
    lock(&CHECKS).as_mut().and_then(|all| all.remove(&id)).unwrap_or_default()
}

/// What a graph keeps.
struct Kept(Option<Box<dyn FnOnce() + Send>>);

/// The graph is gone.
unsafe extern "C" fn let_go(data: *mut c_void) {
    // SAFETY: made by `retain`, and called once.
    let mut kept = unsafe { Box::from_raw(data.cast::<Kept>()) };
    if let Some(end) = kept.0.take() {
        watch::later(end);
    }
}

/// Has `end` called when the graph, and all that was made of it, is gone.
pub(super) fn retain(gpu: &Gpu, graph: Graph, end: Box<dyn FnOnce() + Send>) -> Result<()> {
    let kept = Box::into_raw(Box::new(Kept(Some(end))));
    gpu.run(|| {
        let mut object = std::ptr::null_mut();
        let flags = driver::USER_OBJECT_NO_DESTRUCTOR_SYNC;
        // SAFETY: writes to a place that is there; the object is ours until the graph has it.
        unsafe {
            gpu.driver
                .user_object_create(&raw mut object, kept.cast(), let_go, 1, flags)
                .inspect_err(|_| drop(Box::from_raw(kept)))
                .map_err(|e| gpu.error(&e))?;
            let flags = driver::GRAPH_USER_OBJECT_MOVE;
            gpu.driver.graph_retain_user_object(graph, object, 1, flags).map_err(|e| gpu.error(&e))
        }
    })
}

/// A function that is called each time the graph comes to it.
struct Node(Arc<dyn Fn() + Send + Sync>);

unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: made by `host_node`, and kept as long as the graph.
    let node = unsafe { &*data.cast::<Node>() };
    // Its own errors are its own to tell; a panic may not go through the driver.
    let _ = catch_unwind(AssertUnwindSafe(|| (node.0)()));
}

/// Has `function` called in stream order, each time the graph runs.
pub(super) fn host_node(
    gpu: &Gpu,
    stream: RawStream,
    graph: Graph,
    function: Arc<dyn Fn() + Send + Sync>,
) -> Result<()> {
    let node = Box::new(Node(function));
    let at = std::ptr::from_ref(&*node).cast_mut().cast::<c_void>();
    retain(gpu, graph, Box::new(move || drop(node)))?;
    gpu.run(|| {
        // SAFETY: the node is kept as long as the graph.
        unsafe { gpu.driver.launch_host_function(stream, call, at) }.map_err(|e| gpu.error(&e))
    })
}

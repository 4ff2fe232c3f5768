//! What the caller has is used as it is: contexts, streams, memory.

use std::sync::Arc;

use ferroccl::runtime::cuda::{CudaGraph, CudaRuntime};
use ferroccl::{Algorithm, CommConfig, Communicator, Device, Operator, ReduceOp};

use crate::stand_in::{Handle, Kind, alone, live, ready, symbol};

/// A context of the caller's: current, with a stream and memory.
pub(crate) struct Caller {
    context: Handle,
    stream: Handle,
    pub(crate) memory: u64,
}

const COUNT: usize = 5000;

impl Caller {
    fn new(ordinal: i32) -> Self {
        Self::with_memory(ordinal, COUNT * 4)
    }

    pub(crate) fn with_memory(ordinal: i32, bytes: usize) -> Self {
        let retain: unsafe extern "C" fn(*mut Handle, i32) -> i32 =
            symbol("cuDevicePrimaryCtxRetain");
        let push: unsafe extern "C" fn(Handle) -> i32 = symbol("cuCtxPushCurrent_v2");
        let pop: unsafe extern "C" fn(*mut Handle) -> i32 = symbol("cuCtxPopCurrent_v2");
        let create: unsafe extern "C" fn(*mut Handle, u32) -> i32 = symbol("cuStreamCreate");
        let alloc: unsafe extern "C" fn(*mut u64, usize) -> i32 = symbol("cuMemAlloc_v2");
        let (mut context, mut stream, mut memory) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: places that are there.
        unsafe {
            assert_eq!(retain(&raw mut context, ordinal), 0);
            assert_eq!(push(context), 0);
            assert_eq!(create(&raw mut stream, 0), 0);
            assert_eq!(alloc(&raw mut memory, bytes), 0);
            assert_eq!(pop(std::ptr::null_mut()), 0);
        }
        Caller { context, stream, memory }
    }
}

#[test]
fn contexts_streams_and_memory() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let caller = Caller::new(1);
    // SAFETY: the stand-in's contexts live as long as the process.
    let runtime = Arc::new(unsafe { CudaRuntime::of_context(caller.context) }.unwrap());
    assert_eq!(runtime.info().unwrap().ordinal, 1);
    assert_eq!(runtime.context(), caller.context);
    let keep = Arc::new(());
    // SAFETY: stream and memory are never destroyed here.
    let (stream, mine) = unsafe {
        let stream = runtime.stream_of(caller.stream, keep.clone()).unwrap();
        (stream, runtime.buffer_of::<f32>(caller.memory, COUNT, keep.clone()).unwrap())
    };
    let device = Device::new(runtime);
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let (other, theirs) = (device.stream().unwrap(), device.upload(&[2.0f32; COUNT]).unwrap());
    mine.copy_from(&[1.0; COUNT], &stream).unwrap();
    ranks[0].all_reduce(&mine, &mine, ReduceOp::Sum, &stream).unwrap();
    ranks[1].all_reduce(&theirs, &theirs, ReduceOp::Sum, &other).unwrap();
    assert_eq!(mine.to_vec(&stream).unwrap(), [3.0; COUNT]);
    assert_eq!(theirs.to_vec(&other).unwrap(), [3.0; COUNT]);
    assert_eq!(mine.address(), caller.memory);
    // Calls keep what they use as long as they need it, and no longer.
    drop((mine, ranks));
    drop(stream);
    crate::errors::until(|| Arc::strong_count(&keep) == 1);
}

/// Whatever context the thread has, none among them, it has afterwards.
#[test]
fn the_current_context_stays() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let (own, other) = (Caller::new(0), Caller::new(1));
    let push: unsafe extern "C" fn(Handle) -> i32 = symbol("cuCtxPushCurrent_v2");
    let pop: unsafe extern "C" fn(*mut Handle) -> i32 = symbol("cuCtxPopCurrent_v2");
    let current: unsafe extern "C" fn(*mut Handle) -> i32 = symbol("cuCtxGetCurrent");
    let now = || {
        let mut now = std::ptr::null_mut();
        // SAFETY: a place that is there.
        assert_eq!(unsafe { current(&raw mut now) }, 0);
        now
    };
    let device = Device::cuda(0).unwrap();
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let streams = [device.stream().unwrap(), device.stream().unwrap()];
    let buffers = [device.upload(&[1.0f32; 100]).unwrap(), device.upload(&[2.0; 100]).unwrap()];
    for context in [std::ptr::null_mut(), own.context, other.context] {
        // SAFETY: the stand-in's contexts live as long as the process.
        assert!(context.is_null() || unsafe { push(context) } == 0);
        let before = now();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
            assert_eq!(now(), before, "a launch");
            let _ = stream.query().unwrap();
            assert_eq!(now(), before, "a question");
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
        assert_eq!(now(), before, "the end");
        // SAFETY: what was pushed above.
        assert!(context.is_null() || unsafe { pop(std::ptr::null_mut()) } == 0);
        assert!(now().is_null());
    }
}

/// A window of memory in the middle of the caller's allocations, on two GPUs: the other GPU reaches all of an allocation.
#[test]
fn a_window_of_the_callers_memory_is_direct() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let callers = [0, 1].map(Caller::new);
    // The places differ, and so do the allocations' beginnings.
    let (len, starts) = (COUNT - 500, [64, 450]);
    let keep = Arc::new(());
    let (mut devices, mut buffers) = (Vec::new(), Vec::new());
    for ((ordinal, caller), start) in (0..).zip(&callers).zip(starts) {
        let runtime = Arc::new(CudaRuntime::new(ordinal).unwrap());
        // SAFETY: the memory is never freed.
        let buffer =
            unsafe { runtime.buffer_of::<f32>(caller.memory + 4 * start, len, keep.clone()) };
        buffers.push(buffer.unwrap());
        devices.push(Device::new(runtime));
    }
    let mut config = CommConfig::default();
    config.algorithm = Some(Algorithm::Direct);
    let ranks = Communicator::init_all_on(&devices, &config).unwrap();
    let windows = Communicator::register_windows(ranks.iter().zip(&buffers)).unwrap();
    assert_eq!(windows[0].why_not_direct(), None);
    let why = windows[1].why_not_multicast().unwrap();
    assert!(why.contains("not of Runtime::allocate_window"), "{why}");
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    for (r, rank) in ranks.iter().enumerate() {
        buffers[r].copy_from(&vec![r as f32 + 1.0; len], &streams[r]).unwrap();
        rank.all_reduce(&buffers[r], &buffers[r], ReduceOp::Sum, &streams[r]).unwrap();
    }
    for (buffer, stream) in buffers.iter().zip(&streams) {
        assert!(buffer.to_vec(stream).unwrap() == vec![3.0; len]);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let caller = Caller::new(0);
    let other = CudaRuntime::new(1).unwrap();
    let keep = Arc::new(());
    // SAFETY: refused, or never used.
    unsafe {
        let error = other.stream_of(caller.stream, keep.clone()).unwrap_err().to_string();
        assert!(error.contains("stream") && error.contains("another context"), "{error}");
        let error = other.buffer_of::<f32>(caller.memory + 1, 3, keep.clone()).unwrap_err();
        assert!(error.to_string().contains("multiple of 4"), "{error}");
        for len in [usize::MAX / 4, usize::MAX] {
            let error = other.buffer_of::<f32>(u64::MAX - 7, len, keep.clone()).unwrap_err();
            assert!(error.to_string().contains("no range of memory"), "{error}");
        }
    }
}

/// Nothing is left behind: memory, streams, what is registered.
#[test]
fn what_is_made_is_given_back() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let count = || [Kind::Allocation, Kind::Registered, Kind::Stream].map(live);
    let before = crate::errors::settled(count);
    for _ in 0..3 {
        let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
        let ranks = Communicator::init_all(&device, 3).unwrap();
        let streams: Vec<_> = ranks.iter().map(|_| device.stream().unwrap()).collect();
        let buffers: Vec<_> =
            ranks.iter().map(|_| device.upload(&vec![1u32; 400_000]).unwrap()).collect();
        let other = device.alloc(400_000).unwrap();
        for ((rank, buffer), stream) in ranks.iter().zip(&buffers).zip(&streams) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
            rank.all_to_all(buffer, &other, stream).unwrap_err();
        }
        for (rank, stream) in ranks.iter().zip(&streams) {
            rank.barrier(stream).unwrap();
        }
        // Handles are dropped while calls are under way.
    }
    crate::errors::until(|| crate::errors::no_more(count(), before));
}

/// These lines are the README's (a test of the command compares them).
#[rustfmt::skip]
#[allow(clippy::undocumented_unsafe_blocks, reason = "as short as the README")]
fn a_captured_call(
    cu_stream: Handle,
    (device_pointer, len): (u64, usize),
    keep: Arc<()>,
) -> ferroccl::Result<()> {
    let runtime = Arc::new(CudaRuntime::new(0)?);                                  // or of_context(a CUcontext)
    let stream = unsafe { runtime.stream_of(cu_stream, keep.clone())? };           // any CUstream
    let buffer = unsafe { runtime.buffer_of::<f32>(device_pointer, len, keep)? };  // any CUdeviceptr
    let ranks = Communicator::init_all(&Device::new(runtime), 1)?;
    let graph = CudaGraph::capture(&[&stream], || ranks[0].all_reduce(&buffer, &buffer, Operator::pre_mul_sum(0.5), &stream))?;
    graph.launch(&stream)?;
    stream.synchronize()
}

#[test]
fn a_captured_call_as_in_the_readme() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let caller = Caller::new(0);
    a_captured_call(caller.stream, (caller.memory, COUNT), Arc::new(())).unwrap();
}

//! Streams by themselves: order, functions of the host, events and the errors that go with them.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferroccl::runtime::cuda::CudaRuntime;
use ferroccl::runtime::{Event, Settings, cuda};
use ferroccl::{CommConfig, Communicator, Device, Error, ReduceOp};

use crate::stand_in::{Handle, Kind, alone, calls, live, ready, symbol};

fn error(text: &str) -> Error {
    Error::argument("test", text)
}

#[test]
fn what_is_put_in_runs_in_order() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let steps = Arc::new(AtomicU32::new(0));
    let step = |expected: u32| {
        let steps = Arc::clone(&steps);
        Box::new(move || {
            let found = steps.fetch_add(1, Ordering::SeqCst);
            assert_eq!(found, expected);
        })
    };
    let go = Event::new();
    first.ops().wait(&go);
    first.ops().host_function(step(0));
    let event = Event::new();
    first.ops().record(&event, false);
    second.ops().wait(&event);
    second.ops().host_function(step(1));
    assert!(!first.query().unwrap() && !second.query().unwrap());
    go.complete(Ok(()));
    second.synchronize().unwrap();
    first.synchronize().unwrap();
    assert_eq!(steps.load(Ordering::SeqCst), 2);
    assert!(first.query().unwrap() && second.query().unwrap());
}

/// An event takes the error of its stream along, if it is told to.
#[test]
fn errors_go_with_events() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    for with_error in [false, true] {
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        first.ops().host_function(Box::new(|| panic!("on purpose")));
        let event = Event::new();
        first.ops().record(&event, with_error);
        second.ops().wait(&event);
        // The one that has it has it once.
        let (with, without) = if with_error { (&second, &first) } else { (&first, &second) };
        without.synchronize().unwrap();
        let error = with.synchronize().unwrap_err().to_string();
        assert!(error.contains("on purpose"), "{error}");
        with.synchronize().unwrap();
    }
}

/// What the host says a stream waits for, and its error becomes the stream's.
#[test]
fn streams_wait_for_the_host() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    let event = Event::new();
    stream.ops().wait(&event);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!stream.query().unwrap());
    event.complete(Ok(()));
    stream.synchronize().unwrap();
    // Before it is waited for, and after.
    for late in [false, true] {
        let event = Event::new();
        if !late {
            event.complete(Err(error("no")));
        }
        stream.ops().wait(&event);
        if late {
            event.complete(Err(error("no")));
        }
        let found = stream.synchronize().unwrap_err().to_string();
        assert!(found.contains("test: no"), "{found}");
        stream.synchronize().unwrap();
    }
}

/// What is copied is free again when the call returns, be it pinned memory, which the GPU reads when the stream comes by.
#[test]
fn a_copy_of_pinned_memory_is_over_when_it_returns() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.alloc::<u32>(1000).unwrap();
    let pinned = pinned(1000);
    pinned.fill(1);
    let gate = Event::new();
    stream.ops().wait(&gate);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        gate.complete(Ok(()));
    });
    buffer.copy_from(pinned, &stream).unwrap();
    pinned.fill(2);
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 1000]);
    opener.join().unwrap();
}

/// Pinned memory, for ever.
fn pinned(len: usize) -> &'static mut [u32] {
    let push: unsafe extern "C" fn(Handle) -> i32 = symbol("cuCtxPushCurrent_v2");
    let pop: unsafe extern "C" fn(*mut Handle) -> i32 = symbol("cuCtxPopCurrent_v2");
    let alloc: unsafe extern "C" fn(*mut Handle, usize, u32) -> i32 = symbol("cuMemHostAlloc");
    let mut at = std::ptr::null_mut();
    // SAFETY: a context that is there; zeroed memory of that size, of which there is one slice.
    unsafe {
        assert_eq!(push(cuda::shared(0, &Settings::default()).unwrap().context()), 0);
        assert_eq!(alloc(&raw mut at, len * 4, 0), 0);
        assert_eq!(pop(std::ptr::null_mut()), 0);
        std::slice::from_raw_parts_mut(at.cast(), len)
    }
}

/// A buffer whose last handle a call had is freed behind it, and that may wait for kernels which wait for the thread that
/// waits for another stream.
#[test]
fn giving_memory_back_holds_nobody_up() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::cuda(0).unwrap();
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(5));
    let ranks = Communicator::init_all_with(&device, 2, &config).unwrap();
    let alone = Communicator::init_all(&device, 1).unwrap().remove(0);
    let streams = [0; 4].map(|_| device.stream().unwrap());
    let small = [0; 2].map(|_| device.alloc::<u32>(100).unwrap());
    let call = |r: usize| ranks[r].all_reduce(&small[r], &small[r], ReduceOp::Sum, &streams[r]);
    let copy = |len: usize| {
        let [from, to] = [0; 2].map(|_| device.alloc::<u32>(len).unwrap());
        alone.all_reduce(&from, &to, ReduceOp::Sum, &streams[2]).unwrap();
        (from, to)
    };
    // Kernels are loaded.
    (0..2).for_each(|r| call(r).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let gate = Event::new();
    streams[2].ops().wait(&gate);
    let large = copy(1 << 20);
    call(0).unwrap();
    drop(large);
    gate.complete(Ok(()));
    // It is noticed that the copy has ended, by us or by the watch.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        streams[3].synchronize().unwrap();
    }
    call(1).unwrap();
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

/// Between the calls of two ranks a thread may drop what it likes: the first one's kernel waits for the second's, and the
/// driver's own ways to give memory back wait for that kernel.
#[test]
fn dropping_holds_nobody_up() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let communicators = Mutex::new(Some(Communicator::init_all(&device, 2).unwrap()));
    between_two_calls(&device, |device| {
        drop(device.alloc::<u32>(1 << 20).unwrap());
        let kept = device.alloc::<u32>(1 << 20).unwrap();
        (kept, communicators.lock().unwrap().take())
    });
}

/// Where there are no pools, too; memory is then made before.
#[test]
fn dropping_holds_nobody_up_without_pools() {
    if !ready() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "streams::without_pools", "--ignored", "--nocapture"]);
    let output = child.env("FAKE_CUDA_POOLS", "0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "run by dropping_holds_nobody_up_without_pools"]
fn without_pools() {
    assert!(ready());
    let before = live(Kind::Allocation);
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let made = (device.alloc::<u32>(1 << 20).unwrap(), Communicator::init_all(&device, 2).unwrap());
    let made = Mutex::new(Some(made));
    between_two_calls(&device, |_| made.lock().unwrap().take());
    // It is given back all the same.
    drop(device);
    crate::errors::until(|| live(Kind::Allocation) == before);
}

/// What `made` gives is dropped while the first of two ranks waits for the second.
pub(crate) fn between_two_calls<T>(device: &Device, made: impl Fn(&Device) -> T) {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_secs(5));
    let ranks = Communicator::init_all_with(device, 2, &config).unwrap();
    let streams = [0; 2].map(|_| device.stream().unwrap());
    let small = [0; 2].map(|_| device.alloc::<u32>(100).unwrap());
    let call = |r: usize| ranks[r].all_reduce(&small[r], &small[r], ReduceOp::Sum, &streams[r]);
    (0..2).for_each(|r| call(r).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    call(0).unwrap();
    drop(made(device));
    call(1).unwrap();
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

/// The host waits for nothing at a send or a receive, and asks the driver for no memory, once it has had some.
#[test]
fn messages_are_put_in_without_waiting() {
    const WAITS: [&str; 5] = [
        "cuStreamSynchronize",
        "cuMemsetD8Async",
        "cuMemAlloc_v2",
        "cuMemAllocAsync",
        "cuMemHostAlloc",
    ];
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let streams = [0; 2].map(|_| device.stream().unwrap());
    let sent = device.upload(&[7u32; 1000]).unwrap();
    let received = device.alloc::<u32>(1000).unwrap();
    for warm in [false, true] {
        // At first all of them are under way at the same time, and each needs a place of its own.
        let gate = Event::new();
        if !warm {
            streams.iter().for_each(|stream| stream.ops().wait(&gate));
        }
        let before = WAITS.map(calls);
        for _ in 0..10 {
            ranks[0].send(&sent, 1, &streams[0]).unwrap();
            ranks[1].recv(&received, 0, &streams[1]).unwrap();
        }
        assert!(
            !warm || before == WAITS.map(calls),
            "{WAITS:?}: {before:?} {:?}",
            WAITS.map(calls)
        );
        gate.complete(Ok(()));
        assert_eq!(received.to_vec(&streams[1]).unwrap(), [7; 1000]);
        streams[0].synchronize().unwrap();
    }
}

/// While kernels wait for each other the driver is asked now and then whether all is well, and not all the time.
#[test]
fn ends_are_noticed_without_the_driver() {
    if !ready() {
        return;
    }
    let _alone = alone();
    let device = Device::new(Arc::new(CudaRuntime::new(0).unwrap()));
    let ranks = Communicator::init_all(&device, 2).unwrap();
    let streams = [0; 2].map(|_| device.stream().unwrap());
    let small = [0; 2].map(|_| device.alloc::<u32>(100).unwrap());
    let call = |r: usize| ranks[r].all_reduce(&small[r], &small[r], ReduceOp::Sum, &streams[r]);
    let asked = || ["cuEventQuery", "cuEventRecord"].map(calls);
    (0..2).for_each(|r| call(r).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let (before, begun) = (asked(), Instant::now());
    for _ in 0..20 {
        call(0).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        call(1).unwrap();
    }
    // By the watch: nobody waits for the streams.
    let keep = Arc::new(());
    let ended = Arc::downgrade(&keep);
    streams[1].ops().host_function(Box::new(move || drop(keep)));
    crate::errors::until(|| ended.strong_count() == 0);
    let asked = asked();
    // Once in 10 ms for each of what may be pending.
    let most = 10 * (begun.elapsed().as_millis() as u64 / 10 + 1);
    assert!(asked[0] - before[0] <= most, "{before:?} {asked:?}, of {most}");
    assert_eq!(asked[1], before[1], "an event for a launch");
}

//! The CPU runtime: streams, blocks, workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use ferroccl::device::abi::Work;
use ferroccl::device::gpu;
use ferroccl::runtime::cpu::CpuRuntime;
use ferroccl::runtime::{Runtime, StreamOps};
use ferroccl::{Device, Error};

use crate::kernels::{Cells, add_one, launch, meet, noop, panics, spin_until_set, waiting};

/// Longer than any of this takes on a busy machine: only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

fn runtimes() -> impl Iterator<Item = Arc<dyn Runtime>> {
    [1, 2, 5].into_iter().map(|n| Arc::new(CpuRuntime::with_workers(n)) as Arc<dyn Runtime>)
}

#[test]
fn operations_of_a_stream_run_in_order() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let log = Arc::new(std::sync::Mutex::new(Vec::new()));
        let memory = runtime.allocate(8).unwrap();
        for i in 0..100u64 {
            let note = |what: &'static str| {
                let log = Arc::clone(&log);
                move || log.lock().unwrap().push((i, what))
            };
            stream.copy_in(&memory, 0, &i.to_ne_bytes()).unwrap();
            let end = note("kernel");
            launch(&stream, add_one, memory.address(), 0, 1).done(move || {
                end();
                Ok(())
            });
            stream.host_function(Box::new(note("host")));
        }
        let mut value = [0; 8];
        stream.copy_out(&memory, 0, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 100);
        let expected = (0..100).flat_map(|i| [(i, "kernel"), (i, "host")]).collect::<Vec<_>>();
        assert_eq!(*log.lock().unwrap(), expected);
    }
}

#[test]
fn every_block_runs_once() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        for blocks in [0, 1, 2, 3, 31, 200] {
            let cells = Cells::new(&runtime, 200);
            launch(&stream, crate::kernels::mark_block, cells.address(), 0, blocks).go();
            stream.synchronize().unwrap();
            for i in 0..200 {
                assert_eq!(
                    cells.get(i),
                    u64::from(i < blocks as usize),
                    "{blocks} blocks, block {i}"
                );
            }
        }
    }
}

#[test]
fn work_goes_on_when_nobody_waits() {
    for bytes in [0, 1 << 30] {
        for runtime in runtimes() {
            for pause in [0, 1, 150] {
                // 150 ms: the workers sleep deeply by then.
                std::thread::sleep(Duration::from_millis(pause));
                let stream = runtime.stream().unwrap();
                let (sender, receiver) = mpsc::channel();
                let memory = runtime.allocate(8).unwrap();
                for i in 0..3 {
                    let sender = sender.clone();
                    launch(&stream, add_one, memory.address(), 0, 1).bytes(bytes).done(move || {
                        sender.send(i).unwrap();
                        Ok(())
                    });
                }
                for i in 0..3 {
                    assert_eq!(receiver.recv_timeout(HANG), Ok(i));
                }
            }
        }
    }
}

#[test]
fn work_goes_on_when_all_handles_are_gone() {
    let (sender, receiver) = mpsc::channel();
    let runtime: Arc<dyn Runtime> = Arc::new(CpuRuntime::with_workers(2));
    let stream = runtime.stream().unwrap();
    let memory = runtime.allocate(8).unwrap();
    for i in 0..3 {
        let sender = sender.clone();
        let kernel =
            launch(&stream, add_one, memory.address(), 0, 4).keep(Arc::new(memory.clone()));
        kernel.done(move || {
            sender.send(i).unwrap();
            Ok(())
        });
    }
    drop((stream, runtime, memory));
    for i in 0..3 {
        assert_eq!(receiver.recv_timeout(HANG), Ok(i));
    }
}

#[test]
fn kernels_wait_for_each_other() {
    for runtime in runtimes() {
        let streams: Vec<_> = (0..4).map(|_| runtime.stream().unwrap()).collect();
        let cells = Cells::new(&runtime, 4 * 7);
        for _ in 0..50 {
            for (rank, stream) in streams.iter().enumerate() {
                launch(stream, meet, cells.address(), (4 << 32) | rank as u64, 7).go();
            }
        }
        for stream in &streams {
            stream.synchronize().unwrap();
        }
        assert!((0..28).all(|i| cells.get(i) == 50));
    }
}

#[test]
fn threads_wait_for_each_other() {
    for bytes in [0, 1 << 20] {
        for runtime in runtimes() {
            let cells = Arc::new(Cells::new(&runtime, 8 * 3));
            let start = Barrier::new(8);
            std::thread::scope(|scope| {
                for rank in 0..8 {
                    let (cells, runtime, start) = (&cells, &runtime, &start);
                    scope.spawn(move || {
                        let stream = runtime.stream().unwrap();
                        start.wait();
                        for i in 0..200u64 {
                            launch(&stream, meet, cells.address(), (8 << 32) | rank, 3)
                                .bytes(bytes)
                                .go();
                            if rank % 3 == 2 {
                                while !stream.query().unwrap() {
                                    std::thread::yield_now();
                                }
                            } else {
                                stream.synchronize().unwrap();
                            }
                            assert!(cells.get(rank as usize) > i);
                        }
                    });
                }
            });
            assert!((0..24).all(|i| cells.get(i) == 200));
        }
    }
}

/// Counts in cell 0 how often a worker takes it from the thread that waits, and in cell 1 how often that thread did not go on for a
/// moment, as on a busy machine. It has 200,000 turns of that thread, which outlasts a worker's nap. Of eight one moves: behind the
/// others the thread yields.
unsafe fn count_takeovers(work: *const Work) {
    // SAFETY: the launch's.
    let cell = |i| unsafe { &*((*work).input as *const AtomicU64).add(i) };
    let (mut with_waiter, mut turns, mut before) = (false, 0u64, Instant::now());
    while turns < 200_000 {
        let is_worker = std::thread::current().name().is_some_and(|n| n.starts_with("ferroccl-"));
        if !is_worker {
            let now = Instant::now();
            let stalled = now.duration_since(before) > Duration::from_micros(200);
            cell(1).fetch_add(u64::from(stalled), Ordering::Relaxed);
            (turns, before) = (turns + 1, now);
        } else if with_waiter {
            cell(0).fetch_add(1, Ordering::Relaxed);
        }
        with_waiter = !is_worker;
        if gpu::pause(|| waiting(0, turns / 8)).is_some() {
            return;
        }
    }
}

/// Where a thread waits for a stream, it drives: a worker beside it would take a core for nothing. It takes over when the thread does not
/// go on.
#[test]
fn workers_leave_the_work_to_a_thread_that_waits() {
    let runtime: Arc<dyn Runtime> = Arc::new(CpuRuntime::with_workers(1));
    let stream = runtime.stream().unwrap();
    let cells = Cells::new(&runtime, 2);
    launch(&stream, count_takeovers, cells.address(), 0, 1).go();
    stream.synchronize().unwrap();
    let [takeovers, stalls] = [0, 1].map(|i| cells.get(i));
    println!("{takeovers} takeovers, {stalls} stalls");
    assert!(takeovers <= 10 + stalls);
}

#[test]
fn another_thread_may_end_the_wait() {
    for runtime in runtimes() {
        let cells = Arc::new(Cells::new(&runtime, 1));
        let stream = runtime.stream().unwrap();
        launch(&stream, spin_until_set, cells.address(), 0, 3).go();
        assert!(!stream.query().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                cells.set(0, 1);
            });
            stream.synchronize().unwrap();
        });
        assert!(stream.query().unwrap());
    }
}

#[test]
fn a_panic_is_an_error_and_nothing_else() {
    for runtime in runtimes() {
        let (bad, good) = (runtime.stream().unwrap(), runtime.stream().unwrap());
        let cells = Cells::new(&runtime, 8);
        let meeting = Cells::new(&runtime, 8);
        launch(&bad, panics, cells.address(), 0, 8).go();
        for rank in 0..2 {
            launch(
                if rank == 0 { &good } else { &bad },
                meet,
                meeting.address(),
                (2 << 32) | rank,
                4,
            )
            .go();
        }
        good.synchronize().unwrap();
        let error = bad.synchronize().unwrap_err();
        assert!(
            matches!(&error, Error::Panicked { kernel, message }
                if kernel == "test" && message == "block 3 is unhappy"),
            "{error}"
        );
        // The other blocks went on, the error is reported once, and the stream is usable.
        assert!((0..8).all(|i| cells.get(i) == 1));
        bad.synchronize().unwrap();
        launch(&bad, noop, 0, 0, 1).go();
        assert!(bad.query().is_ok());
        bad.synchronize().unwrap();
    }
}

#[test]
fn errors_and_panics_of_closures_are_errors_of_the_stream() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let runs = Arc::new(AtomicU64::new(0));
        for i in 0..3 {
            let runs = Arc::clone(&runs);
            launch(&stream, noop, 0, 0, 2).done(move || {
                runs.fetch_add(1, Ordering::Relaxed);
                Err(Error::argument("i", i.to_string()))
            });
        }
        let error = stream.synchronize().unwrap_err();
        assert_eq!(error.to_string(), "invalid argument i: 0");
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        stream.synchronize().unwrap();

        launch(&stream, noop, 0, 0, 0).done(|| panic!("done"));
        assert!(matches!(stream.synchronize(), Err(Error::Panicked { .. })));
        stream.host_function(Box::new(|| panic!("host")));
        let error = stream.synchronize().unwrap_err();
        assert!(matches!(&error, Error::Panicked { message, .. } if message == "host"), "{error}");
        stream.synchronize().unwrap();
    }
}

#[test]
fn what_a_launch_keeps_goes_after_it_is_done() {
    struct Witness(Arc<AtomicU64>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let dropped = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&dropped);
        let (sender, receiver) = mpsc::channel();
        launch(&stream, noop, 0, 0, 3).keep(Arc::new(Witness(Arc::clone(&dropped)))).done(
            move || {
                sender.send(seen.load(Ordering::SeqCst)).unwrap();
                Ok(())
            },
        );
        stream.synchronize().unwrap();
        assert_eq!(receiver.recv_timeout(HANG), Ok(0));
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_host_function_may_wait_for_another_stream() {
    for runtime in runtimes() {
        let (a, b) = (runtime.stream().unwrap(), runtime.stream().unwrap());
        let memory = runtime.allocate(8).unwrap();
        let inner: Arc<dyn StreamOps> = Arc::clone(&b);
        launch(&a, noop, 0, 0, 2).go();
        let address = memory.address();
        a.host_function(Box::new(move || {
            launch(&inner, add_one, address, 0, 1).go();
            inner.synchronize().unwrap();
        }));
        a.synchronize().unwrap();
        let mut value = [0; 8];
        b.copy_out(&memory, 0, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 1);
    }
}

/// The thread that waits for a stream runs its host function, and cannot do what that waits for: a worker does.
#[test]
fn a_host_function_may_wait_for_what_another_stream_does() {
    for _ in 0..20 {
        let runtime: Arc<dyn Runtime> = Arc::new(CpuRuntime::with_workers(1));
        let (stream, other) = (runtime.stream().unwrap(), runtime.stream().unwrap());
        let ((begun, begins), (done, is_done)) = (mpsc::channel(), mpsc::channel());
        let (heard, hears) = mpsc::channel();
        stream.host_function(Box::new(move || {
            begun.send(()).unwrap();
            heard.send(is_done.recv_timeout(HANG)).unwrap();
        }));
        std::thread::scope(|scope| {
            let other = &other;
            scope.spawn(move || {
                begins.recv().unwrap();
                launch(other, noop, 0, 0, 1).done(move || {
                    done.send(()).unwrap();
                    Ok(())
                });
            });
            stream.synchronize().unwrap();
        });
        assert_eq!(hears.recv(), Ok(Ok(())));
    }
}

#[test]
fn copies_are_checked() {
    for runtime in runtimes() {
        let stream = runtime.stream().unwrap();
        let memory = runtime.allocate(10).unwrap();
        assert!(stream.copy_in(&memory, 3, &[0; 8]).is_err());
        assert!(stream.copy_in(&memory, usize::MAX, &[0; 8]).is_err());
        assert!(stream.copy_out(&memory, 11, &mut []).is_err());
        stream.copy_in(&memory, 10, &[]).unwrap();
        stream.synchronize().unwrap();
    }
}

#[test]
fn the_shared_device_is_one() {
    let (a, b) = (Device::cpu(), Device::cpu());
    assert!(Arc::ptr_eq(a.runtime(), b.runtime()));
    a.runtime().share_host(2);
    let stream = a.stream().unwrap();
    let data: Vec<u64> = (0..100_000).collect();
    assert_eq!(b.upload(&data).unwrap().to_vec(&stream).unwrap(), data);
    assert!(a.alloc::<u64>(usize::MAX / 8).is_err());
}

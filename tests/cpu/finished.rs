//! `Stream::finished`: on tokio, on an executor of a few lines, and in runtimes that nobody drives.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{CommConfig, Communicator, Device, DeviceBuffer, Error, ReduceOp, Result, Stream};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor: it polls only when it was woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

struct Ranks {
    ranks: Vec<Communicator>,
    streams: Vec<Stream>,
    buffers: Vec<DeviceBuffer<u32>>,
}

fn ranks(device: &Device, n: u32, count: usize, config: &CommConfig) -> Ranks {
    Ranks {
        ranks: Communicator::init_all_with(device, n, config).unwrap(),
        streams: (0..n).map(|_| device.stream().unwrap()).collect(),
        buffers: (0..n).map(|r| device.upload(&vec![r + 1; count]).unwrap()).collect(),
    }
}

impl Ranks {
    fn all_reduce(&self) {
        for ((rank, buffer), stream) in self.ranks.iter().zip(&self.buffers).zip(&self.streams) {
            rank.all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
        }
    }

    /// What each rank has, `calls` all-reduces later.
    fn check(&self, calls: u32) {
        let n = self.ranks.len() as u32;
        let want = n * (n + 1) / 2 * n.pow(calls - 1);
        for (buffer, stream) in self.buffers.iter().zip(&self.streams) {
            assert!(buffer.to_vec(stream).unwrap().iter().all(|x| *x == want), "not {want}");
        }
    }
}

#[test]
fn on_an_executor_that_polls_when_woken() {
    for count in [1, 5000, 300_000] {
        let all = ranks(&Device::cpu(), 4, count, &CommConfig::default());
        for call in 1..4 {
            all.all_reduce();
            block_on(async {
                for stream in &all.streams {
                    stream.finished().await.unwrap();
                }
            });
            all.check(call);
        }
    }
}

/// Each rank in a task, whose calls wait for those of the others.
#[test]
fn on_tokio() {
    let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    for executor in [one, several] {
        let Ranks { ranks, streams, buffers } =
            ranks(&Device::cpu(), 4, 20_000, &CommConfig::default());
        let tasks: Vec<_> = ranks
            .into_iter()
            .zip(streams)
            .zip(buffers)
            .map(|((rank, stream), buffer)| {
                executor.spawn(async move {
                    for _ in 0..5 {
                        rank.all_reduce(&buffer, &buffer, ReduceOp::Sum, &stream)?;
                        stream.finished().await?;
                    }
                    buffer.to_vec(&stream)
                })
            })
            .collect();
        executor.block_on(async {
            for task in tasks {
                let values: Vec<u32> = task.await.unwrap().unwrap();
                assert!(values.iter().all(|x| *x == 10 * 4u32.pow(4)));
            }
        });
    }
}

#[test]
fn in_a_runtime_that_nobody_drives() {
    let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(7))));
    let all = ranks(&device, 3, 1000, &CommConfig::default());
    all.all_reduce();
    block_on(async {
        for stream in &all.streams {
            stream.finished().await.unwrap();
        }
    });
    all.check(1);
}

/// The error is that of the call, and is given once.
#[test]
fn of_a_call_that_fails() {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(200));
    let all = ranks(&Device::cpu(), 2, 100, &config);
    let (buffer, stream) = (&all.buffers[0], &all.streams[0]);
    all.ranks[0].all_reduce(buffer, buffer, ReduceOp::Sum, stream).unwrap();
    let error = block_on(stream.finished()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    stream.synchronize().unwrap();
    block_on(stream.finished()).unwrap();
}

/// A future that is dropped leaves the call alone; one that is polled again after its end gives the same.
#[test]
fn dropped_and_polled_again() {
    let all = ranks(&Device::cpu(), 2, 10_000, &CommConfig::default());
    all.all_reduce();
    drop(all.streams[0].finished());
    let mut first = pin!(all.streams[0].finished());
    let cx = &mut Context::from_waker(Waker::noop());
    let mut poll = || first.as_mut().poll(cx);
    let ended: Result<()> = loop {
        match poll() {
            Poll::Ready(result) => break result,
            Poll::Pending => thread::sleep(Duration::from_micros(50)),
        }
    };
    ended.unwrap();
    assert!(matches!(poll(), Poll::Ready(Ok(()))));
    block_on(all.streams[1].finished()).unwrap();
    all.check(1);
}

/// The event of a stream's end is waited for within limits, of which the longest is more than a clock counts.
#[test]
fn an_event_within_a_limit() {
    for driven in [true, false] {
        let device = if driven {
            Device::new(Arc::new(CpuRuntime::with_workers(2)))
        } else {
            Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(3))))
        };
        let all = ranks(&device, 2, 1000, &CommConfig::default());
        let (first, second) = (&all.streams[0], &all.streams[1]);
        let call = |r: usize| {
            let buffer = &all.buffers[r];
            all.ranks[r].all_reduce(buffer, buffer, ReduceOp::Sum, &all.streams[r]).unwrap();
        };
        call(0);
        let ended = first.record();
        // Where nobody drives the runtime a wait for a rank that has not called is a deadlock, and no wait.
        if driven {
            assert!(first.wait_for(&ended, Duration::from_millis(30)).is_none());
            assert!(first.wait_for(&ended, Duration::ZERO).is_none());
        }
        call(1);
        assert!(matches!(first.wait_for(&ended, Duration::MAX), Some(Ok(()))));
        assert!(matches!(second.wait_for(&second.record(), Duration::MAX), Some(Ok(()))));
        all.check(1);
    }
}

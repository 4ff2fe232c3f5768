//! All-reduce on the CPU, f32 sum: `cargo bench --bench all_reduce`, some minutes; or a part of it by
//! name, as in `cargo bench --bench all_reduce -- 'protocol/4'`.
//!
//! ```text
//! one thread/RANKS/BYTES        one thread drives all ranks; operations in a row, one wait
//! blocking/RANKS/BYTES          the same, a wait after each operation
//! thread a rank/RANKS/BYTES     every rank driven by a thread of its own; a wait after each operation
//! protocol/RANKS PROTOCOL/BYTES as the first, with the protocol fixed: where they cross
//! ```
//!
//! Throughput is what nccl-tests calls `algbw`: one rank's bytes over the time. For `busbw` multiply by
//! `2 (n - 1) / n`. Against OpenMPI, and against the machine's memory: the bench `compare`.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use ferroccl::{
    CommConfig, Communicator, Device, DeviceBuffer, ProtocolId, ReduceOp, Result, Stream,
};

const RANKS: [u32; 2] = [4, 16];
const BYTES: [usize; 8] = [8, 1 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// One rank with what it reduces.
struct Member {
    rank: Communicator,
    stream: Stream,
    send: DeviceBuffer<f32>,
    recv: DeviceBuffer<f32>,
}

impl Member {
    fn enqueue(&self) -> Result<()> {
        self.rank.all_reduce(&self.send, &self.recv, ReduceOp::Sum, &self.stream)
    }
}

/// A group of `ranks` with `bytes` each, warm.
fn group(ranks: u32, bytes: usize, protocol: Option<ProtocolId>) -> Result<Vec<Member>> {
    let device = Device::cpu();
    let mut config = CommConfig::default();
    config.protocol = protocol;
    let data = vec![1.0f32; bytes / size_of::<f32>()];
    let members = Communicator::init_all_with(&device, ranks, &config)?
        .into_iter()
        .map(|rank| {
            Ok(Member {
                rank,
                stream: device.stream()?,
                send: device.upload(&data)?,
                recv: device.alloc(data.len())?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    run(&members, 2)?;
    Ok(members)
}

/// Enqueues `n` operations on all ranks and waits once.
fn run(members: &[Member], n: u64) -> Result<()> {
    for _ in 0..n {
        members.iter().try_for_each(Member::enqueue)?;
    }
    members.iter().try_for_each(|m| m.stream.synchronize())
}

/// Time of `n` operations in a row. More than a few hundred in a stream would measure the queue.
fn queued(members: &[Member], n: u64) -> Result<Duration> {
    let start = Instant::now();
    for done in (0..n).step_by(256) {
        run(black_box(members), (n - done).min(256))?;
    }
    Ok(start.elapsed())
}

fn blocking(members: &[Member], n: u64) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..n {
        run(black_box(members), 1)?;
    }
    Ok(start.elapsed())
}

/// The same with a thread a rank; the slowest one's time, from a barrier.
fn threads(members: &[Member], n: u64) -> Result<Duration> {
    let gate = Barrier::new(members.len());
    std::thread::scope(|scope| {
        let running: Vec<_> = members
            .iter()
            .map(|member| {
                scope.spawn(|| {
                    gate.wait();
                    blocking(std::slice::from_ref(member), n)
                })
            })
            .collect();
        running.into_iter().try_fold(Duration::ZERO, |slowest, thread| {
            Ok(slowest.max(thread.join().expect("a rank's thread panicked")?))
        })
    })
}

/// A name and what is timed.
type Case = (&'static str, fn(&[Member], u64) -> Result<Duration>);

const CASES: [Case; 3] =
    [("one thread", queued), ("blocking", blocking), ("thread a rank", threads)];

fn by_driver(criterion: &mut Criterion) {
    for (name, timed) in CASES {
        for ranks in RANKS {
            let mut bench = begin(criterion, &format!("{name}/{ranks}"));
            for bytes in sizes() {
                point(&mut bench, BenchmarkId::from_parameter(bytes), ranks, bytes, None, timed);
            }
            bench.finish();
        }
    }
}

fn by_protocol(criterion: &mut Criterion) {
    for ranks in RANKS {
        for &protocol in ProtocolId::ALL {
            let mut bench = begin(criterion, &format!("protocol/{ranks} {protocol}"));
            for bytes in sizes().filter(|bytes| *bytes <= 4 << 20) {
                let id = BenchmarkId::from_parameter(bytes);
                point(&mut bench, id, ranks, bytes, Some(protocol), queued);
            }
            bench.finish();
        }
    }
}

/// `cargo test` runs each case once, unoptimised: the small ones are enough for that.
fn sizes() -> impl Iterator<Item = usize> {
    let most = if std::env::args().any(|a| a == "--bench") { usize::MAX } else { 32 << 10 };
    BYTES.into_iter().filter(move |bytes| *bytes <= most)
}

fn begin<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut bench = criterion.benchmark_group(name);
    bench
        .sampling_mode(SamplingMode::Flat)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400));
    bench
}

fn point(
    bench: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    ranks: u32,
    bytes: usize,
    protocol: Option<ProtocolId>,
    timed: fn(&[Member], u64) -> Result<Duration>,
) {
    bench.throughput(Throughput::Bytes(bytes as u64));
    bench.bench_function(id, |bencher| {
        // A bench has nobody to return an error to.
        let members = group(ranks, bytes, protocol).unwrap_or_else(|e| panic!("set-up: {e}"));
        bencher.iter_custom(|n| timed(&members, n).unwrap_or_else(|e| panic!("all-reduce: {e}")));
    });
}

criterion_group!(benches, by_driver, by_protocol);
criterion_main!(benches);

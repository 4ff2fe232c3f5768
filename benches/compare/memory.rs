//! What the machine's memory gives: the ceiling that an all-reduce on a CPU runs against.
//!
//! An out-of-place all-reduce whose ranks reach each other's memory reads every rank's input and writes every
//! rank's output at least once: it is at least one copy of all ranks' buffers. That copy is measured here, for
//! the same ranks and sizes, on buffers of the same runtime (so on the same pages), in every round of the
//! comparison, and by several loops: which is the fastest depends on the processor and on the size.

use std::sync::Barrier;
use std::time::Instant;

use ferroccl::{Device, DeviceBuffer};

use crate::Outcome;

/// A way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loop {
    /// The C library's `memcpy`.
    Memcpy,
    /// 32-byte loads and stores.
    Vector,
    /// 32-byte loads, and stores that go around the caches.
    Streaming,
}

impl Loop {
    /// Those that this processor has.
    fn all() -> Vec<Loop> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx") {
            return vec![Loop::Memcpy, Loop::Vector, Loop::Streaming];
        }
        vec![Loop::Memcpy]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Loop::Memcpy => "memcpy",
            Loop::Vector => "vector loop",
            Loop::Streaming => "streaming stores",
        }
    }
}

/// One round's fastest copy of all ranks' buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    /// How it was copied.
    pub(crate) body: Loop,
    /// On how many threads.
    pub(crate) threads: usize,
    /// Median time of one copy of all buffers.
    pub(crate) us: f64,
}

/// Copies `ranks` buffers of `bytes` to as many others: with every loop, on one thread and on `cores`, each
/// for `seconds`. The one with the least median is the answer.
pub(crate) fn copy(
    device: &Device,
    ranks: u32,
    bytes: u64,
    cores: usize,
    seconds: f64,
) -> Outcome<Copied> {
    let len = usize::try_from(bytes)?;
    let pairs = (0..ranks)
        .map(|_| Ok((device.upload(&vec![1u8; len])?, device.upload(&vec![2u8; len])?)))
        .collect::<ferroccl::Result<Vec<_>>>()?;
    let pairs: Vec<Vec<Pair>> = pairs.into_iter().map(|pair| vec![pair]).collect();
    fastest(&pairs, cores, seconds).ok_or_else(|| "no loop copies".into())
}

/// The loop, and the number of threads, with the least median of copying `groups`: see [`loops`].
pub(crate) fn fastest(groups: &[Vec<Pair>], cores: usize, seconds: f64) -> Option<Copied> {
    loops(groups, cores, seconds).into_iter().min_by(|a, b| a.us.total_cmp(&b.us))
}

/// Each loop, with the number of threads that gives the least median of copying `groups`: the pairs of one in a row, by
/// one thread. Targets of different groups are apart. The C library's `memcpy` is the first.
pub(crate) fn loops(groups: &[Vec<Pair>], cores: usize, seconds: f64) -> Vec<Copied> {
    let threads = if cores > 1 { vec![1, cores] } else { vec![1] };
    let with = |body: Loop| {
        let copied = |&threads: &usize| {
            let us = median_us(groups, body, threads, seconds);
            Copied { body, threads, us }
        };
        threads.iter().map(copied).min_by(|a, b| a.us.total_cmp(&b.us))
    };
    Loop::all().into_iter().filter_map(with).collect()
}

/// From a buffer to another.
pub(crate) type Pair = (DeviceBuffer<u8>, DeviceBuffer<u8>);

/// Microseconds of copying all `groups`, in the median span of those that fit into `seconds`.
fn median_us(groups: &[Vec<Pair>], body: Loop, threads: usize, seconds: f64) -> f64 {
    const LEAST_SPANS: usize = 5;
    const SPAN: f64 = 2e-3; // long against a barrier
    let mine = |thread: usize| groups.iter().skip(thread).step_by(threads).flatten();
    let pass = |thread: usize| mine(thread).for_each(|(from, to)| copy_once(body, from, to));
    // The first pass warms, the second says how many make a span.
    pass(0);
    let start = Instant::now();
    pass(0);
    let one = start.elapsed().as_secs_f64();
    let passes = (SPAN / one.max(1e-9)).ceil().max(1.0) as usize;
    let spans = ((seconds / (one * passes as f64)) as usize).clamp(LEAST_SPANS, 1000);
    let gate = Barrier::new(threads);
    let spanned = |thread: usize| {
        pass(thread);
        let mut times = Vec::new();
        for _ in 0..spans {
            gate.wait();
            let start = Instant::now();
            for _ in 0..passes {
                pass(thread);
            }
            gate.wait(); // a span ends with the last thread
            times.push(start.elapsed().as_secs_f64());
        }
        times
    };
    let mut times = std::thread::scope(|scope| {
        for thread in 1..threads {
            let spanned = &spanned;
            scope.spawn(move || spanned(thread));
        }
        spanned(0)
    });
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] / passes as f64 * 1e6
}

fn copy_once(body: Loop, from: &DeviceBuffer<u8>, to: &DeviceBuffer<u8>) {
    let len = from.len().min(to.len());
    let source = std::ptr::with_exposed_provenance::<u8>(from.address() as usize);
    let target = std::ptr::with_exposed_provenance_mut::<u8>(to.address() as usize);
    // SAFETY: both are allocations of the CPU runtime of at least `len` bytes, aligned to 256, alive as long as
    // their handles, apart from each other; no stream uses them, and each pair is copied by one thread.
    // `Loop::all` gives what the processor has.
    unsafe {
        match body {
            Loop::Memcpy => std::ptr::copy_nonoverlapping(source, target, len),
            #[cfg(target_arch = "x86_64")]
            Loop::Vector => x86::copy::<false>(source, target, len),
            #[cfg(target_arch = "x86_64")]
            Loop::Streaming => x86::copy::<true>(source, target, len),
            #[cfg(not(target_arch = "x86_64"))]
            Loop::Vector | Loop::Streaming => std::ptr::copy_nonoverlapping(source, target, len),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm_sfence, _mm256_load_si256, _mm256_store_si256, _mm256_stream_si256,
    };

    /// Copies, 128 bytes a turn.
    ///
    /// # Safety
    /// The processor has AVX; the ranges of `len` bytes are valid, aligned to 32 and do not overlap.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy<const STREAM: bool>(from: *const u8, to: *mut u8, len: usize) {
        let turns = len / 128;
        for turn in 0..turns {
            // SAFETY: turn * 128 + 128 <= len, and the caller's promise.
            unsafe {
                let source = from.add(turn * 128).cast::<__m256i>();
                let target = to.add(turn * 128).cast::<__m256i>();
                let data: [__m256i; 4] = std::array::from_fn(|i| _mm256_load_si256(source.add(i)));
                for (i, data) in data.into_iter().enumerate() {
                    if STREAM {
                        _mm256_stream_si256(target.add(i), data);
                    } else {
                        _mm256_store_si256(target.add(i), data);
                    }
                }
            }
        }
        if STREAM {
            _mm_sfence(); // streamed bytes are in order with nothing else before it
        }
        let done = turns * 128;
        // SAFETY: the rest of the ranges.
        unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done) };
    }
}

//! What busbw copies in memory come to, on CPU devices: ranks on one machine share its memory, and whatever they exchange is copied.
//!
//! It is no bound: data that fits caches moves faster, and a call in place moves less than a copy, which also reads what it overwrites.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use serde::Serialize;

use super::operation::Operation;

/// Bytes that a thread copies at once: more than caches hold.
const BYTES: usize = 32 << 20;
/// How often; the fastest counts.
const ROUNDS: usize = 5;

/// The busbw that copies come to, and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CopySpeed {
    /// In 10^9 bytes per second.
    pub(crate) gbps: f64,
    pub(crate) source: String,
}

/// How many times its size an operation has to copy at least, in place or out of place: each output is written, and where values are
/// combined each input is read.
fn copies(operation: Operation, ranks: u32) -> f64 {
    let n = f64::from(ranks);
    match operation {
        // In place a rank has its own part, or the root all of it.
        Operation::AllGather | Operation::Broadcast => n - 1.0,
        Operation::Gather | Operation::Scatter => (n - 1.0) / n,
        _ => n,
    }
}

/// Measures the copies of all cores together; `None` for a single rank, or without memory to copy.
pub(crate) fn of_copies(operation: Operation, ranks: u32) -> Option<CopySpeed> {
    if ranks < 2 {
        return None;
    }
    let threads = thread::available_parallelism().map_or(1, usize::from).min(ranks as usize);
    let buffer = |value: u8| {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(BYTES).ok()?;
        buffer.resize(BYTES, value);
        Some(buffer)
    };
    let buffers: Option<Vec<_>> = (0..threads).map(|_| Some((buffer(1)?, buffer(0)?))).collect();
    let mut buffers = buffers?;
    let round = |buffers: &mut Vec<(Vec<u8>, Vec<u8>)>| {
        let start = Instant::now();
        thread::scope(|scope| {
            for (from, to) in buffers.iter_mut() {
                scope.spawn(move || black_box(to.as_mut_slice()).copy_from_slice(black_box(from)));
            }
        });
        start.elapsed().as_secs_f64()
    };
    let least = (0..ROUNDS).map(|_| round(&mut buffers)).fold(f64::INFINITY, f64::min);
    let all = (threads * BYTES) as f64 / least / 1e9;
    let times = copies(operation, ranks);
    let source = format!(
        "{threads} threads of this machine copied {all:.1} GB/s of {} MiB each, and {operation} has to copy {times:.2} times its size",
        BYTES >> 20
    );
    Some(CopySpeed { gbps: all / times * operation.bus_factor(ranks), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_of_the_copies_of_the_operation() {
        assert_eq!(copies(Operation::AllReduce, 4).to_bits(), 4f64.to_bits());
        assert_eq!(copies(Operation::Broadcast, 4).to_bits(), 3f64.to_bits());
        assert_eq!(copies(Operation::Scatter, 4).to_bits(), 0.75f64.to_bits());
        assert_eq!(of_copies(Operation::AllReduce, 1), None);
        let limit = of_copies(Operation::Broadcast, 3).unwrap();
        assert!(limit.gbps > 0.0 && limit.gbps.is_finite());
        assert!(
            limit.source.contains("broadcast has to copy 2.00 times its size"),
            "{}",
            limit.source
        );
    }
}

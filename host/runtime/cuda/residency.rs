//! Room on a GPU: what all communicators of this process have launched must be able to run at the same time.
//!
//! Kernels wait for each other, so one that has no room waits for others that wait for it. A communicator plans its calls for the
//! whole GPU ([`Launch::sharing`](crate::runtime::Launch)), as if there were no other. So launches are counted here, over all
//! communicators. What is in one stream runs one after the other: a stream takes as much as the largest of its launches that have
//! not ended. A launch that does not fit beside what is in the other streams waits on the host until enough of that has ended,
//! and is refused when its patience is over.
//!
//! Not counted: launches of graphs, kernels of others, and other processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::driver::RawStream;
use super::gpu::Gpu;
use super::watch;
use crate::error::{Error, Result};
use crate::runtime::sync::lock;

/// A multiprocessor in parts: a number that most counts of blocks divide.
const PARTS: u64 = 5040;
/// How long a launch waits for room. Not measured: longer than calls take, shorter than a user waits for a program that hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(100);

/// By stream the launches that have not ended: the parts of multiprocessors that each takes.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<HashMap<usize, Vec<u64>>>);

/// The room that a launch takes, until it has ended.
pub(super) struct Room {
    gpu: Arc<Gpu>,
    stream: usize,
    cost: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut streams = lock(&self.gpu.ledger.0);
        if let Some(launches) = streams.get_mut(&self.stream) {
            // Of those that take as much it does not matter which one is gone.
            if let Some(at) = launches.iter().position(|cost| *cost == self.cost) {
                launches.swap_remove(at);
            }
            if launches.is_empty() {
                streams.remove(&self.stream);
            }
        }
    }
}

/// Parts of multiprocessors for blocks of which one holds so many.
fn cost(blocks: u32, per_multiprocessor: u32) -> u64 {
    u64::from(blocks) * PARTS / u64::from(per_multiprocessor.max(1))
}

impl Ledger {
    /// Adds a launch if the streams together take no more than `all`; else says how much the others take.
    fn add(&self, stream: usize, cost: u64, all: u64) -> std::result::Result<(), u64> {
        let mut streams = lock(&self.0);
        let largest = |launches: &Vec<u64>| launches.iter().copied().max().unwrap_or(0);
        let others = streams.iter().filter(|(other, _)| **other != stream);
        let others: u64 = others.map(|(_, launches)| largest(launches)).sum();
        let own = streams.get(&stream).map_or(0, largest).max(cost);
        if others > 0 && others + own > all {
            return Err(others);
        }
        streams.entry(stream).or_default().push(cost);
        Ok(())
    }
}

impl Gpu {
    /// Room for a launch in a stream.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when what runs in other streams leaves none.
    pub(super) fn room(
        self: &Arc<Self>,
        (kernel, stream): (&str, RawStream),
        blocks: u32,
        per_multiprocessor: u32,
    ) -> Result<Room> {
        let all = u64::from(self.multiprocessors) * PARTS;
        let (stream, cost) = (stream as usize, cost(blocks, per_multiprocessor));
        let mut deadline = None;
        loop {
            let Err(others) = self.ledger.add(stream, cost, all) else {
                return Ok(Room { gpu: Arc::clone(self), stream, cost });
            };
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
            if Instant::now() > deadline {
                let what = format!("room for {kernel} on {}", self.name);
                let reason = format!(
                    "its {blocks} blocks take {} of {} multiprocessors, and calls in other streams, of this communicator or \
                     of others, have {} and have not ended in {} s: blocks that wait for each other have to run at the same \
                     time; let those calls end before (Stream::synchronize), or use fewer channels (NCCL_MAX_NCHANNELS)",
                    cost.div_ceil(PARTS),
                    self.multiprocessors,
                    others.div_ceil(PARTS),
                    PATIENCE.as_secs()
                );
                return Err(Error::Unavailable { what, reason });
            }
            std::thread::sleep(PAUSE);
            watch::look();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_as_much_as_its_largest_launch() {
        let (ledger, all) = (Ledger::default(), 16 * PARTS);
        for blocks in [4, 12, 8] {
            assert_eq!(ledger.add(1, cost(blocks, 1), all), Ok(()));
        }
        assert_eq!(ledger.add(2, cost(8, 1), all), Err(12 * PARTS));
        assert_eq!(ledger.add(2, cost(8, 2), all), Ok(()));
        assert_eq!(ledger.add(3, cost(1, 16), all), Err(16 * PARTS));
        // Behind what is in its own stream there is always room for what fits at all.
        assert_eq!(ledger.add(1, cost(12, 1), all), Ok(()));
    }

    #[test]
    fn what_is_alone_is_not_held_up() {
        assert_eq!(Ledger::default().add(1, cost(40, 1), 16 * PARTS), Ok(()));
    }
}

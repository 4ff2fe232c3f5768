//! Communicators from their beginning to their end: splits, several at once, in the background; ended by finalizing, by
//! aborting, by leaving; and over networks, those that reduce among them.
//!
//! What depends on the environment runs in a process of its own: the test binary starts itself.

mod calling_threads;
mod collnet;
mod device_comm;
mod device_prims;
mod device_puts;
mod failures;
mod forks;
mod launch;
mod life;
mod net;
mod readme;
mod records;
mod shrink;
mod split;
mod stalls;
mod suspend;

#[path = "../support/again.rs"]
mod again;
#[path = "../support/puts.rs"]
mod puts;
#[path = "../support/puts_run.rs"]
mod puts_run;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/rounds.rs"]
mod rounds;
#[path = "../support/rounds_run.rs"]
mod rounds_run;
#[path = "../support/team.rs"]
mod team;
#[path = "../support/tier.rs"]
mod tier;

use ferroccl::{CommConfig, Communicator, Device, ReduceOp, Result, Stream, UniqueId, device};

/// All ranks of a group that found each other by an id, each in a thread of its own.
fn init_ranks(device: &Device, n: u32, config: &CommConfig) -> Vec<Communicator> {
    let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
    each(n, |rank| Communicator::init_rank_with(device, n, &id, rank, config).unwrap())
}

/// Ranks of one process that were made at once, and ranks that found each other.
fn both_ways(device: &Device, n: u32, config: &CommConfig) -> [Vec<Communicator>; 2] {
    [Communicator::init_all_with(device, n, config).unwrap(), init_ranks(device, n, config)]
}

/// What `body` gives for each rank, in a thread of its own.
fn each<T: Send>(n: u32, body: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..n).map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The sum of what all ranks of each communicator give: started for all, then waited for.
fn sums(device: &Device, ranks: &[(&Communicator, u64)]) -> Vec<Result<u64>> {
    // Before any call: an upload may run what has been started, and find that it waits for what has not.
    let buffers: Vec<_> =
        ranks.iter().map(|(_, value)| device.upload(&[*value]).unwrap()).collect();
    let started: Vec<(Stream, Result<()>)> = ranks
        .iter()
        .zip(&buffers)
        .map(|((communicator, _), buffer)| {
            let stream = device.stream().unwrap();
            let call = communicator.all_reduce(buffer, buffer, ReduceOp::Sum, &stream);
            (stream, call)
        })
        .collect();
    let ends = started.into_iter().zip(&buffers);
    ends.map(|((stream, call), buffer)| call.and_then(|()| Ok(buffer.to_vec(&stream)?[0])))
        .collect()
}

//! A kernel of the user's that does all that a device communicator can over several nodes, round after round, and what comes out of it.
//!
//! ```text
//! each round, each block:
//!   put own values to all ranks, in signals; flush; overwrite them
//!   sum what the node gives                                          barriers of the node
//!   x = .. ; tell a rank of another node whom to tell: this rank's neighbour, which then reads x
//!   barrier
//! ```

use crate::device::abi::{DeviceComm, DeviceWindow};
use crate::device::device_comm::Team;
use crate::device::gpu;
use crate::device::reduce::Sum;

crate::device::kernel_argument! {
    /// What the kernel takes. Block `b` has barriers `2 b` and `2 b + 1`, signals from `3 b` on, and the `b`-th part of every buffer.
    pub(crate) struct Puts {
        pub(crate) comm: DeviceComm,
        /// For each rank what it gets: `count` elements.
        pub(crate) source: DeviceWindow,
        /// What each rank has sent.
        pub(crate) inbox: DeviceWindow,
        /// What this rank gives to its node.
        pub(crate) give: DeviceWindow,
        /// A word for the neighbour, and one for each rank of the communicator.
        pub(crate) mail: DeviceWindow,
        /// Address of `u32`s: the rank that is told, the one that tells this rank, how many tell this rank, and which.
        pub(crate) relays: u64,
        /// Address of what is left of each round, by block.
        pub(crate) results: u64,
        pub(crate) count: u64,
        pub(crate) rounds: u64,
        /// What is done wrong, and [`NOT_READ`].
        pub(crate) mistake: u64,
    }
}

/// Nothing is done wrong.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) const NONE: u64 = 0;
/// What was put is overwritten at once.
pub(crate) const NO_FLUSH: u64 = 1;
/// The signal comes before what it is for.
pub(crate) const EARLY_SIGNAL: u64 = 2;
/// Nobody waits for what is put.
pub(crate) const NO_WAIT: u64 = 3;

/// Beside a mistake: x is not read, for who looks for races and does not know what a proxy orders.
pub(crate) const NOT_READ: u64 = 16;

/// What a rank gives another in a round.
pub(crate) fn given(rank: u64, to: u64, block: u64, round: u64, i: u64) -> u64 {
    (rank + 1) * 1_000_003 + to * 70_001 + block * 10_007 + round * 101 + i
}

/// Words of a round's result.
pub(crate) const fn result_words(ranks: u64, count: u64) -> u64 {
    (ranks + 1) * count + 1
}

/// What is left of a rank's rounds, as the kernel has it in its results; by rank the number of its node.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn expected(
    rank: u64,
    nodes: &[usize],
    (blocks, count, rounds): (u64, u64, u64),
) -> Vec<u64> {
    let ranks = nodes.len() as u64;
    let node: Vec<u64> =
        (0..ranks).filter(|r| nodes[*r as usize] == nodes[rank as usize]).collect();
    let place = node.iter().position(|r| *r == rank).unwrap();
    let before = node[(place + node.len() - 1) % node.len()];
    let mut all = Vec::new();
    for block in 0..blocks {
        for round in 0..rounds {
            for from in 0..ranks {
                all.extend((0..count).map(|i| given(from, rank, block, round, i)));
            }
            let sum = |i| node.iter().map(|r| given(*r, *r, block, round, i)).sum::<u64>();
            all.extend((0..count).map(sum));
            all.push(given(before, 0, block, round, 5));
        }
    }
    all
}

/// The table of a rank's relays, by rank the number of its node.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn relays(rank: usize, nodes: &[usize]) -> Vec<u32> {
    let ranks = 0..nodes.len();
    let node = |r: usize| ranks.clone().filter(move |other| nodes[*other] == nodes[r]);
    let far = |r: usize| ranks.clone().find(|other| nodes[*other] != nodes[r]).unwrap_or(r);
    let members: Vec<usize> = node(rank).collect();
    let place = members.iter().position(|r| *r == rank).unwrap();
    let before = members[(place + members.len() - 1) % members.len()];
    let told: Vec<usize> = ranks.clone().filter(|r| far(*r) == rank).collect();
    let table = [far(rank), far(before), told.len()].into_iter().chain(told);
    table.map(|rank| rank as u32).collect()
}

crate::device::user_kernels! {
    /// See the file's documentation.
    pub(crate) PUTS = "test_puts": 512, puts, Puts;
}

/// Stores a value of each element.
///
/// # Safety
/// There are `count` elements, which nobody else uses.
#[inline(always)]
unsafe fn fill(lane: usize, lanes: usize, to: *mut u64, count: usize, value: impl Fn(u64) -> u64) {
    let mut i = lane;
    while i < count {
        // SAFETY: the caller's.
        unsafe { gpu::st_data(to.wrapping_add(i), value(i as u64), size_of::<u64>()) };
        i += lanes;
    }
}

/// # Safety
/// The launch's contract: all ranks have as many blocks, elements and rounds.
#[inline(always)]
unsafe fn puts(my: Puts) {
    // SAFETY: the caller's. Each part of a buffer is written by one block of one rank at a time, as the barriers and signals have it.
    unsafe {
        let mut comm = my.comm.open();
        let block = gpu::block_idx_x();
        let (rank, ranks, count) = (comm.rank(), comm.ranks(), my.count as usize);
        let (sent, told, passed) = (3 * block, 3 * block + 1, 3 * block + 2);
        let word = size_of::<u64>();
        let part = |rank: u32| (block as usize * ranks as usize + rank as usize) * count * word;
        let (lane, lanes) = comm.lanes();
        let mistake = my.mistake & !NOT_READ;
        let words = result_words(ranks.into(), my.count) as usize;
        let mut result =
            (my.results as *mut u64).wrapping_add(block as usize * my.rounds as usize * words);
        let own = |window: DeviceWindow, at: usize| window.peer::<u64>(rank, at);
        for round in 0..my.rounds {
            for to in 0..ranks {
                let value = |i| given(rank.into(), to.into(), block.into(), round, i);
                fill(lane, lanes, own(my.source, part(to)), count, value);
            }
            let mut first = comm.last_put();
            for by in 0..ranks {
                let to = (rank + by) % ranks;
                let (here, there) = ((my.source, part(to)), (my.inbox, part(rank)));
                if mistake == EARLY_SIGNAL {
                    comm.signal(to, sent);
                    comm.put_to::<u64>(to, there, here, count);
                } else if (to + rank).is_multiple_of(2) {
                    comm.put_to_with_signal::<u64>((to, sent), there, here, count);
                } else {
                    comm.put_to::<u64>(to, there, here, count);
                    comm.signal(to, sent);
                }
                if to == 0 {
                    first = comm.last_put();
                }
            }
            if mistake != NO_FLUSH && round % 2 == 1 {
                // What went to rank 0 is overwritten while the rest is on its way.
                if !comm.wait_sent(first) || !comm.is_sent(first) {
                    return;
                }
                fill(lane, lanes, own(my.source, part(0)), count, |_| 0xdead);
                if !comm.wait_sent(comm.last_put()) {
                    return;
                }
            } else if mistake != NO_FLUSH && !comm.flush() {
                return;
            }
            for to in 0..ranks {
                fill(lane, lanes, own(my.source, part(to)), count, |_| 0xdead);
            }
            // The node's sum.
            let give = block as usize * count * word;
            let value = |i| given(rank.into(), rank.into(), block.into(), round, i);
            fill(lane, lanes, own(my.give, give), count, value);
            if !comm.barrier_of(Team::Node, 2 * block) {
                return;
            }
            comm.reduce_node::<u64, Sum>(
                my.give,
                give,
                result.wrapping_add(ranks as usize * count),
                count,
            );
            // What all ranks have sent.
            if mistake != NO_WAIT && !comm.wait_signal(sent, ranks.into()) {
                return;
            }
            for from in 0..ranks {
                let to = result.wrapping_add(from as usize * count);
                comm.put(to, own(my.inbox, part(from)).cast_const(), count);
            }
            if mistake == NO_WAIT && !comm.wait_signal(sent, ranks.into()) {
                return;
            }
            // By a rank of another node the neighbour learns that x is there.
            let mail = block as usize * (ranks as usize + 1) * word;
            if lane == 0 {
                let x = given(rank.into(), 0, block.into(), round, 5);
                gpu::st_data(own(my.mail, mail), x, word);
            }
            let node = comm.team_ranks(Team::Node);
            let next = (comm.team_rank(Team::Node) + 1) % node;
            let neighbour = comm.world_rank(Team::Node, next);
            let relay = |i: u32| gpu::ld_data((my.relays as *const u32).wrapping_add(i as usize));
            let far = relay(0);
            let slot = mail + (1 + rank as usize) * word;
            comm.put_value_to::<u64>(far, (my.mail, slot), neighbour.into());
            comm.signal(far, told);
            for i in 0..relay(2) {
                let from = relay(3 + i);
                if !comm.wait_signal_of(from, told, 1) {
                    return;
                }
                let at = own(my.mail, mail + (1 + from as usize) * word);
                comm.signal(gpu::ld_data(at.cast_const()) as u32, passed);
            }
            if !comm.wait_signal_of(relay(1), passed, 1) {
                return;
            }
            let before = (comm.team_rank(Team::Node) + node - 1) % node;
            let before = comm.world_rank(Team::Node, before);
            let x = my.mail.peer::<u64>(before, mail).cast_const();
            if lane == 0 {
                let x = match my.mistake & NOT_READ {
                    0 => gpu::ld_data(x),
                    _ => given(before.into(), 0, block.into(), round, 5),
                };
                gpu::st_data(result.wrapping_add(words - 1), x, word);
            }
            result = result.wrapping_add(words);
            // Nobody puts again, nor writes, before all have read.
            if !comm.barrier(2 * block + 1) {
                return;
            }
        }
    }
}

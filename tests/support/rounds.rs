//! A kernel of the user's that does all that a device communicator can, round after round, and what comes out of it.

use crate::device::abi::{DeviceComm, DeviceWindow};
use crate::device::gpu;
use crate::device::reduce::Sum;

/// Buffers of a rank, each with [`Rounds::count`] elements for each block.
pub(crate) const BUFFERS: usize = 3;

crate::device::kernel_argument! {
    /// What the kernel takes. Block `b` has barrier `b`, signals `2 b` and `2 b + 1`, and the `b`-th part of every buffer.
    pub(crate) struct Rounds {
        pub(crate) comm: DeviceComm,
        /// What ranks give; what they are sent; what all get.
        pub(crate) windows: [DeviceWindow; BUFFERS],
        /// Address of what is left of each round, by block: sums, what was sent, what all got; `count` elements each.
        pub(crate) results: u64,
        pub(crate) count: u64,
        pub(crate) rounds: u64,
    }
}

/// What a rank gives in a round.
pub(crate) fn given(rank: u64, block: u64, round: u64, i: u64) -> u64 {
    (rank + 1) * 1_000_003 + block * 10_007 + round * 101 + i
}

/// What is left of a rank's rounds, as the kernel has it in its results.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn expected(
    rank: u64,
    ranks: u64,
    (blocks, count, rounds): (u64, u64, u64),
) -> Vec<u64> {
    let mut all = Vec::new();
    for block in 0..blocks {
        for round in 0..rounds {
            let sum = |i| (0..ranks).map(|r| given(r, block, round, i)).sum::<u64>();
            all.extend((0..count).map(sum));
            all.extend((0..count).map(|i| given((rank + ranks - 1) % ranks, block, round, i)));
            all.extend((0..count).map(sum));
        }
    }
    all
}

crate::device::user_kernels! {
    /// See the file's documentation.
    pub(crate) ROUNDS = "test_rounds": 512, rounds, Rounds;
}

/// # Safety
/// The launch's contract: all ranks have as many blocks, elements and rounds.
#[inline(always)]
unsafe fn rounds(my: Rounds) {
    // SAFETY: the caller's. Each part of a buffer is written by one block of one rank at a time, as the barriers and signals have it.
    unsafe {
        let mut comm = my.comm.open();
        let block = gpu::block_idx_x();
        let (rank, ranks, count) = (comm.rank(), comm.ranks(), my.count as usize);
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let (sent, taken) = (2 * block, 2 * block + 1);
        let bytes = size_of::<u64>();
        let start = block as usize * count * bytes;
        let [give, inbox, all] = my.windows;
        let (lane, lanes) = comm.lanes();
        let mut result = (my.results as *mut u64)
            .wrapping_add(block as usize * my.rounds as usize * BUFFERS * count);
        for round in 0..my.rounds {
            let own = give.peer::<u64>(rank, start);
            let mut i = lane;
            while i < count {
                let value = given(rank.into(), block.into(), round, i as u64);
                gpu::st_data(own.wrapping_add(i), value, bytes);
                i += lanes;
            }
            if !comm.barrier(block) {
                return;
            }
            comm.reduce::<u64, Sum>(give, start, result, count);
            result = result.wrapping_add(count);
            // To the next rank, which says when it has read the last round's.
            comm.put_with_signal((next, sent), inbox.peer::<u64>(next, start), own, count);
            if !comm.wait_signal_of(previous, sent, 1) {
                return;
            }
            comm.put(result, inbox.peer::<u64>(rank, start), count);
            result = result.wrapping_add(count);
            comm.signal(previous, taken);
            // A part of all sums for all.
            let each = count.div_ceil(ranks as usize);
            let first = (each * rank as usize).min(count);
            let n = each.min(count - first);
            let at = start + first * bytes;
            comm.reduce_to_all::<u64, Sum>((give, at), (all, at), n);
            if !comm.barrier(block) {
                return;
            }
            comm.put(result, all.peer::<u64>(rank, start), count);
            result = result.wrapping_add(count);
            if !comm.wait_signal(taken, 1) {
                return;
            }
        }
        // Nobody leaves while others read from its buffers.
        comm.barrier(block);
    }
}

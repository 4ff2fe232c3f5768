//! A kernel in which blocks use primitives: an all-reduce around a ring, a pipeline along it, and messages between any two ranks, round
//! after round, each time in another protocol.

use crate::device::abi::{DeviceComm, NO_RANK};
use crate::device::device_comm::BlockComm;
use crate::device::gpu;
use crate::device::prims::{Ll, Ll128, Protocol, Simple};
use crate::device::reduce::{Max, Sum};

crate::device::kernel_argument! {
    /// What the kernel takes. Block `b` has channel `b`, and the `b`-th part of every buffer.
    pub(crate) struct Pipes {
        pub(crate) comm: DeviceComm,
        /// Address of what each block gives, `count` elements for each rank.
        pub(crate) given: u64,
        /// Address of what is left: by block and round, the sums (`ranks * count`), the largest (`count`), from each rank a message
        /// (`ranks * count`), and on rank 0, of up to four ranks, the sums of all at once (`count`).
        pub(crate) results: u64,
        pub(crate) count: u64,
        pub(crate) rounds: u64,
        /// The number of the first round.
        pub(crate) first: u64,
        /// Not 0: all ranks are connected, and not only neighbours.
        pub(crate) all: u64,
    }
}

/// What a rank gives in a round.
pub(crate) fn given(rank: u64, block: u64, round: u64, i: u64) -> u32 {
    (rank * 1_003 + block * 107 + round * 31 + i * (rank + 1) + 1) as u32
}

/// Elements that are left of a round.
pub(crate) const fn results_of(ranks: u64, count: u64) -> u64 {
    (2 * ranks + 2) * count
}

crate::device::user_kernels! {
    /// See the file's documentation.
    pub(crate) PIPES = "test_pipes": 512, pipes, Pipes;
}

/// # Safety
/// The launch's contract: all ranks have as many blocks, elements and rounds.
#[inline(always)]
unsafe fn pipes(my: Pipes) {
    // SAFETY: the caller's.
    unsafe {
        let mut comm = my.comm.open();
        let mut round = 0;
        while round < my.rounds {
            let number = my.first + round;
            let went = match number % 3 {
                0 => one_round::<Simple>(&my, &mut comm, round, number),
                1 => one_round::<Ll>(&my, &mut comm, round, number),
                _ => one_round::<Ll128>(&my, &mut comm, round, number),
            };
            if !went {
                return;
            }
            round += 1;
        }
    }
}

/// # Safety
/// The launch's contract; all lanes call it.
#[inline(always)]
unsafe fn one_round<P: Protocol>(
    my: &Pipes,
    comm: &mut BlockComm,
    round: u64,
    number: u64,
) -> bool {
    // SAFETY: the caller's. A block has a channel and parts of the buffers of its own.
    unsafe {
        let channel = gpu::block_idx_x();
        let block = u64::from(channel);
        let (rank, ranks, count) = (comm.rank(), comm.ranks(), my.count as usize);
        let whole = ranks as usize * count;
        let own = (my.given as *mut u32).wrapping_add(channel as usize * whole);
        let each = results_of(ranks.into(), my.count);
        let sums =
            (my.results as *mut u32).wrapping_add(((block * my.rounds + round) * each) as usize);
        let largest = sums.wrapping_add(whole);
        let messages = largest.wrapping_add(count);
        let (mut i, lanes) = comm.lanes();
        while i < whole {
            let value = given(rank.into(), block, number, i as u64);
            gpu::st_data(own.wrapping_add(i), value, size_of::<u32>());
            i += lanes;
        }
        // What lanes have given others use, and what they used is there to be given again.
        gpu::sync_threads();
        let ring = comm.ring(channel);
        let k = ranks as usize;
        if k == 1 {
            comm.put(sums, own.cast_const(), whole);
            comm.put(largest, own.cast_const(), count);
            gpu::sync_threads();
            return true;
        }
        // An all-reduce: chunk i begins at rank i + 1, and is done at rank i.
        let neighbours = ([ring.prev], [ring.next]);
        let behind = (ring.index + 1) % ranks;
        if comm.ring_rank(channel, ring.index) != rank
            || comm.ring_rank(channel, behind) != ring.next
        {
            return false;
        }
        let buffers = (own.cast_const(), sums);
        let mut prims = comm.prims::<u32, Sum, P, 1, 1>(channel, neighbours, buffers);
        let step = prims.chunk().min(count.max(1));
        let index = ring.index as usize;
        let mut first = 0;
        while first < count {
            let n = step.min(count - first);
            let chunk = |back: usize| (index + 2 * k - back) % k * count + first;
            prims.send(chunk(1), n);
            let mut back = 2;
            while back < k {
                prims.recv_reduce_send(chunk(back), n);
                back += 1;
            }
            prims.recv_reduce_copy_send(chunk(0), chunk(0), n);
            back = 1;
            while back + 1 < k {
                prims.recv_copy_send(chunk(back), n);
                back += 1;
            }
            prims.recv(chunk(k - 1), n);
            first += n;
        }
        if !comm.close(prims) {
            return false;
        }
        // A pipeline along the ring, on any memory: the last of it has the largest.
        let mut prims = comm.prims::<u32, Max, P, 1, 1>(
            channel,
            neighbours,
            (core::ptr::null(), core::ptr::null_mut()),
        );
        let step = prims.chunk().min(count.max(1));
        let mut first = 0;
        while first < count {
            let n = step.min(count - first);
            let (from, to) = (own.wrapping_add(first).cast_const(), largest.wrapping_add(first));
            if index == 0 {
                prims.send_from(from, n);
            } else if index + 1 < k {
                prims.reduce_send_from(from, n);
            } else {
                prims.reduce_into(from, to, n);
            }
            first += n;
        }
        if !comm.close(prims) {
            return false;
        }
        if my.all == 0 {
            return true;
        }
        // Messages from each rank to each other: in turn one to send to and one to receive from.
        let mut by = 1;
        while by < ranks {
            let (to, from) = ((rank + by) % ranks, (rank + ranks - by) % ranks);
            let mut prims = comm.prims::<u32, Sum, P, 1, 1>(
                channel,
                ([from], [to]),
                (own.cast_const(), messages.wrapping_add(from as usize * count)),
            );
            let step = prims.chunk().min(count.max(1));
            let mut first = 0;
            while first < count {
                let n = step.min(count - first);
                prims.send(first, n);
                prims.recv(first, n);
                first += n;
            }
            if !comm.close(prims) {
                return false;
            }
            by += 1;
        }
        // All at once to rank 0, which has three to receive from, some of them missing.
        if ranks > 4 {
            return true;
        }
        let sums = messages.wrapping_add(whole);
        if rank == 0 {
            let from = [1, 2, 3].map(|from| if from < ranks { from } else { NO_RANK });
            let buffers = (own.cast_const(), sums);
            let mut prims = comm.prims::<u32, Sum, P, 3, 0>(channel, (from, []), buffers);
            let step = prims.chunk().min(count.max(1));
            let mut first = 0;
            while first < count {
                let n = step.min(count - first);
                prims.recv_reduce_copy(first, first, n);
                first += n;
            }
            comm.close(prims)
        } else {
            let buffers = (own.cast_const(), core::ptr::null_mut());
            let mut prims = comm.prims::<u32, Sum, P, 0, 1>(channel, ([], [0]), buffers);
            let step = prims.chunk().min(count.max(1));
            let mut first = 0;
            while first < count {
                let n = step.min(count - first);
                prims.send(first, n);
                first += n;
            }
            comm.close(prims)
        }
    }
}

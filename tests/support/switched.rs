//! A kernel whose blocks have a switch sum and copy, round after round: the rank's own sums, an all-reduce, an all-gather, and an
//! all-reduce pack by pack.

use crate::device::abi::{DeviceComm, DeviceWindow};
use crate::device::device_comm::fence_aliases;
use crate::device::gpu;

crate::device::kernel_argument! {
    /// What the kernel takes. Block `b` has barrier `b`, and the `b`-th part of every buffer.
    pub(crate) struct Switched {
        pub(crate) comm: DeviceComm,
        /// What ranks give, `count + 4` elements for each block; the sums of all, as many; what all have put, as many of each rank.
        pub(crate) windows: [DeviceWindow; 3],
        /// Address of what is left, by block and round: the own sums (`count`), the sums of all (`count`), of each rank what it has put
        /// (`ranks * count`), and the sums of all by packs (`count / 4 * 4`).
        pub(crate) results: u64,
        pub(crate) count: u64,
        pub(crate) rounds: u64,
        /// Where values begin in a block's part, in elements.
        pub(crate) shift: u64,
        /// Not 0: the windows have multicast objects, or the kernel's sums are of no use.
        pub(crate) wanted: u64,
    }
}

/// Elements of a block's part of a window, for each rank that has one in it.
pub(crate) const fn part(count: u64) -> u64 {
    (count + 4).next_multiple_of(4)
}

/// Elements that are left of a round.
pub(crate) const fn results_of(ranks: u64, count: u64) -> u64 {
    (2 + ranks) * count + count / 4 * 4
}

/// What a rank gives in a round.
pub(crate) fn given(rank: u64, block: u64, round: u64, i: u64) -> f32 {
    ((rank + 1) * 31 + block * 7 + round * 3 + i % 50) as f32
}

/// What is left of a rank's round.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn expected(ranks: u64, (block, round): (u64, u64), count: u64) -> Vec<f32> {
    let sum = |i| (0..ranks).map(|r| given(r, block, round, i)).sum::<f32>();
    let mut all: Vec<f32> = (0..count).map(sum).chain((0..count).map(sum)).collect();
    (0..ranks).for_each(|r| all.extend((0..count).map(|i| given(r, block, round, i))));
    all.extend((0..count / 4 * 4).map(sum));
    all
}

crate::device::user_kernels! {
    /// See the file's documentation.
    pub(crate) SWITCHED = "test_switched": 512, switched, Switched;
}

/// # Safety
/// The launch's contract: all ranks have as many blocks, elements and rounds.
#[inline(always)]
unsafe fn switched(my: Switched) {
    // SAFETY: the caller's. Each part of a buffer is written by one block of one rank at a time, as the barriers have it.
    unsafe {
        let mut comm = my.comm.open();
        let block = gpu::block_idx_x();
        let (rank, ranks, count) = (comm.rank(), comm.ranks(), my.count as usize);
        let (lane, lanes) = comm.lanes();
        let size = size_of::<f32>();
        let width = part(my.count) as usize;
        let start = block as usize * width;
        let at = (start + my.shift as usize) * size;
        let [values, sums, all] = my.windows;
        let each = results_of(ranks.into(), my.count);
        if my.wanted != 0 && comm.multimem::<f32>(values, at).is_none() {
            return;
        }
        let mut round = 0;
        while round < my.rounds {
            let result = (my.results as *mut f32)
                .wrapping_add(((u64::from(block) * my.rounds + round) * each) as usize);
            let own = values.peer::<f32>(rank, at);
            let mut i = lane;
            while i < count {
                let value = given(rank.into(), block.into(), round, i as u64);
                gpu::st_data(own.wrapping_add(i), value, size);
                i += lanes;
            }
            if !comm.barrier(block) {
                return;
            }
            comm.multimem_sum::<f32>(values, at, result, count);
            // A rank's share of the all-reduce.
            let share = count.div_ceil(ranks as usize);
            let first = (share * rank as usize).min(count);
            let n = share.min(count - first);
            let place = at + first * size;
            comm.multimem_sum_to_all::<f32>((values, place), (sums, place), n);
            // What it puts to all.
            let slot = (start * ranks as usize + rank as usize * width) * size;
            comm.multimem_put_to_all(all, slot, own.cast_const(), count);
            if !comm.barrier(block) {
                return;
            }
            let reduced = sums.peer::<f32>(rank, at).cast_const();
            comm.put(result.wrapping_add(count), reduced, count);
            let mut from = 0;
            while from < ranks as usize {
                let slot = (start * ranks as usize + from * width) * size;
                let put = all.peer::<f32>(rank, slot).cast_const();
                comm.put(result.wrapping_add((2 + from) * count), put, count);
                from += 1;
            }
            // By packs, which begin where the block's part does: the values once more, there.
            if !comm.barrier(block) {
                return;
            }
            let begins = values.peer::<f32>(rank, start * size);
            let mut i = lane;
            while i < count {
                let value = given(rank.into(), block.into(), round, i as u64);
                gpu::st_data(begins.wrapping_add(i), value, size);
                i += lanes;
            }
            if !comm.barrier(block) {
                return;
            }
            let packs = result.wrapping_add((2 + ranks as usize) * count).cast::<[u64; 2]>();
            fence_aliases();
            if let Some(from) = comm.multimem::<f32>(values, start * size) {
                let mut pack = lane;
                while pack < count / 4 {
                    let sum = from.load_sum(pack);
                    // Results are of any alignment: word by word.
                    let to = packs.wrapping_add(pack).cast::<f32>();
                    let mut i = 0;
                    while i < 4 {
                        let bits = (sum[i / 2] >> (32 * (i % 2))) as u32;
                        gpu::st_data(to.wrapping_add(i), f32::from_bits(bits), size);
                        i += 1;
                    }
                    pack += lanes;
                }
            } else {
                comm.multimem_sum::<f32>(values, start * size, packs.cast(), count / 4 * 4);
            }
            if !comm.barrier(block) {
                return;
            }
            round += 1;
        }
    }
}

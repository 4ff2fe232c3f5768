//! A kernel in which all ranks exchange packets, round after round.

use crate::device::abi::{DeviceComm, DeviceWindow};
use crate::device::device_comm::packet_bytes;
use crate::device::gpu;

crate::device::kernel_argument! {
    /// What the kernel takes.
    pub(crate) struct Exchange {
        pub(crate) comm: DeviceComm,
        /// By block, place in turn and sender, packets of `count` elements; zeros at first.
        pub(crate) window: DeviceWindow,
        /// Address of what each block gives, `count` elements.
        pub(crate) given: u64,
        /// Address of what is left: by block, round and sender, `count` elements.
        pub(crate) results: u64,
        pub(crate) count: u64,
        pub(crate) rounds: u64,
        /// The flag before the first round's.
        pub(crate) flag: u64,
        /// Places that take turns: with two nobody writes over what has not been read.
        pub(crate) places: u64,
    }
}

/// What a rank gives another in a round.
pub(crate) fn given(rank: u64, block: u64, round: u64, i: u64) -> u32 {
    (rank * 1_000_003 + block * 10_007 + round * 101 + i + 1) as u32
}

/// Bytes of a rank's window.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn window_bytes(blocks: usize, places: usize, ranks: usize, count: usize) -> usize {
    blocks * places * ranks * packet_bytes(count * size_of::<u32>())
}

crate::device::user_kernels! {
    /// See the file's documentation.
    pub(crate) EXCHANGE = "test_exchange": 512, exchange, Exchange;
}

/// # Safety
/// The launch's contract: all ranks have as many blocks, elements and rounds.
#[inline(always)]
unsafe fn exchange(my: Exchange) {
    // SAFETY: the caller's. A place is written by one block of its sender; who sends in a round has read the last one's.
    unsafe {
        let mut comm = my.comm.open();
        let block = u64::from(gpu::block_idx_x());
        let (rank, ranks, count) = (comm.rank(), comm.ranks(), my.count as usize);
        let own = (my.given as *mut u32).wrapping_add(block as usize * count);
        let place = packet_bytes(count * size_of::<u32>());
        let (lane, lanes) = comm.lanes();
        let mut result = (my.results as *mut u32)
            .wrapping_add(block as usize * my.rounds as usize * ranks as usize * count);
        for round in 0..my.rounds {
            let mut i = lane;
            while i < count {
                let value = given(rank.into(), block, round, i as u64);
                gpu::st_data(own.wrapping_add(i), value, size_of::<u32>());
                i += lanes;
            }
            let flag = my.flag + round + 1;
            let turn = block * my.places + flag % my.places;
            let of = |sender: u32| {
                (my.window, (turn * u64::from(ranks) + u64::from(sender)) as usize * place)
            };
            let mut d = 1;
            while d < ranks {
                let peer = (rank + d) % ranks;
                comm.put_packets(peer, of(rank), own, count, flag as u32);
                d += 1;
            }
            let mut sender = 0;
            while sender < ranks {
                if sender != rank
                    && !comm.wait_packets(sender, of(sender), result, count, flag as u32)
                {
                    return;
                }
                result = result.wrapping_add(count);
                sender += 1;
            }
        }
    }
}

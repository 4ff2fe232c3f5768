//! What `ferroccl bench` measures by kernels of its own: each does one thing again and again.

use crate::device::abi::{DeviceComm, DeviceWindow};
use crate::device::gpu;
use crate::device::reduce::Sum;

crate::device::kernel_argument! {
    /// What the kernels take.
    pub(crate) struct BenchArgument {
        pub(crate) comm: DeviceComm,
        /// A buffer of each rank.
        pub(crate) window: DeviceWindow,
        /// Address of memory of this rank's that is as large.
        pub(crate) own: u64,
        /// Elements, f32, of a time.
        pub(crate) count: u64,
        /// How often.
        pub(crate) times: u64,
    }
}

crate::device::user_kernels! {
    /// All ranks meet.
    pub(crate) BARRIER = "bench_barrier": 512, barrier, BenchArgument;
    /// Ranks 0 and 1 signal each other in turn.
    pub(crate) SIGNAL = "bench_signal": 512, signal, BenchArgument;
    /// Rank 0 puts its buffer into rank 1's, and signals.
    pub(crate) PUT = "bench_put": 512, put, BenchArgument;
    /// Each rank copies its buffer to its own memory.
    pub(crate) COPY = "bench_copy": 512, copy, BenchArgument;
    /// Each rank combines all ranks' buffers in its own memory.
    pub(crate) REDUCE = "bench_reduce": 512, reduce, BenchArgument;
}

/// A block's part of the elements: where it begins, and its length.
#[inline(always)]
fn part(my: &BenchArgument, blocks: u32) -> (usize, usize) {
    let each = (my.count as usize).div_ceil(blocks as usize).next_multiple_of(4);
    let start = (each * gpu::block_idx_x() as usize).min(my.count as usize);
    (start, each.min(my.count as usize - start))
}

/// # Safety
/// The launch's contract, with a barrier for each block.
#[inline(always)]
unsafe fn barrier(my: BenchArgument) {
    // SAFETY: the caller's.
    let mut comm = unsafe { my.comm.open() };
    let mut time = 0;
    while time < my.times && comm.barrier(gpu::block_idx_x()) {
        time += 1;
    }
}

/// # Safety
/// The launch's contract, with a signal for each block.
#[inline(always)]
unsafe fn signal(my: BenchArgument) {
    // SAFETY: the caller's.
    let mut comm = unsafe { my.comm.open() };
    let (rank, index) = (comm.rank(), gpu::block_idx_x());
    let mut time = 0;
    while time < my.times && rank < 2 {
        if rank == 0 {
            comm.signal(1, index);
        }
        if !comm.wait_signal_of(1 - rank, index, 1) {
            return;
        }
        if rank == 1 {
            comm.signal(0, index);
        }
        time += 1;
    }
}

/// # Safety
/// The launch's contract, with a signal for each block; the buffers have the elements.
#[inline(always)]
unsafe fn put(my: BenchArgument) {
    // SAFETY: the caller's; blocks have parts of their own.
    unsafe {
        let mut comm = my.comm.open();
        let index = gpu::block_idx_x();
        let (start, n) = part(&my, my.comm.barriers);
        let mut time = 0;
        if comm.rank() == 0 {
            let from = my.window.peer::<f32>(0, start * size_of::<f32>());
            let to = my.window.peer::<f32>(1, start * size_of::<f32>());
            while time < my.times {
                comm.put_with_signal((1, index), to, from, n);
                time += 1;
            }
            // It ends when all is there.
            comm.wait_signal_of(1, index, 1);
        } else if comm.rank() == 1 {
            comm.wait_signal_of(0, index, my.times);
            comm.signal(0, index);
        }
    }
}

/// # Safety
/// The launch's contract; the buffers have the elements.
#[inline(always)]
unsafe fn copy(my: BenchArgument) {
    // SAFETY: the caller's; blocks have parts of their own.
    unsafe {
        let comm = my.comm.open();
        let (start, n) = part(&my, my.comm.barriers);
        let from = my.window.peer::<f32>(comm.rank(), start * size_of::<f32>());
        let to = (my.own as *mut f32).wrapping_add(start);
        let mut time = 0;
        while time < my.times {
            comm.put(to, from, n);
            time += 1;
        }
    }
}

/// # Safety
/// The launch's contract; the buffers have the elements.
#[inline(always)]
unsafe fn reduce(my: BenchArgument) {
    // SAFETY: the caller's; blocks have parts of their own, and nobody writes what is read.
    unsafe {
        let comm = my.comm.open();
        let (start, n) = part(&my, my.comm.barriers);
        let to = (my.own as *mut f32).wrapping_add(start);
        let mut time = 0;
        while time < my.times {
            comm.reduce::<f32, Sum>(my.window, start * size_of::<f32>(), to, n);
            time += 1;
        }
    }
}

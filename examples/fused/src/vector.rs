//! An all-reduce behind the kernel that makes its input: `sums = a x + y`, summed over all ranks.
//!
//! ```text
//! values[i] = a x[i] + y[i]        each block its part
//! barrier                          all ranks have theirs
//! a rank's share of the part:      read from all ranks, sum, write to all ranks
//! barrier                          all shares are there
//! ```

use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::gpu;
use ferroccl_device::reduce::Sum;

ferroccl_device::kernel_argument! {
    /// What the kernels take.
    pub struct Vector {
        /// With a barrier for each block.
        pub comm: DeviceComm,
        /// What each rank gives.
        pub values: DeviceWindow,
        /// The sums, on every rank.
        pub sums: DeviceWindow,
        /// Address of `x`.
        pub x: u64,
        /// Address of `y`.
        pub y: u64,
        /// Elements.
        pub count: u64,
        /// Blocks.
        pub blocks: u32,
        /// The factor.
        pub a: f32,
    }
}

ferroccl_device::user_kernels! {
    /// All of it.
    pub FUSED = "vector_all_reduce": 512, fused, Vector;
    /// `values` alone.
    pub ALONE = "vector": 512, alone, Vector;
}

/// A block's part of the elements: where it begins, and its length.
#[inline(always)]
fn part(my: &Vector) -> (usize, usize) {
    let count = my.count as usize;
    // Parts of whole cache lines.
    let each = count.div_ceil(my.blocks as usize).next_multiple_of(32);
    let start = (each * gpu::block_idx_x() as usize).min(count);
    (start, each.min(count - start))
}

/// # Safety
/// The launch's contract: the buffers have `count` elements.
#[inline(always)]
unsafe fn alone(my: Vector) {
    let (start, n) = part(&my);
    let (x, y) = (my.x as *const f32, my.y as *const f32);
    let values = my.values.address as *mut f32;
    let mut i = start + gpu::thread_idx_x() as usize;
    while i < start + n {
        // SAFETY: the caller's; a lane writes elements of its own.
        unsafe {
            let value = my.a * gpu::ld_data(x.wrapping_add(i)) + gpu::ld_data(y.wrapping_add(i));
            gpu::st_data(values.wrapping_add(i), value, size_of::<f32>());
        }
        i += gpu::block_dim_x() as usize;
    }
}

/// # Safety
/// The launch's contract: the buffers of all ranks have `count` elements, and all have as many blocks.
#[inline(always)]
unsafe fn fused(my: Vector) {
    // SAFETY: the caller's. A part is read when all ranks have written it, and its share of the sums is this rank's to write.
    unsafe {
        alone(my);
        let mut comm = my.comm.open();
        if !comm.barrier(gpu::block_idx_x()) {
            return;
        }
        let (start, n) = part(&my);
        let each = n.div_ceil(comm.ranks() as usize).next_multiple_of(32);
        let first = (each * comm.rank() as usize).min(n);
        let at = (start + first) * size_of::<f32>();
        comm.reduce_to_all::<f32, Sum>((my.values, at), (my.sums, at), each.min(n - first));
        comm.barrier(gpu::block_idx_x());
    }
}

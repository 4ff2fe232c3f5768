//! A product of matrices whose inner dimension is divided among ranks: each has a part of the columns of `A` and of the rows of `B`, so that
//! the products are to be summed. A rank gets some of the rows of the sum. Tiles of rows go as they are ready:
//!
//! ```text
//! for each tile of rows, those of the next rank first:
//!     partial = A B of the tile           in this rank's window
//!     signal its owner
//! for each tile of this rank's own:
//!     wait for the signals of all ranks
//!     read the tile from all ranks, sum
//! barrier                                 nobody leaves while others read
//! ```

use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::gpu;
use ferroccl_device::reduce::Sum;

ferroccl_device::kernel_argument! {
    /// What the kernels take. Matrices are by rows.
    pub struct Tiles {
        /// With a barrier for each block, and a signal for each tile of a rank.
        pub comm: DeviceComm,
        /// The partial products: all rows.
        pub partial: DeviceWindow,
        /// Address of this rank's columns of `A`.
        pub a: u64,
        /// Address of this rank's rows of `B`.
        pub b: u64,
        /// Address of this rank's rows of the sum.
        pub c: u64,
        /// Rows of `A` that a rank gets of the sum: a multiple of `tile`.
        pub rows: u32,
        /// This rank's columns of `A`, and rows of `B`.
        pub inner: u32,
        /// Columns of `B`.
        pub columns: u32,
        /// Rows of a tile.
        pub tile: u32,
        /// Blocks.
        pub blocks: u32,
        /// Zero.
        pub pad: u32,
    }
}

ferroccl_device::user_kernels! {
    /// All of it.
    pub FUSED = "gemm_reduce_scatter": 512, fused, Tiles;
    /// The partial products alone.
    pub ALONE = "gemm": 512, alone, Tiles;
}

/// The partial product of the rows from `first` on.
///
/// # Safety
/// The matrices have what `my` says.
#[inline(always)]
unsafe fn product(my: &Tiles, first: usize) {
    let (inner, columns) = (my.inner as usize, my.columns as usize);
    let (a, b) = (my.a as *const f32, my.b as *const f32);
    let partial = my.partial.address as *mut f32;
    let mut i = gpu::thread_idx_x() as usize;
    while i < my.tile as usize * columns {
        let (row, column) = (first + i / columns, i % columns);
        let mut sum = 0.0;
        let mut k = 0;
        while k < inner {
            // SAFETY: the caller's.
            unsafe {
                sum += gpu::ld_data(a.wrapping_add(row * inner + k))
                    * gpu::ld_data(b.wrapping_add(k * columns + column));
            }
            k += 1;
        }
        // SAFETY: the caller's; a lane writes elements of its own.
        unsafe {
            gpu::st_data(partial.wrapping_add(row * columns + column), sum, size_of::<f32>());
        }
        i += gpu::block_dim_x() as usize;
    }
}

/// # Safety
/// The launch's contract: the matrices have what `my` says.
#[inline(always)]
unsafe fn alone(my: Tiles) {
    let tiles = my.rows / my.tile * my.comm.ranks;
    let mut tile = gpu::block_idx_x();
    while tile < tiles {
        // SAFETY: the caller's.
        unsafe { product(&my, (tile * my.tile) as usize) }
        tile += my.blocks;
    }
}

/// # Safety
/// The launch's contract: the matrices have what `my` says, and all ranks' are of a size.
#[inline(always)]
unsafe fn fused(my: Tiles) {
    // SAFETY: the caller's. A tile is read when all ranks have signalled that it is there, and written again behind the barrier.
    unsafe {
        let mut comm = my.comm.open();
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let tiles = my.rows / my.tile;
        let mut by = 1;
        while by <= ranks {
            // Each rank begins with another, so that not all wait for the same.
            let owner = (rank + by) % ranks;
            let mut tile = gpu::block_idx_x();
            while tile < tiles {
                product(&my, (owner * my.rows + tile * my.tile) as usize);
                comm.signal(owner, tile);
                tile += my.blocks;
            }
            by += 1;
        }
        let columns = my.columns as usize;
        let mut tile = gpu::block_idx_x();
        while tile < tiles {
            if !comm.wait_signal(tile, ranks.into()) {
                return;
            }
            let own = (tile * my.tile) as usize * columns;
            let all = (rank * my.rows) as usize * columns + own;
            let to = (my.c as *mut f32).wrapping_add(own);
            let n = my.tile as usize * columns;
            comm.reduce::<f32, Sum>(my.partial, all * size_of::<f32>(), to, n);
            tile += my.blocks;
        }
        comm.barrier(gpu::block_idx_x());
    }
}

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
//!
//! To an owner on another host the tile is put, into an inbox that has a place for each rank; so it reads those there.

use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::device_comm::Team;
use ferroccl_device::gpu;
use ferroccl_device::reduce::Sum;

ferroccl_device::kernel_argument! {
    /// What the kernels take. Matrices are by rows.
    pub struct Tiles {
        /// With a barrier for each block, and a signal for each tile of a rank.
        pub comm: DeviceComm,
        /// The partial products: all rows.
        pub partial: DeviceWindow,
        /// For each rank its partial products of this rank's rows: those of ranks on other hosts are put here.
        pub inbox: DeviceWindow,
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
        let columns = my.columns as usize;
        // Elements of a tile, and where a row is.
        let n = my.tile as usize * columns;
        let place = |row: usize| row * columns * size_of::<f32>();
        let mut by = 1;
        while by <= ranks {
            // Each rank begins with another, so that not all wait for the same.
            let owner = (rank + by) % ranks;
            let mut tile = gpu::block_idx_x();
            while tile < tiles {
                let first = (owner * my.rows + tile * my.tile) as usize;
                product(&my, first);
                if comm.reaches(owner) {
                    comm.signal(owner, tile);
                } else {
                    let to = (my.inbox, place((rank * my.rows + tile * my.tile) as usize));
                    let from = (my.partial, place(first));
                    comm.put_to_with_signal::<f32>((owner, tile), to, from, n);
                }
                tile += my.blocks;
            }
            by += 1;
        }
        let mut tile = gpu::block_idx_x();
        while tile < tiles {
            if !comm.wait_signal(tile, ranks.into()) {
                return;
            }
            let own = (tile * my.tile) as usize * columns;
            let all = (rank * my.rows) as usize * columns + own;
            let to = (my.c as *mut f32).wrapping_add(own);
            comm.reduce_node::<f32, Sum>(my.partial, all * size_of::<f32>(), to, n);
            if comm.team_ranks(Team::Node) < ranks {
                gpu::sync_threads();
                let (lane, lanes) = comm.lanes();
                let mut i = lane;
                while i < n {
                    let mut sum = gpu::ld_data(to.wrapping_add(i).cast_const());
                    let mut from = 0;
                    while from < ranks {
                        if !comm.reaches(from) {
                            let at = place((from * my.rows + tile * my.tile) as usize);
                            let theirs = my.inbox.peer::<f32>(rank, at).cast_const();
                            sum += gpu::ld_data(theirs.wrapping_add(i));
                        }
                        from += 1;
                    }
                    gpu::st_data(to.wrapping_add(i), sum, size_of::<f32>());
                    i += lanes;
                }
            }
            tile += my.blocks;
        }
        comm.barrier(gpu::block_idx_x());
    }
}

//! A stencil over rows that are divided among ranks, which exchange the rows at their edges: all steps in one launch.
//!
//! ```text
//!             rank r                          rank r + 1
//! row 0       the last row of r - 1      ┌──► the last row of r
//! row 1       its first                  │    its first ──────────┐
//! ...                                    │                        │
//! row n       its last ──────────────────┘    its last            │
//! row n + 1   the first row of r + 1  ◄───────────────────────────┘
//!
//! for each step:  put both rows to the neighbours, signal; wait for theirs; new = (above + 2 old + below) / 4
//! ```
//!
//! A buffer is written again two steps later. By then the neighbour has read it: it has signalled the step in between. So what goes over a
//! network to a neighbour on another host needs no flush.
//! A block has some of the columns, and its own signals.

use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::gpu;

ferroccl_device::kernel_argument! {
    /// What the kernel takes.
    pub struct Halo {
        /// With two signals for each block.
        pub comm: DeviceComm,
        /// The rows, and one more at either end: before the first step, and after an even number of them.
        pub even: DeviceWindow,
        /// The same after an odd number.
        pub odd: DeviceWindow,
        /// Rows of a rank.
        pub rows: u32,
        /// Elements of a row.
        pub columns: u32,
        /// Steps.
        pub steps: u32,
        /// The number of the first: for who launches them one by one.
        pub first: u32,
        /// Blocks.
        pub blocks: u32,
        /// Zero.
        pub pad: u32,
    }
}

ferroccl_device::user_kernels! {
    /// All steps.
    pub FUSED = "stencil": 512, fused, Halo;
}

/// # Safety
/// The launch's contract: the windows have `rows + 2` rows, on all ranks the same.
#[inline(always)]
unsafe fn fused(my: Halo) {
    // SAFETY: the caller's. The rows at the edges are handed over by signals, and the columns are this block's.
    unsafe {
        let mut comm = my.comm.open();
        let (rank, ranks, block) = (comm.rank(), comm.ranks(), gpu::block_idx_x());
        let (lane, lanes) = comm.lanes();
        let (rows, columns) = (my.rows as usize, my.columns as usize);
        let each = columns.div_ceil(my.blocks as usize);
        let first = (each * block as usize).min(columns);
        let n = each.min(columns - first);
        let (above, below) = (rank.wrapping_sub(1), rank + 1);
        let (has_above, has_below) = (rank > 0, below < ranks);
        // By the direction that a row goes.
        let (up, down) = (2 * block, 2 * block + 1);
        let place = |row: usize| (row * columns + first) * size_of::<f32>();
        let mut step = my.first;
        while step < my.first + my.steps {
            let (old, new) =
                if step.is_multiple_of(2) { (my.even, my.odd) } else { (my.odd, my.even) };
            if has_above {
                let (to, from) = ((old, place(rows + 1)), (old, place(1)));
                comm.put_to_with_signal::<f32>((above, up), to, from, n);
            }
            if has_below {
                let (to, from) = ((old, place(0)), (old, place(rows)));
                comm.put_to_with_signal::<f32>((below, down), to, from, n);
            }
            if has_above && !comm.wait_signal_of(above, down, 1)
                || has_below && !comm.wait_signal_of(below, up, 1)
            {
                return;
            }
            let from = old.peer::<f32>(rank, 0).cast_const();
            let to = new.peer::<f32>(rank, 0);
            let mut i = lane;
            while i < rows * n {
                let at = (1 + i / n) * columns + first + i % n;
                let old = |at: usize| gpu::ld_data(from.wrapping_add(at));
                let value = (old(at - columns) + 2.0 * old(at) + old(at + columns)) * 0.25;
                gpu::st_data(to.wrapping_add(at), value, size_of::<f32>());
                i += lanes;
            }
            gpu::sync_threads();
            step += 1;
        }
    }
}

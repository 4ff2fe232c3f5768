//! An all-reduce behind the kernel that makes its input: `sums = a x + y`, summed over all ranks.
//!
//! ```text
//! values[i] = a x[i] + y[i]        each block its part
//! barrier                          all ranks have theirs
//! a rank's share of the part:      read from all ranks, sum, write to all ranks
//! barrier                          all shares are there
//! ```
//!
//! Over several hosts of as many ranks each, a share is summed within each host first, and the sums go to the ranks that have the same share
//! elsewhere:
//!
//! ```text
//! barrier of the node              the node's ranks have their values
//! a rank's share of the part:      sum of the node ─► put to all ranks of the rail, signal
//! wait for the rail's signals      sum of all nodes' sums ─► all ranks of the node
//! barrier                          all shares are there
//! ```

use ferroccl_device::abi::{DeviceComm, DeviceWindow};
use ferroccl_device::device_comm::{BlockComm, Team};
use ferroccl_device::gpu;
use ferroccl_device::reduce::Sum;

ferroccl_device::kernel_argument! {
    /// What the kernels take.
    pub struct Vector {
        /// With a barrier and a signal for each block.
        pub comm: DeviceComm,
        /// What each rank gives.
        pub values: DeviceWindow,
        /// The sums, on every rank.
        pub sums: DeviceWindow,
        /// For each host: the sums of that, where there are several.
        pub parts: DeviceWindow,
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
/// The launch's contract: the buffers of all ranks have `count` elements, all have as many blocks, and all hosts as many ranks.
#[inline(always)]
unsafe fn over_hosts(my: Vector, comm: &mut BlockComm) {
    // SAFETY: the caller's. A share is of the ranks of a rail, each of which has a place for it in `parts`.
    unsafe {
        let block = gpu::block_idx_x();
        if !comm.barrier_of(Team::Node, block) {
            return;
        }
        let (start, n) = part(&my);
        let (nodes, own) = (comm.team_ranks(Team::Rail), comm.team_rank(Team::Rail));
        let each = n.div_ceil(comm.team_ranks(Team::Node) as usize).next_multiple_of(32);
        let first = (each * comm.team_rank(Team::Node) as usize).min(n);
        let share = each.min(n - first);
        let at = |node: u32| (node as usize * my.count as usize + start + first) * size_of::<f32>();
        let rank = comm.rank();
        let parts = |node: u32| my.parts.peer::<f32>(rank, at(node));
        comm.reduce_node::<f32, Sum>(my.values, at(0), parts(own), share);
        let mut by = 1;
        while by < nodes {
            let peer = comm.world_rank(Team::Rail, (own + by) % nodes);
            let (to, from) = ((my.parts, at(own)), (my.parts, at(own)));
            comm.put_to_with_signal::<f32>((peer, block), to, from, share);
            by += 1;
        }
        if !comm.wait_signal(block, (nodes - 1).into()) {
            return;
        }
        // In the order of the nodes, so that all get the same bits.
        let (lane, lanes) = comm.lanes();
        let sums = my.sums.peer::<f32>(rank, at(0));
        let mut i = lane;
        while i < share {
            let mut sum = 0.0;
            let mut node = 0;
            while node < nodes {
                sum += gpu::ld_data(parts(node).wrapping_add(i).cast_const());
                node += 1;
            }
            gpu::st_data(sums.wrapping_add(i), sum, size_of::<f32>());
            i += lanes;
        }
        gpu::sync_threads();
        comm.put_to_node(my.sums, at(0), sums.cast_const(), share);
        comm.barrier(block);
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
        if comm.team_ranks(Team::Node) < comm.ranks() {
            return over_hosts(my, &mut comm);
        }
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

//! An all-reduce around a ring, in the primitives that the library's own is written in. Each chunk of its input is made right before it is
//! sent: `sums = a x + y`, summed over all ranks.
//!
//! ```text
//! rank r:  make and send                        chunk r - 1                 start a chunk
//!          make and recv_reduce_send            chunk r - 2, ..., r + 1     add mine, pass on
//!          make and recv_reduce_copy_send       chunk r                     add mine: finished, keep and pass on
//!          recv_copy_send                       chunk r - 1, ..., r + 2     keep and pass on
//!          recv                                 chunk r + 1                 keep
//! ```
//!
//! While a block makes a chunk, the one before it is under way. A block has a channel of its own, and its part of the elements. Positions
//! are those in the channel's ring.

use ferroccl_device::abi::DeviceComm;
use ferroccl_device::gpu;
use ferroccl_device::prims::{Ll, Protocol, Simple};
use ferroccl_device::reduce::Sum;

ferroccl_device::kernel_argument! {
    /// What the kernels take.
    pub struct Ring {
        /// With a channel for each block, whose ring all ranks are in.
        pub comm: DeviceComm,
        /// Address of what this rank gives.
        pub values: u64,
        /// Address of the sums.
        pub sums: u64,
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
    /// All of it, in LL: for few elements.
    pub FUSED_LL = "ring_all_reduce_ll": 512, around::<Ll>, Ring;
    /// All of it, in Simple.
    pub FUSED = "ring_all_reduce_simple": 512, around::<Simple>, Ring;
    /// `values` alone.
    pub ALONE = "ring_vector": 512, alone, Ring;
}

/// A block's part of the elements: where it begins, and its length.
#[inline(always)]
fn part(my: &Ring) -> (usize, usize) {
    let count = my.count as usize;
    let each = count.div_ceil(my.blocks as usize).next_multiple_of(32);
    let start = (each * gpu::block_idx_x() as usize).min(count);
    (start, each.min(count - start))
}

/// Makes `n` values from element `first` on.
///
/// # Safety
/// The launch's contract: the buffers have `count` elements; these are this block's.
#[inline(always)]
unsafe fn make(my: &Ring, first: usize, n: usize) {
    let (x, y, values) = (my.x as *const f32, my.y as *const f32, my.values as *mut f32);
    let mut i = first + gpu::thread_idx_x() as usize;
    while i < first + n {
        // SAFETY: the caller's; a lane writes elements of its own.
        unsafe {
            let value = my.a * gpu::ld_data(x.wrapping_add(i)) + gpu::ld_data(y.wrapping_add(i));
            gpu::st_data(values.wrapping_add(i), value, size_of::<f32>());
        }
        i += gpu::block_dim_x() as usize;
    }
}

/// # Safety
/// The launch's contract: the buffers have `count` elements.
#[inline(always)]
unsafe fn alone(my: Ring) {
    let (start, n) = part(&my);
    // SAFETY: the caller's.
    unsafe { make(&my, start, n) }
}

/// # Safety
/// The launch's contract: the buffers of all ranks have `count` elements, all have as many blocks, and a channel for each.
#[inline(always)]
unsafe fn around<P: Protocol>(my: Ring) {
    // SAFETY: the caller's. The part is this block's, and so is the channel.
    unsafe {
        let (start, n) = part(&my);
        let mut comm = my.comm.open();
        let k = comm.ranks() as usize;
        let (values, sums) = (my.values as *mut f32, my.sums as *mut f32);
        if k == 1 {
            make(&my, start, n);
            gpu::sync_threads();
            comm.put(sums.wrapping_add(start), values.wrapping_add(start).cast_const(), n);
            return;
        }
        let channel = gpu::block_idx_x();
        let ring = comm.ring(channel);
        let peers = ([ring.prev], [ring.next]);
        let buffers = (values.cast_const(), sums);
        let mut prims = comm.prims::<f32, Sum, P, 1, 1>(channel, peers, buffers);
        let mut done = 0;
        while done < n && !prims.stopped() {
            // A round of as many chunks as there are ranks.
            let each = prims.chunk().min((n - done).div_ceil(k).next_multiple_of(4));
            let end = (done + each * k).min(n);
            // The chunk so many positions before this rank's: where it begins, and its length.
            let chunk = |back: usize| {
                let i = (ring.index as usize + k - gpu::opaque(back)) % k;
                let first = (done + i * each).min(end);
                (start + first, each.min(end - first))
            };
            let (at, len) = chunk(1);
            make(&my, at, len);
            prims.send(at, len);
            let mut back = 2;
            while back < k {
                let (at, len) = chunk(back);
                make(&my, at, len);
                prims.recv_reduce_send(at, len);
                back += 1;
            }
            let (at, len) = chunk(0);
            make(&my, at, len);
            prims.recv_reduce_copy_send(at, at, len);
            back = 1;
            while back + 1 < k {
                let (at, len) = chunk(back);
                prims.recv_copy_send(at, len);
                back += 1;
            }
            let (at, len) = chunk(k - 1);
            prims.recv(at, len);
            done = end;
        }
        comm.close(prims);
    }
}

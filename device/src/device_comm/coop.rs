//! The lanes that make a call together: a block, a warp, or one by itself.

use crate::gpu::{self, WARP};

/// Lanes that make a call together (NCCL's `Coop`).
pub trait Coop: Copy + 'static {
    /// Whether they are whole warps.
    const WARPS: bool = true;

    /// This lane, and how many there are.
    fn lanes() -> (usize, usize);
    /// All are here, and what any of them has read and written is before what the others do from here on.
    fn sync();
    /// [`Coop::sync`], and whether any of them says so.
    fn sync_or(says: bool) -> bool;
    /// Has the lanes of a warp go on together where one of them had something else to do: the kernel's next loop would run twice, for that
    /// lane and for the others.
    fn together();
}

/// Whole warps, which share copies and reductions.
pub trait Warps: Coop {}

/// All lanes of a block (`ncclCoopCta`).
#[derive(Clone, Copy, Debug)]
pub struct Block;

impl Coop for Block {
    #[inline(always)]
    fn lanes() -> (usize, usize) {
        (gpu::thread_idx_x() as usize, gpu::block_dim_x() as usize)
    }
    #[inline(always)]
    fn sync() {
        gpu::sync_threads();
    }
    #[inline(always)]
    fn sync_or(says: bool) -> bool {
        gpu::sync_threads_or(says)
    }
    #[inline(always)]
    fn together() {
        gpu::sync_warp();
    }
}

impl Warps for Block {}

/// All lanes of a warp (`ncclCoopWarp`). On the CPU that is the block.
#[derive(Clone, Copy, Debug)]
pub struct Warp;

impl Coop for Warp {
    #[inline(always)]
    fn lanes() -> (usize, usize) {
        (gpu::lane_id() as usize, WARP as usize)
    }
    #[inline(always)]
    fn sync() {
        gpu::sync_warp();
    }
    #[inline(always)]
    fn sync_or(says: bool) -> bool {
        let none = gpu::warp_vote_all(!says);
        // A vote orders no memory.
        gpu::sync_warp();
        !none
    }
    #[inline(always)]
    fn together() {
        gpu::sync_warp();
    }
}

impl Warps for Warp {}

/// A lane by itself (`ncclCoopThread`).
#[derive(Clone, Copy, Debug)]
pub struct Thread;

impl Coop for Thread {
    const WARPS: bool = false;

    #[inline(always)]
    fn lanes() -> (usize, usize) {
        (0, 1)
    }
    #[inline(always)]
    fn sync() {}
    #[inline(always)]
    fn sync_or(says: bool) -> bool {
        says
    }
    #[inline(always)]
    fn together() {}
}

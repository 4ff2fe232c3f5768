//! The machine as one lane sees it: a facade with two faces.
//!
//! Shaped like `cuda_std` (`thread_idx_x`, `sync_threads`, `lane_id`, `warp_vote_all`, ...), so that who
//! knows one reads the other; see ARCHITECTURE.md for why it is not `cuda_std` itself. The rest of the
//! crate uses what is listed here and never asks which machine it is on.
//!
//! | | `nvptx` | `cpu` |
//! |---|---|---|
//! | a block | a thread block | a coroutine with one lane |
//! | [`WARP`] | 32 lanes | 1 lane |
//! | [`LANES_PER_LINE`] | 8 lanes x 16 B are an LL128 line | 1 lane x 128 B |
//! | [`PACK_BYTES`] | 16: the widest global access | 16 |
//! | barriers, votes | hardware | the identity |
//! | [`pause`] | nothing: the hardware interleaves warps | a switch to another block |
//! | bulk data | [`ld_data`], [`st_data`], pack by pack | [`mem_copy`], [`mem_zip`], ...: the best vector units found at run time |
//!
//! Code never assumes 32 lanes. Both faces give the same bytes in memory.

#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;
#[cfg(not(target_arch = "nvptx64"))]
use cpu as face;

#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
use nvptx as face;

// What a kernel is called with.
pub(crate) use face::{argument, argument_at};

// Constants of the machine.
pub use face::{
    LANES_PER_LINE, LOADS_TOGETHER, PACK_BYTES, READS_PEERS, SPINS_PER_CHECK, UNALIGNED_PACKS,
    UNROLL, WARP,
};

// Who a lane is.
pub use face::{block_dim_x, block_idx_x, counting, lane_id, launch_bounds, opaque, thread_idx_x};

pub(crate) use face::{KNOWS_CORES, core_number};

// Barriers and votes: every lane of the block, or warp, must call them.
pub use face::{sync_threads, sync_threads_or, sync_warp, warp_vote_all};

// Waiting.
pub use face::{globaltimer, pause};

// Memory that other agents see; orderings are system-wide.
pub use face::{
    acquire, add_release, cas_acq_rel, claim, fence, fetch_add, ld_acquire, ld_flag, ld_guarded,
    ld_halves, ld_line, ld_relaxed, release, release_fence, st_guarded, st_halves, st_line,
    st_relaxed, st_release, store_fenced,
};

// Data, of users and of slots: value by value, and, where the machine has it, by whole buffers.
pub use face::{ld_data, mem_copy, mem_gather, mem_map, mem_zip, st_data, whole_buffers};

// Memory of all ranks at one address, of windows that have a multicast object.
pub(crate) use face::{HAS_MULTICAST, MulticastAddress, fence_aliases, ld_sum, st_all};

// What small elements are computed in.
pub use face::{Bf16Unit, F8E4M3Unit, F8E5M2Unit, F16Unit, I8Unit, U8Unit};

// Smallest and largest of floats: of a NaN and a number the number, and -0 is smaller than +0.
pub use face::{max_f32, max_f64, min_f32, min_f64};

use crate::abi::{FaultKind, WaitKind};

/// What a spinning lane waits for: handed to [`pause`], so that a hang can be explained.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The condition.
    pub kind: WaitKind,
    /// The waiting rank.
    pub rank: u32,
    /// The rank that should end the wait.
    pub peer: u32,
    /// The channel.
    pub channel: u32,
    /// The step waited for.
    pub step: u64,
}

/// What [`pause`] tells a waiting lane: `Some` reason to give up, or `None` to look again.
pub type Verdict = Option<FaultKind>;

/// `u64` words of an LL128 line that one lane holds.
pub const LINE_WORDS: usize = 16 / LANES_PER_LINE;
/// 16-byte units of an LL128 line that one lane holds.
pub const LINE_UNITS: usize = LINE_WORDS / 2;

/// This lane's place among the lanes of its LL128 line, from 0.
#[inline(always)]
#[must_use]
pub fn line_lane() -> usize {
    lane_id() as usize & (LANES_PER_LINE - 1)
}

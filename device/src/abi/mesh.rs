//! The mesh: memory by which every rank of a node gives lines to every other at once.
//!
//! ```text
//! of each rank, for each channel and each other rank, in memory of the receiver:
//!   | digests | LL: slots x bytes | LL128: slots x bytes | Simple: slots x bytes |
//! ```
//!
//! On CPU devices a rank has the same once more, for what it gives all others: it writes that once, and they read it there.
//!
//! Lines say by their flags that they have arrived, as in a connection; plain data has a tail for each slot, in its first bytes. But
//! there is no head and no credit: in each step of a call every rank sends to every other and waits for every other, so who has
//! received a step knows which slots the sender has read. `collectives::mesh` has the argument.
//!
//! Of each call a rank gets the [digest](super::Signature::digest) from all others: behind the tails of plain data, and else as a line of LL
//! with the flag of [`MeshLinks::calls`]. Behind the digests are words for barriers of all ranks, by which kernels that work on each other's
//! buffers begin and end (`collectives::direct`).

use super::{CACHE_LINE, abi};

/// Slots of each buffer. The argument why no slot is written before it has been read needs so many (`collectives::mesh`).
pub const MESH_SLOTS: u32 = 4;
/// Bytes of a slot of Simple before its data: the tail, 8 bytes, which is `s + 1` when the data of step `s` is there, and the words at
/// [`MESH_CORE`] and [`MESH_CALL`]. They are on a cache line with the first of the data, so that little data is there with them.
pub const MESH_TAIL_BYTES: usize = 32;
/// Where the number of the core is, behind the tail, on which the slot's writer ran. Cores count from 1, and 0 says that it is not known.
/// Only ranks on CPU devices write it.
pub const MESH_CORE: usize = 8;
/// Where the digest of the call is, behind the tail.
pub const MESH_CALL: usize = 16;
/// Bytes of the digests and the words of barriers, before the slots.
pub const MESH_DIGEST_BYTES: usize = CACHE_LINE;
/// Where the word is, behind the digests' beginning, that says how many calls the sender has begun that have a barrier.
pub const MESH_BEGUN: usize = 64;
/// Where the word is that says how many it has done its part of.
pub const MESH_ENDED: usize = 72;

abi! {
    /// A rank's side of the mesh, on one channel. Behind it follow three tables of addresses:
    ///
    /// * where this rank's slots are in the memory of the others: of the ranks behind this one in turn, the next one's first;
    /// * where the slots of each rank are in this rank's memory, by rank; its own entry is another's, so that a look at all
    ///   needs no exception;
    /// * on CPU devices, where the slots are that each rank, itself included, gives all others, by rank; zeros elsewhere.
    #[repr(align(128))]
    #[derive(Default)]
    pub struct MeshLinks {
        /// The next step, on all ranks the same; advanced by the kernel, kept between calls.
        pub step: u64,
        /// This rank.
        pub rank: u32,
        /// Ranks.
        pub nranks: u32,
        /// Bytes of one slot of LL, of LL128 and of Simple; multiples of [`LL128_LINE`](super::LL128_LINE) x 2.
        pub slot_bytes: [u32; 3],
        /// Zero.
        pub pad_to_8: u32,
        /// Not 0 when a call has stopped in the middle of its steps: no later one begins.
        pub failed: u64,
        /// Calls before this one; advanced by the kernel, kept between calls. The digest of call `n` is line `n % 2`, with 32 bits of
        /// `n + 1` for its flag. The words of its barriers are `n + 1`.
        pub calls: u64,
        /// Zero.
        pub pad: [u64; 10],
    }
}

const _: () = assert!(size_of::<MeshLinks>() == 128);

impl MeshLinks {
    /// Entries of each of the tables, for so many ranks: each is on cache lines of its own.
    #[must_use]
    pub const fn table_len(nranks: u32) -> usize {
        (nranks as usize).next_multiple_of(16)
    }

    /// Bytes of a rank's side of a channel: the links and the tables.
    ///
    /// ```
    /// use ferroccl_device::abi::MeshLinks;
    ///
    /// assert_eq!(MeshLinks::bytes(8), 128 + 3 * 16 * 8);
    /// ```
    #[must_use]
    pub const fn bytes(nranks: u32) -> usize {
        size_of::<Self>() + 3 * Self::table_len(nranks) * size_of::<u64>()
    }
}

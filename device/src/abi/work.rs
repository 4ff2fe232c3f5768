//! What a kernel is told: the communicator it belongs to, and the call.

use super::{Conn, abi};

/// The most channels a communicator has (NCCL's `MAXCHANNELS` is 64 since 2.19, 32 before).
pub const MAX_CHANNELS: usize = 32;

abi! {
    /// What identifies a call between neighbours: if two ranks' signatures differ, the program is wrong.
    ///
    /// Published by [`ConnHeader::signature_tail`](super::ConnHeader::signature_tail).
    #[derive(Default)]
    #[repr(align(32))]
    pub struct Signature {
        /// The number of the call, from 1.
        pub seq: u64,
        /// Elements.
        pub count: u64,
        /// From the low byte: collective, data type, reduction, algorithm, protocol, channels.
        pub call: u64,
        /// The root, for collectives that have one.
        pub root: u64,
    }
}

impl Signature {
    /// The signature as words: what a [`Fault`](super::Fault) carries.
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        [self.seq, self.count, self.call, self.root]
    }
}

abi! {
    /// The part of a call that one channel does.
    #[derive(Default)]
    pub struct ChannelWork {
        /// First element.
        pub offset: u64,
        /// Elements; 0 is legal.
        pub count: u64,
    }
}

abi! {
    /// One channel of one rank: its place in the ring and its two edges.
    #[derive(Default)]
    pub struct Channel {
        /// The edge to the next rank of the ring.
        pub send: Conn,
        /// The edge from the previous rank of the ring.
        pub recv: Conn,
        /// This rank's position in the ring.
        pub index: u64,
        /// Zero.
        pub pad: [u64; 7],
    }
}

abi! {
    /// A communicator as its kernels see it; lives as long as the communicator.
    #[derive(Default)]
    pub struct Comm {
        /// This rank.
        pub rank: u32,
        /// Ranks in the communicator.
        pub nranks: u32,
        /// Address of [`Channel`]s.
        pub channels: u64,
        /// Address of a `u64`: not 0 when kernels must stop.
        pub abort: u64,
        /// Address of the [`FaultCell`](super::FaultCell).
        pub fault: u64,
        /// Budget of one wait in nanoseconds; 0 is no limit.
        pub timeout_ns: u64,
    }
}

abi! {
    /// One call on one rank: the only argument of every kernel is the address of one of these.
    pub struct Work {
        /// Address of the [`Comm`].
        pub comm: u64,
        /// Address of the input.
        pub input: u64,
        /// Address of the output; may equal `input`.
        pub output: u64,
        /// The reduction's scalar. Averages of integers: the number of ranks. Pre-multiplied sums and averages of
        /// floats: the bits of the factor, zero-extended, which is an f32 for floats of up to 32 bits and else of
        /// the elements' type.
        pub scalar: u64,
        /// Elements of the buffer that one rank gives or gets: of one block, where a buffer has a block for each rank.
        pub count: u64,
        /// The root, for collectives that have one.
        pub root: u32,
        /// Not 0 when `scalar` is the address of the factor, as one element of the call's type in device memory.
        pub scalar_by_address: u32,
        /// Address of what only some kernels need: their own documentation says what it is.
        pub extra: u64,
        /// Zero.
        pub pad: u64,
        /// What the neighbours' calls are compared with.
        pub signature: Signature,
        /// By channel = block index; only the launched ones are meaningful.
        pub channels: [ChannelWork; MAX_CHANNELS],
    }
}

const _: () =
    assert!(size_of::<Signature>() == 32 && size_of::<Channel>() == 192 && size_of::<Comm>() == 40);
const _: () = assert!(size_of::<Work>() == 96 + 16 * MAX_CHANNELS);

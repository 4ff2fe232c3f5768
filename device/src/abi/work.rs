//! What a kernel is told: the communicator it belongs to, and the call.

use super::{ReduceOp, abi};

/// The most channels a communicator has (NCCL's `MAXCHANNELS` is 64 since 2.19, 32 before).
pub const MAX_CHANNELS: usize = 32;

abi! {
    /// What identifies a call between neighbours: if two ranks' signatures differ, the program is wrong.
    ///
    /// Published in a [`SignatureRing`](super::SignatureRing).
    #[derive(Default)]
    #[repr(align(16))]
    pub struct Signature {
        /// The number of the call, from 1.
        pub seq: u64,
        /// Elements.
        pub count: u64,
        /// From the low byte: collective, data type, reduction, algorithm, protocol, channels; from bit 48 on a number of the kernel's
        /// name, where the caller has named the kernel.
        pub call: u64,
        /// The root, for collectives that have one.
        pub root: u64,
    }
}

impl Signature {
    /// The reduction of the call; what is none reads as a sum.
    #[must_use]
    pub const fn op(&self) -> ReduceOp {
        match (self.call >> 16) as u8 {
            op if op == ReduceOp::Prod as u8 => ReduceOp::Prod,
            op if op == ReduceOp::Min as u8 => ReduceOp::Min,
            op if op == ReduceOp::Max as u8 => ReduceOp::Max,
            op if op == ReduceOp::Avg as u8 => ReduceOp::Avg,
            op if op == ReduceOp::PreMulSum as u8 => ReduceOp::PreMulSum,
            _ => ReduceOp::Sum,
        }
    }

    /// Puts in a number of the kernel's name, where the caller has named the kernel.
    pub const fn set_tag(&mut self, tag: u16) {
        self.call |= (tag as u64) << 48;
    }

    /// The signature as words: what a [`Fault`](super::Fault) carries.
    #[must_use]
    pub const fn words(&self) -> [u64; 4] {
        [self.seq, self.count, self.call, self.root]
    }

    /// A word of all of them, by which a lane that waits compares signatures: those that differ in one word differ in it, too.
    ///
    /// ```
    /// use ferroccl_device::abi::Signature;
    ///
    /// let call = Signature { seq: 7, count: 1000, ..Signature::default() };
    /// assert_ne!(call.digest(), Signature { count: 1001, ..call }.digest());
    /// ```
    #[must_use]
    pub const fn digest(&self) -> u64 {
        // FNV-1a's prime for 64 bits, by which each word is spread before the next comes; odd, so that nothing is lost.
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let mut digest: u64 = 0;
        let words = self.words();
        let mut i = 0;
        while i < words.len() {
            digest = (digest ^ words[i]).wrapping_mul(PRIME);
            i += 1;
        }
        digest
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

/// No rank: where a tree has no parent or child.
pub const NO_RANK: u32 = u32::MAX;

abi! {
    /// One channel of one rank: its neighbours in the ring, and its connections with all ranks.
    #[derive(Default)]
    pub struct Channel {
        /// Address of [`Peer`](super::Peer)s, by rank of the communicator: the connections of its collectives.
        pub peers: u64,
        /// Address of [`Peer`](super::Peer)s, by rank: the connections of its sends and receives.
        pub p2p: u64,
        /// Address of the ring's order: `u32`s, the block of the rank at each position.
        pub order: u64,
        /// Address of device memory that a kernel may use as it likes.
        pub scratch: u64,
        /// Its bytes.
        pub scratch_bytes: u64,
        /// This rank's position in the ring.
        pub index: u32,
        /// The rank before it.
        pub prev: u32,
        /// The rank behind it.
        pub next: u32,
        /// Zero.
        pub pad: u32,
        /// How far the block of a tree has come that goes up, for the one that goes down: the number of the call in the
        /// upper half, chunks that have been read in the lower.
        pub progress: u64,
    }
}

abi! {
    /// A rank's place in a channel's tree. What a kernel that goes up or down a tree finds at
    /// [`Work::extra`], one for each channel.
    pub struct TreeLinks {
        /// The parent, or [`NO_RANK`].
        pub up: u32,
        /// The children; absent ones are [`NO_RANK`] and come last.
        pub down: [u32; 3],
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
    /// A part of a buffer that goes to, or comes from, a peer; or that a rank copies to itself. What the kernel for
    /// sends and receives works on.
    #[derive(Default)]
    pub struct Transfer {
        /// What the peer's transfer is compared with.
        pub signature: Signature,
        /// Address of the [`Conn`](super::Conn); 0 for a copy.
        pub conn: u64,
        /// Where the data is, or goes.
        pub address: u64,
        /// Of a copy: where the data is.
        pub from: u64,
        /// Bytes.
        pub bytes: u64,
        /// Bytes that are done; the kernel's.
        pub done: u64,
        /// A [`TransferKind`].
        pub kind: u32,
        /// A [`TransferState`]; the kernel's.
        pub state: u32,
        /// A [`ProtocolId`](super::ProtocolId).
        pub protocol: u32,
        /// Zero.
        pub pad: u32,
        /// The address of an earlier transfer of the same block that must be done before this one begins; 0 for none.
        /// Transfers over one connection are in order.
        pub after: u64,
    }
}

/// What a [`Transfer`] is. The values are part of the ABI.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// To a peer.
    Send = 0,
    /// From a peer.
    Recv = 1,
    /// Within the rank.
    Copy = 2,
}

/// How far a [`Transfer`] is. The values are part of the ABI.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    /// The peer knows nothing of it.
    New = 0,
    /// A send: the peer knows, and has not said yet where it goes.
    Announced = 1,
    /// Data may move.
    Open = 2,
    /// All has moved.
    Done = 3,
}

abi! {
    /// Where the other ranks' buffers of a window are. Behind it follows a table of `u64`s by rank: the bytes from this rank's buffer
    /// to that rank's, as this rank's kernels reach it (modulo 2^64); its own entry is 0, and that of a rank whose memory is not reached
    /// [`WindowPeers::UNREACHED`].
    #[derive(Default)]
    pub struct WindowPeers {
        /// All entries of ranks that are reached together, by or: the buffers are aligned as this is.
        pub bits: u64,
        /// The bytes from this rank's buffer to the address that has it in the memory of all ranks (modulo 2^64), where there is a
        /// multicast object of the buffers; else 0. [`WindowPeers::BY_RANK`] where ranks' kernels run on the host.
        pub multicast: u64,
    }
}

impl WindowPeers {
    /// The entry of a rank whose memory is not reached. With it an address is none of the machine's (bit 63 differs from bit 62), so that
    /// an access by mistake is a fault of the kernel and no wild write.
    pub const UNREACHED: u64 = 1 << 63;

    /// The distance of a multicast object that has no address, as whoever loads and stores goes from rank to rank.
    pub const BY_RANK: u64 = 1;

    /// Bytes of it with the table, for so many ranks.
    #[must_use]
    pub const fn bytes(nranks: u32) -> usize {
        size_of::<Self>() + nranks as usize * size_of::<u64>()
    }
}

abi! {
    /// One call on one rank: the only argument of every kernel. On a GPU it is passed by value, on the CPU by address.
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
        /// Bytes from what `extra` has for a channel to the next channel's, where kernels are told.
        pub extra_stride: u64,
        /// What the neighbours' calls are compared with.
        pub signature: Signature,
        /// The signature's [digest](Signature::digest). Of a call that works on the other ranks' buffers it also says where in their
        /// windows these are.
        pub digest: u64,
        /// Address of the [`WindowPeers`] of the window that has the input; 0 where the kernel does not read the other ranks'.
        pub input_peers: u64,
        /// The same of the output, into which other ranks write.
        pub output_peers: u64,
        /// Zero.
        pub pad: u64,
        /// By channel = block index; only the launched ones are meaningful.
        pub channels: [ChannelWork; MAX_CHANNELS],
    }
}

const _: () = assert!(
    size_of::<Signature>() == 32
        && size_of::<Channel>() == 64
        && size_of::<TreeLinks>() == 16
        && size_of::<Comm>() == 40
);
const _: () = assert!(size_of::<Transfer>() == 96);
const _: () = assert!(size_of::<Work>() == 128 + 16 * MAX_CHANNELS);

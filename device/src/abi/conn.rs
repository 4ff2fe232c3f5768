//! One direction of one edge: the memory two ranks share, and one end's view of it.
//!
//! ```text
//! edge        one rank to another
//!   header        | poison by sender | by receiver |      in the host's memory: hosts look there, too
//!   connections                                           in the host's memory, or the receiving device's
//!     calls       | tail | entries | ack |
//!     each channel
//!       header    | tail | head | ptr_exchange | calls: tail, entries, ack |
//!       buffers   | LL: slots x bytes | LL128: slots x bytes | Simple: slots x bytes | other crates' protocols |
//! ```
//!
//! Whoever waits for a word has it near: the receiver polls what is in the memory of its edge. The sender polls `head`,
//! `ptr_exchange` and `ack`, which the receiver writes, in the memory of the edge the other way, at the same place
//! ([`Conn::reply`]). Over a network each end has memory of its own, with all of these words.
//!
//! Notation used in every comment of the protocols:
//! * a **step** is the filling of one slot; step `s` uses slot `s % slots`, for each protocol in its own buffer;
//! * **tail** is the number of steps the sender has published (Simple; over a network other crates' protocols, too);
//! * **head** is the number of steps the receiver has consumed: its credit to the sender;
//! * the **flag** of step `s` is `s + 1` in LL128, and 32 bits of `2 s + 1` in LL. Memory starts as zeros,
//!   which is no flag.
//!
//! The step counters of both ends stay equal between calls, whichever protocols the calls used.

use super::{Fault, ProtocolId, Signature, abi};

/// The unit two writers must not share. 128 bytes, as NVIDIA's L2 sectors pair up and x86 prefetches pairs.
pub const CACHE_LINE: usize = 128;
/// Bytes of an LL line: `data, flag, data, flag`, 4 bytes each; each half is stored at once.
pub const LL_LINE: usize = 16;
/// Bytes of an LL128 line.
pub const LL128_LINE: usize = 128;
/// Bytes of data in an LL128 line; the last 8 bytes are the flag.
pub const LL128_LINE_DATA: usize = 120;
/// How many calls' signatures an edge holds: a sender may be this many calls ahead of its receiver.
pub const SIGNATURES: usize = 4;

abi! {
    /// The address of the receiver's user buffer, offered to the sender for direct writes.
    #[repr(align(128))]
    pub struct PtrExchange {
        /// `step + 1` of the receiver's first step in the call the offer is for; written last, with release.
        pub seq: u64,
        /// The address, in the sender's address space.
        pub address: u64,
        /// The [digest](Signature::digest) of the receiver's call: who is in another call has no use for the address.
        pub digest: u64,
        /// Zero.
        pub pad: [u64; 13],
    }
}

abi! {
    /// A fault left at the edge for the neighbour to find: how errors travel without the host.
    #[repr(align(128))]
    pub struct Poison {
        /// 0, then [`Poison::BUSY`], then with release, once `fault` is written, [`Poison::SET`] or [`Poison::LEFT`].
        pub set: u64,
        /// Zero.
        pub pad: [u64; 15],
        /// What to report.
        pub fault: Fault,
    }
}

impl Poison {
    /// One of the writers (a kernel, or its host) is writing the fault.
    pub const BUSY: u64 = 2;
    /// The fault can be read: whoever sees it stops, whatever it waits for.
    pub const SET: u64 = 1;
    /// The neighbour has left after its last call, as it should: only who waits for it stops.
    pub const LEFT: u64 = 3;
}

abi! {
    /// A [`Signature`] that says for itself that it has arrived, as lines of LL do.
    #[derive(Default)]
    pub struct SignatureLines {
        /// Of each 32 bits of the signature, in their order, a word: the bits, and above them the flag of signature number
        /// `n`: 32 bits of `n + 1`. Memory starts as zeros, which is no flag.
        pub halves: [u64; 8],
        /// The same of its [digest](Signature::digest).
        pub digest: [u64; 2],
        /// Zero.
        pub pad: [u64; 6],
    }
}

impl SignatureLines {
    /// The flag of signature number `n`.
    #[inline(always)]
    #[must_use]
    pub const fn flag(n: u64) -> u32 {
        (n + 1) as u32
    }

    /// A word of signature number `n`, as two halves.
    #[inline(always)]
    #[must_use]
    pub const fn halves_of(word: u64, n: u64) -> [u64; 2] {
        let flag = (Self::flag(n) as u64) << 32;
        [word & 0xffff_ffff | flag, word >> 32 | flag]
    }

    /// Signature number `n`.
    #[must_use]
    pub const fn of(signature: &Signature, n: u64) -> Self {
        let [seq, count, call, root] = signature.words();
        let [a, b] = Self::halves_of(seq, n);
        let [c, d] = Self::halves_of(count, n);
        let [e, f] = Self::halves_of(call, n);
        let [g, h] = Self::halves_of(root, n);
        let digest = Self::halves_of(signature.digest(), n);
        SignatureLines { halves: [a, b, c, d, e, f, g, h], digest, pad: [0; 6] }
    }
}

abi! {
    /// The calls that a sender is in, as its receiver learns of them.
    #[repr(align(128))]
    pub struct SignatureRing {
        /// Over a network, signatures written; by the sender, or to the receiver by its proxy, with release. Else 0.
        pub tail: u64,
        /// Zero.
        pub pad0: [u64; 15],
        /// Number `n` is entry `n % SIGNATURES`.
        pub entries: [SignatureLines; SIGNATURES],
        /// Signatures read; by the receiver.
        pub ack: u64,
        /// Zero.
        pub pad1: [u64; 15],
    }
}

abi! {
    /// What the two ends of an edge, and their hosts, share of all its connections. Zeroed when made.
    #[repr(align(128))]
    pub struct EdgeHeader {
        /// Left by the sender for the receiver.
        pub from_sender: Poison,
        /// Left by the receiver for the sender.
        pub from_receiver: Poison,
    }
}

const _: () = assert!(size_of::<EdgeHeader>() == 512);

abi! {
    /// The start of a connection. Zeroed when made.
    #[repr(align(128))]
    pub struct ConnHeader {
        /// Steps published; written by the sender.
        pub tail: u64,
        /// Zero.
        pub pad0: [u64; 15],
        /// Steps consumed; written by the receiver.
        pub head: u64,
        /// Zero.
        pub pad1: [u64; 15],
        /// Written by the receiver.
        pub ptr_exchange: PtrExchange,
        /// The calls that the sender is in.
        pub calls: SignatureRing,
    }
}

const _: () = assert!(size_of::<ConnHeader>() == 1152 && size_of::<SignatureLines>() == CACHE_LINE);
const _: () = assert!(core::mem::offset_of!(ConnHeader, head) == CACHE_LINE);
const _: () = assert!(core::mem::offset_of!(SignatureRing, ack) % CACHE_LINE == 0);

abi! {
    /// One end's view of a connection. Inert: the host that made it owns what the addresses point to.
    #[derive(Default)]
    pub struct Conn {
        /// Address of the [`ConnHeader`].
        pub header: u64,
        /// Address of the [`ConnHeader`] in which the receiver writes to the sender, in memory that is near the sender.
        pub reply: u64,
        /// Addresses of the slots, by [`ProtocolId::index`].
        pub buffers: [u64; ProtocolId::MOST],
        /// Bytes of one slot, by [`ProtocolId::index`]; each a multiple of [`LL128_LINE`] x 2. 0 where the communicator has no such
        /// protocol.
        pub slot_bytes: [u32; ProtocolId::MOST],
        /// Slots of each buffer, at least 2.
        pub slots: u32,
        /// The rank at the other end.
        pub peer: u32,
        /// Not 0 when the sender can reach the receiver's user buffers, so that [`PtrExchange`] is used.
        pub direct: u32,
        /// Zero.
        pub pad: u32,
        /// The next step; advanced by the kernel, kept between calls.
        pub step: u64,
        /// Address of the edge's [`EdgeHeader`].
        pub edge: u64,
        /// Address of the [`SignatureRing`]: of a connection for collectives the edge's, which all channels have, and by which
        /// collectives compare their calls whatever connections they use; of one for sends and receives its own.
        pub calls: u64,
        /// Address of the [`SignatureRing`] in which the receiver acknowledges, in memory that is near the sender.
        pub calls_reply: u64,
        /// Of a sender whose receiver is on another host: address of an entry of the step FIFO for each slot (see
        /// [`fifo_entry`](super::fifo_entry)). Else 0.
        pub fifo: u64,
        /// Of a receiver: not 0 when the tail says for every protocol that a step has arrived, and flags may be there
        /// before their data.
        pub wait_tail_first: u32,
        /// Not 0 when a call has stopped in the middle of its steps here, so that the two ends may differ in them: no later one
        /// begins.
        pub failed: u32,
        /// Of a sender: all steps below have been given credit for, as far as it knows; kept between calls.
        pub credit: u64,
        /// Signatures told by the sender, or read by the receiver; kept between calls.
        pub told: u64,
        /// Of a receiver: signatures compared; kept between calls.
        pub settled: u64,
        /// Of a sender: for so many signatures there is room, as far as it knows. Of a receiver of messages, or of a linear collective:
        /// so many signatures it has acknowledged. Kept between calls.
        pub room: u64,
    }
}

abi! {
    /// A rank's two connections with a peer, on one channel.
    #[derive(Default)]
    pub struct Peer {
        /// From us to the peer.
        pub send: Conn,
        /// From the peer to us.
        pub recv: Conn,
    }
}

const _: () = assert!(size_of::<Conn>() == 208 && size_of::<Peer>() == 416);

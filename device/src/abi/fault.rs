//! Why a kernel gave up, in a form that crosses the launch and the edge.

use super::abi;

/// What went wrong. The values are part of the ABI.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Nothing.
    None = 0,
    /// The host asked the kernels of this communicator to stop.
    Aborted = 1,
    /// A wait outlived its budget; `wait`, `peer`, `channel`, `step` say which.
    Timeout = 2,
    /// Nothing that could end the wait can run any more.
    Deadlock = 3,
    /// The neighbour's call differs from ours; `expected` is ours, `found` the neighbour's.
    Mismatch = 4,
    /// A peer is gone: its process ended or it left the communicator.
    PeerLost = 5,
    /// A user's kernel asked for primitives on a channel, with a rank or in a protocol that its device communicator has no connection
    /// for; `peer` and `channel` say which, `step` is the protocol's index.
    NoConnection = 6,
}

impl FaultKind {
    /// The kind with this number; what is not known reads as [`FaultKind::Aborted`].
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            0 => FaultKind::None,
            2 => FaultKind::Timeout,
            3 => FaultKind::Deadlock,
            4 => FaultKind::Mismatch,
            5 => FaultKind::PeerLost,
            6 => FaultKind::NoConnection,
            _ => FaultKind::Aborted,
        }
    }
}

/// The condition a wait is for. Every spin of a kernel has one.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// Not a wait.
    None = 0,
    /// A sender waits until the receiver has consumed an old step: `head + slots > step`.
    Credit = 1,
    /// A receiver waits until the sender has published the step: `tail > step`, of a connection or of a slot of the mesh.
    Tail = 2,
    /// A receiver waits for both flags of an LL line.
    LlFlag = 3,
    /// A warp waits for the flags of its LL128 lines.
    Ll128Flag = 4,
    /// A receiver waits to learn which call its sender is in.
    Signature = 5,
    /// A sender waits until its receiver has read an older call's signature.
    SignatureCredit = 6,
    /// A sender waits for the address of its receiver's buffer.
    PtrExchange = 7,
    /// The block that goes down a tree waits until the one that goes up has read what it will write.
    Progress = 8,
    /// A rank waits until another has begun the call, and so may be read from and written to.
    Begun = 9,
    /// A rank waits until another has read from and written to it all that it does.
    Ended = 10,
    /// A receiver waits for a flag of a protocol of another crate.
    OwnFlag = 11,
    /// A user's kernel waits at a barrier of its [`DeviceComm`](super::DeviceComm), whose number stands for the channel.
    Barrier = 12,
    /// A user's kernel waits for a signal of its [`DeviceComm`](super::DeviceComm), whose number stands for the channel.
    Signal = 13,
    /// A user's kernel waits for room for a request to the proxy.
    Request = 14,
    /// A user's kernel waits until the proxy has done its requests.
    Flush = 15,
}

impl WaitKind {
    /// The kind with this number; what is not known reads as [`WaitKind::None`].
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        match raw {
            1 => WaitKind::Credit,
            2 => WaitKind::Tail,
            3 => WaitKind::LlFlag,
            4 => WaitKind::Ll128Flag,
            5 => WaitKind::Signature,
            6 => WaitKind::SignatureCredit,
            7 => WaitKind::PtrExchange,
            8 => WaitKind::Progress,
            9 => WaitKind::Begun,
            10 => WaitKind::Ended,
            11 => WaitKind::OwnFlag,
            12 => WaitKind::Barrier,
            13 => WaitKind::Signal,
            14 => WaitKind::Request,
            15 => WaitKind::Flush,
            _ => WaitKind::None,
        }
    }

    /// Whether it is the receiver of an edge that waits so, for its sender.
    #[must_use]
    pub const fn receiving(self) -> bool {
        matches!(
            self,
            WaitKind::Tail
                | WaitKind::LlFlag
                | WaitKind::Ll128Flag
                | WaitKind::Signature
                | WaitKind::Begun
                | WaitKind::Ended
                | WaitKind::OwnFlag
                | WaitKind::Barrier
                | WaitKind::Signal
        )
    }

    /// The condition in words, for "waiting for ...".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            WaitKind::None => "nothing",
            WaitKind::Credit => "credit (head + slots > step)",
            WaitKind::Tail => "data (tail > step)",
            WaitKind::LlFlag => "an LL line (both flags)",
            WaitKind::Ll128Flag => "an LL128 line (flag)",
            WaitKind::Signature => "the peer's call",
            WaitKind::SignatureCredit => "the peer to read an earlier call",
            WaitKind::PtrExchange => "the address of the peer's buffer",
            WaitKind::Progress => "its other block to read the input",
            WaitKind::Begun => "the peer to begin the call",
            WaitKind::Ended => "the peer to do its part of the call",
            WaitKind::OwnFlag => "a flag of its protocol",
            WaitKind::Barrier => "the arrival at the barrier",
            WaitKind::Signal => "a signal",
            WaitKind::Request => "room for a request to the proxy",
            WaitKind::Flush => "the proxy to do its requests",
        }
    }
}

abi! {
    /// One fault: who saw what, where. 128 bytes.
    #[derive(Default)]
    pub struct Fault {
        /// A [`FaultKind`].
        pub kind: u32,
        /// The rank that found it.
        pub rank: u32,
        /// The neighbour concerned.
        pub peer: u32,
        /// The channel.
        pub channel: u32,
        /// A [`WaitKind`].
        pub wait: u32,
        /// Zero.
        pub reserved: u32,
        /// The step that was waited for.
        pub step: u64,
        /// The number of the call, counted from 1 in each communicator.
        pub seq: u64,
        /// What was expected: words of a [`Signature`](super::Signature), or the value waited for.
        pub expected: [u64; 4],
        /// What was there.
        pub found: [u64; 4],
        /// Zero.
        pub pad: [u64; 3],
    }
}

abi! {
    /// A place for the first fault of a communicator; later ones are dropped.
    ///
    /// `state` goes 0 (empty) -> 1 (being written) -> 2 (readable).
    #[derive(Default)]
    pub struct FaultCell {
        /// 0, 1 or 2.
        pub state: u64,
        /// Zero.
        pub pad: [u64; 15],
        /// Valid once `state` was read as 2 with acquire.
        pub fault: Fault,
    }
}

const _: () = assert!(size_of::<Fault>() == 128 && size_of::<FaultCell>() == 256);
const _: () = assert!(core::mem::offset_of!(FaultCell, fault) == 128);

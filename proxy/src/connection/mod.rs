//! Connections between hosts: what the proxy carries from one rank's slots to another's.
//!
//! Where two ranks share the memory of a connection, a kernel fills a slot and the other empties it. Where they do not,
//! each has memory of its own, laid out alike, and a proxy that plays the other rank's part in it:
//!
//! ```text
//! sender's host                                          receiver's host
//! kernel ─ signature, FIFO, slots, tail ─► Sending ═══► Receiving ─ signature, slots, tail ─► kernel
//!        ◄──────── acknowledged, head ────         net             ◄─────── acknowledged, head ────
//! ```
//!
//! A call puts [`Steps`] on each connection that it uses: first the signature that the two ends compare, then so many steps
//! in the slots of a protocol. Each step is a message, sent from the slot and received into the slot. Both ends go through
//! the same list, and count alike:
//!
//! ```text
//! Sending:    posted by the kernel ≥ transmitted (isend called) ≥ done (sent: credit for the kernel)
//! Receiving:  posted (irecv called) ≥ transmitted (arrived) ≥ done (flushed: the kernel may read)
//! ```
//!
//! What the proxy looks at itself is in the host's memory. Slots may be in a GPU's, where the network reaches that
//! ([`GpuSlots`], NCCL's GPU Direct RDMA): then the data does not pass the host at all. Slots of LL stay with the host, as
//! in NCCL, and of a sender those of LL128 as well.
//!
//! A connection is made when it is first needed: the sender connects to the listener that the receiver has for all, and
//! says which connection it means ([`Hello`]). Source: NCCL's `net.cc` (`sendProxyProgress`, `recvProxyProgress`) for the
//! states and their orders.

mod hello;
pub mod orders;
mod reach;
mod recv;
mod send;
mod set;

use std::sync::atomic::AtomicU64;

use ferroccl_device::abi::{Conn, ProtocolId, Signature, SignatureRing};

pub use hello::{HELLO_BYTES, Hello};
pub use recv::Receiving;
pub use send::Sending;
pub use set::{Connections, Failed, FindEnds, Key};

use crate::net::MemoryKind;

/// What a call has on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The call's number, for errors.
    pub seq: u64,
    /// Signatures that the ends compare, before all steps.
    pub signatures: u64,
    /// The protocol of its steps.
    pub protocol: ProtocolId,
    /// How many slots are filled.
    pub steps: u64,
}

/// This host's memory of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Address of the [`SignatureRing`].
    pub calls: u64,
    /// The slots; `None` where only calls are compared.
    pub conn: Option<Conn>,
    /// The part of it that is the host's: address and bytes.
    pub memory: (u64, usize),
    /// Slots that are in a GPU's memory, which the network reaches. Of those that are sent from, Simple's only: of the
    /// other protocols the proxy has to see the lines.
    pub on_gpu: Option<GpuSlots>,
}

/// Memory of a GPU that has slots of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSlots {
    /// Address and bytes.
    pub memory: (u64, usize),
    /// How the network reaches it.
    pub kind: MemoryKind,
    /// Whether the GPU may see what the network has written only after a flush ([`RecvComm::iflush`]).
    ///
    /// [`RecvComm::iflush`]: crate::net::RecvComm::iflush
    pub flush: bool,
}

impl Ends {
    /// # Safety
    /// The memory is valid as long as what is returned is used.
    unsafe fn ring<'a>(&self) -> Ring<'a> {
        let ring = self.calls as *mut SignatureRing;
        // SAFETY: the caller's; both words are only accessed atomically.
        unsafe {
            Ring {
                tail: AtomicU64::from_ptr(&raw mut (*ring).tail),
                ack: AtomicU64::from_ptr(&raw mut (*ring).ack),
                entries: (&raw mut (*ring).entries).cast(),
            }
        }
    }
}

/// The parts of a [`SignatureRing`].
struct Ring<'a> {
    tail: &'a AtomicU64,
    ack: &'a AtomicU64,
    entries: *mut Signature,
}

impl Ring<'_> {
    /// Where signature `n` is.
    fn entry(&self, n: u64) -> *mut u8 {
        let index = (n % ferroccl_device::abi::SIGNATURES as u64) as usize;
        self.entries.wrapping_add(index).cast()
    }
}

/// Bytes of a signature on the network.
const SIGNATURE_BYTES: usize = size_of::<Signature>();

/// Of the steps of calls, where one end is.
#[derive(Debug, Default)]
struct Cursor {
    queue: std::collections::VecDeque<Steps>,
    /// Of the first call in the queue: what has been begun.
    signatures: u64,
    steps: u64,
}

/// What comes next.
enum Next {
    Signature,
    Step(ProtocolId),
}

impl Cursor {
    fn push(&mut self, steps: Steps) {
        self.queue.push_back(steps);
    }

    /// What is to be begun next; `None` when all has been.
    fn next(&mut self) -> Option<Next> {
        loop {
            let first = self.queue.front()?;
            if self.signatures < first.signatures {
                return Some(Next::Signature);
            }
            if self.steps < first.steps {
                return Some(Next::Step(first.protocol));
            }
            self.queue.pop_front();
            (self.signatures, self.steps) = (0, 0);
        }
    }

    /// The call that is at its turn.
    fn seq(&self) -> Option<u64> {
        self.queue.front().map(|steps| steps.seq)
    }
}

/// A message that is under way.
#[derive(Clone, Copy, Debug)]
enum Message {
    Signature,
    Step,
}

/// # Safety
/// `address` is a word that is only accessed atomically, valid for `'a`.
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

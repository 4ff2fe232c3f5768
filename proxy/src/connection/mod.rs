//! Connections between hosts: what the proxy carries from one rank's slots to another's.
//!
//! Where two ranks share the memory of a connection, one kernel fills a slot and the other kernel empties it. Two hosts share
//! no memory. So each host has memory of its own with the same layout, and the proxy plays the part of the remote rank in it:
//!
//! ```text
//! sender's host                                          receiver's host
//! kernel ─ signature, FIFO, slots, tail ─► Sending ═══► Receiving ─ signature, slots, tail ─► kernel
//!        ◄──────── acknowledged, head ────         net             ◄─────── acknowledged, head ────
//! ```
//!
//! A call puts [`Steps`] on each connection that it uses: first signatures, if there are any, which the two ends compare, then a
//! number of steps in the slots of one protocol. Each step is one network message: it is sent from a slot and received into a slot. Both
//! ends take the same steps in the same order, and count them alike:
//!
//! ```text
//! Sending:    posted by the kernel ≥ transmitted (isend called) ≥ done (sent: credit for the kernel)
//! Receiving:  posted (irecv called) ≥ transmitted (arrived) ≥ done (flushed: the kernel may read)
//! ```
//!
//! The words that the proxy reads and writes are in host memory. Slots may be in GPU memory, where the network reaches it
//! ([`GpuSlots`], NCCL's GPU Direct RDMA); the data then bypasses the host. As in NCCL, LL's slots are always in host memory,
//! and the sender's LL128 slots, too: the proxy has to read their flags.
//!
//! A connection is made when it is first needed. The sender connects to the receiver's listener, which serves all connections,
//! and its first message says which connection it is ([`Hello`]). Source: NCCL's `net.cc` (`sendProxyProgress`,
//! `recvProxyProgress`) for the states and their orders.
//!
//! ```text
//! connections    all connections of a rank        send, recv  the two ends of a connection
//! registrations  their memory, registered         orders      the memory orders, each with its partner
//! hello          which connection this is
//! ```

mod connections;
mod hello;
pub mod orders;
mod recv;
mod registrations;
mod send;

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use ferroccl_device::abi::{Conn, ConnHeader, ProtocolId, SignatureLines, SignatureRing};

pub use connections::{ConnectionFailure, ConnectionId, Connections, FindConnMemory, FindRoute};
pub(crate) use connections::{HelloRecv, HelloSend};
pub use hello::{HELLO_BYTES, Hello};
pub use recv::Receiving;
pub use send::Sending;

use crate::net::MemoryKind;

/// What a call sends over a connection, or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The call's number, for error messages.
    pub seq: u64,
    /// The number of signatures, which come before the steps.
    pub signatures: u64,
    /// The protocol of the steps.
    pub protocol: ProtocolId,
    /// The number of steps; each is a slot.
    pub steps: u64,
}

/// What the proxy has done with the next step of a connection. Steps begin, arrive and end in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEvent {
    /// The network sends so many bytes, or waits to receive.
    Begun(usize),
    /// So many bytes have arrived, and may have to be flushed.
    Arrived(usize),
    /// They are sent, or the kernel may read them.
    Ended,
}

/// Is told of what the proxy does (NCCL's `ncclProfileProxyStep`).
pub trait StepObserver: Send {
    /// What has happened on a connection since the last time, and whether we send on it.
    fn on_steps(&mut self, key: ConnectionId, sending: bool, events: &[StepEvent]);
}

/// This host's memory of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnMemory {
    /// Address of the [`SignatureRing`].
    pub calls: u64,
    /// The slots.
    pub conn: Conn,
    /// The host memory that has all of this but [`ConnMemory::on_gpu`]: address and bytes.
    pub memory: (u64, usize),
    /// Slots in GPU memory that the network reaches. At the sender only Simple's slots may be there: the proxy has to read the
    /// flags of LL's and LL128's lines.
    pub on_gpu: Option<GpuSlots>,
}

/// GPU memory that has slots of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSlots {
    /// Address and bytes.
    pub memory: (u64, usize),
    /// How the network reaches it.
    pub kind: MemoryKind,
    /// Whether the GPU is sure to see what the network has written only after a flush ([`RecvComm::iflush`]).
    ///
    /// [`RecvComm::iflush`]: crate::net::RecvComm::iflush
    pub flush: bool,
}

impl ConnMemory {
    /// How many signatures the proxy has sent from here since the beginning, and below which step it has sent all.
    ///
    /// # Safety
    /// The memory is valid, and of a connection that sends.
    #[must_use]
    pub unsafe fn sent(&self) -> (u64, u64) {
        // SAFETY: the caller's.
        let ring = unsafe { self.ring() };
        let signatures = ring.ack.load(orders::OWN);
        // SAFETY: the caller's; a header's words are only accessed atomically.
        let head = unsafe { word(self.conn.header + offset_of!(ConnHeader, head) as u64) };
        (signatures, head.load(orders::OWN))
    }

    /// # Safety
    /// The memory is valid for as long as the result is used.
    unsafe fn ring<'a>(&self) -> RingWords<'a> {
        let ring = self.calls as *mut SignatureRing;
        // SAFETY: the caller's; both words are only accessed atomically.
        unsafe {
            RingWords {
                tail: AtomicU64::from_ptr(&raw mut (*ring).tail),
                ack: AtomicU64::from_ptr(&raw mut (*ring).ack),
                entries: (&raw mut (*ring).entries).cast(),
            }
        }
    }
}

/// The fields of a [`SignatureRing`].
struct RingWords<'a> {
    tail: &'a AtomicU64,
    ack: &'a AtomicU64,
    entries: *mut SignatureLines,
}

impl RingWords<'_> {
    /// Where signature `n` is.
    fn entry(&self, n: u64) -> *mut u8 {
        let index = (n % ferroccl_device::abi::SIGNATURES as u64) as usize;
        self.entries.wrapping_add(index).cast()
    }
}

/// Bytes of a signature on the network.
const SIGNATURE_BYTES: usize = size_of::<SignatureLines>();

/// The calls of one end that are not begun yet, and how far it is in the first of them.
#[derive(Debug, Default)]
struct StepCursor {
    queue: std::collections::VecDeque<Steps>,
    /// Signatures and steps of the first call that have been begun.
    signatures: u64,
    steps: u64,
}

/// The message to begin next.
enum NextMessage {
    Signature,
    Step(ProtocolId),
}

impl StepCursor {
    fn push(&mut self, steps: Steps) {
        self.queue.push_back(steps);
    }

    /// The message to begin next; `None` when all have been begun.
    fn next(&mut self) -> Option<NextMessage> {
        loop {
            let first = self.queue.front()?;
            if self.signatures < first.signatures {
                return Some(NextMessage::Signature);
            }
            if self.steps < first.steps {
                return Some(NextMessage::Step(first.protocol));
            }
            self.queue.pop_front();
            (self.signatures, self.steps) = (0, 0);
        }
    }

    /// Whether all messages of the first call have been begun.
    fn is_between_calls(&self) -> bool {
        let done = |first: &Steps| self.signatures >= first.signatures && self.steps >= first.steps;
        self.queue.front().is_none_or(done)
    }

    /// The number of the first call.
    fn seq(&self) -> Option<u64> {
        self.queue.front().map(|steps| steps.seq)
    }
}

/// What a message that is under way carries.
#[derive(Clone, Copy, Debug)]
enum MessageKind {
    Signature,
    Step,
}

/// # Safety
/// `address` is a word that is only accessed atomically, valid for `'a`.
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

//! Counts a kernel's steps on each connection, by a run without data.
//!
//! The proxies must know the steps of a call before its data comes. A kernel decides them as it runs, from its argument
//! alone. So it runs here, on the calling thread, under [`Counted`](ferroccl_device::prims::Counted), with connections on
//! which it never waits:
//!
//! * credit, tail and progress are far ahead, and there is no FIFO;
//! * there is room for every signature, and the signature to receive equals our own.
//!
//! Afterwards the connections have the counts of steps and signatures.
//!
//! A call costs some microseconds and, for large buffers, some nanoseconds a step; the counts of equal calls are
//! kept.

use std::mem::offset_of;

use ferroccl_device::abi::{
    Channel, Comm, Conn, ConnHeader, EdgeHeader, FaultCell, FaultKind, Peer, Signature,
    SignatureLines, SignatureRing, Work,
};
use ferroccl_device::gpu::cpu::{Adversary, Block, CheckedGuard, Machine, set_current};
use ferroccl_device::gpu::{Verdict, Waiting};

use crate::comm::control::ControlBlock;
use crate::error::{Error, KernelFault, Result};

/// The steps of a call on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepCount {
    /// The channel; `None` is the ring of signatures of the edge.
    pub channel: Option<u32>,
    pub peer: u32,
    pub sending: bool,
    pub signatures: u64,
    pub steps: u64,
}

/// Ahead of every counter that a kernel waits for.
const FAR: u64 = u64::MAX / 2;

/// Connections on which a kernel never waits.
struct DryRunConns {
    _header: Box<ConnHeader>,
    /// The header of all edges, without a fault.
    _edge: Box<EdgeHeader>,
    peers: Box<[Peer]>,
}

/// A machine for kernels that never wait. A wait is an error.
struct NoWaitMachine;

impl Machine for NoWaitMachine {
    fn pause(&self, _: &Waiting) -> Verdict {
        Some(FaultKind::Deadlock)
    }

    fn adversary(&self) -> Option<&dyn Adversary> {
        None
    }

    fn counts(&self) -> bool {
        true
    }
}

/// The connections of a call of `steps` (a [`Kernel::steps`](ferroccl_device::kernels::Kernel)) with `remote` ranks that it
/// uses. `work` is the call's argument, `blocks` what is launched.
///
/// # Errors
/// [`Error::Unavailable`] when the kernel does not count.
///
/// # Safety
/// `work` is what the kernel takes, in a view of `control`'s; what it refers to besides the communicator and the user's
/// buffers is valid, and in the host's memory.
pub(super) unsafe fn count(
    control: &ControlBlock,
    group: usize,
    steps: Option<unsafe fn(*const Work)>,
    work: &Work,
    blocks: u32,
    remote: impl Fn(u32) -> bool,
) -> Result<Vec<StepCount>> {
    let steps = steps.ok_or_else(|| Error::Unavailable {
        what: "a kernel of one's own between hosts".to_owned(),
        reason: "proxies have to know its steps, and it does not count them (Kernel::steps)"
            .to_owned(),
    })?;
    let (comm, channels, orders) = control.tables(group);
    let ranks = control.ranks();
    let shape = control.conn_shape();
    let mut conns = DryRunConns::new(channels.len(), ranks, &shape, &work.signature);
    let mut fault = FaultCell::default();
    let mut abort = 0u64;
    let mut counted_channels: Vec<Channel> = channels
        .iter()
        .zip(orders)
        .enumerate()
        .map(|(i, (channel, order))| Channel {
            peers: (&raw mut conns.peers[i * ranks]).expose_provenance() as u64,
            // The kernels' own is in the device's memory, which the host does not reach.
            order: order.as_ptr().expose_provenance() as u64,
            progress: FAR,
            ..*channel
        })
        .collect();
    let comm = Comm {
        channels: counted_channels.as_mut_ptr().expose_provenance() as u64,
        abort: (&raw mut abort).expose_provenance() as u64,
        fault: (&raw mut fault).expose_provenance() as u64,
        ..*comm
    };
    let work = Work { comm: (&raw const comm).expose_provenance() as u64, ..*work };
    let _checked = CheckedGuard::new();
    for index in 0..blocks {
        let block = Block { index, machine: &NoWaitMachine };
        // SAFETY: the block lives until the second call. The kernel touches the counted connections and the fault cell, which live
        // here, what `work` refers to by the caller's word, and no data (`Machine::counts`).
        unsafe {
            let before = set_current(&raw const block);
            steps(&raw const work);
            set_current(before.cast());
        }
    }
    if fault.state != 0 {
        let reason = format!("kernel steps cannot be counted: {}", KernelFault(fault.fault));
        return Err(Error::Unavailable { what: "a call between hosts".to_owned(), reason });
    }
    Ok(conns.counts(channels.len(), ranks, remote))
}

impl DryRunConns {
    fn new(channels: usize, ranks: usize, shape: &Conn, signature: &Signature) -> Self {
        let mut header: Box<ConnHeader> = Box::new(ConnHeader {
            tail: FAR,
            head: FAR,
            calls: SignatureRing { ack: FAR, ..bytemuck::Zeroable::zeroed() },
            ..bytemuck::Zeroable::zeroed()
        });
        // What the sender of every connection says in a call: that it is in ours. To send, other entries are written.
        header.calls.entries[0] = SignatureLines::of(signature, 0);
        let mut edge: Box<EdgeHeader> = Box::new(bytemuck::Zeroable::zeroed());
        let header_at = (&raw mut *header).expose_provenance() as u64;
        let calls = header_at + offset_of!(ConnHeader, calls) as u64;
        let edge_at = (&raw mut *edge).expose_provenance() as u64;
        let conn = |i: usize| Conn {
            header: header_at,
            reply: header_at,
            calls,
            calls_reply: calls,
            edge: edge_at,
            peer: (i % ranks) as u32,
            step: 0,
            direct: 0,
            fifo: 0,
            wait_tail_first: 0,
            credit: FAR,
            told: 0,
            settled: 0,
            room: FAR,
            ..*shape
        };
        let peers = (0..channels * ranks).map(|i| Peer { send: conn(i), recv: conn(i) }).collect();
        DryRunConns { _header: header, _edge: edge, peers }
    }

    fn counts(
        &self,
        channels: usize,
        ranks: usize,
        remote: impl Fn(u32) -> bool,
    ) -> Vec<StepCount> {
        let mut counts = Vec::new();
        let mut push = |count: StepCount| {
            if count.signatures + count.steps > 0 {
                counts.push(count);
            }
        };
        for peer in (0..ranks).filter(|&rank| remote(rank as u32)) {
            for sending in [true, false] {
                let rank = peer as u32;
                let conn = |channel: usize| {
                    let Peer { send, recv } = &self.peers[channel * ranks + peer];
                    if sending { send } else { recv }
                };
                // All are told by way of the edge's ring.
                let signatures = (0..channels).map(|channel| conn(channel).told).sum();
                push(StepCount { channel: None, peer: rank, sending, signatures, steps: 0 });
                for channel in 0..channels {
                    push(StepCount {
                        channel: Some(channel as u32),
                        peer: rank,
                        sending,
                        signatures: 0,
                        steps: conn(channel).step,
                    });
                }
            }
        }
        counts
    }
}

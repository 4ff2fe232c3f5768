//! Which steps a call has on each connection: its kernels are run without data.
//!
//! Proxies must know before a call's data comes how many steps it has, and in which protocol. A kernel decides that as it
//! goes, from nothing but its argument; so it is run here, on the calling thread, under
//! [`Counted`](ferroccl_device::prims::Counted), with connections of the same shape on which nothing has to be waited for:
//!
//! * credit, tail and progress are far ahead, and a FIFO there is not;
//! * there is room for every signature, and those to be heard are our own;
//! * how far the step counters, and the counters of signatures, have come is what was wanted.
//!
//! A call costs some microseconds and, for large buffers, some nanoseconds a step; [`Counts`] of calls that are alike are
//! kept.

use ferroccl_device::abi::{
    Channel, Comm, Conn, ConnHeader, EdgeHeader, FaultCell, FaultKind, Peer, SIGNATURES, Signature,
    SignatureRing, Work,
};
use ferroccl_device::gpu::cpu::{Adversary, Block, CheckedGuard, Machine, set_current};
use ferroccl_device::gpu::{Verdict, Waiting};

use super::control::Control;
use crate::{Error, Result};

/// What a call has on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// The channel; `None` is the edge's roll.
    pub channel: Option<u32>,
    pub peer: u32,
    pub sending: bool,
    pub signatures: u64,
    pub steps: u64,
}

/// Far ahead of whatever is waited for.
const FAR: u64 = u64::MAX / 2;

/// The other ends of a connection, or of an edge: what there is to be waited for.
struct Stage {
    headers: Box<[ConnHeader]>,
    /// Of the edges, in pairs: to send, and to receive.
    rolls: Box<[SignatureRing]>,
    /// Nobody leaves a fault there.
    _edge: Box<EdgeHeader>,
    peers: Box<[Peer]>,
}

/// A machine on which nobody waits.
struct Still;

impl Machine for Still {
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
/// buffers is valid.
pub(super) unsafe fn count(
    control: &Control,
    view: usize,
    steps: Option<unsafe fn(*const Work)>,
    work: &Work,
    blocks: u32,
    remote: impl Fn(u32) -> bool,
) -> Result<Vec<Count>> {
    let steps = steps.ok_or_else(|| Error::Unavailable {
        what: "a kernel of one's own between hosts".to_owned(),
        reason: "proxies have to know its steps, and it does not count them (Kernel::steps)"
            .to_owned(),
    })?;
    let (comm, channels) = control.view(view);
    let ranks = control.ranks();
    let shape = control.conn_shape();
    let mut stage = Stage::new(channels.len(), ranks, &shape, &work.signature);
    let mut fault = FaultCell::default();
    let mut abort = 0u64;
    let mut stages: Vec<Channel> = channels
        .iter()
        .enumerate()
        .map(|(i, channel)| Channel {
            peers: (&raw mut stage.peers[i * ranks]).expose_provenance() as u64,
            progress: FAR,
            ..*channel
        })
        .collect();
    let comm = Comm {
        channels: stages.as_mut_ptr().expose_provenance() as u64,
        abort: (&raw mut abort).expose_provenance() as u64,
        fault: (&raw mut fault).expose_provenance() as u64,
        ..*comm
    };
    let work = Work { comm: (&raw const comm).expose_provenance() as u64, ..*work };
    let _checked = CheckedGuard::new();
    for index in 0..blocks {
        let block = Block { index, machine: &Still };
        // SAFETY: the block lives until the second call. The kernel touches the stage and the fault cell, which live
        // here, what `work` refers to by the caller's word, and no data (`Machine::counts`).
        unsafe {
            let before = set_current(&raw const block);
            steps(&raw const work);
            set_current(before.cast());
        }
    }
    if fault.state != 0 {
        let reason = format!("kernel steps cannot be counted: {:?}", fault.fault);
        return Err(Error::Unavailable { what: "a call between hosts".to_owned(), reason });
    }
    Ok(stage.counts(channels.len(), ranks, remote))
}

impl Stage {
    fn new(channels: usize, ranks: usize, shape: &Conn, signature: &Signature) -> Self {
        let told = SignatureRing { ack: FAR, ..EMPTY };
        let heard = SignatureRing { tail: FAR, entries: [*signature; SIGNATURES], ..EMPTY };
        let header =
            |calls| ConnHeader { tail: FAR, head: FAR, calls, ..bytemuck::Zeroable::zeroed() };
        // In pairs: to send, and to receive.
        let mut headers: Box<[ConnHeader]> =
            (0..channels * ranks).flat_map(|_| [header(told), header(heard)]).collect();
        let mut rolls: Box<[SignatureRing]> = (0..ranks).flat_map(|_| [told, heard]).collect();
        let mut edge: Box<EdgeHeader> = Box::new(bytemuck::Zeroable::zeroed());
        let headers_at = headers.as_mut_ptr().expose_provenance();
        let rolls_at = rolls.as_mut_ptr().expose_provenance();
        let edge_at = (&raw mut *edge).expose_provenance() as u64;
        let conn = |i: usize, receiving: usize| Conn {
            header: (headers_at + (2 * i + receiving) * size_of::<ConnHeader>()) as u64,
            roll: (rolls_at + (2 * (i % ranks) + receiving) * size_of::<SignatureRing>()) as u64,
            edge: edge_at,
            peer: (i % ranks) as u32,
            step: 0,
            direct: 0,
            fifo: 0,
            gated: 0,
            ..*shape
        };
        let peers =
            (0..channels * ranks).map(|i| Peer { send: conn(i, 0), recv: conn(i, 1) }).collect();
        Stage { headers, rolls, _edge: edge, peers }
    }

    fn counts(&self, channels: usize, ranks: usize, remote: impl Fn(u32) -> bool) -> Vec<Count> {
        let mut counts = Vec::new();
        let mut push = |count: Count| {
            if count.signatures + count.steps > 0 {
                counts.push(count);
            }
        };
        for peer in (0..ranks).filter(|&rank| remote(rank as u32)) {
            for sending in [true, false] {
                let half = usize::from(!sending);
                let signatures = |ring: &SignatureRing| if sending { ring.tail } else { ring.ack };
                let rank = peer as u32;
                let roll = &self.rolls[2 * peer + half];
                push(Count {
                    channel: None,
                    peer: rank,
                    sending,
                    signatures: signatures(roll),
                    steps: 0,
                });
                for channel in 0..channels {
                    let i = channel * ranks + peer;
                    let conn = if sending { &self.peers[i].send } else { &self.peers[i].recv };
                    push(Count {
                        channel: Some(channel as u32),
                        peer: rank,
                        sending,
                        signatures: signatures(&self.headers[2 * i + half].calls),
                        steps: conn.step,
                    });
                }
            }
        }
        counts
    }
}

/// A ring in which nothing is.
const EMPTY: SignatureRing = SignatureRing {
    tail: 0,
    pad0: [0; 15],
    entries: [Signature { seq: 0, count: 0, call: 0, root: 0 }; SIGNATURES],
    ack: 0,
    pad1: [0; 15],
};

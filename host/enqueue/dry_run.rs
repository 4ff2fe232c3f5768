//! Kernels that run without data, to say which steps they take.
//!
//! A kernel decides its steps as it runs, from its argument alone. So it runs here, on the calling thread, under
//! [`Counted`](ferroccl_device::prims::Counted), with connections on which it never waits:
//!
//! * credit, tail and progress are far ahead, and there is no FIFO;
//! * there is room for every signature, and the signature to receive equals our own.
//!
//! Two ask: the proxies, which must know the steps of a call before its data comes (`comm::net`), and whoever wants to know what a call
//! would do without making it ([`StepRecorder`]).

use std::cell::RefCell;
use std::mem::offset_of;

use ferroccl_device::abi::{
    Algorithm, Channel, Comm, Conn, ConnHeader, EdgeHeader, FaultCell, FaultKind, MAX_CHANNELS,
    NO_RANK, Peer, ProtocolId, Signature, SignatureLines, SignatureRing, TreeLinks, Work,
};
pub use ferroccl_device::gpu::cpu::CountedStep;
use ferroccl_device::gpu::cpu::{Adversary, Block, CheckedGuard, Machine, set_current};
use ferroccl_device::gpu::{Verdict, Waiting};

use super::KernelPlan;
use crate::error::{Error, KernelFault, Result};

/// Ahead of every counter that a kernel waits for.
const FAR: u64 = u64::MAX / 2;

/// Slots and their sizes: equal for all connections of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnShape {
    /// Slots of a connection.
    pub slots: u32,
    /// Bytes of a slot, by [`ProtocolId::index`].
    pub slot_bytes: [u32; ProtocolId::MOST],
}

impl ConnShape {
    /// A connection of this shape; all else of it is zero.
    fn conn(self) -> Conn {
        Conn { slots: self.slots, slot_bytes: self.slot_bytes, ..Conn::default() }
    }
}

/// Connections on which a kernel never waits.
pub(crate) struct DryRunConns {
    header: Box<ConnHeader>,
    /// The header of all edges, without a fault.
    _edge: Box<EdgeHeader>,
    /// By channel and rank.
    pub(crate) peers: Box<[Peer]>,
    ranks: usize,
}

/// A machine for kernels that never wait. A wait is an error.
struct NoWaitMachine<F>(F);

impl<F: Fn(&CountedStep)> Machine for NoWaitMachine<F> {
    fn pause(&self, _: &Waiting) -> Verdict {
        Some(FaultKind::Deadlock)
    }

    fn adversary(&self) -> Option<&dyn Adversary> {
        None
    }

    fn counts(&self) -> bool {
        true
    }

    fn counted(&self, step: &CountedStep) {
        (self.0)(step);
    }
}

impl DryRunConns {
    /// With all ranks, on so many channels, for a call of this signature.
    pub(crate) fn new(channels: usize, ranks: usize, shape: &Conn, signature: &Signature) -> Self {
        let mut header: Box<ConnHeader> = Box::new(ConnHeader {
            tail: FAR,
            head: FAR,
            calls: SignatureRing { ack: FAR, ..bytemuck::Zeroable::zeroed() },
            ..bytemuck::Zeroable::zeroed()
        });
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
            peer: (i % ranks.max(1)) as u32,
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
        let mut conns = DryRunConns { header, _edge: edge, peers, ranks };
        conns.expect(signature);
        conns
    }

    /// The senders of all connections are in the call of this signature.
    fn expect(&mut self, signature: &Signature) {
        // To send, other entries are written.
        self.header.calls.entries[0] = SignatureLines::of(signature, 0);
    }

    /// Address of a channel's connections.
    pub(crate) fn of_channel(&mut self, channel: usize) -> u64 {
        (&raw mut self.peers[channel * self.ranks]).expose_provenance() as u64
    }

    /// As it was made, but for the signature, where a kernel has used the connections with a rank of the first channel.
    fn restore(&mut self, rank: u32) {
        if let Some(Peer { send, recv }) = self.peers.get_mut(rank as usize) {
            for conn in [send, recv] {
                (conn.step, conn.told, conn.settled) = (0, 0, 0);
            }
        }
    }
}

/// Runs blocks of a kernel without data. `steps` is [`Kernel::steps`](ferroccl_device::kernels::Kernel::steps). The addresses of the flags and
/// channels that `comm` has are replaced; `work` leads to it. `told` hears of every step.
///
/// # Errors
/// [`Error::Unavailable`] when the kernel does not count.
///
/// # Safety
/// `work` is what the kernel takes. The connections of `channels` are a [`DryRunConns`], what else they refer to is valid and in the
/// host's memory, and so is what `work` refers to besides the communicator and the user's buffers.
pub(crate) unsafe fn run(
    steps: Option<unsafe fn(*const Work)>,
    work: &Work,
    comm: &Comm,
    channels: &mut [Channel],
    blocks: std::ops::Range<u32>,
    told: impl Fn(&CountedStep),
) -> Result<()> {
    let steps = steps.ok_or_else(|| Error::Unavailable {
        what: "the steps of a kernel".to_owned(),
        reason: "it does not count them (Kernel::steps); a call between hosts needs that"
            .to_owned(),
    })?;
    let mut fault = FaultCell::default();
    let mut abort = 0u64;
    for channel in &mut *channels {
        channel.progress = FAR;
    }
    let comm = Comm {
        channels: channels.as_mut_ptr().expose_provenance() as u64,
        abort: (&raw mut abort).expose_provenance() as u64,
        fault: (&raw mut fault).expose_provenance() as u64,
        ..*comm
    };
    let work = Work { comm: (&raw const comm).expose_provenance() as u64, ..*work };
    let _checked = CheckedGuard::new();
    let machine = NoWaitMachine(told);
    for index in blocks {
        let block = Block { index, machine: &machine };
        // SAFETY: the block lives until the second call. The kernel touches the counted connections and the fault cell, which live
        // here and with the caller, what `work` refers to by the caller's word, and no data (`Machine::counts`).
        unsafe {
            let before = set_current(&raw const block);
            steps(&raw const work);
            set_current(before.cast());
        }
    }
    if fault.state != 0 {
        let reason = format!("kernel steps cannot be counted: {}", KernelFault(fault.fault));
        return Err(Error::Unavailable { what: "the steps of a kernel".to_owned(), reason });
    }
    Ok(())
}

/// A rank's place in a channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelPlace<'a> {
    /// The blocks of the ranks around the ring, from its first position on.
    pub order: &'a [u32],
    /// The rank's position in the ring.
    pub index: u32,
    /// The rank before it, as a number of the communicator.
    pub prev: u32,
    /// The rank behind it, likewise.
    pub next: u32,
    /// Its place in the channel's tree; of a plan that takes none it counts for nothing.
    pub tree: TreeLinks,
}

/// Records the steps that blocks of planned kernels would take.
///
/// ```
/// use ferroccl::enqueue::{AlgoChoice, ChannelPlace, CollectiveCall, ConnShape, StepRecorder, plan};
/// use ferroccl::device::abi::{NO_RANK, ProtocolId, TreeLinks};
/// use ferroccl::{Algorithm, Collective, DataType, ReduceOp, Registry};
///
/// let call = CollectiveCall {
///     collective: Collective::AllReduce, count: 1024, data_type: DataType::F32, op: ReduceOp::Sum, root: None,
/// };
/// let choice = AlgoChoice { algorithm: Algorithm::Ring, protocol: ProtocolId::Simple, channels: 1, threads: 1 };
/// let plan = plan(&Registry::new(), &call, choice, 1)?;
/// let shape = ConnShape { slots: 8, slot_bytes: [4096; ProtocolId::MOST] };
/// let none = TreeLinks { up: NO_RANK, down: [NO_RANK; 3] };
/// // Rank 1 of 4 that are in their own order.
/// let place = ChannelPlace { order: &[0, 1, 2, 3], index: 1, prev: 0, next: 2, tree: none };
/// let steps = StepRecorder::new(4, shape).record(&plan, (1, 4), 0, 0, &place)?;
/// // 2 * 4 - 1 chunks of two slices each.
/// assert_eq!(steps.len(), 14);
/// assert_eq!((steps[0].recv[0], steps[0].send[0], steps[0].bytes), (NO_RANK, 2, 512));
/// assert_eq!((steps[13].recv[0], steps[13].send[0]), (0, NO_RANK));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StepRecorder {
    /// Of one channel, which stands for each in turn.
    conns: DryRunConns,
    steps: RefCell<Vec<CountedStep>>,
}

impl std::fmt::Debug for StepRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepRecorder").field("ranks", &self.conns.ranks).finish_non_exhaustive()
    }
}

impl StepRecorder {
    /// For communicators of up to `ranks` ranks whose connections are of this shape.
    #[must_use]
    pub fn new(ranks: u32, shape: ConnShape) -> Self {
        let conns = DryRunConns::new(1, ranks as usize, &shape.conn(), &Signature::default());
        StepRecorder { conns, steps: RefCell::default() }
    }

    /// The steps of one block: number `half` of those of a channel. `rank` is the rank as a number of the communicator, and the ranks of
    /// the kernel's group.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the kernel does not count its steps, and an argument that is out of range.
    pub fn record(
        &mut self,
        plan: &KernelPlan,
        (rank, group): (u32, u32),
        channel: u32,
        half: u32,
        place: &ChannelPlace<'_>,
    ) -> Result<Vec<CountedStep>> {
        let wrong = |name, why: &str| Err(Error::argument(name, why));
        if matches!(plan.choice.algorithm, Algorithm::Own(_)) {
            return wrong(
                "plan",
                "a kernel of another crate, which may use memory that is not there",
            );
        }
        let known = |rank: u32| (rank as usize) < self.conns.ranks;
        let tree = [place.tree.up].into_iter().chain(place.tree.down);
        let mut tree = tree.filter(|rank| *rank != NO_RANK);
        if !known(rank) || !known(place.prev) || !known(place.next) || !tree.all(known) {
            return wrong("rank", "a rank that the recorder was not made for");
        }
        if channel >= plan.choice.channels || channel as usize >= MAX_CHANNELS {
            return wrong("channel", "the plan does not have it");
        }
        let blocks = plan.kernel.blocks.max(1);
        if half >= blocks || group as usize != place.order.len() || place.index >= group.max(1) {
            return wrong("place", "no place in the ring");
        }
        let (peers, order) = (self.conns.of_channel(0), place.order.as_ptr());
        let own = Channel {
            peers,
            order: order.expose_provenance() as u64,
            index: place.index,
            prev: place.prev,
            next: place.next,
            ..Channel::default()
        };
        // The kernel looks at the entry of its own channel alone.
        let mut channels = vec![own; channel as usize + 1];
        let links = vec![place.tree; channel as usize + 1];
        // No address: nothing is loaded or stored there. Two different ones, as where a call is not in place.
        let mut work = plan.work(plan.signature.seq, 0, 1 << 12, 2 << 12, (0, false));
        if plan.tree {
            work.extra = links.as_ptr().expose_provenance() as u64;
        }
        let comm = Comm { rank, nranks: group, ..Comm::default() };
        self.conns.expect(&plan.signature);
        let block = channel * blocks + half;
        let steps = &self.steps;
        // SAFETY: what `work` leads to is the communicator, channels, an order of `group` entries and connections with all ranks that the
        // kernel may name: they were looked at above, and `links` has an entry for each channel to this one. Kernels over the mesh and on
        // windows, which take something else, do not count.
        let done = unsafe {
            run(plan.kernel.steps, &work, &comm, &mut channels, block..block + 1, |step| {
                steps.borrow_mut().push(*step);
            })
        };
        let steps = self.steps.take();
        let named = steps.iter().flat_map(|step| step.recv.into_iter().chain(step.send));
        let named: Vec<u32> = named.chain([place.prev, place.next]).collect();
        for rank in named {
            self.conns.restore(rank);
        }
        done.map(|()| steps)
    }
}

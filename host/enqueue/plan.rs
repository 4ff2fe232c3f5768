//! The plan of a kernel: which one, on which channels, and each channel's part of the data.

use bytemuck::Zeroable;
use ferroccl_device::abi::{
    Algorithm, ChannelWork, Collective, DataType, MAX_CHANNELS, NO_RANK, ProtocolId, ReduceOp,
    Signature, Work,
};
use ferroccl_device::collectives::Chain;
use ferroccl_device::kernels::{Kernel, left_out, lookup};

use super::CollectiveCall;
use crate::registry::Registry;
use ferroccl_topology::graph::tuning::Tuner;

/// What planning needs to know of a communicator.
#[derive(Clone, Debug)]
pub struct PlanContext {
    /// The number of ranks.
    pub ranks: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of channels, 1 to [`MAX_CHANNELS`].
    pub channels: u32,
    /// The most blocks of a call: as many as the device runs at the same time.
    pub blocks: u32,
    /// The tuning model's choice for each collective and size.
    pub tuner: Tuner,
    /// Whether every call uses all channels, instead of as many as its size is worth.
    pub all_channels: bool,
    /// The algorithm of every call for which it exists, instead of the tuner's choice.
    pub algorithm: Option<Algorithm>,
    /// The kernels of other crates.
    pub registry: Registry,
    /// The types and operators that a network reduces between nodes.
    pub network: NetworkOps,
}

/// The types and operators that a network reduces; by default none.
///
/// ```
/// use ferroccl::enqueue::NetworkOps;
/// use ferroccl::{DataType, ReduceOp};
///
/// let sums = NetworkOps::new(|_, op| op == ReduceOp::Sum);
/// assert!(sums.has(DataType::F16, ReduceOp::Sum) && !sums.has(DataType::F16, ReduceOp::Max));
/// assert!(!NetworkOps::default().has(DataType::F16, ReduceOp::Sum));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkOps {
    /// A bit for each operator, by type.
    ops: [u8; 16],
}

impl NetworkOps {
    /// The types and operators for which `has` is true.
    #[must_use]
    pub fn new(has: impl Fn(DataType, ReduceOp) -> bool) -> Self {
        const { assert!(DataType::ALL.len() <= 16 && ReduceOp::ALL.len() <= 8) };
        let mut all = NetworkOps::default();
        for &data_type in DataType::ALL {
            for &op in ReduceOp::ALL.iter().filter(|op| has(data_type, **op)) {
                all.ops[data_type as usize] |= 1 << op as u8;
            }
        }
        all
    }

    /// Whether the network reduces this type with this operator.
    #[must_use]
    pub fn has(&self, data_type: DataType, op: ReduceOp) -> bool {
        self.ops.get(data_type as usize).is_some_and(|ops| ops & (1 << op as u8) != 0)
    }
}

/// The algorithm, protocol, channels and threads of a call (what NCCL's `topoGetAlgoInfo` chooses).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgoChoice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: ProtocolId,
    /// Channels.
    pub channels: u32,
    /// Threads of a block, on a GPU.
    pub threads: u32,
}

/// One kernel of a call, ready to be launched (NCCL's `ncclKernelPlan`).
#[derive(Clone, Copy, Debug)]
pub struct KernelPlan {
    /// The kernel.
    pub kernel: Kernel,
    /// The algorithm and protocol, with channels and threads.
    pub choice: AlgoChoice,
    /// Blocks to launch.
    pub blocks: u32,
    /// The words that neighbours compare.
    pub signature: Signature,
    /// Elements of a rank's block, as the kernel counts: bytes where it only moves them.
    pub count: u64,
    /// The root, or [`NO_RANK`].
    pub root: u32,
    /// What [`Work::extra`] is, unless it is an address.
    pub mode: u64,
    /// Whether [`Work::extra`] is the address of the links of trees.
    pub tree: bool,
    /// Whether it is that of the links of the mesh.
    pub mesh: bool,
    /// Elements that the channels' parts are multiples of, but for the last.
    pub grain: usize,
}

/// A call for which there is no kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The call.
    pub call: CollectiveCall,
    /// What was chosen; `None` when the settings exclude every choice.
    pub choice: Option<AlgoChoice>,
    /// The cargo feature that would give this build a kernel, if that is the reason.
    pub left_out: Option<&'static str>,
    /// Whether there is any kernel for the call, whatever the settings are.
    pub has_kernels: bool,
    /// How its buffers would have to be registered for there to be a kernel.
    pub needs: Registration,
}

impl PlanError {
    fn new(registry: &Registry, call: &CollectiveCall, choice: Option<AlgoChoice>) -> Self {
        let algorithm = choice.map_or(Algorithm::Ring, |choice| choice.algorithm);
        let left_out = left_out(call.collective, algorithm, call.data_type);
        let has_kernels = call.has_kernels(registry);
        PlanError { call: *call, choice, left_out, has_kernels, needs: Registration::None }
    }
}

impl std::error::Error for PlanError {}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CollectiveCall { collective, data_type, op, .. } = self.call;
        write!(f, "no kernel does {collective}(type {data_type}, op {op})")?;
        if let Some(AlgoChoice { algorithm, protocol, .. }) = self.choice {
            write!(f, " by {algorithm} with {protocol}")?;
        }
        match self.left_out {
            Some(feature) => write!(f, ": this build is without the cargo feature `{feature}`"),
            None if self.choice.is_none() => {
                f.write_str(
                    " in a way that NCCL_ALGO, NCCL_PROTO and FERROCCL_DETERMINISTIC allow",
                )?;
                match self.needs {
                    Registration::Multicast => {
                        f.write_str("; NVLS is for buffers that are registered as windows of GPUs whose switch has multicast objects")
                    }
                    Registration::Window => {
                        let direct = Algorithm::Direct;
                        write!(f, "; {direct} is for buffers that are registered as windows")
                    }
                    Registration::None => Ok(()),
                }
            }
            None => Ok(()),
        }
    }
}

impl CollectiveCall {
    /// Whether this build has any kernel for the call, whatever the settings are.
    fn has_kernels(&self, registry: &Registry) -> bool {
        let has = |a: &Algorithm, p: &ProtocolId| {
            registry.lookup(self.collective, *a, *p, self.op, self.data_type).is_some()
        };
        let own = registry.rows().iter();
        let mut own = own.filter_map(|row| Some((row.algorithm, row.protocol?)));
        Algorithm::ALL.iter().any(|a| ProtocolId::ALL.iter().any(|p| has(a, p)))
            || own.any(|(a, p)| has(&a, &p))
    }
}

impl KernelPlan {
    /// The kernel's argument as the communicator's call `seq`: a plan does for all calls that are alike. `comm`, `input` and `output` are
    /// addresses, and `scalar` is the operator's, or its address if that is `true`.
    #[must_use]
    pub fn work(&self, seq: u64, comm: u64, input: u64, output: u64, scalar: (u64, bool)) -> Work {
        let mut work = Work::zeroed();
        self.write_work(&mut work, seq, [comm, input, output], scalar);
        work
    }

    /// Writes what [`KernelPlan::work`] gives into a work of zeros.
    pub(crate) fn write_work(
        &self,
        work: &mut Work,
        seq: u64,
        [comm, input, output]: [u64; 3],
        scalar: (u64, bool),
    ) {
        (work.comm, work.input, work.output) = (comm, input, output);
        (work.scalar, work.scalar_by_address) = (scalar.0, scalar.1.into());
        (work.count, work.root, work.extra) = (self.count, self.root, self.mode);
        work.signature = Signature { seq, ..self.signature };
        work.digest = work.signature.digest();
        split_into(&mut work.channels, self.count as usize, self.choice.channels, self.grain);
    }

    /// The part of a channel.
    #[must_use]
    pub fn part(&self, channel: u32) -> ChannelWork {
        part(self.count as usize, self.choice.channels, self.grain, channel)
    }
}

/// Cuts `count` elements into one contiguous part a channel, all but the last multiples of `grain`.
///
/// Every element is in exactly one part. Parts differ by at most `grain`, but for the last.
#[must_use]
pub fn split(count: usize, channels: u32, grain: usize) -> [ChannelWork; MAX_CHANNELS] {
    let mut parts = [ChannelWork::default(); MAX_CHANNELS];
    split_into(&mut parts, count, channels, grain);
    parts
}

/// [`split`] into parts that are empty.
fn split_into(parts: &mut [ChannelWork; MAX_CHANNELS], count: usize, channels: u32, grain: usize) {
    for (i, part_of) in (0..channels.max(1)).zip(parts) {
        *part_of = part(count, channels, grain, i);
    }
}

/// Part `index` of [`split`].
fn part(count: usize, channels: u32, grain: usize, index: u32) -> ChannelWork {
    let channels = (channels as usize).clamp(1, MAX_CHANNELS);
    let (index, grain) = (index as usize, grain.max(1));
    if index >= channels {
        return ChannelWork::default();
    }
    let grains = count.div_ceil(grain);
    let (each, more) = (grains / channels, grains % channels);
    let start = |i: usize| (each * i + i.min(more)).saturating_mul(grain).min(count);
    let (start, end) = (start(index), start(index + 1));
    ChannelWork { offset: start as u64, count: (end - start) as u64 }
}

/// What kernels may do with the buffers of a call on other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Registration {
    /// Nothing.
    #[default]
    None,
    /// They may read and write them: the buffers are in windows.
    Window,
    /// The same, and by a switch those of all ranks at once: the windows have multicast objects.
    Multicast,
}

impl Registration {
    /// Whether it does for an algorithm.
    fn allows(self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Direct => self >= Registration::Window,
            Algorithm::Nvls => self >= Registration::Multicast,
            _ => true,
        }
    }
}

/// Whether an algorithm and protocol can do a call: there are kernels for it, and its `buffers` are registered as far as that
/// needs.
fn can_do(
    call: &CollectiveCall,
    context: &PlanContext,
    buffers: Registration,
    (algorithm, protocol): (Algorithm, ProtocolId),
) -> bool {
    let lookup = |collective, algorithm, op| {
        context.registry.lookup(collective, algorithm, protocol, op, call.data_type).is_some()
    };
    // What is made of other collectives, all by rings: a build, or another crate, may have some of them and not all.
    let is_made_of = |parts: &[Collective]| {
        parts.iter().all(|part| {
            let op = if *part == Collective::Broadcast { ReduceOp::Sum } else { call.op };
            lookup(*part, Algorithm::Ring, op)
        })
    };
    match algorithm {
        Algorithm::Hierarchical => {
            let parts = [Collective::Reduce, Collective::AllReduce, Collective::Broadcast];
            context.nodes > 1 && !matches!(protocol, ProtocolId::Own(_)) && is_made_of(&parts)
        }
        Algorithm::CollnetDirect => {
            context.network.has(call.data_type, call.op)
                && is_made_of(&[Collective::Reduce, Collective::Broadcast])
        }
        _ if !buffers.allows(algorithm) => false,
        _ if context.algorithm != Some(algorithm) && is_by_messages(call, context, algorithm) => {
            false
        }
        _ => lookup(call.collective, algorithm, call.op),
    }
}

/// Whether a group of sends and receives is faster: for an all-to-all.
fn is_by_messages(call: &CollectiveCall, context: &PlanContext, algorithm: Algorithm) -> bool {
    let bytes = call.largest_bytes(context.ranks);
    context.tuner.is_by_messages(call.collective, bytes, algorithm)
}

/// Chooses for a call the fastest algorithm and protocol, by the tuner, for which the table has a kernel. `buffers` says how far the
/// buffers are registered that a kernel may read and write on other ranks.
///
/// # Errors
/// [`PlanError`] when the settings exclude every choice.
pub fn choose(
    call: &CollectiveCall,
    context: &PlanContext,
    buffers: Registration,
) -> Result<AlgoChoice, PlanError> {
    let bytes = call.largest_bytes(context.ranks);
    let has = |algorithm, protocol| can_do(call, context, buffers, (algorithm, protocol));
    let best = |open: &dyn Fn(Algorithm, ProtocolId) -> bool| {
        context.tuner.fastest(call.collective, bytes, |a, p| open(a, p) && has(a, p))
    };
    let chosen = match context.algorithm {
        // One rank copies, whatever the settings are; an all-to-all by a message to itself.
        _ if context.ranks == 1 && call.collective != Collective::AllToAll => {
            Some((Algorithm::Ring, ProtocolId::Simple))
        }
        Some(wanted) => best(&|a, _| a == wanted).or_else(|| best(&|_, _| true)),
        None => best(&|_, _| true),
    }
    .ok_or_else(|| {
        let registered = |a: Algorithm, _| !buffers.allows(a);
        let needs = match context.tuner.fastest(call.collective, bytes, registered) {
            Some((Algorithm::Nvls, _)) => Registration::Multicast,
            Some(_) => Registration::Window,
            None => Registration::None,
        };
        PlanError { needs, ..PlanError::new(&context.registry, call, None) }
    })?;
    Ok(choice(call, context, chosen, None))
}

/// All that can do a call, with the microseconds that the tuner predicts for it, in the tuner's order: what [`choose`] chooses
/// from.
///
/// ```
/// use ferroccl::enqueue::{CollectiveCall, Registration, costs};
/// # use ferroccl::enqueue::{NetworkOps, PlanContext};
/// # use ferroccl::graph::tuning::{Devices, Settings, Situation, Tuner};
/// use ferroccl::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};
///
/// # let tuner = Tuner::new(&Situation::new(1, 4, Devices::Cpu { ring: None }), &Settings::default());
/// # let (registry, network) = (ferroccl::Registry::new(), NetworkOps::default());
/// # let context = PlanContext { ranks: 4, nodes: 1, channels: 2, blocks: 8, tuner, all_channels: false, algorithm: None, registry, network };
/// let (data_type, op) = (DataType::F32, ReduceOp::Sum);
/// let call = CollectiveCall { collective: Collective::AllReduce, count: 1000, data_type, op, root: None };
/// let all = costs(&call, &context, Registration::None);
/// assert!(all.iter().any(|(a, p, _)| (*a, *p) == (Algorithm::Ring, ProtocolId::Ll)));
/// ```
#[must_use]
pub fn costs(
    call: &CollectiveCall,
    context: &PlanContext,
    buffers: Registration,
) -> Vec<(Algorithm, ProtocolId, f64)> {
    let bytes = call.largest_bytes(context.ranks);
    let timed = context.tuner.times(call.collective, bytes);
    let mut all: Vec<_> =
        timed.filter(|(a, p, _)| can_do(call, context, buffers, (*a, *p))).collect();
    if let Some(wanted) = context.algorithm
        && all.iter().any(|(algorithm, ..)| *algorithm == wanted)
    {
        all.retain(|(algorithm, ..)| *algorithm == wanted);
    }
    all
}

/// Channels and threads of a call with this algorithm and protocol. So many `channels`, instead of what the call's size is
/// worth, but no more than there are.
#[must_use]
pub fn choice(
    call: &CollectiveCall,
    context: &PlanContext,
    (algorithm, protocol): (Algorithm, ProtocolId),
    channels: Option<u32>,
) -> AlgoChoice {
    let bytes = call.largest_bytes(context.ranks);
    let channels = match channels {
        _ if context.all_channels => context.channels,
        Some(channels) => channels.clamp(1, context.channels),
        None => {
            context.tuner.channels(call.collective, bytes, algorithm, protocol, context.channels)
        }
    };
    let blocks = match algorithm {
        Algorithm::Own(_) => {
            let (op, data_type) = (call.op, call.data_type);
            let kernel =
                context.registry.lookup(call.collective, algorithm, protocol, op, data_type);
            kernel.map_or(1, |kernel| kernel.blocks)
        }
        // One up and one down a tree.
        Algorithm::Tree if call.collective != Collective::Broadcast => 2,
        _ => 1,
    };
    let channels = channels.min((context.blocks / blocks.max(1)).max(1));
    let threads = context.tuner.threads(call.collective, bytes, algorithm, protocol, channels);
    AlgoChoice { algorithm, protocol, channels, threads }
}

/// The kernel of sends and receives, if this build has it.
#[must_use]
pub fn send_recv_kernel() -> Option<Kernel> {
    let (op, data_type) = (ReduceOp::Sum, DataType::U8);
    lookup(Collective::SendRecv, Algorithm::Ring, ProtocolId::Simple, op, data_type)
}

/// Plans one kernel.
///
/// # Errors
/// [`PlanError`] when there is no kernel for this choice.
pub fn plan(
    registry: &Registry,
    call: &CollectiveCall,
    choice: AlgoChoice,
    seq: u64,
) -> Result<KernelPlan, PlanError> {
    let AlgoChoice { algorithm, protocol, .. } = choice;
    let kernel = registry
        .lookup(call.collective, algorithm, protocol, call.op, call.data_type)
        .ok_or_else(|| PlanError::new(registry, call, Some(choice)))?;
    Ok(plan_of(kernel, call, choice, seq))
}

/// [`plan`] with a kernel that does as the choice says.
#[must_use]
pub fn plan_of(kernel: Kernel, call: &CollectiveCall, choice: AlgoChoice, seq: u64) -> KernelPlan {
    let AlgoChoice { algorithm, protocol, channels, .. } = choice;
    let moves = matches!(
        call.collective,
        Collective::AllGather | Collective::Broadcast | Collective::AllToAll
    );
    let (count, size) = if moves { (call.bytes(), 1) } else { (call.count, call.data_type.size()) };
    let tree = algorithm == Algorithm::Tree;
    let mode = match (call.collective, algorithm) {
        (Collective::Reduce, Algorithm::Ring) => Chain::REDUCE,
        (Collective::Reduce, Algorithm::Chain) => Chain::ORDERED_REDUCE,
        (Collective::AllReduce, Algorithm::Chain) => Chain::ALL_REDUCE,
        (Collective::ReduceScatter, Algorithm::Chain) => Chain::REDUCE_SCATTER,
        _ => 0,
    };
    KernelPlan {
        kernel,
        choice,
        blocks: kernel.blocks * channels,
        signature: call.signature(seq, algorithm, protocol, channels),
        count: count as u64,
        root: call.root.unwrap_or(NO_RANK),
        mode,
        tree,
        mesh: algorithm.is_over_mesh(),
        // Parts start on a cache line of a well-aligned buffer.
        grain: 128 / size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroccl_topology::graph::tuning::{Devices, Settings, Situation};

    #[test]
    fn protocols_follow_size_and_permission() {
        let chosen = |bytes: usize, allowed: &[ProtocolId]| {
            let protocols = allowed.iter().copied().collect();
            let settings = Settings { protocols, ..Settings::default() };
            let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
            let tuner = Tuner::new(&cores, &settings);
            let context = PlanContext {
                ranks: 4,
                nodes: 1,
                channels: 2,
                blocks: u32::MAX,
                tuner,
                all_channels: false,
                algorithm: Some(Algorithm::Ring),
                registry: Registry::new(),
                network: NetworkOps::default(),
            };
            let call = CollectiveCall {
                collective: Collective::AllReduce,
                count: bytes / 4,
                data_type: DataType::F32,
                op: ReduceOp::Sum,
                root: None,
            };
            choose(&call, &context, Registration::None)
                .ok()
                .map(|choice| (choice.protocol, choice.channels))
        };
        let all = ProtocolId::ALL;
        let (ll, ll128, simple) = (ProtocolId::Ll, ProtocolId::Ll128, ProtocolId::Simple);
        assert_eq!(chosen(8, all), Some((ll, 1)));
        assert_eq!(chosen(512, all), Some((simple, 1)));
        assert_eq!(chosen(1 << 30, all), Some((simple, 2)));
        assert_eq!(chosen(8, &[ll128]), Some((ll128, 1)));
        assert_eq!(chosen(1 << 30, &[ll128, simple]), Some((simple, 2)));
        assert_eq!(chosen(8, &[simple]), Some((simple, 1)));
        assert_eq!(chosen(1 << 30, &[ll]), Some((ll, 2)));
        assert_eq!(chosen(8, &[]), None);
    }
}

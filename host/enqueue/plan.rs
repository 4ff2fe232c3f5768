//! The plan of a call: kernel, channels, and each channel's part.

use ferroccl_device::abi::{
    Algorithm, ChannelWork, Collective, DataType, MAX_CHANNELS, NO_RANK, ProtocolId, ReduceOp,
    Signature, Work,
};
use ferroccl_device::collectives::Chain;
use ferroccl_device::kernels::{Kernel, left_out, lookup};

use super::Call;
use crate::error::Error;
use crate::graph::tuning::Tuner;

/// What a plan needs to know of a communicator.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Ranks.
    pub ranks: u32,
    /// Nodes that they are on.
    pub nodes: u32,
    /// Channels there are, 1 to [`MAX_CHANNELS`].
    pub channels: u32,
    /// Blocks that a call may have at most: what the device runs at the same time.
    pub blocks: u32,
    /// How a call of so many bytes is done.
    pub tuner: Tuner,
    /// Whether `channels` is what every call uses, instead of the most it may use.
    pub all_channels: bool,
    /// The algorithm of every call that it can do, instead of the tuner's.
    pub algorithm: Option<Algorithm>,
    /// What a network does on the way between nodes.
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
    /// Those that `has` is true of.
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

    /// Whether it is among them.
    #[must_use]
    pub fn has(&self, data_type: DataType, op: ReduceOp) -> bool {
        self.ops.get(data_type as usize).is_some_and(|ops| ops & (1 << op as u8) != 0)
    }
}

/// How a call is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: ProtocolId,
    /// Channels.
    pub channels: u32,
    /// Threads of a block, on a GPU.
    pub threads: u32,
}

/// A kernel's part in a call, ready to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What runs.
    pub kernel: Kernel,
    /// How.
    pub way: Way,
    /// Blocks to launch.
    pub blocks: u32,
    /// What the neighbours compare.
    pub signature: Signature,
    /// Elements of a rank's block, as the kernel counts: bytes where it only moves them.
    pub count: u64,
    /// The root, or [`NO_RANK`].
    pub root: u32,
    /// What [`Work::extra`] is, unless it is an address.
    pub mode: u64,
    /// Whether [`Work::extra`] is the address of the links of trees.
    pub tree: bool,
    /// Each channel's part.
    pub parts: [ChannelWork; MAX_CHANNELS],
}

/// A call that cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The call.
    pub call: Call,
    /// How it was to be done; `None` when nothing was left to choose from.
    pub way: Option<Way>,
    /// The cargo feature that it needs and this build was made without, if that is why.
    pub left_out: Option<&'static str>,
}

impl PlanError {
    fn new(call: &Call, way: Option<Way>) -> Self {
        let algorithm = way.map_or(Algorithm::Ring, |way| way.algorithm);
        let left_out = left_out(call.collective, algorithm, call.data_type);
        PlanError { call: *call, way, left_out }
    }
}

impl std::error::Error for PlanError {}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Call { collective, data_type, op, .. } = self.call;
        write!(f, "no kernel does {collective}(type {data_type}, op {op})")?;
        if let Some(Way { algorithm, protocol, .. }) = self.way {
            write!(f, " by {algorithm} with {protocol}")?;
        }
        match self.left_out {
            Some(feature) => write!(f, ": this build is without the cargo feature `{feature}`"),
            None if self.way.is_none() => {
                f.write_str(" in a way that NCCL_ALGO, NCCL_PROTO and FERROCCL_DETERMINISTIC allow")
            }
            None => Ok(()),
        }
    }
}

impl From<PlanError> for Error {
    fn from(e: PlanError) -> Self {
        match e.left_out {
            Some(_) => Error::Unavailable { what: "kernel".to_owned(), reason: e.to_string() },
            None => Error::argument("op", e.to_string()),
        }
    }
}

impl Plan {
    /// The kernel's argument, without a scalar; `input`, `output` and `comm` are addresses.
    #[must_use]
    pub fn work(&self, comm: u64, input: u64, output: u64, scalar: (u64, bool)) -> Work {
        Work {
            comm,
            input,
            output,
            scalar: scalar.0,
            count: self.count,
            root: self.root,
            scalar_by_address: scalar.1.into(),
            extra: self.mode,
            pad: 0,
            signature: self.signature,
            channels: self.parts,
        }
    }
}

/// Cuts `count` elements into one contiguous part a channel, all but the last multiples of `grain`.
///
/// Every element is in exactly one part. Parts differ by at most `grain`, but for the last.
#[must_use]
pub fn split(count: usize, channels: u32, grain: usize) -> [ChannelWork; MAX_CHANNELS] {
    let mut parts = [ChannelWork::default(); MAX_CHANNELS];
    let channels = (channels as usize).clamp(1, MAX_CHANNELS);
    let grain = grain.max(1);
    let grains = count.div_ceil(grain);
    let (each, more) = (grains / channels, grains % channels);
    let mut offset = 0;
    for (i, part) in parts.iter_mut().take(channels).enumerate() {
        let n = ((each + usize::from(i < more)) * grain).min(count - offset);
        *part = ChannelWork { offset: offset as u64, count: n as u64 };
        offset += n;
    }
    parts
}

/// How a call is done: as the tuner says, of what the table of kernels has.
///
/// # Errors
/// [`PlanError`] when nothing is left that may be chosen.
pub fn choose(call: &Call, shape: &Shape) -> Result<Way, PlanError> {
    let bytes = call.largest_bytes(shape.ranks);
    let has = |algorithm, protocol| match algorithm {
        // Made of others.
        Algorithm::Hierarchical => shape.nodes > 1,
        Algorithm::CollnetDirect => shape.network.has(call.data_type, call.op),
        _ => lookup(call.collective, algorithm, protocol, call.op, call.data_type).is_some(),
    };
    let best = |open: &dyn Fn(Algorithm, ProtocolId) -> bool| {
        shape.tuner.way(call.collective, bytes, |a, p| open(a, p) && has(a, p))
    };
    let (algorithm, protocol) = match shape.algorithm {
        // One rank copies, whatever the settings are.
        _ if shape.ranks == 1 => Some((Algorithm::Ring, ProtocolId::Simple)),
        Some(wanted) => best(&|a, _| a == wanted).or_else(|| best(&|_, _| true)),
        None => best(&|_, _| true),
    }
    .ok_or_else(|| PlanError::new(call, None))?;
    let channels = if shape.all_channels {
        shape.channels
    } else {
        shape.tuner.channels(call.collective, bytes, algorithm, protocol, shape.channels)
    };
    let most = if is_paired(call.collective, algorithm) { shape.blocks / 2 } else { shape.blocks };
    let channels = channels.min(most.max(1));
    let threads = shape.tuner.threads(bytes, algorithm, protocol, channels);
    Ok(Way { algorithm, protocol, channels, threads })
}

/// Whether a call has two blocks a channel: one up and one down a tree.
fn is_paired(collective: Collective, algorithm: Algorithm) -> bool {
    algorithm == Algorithm::Tree && collective != Collective::Broadcast
}

/// The kernel of sends and receives, if this build has it.
#[must_use]
pub fn send_recv_kernel() -> Option<Kernel> {
    let (op, data_type) = (ReduceOp::Sum, DataType::U8);
    lookup(Collective::SendRecv, Algorithm::Ring, ProtocolId::Simple, op, data_type)
}

/// Plans a call that one kernel does.
///
/// # Errors
/// [`PlanError`] when none does it in this way.
pub fn plan(call: &Call, way: Way, seq: u64) -> Result<Plan, PlanError> {
    let Way { algorithm, protocol, channels, .. } = way;
    let kernel = lookup(call.collective, algorithm, protocol, call.op, call.data_type)
        .ok_or_else(|| PlanError::new(call, Some(way)))?;
    let moves = matches!(call.collective, Collective::AllGather | Collective::Broadcast);
    let (count, size) = if moves { (call.bytes(), 1) } else { (call.count, call.data_type.size()) };
    let tree = algorithm == Algorithm::Tree;
    let mode = match (call.collective, algorithm) {
        (Collective::Reduce, Algorithm::Ring) => Chain::REDUCE,
        (Collective::Reduce, Algorithm::Chain) => Chain::ORDERED_REDUCE,
        (Collective::AllReduce, Algorithm::Chain) => Chain::ALL_REDUCE,
        (Collective::ReduceScatter, Algorithm::Chain) => Chain::REDUCE_SCATTER,
        _ => 0,
    };
    Ok(Plan {
        kernel,
        way,
        blocks: if is_paired(call.collective, algorithm) { 2 * channels } else { channels },
        signature: call.signature(seq, algorithm, protocol, channels),
        count: count as u64,
        root: call.root.unwrap_or(NO_RANK),
        mode,
        tree,
        // Parts start on a cache line of a well-aligned buffer.
        parts: split(count, channels, 128 / size),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::tuning::{Devices, Settings, Situation};

    #[test]
    fn protocols_follow_size_and_permission() {
        let chosen = |bytes: usize, allowed: &[ProtocolId]| {
            let protocols = allowed.iter().copied().collect();
            let settings = Settings { protocols, ..Settings::default() };
            let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
            let tuner = Tuner::new(&cores, &settings);
            let shape = Shape {
                ranks: 4,
                nodes: 1,
                channels: 2,
                blocks: u32::MAX,
                tuner,
                all_channels: false,
                algorithm: Some(Algorithm::Ring),
                network: NetworkOps::default(),
            };
            let call = Call {
                collective: Collective::AllReduce,
                count: bytes / 4,
                data_type: DataType::F32,
                op: ReduceOp::Sum,
                root: None,
            };
            choose(&call, &shape).ok().map(|way| (way.protocol, way.channels))
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

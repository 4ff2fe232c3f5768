//! What NCCL has besides: algorithms of its that this library does not have, by its own model (`ncclTopoTuneModel` in NCCL
//! 2.30's `src/graph/tuning.cc`), so that `ferroccl explain` can say where NCCL would take them.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::bandwidth::bandwidth_of_channel;
use super::tables::{self, Hardware, generation, scale};
use super::{Cost, Devices, Gpus, Situation, ring_steps};
use crate::PathKind;
use crate::graph::NvlsHeads;

/// An algorithm that NCCL has, with its protocol Simple, and this library has not, or not for all buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AbsentAlgorithm {
    /// The switches of a host reduce and copy (`NVLink` SHARP) what is in buffers of any kind, by way of NCCL's own. On windows
    /// this library has [`Algorithm::Nvls`].
    Nvls,
    /// The same within hosts, and a tree of hosts for each head.
    NvlsTree,
    /// Trees for each rank's part, all at a time, in few rounds ("parallel aggregated trees").
    Pat,
}

impl AbsentAlgorithm {
    /// All.
    pub const ALL: [Self; 3] = [Self::Nvls, Self::NvlsTree, Self::Pat];

    /// NCCL's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvls => "NVLS",
            Self::NvlsTree => "NVLSTree",
            Self::Pat => "PAT",
        }
    }
}

/// What an algorithm that this library does not have would take for a call of `bytes`, by NCCL's model; `None` where NCCL does
/// not take it: of another collective, without switches that reduce, on hosts of several GPUs (PAT).
///
/// `nvls` are the heads of each host, where there are any.
///
/// ```
/// use ferroccl_topology::graph::tuning::*;
///
/// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
/// assert_eq!(absent_cost(&cores, None, Collective::AllReduce, AbsentAlgorithm::Nvls, 8), None);
/// ```
#[must_use]
pub fn absent_cost(
    s: &Situation<'_>,
    nvls: Option<&NvlsHeads>,
    collective: Collective,
    algorithm: AbsentAlgorithm,
    bytes: u64,
) -> Option<Cost> {
    let Devices::Gpus(gpus) = s.devices() else { return None };
    let (latency_us, bandwidth) = match algorithm {
        AbsentAlgorithm::Nvls if s.nodes() == 1 => nvls_cost(s, gpus, nvls?, collective, false)?,
        // Over several hosts it takes a network that reduces, which no GPU of ours has.
        AbsentAlgorithm::Nvls => return None,
        AbsentAlgorithm::NvlsTree if s.nodes() > 1 && collective == Collective::AllReduce => {
            nvls_cost(s, gpus, nvls?, collective, true)?
        }
        AbsentAlgorithm::NvlsTree => return None,
        AbsentAlgorithm::Pat => pat_cost(s, gpus, collective)?,
    };
    let time_us = latency_us + bytes as f64 / bandwidth * 1e-3;
    Some(Cost { time_us, latency_us, bandwidth })
}

/// Latency and bandwidth of NVLS, on one host or as a tree of several.
fn nvls_cost(
    s: &Situation<'_>,
    gpus: &Gpus<'_>,
    heads: &NvlsHeads,
    collective: Collective,
    tree: bool,
) -> Option<(f64, f64)> {
    let (nodes, ranks, locals) = (s.nodes(), f64::from(s.ranks()), f64::from(s.local_ranks()));
    let (row, count) = (generation(gpus.min_sm), f64::from(heads.count));
    let inside = heads.bw_intra * tables::NVLS[row] * (count - 1.0) / count;
    let (inside, to_call) = match collective {
        // Reduces and copies at a time.
        Collective::AllReduce => (2.0 * inside, ranks / ring_steps(collective, ranks)),
        Collective::AllGather | Collective::ReduceScatter => {
            (inside * (locals - 1.0) / locals, 1.0)
        }
        _ => return None,
    };
    let twice = if tree && nodes <= 2 { 2.0 } else { 1.0 };
    let most = if tree { tables::NVLS_TREE_MAX[row][scale(nodes)] } else { f64::INFINITY };
    let channel = inside.min(heads.bw_inter * twice).min(most);
    let inter = tables::NVLS_TREE_NET + 2.0 * heads.latency_inter;
    let steps = if tree { 2.0 * f64::from(nodes.ilog2()) * inter } else { 0.0 };
    let bandwidth = count * channel * to_call;
    (bandwidth > 0.0).then_some((tables::NVLS_STEP + steps, bandwidth))
}

/// Latency and bandwidth of PAT, which NCCL takes on hosts of one GPU each.
fn pat_cost(s: &Situation<'_>, gpus: &Gpus<'_>, collective: Collective) -> Option<(f64, f64)> {
    if s.nodes() != s.ranks()
        || s.nodes() == 1
        || !matches!(collective, Collective::AllGather | Collective::ReduceScatter)
    {
        return None;
    }
    let graph = gpus.tree.unwrap_or(gpus.ring);
    let channel = bandwidth_of_channel(graph, s.nodes(), Algorithm::Tree);
    let simple = ProtocolId::Simple.index();
    let latency = if graph.kind_inter == PathKind::Dis { 0.0 } else { graph.latency_inter };
    // With one rank a host it is the tree's figure that tells.
    let inter =
        tables::STEP[Hardware::Net as usize][Algorithm::Tree.index()][simple] + 2.0 * latency;
    let rounds = f64::from(s.nodes().ilog2()) * inter / tables::PAT_ROUND;
    let latency_us = tables::PAT_BASE + rounds + f64::from(s.ranks()) * tables::PAT_RANK;
    let bandwidth = graph.channels.len() as f64 * channel * tables::PAT;
    (bandwidth > 0.0).then_some((latency_us, bandwidth))
}

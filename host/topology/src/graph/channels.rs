//! The channels of a host: how each passes through it, and what it carries.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::PathKind;

/// How a channel passes through the GPUs of a host. The numbers are those of NCCL's graph files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Pattern {
    /// A chain; the network's traffic is shared by the first two GPUs: the way to the parent and one child at
    /// the first, the other child at the second.
    BalancedTree = 1,
    /// A chain; the way to the parent leaves at the first GPU, children come in at the second.
    SplitTree = 2,
    /// A chain whose first GPU has all of the network's traffic.
    Tree = 3,
    /// A ring, or with a network the host's part of one.
    Ring = 4,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Pattern; 4] =
        [Pattern::BalancedTree, Pattern::SplitTree, Pattern::Tree, Pattern::Ring];

    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pattern::BalancedTree => "balanced tree",
            Pattern::SplitTree => "split tree",
            Pattern::Tree => "tree",
            Pattern::Ring => "ring",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a graph is for. The numbers are those of NCCL's graph files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GraphId {
    /// Rings.
    Ring = 0,
    /// Trees.
    Tree = 1,
    /// Chains to a network that reduces.
    CollNet = 2,
}

/// The channels of one host for one kind of algorithm.
///
/// A channel of bandwidth `b` puts on each link of its way: in a ring `b` in the ring's direction; in a tree
/// `b / 2` each way between neighbours of the chain (half goes up, half comes down), and `b` each way at the
/// network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelGraph {
    /// What it is for.
    pub id: GraphId,
    /// How its channels pass through the host.
    pub pattern: Pattern,
    /// Whether channels may leave by another port than they come in by.
    pub cross_nic: bool,
    /// Whether all channels pass through the GPUs in the same order.
    pub same_channels: bool,
    /// Bandwidth of one channel within the host, 10^9 bytes a second.
    pub bw_intra: f64,
    /// Bandwidth of one channel at the network; as within the host where there is none.
    pub bw_inter: f64,
    /// What the network adds to a message, in microseconds.
    pub latency_inter: f64,
    /// The worst path within the host.
    pub kind_intra: PathKind,
    /// The worst path to the network.
    pub kind_inter: PathKind,
    /// The channels.
    pub channels: Vec<GraphChannel>,
}

/// One channel's way through a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphChannel {
    /// The port it comes in by and the one it leaves by, as places in
    /// [`System::nets`](crate::System::nets); `None` on a host without a network.
    pub nets: Option<[usize; 2]>,
    /// The local ranks in order.
    pub gpus: Vec<usize>,
}

impl GraphChannel {
    /// The port by which the traffic of a local rank leaves and comes in: the first of the GPUs has the channel's first port, all others
    /// have the second (NCCL's `ncclTopoGetNetDev`). `None` on a host without a network.
    #[must_use]
    pub fn port(&self, gpu: usize) -> Option<usize> {
        let second = self.gpus.first() != Some(&gpu);
        Some(self.nets?[usize::from(second)])
    }
}

impl ChannelGraph {
    /// Joint bandwidth of its channels: within the host, or with several hosts at the network.
    #[must_use]
    pub fn total_bw(&self, hosts: usize) -> f64 {
        let one = if hosts > 1 { self.bw_intra.min(self.bw_inter) } else { self.bw_intra };
        one * self.channels.len() as f64
    }
}

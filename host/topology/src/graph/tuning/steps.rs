//! What one step takes by the tables: parts of the model, and figures for who goes through a call step by step.

use ferroccl_device::abi::{Algorithm, ProtocolId};

use super::rules::modelled_as;
use super::tables::{self, Hardware, generation, scale};
use super::{Devices, Gpus, Situation};
use crate::graph::ChannelGraph;
use crate::{Arch, PathKind, Vendor};

/// No network has more, in microseconds.
const MOST_LATENCY: f64 = 1e6;

/// What neighbours within a node are joined by.
pub(super) fn inside(graph: &ChannelGraph) -> Hardware {
    if graph.kind_intra == PathKind::Nvl { Hardware::NvLink } else { Hardware::Pci }
}

/// A step over some hardware.
pub(super) fn step(
    gpus: &Gpus<'_>,
    hardware: Hardware,
    (algorithm, protocol): (Algorithm, ProtocolId),
) -> f64 {
    // A tree's steps with Simple are no dearer than a ring's over the PCI of a Power machine.
    let like_ring = gpus.cpu.0 == Arch::Power
        && hardware == Hardware::Pci
        && (algorithm, protocol) == (Algorithm::Tree, ProtocolId::Simple);
    let row = match algorithm {
        _ if like_ring => Algorithm::Ring,
        // NCCL's PAT knows only Simple.
        Algorithm::Bruck if protocol == ProtocolId::Simple => {
            return tables::PAT_STEP[hardware as usize];
        }
        Algorithm::Bruck
        | Algorithm::Hierarchical
        | Algorithm::OneShot
        | Algorithm::TwoShot
        | Algorithm::Direct
        | Algorithm::Nvls
        | Algorithm::Chain
        | Algorithm::Doubling
        | Algorithm::Linear
        | Algorithm::Own(_) => Algorithm::Ring,
        listed => listed,
    };
    tables::STEP[hardware as usize][row.index()][modelled_as(protocol)]
}

/// A step from node to node.
pub(super) fn between_nodes(
    s: &Situation<'_>,
    (gpus, graph): (&Gpus<'_>, &ChannelGraph),
    (algorithm, protocol): (Algorithm, ProtocolId),
) -> f64 {
    // With one rank a node nothing hides what the network takes: a tree's figures tell.
    let alone = s.ranks() == s.nodes();
    let a = if alone { Algorithm::Tree } else { algorithm };
    // Simple flushes what the card has written: once more the network's latency.
    let times = if protocol == ProtocolId::Simple { 2.0 } else { 1.0 };
    let latency = graph.latency_inter;
    let latency = if latency.is_finite() { latency.clamp(0.0, MOST_LATENCY) } else { 0.0 };
    step(gpus, Hardware::Net, (a, protocol)) + times * latency
}

/// What a chunk's messages cost their proxy.
pub(super) fn message(gpus: &Gpus<'_>, protocol: ProtocolId) -> f64 {
    let amd = gpus.cpu == (Arch::X86, Vendor::Amd);
    let times = if protocol == ProtocolId::Simple { tables::NET_OVERHEAD_SIMPLE } else { 1.0 };
    tables::NET_OVERHEAD[usize::from(!amd)] * times
}

/// What a call costs before its first step.
pub(super) fn base(algorithm: Algorithm, protocol: ProtocolId) -> f64 {
    let p = modelled_as(protocol);
    match algorithm {
        Algorithm::Bruck if protocol == ProtocolId::Simple => tables::PAT_BASE,
        Algorithm::Bruck
        | Algorithm::Hierarchical
        | Algorithm::OneShot
        | Algorithm::TwoShot
        | Algorithm::Direct
        | Algorithm::Nvls
        | Algorithm::Chain
        | Algorithm::Doubling
        | Algorithm::Linear
        | Algorithm::Own(_) => tables::BASE[Algorithm::Ring.index()][p],
        listed => tables::BASE[listed.index()][p],
    }
}

/// What LL reaches at most, all channels together.
pub(super) fn ll_max(gpus: &Gpus<'_>, nodes: u32) -> f64 {
    let row = match gpus.cpu.1 {
        _ if nodes == 1 => generation(gpus.min_sm),
        Vendor::Amd => tables::LL_MAX_AMD,
        _ => tables::LL_MAX_OTHERS,
    };
    tables::LL_MAX[row][scale(nodes)]
}

/// What one step of an algorithm takes with a protocol, by the tables that the model reckons with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFigures {
    /// What a call costs before its first step, in microseconds.
    pub base_us: f64,
    /// A step of few bytes between neighbours within a node, in microseconds.
    pub intra_us: f64,
    /// The same between nodes, with the network's own latency; as within a node where there is one node.
    pub inter_us: f64,
    /// What the messages of a chunk cost their proxy, in microseconds: part of `inter_us`. The messages of a connection follow each other at
    /// this distance at least.
    pub message_us: f64,
    /// Data that a block of the algorithm's kernel moves at most, 10^9 bytes a second.
    pub block_bw: f64,
    /// Bytes on a link for a byte of data.
    pub wire: f64,
}

impl StepFigures {
    /// Of a call over so many channels of a communicator on GPUs; `None` where its ranks are on the CPU, and where there is no graph for the algorithm.
    #[must_use]
    pub fn of(
        s: &Situation<'_>,
        algorithm: Algorithm,
        protocol: ProtocolId,
        channels: u32,
    ) -> Option<Self> {
        let Devices::Gpus(gpus) = s.devices() else { return None };
        let graph = gpus.graph(algorithm)?;
        let (row, column) = (generation(gpus.min_sm), scale(s.nodes()));
        let intra_us = step(gpus, inside(graph), (algorithm, protocol));
        let tree = algorithm == Algorithm::Tree;
        let channel = graph.bw_intra;
        let ll = ll_max(gpus, s.nodes()) / f64::from(channels.max(1));
        let of_channel = match (tree, modelled_as(protocol)) {
            (_, p) if p == ProtocolId::Ll.index() => channel.min(ll),
            (false, p) if p == ProtocolId::Ll128.index() => {
                channel.min(tables::RING_LL128_MAX[row][column])
            }
            (true, p) if p == ProtocolId::Ll128.index() => {
                channel.min(tables::TREE_LL128_MAX[row][column])
            }
            (true, _) => channel.min(tables::TREE_MAX[row][column]),
            _ => channel,
        };
        let wire = match protocol {
            ProtocolId::Ll => 2.0,
            ProtocolId::Ll128 => 128.0 / 120.0,
            ProtocolId::Simple | ProtocolId::Own(_) => 1.0,
        };
        Some(StepFigures {
            base_us: base(algorithm, protocol),
            intra_us,
            inter_us: match s.nodes() {
                1 => intra_us,
                _ => between_nodes(s, (gpus, graph), (algorithm, protocol)),
            },
            message_us: message(gpus, protocol),
            // One of a tree's two blocks has half of the channel.
            block_bw: if tree { of_channel / 2.0 } else { of_channel },
            wire,
        })
    }
}

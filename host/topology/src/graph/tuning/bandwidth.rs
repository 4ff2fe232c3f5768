//! What a graph's channels carry, as the model counts it.

use std::collections::BTreeSet;

use ferroccl_device::abi::Algorithm;

use crate::graph::ChannelGraph;
use crate::speed;

/// What one channel of a graph carries.
///
/// NCCL takes `bw_intra` for one and two nodes and for collnets, else `bw_inter`; its search has `bw_intra` no more
/// than `bw_inter` for a ring, and for a tree no more than twice that. Here `bw_intra` is all that the links within the
/// host have left, so the bounds are taken here. The twice: of two nodes, and of a collnet's, each sends up and gets
/// back every byte once, where the search has charged a parent and a child.
pub(super) fn bandwidth_of_channel(graph: &ChannelGraph, nodes: u32, algorithm: Algorithm) -> f64 {
    let crossing = match algorithm {
        _ if nodes <= 1 => f64::INFINITY,
        Algorithm::Ring
        | Algorithm::Hierarchical
        | Algorithm::Bruck
        | Algorithm::Chain
        | Algorithm::Doubling
        | Algorithm::Own(_) => graph.bw_inter,
        Algorithm::Tree if nodes > 2 => graph.bw_inter,
        _ => 2.0 * graph.bw_inter,
    };
    graph.bw_intra.min(crossing).min(speed::LOC)
}

/// The ports by which a graph's channels leave a host, one at least: each has an equal part of them. A chain passes the ranks in their
/// own order, so that all of its channels leave a host from the last rank, which has a port of its own for who is no neighbour in a ring.
pub(super) fn ports(graph: &ChannelGraph) -> f64 {
    let used: BTreeSet<usize> = graph.channels.iter().filter_map(|c| Some(c.nets?[1])).collect();
    used.len().max(1) as f64
}

//! The model: latency plus bytes by bandwidth, after NCCL's (`ncclTopoTuneModel`, `ncclTopoGetAlgoTime`).
//!
//! Where this library's [`ChannelGraph`] counts otherwise than NCCL's graphs, the reasoning is at
//! [`bandwidth_of_channel`] and [`TREE_RATIO`].

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::bandwidth::{bandwidth_of_channel, ports};
use super::parallelism::MinimumSize;
use super::rules::modelled_as;
use super::tables::{self, Hardware, generation, scale};
use super::{
    AlgorithmFigures, Cost, Devices, Gpus, Prediction, Settings, Situation, cpu, mesh, messages,
    processes, rules, steps,
};
use crate::graph::{ChannelGraph, Pattern};
use crate::speed;

/// `algbw` of a tree or collnet by the bandwidth of its channels.
///
/// A channel of bandwidth `b` here has `b / 2` up and `b / 2` down on each link of its chain, and what comes up is as
/// much as the call has bytes: `algbw = b / 2`. At the network a node has a parent, a parent's `b / 2` each way, and
/// on the average over both trees one child, with as much: `b` each way, as the search charges it.
///
/// NCCL's search charges `b` one way and nothing the other, of what is the same traffic, and its model halves it with
/// the same 0.5. Where the two ways share a link, as at a GPU that hangs on switches, both find the same `b`. Where
/// they do not, as between two GPUs with a cable, one channel here has twice NCCL's `b`, and NCCL lays a second one
/// the other way: the same joint bandwidth.
const TREE_RATIO: f64 = 0.5;

/// Predicts what a call of `bytes` takes. `bytes` are those of the largest of a rank's buffers, as in NCCL's table:
/// of an all-gather and a reduce-scatter, those of all ranks together.
///
/// ```
/// use ferroccl_topology::graph::tuning::*;
///
/// let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
/// let (all, settings) = (Collective::AllReduce, Settings::default());
/// let ll = predict(&cores, all, Algorithm::Ring, ProtocolId::Ll, 8, &settings);
/// assert!(ll.why_not.is_none() && ll.cost.is_some_and(|cost| cost.time_us < 4.0));
/// let bruck = predict(&cores, all, Algorithm::Bruck, ProtocolId::Ll, 8, &settings);
/// assert_eq!(bruck.why_not.as_deref(), Some("no Bruck does all_reduce"));
/// ```
#[must_use]
pub fn predict(
    s: &Situation<'_>,
    collective: Collective,
    algorithm: Algorithm,
    protocol: ProtocolId,
    bytes: u64,
    settings: &Settings,
) -> Prediction {
    let impossible = rules::impossible(s, collective, algorithm, protocol, settings);
    let cost =
        impossible.is_none().then(|| cost(s, collective, algorithm, protocol, bytes, settings));
    let why_not =
        impossible.or_else(|| rules::forbidden(s, collective, algorithm, protocol, settings));
    Prediction { algorithm, protocol, cost: cost.flatten(), why_not }
}

/// How much more what has not run on a GPU counts than it is reckoned to take: a linear all-to-all, where messages have, and plain data
/// over the mesh, where lines have.
const UNTRIED: f64 = 2.0;

fn untried(cost: Cost) -> Cost {
    Cost {
        time_us: UNTRIED * cost.time_us,
        latency_us: UNTRIED * cost.latency_us,
        bandwidth: cost.bandwidth / UNTRIED,
    }
}

/// The cost of an algorithm and protocol that can do the call.
pub(super) fn cost(
    s: &Situation<'_>,
    collective: Collective,
    algorithm: Algorithm,
    protocol: ProtocolId,
    bytes: u64,
    settings: &Settings,
) -> Option<Cost> {
    let collective = match collective {
        Collective::Barrier => Collective::AllReduce,
        other => other,
    };
    if s.ranks() == 1 {
        // NCCL: nothing. The copy is within one memory.
        let time_us = bytes as f64 / speed::LOC * 1e-3;
        return Some(Cost { time_us, latency_us: 0.0, bandwidth: speed::LOC });
    }
    let fitted = settings.fitted.as_ref();
    if let Some(cost) = fitted.and_then(|f| f.cost(s, (collective, algorithm, protocol), bytes)) {
        return Some(cost);
    }
    // Another crate's protocol: as the one that it is like, and then by its ratios.
    let (protocol, beside) = settings.own.modelled(protocol);
    let own = settings.own.algorithm(algorithm);
    let cost = match s.devices() {
        Devices::Cpu { ring } => {
            let minimum = MinimumSize::new(s, algorithm, protocol, settings);
            let channels = minimum.channels(collective, bytes, settings.channels(s.channels()));
            let what = (collective, algorithm, protocol);
            match s.places(collective, bytes) {
                Some(places) => processes::cost(s, places, channels, what, own, bytes),
                None => cpu::cost(s, *ring, channels, what, own, bytes),
            }
        }
        Devices::Gpus(gpus) => {
            let graph = gpus.graph(algorithm)?;
            if algorithm.is_over_mesh() {
                let what = (collective, algorithm, protocol);
                let cost = mesh::cost(s, (gpus, graph), what, bytes);
                let plain = !algorithm.is_on_windows() && protocol == ProtocolId::Simple;
                return Some(beside(if plain { untried(cost) } else { cost }, bytes));
            }
            if collective == Collective::SendRecv && s.nodes() == 1 {
                let link = link(s, gpus, protocol);
                let most = settings.channels(s.channels());
                let channels = messages::channels(protocol, bytes, most);
                return Some(beside(messages::cost(protocol, bytes, channels, link), bytes));
            }
            let mut latency = latency(s, (gpus, graph), collective, (algorithm, protocol), own);
            let mut bandwidth = bus_bandwidth(s, gpus, graph, algorithm, protocol)
                * ratio(s, graph, collective, (algorithm, own));
            // Powers of two from 64 bytes on.
            let step = (bytes >> 6).checked_ilog2().map(|step| step as usize);
            if algorithm == Algorithm::Tree
                && let Some(part) =
                    step.and_then(|i| tables::TREE_CORRECTION[modelled_as(protocol)].get(i))
            {
                bandwidth *= part;
            }
            let ring = (algorithm, protocol) == (Algorithm::Ring, ProtocolId::Simple);
            let shares = u64::from(settings.channels(s.channels())) * u64::from(s.ranks());
            if ring
                && collective == Collective::AllReduce
                && s.nodes() > 1
                && bytes / shares.max(1) >= tables::PLATEAU_BYTES
            {
                latency *= if gpus.min_sm < 80 { tables::PLATEAU_VOLTA } else { tables::PLATEAU };
            }
            let time_us = latency + bytes as f64 / bandwidth * 1e-3;
            let cost = Cost { time_us, latency_us: latency, bandwidth };
            let linear = (collective, algorithm) == (Collective::AllToAll, Algorithm::Linear);
            if linear { untried(cost) } else { cost }
        }
    };
    Some(beside(cost, bytes))
}

/// `algbw` of an algorithm and protocol, from what the channels carry together.
///
/// Ours, and not measured: NCCL has no such algorithms, or (PAT, of Bruck's kind) others.
fn ratio(
    s: &Situation<'_>,
    graph: &ChannelGraph,
    collective: Collective,
    (algorithm, own): (Algorithm, AlgorithmFigures),
) -> f64 {
    let (ranks, nodes) = (f64::from(s.ranks()), f64::from(s.nodes()));
    let locals = f64::from(s.local_ranks());
    match algorithm {
        // A pair of ranks has what the channels carry from one to the next.
        Algorithm::Ring if collective == Collective::SendRecv => 1.0,
        Algorithm::Ring => ranks / super::ring_steps(collective, ranks),
        // Down alone, or up, loads one way of each link, as much as with both.
        Algorithm::Tree | Algorithm::CollnetDirect | Algorithm::CollnetChain => TREE_RATIO,
        // Around, and around again: each link carries every byte twice at most.
        Algorithm::Chain => 0.5,
        Algorithm::Own(_) => 1.0 / own.sent,
        // Not over the channels: `mesh::cost`.
        Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct | Algorithm::Nvls => 1.0,
        // As with NCCL for PAT, of one rank a node. With more, all of them send to other nodes what a ring sends once.
        Algorithm::Bruck if s.nodes() > 1 => tables::PAT / locals,
        Algorithm::Bruck => tables::PAT,
        // Every rank of a node sends all bytes to another node, in each of the rounds between nodes.
        Algorithm::Doubling if s.nodes() > 1 => {
            tables::DOUBLING / (super::doubling_rounds(s.nodes()) * locals).max(1.0)
        }
        Algorithm::Doubling => tables::DOUBLING / super::doubling_rounds(s.ranks()).max(1.0),
        // A root sends to each of the others; blocks go as often as around a ring.
        Algorithm::Linear if collective == Collective::Broadcast => 1.0 / (ranks - 1.0).max(1.0),
        Algorithm::Linear => ranks / super::ring_steps(collective, ranks),
        // Its parts come one after the other: the chain's two ways within a node, and the leaders' ring, which has a
        // leader's share of the node's ports.
        Algorithm::Hierarchical => {
            let inside = graph.bw_intra.min(speed::LOC);
            let across = bandwidth_of_channel(graph, s.nodes(), algorithm);
            let leaders = super::ring_steps(collective, nodes) / nodes * locals;
            1.0 / (2.0 * (across / inside).min(1.0) + leaders)
        }
    }
}

/// The sizes at which a time is not linear in the bytes: the steps of the tree's correction, the ring's plateau, where lines over the
/// mesh leave the cache, and where a message takes more channels.
pub(super) fn breakpoints(s: &Situation<'_>, channels: u32) -> Vec<u64> {
    let corrections = (0..=tables::TREE_CORRECTION[0].len()).map(|i| 64 << i);
    let plateau = tables::PLATEAU_BYTES * u64::from(channels) * u64::from(s.ranks());
    let more = mesh::breakpoints(s.ranks()).chain(messages::breakpoints(channels));
    corrections.chain([plateau]).chain(more).collect()
}

/// What a GPU's links carry of messages with this protocol.
pub(super) fn link(s: &Situation<'_>, gpus: &Gpus<'_>, protocol: ProtocolId) -> f64 {
    bus_bandwidth(s, gpus, gpus.ring, Algorithm::Ring, protocol)
}

/// What the channels of a graph carry together.
fn bus_bandwidth(
    s: &Situation<'_>,
    gpus: &Gpus<'_>,
    graph: &ChannelGraph,
    algorithm: Algorithm,
    protocol: ProtocolId,
) -> f64 {
    let nodes = s.nodes();
    let (row, column) = (generation(gpus.min_sm), scale(nodes));
    let channels = graph.channels.len() as f64;
    let all = bandwidth_of_channel(graph, nodes, algorithm) * channels;
    let all = if algorithm == Algorithm::Chain && nodes > 1 { all / ports(graph) } else { all };
    let ll_max = steps::ll_max(gpus, nodes);
    let like_ring = matches!(
        algorithm,
        Algorithm::Ring
            | Algorithm::Hierarchical
            | Algorithm::Bruck
            | Algorithm::Chain
            | Algorithm::Doubling
            | Algorithm::Linear
            | Algorithm::Own(_)
    );
    match (algorithm, protocol) {
        (_, ProtocolId::Ll) if like_ring => (all * tables::RING_LL).min(ll_max),
        (_, ProtocolId::Ll128) if like_ring => {
            (all * tables::RING_LL128).min(channels * tables::RING_LL128_MAX[row][column])
        }
        (Algorithm::Tree, protocol) => {
            let all = (all * tables::TREE).min(channels * tables::TREE_MAX[row][column]);
            let all = match protocol {
                ProtocolId::Ll => (all * tables::TREE_LL).min(ll_max),
                ProtocolId::Ll128 => (all * tables::TREE_LL128[usize::from(nodes > 1)])
                    .min(channels * tables::TREE_LL128_MAX[row][column]),
                ProtocolId::Simple | ProtocolId::Own(_) => all,
            };
            if graph.pattern == Pattern::Tree { all * tables::ONE_GPU_TREE } else { all }
        }
        (Algorithm::CollnetDirect, _) => {
            // Full speed takes a port for each GPU; half of what lacks counts.
            let gpus_of_port = f64::from(s.ranks()) / f64::from(nodes) / channels;
            let all = all / ((gpus_of_port + 1.0) / 2.0);
            if gpus.min_sm >= 90 { all * tables::COLLNET_DIRECT_HOPPER } else { all }
        }
        _ => all,
    }
}

/// What a call takes before its bytes count: the steps one after the other.
fn latency(
    s: &Situation<'_>,
    (gpus, graph): (&Gpus<'_>, &ChannelGraph),
    collective: Collective,
    (algorithm, protocol): (Algorithm, ProtocolId),
    own: AlgorithmFigures,
) -> f64 {
    let (nodes, locals) = (s.nodes(), f64::from(s.local_ranks()));
    let inside = steps::inside(graph);
    let step = |hardware: Hardware, a: Algorithm| steps::step(gpus, hardware, (a, protocol));
    let intra = step(inside, algorithm);
    let inter = steps::between_nodes(s, (gpus, graph), (algorithm, protocol));

    let steps = match algorithm {
        Algorithm::Ring => {
            let steps = super::ring_steps(collective, s.ranks().into());
            if matches!(collective, Collective::Broadcast | Collective::Reduce) {
                let hardware = if nodes == 1 { inside } else { Hardware::Net };
                match protocol {
                    // A pipeline that is alike in all channels has no more than one step of latency.
                    _ if graph.same_channels => step(hardware, algorithm),
                    ProtocolId::Simple => steps * step(hardware, Algorithm::Tree),
                    ProtocolId::Ll | ProtocolId::Ll128 | ProtocolId::Own(_) => {
                        steps * step(hardware, algorithm)
                    }
                }
            } else {
                let crossings =
                    if nodes > 1 { super::ring_steps(collective, nodes.into()) } else { 0.0 };
                // Every step of a ring over nodes waits for a proxy somewhere.
                let overhead = if nodes == 1 { 0.0 } else { steps::message(gpus, protocol) };
                (steps - crossings) * intra.max(overhead) + crossings * inter
            }
        }
        // Up the chain and the tree of nodes, and down. NCCL's trees do both; half of the way is half of that.
        Algorithm::Tree => {
            let ways = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
            ways * ((locals - 1.0) * intra + f64::from(nodes.ilog2()) * inter)
        }
        Algorithm::Chain => {
            let crossings = 2.0 * f64::from(nodes - 1);
            2.0 * (f64::from(s.ranks()) - 1.0 - f64::from(nodes - 1)) * intra + crossings * inter
        }
        Algorithm::Hierarchical => {
            2.0 * (locals - 1.0) * intra + super::ring_steps(collective, nodes.into()) * inter
        }
        Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Direct | Algorithm::Nvls => intra,
        Algorithm::Bruck => {
            let within = super::rounds(s.local_ranks());
            within * intra + (super::rounds(s.ranks()) - within) * inter
        }
        Algorithm::Doubling => {
            let between = super::doubling_rounds(s.nodes());
            super::doubling_rounds(s.local_ranks()) * intra + between * inter
        }
        // Of one host. What it saves of a ring's steps, which wait for each other, is not reckoned with: nobody has measured it.
        Algorithm::Linear => (locals - 1.0) * intra,
        Algorithm::CollnetDirect => {
            let peers = locals - 1.0;
            2.0 * (peers.min(1.0) * intra + peers * tables::COLLNET_DIRECT_PEER) + inter
        }
        Algorithm::CollnetChain => 2.0 * (locals - 1.0) * intra + inter,
        // Which of its steps cross the network is not known.
        Algorithm::Own(_) => own.steps * if nodes > 1 { inter } else { intra },
    };
    steps::base(algorithm, protocol) + steps
}

//! What lines over the mesh take on GPUs: a time for each shot, and bytes over what a GPU's links carry.
//!
//! NCCL's model has no such algorithms: its symmetric kernels have one of their own (`ncclSymkPickKernel`). The figures here are of
//! this library's kernels in the emulator's clock, simulated, on the machine `h100-nvlink`; no GPU has confirmed them.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::{Cost, Situation};
use crate::PathKind;
use crate::graph::ChannelGraph;

/// What a call takes beside its shots, in microseconds, as NCCL's table has it for LL over a ring: the launch, and what a kernel
/// does before it sends.
const BASE: f64 = 6.6;
/// A shot over NVLink, in microseconds, by [`ProtocolId`] LL and LL128: simulated.
const SHOT: [f64; 2] = [0.6, 1.0];
/// The same over PCI: NCCL's table for a step of a ring.
const SHOT_PCI: [f64; 2] = [1.0, 1.9];
/// Bytes of data by bytes that cross the link.
const DATA: [f64; 2] = [0.5, 120.0 / 128.0];
/// What of a link's bandwidth arrives: simulated.
const SHARE: f64 = 0.9;

/// The time of a call.
pub(super) fn cost(
    s: &Situation<'_>,
    graph: &ChannelGraph,
    (collective, algorithm, protocol): (Collective, Algorithm, ProtocolId),
    bytes: u64,
) -> Cost {
    let p = usize::from(protocol != ProtocolId::Ll);
    let ranks = f64::from(s.ranks());
    let shots = if algorithm == Algorithm::TwoShot { 2.0 } else { 1.0 };
    let shot = if graph.kind_intra == PathKind::Nvl { SHOT } else { SHOT_PCI };
    // Bytes that a rank sends for each byte of the call.
    let sent = match (collective, algorithm) {
        (Collective::AllReduce | Collective::Barrier, Algorithm::OneShot) => ranks - 1.0,
        (Collective::AllReduce | Collective::Barrier, _) => 2.0 * (ranks - 1.0) / ranks,
        _ => (ranks - 1.0) / ranks,
    };
    let link = graph.bw_intra * graph.channels.len() as f64 * DATA[p] * SHARE;
    let bandwidth = link / sent;
    let latency_us = BASE + shots * shot[p];
    let time_us = latency_us + bytes as f64 / bandwidth * 1e-3;
    Cost { time_us, latency_us, bandwidth }
}

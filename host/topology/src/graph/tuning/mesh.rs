//! What lines over the mesh, and direct calls, take on GPUs: a time for each shot, and bytes over what a GPU's links carry.
//!
//! NCCL's model has no such algorithms: its symmetric kernels have one of their own (`ncclSymkPickKernel`). The figures here are of
//! this library's kernels in the emulator's clock, simulated, on the machine `h100-nvlink`, without what the comparison of calls takes;
//! no GPU has confirmed them.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::{Cost, Gpus, Situation};
use crate::graph::ChannelGraph;
use crate::{PathKind, speed};

/// What a launch takes, in microseconds, as NCCL's table counts it: what that has for LL over a ring (6.6), less what such a kernel
/// takes here before it sends.
const LAUNCH: f64 = 4.2;
/// What a call takes before its bytes count, in microseconds, and how much more for each rank, by [`ProtocolId`] LL and LL128: in
/// one shot, and in two. Simulated, but for LL128 in one shot, which is guessed from the others.
const ONE_SHOT: [(f64, f64); 2] = [(2.0, 0.04), (3.0, 0.2)];
const TWO_SHOT: [(f64, f64); 2] = [(3.4, 0.04), (5.0, 0.42)];
/// What a shot takes more over PCI than over NVLink: the difference in NCCL's table for a step of a ring.
const PCI: [f64; 2] = [0.4, 0.0];
/// Bytes of data by bytes that cross the link.
const DATA: [f64; 2] = [0.5, 120.0 / 128.0];
/// What arrives of the bandwidth that the search finds for a link, in one shot and in two. Simulated, on links that have more: 450
/// GB/s, of which the search finds 384.
const SHARE: [[f64; 2]; 2] = [[0.82, 0.7], [1.0, 1.16]];

/// What a direct call takes before its bytes count, two barriers of all ranks and an access to other ranks: an all-reduce, and what
/// has one way only. Simulated.
const DIRECT: [(f64, f64); 2] = [(5.7, 0.09), (4.8, 0.07)];
/// What arrives of a link's bandwidth in one. Simulated, as [`SHARE`].
const DIRECT_SHARE: f64 = 0.95;
/// What a call by NVLS takes before its bytes count: an all-reduce, and what has one way only. Simulated.
const NVLS: [(f64, f64); 2] = [(5.0, 0.04), (4.7, 0.05)];
/// What arrives of a link's bandwidth in one. Simulated, as [`SHARE`].
const NVLS_SHARE: f64 = 0.963;
/// Channels of a call by NVLS at most. Simulated: with 32, 8 ranks take 4 % more time for 16 MiB, and 10 % for 4.
pub(super) const NVLS_CHANNELS: u32 = 16;
/// Bytes of a call, for each rank, that are worth a thread: below, another block adds more to the barriers than it takes off the
/// rest. Simulated.
pub(super) const NVLS_BYTES_A_THREAD: u64 = 64;
/// Bytes that all lanes of a rank load at once: what is loaded later travels while these are stored. So many blocks of 512 lanes, of
/// 16 bytes each.
const NVLS_FILL: u64 = NVLS_CHANNELS as u64 * 512 * 16;

/// From so many bytes of a call on lines over the mesh reach so much less: the buffers leave no room for the slots in the L2 cache.
/// Simulated, two-shot with LL128, 8 ranks.
const LARGE: [(u64, f64); 3] = [(8 << 20, 0.86), (16 << 20, 0.68), (32 << 20, 0.5)];

/// The sizes at which a time is not linear in the bytes.
pub(super) fn breakpoints(ranks: u32) -> impl Iterator<Item = u64> {
    LARGE.iter().map(|(from, _)| *from).chain([nvls_fill(ranks)])
}

/// Bytes of an all-reduce up to which nothing is loaded while something is stored.
fn nvls_fill(ranks: u32) -> u64 {
    NVLS_FILL * u64::from(ranks)
}

/// The time of a call.
pub(super) fn cost(
    s: &Situation<'_>,
    (gpus, graph): (&Gpus<'_>, &ChannelGraph),
    (collective, algorithm, protocol): (Collective, Algorithm, ProtocolId),
    bytes: u64,
) -> Cost {
    let p = usize::from(protocol != ProtocolId::Ll);
    let two = usize::from(algorithm == Algorithm::TwoShot);
    let ranks = f64::from(s.ranks());
    let direct = algorithm == Algorithm::Direct;
    let (base, each) =
        if direct { DIRECT[one_way(collective)] } else { [ONE_SHOT, TWO_SHOT][two][p] };
    let near = graph.kind_intra <= PathKind::Nvl && gpus.all_near(s.ranks());
    let far = if near { 0.0 } else { PCI[p] };
    // Bytes that a rank sends for each byte of the call.
    let sent = match (collective, algorithm) {
        (Collective::AllReduce | Collective::Barrier, Algorithm::OneShot) => ranks - 1.0,
        (Collective::AllReduce | Collective::Barrier, _) => 2.0 * (ranks - 1.0) / ranks,
        _ => (ranks - 1.0) / ranks,
    };
    let mut link = link_of(graph);
    if !near {
        // The slowest of a GPU's ways to the others.
        link = link.min(speed::PCI_UNKNOWN);
    }
    let large = LARGE.iter().rev().find(|(from, _)| bytes >= *from).map_or(1.0, |(_, less)| *less);
    link *= if direct { DIRECT_SHARE } else { DATA[p] * SHARE[two][p] * large };
    if algorithm == Algorithm::Nvls {
        return by_nvls(s.ranks(), collective, bytes, link_of(graph) * NVLS_SHARE);
    }
    let bandwidth = link / sent;
    let latency_us = LAUNCH + base + each * ranks + (1.0 + two as f64) * far;
    let time_us = latency_us + bytes as f64 / bandwidth * 1e-3;
    Cost { time_us, latency_us, bandwidth }
}

/// 1 for what has one way only: data that goes to where it is needed and does not come back; 0 for an all-reduce.
fn one_way(collective: Collective) -> usize {
    usize::from(!matches!(collective, Collective::AllReduce | Collective::Barrier))
}

/// What the search finds for a link of a GPU.
fn link_of(graph: &ChannelGraph) -> f64 {
    graph.bw_intra * graph.channels.len() as f64
}

/// The time of a call by NVLS, over links that carry so much. Of an all-reduce each link carries every byte once, and a rank's part a
/// second time.
fn by_nvls(ranks: u32, collective: Collective, bytes: u64, link: f64) -> Cost {
    let reduces_all = one_way(collective) == 0;
    let (base, each) = NVLS[one_way(collective)];
    let (n, begin) = (f64::from(ranks), LAUNCH + base + each * f64::from(ranks));
    let fill = nvls_fill(ranks);
    let (latency_us, bandwidth) = if !reduces_all {
        (begin, link)
    } else if bytes <= fill {
        // There and back, one after the other.
        (begin, link / 2.0)
    } else {
        let bandwidth = link / (1.0 + 1.0 / n);
        (begin + fill as f64 * (2.0 / link - 1.0 / bandwidth) * 1e-3, bandwidth)
    };
    Cost { time_us: latency_us + bytes as f64 / bandwidth * 1e-3, latency_us, bandwidth }
}

//! The model of CPU devices, measured.
//!
//! All ranks of a process run their block of a channel on one core (`runtime::cpu`), one after the other; what
//! counts is the work of all ranks together:
//!
//! ```text
//! time = call + n s (step + f filled) + n s (bytes / n / k) byte     n ranks, s steps each; k channels, each on a
//!                                                                    core of its own; f of the steps have data
//! ```
//!
//! [`COSTS`] are fitted to `benches/records/2026-11-21-foundation.md`, section "other settings": the times of LL,
//! LL128 and Simple for 8 B to 256 KiB with 4 and with 16 ranks, all-reduce, operations in a row, one thread; each
//! protocol's four figures are the least squares of the relative error, but for LL128's step, which is LL's. They meet each of its 36 times within
//! 12 %, but for two, of 64 B with 16 ranks, which the record's other section has a third lower: 19 %. Which
//! protocol is the fastest comes out as measured: LL to 64 B with 4 ranks and to 512 B with 16, then Simple, LL128
//! never. The other collectives have the same steps, and have not been measured.

use super::rules::LEAST_BW;
use super::tables::{Hardware, STEP};
use super::{Algorithm, Collective, Cost, Situation};
use crate::device::abi::ProtocolId;
use crate::graph::ChannelGraph;
use crate::topology::speed;

/// What a protocol costs, in microseconds.
struct Costs {
    /// A call, before and after its steps.
    call: f64,
    /// A step of a rank.
    step: f64,
    /// More, for a step that has data.
    filled: f64,
    /// A byte of data: for LL a quarter of a line (8 bytes, 4 of them data, 3.2 ns); for LL128 a 120th of one
    /// (36 ns).
    byte: f64,
}

/// By [`ProtocolId`]; see the module's text.
const COSTS: [Costs; 3] = [
    Costs { call: 1.56, step: 0.0343, filled: 0.0, byte: 0.802e-3 },
    Costs { call: 2.01, step: 0.0343, filled: 0.116, byte: 0.299e-3 },
    Costs { call: 1.45, step: 0.0656, filled: 0.0131, byte: 0.0332e-3 },
];

/// What a byte costs more, all cores together, when it comes from memory: the same record, Simple from 16 MiB on,
/// 0.047 ns (4 ranks) and 0.044 ns (16) with two cores at work, less what it costs them from cache.
const MEMORY_BYTE: f64 = 0.0289e-3;
/// Bytes of all ranks' buffers from which they come from memory: half of the record's L3.
const CACHE: u64 = 16 << 20;
/// Bytes of a chunk are a multiple of this: the ring's kernel cuts no finer.
const GRAIN: u64 = 16;
/// Bytes that a channel must have to be worth its launch. Not fitted: the record has one channel to 32 KiB, and two
/// at 256 KiB, where they halve the time.
pub(super) const BYTES_A_CHANNEL: u64 = 32 << 10;

/// How many of `channels` a call of `bytes` is worth.
#[must_use]
pub(super) fn channels(bytes: u64, channels: u32) -> u32 {
    let worth = u32::try_from(bytes / BYTES_A_CHANNEL).unwrap_or(u32::MAX);
    worth.clamp(1, channels.max(1))
}

/// Bytes of the largest call that stays in cache.
fn cached(s: &Situation<'_>) -> u64 {
    CACHE / 2 * u64::from(s.nodes()) / u64::from(s.ranks())
}

/// The sizes at which a time is not linear in the bytes; see `switches`.
pub(super) fn bends(s: &Situation<'_>, channels: u32) -> Vec<u64> {
    let channels = 1..=u64::from(channels);
    let grains = channels.clone().map(|k| k * GRAIN * u64::from(s.ranks()));
    channels.map(|k| k * BYTES_A_CHANNEL).chain(grains).chain([cached(s) + 1]).collect()
}

/// The time of a ring on `channels` channels. `net` is the ring's way over the network, for several hosts.
pub(super) fn cost(
    s: &Situation<'_>,
    net: Option<&ChannelGraph>,
    channels: u32,
    collective: Collective,
    protocol: ProtocolId,
    bytes: u64,
) -> Cost {
    let costs = &COSTS[protocol as usize];
    let (nodes, ranks) = (f64::from(s.nodes()), f64::from(s.ranks()));
    let from_memory = bytes > cached(s);
    let (bytes, at_once) = (bytes as f64, f64::from(channels.max(1)));
    let steps = super::ring_steps(collective, ranks) * (ranks / nodes).ceil();
    let filled = (bytes / (GRAIN as f64 * at_once * ranks)).min(1.0);
    let mut latency = costs.call + steps * (costs.step + filled * costs.filled);

    let each = costs.byte / at_once + if from_memory { MEMORY_BYTE } else { 0.0 };
    // Microseconds a byte of the call.
    let mut a_byte = steps / ranks * each;
    if s.nodes() > 1 {
        // Not measured: the steps cost what NCCL's cost on a network, and the bytes what its ports do.
        let crossings = super::ring_steps(collective, nodes);
        latency +=
            crossings * STEP[Hardware::Net as usize][Algorithm::Ring as usize][protocol as usize];
        let known = net.map(|net| net.bw_inter * net.channels.len() as f64);
        let bw = known.filter(|bw| bw.is_finite() && *bw >= LEAST_BW).unwrap_or(speed::net(0.0));
        a_byte = f64::max(a_byte, super::ring_steps(collective, ranks) / ranks / bw * 1e-3);
    }
    let bandwidth = if a_byte > 0.0 { 1e-3 / a_byte } else { speed::LOC };
    Cost { time_us: latency + bytes * a_byte, latency_us: latency, bandwidth }
}

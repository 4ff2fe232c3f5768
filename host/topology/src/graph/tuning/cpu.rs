//! The model of CPU devices, measured.
//!
//! All ranks of a process run their block of a channel on one core (`runtime::cpu`), one after the other; what
//! counts is the work of all ranks together:
//!
//! ```text
//! time = call + steps (step + f filled) + moved (bytes / k) byte     steps of all ranks, f of them with data;
//!                                                                    moved: how often each byte of the call is;
//!                                                                    k channels, each on a core of its own
//!
//! ring:  n ranks with 2 (n - 1) steps each for an all-reduce, each of an n-th of the bytes
//! tree, chain:  2 (n - 1) steps for all ranks together, each of all bytes: a byte is moved as often as by a ring
//! ```
//!
//! [`Workload`] has these two numbers for every algorithm.
//!
//! [`COSTS`] are fitted to `benches/records/2026-11-21-foundation.md`, section "other settings": the times of LL,
//! LL128 and Simple for 8 B to 256 KiB with 4 and with 16 ranks, all-reduce, operations in a row, one thread; each
//! protocol's four figures are the least squares of the relative error, but for LL128's step, which is LL's. They meet each of its 36 times within
//! 12 %, but for two, of 64 B with 16 ranks, which the record's other section has a third lower: 19 %. Which
//! protocol of a ring is the fastest comes out as measured: LL to 64 B with 4 ranks and to 512 B with 16, then Simple,
//! LL128 never.
//!
//! Only the ring's all-reduce has been fitted. All else is the same figures times its own number of steps and of
//! bytes moved; an algorithm that is not the ring counts a tenth more ([`UNMEASURED`]). Three figures of theirs are
//! ratios of `ferroccl perf` in a debug build on a busy machine, 4 and 16 ranks, the least of 12 runs ([`OPENED`],
//! [`SPREAD`], [`BLOCK`]): good for which is the faster, not for how long it takes. What came out is what they were made
//! to give: for small all-reduces the chain before the tree, the ring and last one-shot; for all-gathers the ring before
//! Bruck's rounds up to 16 ranks at least.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::rules::{LEAST_BW, modelled_as};
use super::tables::{Hardware, STEP};
use super::{AlgorithmFigures, Cost, Situation, UNMEASURED, doubling_rounds, ring_steps, rounds};
use crate::graph::ChannelGraph;
use crate::speed;

/// Slots of a connection of CPU devices. NCCL has 8 (`NCCL_STEPS`); here 4 are up to an eighth faster where data comes
/// from memory, and no slower elsewhere (`benches/records/2026-11-21-foundation.md`, other settings).
pub const SLOTS: u32 = 4;
/// Bytes of a connection's buffers by [`ProtocolId`], LL, LL128 and Simple, for CPU devices. They are small, so that the
/// slots of a ring stay in a core's L2 cache; NCCL's are 256 KiB, about 5 MiB and 4 MiB for a GPU.
pub const BUFFER_BYTES: [usize; 3] = [64 << 10, 128 << 10, 256 << 10];

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

/// How much more a step takes over a connection that is opened for it: of Bruck's rounds, whose peers change from step to step. A
/// rank's lines for another over the mesh count as one, which is not measured: it was so when one-shot opened its peers.
const OPENED: f64 = 5.0;
/// How much more of their bytes they move: Bruck through slots, where a ring writes into the next rank's buffer; over the mesh
/// line by line, as much as one-shot did through slots and scratch memory, which is not measured either.
const SPREAD: [f64; 2] = [2.0, 4.0];
/// What a byte takes in a direct call for each rank that reads it or gets it: `benches/records/2026-11-25-direct.md`.
const DIRECT: f64 = 0.8;
/// The same where a rank plays the switch of NVLS. Not measured.
const NVLS: f64 = 3.0;
/// What a block of a rank takes beyond the first, in microseconds: trees have one for each way.
const BLOCK: f64 = 0.25;

/// Bytes of the largest call that stays in cache.
fn cached(s: &Situation<'_>) -> u64 {
    CACHE / 2 * u64::from(s.nodes()) / u64::from(s.ranks())
}

/// The sizes at which a time is not linear in the bytes; see `switches`.
pub(super) fn breakpoints(s: &Situation<'_>, most: u32) -> Vec<u64> {
    let all = 1..=u64::from(most.max(1));
    let grains = all.clone().flat_map(|k| {
        let whole = k * GRAIN;
        [whole, whole * u64::from(s.ranks())].into_iter().filter(move |bytes| {
            // Only where a call has that many channels.
            (*bytes / BYTES_A_CHANNEL).clamp(1, most.max(1).into()) == k
        })
    });
    all.clone().map(|k| k * BYTES_A_CHANNEL).chain(grains).chain([cached(s) + 1]).collect()
}

/// What all ranks together do for a call.
#[derive(Clone, Copy, Debug)]
struct Workload {
    /// Steps.
    steps: f64,
    /// How often a byte of the call is moved.
    moved: f64,
    /// Blocks beyond one a rank and channel.
    blocks: f64,
    /// Parts that a call is cut into, each for steps of its own.
    parts: f64,
    /// How often what is moved comes from memory, where it does not fit the cache.
    from_memory: f64,
    /// Steps that cross the network, one after the other, with several hosts.
    crossings: f64,
    /// Bytes of data that a host's ports send, for each byte of the call.
    sent: f64,
}

/// How much longer all bytes take at once over a network by doubling than a ring's halves, one after the other: the record of
/// [`WIRE`], between 2 MiB (0.92) and 16 MiB (1.08).
const DOUBLED: f64 = 1.03;

/// What a byte of data costs on the way over a network, by [`ProtocolId`], with Simple as 1: slots go as they are, half of an
/// LL line is flags, their slots are smaller, and a proxy looks at each line before it sends it. The times of 16 MiB over
/// sockets, `benches/records/2026-11-26-two-hosts.md`.
const WIRE: [f64; 3] = [4.3, 2.1, 1.0];
/// What sockets carry with Simple between two processes of that record's machine, 10^9 bytes a second.
const SOCKETS: f64 = 3.4;
/// What a step over a network takes, in microseconds, by [`ProtocolId`]: from a kernel through two proxies and sockets to the other
/// kernel. The same record, all-reduces of 8 bytes over 2 hosts: two such steps around the ring, and one by doubling.
const CROSSING: [f64; 3] = [8.6, 7.9, 7.7];

impl Workload {
    fn new(
        s: &Situation<'_>,
        collective: Collective,
        algorithm: Algorithm,
        own: AlgorithmFigures,
    ) -> Workload {
        let n = f64::from(s.ranks());
        let hosts = f64::from(s.nodes());
        let steps = ring_steps(collective, n);
        let ring = Workload {
            steps: n * steps,
            moved: steps,
            blocks: 0.0,
            parts: n,
            from_memory: 1.0,
            crossings: ring_steps(collective, hosts),
            sent: steps / n,
        };
        // `times` around, or up and down: from rank to rank, each step with all bytes.
        let along = |times: f64, crossings: f64| Workload {
            steps: times * (n - 1.0),
            moved: times * (n - 1.0),
            blocks: 0.0,
            parts: 1.0,
            from_memory: 1.0,
            crossings,
            sent: times,
        };
        let levels = f64::from(s.nodes().ilog2());
        let passes_down = matches!(collective, Collective::Broadcast | Collective::Reduce);
        match algorithm {
            Algorithm::Ring if passes_down => along(1.0, hosts - 1.0),
            // A pair of ranks.
            Algorithm::Ring if collective == Collective::SendRecv => {
                Workload { steps: 1.0, moved: 1.0, parts: 1.0, ..ring }
            }
            Algorithm::Ring => ring,
            Algorithm::Tree if collective == Collective::Broadcast => along(1.0, levels),
            Algorithm::Tree if passes_down => Workload { blocks: n, ..along(1.0, levels) },
            Algorithm::Tree => Workload { blocks: n, ..along(2.0, 2.0 * levels) },
            // To the last rank, and on to the root or the blocks' owners: half of the way on the average. Blocks go
            // each by itself.
            Algorithm::Chain if collective == Collective::ReduceScatter => {
                let whole = along(1.5, 2.0 * (hosts - 1.0));
                Workload { steps: n * 2.0 * (n - 1.0), parts: n, ..whole }
            }
            Algorithm::Chain if collective == Collective::Reduce => along(1.5, 2.0 * (hosts - 1.0)),
            Algorithm::Chain => along(2.0, 2.0 * (hosts - 1.0)),
            // The leader turns what it has around: a step more.
            Algorithm::Hierarchical => {
                let leaders = ring_steps(collective, hosts);
                let inside = 2.0 * (n - hosts) + 1.0;
                Workload {
                    steps: inside + hosts * leaders,
                    moved: inside + leaders,
                    blocks: 0.0,
                    parts: 1.0,
                    from_memory: 1.0,
                    crossings: leaders,
                    sent: leaders / hosts,
                }
            }
            // Line by line, over the mesh.
            Algorithm::OneShot => {
                let edges = n * (n - 1.0);
                let parts = if collective == Collective::AllReduce { n } else { 1.0 };
                let moved = SPREAD[1] * parts * (n - 1.0);
                Workload { steps: OPENED * edges, moved, parts: 1.0, ..ring }
            }
            Algorithm::TwoShot => {
                let edges = n * (n - 1.0);
                let moved = SPREAD[1] * 2.0 * (n - 1.0);
                Workload { steps: 2.0 * OPENED * edges, moved, ..ring }
            }
            // Parts of all inputs, each to all outputs.
            Algorithm::Direct => {
                let moved = DIRECT * if collective == Collective::AllReduce { n } else { n / 2.0 };
                Workload { steps: 2.0 * n * (n - 1.0), moved, ..ring }
            }
            // The same, pack by pack instead of by whole buffers: a rank plays the switch.
            Algorithm::Nvls => {
                let moved = NVLS * if collective == Collective::AllReduce { n } else { n / 2.0 };
                Workload { steps: 2.0 * n * (n - 1.0), moved, ..ring }
            }
            // Blocks are read again when a later round sends them on, where a ring has them in its slots.
            Algorithm::Bruck => Workload {
                steps: OPENED * n * rounds(s.ranks()),
                moved: SPREAD[0] * steps,
                from_memory: 1.0,
                crossings: rounds(s.nodes()),
                sent: (n - 1.0) / hosts,
                ..ring
            },
            // All bytes in every round, of every rank.
            Algorithm::Doubling => {
                let rounds = doubling_rounds(s.ranks());
                let crossings = doubling_rounds(s.nodes());
                Workload {
                    steps: OPENED * n * rounds,
                    moved: SPREAD[0] * n * rounds,
                    parts: 1.0,
                    crossings,
                    sent: DOUBLED * crossings * n / hosts,
                    ..ring
                }
            }
            // From rank to rank; each two have compared their calls before.
            Algorithm::Linear if collective == Collective::Broadcast => Workload {
                steps: OPENED * (n - 1.0),
                moved: SPREAD[0] * (n - 1.0),
                parts: 1.0,
                ..ring
            },
            Algorithm::Linear => {
                Workload { steps: OPENED * n * (n - 1.0), moved: SPREAD[0] * steps, ..ring }
            }
            // Peers may change from step to step, as Bruck's do.
            Algorithm::Own(_) => Workload {
                steps: OPENED * n * own.steps,
                moved: SPREAD[0] * n * own.sent,
                crossings: if s.nodes() > 1 { own.steps } else { 0.0 },
                sent: n * own.sent / hosts,
                ..ring
            },
            // To the network, and back.
            Algorithm::CollnetDirect | Algorithm::CollnetChain => Workload {
                steps: 2.0 * n,
                moved: 2.0 * n,
                blocks: 0.0,
                parts: 1.0,
                from_memory: 1.0,
                crossings: 0.0,
                sent: n / hosts,
            },
        }
    }
}

/// What a step over a network that reduces takes: NCCL's figures, not measured.
pub(super) fn collnet_crossing(algorithm: Algorithm, protocol: ProtocolId) -> f64 {
    STEP[Hardware::Net as usize][algorithm.index()][modelled_as(protocol)]
}

/// The time of an algorithm and protocol on `channels` channels. `net` is the ring's path over the network, for several
/// hosts.
pub(super) fn cost(
    s: &Situation<'_>,
    net: Option<&ChannelGraph>,
    channels: u32,
    (collective, algorithm, protocol): (Collective, Algorithm, ProtocolId),
    own: AlgorithmFigures,
    bytes: u64,
) -> Cost {
    let costs = &COSTS[modelled_as(protocol)];
    let (nodes, ranks) = (f64::from(s.nodes()), f64::from(s.ranks()));
    let in_memory = bytes > cached(s);
    let (bytes, at_once) = (bytes as f64, f64::from(channels.max(1)));
    let work = Workload::new(s, collective, algorithm, own);
    // Of all ranks' work a host has that of its own.
    let share = (ranks / nodes).ceil() / ranks;
    let more = if algorithm == Algorithm::Ring { 1.0 } else { UNMEASURED };
    let filled = (bytes / (GRAIN as f64 * at_once * work.parts)).min(1.0);
    let steps = work.steps * (costs.step + filled * costs.filled) + work.blocks * BLOCK;
    let mut latency = costs.call + more * share * steps;

    let each = costs.byte / at_once + if in_memory { work.from_memory * MEMORY_BYTE } else { 0.0 };
    // Microseconds a byte of the call.
    let mut a_byte = more * work.moved * share * each;
    if s.nodes() > 1 {
        latency += work.crossings * CROSSING[modelled_as(protocol)];
        // What its ports do, or what sockets on one machine did.
        let known = net.map(|net| net.bw_inter * net.channels.len() as f64);
        let bw = known.filter(|bw| bw.is_finite() && *bw >= LEAST_BW).unwrap_or(SOCKETS);
        a_byte = f64::max(a_byte, work.sent * WIRE[modelled_as(protocol)] / bw * 1e-3);
    }
    if matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain) {
        // The network's own time, whether it is between hosts or, in a test, between threads.
        latency += collnet_crossing(algorithm, protocol);
    }
    let bandwidth = if a_byte > 0.0 { 1e-3 / a_byte } else { speed::LOC };
    Cost { time_us: latency + bytes * a_byte, latency_us: latency, bandwidth }
}

//! The model of CPU devices whose ranks are in one process, measured.
//!
//! All ranks of a process run their block of a channel on one core (`runtime::cpu`), one after the other; what
//! counts is the work of all ranks together:
//!
//! ```text
//! time = ranks call + steps (step + f filled) + moved (bytes / k) byte     steps of all ranks, f of them with data;
//!                                                                          moved: how often each byte of the call is;
//!                                                                          k channels, each on a core of its own
//!
//! ring:  n ranks with 2 (n - 1) steps each for an all-reduce, each of an n-th of the bytes
//! tree, chain:  2 (n - 1) steps for all ranks together, each of all bytes: a byte is moved as often as by a ring
//! ```
//!
//! [`Workload`] has these two numbers for every algorithm, and how much of a ring's step and byte one of its own takes
//! ([`Share`]).
//!
//! The costs are the least squares of the logarithms of the times of `benches/records/2026-11-27-one-thread.md`: 2 to 16 ranks of
//! one thread, 8 B to 256 KiB, all-reduce, all-gather, reduce-scatter, broadcast and reduce by each algorithm and protocol. The shares
//! have been fitted again, with these costs, to that record and to those of `2026-11-28-linear-placed.md` and
//! `2026-11-27-plain-mesh-intel.md`. The last two have a factor each, for the speed of their machine. The fit keeps two things small: the
//! distance to the measured times, and how much slower the chosen way is than the fastest. A test compares model and records. What is over the network, in windows or an algorithm of the
//! user's is not measured there: it has figures of its own, or counts as [`UNMEASURED`].

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::rules::{LEAST_BW, modelled_as};
use super::situation::{UNMEASURED, doubling_messages, doubling_rounds, ring_steps, rounds};
use super::tables::{Hardware, STEP};
use super::{AlgorithmFigures, Cost, Situation};
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
    /// A call of a rank, before and after its steps.
    call: f64,
    /// A step of a rank.
    step: f64,
    /// More, for a step that has data.
    filled: f64,
    /// A byte of data that is reduced.
    byte: f64,
}

/// By [`ProtocolId`]; see the module's text.
const COSTS: [Costs; 3] = [
    Costs { call: 0.562, step: 0.0213, filled: 0.0, byte: 0.436e-3 },
    Costs { call: 0.609, step: 0.0310, filled: 0.0750, byte: 0.196e-3 },
    Costs { call: 0.558, step: 0.0497, filled: 0.0, byte: 0.025e-3 },
];
/// The part of a byte's time where it is only copied.
const COPY: f64 = 0.707;

/// What a byte costs more, all cores together, when it comes from memory: `benches/records/2026-11-21-foundation.md`, Simple from 16 MiB
/// on, 0.047 ns (4 ranks) and 0.044 ns (16) with two cores at work, less what it costs them from cache.
const MEMORY_BYTE: f64 = 0.0345e-3;
/// Bytes of all ranks' buffers from which they come from memory: half of the record's L3.
const CACHE: u64 = 16 << 20;
/// Bytes of a chunk are a multiple of this: the ring's kernel cuts no finer.
const GRAIN: u64 = 16;
/// Bytes that a channel must have to be worth its launch. Not fitted: the record has one channel to 32 KiB, and two
/// at 256 KiB, where they halve the time.
pub(super) const BYTES_A_CHANNEL: u64 = 32 << 10;

/// How much of a ring's step, and of its byte, one of an algorithm takes.
struct Share {
    step: f64,
    byte: f64,
}

/// Both ways of a tree are blocks of their own, which wait for each other.
const TREE: Share = Share { step: 4.32, byte: 1.49 };
/// Its ranks have their steps in the order in which they run.
const CHAIN: Share = Share { step: 1.03, byte: 1.31 };
/// The peers change from round to round, and blocks are put in order.
const BRUCK: Share = Share { step: 4.09, byte: 2.12 };
/// The peers change from round to round.
const DOUBLING: Share = Share { step: 2.78, byte: 1.52 };
/// A step is a rank's message to another.
const LINEAR: Share = Share { step: 2.13, byte: 1.63 };
/// With Simple its data goes straight into outputs, as around a ring. Rounded up, so that windows are used where there are some, and rings
/// where they take as long.
const LINEAR_PLAIN: Share = Share { step: 2.06, byte: 1.0 };
/// A step is a rank's lines for another. One of the three records is of when a rank still wrote for each other rank what all get.
const ONE_SHOT: Share = Share { step: 0.381, byte: 1.65 };
/// The same where each rank has its own for another: of all-gathers and reduce-scatters.
const ONE_SHOT_PARTS: Share = Share { step: 0.715, byte: 2.21 };
/// The same twice, of an n-th of the bytes.
const TWO_SHOT: Share = Share { step: 1.26, byte: 1.64 };
/// An all-reduce by one-shot with Simple.
const ONE_SHOT_PLAIN: Share = Share { step: 0.0375, byte: 1.57 };
/// An all-gather: a rank has a block for all others.
const GATHER_PLAIN: Share = Share { step: 0.0548, byte: 1.26 };
/// A reduce-scatter and an all-to-all: a rank has a block for each other.
const SCATTER_PLAIN: Share = Share { step: 0.15, byte: 2.2 };
/// Two-shot with Simple.
const TWO_SHOT_PLAIN: Share = Share { step: 0.391, byte: 1.91 };
/// An algorithm of the user's, whose peers may change from step to step: a third more than the most of the others. Not measured.
const OWN: Share = Share { step: 6.0, byte: 2.0 };
/// A direct call: what a byte takes for each rank that reads it or gets it, `benches/records/2026-11-25-direct.md`.
const DIRECT: Share = Share { step: 1.3, byte: 1.1 };
/// The same where a rank plays the switch of NVLS. Not measured.
const NVLS: Share = Share { step: 1.3, byte: 4.0 };
/// What a block of a rank takes beyond the first, in microseconds: trees have one for each way.
const BLOCK: f64 = 0.129;

/// What an all-to-all takes as a group of sends and receives, for each rank and each message, in microseconds. Fitted with the
/// shares.
const MESSAGES: (f64, f64) = (1.01, 1.24);
/// Bytes of all ranks' buffers of an all-to-all up to which the slots of all connections stay in a core's L2 cache:
/// `benches/records/2026-11-27-all-to-all-intel.md`. The next four constants were fitted with the shares.
const EXCHANGED_IN_L2: f64 = (512 << 10) as f64;
/// How much a byte beyond takes, of a byte before, in an all-to-all that goes through slots: linear, or one-shot with Simple.
const SLOTS_BEYOND_L2: f64 = 4.71;
/// The same by messages.
const MESSAGES_BEYOND_L2: f64 = 2.89;
/// The same straight into outputs, where inputs and outputs do not fit either.
const PLACED_BEYOND_L2: f64 = 2.1;
/// How much more a byte of a linear all-to-all through slots takes for each rank beyond four, of which each two have a connection.
const EXCHANGE_CROWD: f64 = 0.118;

/// Bytes of the largest call that stays in cache.
fn cached(s: &Situation<'_>) -> u64 {
    CACHE / 2 * u64::from(s.nodes()) / u64::from(s.ranks())
}

/// The sizes at which a time is not linear in the bytes; see `switches`.
pub(super) fn breakpoints(s: &Situation<'_>, most: u32) -> Vec<u64> {
    let all = 1..=u64::from(most.max(1));
    let fits = (EXCHANGED_IN_L2 / f64::from(s.ranks())) as u64;
    let grains = all.clone().flat_map(|k| {
        let whole = k * GRAIN;
        [whole, whole * u64::from(s.ranks())].into_iter().filter(move |bytes| {
            // Only where a call has that many channels.
            (*bytes / BYTES_A_CHANNEL).clamp(1, most.max(1).into()) == k
        })
    });
    all.clone()
        .map(|k| k * BYTES_A_CHANNEL)
        .chain(grains)
        .chain([cached(s) + 1, fits + 1])
        .collect()
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
const CROSSING: [f64; 3] = [9.2, 8.5, 8.3];

impl Workload {
    /// With its steps and bytes in those of a ring.
    fn at(self, share: &Share) -> Workload {
        Workload { steps: share.step * self.steps, moved: share.byte * self.moved, ..self }
    }

    fn new(
        s: &Situation<'_>,
        collective: Collective,
        (algorithm, protocol): (Algorithm, ProtocolId),
        own: AlgorithmFigures,
    ) -> Workload {
        let plain = protocol == ProtocolId::Simple;
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
        let linear = if plain && !reduces(collective) { &LINEAR_PLAIN } else { &LINEAR };
        match algorithm {
            Algorithm::Ring if passes_down => along(1.0, hosts - 1.0),
            // A pair of ranks.
            Algorithm::Ring if collective == Collective::SendRecv => {
                Workload { steps: 1.0, moved: 1.0, parts: 1.0, ..ring }
            }
            Algorithm::Ring => ring,
            Algorithm::Tree if collective == Collective::Broadcast => along(1.0, levels).at(&TREE),
            Algorithm::Tree if passes_down => {
                Workload { blocks: n, ..along(1.0, levels) }.at(&TREE)
            }
            Algorithm::Tree => Workload { blocks: n, ..along(2.0, 2.0 * levels) }.at(&TREE),
            // To the last rank, and on to the root or the blocks' owners: half of the way on the average. Blocks go
            // each by itself.
            Algorithm::Chain if collective == Collective::ReduceScatter => {
                let whole = along(1.5, 2.0 * (hosts - 1.0));
                Workload { steps: n * 2.0 * (n - 1.0), parts: n, ..whole }.at(&CHAIN)
            }
            Algorithm::Chain if collective == Collective::Reduce => {
                along(1.5, 2.0 * (hosts - 1.0)).at(&CHAIN)
            }
            Algorithm::Chain => along(2.0, 2.0 * (hosts - 1.0)).at(&CHAIN),
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
                .at(&CHAIN)
            }
            // Over the mesh.
            Algorithm::OneShot if collective == Collective::AllReduce => {
                let edges = n * (n - 1.0);
                let share = if plain { &ONE_SHOT_PLAIN } else { &ONE_SHOT };
                Workload { steps: edges, moved: edges, parts: 1.0, ..ring }.at(share)
            }
            Algorithm::OneShot => {
                let share = match collective {
                    Collective::AllGather if plain => &GATHER_PLAIN,
                    _ if plain => &SCATTER_PLAIN,
                    _ => &ONE_SHOT_PARTS,
                };
                Workload { steps: n * (n - 1.0), moved: n - 1.0, ..ring }.at(share)
            }
            Algorithm::TwoShot => {
                let edges = n * (n - 1.0);
                let share = if plain { &TWO_SHOT_PLAIN } else { &TWO_SHOT };
                Workload { steps: 2.0 * edges, moved: 2.0 * (n - 1.0), ..ring }.at(share)
            }
            // Parts of all inputs, each to all outputs.
            Algorithm::Direct | Algorithm::Nvls => {
                let moved = if collective == Collective::AllReduce { n } else { n / 2.0 };
                // With NVLS pack by pack instead of by whole buffers: a rank plays the switch.
                let share = if algorithm == Algorithm::Direct { &DIRECT } else { &NVLS };
                Workload { steps: 2.0 * n * (n - 1.0), moved, ..ring }.at(share)
            }
            Algorithm::Bruck => Workload {
                steps: n * rounds(s.ranks()),
                moved: steps,
                crossings: rounds(s.nodes()),
                sent: (n - 1.0) / hosts,
                ..ring
            }
            .at(&BRUCK),
            // All bytes in every message.
            Algorithm::Doubling => {
                let messages = doubling_messages(s.ranks());
                let crossings = doubling_rounds(s.nodes());
                Workload {
                    steps: messages,
                    moved: messages,
                    parts: 1.0,
                    crossings,
                    sent: DOUBLED * crossings * n / hosts,
                    ..ring
                }
                .at(&DOUBLING)
            }
            // From rank to rank.
            Algorithm::Linear if collective == Collective::Broadcast => {
                Workload { steps: n - 1.0, moved: n - 1.0, parts: 1.0, ..ring }.at(linear)
            }
            Algorithm::Linear => Workload { steps: n * (n - 1.0), moved: steps, ..ring }.at(linear),
            Algorithm::Own(_) => Workload {
                steps: n * own.steps,
                moved: n * own.sent,
                crossings: if s.nodes() > 1 { own.steps } else { 0.0 },
                sent: n * own.sent / hosts,
                ..ring
            }
            .at(&OWN),
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

/// The bytes of an all-to-all, with those counted more that leave the L2 cache.
fn exchanged(s: &Situation<'_>, bytes: f64, beyond: f64) -> f64 {
    let fits = EXCHANGED_IN_L2 / f64::from(s.ranks());
    bytes.min(fits) + beyond * (bytes - fits).max(0.0)
}

/// What an all-to-all of one host takes as a group of sends and receives, on `channels` channels at most: before its bytes count, and a
/// byte in the mean, in microseconds.
pub(super) fn messages_cost(s: &Situation<'_>, channels: u32, bytes: u64) -> (f64, f64) {
    let ranks = f64::from(s.ranks());
    let blocks = (bytes / BYTES_A_CHANNEL).clamp(1, channels.max(1).into()) as f64;
    let memory = if bytes > cached(s) { MEMORY_BYTE } else { 0.0 };
    let (call, message) = MESSAGES;
    let more = exchanged(s, bytes as f64, MESSAGES_BEYOND_L2) / (bytes as f64).max(1.0);
    let byte = more * COPY * COSTS[ProtocolId::Simple.index()].byte / blocks + memory;
    (ranks * (call + (ranks - 1.0) * message), (ranks - 1.0) * byte)
}

/// What a step over a network that reduces takes: NCCL's figures, not measured.
pub(super) fn collnet_crossing(algorithm: Algorithm, protocol: ProtocolId) -> f64 {
    STEP[Hardware::Net as usize][algorithm.index()][modelled_as(protocol)]
}

/// Whether a collective adds up, or only moves.
pub(super) fn reduces(collective: Collective) -> bool {
    use Collective::{AllReduce, Reduce, ReduceScatter};
    matches!(collective, AllReduce | Reduce | ReduceScatter)
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
    let work = Workload::new(s, collective, (algorithm, protocol), own);
    // Of all ranks' work a host has that of its own.
    let share = (ranks / nodes).ceil() / ranks;
    let more = match algorithm {
        Algorithm::Hierarchical | Algorithm::CollnetDirect | Algorithm::CollnetChain => UNMEASURED,
        _ => 1.0,
    };
    let filled = (bytes / (GRAIN as f64 * at_once * work.parts)).min(1.0);
    let steps = work.steps * (costs.step + filled * costs.filled) + work.blocks * BLOCK;
    let mut latency = share * (ranks * costs.call + more * steps);

    let mut byte = if reduces(collective) { costs.byte } else { COPY * costs.byte };
    if collective == Collective::AllToAll {
        let crowd = EXCHANGE_CROWD * (ranks - 4.0).max(0.0);
        let (crowd, beyond) = match (algorithm, protocol == ProtocolId::Simple) {
            (Algorithm::Linear, true) => (0.0, PLACED_BEYOND_L2),
            (Algorithm::Linear, false) => (crowd, SLOTS_BEYOND_L2),
            (Algorithm::OneShot, true) => (0.0, SLOTS_BEYOND_L2),
            _ => (0.0, 1.0),
        };
        byte *= (1.0 + crowd) * exchanged(s, bytes, beyond) / bytes.max(1.0);
    }
    let each = byte / at_once + if in_memory { work.from_memory * MEMORY_BYTE } else { 0.0 };
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

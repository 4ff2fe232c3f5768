//! The model of CPU devices whose ranks are in several processes of one host, measured.
//!
//! With more processes than cores a rank that waits gives its core to another process, and what a call takes is above all how
//! often its ranks wait for each other, one wait after the other:
//!
//! ```text
//! time = load waits turn + work / cores + moved (bytes / cores) byte
//!
//! load:   processes of a core
//! waits:  waits for another rank, one after the other, each a turn of the core's processes
//! work:   calls and steps of all ranks, and their lines over the mesh
//! ```
//!
//! A one-shot call has one wait, a chain one for each of its ranks, up and down. So with 16 processes on 2 cores one-shot takes 40 to 50 us
//! for 8 bytes, where a chain, the fastest way of 16 ranks in one thread, takes 140.
//!
//! The figures are fitted to records of three machines, of `benches/records/`: of AMD's `2026-11-27-between-processes.md` and the first three
//! `2026-11-29-every-way*.md`, of Intel's `2026-11-27-plain-mesh-intel.md` and `2026-11-27-callers-intel.md`, and, of threads,
//! `2026-11-28-linear-placed.md`. They have 2 to 16 ranks on 2 cores, 8 B to 256 KiB, and all collectives by each algorithm and protocol. The fit keeps
//! two things small: the distance to the logarithms of the measured times, with a factor for the speed of each machine, and how much slower what is
//! chosen is than the fastest. Beyond 256 KiB it was to choose what was chosen before. `2026-11-29-every-way-refitted.md` was measured afterwards. A
//! test compares what is chosen with all of them.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::rules::modelled_as;
use super::situation::{doubling_messages, doubling_rounds, ring_steps, rounds};
use super::{AlgorithmFigures, Cost, Situation, cpu};
use crate::speed;

/// A call of a rank, before and after its steps, in microseconds.
const CALL: f64 = 0.627;
/// A block of a rank beyond the first: trees have one for each way.
const BLOCK: f64 = 0.0276;
/// A step of a rank, by [`ProtocolId`], in microseconds.
const STEP: [f64; 3] = [0.353, 0.54, 0.353];
/// A rank's line for another over the mesh, or its slot: to write it, and to read it.
const LINE: [f64; 3] = [0.326, 0.466, 0.206];
/// Microseconds a byte, by [`ProtocolId`], of calls that reduce.
const BYTE: [f64; 3] = [0.749e-3, 0.323e-3, 0.0551e-3];
/// The part of it where bytes are only copied.
const COPY: f64 = 0.685;

/// What a message of an all-to-all takes as a send and a receive, in microseconds, with its part of the call and of the waits.
const MESSAGE: f64 = 2.1;

/// What an algorithm's own waits, steps and bytes take.
#[derive(Debug)]
struct AlgorithmCosts {
    /// What a wait takes for each process of a core, in microseconds. Below a switch of processes (1.6 us on the record's machine) where a
    /// process does several of them in its turn.
    turn: f64,
    /// How much of a ring's step one takes, or of a line over the mesh.
    step: f64,
    /// How much of a ring's byte.
    byte: f64,
}

const RING: AlgorithmCosts = AlgorithmCosts { turn: 0.817, step: 1.0, byte: 1.0 };
/// Around once: broadcast and reduce.
const RING_DOWN: AlgorithmCosts = AlgorithmCosts { turn: 0.417, step: 2.8, byte: 1.19 };
const TREE: AlgorithmCosts = AlgorithmCosts { turn: 1.05, step: 2.42, byte: 1.13 };
/// One way: broadcast and reduce.
const TREE_DOWN: AlgorithmCosts = AlgorithmCosts { turn: 1.26, step: 4.92, byte: 1.49 };
const CHAIN: AlgorithmCosts = AlgorithmCosts { turn: 0.485, step: 3.15, byte: 0.993 };
/// Part by part: reduce-scatter.
const CHAIN_PARTS: AlgorithmCosts = AlgorithmCosts { turn: 0.715, step: 0.987, byte: 1.08 };
const BRUCK: AlgorithmCosts = AlgorithmCosts { turn: 2.47, step: 1.7, byte: 1.39 };
const ONE_SHOT: AlgorithmCosts = AlgorithmCosts { turn: 0.53, step: 0.676, byte: 1.35 };
/// Each rank has lines of its own for another: all-gather and reduce-scatter.
const ONE_SHOT_PARTS: AlgorithmCosts = AlgorithmCosts { turn: 0.494, step: 0.994, byte: 1.86 };
const TWO_SHOT: AlgorithmCosts = AlgorithmCosts { turn: 0.57, step: 0.805, byte: 1.44 };
/// With Simple, as in one process.
const ONE_SHOT_PLAIN: AlgorithmCosts = AlgorithmCosts { byte: 0.841, ..ONE_SHOT };
const GATHER_PLAIN: AlgorithmCosts = AlgorithmCosts { byte: 1.24, ..ONE_SHOT_PARTS };
const SCATTER_PLAIN: AlgorithmCosts = AlgorithmCosts { byte: 1.5, ..ONE_SHOT_PARTS };
const TWO_SHOT_PLAIN: AlgorithmCosts = AlgorithmCosts { byte: 0.913, ..TWO_SHOT };
const DOUBLING: AlgorithmCosts = AlgorithmCosts { turn: 1.19, step: 0.776, byte: 1.08 };
const LINEAR: AlgorithmCosts = AlgorithmCosts { turn: 0.725, step: 1.15, byte: 1.04 };
/// How much more its bytes take for each rank beyond three. Chosen so that the ring is taken from 1 MiB on, where it is twice as fast with 16
/// processes; up to 256 KiB it makes little difference.
const CROWD: f64 = 0.04;
/// From one rank: broadcast.
const LINEAR_DOWN: AlgorithmCosts = AlgorithmCosts { turn: 1.04, step: 1.72, byte: 1.34 };
/// With Simple between threads of a process, straight into outputs: `benches/records/2026-11-28-linear-placed.md`.
const LINEAR_PLACED: AlgorithmCosts = AlgorithmCosts { byte: 0.914, ..LINEAR };
/// A broadcast of this kind.
const LINEAR_DOWN_PLACED: AlgorithmCosts = AlgorithmCosts { byte: 1.01, ..LINEAR_DOWN };
/// What is not measured: an algorithm of the user's, whose peers may change from step to step.
const OWN: AlgorithmCosts = AlgorithmCosts { turn: 2.17, step: 2.0, byte: 1.4 };
/// What is not measured, as lines over the mesh.
const DIRECT: AlgorithmCosts = AlgorithmCosts { turn: 1.8, step: 1.0, byte: 1.0 };

/// What a call takes between processes, counted.
#[derive(Clone, Copy, Debug)]
struct WaitsAndWork {
    /// Steps of all ranks.
    steps: f64,
    /// Lines of all ranks over the mesh.
    lines: f64,
    /// Blocks of all ranks beyond one each.
    blocks: f64,
    /// How often a byte of the call is moved.
    moved: f64,
    /// Waits for another rank, one after the other.
    waits: f64,
    costs: &'static AlgorithmCosts,
}

impl WaitsAndWork {
    fn new(
        s: &Situation<'_>,
        collective: Collective,
        (algorithm, protocol): (Algorithm, ProtocolId),
        own: AlgorithmFigures,
    ) -> WaitsAndWork {
        let plain = protocol == ProtocolId::Simple;
        let n = f64::from(s.ranks());
        let around = ring_steps(collective, n);
        let edges = n * (n - 1.0);
        let levels = n.log2();
        let placed = plain && s.is_one_process() && !cpu::reduces(collective);
        let (broadcast, reduce) =
            (collective == Collective::Broadcast, collective == Collective::Reduce);
        let ring = WaitsAndWork {
            steps: n * around,
            lines: 0.0,
            blocks: 0.0,
            moved: around,
            waits: around,
            costs: &RING,
        };
        // From rank to rank, each step with all bytes.
        let along = |times: f64, waits: f64, costs| WaitsAndWork {
            steps: times * (n - 1.0),
            moved: times * (n - 1.0),
            waits,
            costs,
            ..ring
        };
        let over_mesh = |times: f64, moved: f64, costs| WaitsAndWork {
            steps: 0.0,
            lines: times * edges,
            moved,
            waits: times,
            costs,
            ..ring
        };
        match algorithm {
            Algorithm::Ring if collective == Collective::SendRecv => {
                WaitsAndWork { steps: 1.0, moved: 1.0, waits: 1.0, ..ring }
            }
            Algorithm::Ring if broadcast || reduce => along(1.0, n - 1.0, &RING_DOWN),
            Algorithm::Ring => ring,
            Algorithm::Tree if broadcast || reduce => along(1.0, levels, &TREE_DOWN),
            Algorithm::Tree => WaitsAndWork { blocks: n, ..along(2.0, 2.0 * levels, &TREE) },
            // As in one process: to the last rank, and on to the root or the blocks' owners.
            Algorithm::Chain if collective == Collective::ReduceScatter => {
                WaitsAndWork { steps: 2.0 * edges, ..along(1.5, 1.5 * (n - 1.0), &CHAIN_PARTS) }
            }
            Algorithm::Chain => {
                let times = if reduce { 1.5 } else { 2.0 };
                along(times, times * (n - 1.0), &CHAIN)
            }
            Algorithm::Bruck => {
                let rounds = rounds(s.ranks());
                WaitsAndWork { steps: n * rounds, waits: rounds, costs: &BRUCK, ..ring }
            }
            // As plain data a rank's own block is one of those that it combines.
            Algorithm::OneShot if collective == Collective::AllReduce && plain => {
                over_mesh(1.0, n * n, &ONE_SHOT_PLAIN)
            }
            Algorithm::OneShot if collective == Collective::AllReduce => {
                over_mesh(1.0, edges, &ONE_SHOT)
            }
            // A rank copies its block once and all others' blocks once, which by a ring it does twice.
            Algorithm::OneShot if plain && collective == Collective::AllGather => {
                over_mesh(1.0, n / 2.0, &GATHER_PLAIN)
            }
            Algorithm::OneShot => {
                over_mesh(1.0, n - 1.0, if plain { &SCATTER_PLAIN } else { &ONE_SHOT_PARTS })
            }
            // Here once: each rank combines a part of all inputs, its own among them.
            Algorithm::TwoShot if plain => over_mesh(2.0, 2.0 * n - 1.0, &TWO_SHOT_PLAIN),
            Algorithm::TwoShot => over_mesh(2.0, 2.0 * (n - 1.0), &TWO_SHOT),
            // A barrier before and behind; in between, parts of all inputs, each to all outputs.
            Algorithm::Direct | Algorithm::Nvls => {
                let all = collective == Collective::AllReduce;
                over_mesh(2.0, if all { n } else { n / 2.0 }, &DIRECT)
            }
            // All bytes in every message.
            Algorithm::Doubling => {
                let messages = doubling_messages(s.ranks());
                let waits = doubling_rounds(s.ranks());
                WaitsAndWork { steps: messages, moved: messages, waits, costs: &DOUBLING, ..ring }
            }
            Algorithm::Linear if broadcast => {
                along(1.0, 1.0, if placed { &LINEAR_DOWN_PLACED } else { &LINEAR_DOWN })
            }
            Algorithm::Linear if placed => {
                WaitsAndWork { steps: edges, waits: 1.0, costs: &LINEAR_PLACED, ..ring }
            }
            // Each two ranks have a connection, whose slots take room in the caches.
            Algorithm::Linear => WaitsAndWork {
                steps: edges,
                moved: around * (1.0 + CROWD * (n - 3.0).max(0.0)),
                waits: 1.0,
                costs: &LINEAR,
                ..ring
            },
            Algorithm::Own(_) => WaitsAndWork {
                steps: n * own.steps,
                moved: n * own.sent,
                waits: own.steps,
                costs: &OWN,
                ..ring
            },
            // To the leader and back, which turns what it has around. Not measured.
            Algorithm::Hierarchical => {
                let whole = along(2.0, 2.0 * n - 1.0, &CHAIN);
                WaitsAndWork { steps: 2.0 * n, moved: 2.0 * n, ..whole }
            }
            // To the network, and back. Not measured.
            Algorithm::CollnetDirect | Algorithm::CollnetChain => {
                WaitsAndWork { steps: 2.0 * n, moved: 2.0 * n, waits: 2.0, ..ring }
            }
        }
    }
}

/// The time of an algorithm and protocol on `channels` channels.
pub(super) fn cost(
    s: &Situation<'_>,
    (processes, cores): (u32, u32),
    channels: u32,
    (collective, algorithm, protocol): (Collective, Algorithm, ProtocolId),
    own: AlgorithmFigures,
    bytes: u64,
) -> Cost {
    let p = modelled_as(protocol);
    let at_work = f64::from(processes.min(cores));
    let load = f64::from(processes) / at_work;
    let way = WaitsAndWork::new(s, collective, (algorithm, protocol), own);
    // Nobody is waited for who has a core of his own.
    let costs = way.costs;
    let waits = way.waits * costs.turn * (load - 1.0).min(1.0);
    let ranks = f64::from(s.ranks()) / at_work;
    let steps = costs.step * (way.steps * STEP[p] + way.lines * LINE[p]);
    let work = (steps + way.blocks * BLOCK) / at_work;
    let mut latency = ranks * CALL + load * waits + work;
    if matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain) {
        latency += cpu::collnet_crossing(algorithm, protocol);
    }
    let byte = BYTE[p] * if cpu::reduces(collective) { 1.0 } else { COPY };
    // Channels of a process are on cores of their own, if there are such.
    let busy = f64::from(processes.saturating_mul(channels.max(1)).min(cores)).max(at_work);
    let a_byte = costs.byte * way.moved * byte / busy;
    let bandwidth = if a_byte > 0.0 { 1e-3 / a_byte } else { speed::LOC };
    Cost { time_us: latency + bytes as f64 * a_byte, latency_us: latency, bandwidth }
}

/// What an all-to-all takes as a group of sends and receives, on `channels` channels at most: before its bytes count, and a byte, in
/// microseconds.
pub(super) fn messages_cost(
    s: &Situation<'_>,
    (processes, cores): (u32, u32),
    channels: u32,
    bytes: u64,
) -> (f64, f64) {
    let ranks = f64::from(s.ranks());
    let at_work = f64::from(processes.min(cores));
    let blocks = (bytes / cpu::BYTES_A_CHANNEL).clamp(1, channels.max(1).into()) as u32;
    let busy = f64::from(processes.saturating_mul(blocks).min(cores)).max(at_work);
    let byte = COPY * BYTE[ProtocolId::Simple.index()] / busy;
    ((ranks - 1.0) * ranks * MESSAGE / at_work, (ranks - 1.0) * byte)
}

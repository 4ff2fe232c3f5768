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
//! A one-shot call has one wait, a chain one for each of its ranks, up and down. So with 16 processes on 2 cores one-shot takes 60 us
//! for 8 bytes, where a chain, the fastest way of 16 ranks in one thread, takes 200.
//!
//! The figures are the least squares of the logarithms of the times of `benches/records/2026-11-26-processes.md`: 2 to 16 processes on
//! 2 cores, 8 B to 256 KiB, all-reduce, all-gather, reduce-scatter and broadcast by each algorithm and protocol. That record says how
//! far what is chosen by them is from the fastest, and a test compares the two. Those of Doubling and Linear were measured later, and
//! fitted by hand to their rows of that table.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::rules::modelled_as;
use super::situation::{doubling_rounds, ring_steps, rounds};
use super::{AlgorithmFigures, Cost, Situation, cpu};
use crate::speed;

/// A call of a rank, before and after its steps, in microseconds.
const CALL: f64 = 0.93;
/// A block of a rank beyond the first: trees have one for each way.
const BLOCK: f64 = 1.06;
/// A step of a rank, by [`ProtocolId`], in microseconds.
const STEP: [f64; 3] = [0.56, 0.93, 0.91];
/// A rank's line for another over the mesh: to write it, and to read it. Simple has none; it counts as LL128.
const LINE: [f64; 3] = [0.35, 0.47, 0.47];
/// Microseconds a byte, by [`ProtocolId`], of calls that reduce.
const BYTE: [f64; 3] = [0.94e-3, 0.37e-3, 0.07e-3];
/// The part of it where bytes are only copied.
const COPY: f64 = 0.78;

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
    /// What such a wait takes for each process of a core, in microseconds. Below a switch of processes (1.6 us on the record's machine)
    /// where a process does several of them in its turn.
    turn: f64,
}

impl WaitsAndWork {
    fn new(
        s: &Situation<'_>,
        collective: Collective,
        algorithm: Algorithm,
        own: AlgorithmFigures,
    ) -> WaitsAndWork {
        let n = f64::from(s.ranks());
        let around = ring_steps(collective, n);
        let edges = n * (n - 1.0);
        let levels = n.log2();
        let (broadcast, reduce) =
            (collective == Collective::Broadcast, collective == Collective::Reduce);
        let all = if collective == Collective::AllReduce { n } else { 1.0 };
        let reduces = collective == Collective::ReduceScatter;
        let ring = WaitsAndWork {
            steps: n * around,
            lines: 0.0,
            blocks: 0.0,
            moved: around,
            waits: around,
            turn: 1.04,
        };
        let along = |times: f64| WaitsAndWork {
            steps: times * (n - 1.0),
            moved: times * (n - 1.0),
            ..ring
        };
        match algorithm {
            Algorithm::Ring if collective == Collective::SendRecv => {
                WaitsAndWork { steps: 1.0, moved: 1.0, waits: 1.0, ..ring }
            }
            Algorithm::Ring if broadcast || reduce => WaitsAndWork { waits: n - 1.0, ..along(1.0) },
            Algorithm::Ring => ring,
            Algorithm::Tree if broadcast || reduce => {
                WaitsAndWork { waits: levels, turn: 2.03, moved: 1.25 * (n - 1.0), ..along(1.0) }
            }
            Algorithm::Tree => WaitsAndWork {
                blocks: n,
                waits: 2.0 * levels,
                turn: 1.45,
                moved: 1.25 * 2.0 * (n - 1.0),
                ..along(2.0)
            },
            // As in one process: to the last rank, and on to the root or the blocks' owners.
            Algorithm::Chain if collective == Collective::ReduceScatter => WaitsAndWork {
                steps: n * 2.0 * (n - 1.0),
                waits: 1.5 * (n - 1.0),
                turn: 0.79,
                ..along(1.5)
            },
            Algorithm::Chain => {
                let times = if reduce { 1.5 } else { 2.0 };
                WaitsAndWork { waits: times * (n - 1.0), turn: 0.79, ..along(times) }
            }
            Algorithm::Bruck => WaitsAndWork {
                steps: n * rounds(s.ranks()),
                moved: 0.95 * around,
                waits: rounds(s.ranks()),
                turn: 6.0,
                ..ring
            },
            Algorithm::OneShot => WaitsAndWork {
                steps: 0.0,
                lines: edges,
                moved: 1.48 * all * (n - 1.0),
                waits: 1.0,
                turn: 1.8,
                ..ring
            },
            Algorithm::TwoShot => WaitsAndWork {
                steps: 0.0,
                lines: 2.0 * edges,
                moved: 1.85 * 2.0 * (n - 1.0),
                waits: 2.0,
                turn: 0.91,
                ..ring
            },
            // A barrier before and behind; in between, parts of all inputs, each to all outputs. Not measured.
            Algorithm::Direct | Algorithm::Nvls => WaitsAndWork {
                steps: 0.0,
                lines: 2.0 * edges,
                moved: if all > 1.0 { n } else { n / 2.0 },
                waits: 2.0,
                turn: 1.8,
                ..ring
            },
            // All bytes in every round, of every rank.
            Algorithm::Doubling => WaitsAndWork {
                steps: n * doubling_rounds(s.ranks()),
                moved: 1.35 * n * doubling_rounds(s.ranks()),
                waits: doubling_rounds(s.ranks()),
                turn: 1.3,
                ..ring
            },
            // Each two ranks have a connection, whose slots take room in the caches.
            Algorithm::Linear => WaitsAndWork {
                steps: if broadcast { n - 1.0 } else { 0.46 * edges },
                moved: (n - 1.0) * if reduces { 1.0 } else { 0.87 + 0.035 * n },
                waits: 1.0,
                turn: 2.2,
                ..ring
            },
            // Peers may change from step to step, as Bruck's do. Not measured.
            Algorithm::Own(_) => WaitsAndWork {
                steps: n * own.steps,
                moved: n * own.sent,
                waits: own.steps,
                turn: 6.0,
                ..ring
            },
            // To the leader and back, which turns what it has around. Not measured.
            Algorithm::Hierarchical => {
                WaitsAndWork { steps: 2.0 * n, moved: 2.0 * n, waits: 2.0 * n - 1.0, ..ring }
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
    let way = WaitsAndWork::new(s, collective, algorithm, own);
    // Nobody is waited for who has a core of his own.
    let waits = way.waits * way.turn * (load - 1.0).min(1.0);
    let ranks = f64::from(s.ranks()) / at_work;
    let work = (way.steps * STEP[p] + way.lines * LINE[p] + way.blocks * BLOCK) / at_work;
    let mut latency = ranks * CALL + load * waits + work;
    if matches!(algorithm, Algorithm::CollnetDirect | Algorithm::CollnetChain) {
        latency += cpu::collnet_crossing(algorithm, protocol);
    }
    let reduces = matches!(
        collective,
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce
    );
    let byte = BYTE[p] * if reduces { 1.0 } else { COPY };
    // Channels of a process are on cores of their own, if there are such.
    let busy = f64::from(processes.saturating_mul(channels.max(1)).min(cores)).max(at_work);
    let a_byte = way.moved * byte / busy;
    let bandwidth = if a_byte > 0.0 { 1e-3 / a_byte } else { speed::LOC };
    Cost { time_us: latency + bytes as f64 * a_byte, latency_us: latency, bandwidth }
}

//! What a call of FerroCCL would take on a cluster that is described.
//!
//! ```text
//! topology file ─► HostGraphs ─┐                                   Fabric (rail, fat tree, dragonfly, file)
//!                              ├─► Cluster ◄───────────────────────┘
//! Config, Fault ───────────────┘      │
//!                                     ├─► tuner ─► KernelPlan ─► StepRecorder ─► Stage: blocks with their steps, connections
//!                                     └─► StepFigures, links ──────────────────────┐     │
//!                                                                  engine ◄────────┴─────┘
//!                                                                     └─► Outcome: times, links, trace
//! ```
//!
//! The plans are the library's own: channels, rings and trees of the search, algorithm and protocol of the tuner, and the steps that the
//! kernels' code takes when it runs without data. The times are a **simulation**: nothing is measured, and no GPU has confirmed them. What
//! a step takes comes from the tuner's tables ([`StepFigures`](ferroccl::graph::tuning::StepFigures)), bandwidths from the topology file,
//! and the network from its description. [`Detail`] says how far a run goes step by step.
//!
//! The emulator's clock (`ferroccl-ptx`) is another simulation: of the instructions of kernels on some GPUs of one host. Nothing here runs
//! instructions.
//!
//! ```
//! use ferroccl::config::Config;
//! use ferroccl::topology::{Assume, load_file};
//! use ferroccl::{Algorithm, Collective};
//! use ferroccl_simulator::{Call, Cluster, FabricSpec, Options};
//!
//! # let dgx = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/topology_files/dgx-a100.xml");
//! let system = load_file(dgx.as_ref(), &Assume::default())?;
//! let cluster = Cluster::new(&system, 4, &Config::from_lookup(|_| None)?, &FabricSpec::default(), &[])?;
//! let call = Call { collective: Collective::AllReduce, bytes: 1 << 20, algorithm: Some(Algorithm::Ring), protocol: None };
//! let outcome = cluster.simulate(&call, &Options::default())?;
//! assert_eq!(outcome.finish_us.len(), 32);
//! println!("{:.1} us, simulated; {:.1} GB/s", outcome.time_us, outcome.bus_bandwidth());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod carrier;
mod cluster;
mod costs;
mod engine;
mod fabric;
mod failure;
mod fault;
mod fit;
mod folded;
mod moment;
mod options;
mod outcome;
mod plan;
mod stage;
mod trace;
mod tuner_file;

pub use cluster::Cluster;
pub use fabric::{Fabric, FabricLink, FabricShape, FabricSpec, Port, SWITCH_US};
pub use failure::{Recovery, RecoveryPart, SOCKET_US};
pub use fault::Fault;
pub use options::{Call, Detail, Options};
pub use outcome::{LinkUse, Outcome};
pub use trace::StepSpan;
pub use tuner_file::{TunerRow, tuner_file};

use ferroccl::{Algorithm, Collective};

/// Why there is no simulation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// A description of a network that makes no sense.
    #[error("the fabric: {0}")]
    Fabric(String),
    /// A host without channels, or ranks that do not fit.
    #[error("the cluster: {0}")]
    Cluster(String),
    /// What is to be broken is not there.
    #[error("the fault: {0}")]
    Fault(String),
    /// The call cannot be done this way.
    #[error("{collective} by {algorithm}: {reason}")]
    CannotBeHad {
        /// The collective.
        collective: Collective,
        /// The algorithm that was asked for.
        algorithm: Algorithm,
        /// Why not.
        reason: String,
    },
    /// The tuner finds no way that the settings allow.
    #[error(transparent)]
    Plan(#[from] ferroccl::enqueue::PlanError),
    /// An error of the library.
    #[error(transparent)]
    Library(#[from] ferroccl::Error),
    /// The run has more steps than it may.
    #[error("{steps} steps; at most {most} may be taken")]
    TooManySteps {
        /// Steps that there are.
        steps: u64,
        /// Steps that were allowed.
        most: u64,
    },
    /// No block can go on: a fault of the plan or of this crate.
    #[error("no block can go on after {steps} steps: {waiting} of {blocks} blocks wait")]
    Stuck {
        /// Steps that were taken.
        steps: u64,
        /// Blocks that wait.
        waiting: usize,
        /// All blocks.
        blocks: usize,
    },
}

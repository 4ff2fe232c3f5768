//! Which algorithm, protocol, channels and threads a call is done with, and why.
//!
//! ```text
//! Situation (hosts, ranks, graphs, devices) ─┐
//! Collective, bytes ─────────────────────────┼─► predict: latency + bytes / bandwidth, of each alternative
//! Settings (NCCL_ALGO, NCCL_PROTO, ...) ─────┘      └─► choose: the fastest of those that are allowed
//!                                                         └─► Tuner: the same as straight lines, for every call
//! ```
//!
//! Times that were fitted to runs ([`FittedCosts`]) count in place of the model's.
//!
//! For GPUs the model and its figures are NCCL's ([`tables`], [`model`]): a latency per step, and the bandwidth that
//! the search has found, less what a protocol costs of it. They are estimates that rank alternatives; what a call
//! takes is for the perf tool to say. For CPU devices they are measured ([`cpu`], [`processes`]).
//!
//! Pure: equal arguments give equal choices, on every rank.

mod absent;
pub mod all_to_all;
mod bandwidth;
mod choose;
pub mod cpu;
mod fitted;
mod mesh;
mod messages;
mod model;
mod own;
mod parallelism;
mod processes;
mod rules;
mod selection;
mod settings;
mod situation;
mod steps;
mod tables;
mod tuner;

pub use absent::{AbsentAlgorithm, absent_cost};
pub use choose::{Alternative, Choice, NoChoice, choose, switches};
pub use fitted::{FittedCosts, FittedLine, FittedTimes};
pub use model::predict;
pub use own::{AlgorithmFigures, OwnKernels, ProtocolFigures};
pub use rules::algorithms;
pub use selection::{Selectable, Selection};
pub use settings::{Settings, in_rank_order};
pub use situation::{Cost, Devices, Gpus, LARGE_CALL_BYTES, Prediction, Situation};
pub use steps::StepFigures;
pub use tables::NcclFigures;
pub use tuner::Tuner;

pub use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use situation::{MAX_CHANNELS, doubling_rounds, is_faster, ring_steps, rounds};

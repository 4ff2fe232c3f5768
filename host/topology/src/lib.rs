//! What a host is made of, how its devices reach each other, and what follows from that.
//!
//! ```text
//!   topology file ─► xml ─► build ─┐
//!   /sys, NVML ────► detect ───────┴► System ─► Paths (by a Policy) ─► graph
//! ```
//!
//! [`System`] is a plain graph. Everything after it is pure: the same system and policy give the same paths,
//! channels and choices, whether the system is this machine, a file, or made up by a test. What reads the
//! machine is in one place, and a dump of what it found can be read back as a file.
//!
//! Units: bandwidths are 10^9 bytes a second each way, latencies microseconds.

pub mod assume;
pub mod build;
pub mod detect;
pub mod dump;
mod error;
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod graph;
mod load;
pub mod merge;
pub mod path;
pub mod policy;
pub mod speed;
pub mod system;
mod trim;
pub mod xml;

pub use assume::{Assume, AssumeError, NvLinks};
pub use build::Built;
pub use error::TopologyError;
pub use files::Files;
pub use load::{load, load_file, load_from};
pub use path::{Path, PathKind, PathKindError, Paths, affinity};
pub use policy::{CrossNic, Decision, MessagePxn, Policy};
pub use system::{
    Arch, BusId, BusIdError, Cpu, CpuSet, Gpu, Link, LinkId, LinkKind, Net, Nic, Node, NodeId, Pci,
    System, Vendor,
};
pub use trim::trim;

/// Target of this crate's log lines: NCCL's subsystem GRAPH.
pub const LOG_TARGET: &str = "ferroccl::graph";

//! Kernels in the PTX emulator: the runtime, the conformance cases, and bugs that it must notice.

mod alignment;
mod bugs;
mod conformance;
mod direct;
mod runtime;

#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/reductions.rs"]
mod reductions;
#[path = "../support/skip.rs"]
mod skip;
#[path = "../support/team.rs"]
mod team;
#[path = "../support/values.rs"]
mod values;

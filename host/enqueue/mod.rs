//! From a call to a plan: which protocol and how many channels, what each channel and the
//! signature that neighbours compare. Pure functions: no clock, no I/O, no communicator.

mod plan;
mod signature;

pub use plan::{NetworkOps, Plan, PlanError, Shape, Way, choose, plan, send_recv_kernel, split};
pub use signature::{Call, describe};

//! From a call to a plan: algorithm, protocol and channels, each channel's part of the data, and the signature that
//! neighbours compare. Pure functions: no clock, no I/O, no communicator.

pub(crate) mod dry_run;
mod plan;
mod signature;

pub use dry_run::{ChannelPlace, ConnShape, CountedStep, StepRecorder};
pub use plan::{
    AlgoChoice, KernelPlan, NetworkOps, PlanContext, PlanError, Registration, choice, choose,
    costs, plan, plan_of, send_recv_kernel, split,
};
pub use signature::{CollectiveCall, describe, describe_call};

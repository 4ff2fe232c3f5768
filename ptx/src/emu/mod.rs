//! The emulator: kernels run warp by warp, 32 lanes at a time.

pub mod alu;
mod barrier;
mod block;
mod counts;
mod exec;
mod fault;
mod global;
mod lockstep;
mod machine;
mod memory;
mod program;
mod random;
mod sync;
mod threads;
mod warp;

pub use counts::Counts;
pub use fault::{Fault, FaultKind, Site};
pub use lockstep::{Lockstep, Options, Turns};
pub use machine::{Grid, Launch, LaunchError, Machine, Mapping};
pub use memory::model::{Adversity, Checks, Unit};
pub use program::{LoadError, Program};
pub use threads::{BlockRun, Progress, run_on_threads};

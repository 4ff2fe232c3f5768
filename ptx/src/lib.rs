//! PTX, NVIDIA's virtual instruction set, as something a person can look at, measure and run.
//!
//! A leaf: it knows nothing of collectives, ranks or the host that launches kernels.

pub mod cfg;
pub mod emu;
pub mod inspect;
pub mod isa;
pub mod syntax;
pub mod types;

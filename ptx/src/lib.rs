//! PTX, NVIDIA's virtual instruction set, as something a person can look at, measure and run.
//!
//! A leaf: it knows nothing of collectives, ranks or the host that launches kernels.

#[cfg(feature = "isa")]
pub mod cfg;
#[cfg(feature = "emulator")]
pub mod emu;
#[cfg(feature = "inspect")]
pub mod inspect;
#[cfg(feature = "isa")]
pub mod isa;
pub mod syntax;
pub mod types;

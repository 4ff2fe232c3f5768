//! Protocols for FerroCCL, written outside of it.
//!
//! | file | what |
//! |---|---|
//! | `ll64.rs` | a protocol: lines of 64 bytes, 56 of them data |
//! | `table.rs` | its kernels, a row each |
//! | `kernels.rs` | the crate that is compiled to PTX: the same files |
//! | `build.rs` | makes the PTX |

pub mod ll64;
mod table;

pub use table::*;

/// The kernels as PTX of sm_80; empty where there was no compiler for it.
pub const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/lab.ptx"));

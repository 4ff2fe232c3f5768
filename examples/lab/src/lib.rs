//! Protocols for FerroCCL, written outside of it.
//!
//! | file | what |
//! |---|---|
//! | `ll64.rs` | a protocol: lines of 64 bytes, 56 of them data |
//! | `halving.rs` | an algorithm: an all-reduce by recursive halving and doubling |
//! | `stamped.rs` | a protocol: slots of plain data whose first word says whose turn it is |
//! | `hasty.rs` | a protocol that is wrong on purpose |
//! | `scan.rs` | a kernel that is no call of the library's |
//! | `table.rs` | its kernels, a row each |
//! | `kernels.rs` | the crate that is compiled to PTX: the same files |
//! | `build.rs` | makes the PTX |

pub mod halving;
pub mod hasty;
pub mod ll64;
pub mod scan;
pub mod stamped;
mod table;

pub use table::*;

use ferroccl::Registry;
use ll64::Ll64;
use stamped::Stamped;

/// The lab's protocols, algorithms and kernels, for communicators and for the command.
#[must_use]
pub fn registry() -> Registry {
    Registry::new()
        // 64 KiB a connection: few bytes are what LL64 is for.
        .protocol::<Ll64>(64 << 10)
        .protocol::<Stamped>(256 << 10)
        .kernels(KERNELS, PTX)
}

/// The kernels as PTX of sm_80; empty where there was no compiler for it.
pub const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/lab.ptx"));

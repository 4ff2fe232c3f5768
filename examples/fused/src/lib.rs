//! Kernels that communicate by themselves, where an application has several kernels and calls in between.
//!
//! | file | what |
//! |---|---|
//! | `vector.rs` | an all-reduce behind the kernel that makes its input |
//! | `tiles.rs` | a product of matrices whose tiles are reduced and scattered as they are ready |
//! | `experts.rs` | a mixture of experts: tokens go to ranks that only the device knows, and come back |
//! | `halo.rs` | a stencil whose ranks exchange the rows at their edges, step after step, in one launch |
//! | `ring.rs` | an all-reduce around a ring, in the library's own primitives, whose input is made on the way |
//! | `kernels.rs` | the crate that is compiled to PTX: the same files |
//! | `team.rs`, `cases.rs` | ranks with their windows, and data, for the tests and the program |
//! | `main.rs` | all of them in simulated time, beside what they take as kernels and calls |

pub mod cases;
pub mod experts;
pub mod halo;
pub mod ring;
pub mod team;
pub mod tiles;
pub mod vector;

/// The kernels as PTX of sm_80; empty where there was no compiler for it.
pub const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/fused.ptx"));

/// Sizes of a case ([`cases::CASES`], [`cases::ONE_HOST`]) to look at.
#[must_use]
pub fn sizes(case: &str) -> &'static [usize] {
    match case {
        "vector and all-reduce" | "vector and ring" => &[1 << 8, 1 << 12, 1 << 16],
        "GEMM and reduce-scatter" => &[16, 32, 64],
        "mixture of experts" => &[16, 64],
        _ => &[64, 1024],
    }
}

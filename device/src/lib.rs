//! The device side of FerroCCL: what host and kernels agree on ([`abi`]), and the kernels themselves.
//!
//! The one source is compiled twice. For the host it is an ordinary crate, whose kernels are functions that a CPU
//! runtime calls. For `nvptx64-nvidia-cuda` the library's `build.rs` makes PTX of the same files. What differs
//! between the two machines is in [`gpu`]; nothing else here knows on which of them it runs.
//!
//! Each line uses those below it:
//!
//! ```text
//! kernels       one table: (collective, algorithm, protocol, op, type) -> PTX entry and CPU function
//! device_comm   what kernels of the user's communicate by: barriers, signals, the other ranks' memory
//! collectives   the algorithms, in verbs: ring, chain, tree, Bruck, one-shot, sends and receives
//! prims         the verbs (send, recv_reduce_send, ...) over a protocol: Simple, LL, LL128
//! copy          the loop that combines some sources into some destinations
//! reduce        operators over element types
//! element       the element types; args: what a kernel is called with
//! gpu           the machine as one lane sees it: nvptx.rs or cpu.rs
//! arith fp8     what an operator asks of a number; 8-bit floats in bits
//! abi orders    layouts that are shared with host and proxy; the memory orders of the kernels
//! ```
//!
//! **Inlining.** Two attributes stand together on many functions: `inline(always)` for PTX, `inline(never)` for the CPU. A
//! GPU's call would put arguments into local memory, and a kernel has its protocol's one loop; on the CPU the same
//! function serves many kernels, and a call is cheap against what it does. Rust has no attribute that says both, and a
//! macro around each function would hide them from tools.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(asm_experimental_arch, stdarch_nvptx, link_llvm_intrinsics, abi_unadjusted, f16)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

#[macro_use]
mod unroll;

#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)] // for `kernel_argument!`
pub use bytemuck;

pub mod abi;
pub mod args;
pub mod arith;
pub mod collectives;
pub mod copy;
pub mod device_comm;
pub mod element;
pub mod fp8;
pub mod gpu;
pub mod kernels;
pub mod orders;
mod peers;
pub mod prims;
pub mod reduce;

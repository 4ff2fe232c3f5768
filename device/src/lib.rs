//! The device side of FerroCCL: what host and kernels agree on ([`abi`]) and the kernels themselves.
//!
//! One source, compiled twice. On the host it is an ordinary crate whose kernels are functions that a
//! CPU runtime calls; for `nvptx64-nvidia-cuda` the library's `build.rs` turns the same files into PTX.
//! What differs between the two machines is behind [`gpu`], and nothing else here knows which one it is on.
//!
//! From the bottom up:
//!
//! ```text
//! kernels      one table: (collective, algorithm, protocol, op, type) -> PTX entry and CPU function
//! collectives  ring all-reduce, as five verbs that read like the algorithm
//! prims        the verbs (send, recv_reduce_send, ...) over a Protocol: Simple, LL, LL128
//! copy reduce  the n-source, m-destination reduce-copy loop; operators over element types (element, fp8)
//! abi          repr(C) vocabulary shared with host and proxy
//! gpu          the machine as one lane sees it: nvptx.rs or cpu.rs
//! ```
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_ptx,
        asm_experimental_arch,
        stdarch_nvptx,
        link_llvm_intrinsics,
        abi_unadjusted,
        f16
    )
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

pub mod abi;
pub mod collectives;
pub mod copy;
pub mod element;
pub mod fp8;
pub mod gpu;
pub mod kernels;
pub mod prims;
pub mod reduce;

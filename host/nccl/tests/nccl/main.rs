//! The library as programs made for NCCL see it: C programs, compiled with our header and, where it is to be had, with NVIDIA's,
//! run on CPU devices; and the two headers and lists of functions compared.
//!
//! NVIDIA's header is in `.toolchain/nccl` (`scripts/setup` fetches it), or where `FERROCCL_NCCL_HEADER` says.

mod interface;
mod programs;
#[path = "../../../../tests/support/skip.rs"]
mod skip;
mod support;

//! `kernels.rs` as a crate of PTX entries. Cargo does not know it: `build.rs` compiles it.
#![no_std]
#![feature(abi_ptx)]

mod kernels;

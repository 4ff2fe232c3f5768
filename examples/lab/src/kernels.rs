//! The kernels as a crate of PTX entries. Cargo does not know it: `build.rs` compiles it.
#![no_std]
#![feature(abi_ptx)]

mod halving;
mod ll64;
mod scan;
mod stamped;
mod table;

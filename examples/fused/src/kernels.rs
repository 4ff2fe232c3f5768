//! The kernels as a crate of PTX entries. Cargo does not know it: `build.rs` compiles it.
#![no_std]
#![feature(abi_ptx)]

mod experts;
mod halo;
mod ring;
mod tiles;
mod vector;

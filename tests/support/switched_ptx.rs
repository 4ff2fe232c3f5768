//! `switched.rs` as a crate of PTX entries. Cargo does not know it: `device_ptx.rs` compiles it.
#![no_std]
#![feature(abi_ptx)]

use ferroccl_device as device;

mod switched;

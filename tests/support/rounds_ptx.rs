//! `rounds.rs`, `groups.rs`, `packets.rs`, `pipes.rs` and `puts.rs` as a crate of PTX entries. Cargo does not know it: `device_ptx.rs` compiles it.
#![no_std]
#![feature(abi_ptx)]

use ferroccl_device as device;

mod groups;
mod packets;
mod pipes;
mod puts;
mod rounds;

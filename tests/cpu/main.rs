//! The CPU runtime: streams, blocks and workers; the seeded scheduler; protocols under its adversary.

use ferroccl::device;

mod adversity;
mod callers_memory;
mod device_comm;
mod device_packets;
mod device_puts;
mod differing;
mod direct;
mod finished;
mod mesh;
mod orders;
mod runtime;
mod seeded;
mod verify;

#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/packets.rs"]
mod packets;
#[path = "../support/packets_run.rs"]
mod packets_run;
#[path = "../support/puts.rs"]
mod puts;
#[path = "../support/puts_run.rs"]
mod puts_run;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/rounds.rs"]
mod rounds;
#[path = "../support/rounds_run.rs"]
mod rounds_run;

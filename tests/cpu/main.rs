//! The CPU runtime: streams, blocks and workers; the seeded scheduler; protocols under its adversary.

use ferroccl::device;

mod adversity;
mod callers_memory;
mod device_comm;
mod device_groups;
mod device_multimem;
mod device_packets;
mod device_prims;
mod device_puts;
mod differing;
mod direct;
mod finished;
mod linear;
mod mesh;
mod orders;
mod runtime;
mod seeded;
mod verify;

#[path = "../support/groups.rs"]
mod groups;
#[path = "../support/groups_run.rs"]
mod groups_run;
#[path = "../support/kernels.rs"]
mod kernels;
#[path = "../support/packets.rs"]
mod packets;
#[path = "../support/packets_run.rs"]
mod packets_run;
#[path = "../support/pipes.rs"]
mod pipes;
#[path = "../support/pipes_run.rs"]
mod pipes_run;
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
#[path = "../support/switched.rs"]
mod switched;
#[path = "../support/switched_run.rs"]
mod switched_run;
#[path = "../support/tier.rs"]
mod tier;

//! Kernels in the PTX emulator: the runtime, the conformance cases, and bugs that it must notice.

use ferroccl::device;

mod alignment;
mod bugs;
mod conformance;
mod device_comm;
mod device_groups;
mod device_multimem;
mod device_packets;
mod device_prims;
mod device_puts;
mod direct;
mod runtime;

#[path = "../support/device_ptx.rs"]
mod device_ptx;
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
#[path = "../support/reductions.rs"]
mod reductions;
#[path = "../support/rounds.rs"]
mod rounds;
#[path = "../support/rounds_run.rs"]
mod rounds_run;
#[path = "../support/skip.rs"]
mod skip;
#[path = "../support/switched.rs"]
mod switched;
#[path = "../support/switched_run.rs"]
mod switched_run;
#[path = "../support/team.rs"]
mod team;
#[path = "../support/tier.rs"]
mod tier;
#[path = "../support/values.rs"]
mod values;

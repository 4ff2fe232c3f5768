//! Ranks in processes of their own, on one host and on several: started by hand and by launchers, joined by shared memory,
//! sockets and RDMA. What a process does is a test of this program, which starts itself.

use ferroccl::device;

mod affinity;
mod channels;
mod chaos;
mod launchers;
mod namespaces;
mod processes;
mod pxn;
mod sockets;
#[cfg(feature = "verbs")]
mod verbs;
mod wire;

#[path = "../support/again.rs"]
mod again;
#[path = "../support/fake_driver.rs"]
mod fake_driver;
#[path = "../support/free_port.rs"]
mod free_port;
#[path = "../support/hosts/mod.rs"]
mod hosts;
#[path = "../support/members.rs"]
mod members;
#[path = "../support/pipes.rs"]
mod pipes;
#[path = "../support/puts.rs"]
mod puts;
#[path = "../support/random.rs"]
mod random;
#[cfg(feature = "verbs")]
#[path = "../support/rdma.rs"]
mod rdma;
#[path = "../support/seccomp.rs"]
mod seccomp;
#[path = "../support/skip.rs"]
mod skip;
#[path = "../support/tier.rs"]
mod tier;

/// A rank, when this process was started as one.
#[test]
fn member() {
    members::member();
}

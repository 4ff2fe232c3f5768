//! The targets of log lines: NCCL's subsystems.

macro_rules! subsystems {
    ($($name:ident = $target:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $name: &str = concat!("ferroccl::", $target);)*

        /// Name and target of each subsystem; its index is its bit in [`Subsystems`].
        pub(super) const SUBSYSTEMS: &[(&str, &str)] = &[$((stringify!($name), $name),)*];
    };
}

subsystems! {
    INIT = "init", "Target of set-up and tear-down of communicators.";
    COLL = "coll", "Target of collective calls.";
    P2P = "p2p", "Target of ranks that read each other's memory directly.";
    SHM = "shm", "Target of memory shared between processes.";
    NET = "net", "Target of network transports.";
    GRAPH = "graph", "Target of topology and channel search.";
    TUNING = "tuning", "Target of the choice of algorithm, protocol and channels.";
    ENV = "env", "Target of what the environment says.";
    ALLOC = "alloc", "Target of memory allocations.";
    PROXY = "proxy", "Target of the proxy thread.";
    BOOTSTRAP = "bootstrap", "Target of how ranks find each other.";
    REG = "reg", "Target of buffers that are registered.";
}

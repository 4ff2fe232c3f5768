//! What the user has to say, and how the crate logs.

use std::time::Duration;

use crate::id::CommId;
use crate::interface::{AddressFamily, InterfaceFilter};
use crate::secret::Secret;

/// Target of this crate's log lines: NCCL's subsystem BOOTSTRAP.
pub const LOG_TARGET: &str = "ferroccl::bootstrap";

/// What the user has to say about how ranks find each other.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where rank 0 waits for the others, instead of an id that is handed around (`NCCL_COMM_ID`).
    pub comm_id: Option<CommId>,
    /// What makes the id of [`Settings::comm_id`] one that others cannot make (`FERROCCL_SECRET`, `FERROCCL_SECRET_FILE`).
    pub secret: Option<Secret>,
    /// Network interfaces that may be used (`NCCL_SOCKET_IFNAME`).
    pub socket_ifname: Option<InterfaceFilter>,
    /// The only family of addresses that is used (`NCCL_SOCKET_FAMILY`).
    pub socket_family: Option<AddressFamily>,
    /// How long ranks may take to find each other, and to answer one message (`FERROCCL_BOOTSTRAP_TIMEOUT`).
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            comm_id: None,
            secret: None,
            socket_ifname: None,
            socket_family: None,
            timeout: Duration::from_secs(120),
        }
    }
}

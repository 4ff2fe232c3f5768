//! Transports: how the memory of an edge comes to be shared by two ranks.
//!
//! The receiver *offers*: it makes a [`Region`] and a handle. The handle travels through the bootstrap.
//! The sender *accepts*: it maps the same memory. What is in the region, and when, is not the
//! transport's business.
//!
//! | transport | reaches | region | direct |
//! |---|---|---|---|
//! | P2P | ranks of one process | anonymous memory | on devices of one address space |
//! | SHM | ranks of one host | a memfd, opened through /proc | no |

mod p2p;
mod region;
mod shm;

use std::fmt::Debug;
use std::os::fd::OwnedFd;

pub(crate) use p2p::process_token;
pub(crate) use region::Region;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What ranks tell each other before they connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerInfo {
    pub rank: u32,
    pub pid: u32,
    /// Random, one a process: equal only within it.
    pub process: u64,
    /// The device memory that its kernels reach; equal means the same within one process.
    pub space: u64,
    /// Equal on one host: boot id, or `NCCL_HOSTID`.
    pub host: String,
    /// The PID namespace: `/proc/PID` means the same only within one.
    pub pid_namespace: String,
}

/// Memory that a receiver has made. Kept until the sender has accepted the handle.
#[derive(Debug)]
pub(crate) struct Offer {
    pub region: Region,
    /// For [`Transport::accept`].
    pub handle: Vec<u8>,
    /// What the handle names, where it is a file: closed once it has been opened by the sender.
    _file: Option<OwnedFd>,
}

/// A way to share the memory of an edge.
pub(crate) trait Transport: Debug + Sync {
    /// Its name in logs, as NCCL's: `P2P`, `SHM`.
    fn name(&self) -> &'static str;

    /// Whether it connects these two; if not, why.
    fn reaches(&self, sender: &PeerInfo, receiver: &PeerInfo) -> Result<(), String>;

    /// Whether the sender can write into the receiver's user buffers.
    fn direct(&self, sender: &PeerInfo, receiver: &PeerInfo) -> bool;

    /// The receiver's part: `bytes` of zeroed memory.
    fn offer(&self, bytes: usize) -> Result<Offer>;

    /// The sender's part: the memory of a handle.
    fn accept(&self, handle: &[u8], bytes: usize) -> Result<Region>;
}

/// Which transports may be used (`NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    pub p2p: bool,
    pub shm: bool,
}

/// The first transport that connects `sender` to `receiver`; both ends choose the same.
///
/// # Errors
/// [`Error::Unavailable`] with each transport's reason when none does.
pub(crate) fn select(
    sender: &PeerInfo,
    receiver: &PeerInfo,
    allowed: Allowed,
) -> Result<&'static dyn Transport> {
    let candidates: [(&'static dyn Transport, bool, &str); 2] = [
        (&p2p::P2p, allowed.p2p, "NCCL_P2P_DISABLE"),
        (&shm::Shm, allowed.shm, "NCCL_SHM_DISABLE"),
    ];
    let mut reasons = Vec::new();
    for (transport, on, knob) in candidates {
        let verdict =
            if on { transport.reaches(sender, receiver) } else { Err(format!("off by {knob}")) };
        match verdict {
            Ok(()) => return Ok(transport),
            Err(reason) => reasons.push(format!("{}: {reason}", transport.name())),
        }
    }
    Err(Error::Unavailable {
        what: format!("a transport from rank {} to rank {}", sender.rank, receiver.rank),
        reason: reasons.join("; "),
    })
}

//! Transports: how the memory of an edge comes to be shared by two ranks.
//!
//! A rank makes one [`Inbox`] for all that it receives: each peer has a part of it, which only the two touch. Memory that
//! nobody touches costs nothing. The rank *offers* it, with a handle for each transport that its peers use; the handles
//! travel through the bootstrap. A sender *accepts*: it maps its part. What is in there, and when, is not the
//! transport's business. Where the sender's device reaches the receiver's memory, the connections are there ([`device`]),
//! and the inbox has only the edges' headers.
//!
//! | transport | reaches | inbox | direct |
//! |---|---|---|---|
//! | P2P | ranks of one process | any | on devices of one address space |
//! | SHM | ranks of one host | a memfd, opened through /proc | no |
//! | NET | all others | any; the sender has memory of its own, and proxies carry what is in it | no |

pub(crate) mod device;
mod net;
pub(crate) mod network;
mod p2p;
mod region;
mod shm;

use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};

pub(crate) use p2p::process_token;
pub(crate) use region::Region;
use serde::{Deserialize, Serialize};

use crate::runtime::DeviceInfo;
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
    /// Its device, where that has memory of its own.
    pub device: Option<DeviceInfo>,
    /// Equal on one host: boot id, or `NCCL_HOSTID`.
    pub host: String,
    /// The PID namespace: `/proc/PID` means the same only within one.
    pub pid_namespace: String,
}

/// The memory that a rank receives in. Kept open until all senders have accepted it.
#[derive(Debug)]
pub(crate) struct Inbox {
    region: Region,
    /// What the region is a mapping of, where other processes are to reach it.
    file: Option<OwnedFd>,
}

impl Inbox {
    /// `bytes` of zeroed memory, which other processes reach if it is `shared`.
    pub(crate) fn new(bytes: usize, shared: bool) -> Result<Self> {
        if !shared {
            return Ok(Inbox { region: Region::anonymous(bytes)?, file: None });
        }
        let file = shm::memory(bytes)?;
        let region = Region::of_file(file.as_fd(), 0, bytes)?;
        Ok(Inbox { region, file: Some(file) })
    }

    /// Part of it: `bytes` from `offset` on, which must be inside.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> Region {
        self.region.part(offset, bytes)
    }
}

/// A way to share the memory of an edge.
pub(crate) trait Transport: Debug + Sync {
    /// Its name in logs, as NCCL's: `P2P`, `SHM`.
    fn name(&self) -> &'static str;

    /// Whether it connects these two; if not, why.
    fn reaches(&self, sender: &PeerInfo, receiver: &PeerInfo) -> Result<(), String>;

    /// Whether the sender can write into the receiver's user buffers.
    fn direct(&self, sender: &PeerInfo, receiver: &PeerInfo) -> bool;

    /// Whether an inbox has to be shared between processes for it.
    fn shares(&self) -> bool;

    /// Whether the two share no memory, so that proxies carry what is in it.
    fn is_remote(&self) -> bool {
        false
    }

    /// The receiver's part: what a sender needs to find the inbox.
    fn offer(&self, inbox: &Inbox) -> Result<Vec<u8>>;

    /// The sender's part: its `bytes` from `offset` on of an inbox of `len` bytes.
    fn accept(&self, handle: &[u8], len: usize, offset: usize, bytes: usize) -> Result<Region>;
}

/// Which transports may be used (`NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE`, `NCCL_NET`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    pub p2p: bool,
    pub shm: bool,
    pub net: bool,
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
    let candidates: [(&'static dyn Transport, bool, &str); 3] = [
        (&p2p::P2p, allowed.p2p, "NCCL_P2P_DISABLE"),
        (&shm::Shm, allowed.shm, "NCCL_SHM_DISABLE"),
        (&net::Net, allowed.net, "NCCL_NET=none"),
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

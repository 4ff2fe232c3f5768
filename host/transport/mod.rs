//! Transports: how two ranks share the memory of an edge.
//!
//! A rank allocates one [`OfferedRegion`], with a part for each rank. Only the two ranks touch a sender's part, and memory that
//! nobody touches costs nothing. The rank *offers* the region: it makes a handle for each transport that its peers use. The
//! handles travel through the bootstrap. A sender *accepts*: it maps its part, and between CPU devices also the part of the rank itself,
//! in which that writes what it has for all. A transport does not know what the memory is
//! used for. If the sender's kernels reach the receiver's device memory, the connections are there ([`device`]), and the
//! region has only the edges' headers.
//!
//! | transport | reaches | receive region | direct |
//! |---|---|---|---|
//! | P2P | ranks of one process and one host | any | on devices of one address space |
//! | SHM | ranks of one host | a memfd, opened through /proc | no |
//! | NET | all others | any; the sender has memory of its own, and proxies move the data | no |

pub(crate) mod device;
pub(crate) mod exported;
pub(crate) mod kinds;
mod net;
mod p2p;
mod region;
pub(crate) mod select_net;
mod shm;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};

use ferroccl_topology::CpuSet;
pub(crate) use p2p::process_token;
pub(crate) use region::HostRegion;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::runtime::DeviceInfo;
use crate::shared_memory;

/// What a rank tells its peers of itself before they connect (NCCL's `ncclPeerInfo`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerInfo {
    pub rank: u32,
    pub pid: u32,
    /// A random number of the process: equal only within it.
    pub process: u64,
    /// The address space of its kernels. Equal numbers mean the same memory within one process.
    pub space: u64,
    /// Its device, if that has memory of its own.
    pub device: Option<DeviceInfo>,
    /// Equal on one host: boot id, or `NCCL_HOSTID`.
    pub host: String,
    /// The PID namespace: `/proc/PID` is the same process only within one.
    pub pid_namespace: String,
    /// The cores that its process may run on; empty where the system does not say.
    pub cores: CpuSet,
}

/// Memory that a rank offers to others, open until all of them have accepted it: what it receives in, and what it has others
/// send from.
#[derive(Debug)]
pub(crate) struct OfferedRegion {
    region: HostRegion,
    /// The file that is mapped, if other processes have to reach the memory.
    file: Option<OwnedFd>,
}

impl OfferedRegion {
    /// `bytes` of zeroed memory, which other processes can map if it is `shared`.
    pub(crate) fn new(bytes: usize, shared: bool) -> Result<Self> {
        if !shared {
            return Ok(OfferedRegion { region: HostRegion::anonymous(bytes)?, file: None });
        }
        let file = shared_memory::create(bytes)?;
        let region = HostRegion::of_file(file.as_fd(), 0, bytes)?;
        Ok(OfferedRegion { region, file: Some(file) })
    }

    /// The part of `bytes` bytes from `offset` on, which must be inside.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> HostRegion {
        self.region.part(offset, bytes)
    }
}

/// How two ranks share the memory of an edge.
pub(crate) trait Transport: Debug + Sync {
    /// Its name in logs, as NCCL's: `P2P`, `SHM`.
    fn name(&self) -> &'static str;

    /// Whether it connects these two. The error is the reason why not.
    fn reaches(&self, sender: &PeerInfo, receiver: &PeerInfo) -> Result<(), String>;

    /// Whether the sender's kernels can write into the receiver's user buffers.
    fn direct(&self, sender: &PeerInfo, receiver: &PeerInfo) -> bool;

    /// Whether the receive region has to be shared between processes.
    fn needs_shared_memory(&self) -> bool;

    /// Whether the two share no memory, so that proxies move the data.
    fn is_remote(&self) -> bool {
        false
    }

    /// The receiver's side: a handle by which senders find the region.
    fn offer(&self, recv_region: &OfferedRegion) -> Result<Vec<u8>>;

    /// The sender's side: maps its part, `bytes` from `offset` on, of a region of `len` bytes.
    fn accept(&self, handle: &[u8], len: usize, offset: usize, bytes: usize) -> Result<HostRegion>;
}

/// Pairs of ranks, the lower one first, whose devices are too far apart to write each other's memory.
pub(crate) type TooFar = BTreeMap<(u32, u32), FarPair>;

/// Two devices that are too far apart to write each other's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FarPair {
    /// Why, for people.
    pub why: String,
    /// Not by `NCCL_P2P_LEVEL`, but because the network is faster, which counts for the host's memory, too.
    pub net_is_faster: bool,
}

/// Which transports may be used (`NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE`, `NCCL_NET`), and between whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllowedTransports<'a> {
    pub p2p: bool,
    pub shm: bool,
    pub net: bool,
    /// `None` as long as the topology has not been looked at.
    pub too_far: Option<&'a TooFar>,
}

impl AllowedTransports<'_> {
    /// Whether two ranks may write each other's memory. The error is the reason why not.
    pub(crate) fn p2p(&self, one: &PeerInfo, other: &PeerInfo) -> Result<(), String> {
        if !self.p2p {
            return Err("off by NCCL_P2P_DISABLE".to_owned());
        }
        match self.far_pair(one, other) {
            Some(pair) => Err(pair.why.clone()),
            None => Ok(()),
        }
    }

    /// Whether two ranks may share the host's memory. The error is the reason why not.
    pub(crate) fn shm(&self, one: &PeerInfo, other: &PeerInfo) -> Result<(), String> {
        match self.far_pair(one, other) {
            _ if !self.shm => Err("off by NCCL_SHM_DISABLE".to_owned()),
            Some(pair) if pair.net_is_faster => Err(pair.why.clone()),
            _ => Ok(()),
        }
    }

    fn far_pair(&self, one: &PeerInfo, other: &PeerInfo) -> Option<&FarPair> {
        let pair = (one.rank.min(other.rank), one.rank.max(other.rank));
        self.too_far.and_then(|pairs| pairs.get(&pair))
    }
}

/// The first transport that connects `sender` with `receiver`. Both ends choose the same.
///
/// # Errors
/// [`Error::Unavailable`] with each transport's reason when none does.
pub(crate) fn select(
    sender: &PeerInfo,
    receiver: &PeerInfo,
    allowed: AllowedTransports<'_>,
) -> Result<&'static dyn Transport> {
    let net = if allowed.net { Ok(()) } else { Err("off by NCCL_NET=none".to_owned()) };
    let candidates: [(&'static dyn Transport, Result<(), String>); 3] = [
        (&p2p::P2pTransport, allowed.p2p(sender, receiver)),
        (&shm::ShmTransport, allowed.shm(sender, receiver)),
        (&net::NetTransport, net),
    ];
    let mut reasons = Vec::new();
    for (transport, allowed) in candidates {
        match allowed.and_then(|()| transport.reaches(sender, receiver)) {
            Ok(()) => return Ok(transport),
            Err(reason) => reasons.push(format!("{}: {reason}", transport.name())),
        }
    }
    Err(Error::Unavailable {
        what: format!("a transport from rank {} to rank {}", sender.rank, receiver.rank),
        reason: reasons.join("; "),
    })
}

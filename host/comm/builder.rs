//! What a rank knows while its communicator is made.

use std::sync::Arc;
use std::time::Duration;

use ferroccl_proxy::net::Net;

use super::CommConfig;
use super::control::RankOrder;
use super::device_memory::MemoryCount;
use super::fusion;
use super::graphs::CommGraphs;
use super::init_params::{GroupToken, TuningParams};
use crate::buffer::Device;
use crate::channel::ConnLayout;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::transport::{self, AllowedTransports, PeerInfo, TooFar, select_net};
use ferroccl_topology::CpuSet;

/// What a rank knows before its communicator is made.
pub(super) struct CommBuilder<'a> {
    pub device: &'a Device,
    /// Counts what is allocated on it.
    pub memory: &'a MemoryCount,
    pub config: &'a CommConfig,
    pub env: &'a Config,
    pub tuning: TuningParams,
    pub token: GroupToken,
    pub rank: u32,
    pub nranks: u32,
    pub layout: ConnLayout,
    pub channels: u32,
    pub all_channels: bool,
    pub blocks: BlockLimits,
    /// The searched graphs of all hosts, where they are known.
    pub graphs: Option<&'a Arc<CommGraphs>>,
    /// The ranks whose GPUs are too far apart for P2P.
    pub too_far: &'a TooFar,
    /// The cores near the rank's GPU, as far as it may use them.
    pub cores: &'a CpuSet,
    /// The rings, which the channels take in turn.
    pub rings: &'a [RankOrder],
    /// The network, if there are ranks that are reached by none of the other transports.
    pub net: Option<&'a Arc<dyn Net>>,
}

/// The most blocks of a rank's launches. A collective and messages may run at the same time, and all blocks of both must be
/// resident.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockLimits {
    pub collectives: u32,
    pub p2p: u32,
}

impl BlockLimits {
    /// Divides the blocks that are resident at a time. Messages get fewer, because a block takes turns between several.
    pub(super) fn of(resident: u32) -> Self {
        let p2p = (resident / 4).clamp(1, 16);
        BlockLimits { collectives: resident.saturating_sub(p2p).max(1), p2p }
    }
}

/// What ranks say of themselves makes sense together.
///
/// # Errors
/// [`Error::Malformed`] when a rank says that it is another one.
pub(super) fn check_peers(peers: &[PeerInfo]) -> Result<()> {
    match (0..).zip(peers).find(|(rank, peer)| peer.rank != *rank) {
        Some((rank, peer)) => {
            Err(Error::malformed(format!("rank {rank} says that it is {}", peer.rank)))
        }
        None => Ok(()),
    }
}

/// How many ranks share the device of `rank`, itself among them; 1 for devices without memory of their own.
pub(super) fn ranks_on_device(peers: &[PeerInfo], rank: u32) -> u32 {
    let me = &peers[rank as usize];
    let same = |peer: &&PeerInfo| match (&peer.device, &me.device) {
        (Some(theirs), Some(mine)) => peer.host == me.host && theirs.id == mine.id,
        _ => peer.rank == rank,
    };
    peers.iter().filter(same).count() as u32
}

/// The network, if one of the peers of `rank` is reached by nothing else. Its cards are merged as the settings say.
///
/// # Errors
/// [`Error::Unavailable`] when no transport reaches a peer; the errors of the network.
pub(super) fn open_net(
    rank: u32,
    peers: &[PeerInfo],
    (config, env): (&CommConfig, &Config),
    too_far: Option<&TooFar>,
    secret: [u8; 32],
) -> Result<Option<Arc<dyn Net>>> {
    let (me, allowed) = (&peers[rank as usize], allowed(config, env, too_far));
    let mut remote = false;
    for peer in peers.iter().filter(|peer| peer.rank != rank) {
        remote |= transport::select(peer, me, allowed)?.is_remote();
        remote |= transport::select(me, peer, allowed)?.is_remote();
    }
    let limit = config.timeout.filter(|t| !t.is_zero()).unwrap_or(Duration::MAX);
    let net = match (&config.net, remote) {
        (_, false) => return Ok(None),
        (Some(net), true) => Arc::clone(net),
        (None, true) => select_net::open(env, secret, limit)?,
    };
    let played = env.topo_ranks.is_some() && peers.iter().all(|peer| peer.device.is_none());
    fusion::fuse(&*net, played, env)?;
    Ok(Some(net))
}

/// The transports that the settings allow, and the topology, where that is known.
pub(super) fn allowed<'a>(
    config: &CommConfig,
    env: &Config,
    too_far: Option<&'a TooFar>,
) -> AllowedTransports<'a> {
    let net = !env.has_no_net();
    let (p2p, shm) = (config.p2p.unwrap_or(true), config.shm.unwrap_or(true));
    AllowedTransports { p2p, shm, net, too_far }
}

impl CommBuilder<'_> {
    /// The transports that may be used.
    pub(super) fn allowed(&self) -> AllowedTransports<'_> {
        allowed(self.config, self.env, Some(self.too_far))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of senders in a receiver's device memory follow from their ranks.
    #[test]
    fn no_rank_is_taken_for_another() {
        let peer = |rank| PeerInfo {
            rank,
            pid: 1,
            process: 1,
            space: 1,
            device: None,
            host: "a host".to_owned(),
            pid_namespace: String::new(),
            cores: CpuSet::default(),
        };
        assert!(check_peers(&[peer(0), peer(1)]).is_ok());
        let error = check_peers(&[peer(0), peer(7)]).unwrap_err().to_string();
        assert!(error.ends_with("rank 1 says that it is 7"), "{error}");
    }
}

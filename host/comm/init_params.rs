//! The parameters that ranks compare before they connect.

use ferroccl_device::abi::ProtocolId;
use serde::{Deserialize, Serialize};

use super::CommConfig;
use crate::channel::ConnLayout;
use crate::config::{Config, Setting as _};
use crate::error::{Error, Result};
use ferroccl_bootstrap::{Bootstrap, BootstrapError};
use ferroccl_topology::graph::tuning::Algorithm;
use ferroccl_topology::graph::tuning::Selection;

/// A rank's parameters. Those that must not differ are equal on all ranks; of channels and blocks all ranks take the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InitParams {
    pub layout: ConnLayout,
    pub channels: u32,
    /// Blocks of a rank that its device runs at the same time.
    pub blocks: u32,
    pub all_channels: bool,
    pub tuning: TuningParams,
    pub collnet: bool,
    /// A number for the group; rank 0's is used.
    pub group: u64,
    /// The budget of a kernel's wait in nanoseconds; 0 is no limit.
    pub timeout_ns: u64,
}

/// Identifies the group, and proves that a peer is of it. It is never sent: only the group's ranks know or derive the secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupToken {
    /// The number of the group.
    pub group: u64,
    /// The key of the ranks' proofs.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for GroupToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GroupToken({:x})", self.group) // a secret does not belong in a log
    }
}

impl GroupToken {
    /// A random token.
    pub(super) fn new() -> Result<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(no_random)?;
        Ok(GroupToken { group: random_number()?, secret })
    }

    /// The token of the ranks of `bootstrap`.
    pub(super) fn of(bootstrap: &Bootstrap, group: u64) -> Self {
        GroupToken { group, secret: bootstrap.secret("networks") }
    }
}

/// A random number for a group.
pub(super) fn random_number() -> Result<u64> {
    getrandom::u64().map_err(no_random)
}

fn no_random(error: getrandom::Error) -> Error {
    Error::system("cannot get random bytes", std::io::Error::other(error.to_string()))
}

/// The settings that restrict the choice of algorithms and protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TuningParams {
    pub protocols: Selection<ProtocolId>,
    pub algorithms: Selection<Algorithm>,
    pub deterministic: bool,
    pub algorithm: Option<u8>,
    pub ranks_per_node: Option<u32>,
}

impl TuningParams {
    /// From the communicator's settings, and where they are silent from the environment.
    pub(super) fn new(config: &CommConfig, env: &Config) -> Self {
        TuningParams {
            protocols: config.protocols(env),
            algorithms: env.algo,
            deterministic: config.deterministic.unwrap_or(env.deterministic),
            algorithm: config.algorithm.map(|algorithm| algorithm as u8),
            ranks_per_node: config.ranks_per_node,
        }
    }
}

/// The group's channels, and the most blocks of a call: the least of all ranks.
///
/// # Errors
/// [`BootstrapError::Mismatch`] when other parameters differ.
pub(super) fn agree(rank: u32, mine: &InitParams, params: &[InitParams]) -> Result<(u32, u32)> {
    for (peer, theirs) in params.iter().enumerate() {
        let differs = |what: &str, ours: String, theirs: String| {
            let text = format!(
                "{what} of rank {rank} is {ours}, of rank {peer} {theirs}: all ranks need the same"
            );
            Err(BootstrapError::Mismatch(text).into())
        };
        if theirs.layout.slots != mine.layout.slots {
            return differs(
                "slots (FERROCCL_SLOTS)",
                mine.layout.slots.to_string(),
                theirs.layout.slots.to_string(),
            );
        }
        if theirs.layout != mine.layout {
            let show = |t: &InitParams| format!("{:?}", t.layout.slot_bytes);
            let what = "slot bytes for LL, LL128 and Simple (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE)";
            return differs(what, show(mine), show(theirs));
        }
        for (what, show) in [
            ("NCCL_PROTO", (|t| t.tuning.protocols.to_string()) as fn(&InitParams) -> String),
            ("NCCL_ALGO", |t| t.tuning.algorithms.to_string()),
            ("FERROCCL_DETERMINISTIC", |t| t.tuning.deterministic.show()),
            ("the algorithm", |t| format!("{:?}", t.tuning.algorithm)),
            ("FERROCCL_RANKS_PER_NODE", |t| format!("{:?}", t.tuning.ranks_per_node)),
        ] {
            if show(mine) != show(theirs) {
                return differs(what, show(mine), show(theirs));
            }
        }
        if theirs.collnet != mine.collnet {
            let what = "whether there may be a network that reduces (NCCL_COLLNET_ENABLE)";
            return differs(what, mine.collnet.to_string(), theirs.collnet.to_string());
        }
        if theirs.all_channels != mine.all_channels
            || (mine.all_channels && theirs.channels != mine.channels)
        {
            return differs("channels", mine.channels.to_string(), theirs.channels.to_string());
        }
    }
    let least = |of: fn(&InitParams) -> u32| params.iter().map(of).min().unwrap_or(1);
    Ok((least(|params| params.channels), least(|params| params.blocks)))
}

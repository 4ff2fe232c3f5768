//! What ranks must agree on before they are a group.

use ferroccl_device::abi::ProtocolId;
use serde::{Deserialize, Serialize};

use super::CommConfig;
use crate::bootstrap::BootstrapError;
use crate::channel::ConnLayout;
use crate::config::{Config, Selection, Setting as _};
use crate::graph::tuning::Algorithm;
use crate::{Error, Result};

/// What ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    pub layout: ConnLayout,
    pub channels: u32,
    /// Blocks of a rank that its device runs at the same time.
    pub blocks: u32,
    pub all_channels: bool,
    pub settings: Asked,
    pub collnet: bool,
    pub token: Token,
    /// How long a kernel waits, in nanoseconds; 0 is for ever.
    pub timeout_ns: u64,
}

/// What the ranks of a group know and nobody else: rank 0's counts.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    /// Which group it is.
    pub group: u64,
    /// Proves that one is of it.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token({:x})", self.group) // a secret does not belong in a log
    }
}

impl Token {
    /// A random one.
    pub(super) fn new() -> Result<Self> {
        let random = |e: getrandom::Error| {
            Error::system("cannot get random bytes", std::io::Error::other(e.to_string()))
        };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(random)?;
        Ok(Token { group: getrandom::u64().map_err(random)?, secret })
    }
}

/// What the user asks of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub protocols: Selection<ProtocolId>,
    pub algorithms: Selection<Algorithm>,
    pub deterministic: bool,
    pub algorithm: Option<u8>,
    pub ranks_per_node: Option<u32>,
}

pub(super) fn settings(config: &CommConfig, env: &Config) -> Asked {
    Asked {
        protocols: config.protocols(env),
        algorithms: env.algo,
        deterministic: config.deterministic.unwrap_or(env.deterministic),
        algorithm: config.algorithm.map(|algorithm| algorithm as u8),
        ranks_per_node: config.ranks_per_node,
    }
}

/// The channels of a group, and the blocks of a call at most: as many as every rank has. All else must be equal.
pub(super) fn agree(rank: u32, mine: &Terms, terms: &[Terms]) -> Result<(u32, u32)> {
    for (peer, theirs) in terms.iter().enumerate() {
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
            let show = |t: &Terms| format!("{:?}", t.layout.slot_bytes);
            let what = "slot bytes for LL, LL128 and Simple (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE)";
            return differs(what, show(mine), show(theirs));
        }
        for (what, show) in [
            ("NCCL_PROTO", (|t| t.settings.protocols.show()) as fn(&Terms) -> String),
            ("NCCL_ALGO", |t| t.settings.algorithms.show()),
            ("FERROCCL_DETERMINISTIC", |t| t.settings.deterministic.show()),
            ("the algorithm", |t| format!("{:?}", t.settings.algorithm)),
            ("FERROCCL_RANKS_PER_NODE", |t| format!("{:?}", t.settings.ranks_per_node)),
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
    let least = |of: fn(&Terms) -> u32| terms.iter().map(of).min().unwrap_or(1);
    Ok((least(|terms| terms.channels), least(|terms| terms.blocks)))
}

//! What the user has to say about the choice.

use super::{Algorithm, Collective, MAX_CHANNELS, in_rank_order};
use crate::config::{Config, Selection};
use crate::device::abi::ProtocolId;

/// What may be chosen. [`Settings::default`] leaves everything to the model.
///
/// ```
/// use ferroccl::config::Config;
/// use ferroccl::graph::tuning::{Algorithm, Collective, Settings};
///
/// let config = Config::from_lookup(|name| (name == "NCCL_ALGO").then(|| "^Ring".to_owned()))?;
/// let settings = Settings::from_config(&config);
/// assert!(settings.allows(Collective::AllReduce, Algorithm::Tree));
/// assert!(!settings.allows(Collective::AllReduce, Algorithm::Ring));
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `NCCL_ALGO`: the algorithms that may be chosen.
    pub algorithms: Selection<Algorithm>,
    /// `NCCL_PROTO`: the protocols that may be chosen. Where there is no list, LL128 is where it is safe. A list that
    /// has LL128 has it whether it is safe or not, as with NCCL.
    pub protocols: Selection<ProtocolId>,
    /// `FERROCCL_DETERMINISTIC`: whether values must be combined in the order of the ranks (see [`in_rank_order`]).
    pub deterministic: bool,
    /// `NCCL_NTHREADS`: threads of a block that runs LL or Simple.
    pub threads: Option<u32>,
    /// `NCCL_LL128_NTHREADS`: threads of a block that runs LL128.
    pub ll128_threads: Option<u32>,
    /// `NCCL_LL_BUFFSIZE`, `NCCL_LL128_BUFFSIZE`, `NCCL_BUFFSIZE`: bytes of a channel's buffer, by protocol.
    pub buffers: [Option<u64>; 3],
    /// `NCCL_MIN_NCHANNELS`: the fewest channels there are.
    pub min_channels: Option<u32>,
    /// `NCCL_MAX_NCHANNELS`: the most channels there are.
    pub max_channels: Option<u32>,
}

impl Settings {
    /// What the environment says.
    #[must_use]
    pub fn from_config(config: &Config) -> Self {
        let bytes = [config.ll_buffsize, config.ll128_buffsize, config.buffsize];
        Settings {
            algorithms: config.algo,
            protocols: config.proto,
            deterministic: config.deterministic,
            threads: config.nthreads,
            ll128_threads: config.ll128_nthreads,
            buffers: bytes.map(|size| size.map(|size| size.0 as u64)),
            min_channels: config.min_nchannels,
            max_channels: config.max_nchannels,
        }
    }

    /// Whether an algorithm may be chosen, as far as the user is concerned. There is one way to send and receive:
    /// no list is about it.
    #[must_use]
    pub fn allows(&self, collective: Collective, algorithm: Algorithm) -> bool {
        collective == Collective::SendRecv || self.algorithms.allows(collective, algorithm)
    }

    /// Whether a protocol may be chosen, as far as the user is concerned.
    #[must_use]
    pub fn allows_protocol(&self, collective: Collective, protocol: ProtocolId) -> bool {
        self.protocols.allows(collective, protocol)
    }

    /// Whether an algorithm combines values in an order that will do.
    #[must_use]
    pub fn allows_order(&self, collective: Collective, algorithm: Algorithm) -> bool {
        !self.deterministic || in_rank_order(collective, algorithm)
    }

    /// Channels that there are, of those that were found.
    pub(super) fn channels(&self, found: u32) -> u32 {
        let most = self.max_channels.unwrap_or(MAX_CHANNELS).clamp(1, MAX_CHANNELS);
        found.max(self.min_channels.unwrap_or(1)).min(most)
    }
}

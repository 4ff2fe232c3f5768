//! What the user has to say about the choice.

use super::{Algorithm, MAX_CHANNELS};
use crate::config::Config;
use crate::device::abi::ProtocolId;

/// What may be chosen. [`Settings::default`] leaves everything to the model.
///
/// ```
/// use ferroccl::config::Config;
/// use ferroccl::graph::tuning::{Algorithm, Settings};
///
/// let config = Config::from_lookup(|name| (name == "NCCL_ALGO").then(|| "^Ring".to_owned()))?;
/// let settings = Settings::from_config(&config);
/// assert!(settings.allows(Algorithm::Tree) && !settings.allows(Algorithm::Ring));
/// # Ok::<(), ferroccl::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `NCCL_ALGO`: the algorithms that may be chosen; `None` is all.
    pub algorithms: Option<Vec<Algorithm>>,
    /// `NCCL_PROTO`: the protocols that may be chosen; `None` is all, LL128 where it is safe. A list that has LL128
    /// has it whether it is safe or not, as with NCCL.
    pub protocols: Option<Vec<ProtocolId>>,
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
            algorithms: config.is_set("NCCL_ALGO").then(|| config.algo.iter().collect()),
            protocols: config.is_set("NCCL_PROTO").then(|| config.proto.iter().collect()),
            threads: config.nthreads,
            ll128_threads: config.ll128_nthreads,
            buffers: bytes.map(|size| size.map(|size| size.0 as u64)),
            min_channels: config.min_nchannels,
            max_channels: config.max_nchannels,
        }
    }

    /// Whether an algorithm may be chosen.
    #[must_use]
    pub fn allows(&self, algorithm: Algorithm) -> bool {
        self.algorithms.as_ref().is_none_or(|allowed| allowed.contains(&algorithm))
    }

    /// Whether a protocol may be chosen, as far as the user is concerned.
    #[must_use]
    pub fn allows_protocol(&self, protocol: ProtocolId) -> bool {
        self.protocols.as_ref().is_none_or(|allowed| allowed.contains(&protocol))
    }

    /// Channels that there are, of those that were found.
    pub(super) fn channels(&self, found: u32) -> u32 {
        let most = self.max_channels.unwrap_or(MAX_CHANNELS).clamp(1, MAX_CHANNELS);
        found.max(self.min_channels.unwrap_or(1)).min(most)
    }
}

//! What the user has to say about the choice.

use std::sync::Arc;

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use super::{FittedCosts, MAX_CHANNELS, OwnKernels, Selection};

/// What may be chosen. [`Settings::default`] leaves everything to the model.
///
/// ```
/// use ferroccl_topology::graph::tuning::{Algorithm, Collective, Selection, Settings};
///
/// let settings = Settings { algorithms: Selection::parse("^Ring", &[])?, ..Settings::default() };
/// assert!(settings.allows(Collective::AllReduce, Algorithm::Tree));
/// assert!(!settings.allows(Collective::AllReduce, Algorithm::Ring));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `NCCL_ALGO`: the algorithms that may be chosen.
    pub algorithms: Selection<Algorithm>,
    /// `NCCL_PROTO`: the protocols that may be chosen. Where there is no list, LL128 is where it is safe. A list that
    /// has LL128 has it whether it is safe or not, as with NCCL.
    pub protocols: Selection<ProtocolId>,
    /// `FERROCCL_DETERMINISTIC`: whether values must be combined in the order of the ranks (see [`in_rank_order`]).
    pub deterministic: bool,
    /// Whether calls have their buffers in windows, so that kernels may work on all ranks' directly.
    pub windows: bool,
    /// `NCCL_NVLS_ENABLE=0`: windows get no multicast object.
    pub no_multicast: bool,
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
    /// The kernels of other crates.
    pub own: OwnKernels,
    /// `FERROCCL_TUNER_FILE`: times that count in place of the model's.
    pub fitted: Option<Arc<FittedCosts>>,
    /// `NCCL_LL128_C2C=0`: LL128 is not safe on the way to a network card by P2C or PXN.
    pub no_ll128_c2c: bool,
}

impl Settings {
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

/// Whether an algorithm combines the ranks' values in their order, from rank 0 on: what the deterministic mode takes,
/// as its result does not depend on the size or the number of channels. What only moves bytes, or only waits, has no
/// order.
///
/// For sums of integers, and for what else is exact in any order, a caller need not ask.
///
/// ```
/// use ferroccl_topology::graph::tuning::{Algorithm, Collective, in_rank_order};
///
/// assert!(in_rank_order(Collective::AllReduce, Algorithm::Chain));
/// assert!(!in_rank_order(Collective::AllReduce, Algorithm::Ring)); // each part begins at another rank
/// assert!(in_rank_order(Collective::AllGather, Algorithm::Ring));
/// ```
#[must_use]
pub fn in_rank_order(collective: Collective, algorithm: Algorithm) -> bool {
    match collective {
        Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce => {
            use Algorithm::{Chain, Direct, OneShot, TwoShot};
            matches!(algorithm, Chain | OneShot | TwoShot | Direct)
        }
        Collective::AllGather
        | Collective::Broadcast
        | Collective::SendRecv
        | Collective::AllToAll
        | Collective::Barrier => true,
    }
}

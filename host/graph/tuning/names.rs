//! What is chosen among: NCCL's collectives and algorithms, whether or not a kernel exists for each.
//!
//! The enums of `device::abi` are a wire format with kernels behind each value; the model also reasons about what
//! has no kernel yet.

use crate::device::names;

names! {
    /// What a call does.
    pub enum Collective ("collective") {
        /// Every rank gets the reduction of all ranks' buffers.
        AllReduce = "all_reduce",
        /// Every rank gets all ranks' buffers.
        AllGather = "all_gather",
        /// Every rank gets its part of the reduction of all ranks' buffers.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the reduction of all ranks' buffers.
        Reduce = "reduce",
    }
}

impl Collective {
    /// How much more (or less) than a call's bytes each link must carry: `busbw` is `algbw` times this.
    /// Source: the performance page of nccl-tests.
    ///
    /// ```
    /// use ferroccl::graph::tuning::Collective;
    ///
    /// assert_eq!(Collective::AllReduce.bus_factor(8), 1.75);
    /// assert_eq!(Collective::Broadcast.bus_factor(8), 1.0);
    /// ```
    #[must_use]
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks.max(1));
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter => (n - 1.0) / n,
            Collective::Broadcast | Collective::Reduce => 1.0,
        }
    }

    /// Steps of a ring of `ranks`.
    pub(super) fn ring_steps(self, ranks: f64) -> f64 {
        match self {
            Collective::AllReduce => 2.0 * (ranks - 1.0),
            Collective::AllGather | Collective::ReduceScatter => ranks - 1.0,
            Collective::Broadcast | Collective::Reduce => ranks,
        }
    }
}

names! {
    /// How a collective goes about it (`NCCL_ALGO`).
    ///
    /// NCCL's others (`NVLS`, `NVLSTree`, `PAT`) are not modelled: nothing here could run them.
    pub enum Algorithm ("algorithm") {
        /// Up a tree of nodes and down again; chains within the nodes.
        Tree = "Tree",
        /// Around a ring of all ranks.
        Ring = "Ring",
        /// Within a node every GPU to every other, between nodes a network that reduces.
        CollnetDirect = "CollnetDirect",
        /// Within a node along a chain, between nodes a network that reduces.
        CollnetChain = "CollnetChain",
    }
}

//! NCCL's figures, as data: what its engineers have measured on their machines.
//!
//! Source of all: NCCL 2.30.7, `src/graph/tuning.cc` (`ncclTunerConstantsDefaults`, `treeCorrectionFactor`,
//! `ncclTopoTuneModel`, `ncclTopoGetAlgoTime`), `src/enqueue.cc` (`topoGetAlgoInfo`) and `src/include/{comm,device}.h`.
//! Latencies are microseconds, bandwidths 10^9 bytes a second. The inner dimension of a table by protocol is LL,
//! LL128, Simple; of one by algorithm, the order of [`Algorithm`](super::Algorithm).

/// What a call costs before its first step, by algorithm and protocol (`baseLatencies`).
pub(super) const BASE: [[f64; 3]; 4] = [
    [6.8, 14.0, 8.4], // Tree
    [6.6, 14.0, 8.4], // Ring
    [0.0, 0.0, 0.0],  // CollnetDirect
    [0.0, 0.0, 0.0],  // CollnetChain
];

/// What a step goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hardware {
    /// `NVLink`.
    NvLink = 0,
    /// PCI, or anything else within a node.
    Pci = 1,
    /// The network.
    Net = 2,
}

/// What a step costs, by [`Hardware`], algorithm and protocol (`hwLatencies`). The collnets know only Simple.
pub(super) const STEP: [[[f64; 3]; 4]; 3] = [
    [[0.6, 1.25, 4.0], [0.6, 1.9, 3.4], [0.0, 0.0, 3.7], [0.0, 0.0, 2.8]],
    [[1.0, 1.9, 4.0], [1.0, 2.5, 5.7], [0.0, 0.0, 3.7], [0.0, 0.0, 2.8]],
    [[5.0, 8.5, 14.0], [2.7, 4.0, 14.0], [0.0, 0.0, 31.0], [0.0, 0.0, 30.0]],
];

/// What a call of PAT costs before its first step, with Simple, its only protocol; and a step by [`Hardware`]. PAT is
/// NCCL's algorithm of few rounds, the nearest to ours.
pub(super) const PAT_BASE: f64 = 8.0;
/// See [`PAT_BASE`].
pub(super) const PAT_STEP: [f64; 3] = [4.0, 4.0, 14.0];
/// PAT's share of what its channels have.
pub(super) const PAT: f64 = 0.75;

/// What each rank adds to a call of PAT, and the part of a step over the network that a round of it costs.
pub(super) const PAT_RANK: f64 = 2.8;
/// See [`PAT_RANK`].
pub(super) const PAT_ROUND: f64 = 3.5;

/// What NVLS costs within a host, with Simple, its only protocol; and a step of its tree over the network.
pub(super) const NVLS_STEP: f64 = 25.0;
/// See [`NVLS_STEP`].
pub(super) const NVLS_TREE_NET: f64 = 20.9;
/// What NVLS costs between hosts.
const NVLS_NET: f64 = 18.0;
/// The share of a head's link that NVLS reaches, by [`generation`] (`nvlsEfficiency`).
pub(super) const NVLS: [f64; 4] = [0.0, 0.0, 0.85, 0.74];
/// What a channel of its tree reaches at most (`perChMaxNVLSTreeBws`).
pub(super) const NVLS_TREE_MAX: [[f64; 3]; 4] =
    [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]];

/// A row of the tables by generation of GPU.
#[must_use]
pub(super) fn generation(sm: u32) -> usize {
    match sm {
        100.. => 3, // Blackwell
        90.. => 2,  // Hopper
        80.. => 1,  // Ampere
        _ => 0,     // Volta and before
    }
}

/// A column of these tables: 1 node, 2 nodes, more (measured with 4).
#[must_use]
pub(super) fn scale(nodes: u32) -> usize {
    nodes.clamp(1, 3) as usize - 1
}

/// What LL reaches at most, all channels together (`llMaxBws`). On one node the row is the GPUs' generation;
/// on more it is the maker of the CPUs, see [`LL_MAX_AMD`] and [`LL_MAX_OTHERS`].
pub(super) const LL_MAX: [[f64; 3]; 4] =
    [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]];
/// The row of [`LL_MAX`] for several nodes with AMD's CPUs.
pub(super) const LL_MAX_AMD: usize = 1;
/// The same with any other CPUs.
pub(super) const LL_MAX_OTHERS: usize = 0;

/// What a channel of a ring reaches at most with LL128 (`perChMaxRingLL128Bws`).
pub(super) const RING_LL128_MAX: [[f64; 3]; 4] =
    [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0], [36.7, 36.7, 36.7], [40.0, 40.0, 40.0]];

/// What a channel of a tree reaches at most with LL128 (`perChMaxTreeLL128Bws`).
pub(super) const TREE_LL128_MAX: [[f64; 3]; 4] =
    [[20.0, 20.0, 20.0], [20.0, 20.0, 20.0], [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]];

/// What a channel of a tree reaches at most (`perChMaxTreeBws`).
pub(super) const TREE_MAX: [[f64; 3]; 4] =
    [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]];

/// What is left of a tree's bandwidth for calls of 64, 128, 256, ... bytes, by protocol: between latency and
/// bandwidth a pipeline up and down a tree is never full (`treeCorrectionFactor`). 1 beyond the end.
///
/// NCCL's table has a 24th entry that it does not read; it is 1.
#[rustfmt::skip]
pub(super) const TREE_CORRECTION: [[f64; 23]; 3] = [
    [1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0],
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0],
    [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9],
];

/// The share of the links' bandwidth that recursive doubling has: its rounds come one after the other for each chunk, which goes as a
/// whole. Simulated, not measured: LL128 on two DGX A100, 6 GB/s (`algbw`) of the 22 that the ports would carry.
pub(super) const DOUBLING: f64 = 0.28;
/// LL's share of a ring's bandwidth: every second word is a flag.
pub(super) const RING_LL: f64 = 0.5;
/// LL128's share of a ring's bandwidth: 120 of 128 bytes, and a little lost.
pub(super) const RING_LL128: f64 = 0.92;
/// A tree's share of what its channels have.
pub(super) const TREE: f64 = 0.92;
/// LL's share of a tree's bandwidth.
pub(super) const TREE_LL: f64 = 1.0 / 3.8;
/// LL128's share of a tree's bandwidth on one node, and on several.
pub(super) const TREE_LL128: [f64; 2] = [7.0 / 9.0, 120.0 / 128.0];
/// What is left when one GPU of a node has all of the tree's network traffic.
pub(super) const ONE_GPU_TREE: f64 = 0.85;
/// What is left of a direct collnet from sm_90 on.
pub(super) const COLLNET_DIRECT_HOPPER: f64 = 0.85;
/// What each further GPU of a node adds to a direct collnet, twice.
pub(super) const COLLNET_DIRECT_PEER: f64 = 0.4;
/// GPUs of a node at most, for a direct collnet (`NCCL_MAX_DIRECT_ARITY` + 1).
pub(super) const COLLNET_DIRECT_GPUS: u32 = 8;

/// From so many bytes a channel and rank on, a ring over several nodes with Simple takes longer for its steps: by
/// [`PLATEAU_VOLTA`] before sm_80, by [`PLATEAU`] since.
pub(super) const PLATEAU_BYTES: u64 = 64;
/// See [`PLATEAU_BYTES`].
pub(super) const PLATEAU: f64 = 1.4;
/// See [`PLATEAU_BYTES`].
pub(super) const PLATEAU_VOLTA: f64 = 1.9;

/// What a message costs its proxy with AMD's CPUs, and with others; Simple has three (`getNetOverhead`).
pub(super) const NET_OVERHEAD: [f64; 2] = [2.0, 1.0];
/// See [`NET_OVERHEAD`].
pub(super) const NET_OVERHEAD_SIMPLE: f64 = 3.0;

/// Threads of a warp.
pub(super) const WARP: u32 = 32;
/// Threads of a block at most (`NCCL_MAX_NTHREADS`).
pub(super) const MAX_THREADS: u32 = 640;
/// By protocol (`NCCL_LL_MAX_NTHREADS`, `NCCL_LL128_MAX_NTHREADS`, `NCCL_SIMPLE_MAX_NTHREADS`).
pub(super) const MAX_THREADS_BY_PROTOCOL: [u32; 3] = [512, 640, 512];
/// Of a ring with Simple over no more than [`SLOW_RING`]: it needs no more.
pub(super) const SLOW_RING_THREADS: u32 = 256;
/// See [`SLOW_RING_THREADS`]: 16 lanes of PCI of generation 3 (`PCI_BW`).
pub(super) const SLOW_RING: f64 = 12.0;
/// Bytes that a thread must have before a call takes more channels and threads, by protocol
/// (`NCCL_LL_THREAD_THRESHOLD` and so on); a ring with LL has so many a rank.
pub(super) const BYTES_A_THREAD: [u64; 3] = [8, 8, 64];
/// The same for the collnets.
pub(super) const BYTES_A_THREAD_COLLNET: u64 = 512;
/// Threads that synchronise, with Simple: of a ring, and of a tree.
pub(super) const SYNC_THREADS: [u32; 2] = [WARP, 4 * WARP];

/// Steps that a buffer is cut into (`NCCL_STEPS`).
pub(super) const STEPS: u64 = 8;
/// Steps of a chunk of a ring with Simple (`ALLREDUCE_CHUNKSTEPS` and so on); a broadcast or reduce has 1.
pub(super) const CHUNK_STEPS: u64 = 4;
/// Bytes of a channel's buffer by protocol (`computeBuffSizes`): 512 and 640 threads have 8 lines of 16 bytes and
/// 120 words of 8 bytes a step.
pub(super) const BUFFERS: [u64; 3] = [8 * 512 * 8 * 16, 8 * 640 * 120 * 8, 4 << 20];

/// The figures as NCCL's tuner plugins get them (`ncclTunerConstants_v5_t`), with algorithms in NCCL's order: the first four of
/// [`Algorithm`](super::Algorithm), NVLS, its tree, PAT.
///
/// ```
/// use ferroccl_topology::graph::tuning::NcclFigures;
///
/// let [tree, ring, ..] = NcclFigures::new().base_latencies;
/// assert_eq!((tree[0], ring[0]), (6.8, 6.6)); // LL
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NcclFigures {
    /// `baseLatencies`, microseconds by algorithm and protocol.
    pub base_latencies: [[f64; 3]; 7],
    /// `hwLatencies`, microseconds by link (`NVLink`, PCI, network), algorithm and protocol.
    pub hw_latencies: [[[f64; 3]; 7]; 3],
    /// `llMaxBws`, GB/s by generation of GPU and number of nodes, as all that follow.
    pub ll_max: [[f64; 3]; 4],
    /// `perChMaxRingLL128Bws`.
    pub ring_ll128_max: [[f64; 3]; 4],
    /// `perChMaxTreeLL128Bws`.
    pub tree_ll128_max: [[f64; 3]; 4],
    /// `perChMaxTreeBws`.
    pub tree_max: [[f64; 3]; 4],
    /// `perChMaxNVLSTreeBws`.
    pub nvls_tree_max: [[f64; 3]; 4],
}

impl NcclFigures {
    /// Those of NCCL 2.30.7.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "there are no others")]
    pub fn new() -> Self {
        let simple = |time| [0.0, 0.0, time];
        // By link: NVLS, and its tree. Over PCI there is neither.
        let nvls = [[NVLS_STEP, NVLS_STEP], [0.0, 0.0], [NVLS_NET, NVLS_TREE_NET]];
        let all = |first: [[f64; 3]; 4], nvls: [f64; 2], pat| {
            let [tree, ring, direct, chain] = first;
            [tree, ring, direct, chain, simple(nvls[0]), simple(nvls[1]), pat]
        };
        NcclFigures {
            base_latencies: all(BASE, [0.0, 0.0], [PAT_BASE; 3]),
            hw_latencies: std::array::from_fn(|link| {
                all(STEP[link], nvls[link], simple(PAT_STEP[link]))
            }),
            ll_max: LL_MAX,
            ring_ll128_max: RING_LL128_MAX,
            tree_ll128_max: TREE_LL128_MAX,
            tree_max: TREE_MAX,
            nvls_tree_max: NVLS_TREE_MAX,
        }
    }
}

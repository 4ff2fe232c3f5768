//! What the model knows of a communicator, and what it says of a call.

use ferroccl_device::abi::{Algorithm, Collective, ProtocolId};

use crate::graph::ChannelGraph;
use crate::{Arch, Vendor};

/// Calls of so many bytes, of a buffer or of a block of it where it has one for each rank, run on all cores of a process with CPU devices.
/// Smaller ones run on the threads that make them. Where a rank is alone in its process, so do calls of up to four times the size: it has a fourth
/// of the work that four ranks of a process have, for whom the size was measured.
///
/// Waking a core takes some 50 us, in which one core reduces about 200 KiB; below that a second core comes too late. Unmeasured
/// on other machines.
pub const LARGE_CALL_BYTES: u64 = 64 << 10;

/// Channels at most (NCCL's `MAXCHANNELS`).
pub(super) const MAX_CHANNELS: u32 = 64;

/// What the model knows of a communicator.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    pub(super) nodes: u32,
    pub(super) ranks: u32,
    pub(super) channels: u32,
    /// Whether CPU devices have a network that reduces; GPUs have it as a graph.
    pub(super) collnet: bool,
    /// Whether every rank may give lines to every other.
    mesh: bool,
    /// Processes of CPU devices on one host, and the cores that they have together; `None` for one process, or several hosts.
    processes: Option<(u32, u32)>,
    threads: Option<(u32, u32)>,
    pub(super) devices: Devices<'a>,
}

/// What ranks run on.
#[derive(Clone, Debug)]
pub enum Devices<'a> {
    /// Cores: every rank of a process is a coroutine on one of them.
    Cpu {
        /// The hosts' ring, for its way over the network.
        ring: Option<&'a ChannelGraph>,
    },
    /// GPUs.
    Gpus(Gpus<'a>),
}

/// GPUs, and what joins them.
#[derive(Clone, Debug)]
pub struct Gpus<'a> {
    /// The ring.
    pub ring: &'a ChannelGraph,
    /// The tree, where one was found.
    pub tree: Option<&'a ChannelGraph>,
    /// The chains to a network that reduces, where there is one.
    pub collnet: Option<&'a ChannelGraph>,
    /// The least compute capability, times ten.
    pub min_sm: u32,
    /// The greatest.
    pub max_sm: u32,
    /// The hosts' CPUs.
    pub cpu: (Arch, Vendor),
    /// Whether the GPUs of a host are joined by switches.
    pub nvswitch: bool,
}

impl<'a> Situation<'a> {
    /// Of `ranks` on `nodes` hosts, evenly. There is at least one host, and a rank on each: less counts as that.
    ///
    /// A communicator of GPUs has twice the channels of its graphs (`ncclTopoPostset` in NCCL's connect.cc), at most
    /// 64; of CPU devices it has one, until [`Situation::with_channels`] says otherwise.
    #[must_use]
    pub fn new(nodes: u32, ranks: u32, devices: Devices<'a>) -> Self {
        let nodes = nodes.max(1);
        let channels = match &devices {
            Devices::Cpu { .. } => 1,
            Devices::Gpus(gpus) => {
                let tree = gpus.tree.map_or(usize::MAX, |tree| tree.channels.len());
                let found = gpus.ring.channels.len().min(tree);
                u32::try_from(found).unwrap_or(MAX_CHANNELS).saturating_mul(2)
            }
        };
        Situation {
            nodes,
            ranks: ranks.max(nodes),
            channels: channels.clamp(1, MAX_CHANNELS),
            collnet: false,
            mesh: nodes == 1,
            processes: None,
            threads: None,
            devices,
        }
    }

    /// The same with so many channels, 1 to 64.
    #[must_use]
    pub fn with_channels(mut self, channels: u32) -> Self {
        self.channels = channels.clamp(1, MAX_CHANNELS);
        self
    }

    /// The same with a network that reduces, for CPU devices; of GPUs their graph says whether there is one.
    #[must_use]
    pub fn with_collnet(mut self, there_is: bool) -> Self {
        self.collnet = there_is;
        self
    }

    /// The same with, or without, memory by which every rank gives lines to every other: by default ranks of one host have it.
    #[must_use]
    pub fn with_mesh(mut self, there_is: bool) -> Self {
        self.mesh = there_is && self.nodes == 1;
        self
    }

    /// The same with the ranks in so many processes, which have so many cores together: by default all are in one. More
    /// processes than ranks count as one a rank, and there is a core at least. It makes a difference for CPU devices on one host.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let cores = Situation::new(1, 16, Devices::Cpu { ring: None });
    /// let fastest = |s: &Situation| choose(s, Collective::AllReduce, 4096, &Settings::default());
    /// assert_eq!(fastest(&cores)?.algorithm, Algorithm::Chain);
    /// // On two cores each wait for another process is a switch of processes, so the fewest waits are the fastest.
    /// assert_eq!(fastest(&cores.with_processes(16, 2))?.algorithm, Algorithm::OneShot);
    /// # Ok::<(), NoChoice>(())
    /// ```
    #[must_use]
    pub fn with_processes(mut self, processes: u32, cores: u32) -> Self {
        let processes = processes.min(self.ranks);
        let several = processes > 1 && self.nodes == 1;
        self.processes = several.then_some((processes, cores.max(1)));
        self
    }

    /// The same with the ranks called by so many threads of one process, which have so many cores together: by default one thread calls for
    /// all. More threads than ranks count as one a rank, and there is a core at least. It makes a difference for CPU devices on one
    /// host, and for calls of less than [`LARGE_CALL_BYTES`]: of larger ones all cores run all ranks.
    ///
    /// ```
    /// use ferroccl_topology::graph::tuning::*;
    ///
    /// let one = Situation::new(1, 16, Devices::Cpu { ring: None });
    /// let each = one.clone().with_threads(16, 2);
    /// let fastest = |s, bytes| choose(s, Collective::AllReduce, bytes, &Settings::default());
    /// assert_eq!(fastest(&one, 4096)?.algorithm, Algorithm::Chain);
    /// assert_eq!(fastest(&each, 4096)?.algorithm, Algorithm::OneShot);
    /// assert_eq!(fastest(&each, 1 << 20), fastest(&one, 1 << 20));
    /// # Ok::<(), NoChoice>(())
    /// ```
    #[must_use]
    pub fn with_threads(mut self, threads: u32, cores: u32) -> Self {
        let threads = threads.min(self.ranks);
        let several = threads > 1 && self.nodes == 1;
        self.threads = several.then_some((threads, cores.max(1)));
        self
    }

    /// The places between which a call's waits are switches, processes or threads of CPU devices on one host, and the cores that they
    /// have together; `None` where one thread runs all ranks, or all cores do. `bytes` are the call's.
    pub(super) fn places(&self, collective: Collective, bytes: u64) -> Option<(u32, u32)> {
        let blocks = match collective {
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => self.ranks,
            _ => 1,
        };
        let small = bytes < LARGE_CALL_BYTES.saturating_mul(blocks.into());
        self.processes.or(self.threads.filter(|_| small))
    }

    /// Whether CPU devices' ranks are in one process, whose memory all of them reach.
    pub(super) fn is_one_process(&self) -> bool {
        self.processes.is_none()
    }

    /// The sizes at which [`Situation::places`] changes.
    pub(super) fn place_changes(&self) -> impl Iterator<Item = u64> {
        let changes = [1, u64::from(self.ranks)].map(|blocks| LARGE_CALL_BYTES * blocks);
        self.threads.into_iter().flat_map(move |_| changes)
    }

    /// Whether every rank may give lines to every other.
    #[must_use]
    pub fn has_mesh(&self) -> bool {
        self.mesh
    }

    /// Hosts.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Channels of the communicator.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// Whether the model's figures of this algorithm come from measurements: NCCL's for its own algorithms on GPUs, and those
    /// of `benches/records/` on CPU devices. All others are reckoned from their steps and the bytes that they move.
    #[must_use]
    pub fn is_measured(&self, collective: Collective, algorithm: Algorithm) -> bool {
        use Algorithm::{
            Bruck, Chain, CollnetChain, CollnetDirect, Doubling, Linear, OneShot, Ring, Tree,
            TwoShot,
        };
        match self.devices {
            Devices::Cpu { .. } => {
                use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
                let known = matches!(
                    collective,
                    AllReduce | AllGather | ReduceScatter | Broadcast | Reduce
                );
                let way = matches!(
                    algorithm,
                    Ring | Tree | Chain | Bruck | OneShot | TwoShot | Doubling | Linear
                );
                known && way
            }
            Devices::Gpus(_) => {
                matches!(algorithm, Ring | Tree | CollnetDirect | CollnetChain)
            }
        }
    }

    /// What the ranks run on.
    #[must_use]
    pub fn devices(&self) -> &Devices<'a> {
        &self.devices
    }

    /// Ranks of a host; NCCL rounds down.
    pub(super) fn local_ranks(&self) -> u32 {
        self.ranks / self.nodes
    }
}

/// What a call takes, by the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// All of it, in microseconds.
    pub time_us: f64,
    /// Its part that does not depend on the size, in microseconds.
    pub latency_us: f64,
    /// Bytes of the call by what the rest of the time takes, 10^9 a second (`algbw` without the latency).
    pub bandwidth: f64,
}

impl Cost {
    /// Bytes of the call over its time, 10^9 a second.
    #[must_use]
    pub fn algbw(&self, bytes: u64) -> f64 {
        if self.time_us > 0.0 { bytes as f64 / self.time_us * 1e-3 } else { 0.0 }
    }
}

/// What the model says of one algorithm and protocol for a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: ProtocolId,
    /// What it takes; `None` where it cannot be done.
    pub cost: Option<Cost>,
    /// Why it is not done, or may not be, as a clause; `None` where it may. It can have a cost all the same.
    pub why_not: Option<String>,
}

/// Steps of a ring of `ranks`, one after the other.
pub(super) fn ring_steps(collective: Collective, ranks: f64) -> f64 {
    match collective {
        Collective::AllReduce | Collective::Barrier => 2.0 * (ranks - 1.0),
        Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => ranks - 1.0,
        Collective::Broadcast | Collective::Reduce => ranks,
        Collective::SendRecv => 1.0,
    }
}

/// Rounds of [`Algorithm::Bruck`] over `ranks`: the binary digits of the last one.
pub(super) fn rounds(ranks: u32) -> f64 {
    f64::from(u32::BITS - ranks.saturating_sub(1).leading_zeros())
}

/// Rounds of [`Algorithm::Doubling`] over `ranks`, one after the other: where their number is no power of two, one more before and
/// one behind.
pub(super) fn doubling_rounds(ranks: u32) -> f64 {
    let within = ranks.checked_ilog2().unwrap_or(0);
    f64::from(within + if ranks.is_power_of_two() { 0 } else { 2 })
}

/// Factor on the time of a candidate that no machine has measured: a tenth more. Of two candidates with equal work the
/// measured one is chosen.
pub(super) const UNMEASURED: f64 = 1.1;

/// Whether `new` is faster than `old`, and not just by how the numbers were rounded: of two equals the first in
/// NCCL's order is taken.
pub(super) fn is_faster(new: f64, old: f64) -> bool {
    new < old * (1.0 - 1e-9)
}

/// Messages of all ranks by doubling: a round for each binary digit, and one to and one from each rank beyond a power of two.
pub(super) fn doubling_messages(ranks: u32) -> f64 {
    let rounds = ranks.max(1).ilog2();
    let paired = 1 << rounds;
    f64::from(paired) * f64::from(rounds) + 2.0 * f64::from(ranks.max(1) - paired)
}

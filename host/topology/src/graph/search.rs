//! The search for a host's channels: as many of as high a bandwidth as possible.
//!
//! Conditions go from strict to loose: near paths before far ones, one port for coming and leaving before two,
//! all channels alike before each its own way. Under each, speeds go from high to low, and one attempt
//! ([`walk`](super::walk)) lays channels of that speed. What counts is the joint bandwidth, after each
//! attempt's channels have been given all that their links leave; a looser condition must give more to be
//! taken. An attempt that reaches what the GPUs' own links and the ports allow ends the search.
//!
//! The number of steps is bounded, not the time: the same system gives the same channels on any machine.

use super::load::Ways;
use super::walk::{Conditions, Walk};
use super::{ChannelGraph, GraphId, Pattern};
use crate::{CrossNic, PathKind, Paths, System};

/// What is searched for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// The kind of channels.
    pub id: GraphId,
    /// Whether the channels go to a network: there are other hosts.
    pub network: bool,
    /// Whether a ring may leave by another port than it came in by.
    pub cross_nic: CrossNic,
    /// Channels at least; they are repeated until there are so many. 1 counts as what there is.
    pub min_channels: usize,
    /// Channels at most.
    pub max_channels: usize,
    /// Steps of the search at most.
    pub steps: u64,
}

impl Wanted {
    /// Of a kind, for one host, with NCCL's defaults.
    #[must_use]
    pub fn new(id: GraphId) -> Wanted {
        Wanted {
            id,
            network: false,
            cross_nic: CrossNic::IfBetter,
            min_channels: 1,
            max_channels: MAX_CHANNELS,
            steps: STEPS,
        }
    }
}

/// Channels at most, unless asked otherwise: NCCL's for a ring over GPUs (`MAXCHANNELS / 2`).
pub const MAX_CHANNELS: usize = 32;
/// Steps at most. Hosts of 8 GPUs take 5 to 14 ms with it (`benches/records/2026-11-21-topology.md`).
const STEPS: u64 = 1 << 17;
/// Steps of one attempt at most: with 8 GPUs, an attempt that fails late has tried several thousand orders.
const STEPS_OF_ATTEMPT: u64 = 1 << 12;

/// The fastest channel that is searched for, by compute capability (times ten), within a host and over a network: where the
/// lists of speeds of NCCL begin (`speedArrayIntra`, `speedArrayInter`, and those of `sm90` and `sm100`, in its search.cc).
fn fastest(sm: u32, network: bool) -> f64 {
    match (sm, network) {
        (100.., true) => 96.0,
        (100.., false) => 90.0,
        (_, true) => 48.0,
        (90.., false) => 60.0,
        (_, false) => 40.0,
    }
}

/// Whether each of `channels` channels of so much bandwidth becomes two of half of it (`ncclTopoDupChannels` in NCCL's
/// search.cc): below that, two blocks move no more than one.
fn splits(sm: u32, bw: f64, channels: usize) -> bool {
    bw >= 25.0 && !(sm > 80 && bw < 50.0 && channels > 4)
}

/// Speeds to try besides those of the system's own links: NCCL's (`speedArrayIntra`, `speedArrayInter`, for all
/// generations together), 10^9 bytes a second.
const SPEEDS: [f64; 29] = [
    100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 48.0, 45.0, 42.0, 40.0, 30.0, 28.0, 24.0, 22.0, 20.0,
    18.0, 15.0, 12.0, 11.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24,
];
/// A gain that is worth a looser condition.
const GAIN: f64 = 1.001;

/// Finds the channels of a host; `None` when there are no GPUs, no channel passes all of them, or none of them
/// reaches the network that is wanted.
///
/// ```
/// use ferroccl_topology::graph::{GraphId, search::{Wanted, search}};
/// use ferroccl_topology::{LinkKind, Node, Paths, Policy, System, Gpu, BusId};
///
/// let mut system = System::default();
/// let nvs = system.add(Node::Nvs);
/// for dev in 0..8 {
///     let gpu = Gpu { dev, rank: None, sm: 80, gdr: true, bus_id: BusId::default() };
///     let gpu = system.add(Node::Gpu(gpu));
///     system.connect(gpu, nvs, LinkKind::Nvl, 240.0);
/// }
/// let paths = Paths::new(&system, &Policy::default());
/// let ring = search(&system, &paths, &Wanted::new(GraphId::Ring)).expect("a ring");
/// assert_eq!(ring.total_bw(1), 240.0);
/// ```
#[must_use]
pub fn search(system: &System, paths: &Paths, wanted: &Wanted) -> Option<ChannelGraph> {
    let ways = Ways::new(system, paths);
    if ways.gpus == 0 || (wanted.network && ways.nets == 0) {
        return None;
    }
    let patterns: &[Pattern] = match wanted.id {
        GraphId::Ring => &[Pattern::Ring],
        // One GPU has all of the network's traffic.
        GraphId::Tree if ways.gpus == 1 => &[Pattern::Tree],
        // Without a network they are the same chain.
        GraphId::Tree if !wanted.network => &[Pattern::BalancedTree],
        GraphId::Tree => &[Pattern::BalancedTree, Pattern::SplitTree, Pattern::Tree],
        GraphId::CollNet => &[Pattern::Tree],
    };
    let fastest = fastest(system.min_sm(), wanted.network);
    let search = Search { paths, ways: &ways, wanted, fastest };
    Some(search.finish(system, search.best(patterns)?))
}

/// The best so far.
#[derive(Clone, Debug)]
struct Found {
    conditions: Conditions,
    channels: Vec<super::GraphChannel>,
    /// Joint bandwidth.
    total: f64,
}

struct Search<'a> {
    paths: &'a Paths,
    ways: &'a Ways,
    wanted: &'a Wanted,
    /// Bandwidth of a channel at most.
    fastest: f64,
}

impl Search<'_> {
    /// The best under all conditions. What comes first is kept when others are no faster: nearer paths before a better
    /// pattern.
    fn best(&self, patterns: &[Pattern]) -> Option<Found> {
        let network = self.wanted.network;
        let mut best: Option<Found> = None;
        let crossings: &[bool] = match self.wanted.cross_nic {
            _ if !network || patterns != [Pattern::Ring] => &[false],
            CrossNic::Never => &[false],
            CrossNic::Always => &[true],
            CrossNic::IfBetter => &[false, true],
        };
        // A card that reaches GPUs directly comes before a ring that keeps its port.
        let (near, far): (Vec<_>, Vec<_>) =
            self.kinds_inter().into_iter().partition(|kind| *kind <= PathKind::Pxn);
        for kinds in [near, far] {
            for &cross_nic in crossings {
                // What the first takes, the second is not to lack.
                let mut steps = self.wanted.steps;
                for &kind_inter in &kinds {
                    for kind_intra in self.kinds_intra() {
                        for &pattern in patterns {
                            let conditions = Conditions {
                                pattern,
                                kind_intra,
                                kind_inter,
                                cross_nic,
                                same_channels: true,
                                speed: 0.0,
                                enough: 0,
                                network,
                            };
                            self.alike_or_not(conditions, &mut steps, &mut best);
                        }
                    }
                }
            }
        }
        best
    }

    /// Channels that are all alike, then such that are not.
    fn alike_or_not(&self, conditions: Conditions, steps: &mut u64, best: &mut Option<Found>) {
        let Conditions { pattern, kind_intra, kind_inter, .. } = conditions;
        let ceiling = self.ceiling(pattern, kind_intra, kind_inter);
        for same_channels in [true, false] {
            if best.as_ref().is_none_or(|best| ceiling >= best.total * GAIN) {
                self.speeds(Conditions { same_channels, ..conditions }, ceiling, steps, best);
            }
        }
    }

    /// All speeds under one set of conditions.
    fn speeds(
        &self,
        mut conditions: Conditions,
        ceiling: f64,
        steps: &mut u64,
        best: &mut Option<Found>,
    ) {
        for speed in self.candidates(ceiling) {
            let enough = ((ceiling / speed + 1e-6) as usize).min(self.wanted.max_channels);
            if enough == 0 {
                continue;
            }
            let reached = best.as_ref().map_or(0.0, |best| best.total);
            if reached * GAIN > ceiling || *steps == 0 {
                return;
            }
            conditions.speed = speed;
            conditions.enough = enough;
            // Channels that are all alike fit soon or never: there is one order to choose.
            let most = STEPS_OF_ATTEMPT / if conditions.same_channels { 4 } else { 1 };
            let mut attempt = most.min(*steps);
            let given = attempt;
            let channels = Walk::run(self.paths, self.ways, conditions, &mut attempt);
            *steps -= given - attempt;
            if channels.is_empty() {
                continue;
            }
            let (each, _) = self.ways.bandwidth(conditions.pattern, &channels);
            let total = each * channels.len() as f64;
            if total > reached * GAIN {
                *best = Some(Found { conditions, channels, total });
            }
        }
    }

    /// Speeds to try, from high to low: of the links there are, whole and in parts, and the usual ones.
    fn candidates(&self, ceiling: f64) -> Vec<f64> {
        let links = self.ways.capacity.iter().flat_map(|bw| [*bw, bw / 2.0]);
        let mut speeds: Vec<f64> = links
            .chain(SPEEDS)
            .chain([ceiling])
            .filter(|speed| *speed > 0.0 && *speed <= ceiling.min(self.fastest) + 1e-9)
            .collect();
        speeds.sort_by(|a, b| b.total_cmp(a));
        speeds.dedup_by(|a, b| (*a - *b).abs() < 1e-6);
        speeds
    }

    /// The kinds of paths that there are between GPUs, from the best one under which all of them hang together.
    fn kinds_intra(&self) -> Vec<PathKind> {
        let n = self.ways.gpus;
        if n == 1 {
            return vec![PathKind::Loc];
        }
        let kinds = (0..n).flat_map(|a| (0..n).filter(move |b| *b != a).map(move |b| (a, b)));
        let kinds = sorted(kinds.map(|(a, b)| self.paths.gpu_gpu(a, b).kind));
        kinds.into_iter().filter(|kind| self.connected(*kind)).collect()
    }

    fn connected(&self, kind: PathKind) -> bool {
        let n = self.ways.gpus;
        let mut reached = vec![false; n];
        let mut open = vec![0];
        while let Some(a) = open.pop() {
            if !std::mem::replace(&mut reached[a], true) {
                open.extend((0..n).filter(|b| *b != a && self.paths.gpu_gpu(a, *b).kind <= kind));
            }
        }
        reached.into_iter().all(|reached| reached)
    }

    /// The kinds of paths that there are to the network.
    fn kinds_inter(&self) -> Vec<PathKind> {
        if !self.wanted.network {
            return vec![PathKind::Loc];
        }
        let pairs = (0..self.ways.gpus).flat_map(|g| (0..self.ways.nets).map(move |net| (g, net)));
        let kinds =
            |(gpu, net)| [self.paths.gpu_net(gpu, net).kind, self.paths.net_gpu(net, gpu).kind];
        sorted(pairs.flat_map(kinds))
    }

    /// What no set of channels can exceed: the joint bandwidth of what leaves a GPU within the host, by whatever
    /// paths, and that of the ports.
    fn ceiling(&self, pattern: Pattern, kind_intra: PathKind, kind_inter: PathKind) -> f64 {
        let n = self.ways.gpus;
        // The first links of a GPU's ways are its own; each counts once.
        let leaves = |gpu: usize| {
            let mut own: Vec<usize> = (0..n)
                .filter(|to| *to != gpu && self.paths.gpu_gpu(gpu, *to).kind <= kind_intra)
                .filter_map(|to| self.ways.gpu_gpu(gpu, to).first().map(|(link, _)| *link))
                .collect();
            own.sort_unstable();
            own.dedup();
            own.iter().map(|link| self.ways.capacity[*link]).sum::<f64>()
        };
        let intra = match pattern {
            _ if n == 1 => f64::INFINITY,
            // The last GPU of a ring's part in a host sends to the network: n - 1 flows out of GPUs, together.
            Pattern::Ring if self.wanted.network => {
                (0..n).map(leaves).sum::<f64>() / (n - 1) as f64
            }
            Pattern::Ring => (0..n).map(leaves).fold(f64::INFINITY, f64::min),
            // A chain of n GPUs has 2 (n - 1) half flows out of its GPUs, together.
            Pattern::Tree | Pattern::SplitTree | Pattern::BalancedTree => {
                (0..n).map(leaves).sum::<f64>() / (n - 1) as f64
            }
        };
        let inter = if self.wanted.network {
            let near = |net: usize| self.port_ceiling(net, kind_inter);
            (0..self.ways.nets).map(near).sum()
        } else {
            f64::INFINITY
        };
        let least = f64::min(intra, inter);
        // One GPU without a network: nothing limits it.
        if least.is_finite() { least } else { crate::speed::LOC }
    }

    /// What a port can receive for GPUs on paths of this kind: as much as all of them take, and no more than the links that all
    /// their ways have.
    fn port_ceiling(&self, net: usize, kind_inter: PathKind) -> f64 {
        let near = |gpu: &usize| self.paths.net_gpu(net, *gpu).kind <= kind_inter;
        let gpus: Vec<usize> = (0..self.ways.gpus).filter(near).collect();
        let Some((first, rest)) = gpus.split_first() else { return 0.0 };
        let shared = self.ways.net_gpu(net, *first).iter().filter(|(link, _)| {
            let has = |gpu: &usize| self.ways.net_gpu(net, *gpu).iter().any(|(own, _)| own == link);
            rest.iter().all(has)
        });
        let narrowest =
            shared.map(|(link, _)| self.ways.capacity[*link]).fold(f64::INFINITY, f64::min);
        let taken = gpus.iter().map(|gpu| self.paths.net_gpu(net, *gpu).bw).sum();
        narrowest.min(taken)
    }

    fn finish(&self, system: &System, found: Found) -> ChannelGraph {
        let Found { conditions, mut channels, .. } = found;
        let pattern = conditions.pattern;
        // Both are the same where there is no network. What a ring's ports leave unused does not count.
        let (bw_inter, bw_intra) = self.ways.bandwidth(pattern, &channels);
        let bw = if pattern == Pattern::Ring { bw_inter } else { bw_intra };
        if channels.len() * 2 <= self.wanted.max_channels
            && splits(system.min_sm(), bw, channels.len())
        {
            channels.extend(channels.clone());
        }
        for i in 0.. {
            if channels.len() >= self.wanted.min_channels.min(self.wanted.max_channels) {
                break;
            }
            channels.push(channels[i].clone());
        }
        let (bw_inter, bw_intra) = self.ways.bandwidth(pattern, &channels);
        let same_channels = channels.windows(2).all(|pair| pair[0].gpus == pair[1].gpus);
        let latency = |net: usize| system.nets().get(net).map_or(0.0, |(_, net)| net.latency);
        let used = channels.iter().flat_map(|channel| channel.nets.into_iter().flatten());
        ChannelGraph {
            id: self.wanted.id,
            pattern,
            cross_nic: channels.iter().any(|c| c.nets.is_some_and(|[come, leave]| come != leave)),
            same_channels,
            bw_intra,
            bw_inter,
            latency_inter: used.map(latency).fold(0.0, f64::max),
            kind_intra: self.worst_intra(pattern, &channels),
            kind_inter: self.worst_inter(pattern, &channels),
            channels,
        }
    }

    /// The worst path that the channels use within the host.
    fn worst_intra(&self, pattern: Pattern, channels: &[super::GraphChannel]) -> PathKind {
        let mut worst = PathKind::Loc;
        for channel in channels {
            let closing = match &channel.gpus[..] {
                [first, .., last] if pattern == Pattern::Ring && channel.nets.is_none() => {
                    Some([*last, *first])
                }
                _ => None,
            };
            let pairs = channel.gpus.windows(2).map(|pair| [pair[0], pair[1]]).chain(closing);
            worst = pairs.map(|[a, b]| self.paths.gpu_gpu(a, b).kind).fold(worst, PathKind::max);
        }
        worst
    }

    /// The worst path that the channels use to the network.
    fn worst_inter(&self, pattern: Pattern, channels: &[super::GraphChannel]) -> PathKind {
        let mut worst = PathKind::Loc;
        for channel in channels {
            let (Some([come, leave]), Some(first)) = (channel.nets, channel.gpus.first()) else {
                continue;
            };
            let last = match pattern {
                Pattern::Ring => channel.gpus.last(),
                Pattern::Tree => Some(first),
                Pattern::SplitTree | Pattern::BalancedTree => channel.gpus.get(1),
            };
            let last = *last.unwrap_or(first);
            worst = worst
                .max(self.paths.net_gpu(come, *first).kind)
                .max(self.paths.gpu_net(last, leave).kind);
        }
        worst
    }
}

/// Ascending, each once, without "no path".
fn sorted(kinds: impl Iterator<Item = PathKind>) -> Vec<PathKind> {
    let mut kinds: Vec<PathKind> = kinds.filter(|kind| *kind < PathKind::Dis).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BusId, Gpu, LinkKind, Node, NodeId, Policy};

    fn gpus(system: &mut System, n: u32, sm: u32) -> Vec<NodeId> {
        let gpu = |dev| Gpu { dev, rank: None, sm, gdr: true, bus_id: BusId::default() };
        (0..n).map(|dev| system.add(Node::Gpu(gpu(dev)))).collect()
    }

    fn total(system: &System, id: GraphId) -> f64 {
        let paths = Paths::new(system, &Policy::default());
        search(system, &paths, &Wanted::new(id)).unwrap().total_bw(1)
    }

    #[test]
    fn a_hybrid_cube_mesh_is_filled() {
        // DGX-1 with V100: (a, b, NVLinks).
        const MESH: [(usize, usize, u32); 16] = [
            (0, 1, 1),
            (0, 2, 1),
            (0, 3, 2),
            (0, 4, 2),
            (1, 2, 2),
            (1, 3, 1),
            (1, 5, 2),
            (2, 3, 2),
            (2, 6, 1),
            (3, 7, 1),
            (4, 5, 1),
            (4, 6, 1),
            (4, 7, 2),
            (5, 6, 2),
            (5, 7, 1),
            (6, 7, 2),
        ];
        let mut system = System::default();
        let gpus = gpus(&mut system, 8, 70);
        for (a, b, links) in MESH {
            system.connect(gpus[a], gpus[b], LinkKind::Nvl, 20.0 * f64::from(links));
        }
        // Six NVLinks a GPU: six rings of 20, the most there can be, and NCCL's number.
        assert_eq!(total(&system, GraphId::Ring), 120.0);
        assert!(total(&system, GraphId::Tree) >= 120.0);
    }
    /// A rack of 72 GPUs on NVLink switches.
    #[test]
    fn a_host_of_72_gpus_is_filled() {
        let mut system = System::default();
        let gpus = gpus(&mut system, 72, 100);
        let nvs = system.add(Node::Nvs);
        for gpu in gpus {
            system.connect(gpu, nvs, LinkKind::Nvl, 721.8);
        }
        for id in [GraphId::Ring, GraphId::Tree] {
            let begin = std::time::Instant::now();
            let found = total(&system, id);
            println!("{id:?} {found} {:?}", begin.elapsed());
            assert!(found > 721.0, "{id:?}: {found}");
        }
    }

    /// GPUs on switches, and for each two of them a port near both: a tree can use them all, as rings do.
    #[test]
    fn trees_use_every_port() {
        use crate::{Net, Nic, Pci};
        let mut system = System::default();
        let gpus = gpus(&mut system, 8, 80);
        let nvs = system.add(Node::Nvs);
        for (dev, pair) in gpus.chunks(2).enumerate() {
            let bus_id = BusId { bus: dev as u8, ..BusId::default() };
            let pci = system.add(Node::Pci(Pci { bus_id, device: [0; 4] }));
            let nic = system.add(Node::Nic(Nic { bus_id: Some(bus_id) }));
            let net = system.add(Node::Net(Net {
                dev: dev as u32,
                name: String::new(),
                port: 1,
                guid: dev as u64,
                bw: 25.0,
                latency: 0.0,
                max_conn: 1,
                gdr: true,
                coll: false,
            }));
            system.connect(pci, nic, LinkKind::Pci, 24.0);
            system.connect(nic, net, LinkKind::Net, 25.0);
            for gpu in pair {
                system.connect(*gpu, pci, LinkKind::Pci, 24.0);
                system.connect(*gpu, nvs, LinkKind::Nvl, 240.0);
            }
        }
        let paths = Paths::new(&system, &Policy::default());
        for id in [GraphId::Ring, GraphId::Tree] {
            let graph = search(&system, &paths, &Wanted { network: true, ..Wanted::new(id) });
            assert_eq!(graph.unwrap().total_bw(2), 96.0, "{id:?}");
        }
    }
}

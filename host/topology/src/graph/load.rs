//! What channels put on links: the one place that knows how much of a channel's bandwidth goes where.

use super::{ChannelGraph, GraphChannel, Pattern};
use crate::speed::INTEL_P2P_OVERHEAD;
use crate::{Arch, Cpu, LinkId, LinkKind, Node, Path, Paths, System, Vendor};

/// The links of a path, each with what a unit of traffic costs it.
pub(super) type Way = Vec<(usize, f64)>;

/// The ways between a host's GPUs and ports, ready to be charged to links.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    pub(super) gpus: usize,
    pub(super) nets: usize,
    gpu_gpu: Vec<Way>,
    gpu_net: Vec<Way>,
    net_gpu: Vec<Way>,
    /// Bandwidth of each link.
    pub(super) capacity: Vec<f64>,
}

impl Ways {
    pub(super) fn new(system: &System, paths: &Paths) -> Ways {
        let (gpus, nets) = (paths.gpus(), paths.nets());
        let all =
            |from: usize, to: usize| (0..from).flat_map(move |a| (0..to).map(move |b| (a, b)));
        Ways {
            gpus,
            nets,
            gpu_gpu: all(gpus, gpus)
                .map(|(a, b)| way(system, paths.gpu_gpu(a, b), true, false))
                .collect(),
            gpu_net: all(gpus, nets)
                .map(|(a, b)| way(system, paths.gpu_net(a, b), false, false))
                .collect(),
            net_gpu: all(nets, gpus)
                .map(|(a, b)| way(system, paths.net_gpu(a, b), false, true))
                .collect(),
            capacity: system.links().iter().map(|link| link.bw).collect(),
        }
    }

    pub(super) fn gpu_gpu(&self, from: usize, to: usize) -> &[(usize, f64)] {
        &self.gpu_gpu[from * self.gpus + to]
    }

    pub(super) fn gpu_net(&self, gpu: usize, net: usize) -> &[(usize, f64)] {
        &self.gpu_net[gpu * self.nets + net]
    }

    pub(super) fn net_gpu(&self, net: usize, gpu: usize) -> &[(usize, f64)] {
        &self.net_gpu[net * self.gpus + gpu]
    }

    /// Whether a channel names only GPUs and ports that there are.
    fn knows(&self, channel: &GraphChannel) -> bool {
        let nets = channel.nets.into_iter().flatten().all(|net| net < self.nets);
        nets && channel.gpus.iter().all(|gpu| *gpu < self.gpus)
    }

    /// Calls `charge` with each way that a channel of bandwidth 1 uses within the host, and how much of it.
    pub(super) fn intra<'w>(
        &'w self,
        pattern: Pattern,
        channel: &GraphChannel,
        mut charge: impl FnMut(&'w [(usize, f64)], f64),
    ) {
        for pair in channel.gpus.windows(2) {
            match pattern {
                Pattern::Ring => charge(self.gpu_gpu(pair[0], pair[1]), 1.0),
                Pattern::Tree | Pattern::SplitTree | Pattern::BalancedTree => {
                    charge(self.gpu_gpu(pair[0], pair[1]), 0.5);
                    charge(self.gpu_gpu(pair[1], pair[0]), 0.5);
                }
            }
        }
        if let (Pattern::Ring, None, [first, .., last]) = (pattern, channel.nets, &channel.gpus[..])
        {
            charge(self.gpu_gpu(*last, *first), 1.0);
        }
    }

    /// The same to and from the network.
    pub(super) fn inter<'w>(
        &'w self,
        pattern: Pattern,
        channel: &GraphChannel,
        mut charge: impl FnMut(&'w [(usize, f64)], f64),
    ) {
        let (Some([come, leave]), Some(first)) = (channel.nets, channel.gpus.first()) else {
            return;
        };
        let last = channel.gpus.last().unwrap_or(first);
        if pattern == Pattern::Ring {
            charge(self.net_gpu(come, *first), 1.0);
            charge(self.gpu_net(*last, leave), 1.0);
            return;
        }
        // To and from the parent, and to and from the children, half of the bandwidth each.
        let second = channel.gpus.get(1).unwrap_or(first);
        let mut both = |gpu: usize, part: f64| {
            charge(self.net_gpu(come, gpu), part);
            charge(self.gpu_net(gpu, leave), part);
        };
        both(*first, 0.5);
        match pattern {
            Pattern::SplitTree => both(*second, 0.5),
            Pattern::BalancedTree => {
                both(*first, 0.25);
                both(*second, 0.25);
            }
            Pattern::Tree | Pattern::Ring => both(*first, 0.5),
        }
    }

    /// What channels of bandwidth 1 put on each link: within the host, and for the network.
    fn loads(&self, pattern: Pattern, channels: &[GraphChannel]) -> (Vec<f64>, Vec<f64>) {
        let mut intra = vec![0.0; self.capacity.len()];
        let mut inter = intra.clone();
        for channel in channels {
            let add = |loads: &mut Vec<f64>, way: &[(usize, f64)], part: f64| {
                way.iter().for_each(|(link, cost)| loads[*link] += cost * part);
            };
            self.intra(pattern, channel, |way, part| add(&mut intra, way, part));
            self.inter(pattern, channel, |way, part| add(&mut inter, way, part));
        }
        (intra, inter)
    }

    /// The most bandwidth that each of these channels can have at once: at the network, and then within the
    /// host. Without a network both are the same.
    pub(super) fn bandwidth(&self, pattern: Pattern, channels: &[GraphChannel]) -> (f64, f64) {
        let (intra, inter) = self.loads(pattern, channels);
        let least = |load: &dyn Fn(usize) -> (f64, f64)| {
            (0..self.capacity.len())
                .map(load)
                .filter(|(_, load)| *load > 0.0)
                .map(|(left, load)| left / load)
                .fold(f64::INFINITY, f64::min)
        };
        let both = least(&|i| (self.capacity[i], intra[i] + inter[i]));
        let both = if both.is_finite() { both } else { crate::speed::LOC };
        let inside = least(&|i| (self.capacity[i] - both * inter[i], intra[i]));
        (both, if inside.is_finite() { inside } else { both })
    }
}

/// What a path costs its links.
fn way(system: &System, path: &Path, between_gpus: bool, from_port: bool) -> Way {
    let intel = |id: &LinkId| {
        let link = system.link(*id);
        [link.from, link.to].into_iter().any(|node| {
            matches!(
                system.node(node),
                Node::Cpu(Cpu { arch: Arch::X86, vendor: Vendor::Intel, .. })
            )
        })
    };
    let overhead = between_gpus && path.links.iter().any(intel);
    let cost = |id: &LinkId| {
        let pci = system.link(*id).kind == LinkKind::Pci;
        if overhead && pci { INTEL_P2P_OVERHEAD } else { 1.0 }
    };
    let mut way: Way = path.links.iter().map(|id| (id.0 as usize, cost(id))).collect();
    if from_port {
        let back = path.links.iter().filter_map(|id| reverse(system, *id));
        way.extend(back);
    }
    way
}

/// What a link costs the one in the other direction, where it takes data from a network to a GPU: requests and
/// acknowledgements of GPUs before Ampere take an eighth (NCCL's `followPath` in its search.cc).
fn reverse(system: &System, id: LinkId) -> Option<(usize, f64)> {
    let link = system.link(id);
    let Node::Gpu(gpu) = system.node(link.to) else { return None };
    if gpu.sm >= 80 {
        return None;
    }
    let back = system
        .links_from(link.to)
        .find(|(_, back)| back.to == link.from && back.kind == link.kind)?;
    Some((back.0.0 as usize, 0.125))
}

/// What a graph's channels put on each link of a system, 10^9 bytes a second, in the links' order.
///
/// The invariant of every graph that a search returns: no entry exceeds its link's bandwidth. A channel with a GPU or
/// port that the system does not have counts for nothing.
#[must_use]
pub fn link_loads(system: &System, paths: &Paths, graph: &ChannelGraph) -> Vec<f64> {
    let ways = Ways::new(system, paths);
    let known: Vec<_> = graph.channels.iter().filter(|c| ways.knows(c)).cloned().collect();
    let (intra, inter) = ways.loads(graph.pattern, &known);
    let sum = |(intra, inter): (&f64, &f64)| intra * graph.bw_intra + inter * graph.bw_inter;
    intra.iter().zip(&inter).map(sum).collect()
}

/// The links that a graph's channels load most.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// They, in the order of the system's links: all that are as full as the first.
    pub links: Vec<LinkId>,
    /// What the channels put on the first, 10^9 bytes a second.
    pub load: f64,
    /// Its bandwidth.
    pub bw: f64,
}

impl Limit {
    /// Whether the channels need more than there is.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.load > self.bw * (1.0 + 1e-3)
    }
}

/// What limits a graph's channels: the links that carry the largest part of what they can; `None` where channels load no
/// link. Graphs of a search never exceed it. Those of a file may.
#[must_use]
pub fn limit(system: &System, paths: &Paths, graph: &ChannelGraph) -> Option<Limit> {
    let loads = link_loads(system, paths, graph);
    let full = |i: usize| loads[i] / system.links()[i].bw;
    let used = (0..loads.len()).filter(|i| loads[*i] > 0.0);
    let most = used.clone().max_by(|a, b| full(*a).total_cmp(&full(*b)))?;
    let links: Vec<usize> = used.filter(|i| full(*i) > full(most) * (1.0 - 1e-6)).collect();
    let first = *links.first()?;
    let links = links.iter().filter_map(|i| u32::try_from(*i).ok()).map(LinkId).collect();
    Some(Limit { links, load: loads[first], bw: system.links()[first].bw })
}

/// The most bandwidth that the channels of `graph`, wherever they come from, can have on a system: one channel's
/// at the network and within the host, whatever the graph itself says. 0 where there is no path, or no such GPU or port.
#[must_use]
pub fn feasible_bw(system: &System, paths: &Paths, graph: &ChannelGraph) -> (f64, f64) {
    let ways = Ways::new(system, paths);
    if !graph.channels.iter().all(|channel| ways.knows(channel)) {
        return (0.0, 0.0);
    }
    let mut missing = false;
    for channel in &graph.channels {
        ways.intra(graph.pattern, channel, |way, _| missing |= way.is_empty());
        ways.inter(graph.pattern, channel, |way, _| missing |= way.is_empty());
    }
    if missing { (0.0, 0.0) } else { ways.bandwidth(graph.pattern, &graph.channels) }
}

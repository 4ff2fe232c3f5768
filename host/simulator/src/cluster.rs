//! The hosts and the network between them: every link, and the way from each rank to each.

use std::collections::BTreeSet;

use ferroccl::config::Config;
use ferroccl::device::abi::MAX_CHANNELS;
use ferroccl::graph::connect::along_rails;
use ferroccl::graph::tuning::{Settings, Situation};
use ferroccl::graph::{ChannelGraph, HostGraphs, SearchSettings, file};
use ferroccl::topology::{Link, Node, NodeId, Path, Paths, System};

use crate::fabric::{Fabric, FabricSpec, hash};
use crate::{Fault, SimulateError};

/// A host: its devices, and the channels that the search finds.
#[derive(Debug)]
struct HostKind {
    paths: Paths,
    /// By port of this system: the port of the cluster's hosts.
    ports: Vec<u32>,
    /// The channels for hosts of even and of odd numbers.
    rings: [ChannelGraph; 2],
    tree: Option<ChannelGraph>,
    /// By link of this system: the link of the whole host's.
    links: Vec<u32>,
}

/// Hosts like one of a topology file, joined by a network.
#[derive(Debug)]
pub struct Cluster {
    /// The whole host, and those with dead ports.
    kinds: Vec<HostKind>,
    /// By host, its kind where that is not the first.
    other_kinds: Vec<(u32, usize)>,
    system: System,
    /// What the tuner reckons with: the weakest of all kinds.
    weakest: HostGraphs,
    hosts: u32,
    local: u32,
    fabric: Fabric,
    /// Of each link: 10^9 bytes a second, and what it adds to a message, in microseconds. Those of the hosts come first, host by host.
    pub(crate) links: Vec<(f64, f64)>,
    /// Ranks that start late.
    pub(crate) late: Vec<(u32, f64)>,
    config: Config,
    settings: Settings,
    /// Whether a link of some host is not like that of the others.
    uneven: bool,
}

/// The way of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Way {
    pub links: Vec<u32>,
    pub remote: bool,
}

impl Cluster {
    /// `hosts` hosts like `system`, with a rank on each GPU. Channels, algorithms and buffers are as the settings of `config` have them.
    ///
    /// # Errors
    /// [`SimulateError::Cluster`] where a host has no GPUs, or no channels; [`SimulateError::Fabric`] and [`SimulateError::Fault`].
    pub fn new(
        system: &System,
        hosts: u32,
        config: &Config,
        fabric: &FabricSpec,
        faults: &[Fault],
    ) -> Result<Self, SimulateError> {
        let wrong = |why: String| SimulateError::Cluster(why);
        let gpus = system.gpus().len() as u32;
        if system.min_sm() == 0 || gpus == 0 {
            return Err(wrong("the host has no GPUs".to_owned()));
        }
        let hosts = left(hosts, faults)?;
        let ranks = u64::from(gpus) * u64::from(hosts);
        if hosts == 0 || ranks > 1 << 20 {
            return Err(wrong(format!("{ranks} ranks; there may be 1 to {}", 1 << 20)));
        }
        let nets = system.nets();
        let whole = HostKind::new(system, system, hosts, config)?;
        let graphs = |kind: &HostKind| (kind.rings[0].clone(), kind.tree.clone());
        let (ring, tree) = graphs(&whole);
        let mut kinds = vec![whole];
        let mut other_kinds = Vec::new();
        let bandwidths: Vec<f64> = nets.iter().map(|(_, net)| net.bw).collect();
        let fabric = Fabric::new(fabric, if hosts > 1 { hosts } else { 0 }, &bandwidths)?;
        let of_host = system.links().iter().map(|link| (link.bw, 0.0));
        let mut links: Vec<(f64, f64)> = (0..hosts).flat_map(|_| of_host.clone()).collect();
        let first = links.len();
        links.extend(fabric.links().iter().map(|link| (link.bw, link.latency_us)));
        let (mut late, mut uneven) = (Vec::new(), false);
        for fault in faults {
            let there = |host: u32, port: u32| {
                if hosts < 2 || host >= hosts || port as usize >= nets.len() {
                    let all = nets.len();
                    let why = format!("{fault}: there are {hosts} hosts of {all} ports each");
                    return Err(SimulateError::Fault(why));
                }
                Ok(())
            };
            match *fault {
                Fault::SlowLink { host, port, part } => {
                    there(host, port)?;
                    uneven = true;
                    for link in [fabric.up((host, port)), fabric.down((host, port))] {
                        links[first + link as usize].0 *= part;
                    }
                }
                Fault::DeadPort { host, port } => {
                    there(host, port)?;
                    uneven = true;
                    let dead = nets[port as usize].0;
                    let left = without(system, dead);
                    kinds.push(HostKind::new(&left, system, hosts, config)?);
                    other_kinds.retain(|(other, _)| *other != host);
                    other_kinds.push((host, kinds.len() - 1));
                }
                // Its host is not among them.
                Fault::DeadNode { .. } => {}
                Fault::Straggler { rank, late_us } => {
                    if u64::from(rank) >= ranks {
                        let why = format!("{fault}: there are {ranks} ranks");
                        return Err(SimulateError::Fault(why));
                    }
                    late.push((rank, late_us));
                }
                Fault::Background { links: part, load } => {
                    uneven = true;
                    for (i, link) in (0u64..).zip(&mut links[first..]) {
                        let chance = hash(&[i, 0xbac]) as f64 / u64::MAX as f64;
                        if chance < part {
                            link.0 *= 1.0 - load;
                        }
                    }
                }
            }
        }
        let mut weakest = HostGraphs { ring, tree, collnet: None };
        for kind in &kinds[1..] {
            let (ring, tree) = graphs(kind);
            weaken(&mut weakest.ring, &ring);
            match (&mut weakest.tree, tree) {
                (Some(weakest), Some(tree)) => weaken(weakest, &tree),
                (weakest, _) => *weakest = None,
            }
        }
        let settings = Settings { windows: false, ..config.tuning() };
        Ok(Cluster {
            kinds,
            other_kinds,
            system: system.clone(),
            weakest,
            hosts,
            local: gpus,
            fabric,
            links,
            late,
            config: config.clone(),
            settings,
            uneven,
        })
    }

    /// Hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Ranks of a host.
    #[must_use]
    pub fn local_ranks(&self) -> u32 {
        self.local
    }

    /// Ranks of all hosts.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.hosts * self.local
    }

    /// What the tuner knows of the cluster.
    #[must_use]
    pub fn situation(&self) -> Situation<'_> {
        let found = self.weakest.situation(&self.system, self.hosts, self.ranks());
        let SearchSettings { min_channels, max_channels, .. } = self.config.search();
        let most = max_channels.unwrap_or(MAX_CHANNELS as u32).clamp(1, MAX_CHANNELS as u32);
        let channels = found.channels().max(min_channels.unwrap_or(1)).min(most);
        found.with_channels(channels)
    }

    /// What the user has to say about the choice.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The latency of the longest way between the first host and another, in microseconds.
    pub(crate) fn longest_way_us(&self) -> f64 {
        let latency =
            |way: &Way| way.links.iter().map(|link| self.links[*link as usize].1).sum::<f64>();
        let to = |host: u32| self.way((0, host * self.local), |_| None, 0, 0);
        (1..self.hosts).map(|host| latency(&to(host))).fold(0.0, f64::max)
    }

    /// Whether all hosts are alike, and no link is slower than those like it.
    pub(crate) fn is_even(&self) -> bool {
        !self.uneven
    }

    /// What to call a link.
    pub(crate) fn link_name(&self, link: u32) -> String {
        let each = self.system.links().len().max(1);
        let (host, inner) = (link as usize / each, link as usize % each);
        if host >= self.hosts as usize {
            return self.fabric.name(link - (self.hosts as usize * each) as u32);
        }
        let found = self.system.links()[inner];
        let name = |node: NodeId| self.system.name(node);
        format!("host {host}: {} to {}", name(found.from), name(found.to))
    }

    fn kind(&self, host: u32) -> &HostKind {
        let other = self.other_kinds.iter().find(|(other, _)| *other == host);
        &self.kinds[other.map_or(0, |(_, kind)| *kind)]
    }

    /// The channels of rings through a host.
    pub(crate) fn ring_of(&self, host: u32) -> &ChannelGraph {
        &self.kind(host).rings[host as usize % 2]
    }

    /// The channels of trees through a host.
    pub(crate) fn tree_of(&self, host: u32) -> Option<&ChannelGraph> {
        self.kind(host).tree.as_ref()
    }

    /// Whether rings take hosts of odd numbers the other way round.
    pub(crate) fn alternates(&self) -> bool {
        self.kinds[0].rings[0] != self.kinds[0].rings[1]
    }

    /// The way from a rank to another: by these ports, as their hosts number them, where the ranks are on two hosts.
    pub(crate) fn way(
        &self,
        (from, to): (u32, u32),
        ports: impl Fn(u32) -> Option<usize>,
        channel: u32,
        seed: u64,
    ) -> Way {
        let place = |rank: u32| (rank / self.local, (rank % self.local) as usize);
        let ((a, gpu), (b, other)) = (place(from), place(to));
        let each = self.system.links().len() as u32;
        let mut links = Vec::new();
        let pass = |links: &mut Vec<u32>, host: u32, path: &Path| {
            let map = &self.kind(host).links;
            links.extend(path.links.iter().map(|link| host * each + map[link.0 as usize]));
        };
        if a == b {
            pass(&mut links, a, self.kind(a).paths.gpu_gpu(gpu, other));
            return Way { links, remote: false };
        }
        // Ranks that are no neighbours in a channel have their nearest port.
        let port = |host: u32, rank: u32, gpu: usize| {
            let near = || self.kind(host).paths.local_nets(gpu).first().copied();
            ports(rank).or_else(near).unwrap_or(0)
        };
        let (leave, enter) = (port(a, from, gpu), port(b, to, other));
        pass(&mut links, a, self.kind(a).paths.gpu_net(gpu, leave));
        let of = |host: u32, port: usize| (host, self.kind(host).ports[port]);
        let inside = links.len();
        let flow = hash(&[channel.into(), seed]);
        self.fabric.route(of(a, leave), of(b, enter), flow, &mut links);
        links[inside..].iter_mut().for_each(|link| *link += self.hosts * each);
        pass(&mut links, b, self.kind(b).paths.net_gpu(enter, other));
        Way { links, remote: true }
    }
}

/// How many of `hosts` hosts are not dead.
fn left(hosts: u32, faults: &[Fault]) -> Result<u32, SimulateError> {
    let mut dead = BTreeSet::new();
    for fault in faults {
        let Fault::DeadNode { host } = *fault else { continue };
        if host >= hosts {
            return Err(SimulateError::Fault(format!("{fault}: there are {hosts} hosts")));
        }
        dead.insert(host);
    }
    match hosts - dead.len() as u32 {
        0 if hosts > 0 => Err(SimulateError::Fault("no host is left".to_owned())),
        left => Ok(left),
    }
}

/// The system without a port.
fn without(system: &System, port: NodeId) -> System {
    system.filtered(|id, _| id != port)
}

/// As weak as both in everything (as the communicator agrees on).
fn weaken(graph: &mut ChannelGraph, other: &ChannelGraph) {
    graph.channels.truncate(other.channels.len());
    graph.bw_intra = graph.bw_intra.min(other.bw_intra);
    graph.bw_inter = graph.bw_inter.min(other.bw_inter);
    graph.latency_inter = graph.latency_inter.max(other.latency_inter);
    graph.kind_intra = graph.kind_intra.max(other.kind_intra);
    graph.kind_inter = graph.kind_inter.max(other.kind_inter);
    graph.same_channels &= other.same_channels;
    graph.cross_nic |= other.cross_nic;
}

impl HostKind {
    /// The channels of `system`, which is `whole` or a part of it.
    fn new(
        system: &System,
        whole: &System,
        hosts: u32,
        config: &Config,
    ) -> Result<Self, SimulateError> {
        let paths = Paths::new(system, &config.policy());
        let found = file::load(system, &paths, &config.search(), &config.graph_files(), hosts)
            .map_err(|e| SimulateError::Cluster(e.to_string()))?;
        let turned = along_rails(&found.ring, 1);
        let key = |system: &System, id: NodeId| match system.node(id) {
            Node::Net(net) => Some((net.dev, net.port, net.name.clone())),
            _ => None,
        };
        let all: Vec<_> = whole.nets().iter().map(|(id, _)| key(whole, *id)).collect();
        let place = |id: NodeId| all.iter().position(|known| *known == key(system, id));
        let ports = system.nets().iter().map(|(id, _)| place(*id).unwrap_or(0) as u32).collect();
        Ok(HostKind {
            links: same_links(system, whole),
            paths,
            ports,
            rings: [found.ring, turned],
            tree: found.tree,
        })
    }
}

/// For each link of a part of a system, the link of the whole: nodes and links are in the same order there.
fn same_links(part: &System, whole: &System) -> Vec<u32> {
    let mut used = BTreeSet::new();
    let name = |system: &System, id: NodeId| format!("{:?}", system.node(id));
    let ends =
        |system: &System, link: &Link| (name(system, link.from), name(system, link.to), link.kind);
    let all: Vec<_> = whole.links().iter().map(|link| ends(whole, link)).collect();
    let find = |link: &Link| {
        let wanted = ends(part, link);
        let found = (0..all.len()).find(|i| all[*i] == wanted && !used.contains(i));
        let found = found.unwrap_or(0);
        used.insert(found);
        found as u32
    };
    part.links().iter().map(find).collect()
}

//! The channels of a communicator: from what the search finds on each host to the rings and trees over all ranks.
//!
//! ```text
//! each host's first rank   topology ─► its ranks' GPUs only ─► paths ─► search, or a file ─► HostGraphs
//! all ranks                exchange ─► agree: the weakest host counts ─► connect ─► CommGraphs
//! CommGraphs               rings ─► ControlBlock (kernels)   chains ─► Trees   cards ─► Cards (net)   graphs ─► Tuner
//! ```
//!
//! This is what NCCL does between its first and its third exchange (`initTransportsRank` in its init.cc). Ranks on the CPU may
//! stand for the GPUs of a topology file (`FERROCCL_TOPO_RANKS`). Where a host's GPUs are not known, or a GPU has several ranks,
//! there are no graphs: then the ranks connect in their own order, host by host.

mod agreed;
mod pxn;

use std::sync::Arc;

use ferroccl_device::abi::MAX_CHANNELS;
use ferroccl_proxy::net::{Net, Properties};
use ferroccl_topology::graph::tuning::Devices;
use ferroccl_topology::graph::{ChannelGraph, HostGraphs, SearchSettings, file};
use ferroccl_topology::path::direct;
use ferroccl_topology::{
    self as topology, Arch, Assume, BusId, CpuSet, Node, NodeId, Paths, Policy, System,
    TopologyError, Vendor,
};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

pub(super) use self::agreed::{CommGraphs, too_far};
use self::pxn::Relays;
use super::nodes::Nodes;
use super::{CommConfig, fusion, log_topology};
use crate::config::{Config, TopoRanks};
use crate::error::{Error, Result};
use crate::log;
use crate::transport::{FarPair, PeerInfo};

/// The channels that a host offers, as its first rank tells them to all. The local ranks in them are numbered in the order of
/// the ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HostChannels {
    ring: ChannelGraph,
    tree: Option<ChannelGraph>,
    /// The network's device for each port that the channels name, where there is one.
    cards: Vec<Option<u32>>,
    /// Who sends for whom (PXN).
    relays: Relays,
    /// Channels that the host's settings make of them.
    channels: u32,
    min_sm: u32,
    max_sm: u32,
    cpu: (Arch, Vendor),
    nvswitch: bool,
}

/// What a host's first rank tells all; that of other ranks is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HostFindings {
    /// Its channels, where the GPUs are known and paths join them.
    pub(super) channels: Option<HostChannels>,
    /// Pairs of its local ranks that may not write each other's memory, and why.
    too_far: Vec<(u32, u32, FarPair)>,
    /// The cores near the GPU of each of its local ranks.
    pub(super) cores: Vec<CpuSet>,
}

/// What the search has to know of the communicator.
#[derive(Clone, Copy)]
pub(super) struct GraphQuery<'a> {
    pub peers: &'a [PeerInfo],
    pub nodes: &'a Nodes,
    pub env: &'a Config,
    pub config: &'a CommConfig,
    /// The network that this host reaches others by.
    pub net: Option<&'a dyn Net>,
    /// Whether a proxy moves data on beside this rank's own waits, so that it may send for others.
    pub driven: bool,
}

impl GraphQuery<'_> {
    /// The channels of the host of `rank`, if that is the host's first rank and there is something to be known.
    ///
    /// # Errors
    /// A file (`NCCL_TOPO_FILE`, `NCCL_GRAPH_FILE`) or a setting that makes no sense.
    pub(super) fn search(&self, rank: u32) -> Result<HostFindings> {
        let found = self.find(rank)?;
        // Rank 0 looks at the machine's files, too, where the channels do not depend on them.
        if rank == 0 && found.channels.is_none() {
            log_topology::log_topology(self.env)?;
        }
        Ok(found)
    }

    fn find(&self, rank: u32) -> Result<HostFindings> {
        let local = self.nodes.local_members();
        let nothing = HostFindings::default();
        if local.first() != Some(&rank) {
            return Ok(nothing);
        }
        let mut env = self.env.clone();
        if rank != 0 {
            // As in NCCL, rank 0 writes them (NCCL_TOPO_DUMP_FILE_RANK, NCCL_GRAPH_DUMP_FILE_RANK).
            (env.topo_dump_file, env.graph_dump_file) = (None, None);
        }
        let Some((system, gpus)) = self.system(local, &env)? else { return Ok(nothing) };
        let numbers = numbers(&system, &gpus);
        let mut too_far = pairs_too_far(&system, &env.policy(), &numbers);
        let paths = Paths::new(&system, &env.policy());
        let cores = cores(&system, &paths, &numbers);
        // A job on one host has no network, as in NCCL, which takes the cards out of its topology.
        if self.nodes.count() > 1 && !env.net_disable_intra && !env.has_no_net() {
            too_far.extend(pairs_by_network(&paths, &numbers));
        }
        info!(target: log::GRAPH, gpus = paths.gpus(), nets = paths.nets(), cpus = paths.cpus(), "System");
        let hosts = self.nodes.count() as u32;
        let settings = self.settings();
        let graphs = match file::load(&system, &paths, &settings, &env.graph_files(), hosts) {
            Err(error) if env.graph_file.is_none() => {
                warn!(target: log::GRAPH, "the ranks connect in their own order: {error}");
                return Ok(HostFindings { channels: None, too_far, cores });
            }
            graphs => graphs?,
        };
        log_topology::log_graphs(&graphs);
        let relays = self.relays(&system, &paths, &numbers);
        let channels = Some(self.channels(&system, graphs, &numbers, relays)?);
        Ok(HostFindings { channels, too_far, cores })
    }

    /// The settings of the search: the communicator's own limits come before those of the environment.
    fn settings(&self) -> SearchSettings {
        let settings = self.env.search();
        SearchSettings {
            min_channels: self.config.min_channels.or(settings.min_channels),
            max_channels: self.config.max_channels.or(settings.max_channels),
            ..settings
        }
    }

    /// The topology of this host with the GPUs of its ranks alone, and the GPU of each rank; `None` where they are not known.
    fn system(&self, local: &[u32], env: &Config) -> Result<Option<(System, Vec<BusId>)>> {
        let devices: Vec<_> =
            local.iter().map(|rank| self.peers[*rank as usize].device.as_ref()).collect();
        let unknown = |why: String| {
            info!(target: log::GRAPH, "the ranks connect in their own order: {why}");
            Ok(None)
        };
        let (system, gpus) = if devices.iter().all(Option::is_none) {
            let Some(ranks) = &env.topo_ranks else { return Ok(None) };
            played(ranks, local.len(), env)?
        } else {
            let Some(devices) = devices.into_iter().collect::<Option<Vec<_>>>() else {
                return unknown("some ranks of the host have a GPU, and some have none".to_owned());
            };
            let system = match topology::load(&env.topology_files()) {
                Err(error) if env.topo_file.is_none() => return unknown(error.to_string()),
                system => system?,
            };
            let mut gpus = Vec::with_capacity(devices.len());
            for device in devices {
                let known = |id: &BusId| system.gpus().iter().any(|(_, gpu)| gpu.bus_id == *id);
                match device.bus_id.parse().ok().filter(known) {
                    None => return unknown(format!("{} is not in the topology", device.name)),
                    Some(id) if gpus.contains(&id) => {
                        return unknown(format!("{} has several ranks", device.name));
                    }
                    Some(id) => gpus.push(id),
                }
            }
            (system, gpus)
        };
        let used = system.filtered(|_, node| match node {
            Node::Gpu(gpu) => gpus.contains(&gpu.bus_id),
            _ => true,
        });
        let used = topology::trim(&used);
        let played = self.peers.iter().all(|peer| peer.device.is_none());
        let used = match self.net {
            Some(net) => fusion::merged(&used, net, played)?,
            None => used,
        };
        Ok(Some((used, gpus)))
    }

    /// Who sends for whom on this host; nobody, where there is no other host.
    fn relays(&self, system: &System, paths: &Paths, local: &[usize]) -> Relays {
        if !self.driven || self.nodes.count() < 2 {
            return Relays::default();
        }
        Relays::new(system, paths, &self.env.policy(), local)
    }

    /// What this host tells the others. The search numbers the GPUs as the topology does.
    fn channels(
        &self,
        system: &System,
        graphs: HostGraphs,
        local: &[usize],
        relays: Relays,
    ) -> Result<HostChannels> {
        let renumbered = |mut graph: ChannelGraph| {
            for gpu in graph.channels.iter_mut().flat_map(|channel| &mut channel.gpus) {
                *gpu = local[*gpu];
            }
            graph
        };
        let tuned = graphs.situation(system, self.nodes.count() as u32, self.peers.len() as u32);
        let on_gpus = self.peers.iter().all(|peer| peer.device.is_some());
        let natural = match tuned.devices() {
            Devices::Gpus(_) if on_gpus => tuned.channels(),
            _ => graphs.ring.channels.len().min(MAX_CHANNELS) as u32,
        };
        let cpu = system.cpus().first().map(|(_, cpu)| (cpu.arch, cpu.vendor));
        Ok(HostChannels {
            channels: self.config.channels(natural)?.0,
            min_sm: system.min_sm(),
            max_sm: system.gpus().iter().map(|(_, gpu)| gpu.sm).max().unwrap_or(0),
            cpu: cpu.unwrap_or((Arch::Other, Vendor::Other)),
            nvswitch: system.has_nvswitch(),
            cards: self.cards(system)?,
            relays,
            ring: renumbered(graphs.ring),
            tree: graphs.tree.map(renumbered),
        })
    }
}

impl GraphQuery<'_> {
    /// The network's device for each port of the topology: of its name, or of its PCI device. For ranks that stand for GPUs of a
    /// file, the device of its number.
    fn cards(&self, system: &System) -> Result<Vec<Option<u32>>> {
        let Some(net) = self.net else { return Ok(vec![None; system.nets().len()]) };
        let devices = (0..net.devices()).map(|device| net.properties(device));
        let devices = devices.collect::<std::result::Result<Vec<_>, _>>()?;
        let played = self.peers.iter().all(|peer| peer.device.is_none());
        let card = |(id, port): (NodeId, &topology::Net)| {
            let bus_id = nic_of(system, id);
            // A virtual card is known by its name alone.
            let is_port = |card: &Properties| card.port == port.port || !card.members.is_empty();
            let named = |card: &Properties| card.name == port.name && is_port(card);
            let placed = |card: &Properties| {
                bus_id.is_some() && pci_device(card) == bus_id && card.members.is_empty()
            };
            let found = devices.iter().position(named).or_else(|| devices.iter().position(placed));
            let real = |dev: &usize| devices.get(*dev).is_some_and(|card| card.members.is_empty());
            let numbered = || Some(port.dev as usize).filter(|dev| played && real(dev));
            found.or_else(numbered).and_then(|device| u32::try_from(device).ok())
        };
        Ok(system.nets().into_iter().map(card).collect())
    }
}

/// The local rank of each GPU of the system; `gpus` has the GPU of each.
fn numbers(system: &System, gpus: &[BusId]) -> Vec<usize> {
    let place = |id: BusId| gpus.iter().position(|gpu| *gpu == id).unwrap_or(0);
    system.gpus().iter().map(|(_, gpu)| place(gpu.bus_id)).collect()
}

/// The cores near the GPU of each local rank; `local` has each GPU's.
fn cores(system: &System, paths: &Paths, local: &[usize]) -> Vec<CpuSet> {
    let mut cores = vec![CpuSet::default(); local.len()];
    for (gpu, rank) in local.iter().enumerate() {
        if let Some(cores) = cores.get_mut(*rank) {
            *cores = topology::affinity(system, paths, gpu);
        }
    }
    cores
}

/// Pairs of GPUs that may not write each other's memory, and why; `local` has each GPU's local rank.
fn pairs_too_far(system: &System, policy: &Policy, local: &[usize]) -> Vec<(u32, u32, FarPair)> {
    let gpus = system.gpus();
    let pairs = (0..gpus.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let refused = pairs.filter_map(|(a, b)| {
        let kind = direct(system, gpus[a].0, gpus[b].0, policy.nvb).kind;
        let decision = policy.p2p(system, kind);
        let (one, other) = in_order(local, a, b);
        let why = decision.why;
        (!decision.allowed).then_some((one, other, FarPair { why, net_is_faster: false }))
    });
    refused.collect()
}

/// Pairs of GPUs that reach the network faster than each other.
fn pairs_by_network(paths: &Paths, local: &[usize]) -> Vec<(u32, u32, FarPair)> {
    let pairs = (0..paths.gpus()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let faster = pairs.filter_map(|(a, b)| {
        let why = paths.faster_by_network(a, b)?;
        let (one, other) = in_order(local, a, b);
        Some((one, other, FarPair { why, net_is_faster: true }))
    });
    faster.collect()
}

/// The local ranks of two GPUs, the lower one first.
fn in_order(local: &[usize], a: usize, b: usize) -> (u32, u32) {
    (local[a].min(local[b]) as u32, local[a].max(local[b]) as u32)
}

/// The PCI device that a port is of.
pub(super) fn nic_of(system: &System, port: NodeId) -> Option<BusId> {
    system.links_from(port).find_map(|(_, link)| match system.node(link.to) {
        Node::Nic(nic) => nic.bus_id,
        _ => None,
    })
}

/// The PCI device of a network's device.
pub(super) fn pci_device(card: &Properties) -> Option<BusId> {
    card.pci_path.as_deref()?.rsplit('/').next()?.parse().ok()
}

/// The system of the file whose GPUs `ranks` ranks on the CPU stand for, and their GPUs.
fn played(ranks: &TopoRanks, count: usize, env: &Config) -> Result<(System, Vec<BusId>)> {
    let wrong = |reason: String| Error::InvalidSetting {
        name: "FERROCCL_TOPO_RANKS".to_owned(),
        value: ranks.to_string(),
        reason,
    };
    let Some(file) = &env.topo_file else {
        return Err(wrong("the GPUs are those of NCCL_TOPO_FILE, which is not set".to_owned()));
    };
    // Files may leave the compute capability to the machine. It does not matter to the CPU.
    let assume = Assume { sm: Some(80), ..Assume::default() };
    let system = topology::load_file(file.as_ref(), &assume)?;
    if let Some(path) = &env.topo_dump_file {
        let text = topology::dump::to_xml(&system)?.to_xml();
        std::fs::write(path, text)
            .map_err(|e| TopologyError::Io { path: path.into(), source: Arc::new(e) })?;
    }
    let all = system.gpus();
    let chosen: Vec<u32> = match ranks {
        TopoRanks::All => all.iter().map(|(_, gpu)| gpu.dev).collect(),
        TopoRanks::Gpus(numbers) => numbers.clone(),
    };
    if chosen.len() < count {
        let there = chosen.len();
        return Err(wrong(format!("the host has {count} ranks, and these are {there} GPUs")));
    }
    let gpu = |number: &u32| {
        let found = all.iter().find(|(_, gpu)| gpu.dev == *number).map(|(_, gpu)| gpu.bus_id);
        found.ok_or_else(|| wrong(format!("{file} has no GPU {number}")))
    };
    let gpus = chosen[..count].iter().map(gpu).collect::<Result<_>>()?;
    Ok((system, gpus))
}

#[cfg(test)]
#[path = "graphs_tests.rs"]
mod tests;

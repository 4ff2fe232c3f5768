//! All graphs of a host, as a communicator over so many hosts has them.

use super::search::{MAX_CHANNELS, Wanted, search};
use super::tuning::{Devices, Gpus, Situation};
use super::{ChannelGraph, GraphId};
use crate::{Arch, CrossNic, Paths, System, Vendor};

/// The channels of a host for each kind of algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct HostGraphs {
    /// The rings.
    pub ring: ChannelGraph,
    /// The trees; as many as rings.
    pub tree: Option<ChannelGraph>,
    /// The chains to a network that reduces; only over several hosts, and where a port says that it does.
    pub collnet: Option<ChannelGraph>,
}

/// What the user has to say about the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchSettings {
    /// The fewest channels there are (`NCCL_MIN_NCHANNELS`).
    pub min_channels: Option<u32>,
    /// The most channels there are (`NCCL_MAX_NCHANNELS`).
    pub max_channels: Option<u32>,
    /// Whether a ring may leave a host by another port than it came in by (`NCCL_CROSS_NIC`).
    pub cross_nic: CrossNic,
}

impl Default for SearchSettings {
    fn default() -> Self {
        SearchSettings { min_channels: None, max_channels: None, cross_nic: CrossNic::IfBetter }
    }
}

/// No channels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChannels {
    /// The host has nothing that ranks run on.
    #[error("the host has no GPU")]
    NoGpu,
    /// There are several hosts, and this one has no port.
    #[error("there are {0} hosts, and the host has no network port")]
    NoNetwork(u32),
    /// No path that the policy allows joins them.
    #[error("no channel passes all {gpus} GPUs{with}: too few paths are allowed between them", with = if *network { " and the network" } else { "" })]
    NotConnected {
        /// GPUs there are.
        gpus: usize,
        /// Whether the network had to be reached.
        network: bool,
    },
}

impl HostGraphs {
    /// Searches for all of them, for a communicator over `hosts` hosts like this one; `settings` bound the
    /// number of channels.
    ///
    /// # Errors
    /// [`NoChannels`] when there is no ring.
    pub fn search(
        system: &System,
        paths: &Paths,
        settings: &SearchSettings,
        hosts: u32,
    ) -> Result<Self, NoChannels> {
        let network = hosts > 1;
        if paths.gpus() == 0 {
            return Err(NoChannels::NoGpu);
        }
        if network && paths.nets() == 0 {
            return Err(NoChannels::NoNetwork(hosts));
        }
        let least = settings.min_channels.map_or(1, |n| n as usize);
        let most = settings.max_channels.map_or(MAX_CHANNELS, |n| n as usize);
        let find = |id, min_channels, max_channels| {
            let cross_nic = settings.cross_nic;
            let wanted =
                Wanted { network, cross_nic, min_channels, max_channels, ..Wanted::new(id) };
            search(system, paths, &wanted)
        };
        let none = NoChannels::NotConnected { gpus: paths.gpus(), network };
        let mut ring = find(GraphId::Ring, least, most).ok_or(none)?;
        // As in NCCL, there are no more of them than rings.
        let mut tree = find(GraphId::Tree, 1, ring.channels.len());
        // A channel has one of each. The fewer are repeated, as often as they fit.
        if let Some(found) = &mut tree {
            let (a, b) = (ring.channels.len(), found.channels.len());
            let n = a.min(b) * (a.max(b) / a.min(b).max(1));
            for (graph, id) in [(&mut ring, GraphId::Ring), (found, GraphId::Tree)] {
                if graph.channels.len() != n
                    && let Some(anew) = find(id, n, n)
                {
                    *graph = anew;
                }
            }
        }
        let n = ring.channels.len();
        let reduces = network && system.nets().iter().any(|(_, net)| net.coll);
        let collnet = if reduces { find(GraphId::CollNet, n, n) } else { None };
        Ok(HostGraphs { ring, tree, collnet })
    }

    /// Replaces those that a file has.
    pub fn replace(&mut self, graphs: impl IntoIterator<Item = ChannelGraph>) {
        for graph in graphs {
            match graph.id {
                GraphId::Ring => self.ring = graph,
                GraphId::Tree => self.tree = Some(graph),
                GraphId::CollNet => self.collnet = Some(graph),
            }
        }
    }

    /// The situation of `ranks` on `nodes` hosts that are like `system`, evenly.
    #[must_use]
    pub fn situation(&self, system: &System, nodes: u32, ranks: u32) -> Situation<'_> {
        if system.min_sm() == 0 {
            return Situation::new(nodes, ranks, Devices::Cpu { ring: Some(&self.ring) });
        }
        let cpu = system.cpus().first().map(|(_, cpu)| (cpu.arch, cpu.vendor));
        let gpus = Gpus {
            ring: &self.ring,
            tree: self.tree.as_ref(),
            collnet: self.collnet.as_ref(),
            min_sm: system.min_sm(),
            max_sm: system.gpus().iter().map(|(_, gpu)| gpu.sm).max().unwrap_or(0),
            cpu: cpu.unwrap_or((Arch::Other, Vendor::Other)),
            nvswitch: system.has_nvswitch(),
        };
        Situation::new(nodes, ranks, Devices::Gpus(gpus))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &ChannelGraph> {
        [&self.ring].into_iter().chain(&self.tree).chain(&self.collnet)
    }
}

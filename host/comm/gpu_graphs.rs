//! The graphs that the tuning model gets for the GPUs of a communicator.
//!
//! The ranks are a ring in their own order, and not yet in the order of the search (`graph::search`). Every channel is as fast
//! as the slowest connection between two neighbours: within a GPU, by NVLink, or through the host.

use crate::transport::{AllowedTransports, PeerInfo, device};
use ferroccl_topology::graph::tuning::{Devices, Gpus};
use ferroccl_topology::graph::{ChannelGraph, GraphChannel, GraphId, Pattern};
use ferroccl_topology::{Arch, PathKind, Vendor, speed};

/// Bandwidth of a channel between GPUs that reach each other, 10^9 bytes a second: what a block of a ring moves at most,
/// as of `NVLink` in the search's list of speeds. Not measured yet.
const DEVICE_BW: f64 = 20.0;
/// NVLinks of a GPU by compute capability, from so much on: of V100, A100 and H100 (NVIDIA's data sheets). Other GPUs may have fewer.
const NVLINKS: [(u32, u32); 3] = [(90, 18), (80, 12), (0, 6)];
/// Bandwidth of a channel through the host's memory.
const HOST_BW: f64 = 12.0;
/// Channels at most where GPUs do not all reach each other: a bus or a card is full with fewer, and each channel has pinned
/// memory of its own with every peer. As many as NCCL makes for the 8 GPUs and 8 cards of a host.
const HOST_CHANNELS: u32 = 16;

/// The most channels that are of use.
pub(super) fn most_channels(peers: &[PeerInfo], allowed: AllowedTransports<'_>) -> u32 {
    let gpus = peers.iter().any(|peer| peer.device.is_some());
    let reach = peers.iter().all(|from| {
        peers.iter().all(|to| from.rank == to.rank || device::reaches(from, to, allowed))
    });
    if gpus && !reach { HOST_CHANNELS } else { u32::MAX }
}

/// A ring and a tree over the GPUs of the first host.
pub(super) struct GpuGraphs {
    ring: ChannelGraph,
    tree: ChannelGraph,
    capabilities: (u32, u32),
    /// Whether each two GPUs of the first host reach each other's memory.
    all_reach: bool,
}

impl GpuGraphs {
    /// For ranks that all have GPUs; `None` for others.
    pub(super) fn new(
        peers: &[PeerInfo],
        channels: u32,
        allowed: AllowedTransports<'_>,
    ) -> Option<Self> {
        let capabilities: Vec<u32> = peers
            .iter()
            .map(|peer| peer.device.as_ref().map(|d| d.capability))
            .collect::<Option<_>>()?;
        let capabilities = (*capabilities.iter().min()?, *capabilities.iter().max()?);
        let first = peers.first()?;
        let local: Vec<&PeerInfo> = peers.iter().filter(|peer| peer.host == first.host).collect();
        let pairs = || local.iter().zip(local.iter().cycle().skip(1));
        let reach = peers.iter().enumerate().all(|(i, peer)| {
            let next = &peers[(i + 1) % peers.len()];
            peers.len() == 1 || peer.host != next.host || device::reaches(peer, next, allowed)
        });
        let one = pairs()
            .all(|(a, b)| a.device.as_ref().map(|d| d.id) == b.device.as_ref().map(|d| d.id));
        let all_reach = local.iter().all(|one| {
            let others = local.iter().filter(|other| other.rank != one.rank);
            others.into_iter().all(|other| device::reaches(one, other, allowed))
        });
        let (kind_intra, bw_intra) = match (reach, one) {
            (true, true) => (PathKind::Loc, DEVICE_BW),
            (true, false) => {
                // All channels together have the GPU's links.
                let sm = capabilities.0;
                let links = NVLINKS.iter().find(|(from, _)| sm >= *from).map_or(0, |(_, n)| *n);
                let all = f64::from(links) * speed::nvlink(sm);
                (PathKind::Nvl, DEVICE_BW.min(all / f64::from(channels.max(1))))
            }
            (false, _) => (PathKind::Phb, HOST_BW),
        };
        let channel = GraphChannel { nets: None, gpus: (0..local.len()).collect() };
        let graph = |id, pattern| ChannelGraph {
            id,
            pattern,
            cross_nic: false,
            same_channels: true,
            bw_intra,
            bw_inter: HOST_BW,
            latency_inter: 0.0,
            kind_intra,
            // A proxy moves data through the host's memory.
            kind_inter: PathKind::Phb,
            channels: vec![channel.clone(); channels as usize],
        };
        Some(GpuGraphs {
            ring: graph(GraphId::Ring, Pattern::Ring),
            tree: graph(GraphId::Tree, Pattern::BalancedTree),
            capabilities,
            all_reach,
        })
    }

    /// The devices of the tuning model.
    pub(super) fn devices(&self) -> Devices<'_> {
        let cpu = if cfg!(target_arch = "aarch64") { Arch::Arm } else { Arch::X86 };
        Devices::Gpus(Gpus {
            ring: &self.ring,
            tree: Some(&self.tree),
            collnet: None,
            min_sm: self.capabilities.0,
            max_sm: self.capabilities.1,
            cpu: (cpu, Vendor::Intel),
            // Not known: those that all reach each other are taken to be alike.
            nvswitch: self.all_reach,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::DeviceInfo;

    /// On a host, with a GPU that reaches these.
    fn peer(rank: u32, host: &str, gpu: Option<(u8, &[u8])>) -> PeerInfo {
        let id = |number: u8| [number; 16];
        let device = gpu.map(|(number, reach)| DeviceInfo {
            name: format!("GPU {number}"),
            bus_id: String::new(),
            id: id(number),
            capability: 90,
            reach: reach.iter().map(|number| id(*number)).collect(),
        });
        PeerInfo {
            rank,
            pid: 1,
            process: 1,
            space: 1,
            device,
            host: host.to_owned(),
            pid_namespace: String::new(),
            cores: ferroccl_topology::CpuSet::default(),
        }
    }

    #[test]
    fn channels_share_the_links_of_a_gpu() {
        let allowed = AllowedTransports { p2p: true, shm: true, net: true, too_far: None };
        let both: &[u8] = &[1, 2];
        let apart = [peer(0, "a", Some((1, both))), peer(1, "a", Some((2, both)))];
        let bandwidth = |peers: &[PeerInfo], channels: u32| {
            let graphs = GpuGraphs::new(peers, channels, allowed).unwrap();
            graphs.ring.bw_intra * graphs.ring.channels.len() as f64
        };
        // 18 links of 20.6.
        assert!((bandwidth(&apart, 32) - 370.8).abs() < 0.1, "{}", bandwidth(&apart, 32));
        assert_eq!(bandwidth(&apart, 2), 40.0);
        let one = [peer(0, "a", Some((1, both))), peer(1, "a", Some((1, both)))];
        assert_eq!(bandwidth(&one, 32), 640.0);
    }

    #[test]
    fn channels_are_few_where_memory_is_not_reached() {
        let allowed = AllowedTransports { p2p: true, shm: true, net: true, too_far: None };
        let most = |peers: &[PeerInfo]| most_channels(peers, allowed);
        let both: &[u8] = &[1, 2];
        assert_eq!(most(&[peer(0, "a", Some((1, both))), peer(1, "a", Some((2, both)))]), u32::MAX);
        assert_eq!(most(&[peer(0, "a", Some((1, both))), peer(1, "a", Some((2, &[2])))]), 16);
        assert_eq!(most(&[peer(0, "a", Some((1, both))), peer(1, "b", Some((2, both)))]), 16);
        assert_eq!(most(&[peer(0, "a", Some((1, both)))]), u32::MAX);
        assert_eq!(most(&[peer(0, "a", None), peer(1, "b", None)]), u32::MAX, "CPUs");
        let off = AllowedTransports { p2p: false, ..allowed };
        let one = [peer(0, "a", Some((1, both))), peer(1, "a", Some((1, both)))];
        assert_eq!((most(&one), most_channels(&one, off)), (u32::MAX, 16));
    }
}

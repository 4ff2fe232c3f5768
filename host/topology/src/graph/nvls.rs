//! The heads of NCCL's NVLS algorithms, in which switches reduce and copy (`NVLink` SHARP). FerroCCL has no such kernels: this
//! is for `ferroccl explain`, which says where NCCL would take them.
//!
//! Each head is a GPU that reads from the switches what they have reduced, and writes what they are to copy to all. In a
//! channel of bandwidth `b` the head has `2 b` on its link to the switches each way, and every other GPU `b`
//! (`ncclTopoSearchTryNvls` in NCCL 2.30's `src/graph/search.cc`).

use crate::{LinkKind, Node, NodeId, Paths, System};

/// NCCL's search speeds within a host and to the network, for Hopper and for Blackwell (`sm90SpeedArrayIntra` and so on).
const HOPPER: [&[f64]; 2] = [
    &[60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0],
    &[
        48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24,
        0.12,
    ],
];
const BLACKWELL: [&[f64]; 2] = [
    &[90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0],
    &[
        96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0,
        3.0, 2.4, 1.2, 0.24, 0.12,
    ],
];

/// Heads at most (`NCCL_MAX_NVLS_ARITY`).
const MOST_HEADS: usize = 32;

/// The heads of a host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NvlsHeads {
    /// How many there are; at least 2.
    pub count: u32,
    /// What each has of its link to the switches, 10^9 bytes a second.
    pub bw_intra: f64,
    /// What each has of a network card; on one host, what NCCL's model reckons with there.
    pub bw_inter: f64,
    /// What the cards add to a message, in microseconds; 0 on one host.
    pub latency_inter: f64,
}

impl NvlsHeads {
    /// The heads of a host, alone or among others; `None` without switches or before sm_90.
    ///
    /// ```
    /// use ferroccl_topology::graph::NvlsHeads;
    /// use ferroccl_topology::{Paths, Policy, System};
    ///
    /// let system = System::default();
    /// assert_eq!(NvlsHeads::new(&system, &Paths::new(&system, &Policy::default()), false), None);
    /// ```
    #[must_use]
    pub fn new(system: &System, paths: &Paths, several_hosts: bool) -> Option<Self> {
        let speeds = match system.min_sm() {
            100.. => BLACKWELL,
            90.. => HOPPER,
            _ => return None,
        }[usize::from(several_hosts)];
        let link = system.gpus().into_iter().map(|(gpu, _)| to_switches(system, gpu));
        let link = link.reduce(f64::min).filter(|link| *link > 0.0)?;
        // A GPU that is a head has its own channel twice.
        let room = |heads: usize, speed: f64| (heads + 1) as f64 * speed <= link + 1e-9;
        let all = paths.gpus().min(MOST_HEADS);
        let (count, bw_intra, most_inter, latency_inter) = if several_hosts {
            let (mut best, mut fastest, mut latency) = ((0, 0.0_f64), 0.0, 0.0);
            for &speed in speeds {
                let heads = heads(system, paths, speed);
                let count = (1..=heads.len().min(all)).rfind(|n| room(*n, speed)).unwrap_or(0);
                // More heads, or more of the network.
                if count > best.0 || count as f64 * speed > best.0 as f64 * best.1 {
                    best = (count, speed);
                    fastest =
                        heads[..count].iter().map(|(bw, _)| *bw).fold(f64::INFINITY, f64::min);
                    latency =
                        heads[..count].iter().map(|(_, latency)| *latency).fold(0.0, f64::max);
                }
                // NCCL tries no speed of less than half of what it has found.
                if best.0 > 0 && speed / best.1 <= 0.49 {
                    break;
                }
            }
            (best.0, best.1, fastest, latency)
        } else {
            let speed = speeds.iter().copied().find(|speed| room(all, *speed))?;
            (all, speed, f64::INFINITY, 0.0)
        };
        // Then the way out gets faster, as far as the cards go and up to the first speed of twice the way within.
        let faster = speeds.iter().rev().copied().filter(|speed| *speed > bw_intra);
        let mut bw_inter = bw_intra;
        for speed in faster {
            if speed > most_inter || bw_inter >= 2.0 * bw_intra {
                break;
            }
            bw_inter = speed;
        }
        (count >= 2).then_some(NvlsHeads { count: count as u32, bw_intra, bw_inter, latency_inter })
    }
}

/// What a GPU has to the switches of its host.
fn to_switches(system: &System, gpu: NodeId) -> f64 {
    let links = system.links_from(gpu).filter(|(_, link)| {
        link.kind == LinkKind::Nvl && matches!(system.node(link.to), Node::Nvs)
    });
    links.map(|(_, link)| link.bw).sum()
}

/// The bandwidth and latency of the card of each GPU that may be a head at this speed: those that send through a card.
fn heads(system: &System, paths: &Paths, speed: f64) -> Vec<(f64, f64)> {
    let mut gpus = Vec::new();
    let mut heads = Vec::new();
    for (number, (_, net)) in system.nets().into_iter().enumerate() {
        let Some(gpu) = paths.local_gpu(system, number) else { continue };
        if net.bw >= speed && !gpus.contains(&gpu) {
            gpus.push(gpu);
            heads.push((net.bw, net.latency));
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use crate::graph::tuning::{AbsentAlgorithm, Collective, Devices, Gpus, absent_cost};
    use crate::graph::{HostGraphs, SearchSettings};

    fn machine(name: &str, gpus: usize) -> (System, Paths) {
        let files = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/topology_files/");
        let path = format!("{files}{name}.xml");
        let system = crate::load_file(path.as_ref(), &Default::default()).unwrap();
        let used: Vec<_> = system.gpus()[..gpus].iter().map(|(id, _)| *id).collect();
        let system =
            system.filtered(|id, node| !matches!(node, Node::Gpu(_)) || used.contains(&id));
        let paths = Paths::new(&system, &Policy::default());
        (system, paths)
    }

    /// By hand, from NCCL's conditions: a link of 370.8 GB/s has room for (8 + 1) x 40 and not for 9 x 42; cards have 50.
    #[test]
    fn heads_of_h100() {
        let (system, paths) = machine("hgx-h100", 8);
        let heads = |several| NvlsHeads::new(&system, &paths, several).unwrap();
        let alone = NvlsHeads { count: 8, bw_intra: 40.0, bw_inter: 60.0, latency_inter: 0.0 };
        // The next step after 60, which is less than twice 40, does not exist.
        assert_eq!(heads(false), alone);
        let among = heads(true);
        assert_eq!((among.count, among.bw_intra, among.bw_inter), (8, 40.0, 48.0));
        // With half of the GPUs there is room for faster ones.
        let (system, paths) = machine("hgx-h100", 4);
        let heads = NvlsHeads::new(&system, &paths, false).unwrap();
        assert_eq!((heads.count, heads.bw_intra), (4, 60.0));
        let (system, paths) = machine("dgx-a100", 8);
        assert_eq!(NvlsHeads::new(&system, &paths, false), None);
    }

    /// `busbw` by hand, after `ncclTopoTuneModel`.
    #[test]
    fn what_nvls_would_take() {
        let (system, paths) = machine("hgx-h100", 8);
        let busbw = |nodes: u32, collective, algorithm| {
            let heads = NvlsHeads::new(&system, &paths, nodes > 1);
            let graphs = HostGraphs::search(&system, &paths, &SearchSettings::default(), nodes);
            let graphs = graphs.unwrap();
            let s = graphs.situation(&system, nodes, 8 * nodes);
            let cost = absent_cost(&s, heads.as_ref(), collective, algorithm, 1 << 30)?;
            Some((cost.bandwidth * collective.bus_factor(8 * nodes), cost.latency_us))
        };
        use AbsentAlgorithm::{Nvls, NvlsTree, Pat};
        let close = |found: Option<(f64, f64)>, wanted: (f64, f64)| {
            let found = found.unwrap();
            assert!((found.0 - wanted.0).abs() < 0.01, "{found:?} {wanted:?}");
            assert!((found.1 - wanted.1).abs() < 0.01, "{found:?} {wanted:?}");
        };
        let reduce = Collective::AllReduce;
        // 8 channels of 2 x 40 x 0.85 x 7/8.
        close(busbw(1, reduce, Nvls), (476.0, 25.0));
        close(busbw(1, Collective::AllGather, Nvls), (8.0 * 29.75 * 7.0 / 8.0 * 7.0 / 8.0, 25.0));
        // Two hosts: 57.7 a channel at most. More: 45.5.
        close(busbw(2, reduce, NvlsTree), (8.0 * 57.7, 25.0 + 2.0 * 20.9));
        close(busbw(16, reduce, NvlsTree), (8.0 * 45.5, 25.0 + 8.0 * 20.9));
        for (nodes, collective, algorithm) in [
            (1, reduce, NvlsTree),
            (2, reduce, Nvls),
            (2, Collective::AllGather, NvlsTree),
            (1, Collective::Broadcast, Nvls),
            (2, Collective::AllGather, Pat),
        ] {
            assert_eq!(
                busbw(nodes, collective, algorithm),
                None,
                "{nodes} {collective} {algorithm:?}"
            );
        }
    }

    /// On hosts of one GPU each; by hand, after `ncclTopoTuneModel`.
    #[test]
    fn what_pat_would_take() {
        let (system, paths) = machine("hgx-h100", 1);
        let graphs = HostGraphs::search(&system, &paths, &SearchSettings::default(), 16).unwrap();
        let s = graphs.situation(&system, 16, 16);
        let Devices::Gpus(Gpus { tree, ring, .. }) = s.devices() else { panic!("GPUs") };
        let graph = tree.unwrap_or(ring);
        let cost = |collective| absent_cost(&s, None, collective, AbsentAlgorithm::Pat, 1 << 20);
        let found = cost(Collective::AllGather).unwrap();
        let inter = 14.0 + 2.0 * graph.latency_inter;
        let latency = 8.0 + 4.0 * inter / 3.5 + 16.0 * 2.8;
        assert!((found.latency_us - latency).abs() < 1e-9, "{found:?} {latency}");
        let all = graph.channels.len() as f64 * graph.bw_inter.min(graph.bw_intra);
        assert!((found.bandwidth - 0.75 * all).abs() < 1e-9, "{found:?} {all}");
        assert_eq!(cost(Collective::AllReduce), None);
    }
}

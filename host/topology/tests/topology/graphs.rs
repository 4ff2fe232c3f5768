//! Topology, search and connection: what must hold for every system.
//!
//! `FERROCCL_TOPOLOGY_SEEDS` sets how many random systems are tried; a failure names its seed.

use ferroccl_topology::graph::connect::{self, NONE};
use ferroccl_topology::graph::search::{Wanted, search};
use ferroccl_topology::graph::{ChannelGraph, GraphChannel, GraphId, Pattern, link_loads, tree};
use ferroccl_topology::{Path, PathKind, Paths, System};

use crate::random::Random;
use crate::systems;

fn seeds() -> u64 {
    std::env::var("FERROCCL_TOPOLOGY_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

/// Runs `check` for each seed; what fails says which.
fn for_each_seed(check: impl Fn(&mut Random)) {
    for seed in 0..seeds() {
        let run = std::panic::AssertUnwindSafe(|| check(&mut Random(seed)));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// What the channels put on each link, counted anew from the definition at `ChannelGraph`, without the extra cost
/// of some host bridges.
fn loads(system: &System, paths: &Paths, graph: &ChannelGraph) -> Vec<f64> {
    let mut loads = vec![0.0; system.links().len()];
    let mut add =
        |path: &Path, bw: f64| path.links.iter().for_each(|id| loads[id.0 as usize] += bw);
    for GraphChannel { nets, gpus } in &graph.channels {
        let (b, n) = (graph.bw_intra, graph.bw_inter);
        let (first, last) = (gpus[0], gpus[gpus.len() - 1]);
        for pair in gpus.windows(2) {
            if graph.pattern == Pattern::Ring {
                add(paths.gpu_gpu(pair[0], pair[1]), b);
            } else {
                add(paths.gpu_gpu(pair[0], pair[1]), b / 2.0);
                add(paths.gpu_gpu(pair[1], pair[0]), b / 2.0);
            }
        }
        let second = *gpus.get(1).unwrap_or(&first);
        match (graph.pattern, *nets) {
            (Pattern::Ring, None) if gpus.len() > 1 => add(paths.gpu_gpu(last, first), b),
            (Pattern::Ring, Some([come, leave])) => {
                add(paths.net_gpu(come, first), n);
                add(paths.gpu_net(last, leave), n);
            }
            (pattern, Some([net, _])) => {
                let at = match pattern {
                    Pattern::SplitTree => [first, first, second, second],
                    Pattern::BalancedTree => [first, first, first, second],
                    _ => [first; 4],
                };
                for gpu in at {
                    add(paths.net_gpu(net, gpu), n / 4.0);
                    add(paths.gpu_net(gpu, net), n / 4.0);
                }
            }
            _ => {}
        }
    }
    loads
}

/// The invariants of a graph that a search returned.
fn check_graph(system: &System, paths: &Paths, graph: &ChannelGraph, wanted: &Wanted) {
    let gpus = paths.gpus();
    assert!(!graph.channels.is_empty() && graph.channels.len() <= wanted.max_channels);
    assert!(graph.channels.len() >= wanted.min_channels.min(wanted.max_channels));
    for channel in &graph.channels {
        let mut all = channel.gpus.clone();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..gpus), "each GPU once: {channel:?}");
        assert_eq!(channel.nets.is_some(), wanted.network);
        if let Some([come, leave]) = channel.nets {
            assert!(come < paths.nets() && leave < paths.nets());
            assert!(graph.cross_nic || come == leave);
            assert!(graph.pattern == Pattern::Ring || come == leave, "a tree has one port");
        }
    }
    assert!(graph.bw_intra > 0.0 && graph.bw_intra.is_finite());
    assert!(graph.bw_inter > 0.0 && graph.bw_inter.is_finite());
    assert!(graph.kind_intra < PathKind::Dis && graph.kind_inter < PathKind::Dis);
    for (load, link) in loads(system, paths, graph).iter().zip(system.links()) {
        assert!(*load <= link.bw * (1.0 + 1e-9) + 1e-9, "{load} on {link:?} in {graph:?}");
    }
    for (load, link) in link_loads(system, paths, graph).iter().zip(system.links()) {
        assert!(*load <= link.bw * (1.0 + 1e-9) + 1e-9, "{load} on {link:?} in {graph:?}");
    }
}

#[test]
fn channels_of_random_systems_hold_every_gpu_once_and_overload_no_link() {
    let (mut found, mut none) = (0, 0);
    for_each_seed(|random| {
        let system = systems::system(random);
        let policy = systems::policy(random);
        let paths = Paths::new(&system, &policy);
        for id in [GraphId::Ring, GraphId::Tree, GraphId::CollNet] {
            for network in [false, true] {
                let wanted = Wanted {
                    network,
                    cross_nic: policy.cross_nic,
                    min_channels: random.pick(&[1, 1, 2, 7]),
                    max_channels: random.pick(&[1, 2, 16, 32]),
                    steps: 4000,
                    ..Wanted::new(id)
                };
                let graph = search(&system, &paths, &wanted);
                assert_eq!(graph, search(&system, &paths, &wanted), "the same twice");
                if let Some(graph) = graph {
                    check_graph(&system, &paths, &graph, &wanted);
                }
            }
        }
    });
    // That something was found at all is checked on its own: the closure above must stay `Fn`.
    for seed in 0..seeds().min(200) {
        let system = systems::system(&mut Random(seed));
        let paths = Paths::new(&system, &ferroccl_topology::Policy::default());
        match search(&system, &paths, &Wanted::new(GraphId::Ring)) {
            Some(_) => found += 1,
            None => none += 1,
        }
    }
    assert!(none == 0, "every host hangs together: {none} without a ring, {found} with");
}

#[test]
fn paths_are_ways_along_links() {
    for_each_seed(|random| {
        let system = systems::system(random);
        let policy = systems::policy(random);
        let paths = Paths::new(&system, &policy);
        for &from in paths.nodes() {
            for &to in paths.nodes() {
                let path = paths.between(from, to).unwrap();
                if !path.exists() {
                    continue;
                }
                let mut at = from;
                for id in &path.links {
                    let link = system.link(*id);
                    assert_eq!(link.from, at, "{path:?}");
                    assert!(path.bw <= link.bw);
                    at = link.to;
                }
                assert_eq!(at, to, "{path:?}");
                assert_eq!(path.kind == PathKind::Loc && path.links.is_empty(), from == to);
            }
        }
    });
}

#[test]
fn rings_and_trees_over_hosts_hold_every_rank_once() {
    for_each_seed(|random| {
        let system = systems::system(random);
        let paths = Paths::new(&system, &systems::policy(random));
        let hosts = random.below(40) as u32 + 1;
        let local = paths.gpus() as u32;
        let network = hosts > 1 && paths.nets() > 0;
        let wanted = |id| Wanted { network, steps: 2000, ..Wanted::new(id) };
        if let Some(graph) = search(&system, &paths, &wanted(GraphId::Ring)) {
            let odd = connect::along_rails(&graph, 1);
            let rings = connect::rings(&connect::alike([&graph, &odd], hosts, local)).unwrap();
            assert_eq!(rings.len(), graph.channels.len());
            for ring in rings {
                assert_eq!(ring.next.len() as u32, hosts * local);
                assert!(ring.is_whole(), "{ring:?}");
            }
        }
        if let Some(graph) = search(&system, &paths, &wanted(GraphId::Tree)) {
            let trees = connect::trees(&connect::alike([&graph; 2], hosts, local)).unwrap();
            assert_eq!(trees.len(), graph.channels.len() * if hosts > 1 { 2 } else { 1 });
            for tree in trees {
                let depth = tree.depth().expect("a tree over all ranks");
                let bound = 2.0 * f64::from(hosts).log2().ceil() + f64::from(local);
                assert!(depth as f64 <= bound, "{depth} over {hosts} hosts of {local}");
                let inner = tree.down.iter().flatten().filter(|rank| **rank != NONE).count();
                assert_eq!(inner as u32, hosts * local - 1);
            }
        }
    });
}

#[test]
fn an_even_number_of_hosts_has_no_inner_node_in_both_trees() {
    for hosts in (2..600).step_by(2) {
        for host in 0..hosts {
            let both = tree::first(hosts, host).is_inner() && tree::second(hosts, host).is_inner();
            assert!(!both, "host {host} of {hosts}");
        }
    }
}

/// As in NCCL, data leaves by a neighbour's card through that GPU's `NVLink`, and never comes in so: a card writes to its own
/// GPU, or through the host.
#[test]
fn pxn_is_a_way_out_only() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/topology_files/hgx-h100.xml");
    let assume = ferroccl_topology::Assume::default();
    let system = ferroccl_topology::load_file(file.as_ref(), &assume).unwrap();
    let paths = Paths::new(&system, &ferroccl_topology::Policy::default());
    let pairs = || (0..paths.gpus()).flat_map(|gpu| (0..paths.nets()).map(move |net| (gpu, net)));
    let out = pairs().filter(|(gpu, net)| paths.gpu_net(*gpu, *net).kind == PathKind::Pxn);
    assert_eq!(out.count(), 8 * 7, "each GPU has a card of its own, and seven of others");
    assert!(pairs().all(|(gpu, net)| paths.net_gpu(net, gpu).kind != PathKind::Pxn));
}

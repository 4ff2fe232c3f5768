//! Graphs that no search gives, sizes that no machine holds: a time, or a reason.

use ferroccl::ProtocolId;
use ferroccl::graph::tuning::{
    Algorithm, Collective, Devices, Gpus, Settings, Situation, Tuner, choose, predict, switches,
};
use ferroccl::graph::tuning::{
    AlgorithmFigures, OwnKernels, ProtocolFigures, Selectable, Selection,
};
use ferroccl::graph::{ChannelGraph, GraphChannel, GraphId, Pattern};
use ferroccl::topology::{Arch, PathKind, Vendor};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const SEED: [u8; 32] = *b"tuning: graphs no search gives..";

/// Times that are no further apart are one.
const NOISE: f64 = 1e-8;

/// A bandwidth or latency: sensible ones and others.
fn number() -> impl Strategy<Value = f64> {
    let odd =
        [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300, 1e300, f64::MIN_POSITIVE];
    prop_oneof![4 => 0.01..900.0, 1 => select(odd.to_vec())]
}

fn graph(id: GraphId) -> impl Strategy<Value = ChannelGraph> {
    let kinds = || select(PathKind::ALL.to_vec());
    let numbers = (number(), number(), number());
    (select(Pattern::ALL.to_vec()), numbers, kinds(), kinds(), 0usize..40, any::<bool>()).prop_map(
        move |(pattern, (bw_intra, bw_inter, latency_inter), kind_intra, kind_inter, n, same)| {
            ChannelGraph {
                id,
                pattern,
                cross_nic: false,
                same_channels: same,
                bw_intra,
                bw_inter,
                latency_inter,
                kind_intra,
                kind_inter,
                channels: vec![GraphChannel { nets: None, gpus: vec![0] }; n],
            }
        },
    )
}

/// The values whose bits are set; all when none is.
fn list<T: Selectable>(bits: usize) -> Selection<T> {
    let all = T::ALL.iter().enumerate();
    let named = all.filter(|(i, _)| bits >> i & 1 == 1).map(|(_, value)| *value);
    if bits == 0 { Selection::all() } else { named.collect() }
}

/// Another crate's protocol and algorithm.
const OWN: (ProtocolId, Algorithm) = (ProtocolId::own(2, "P"), Algorithm::own(1, "A"));

/// Kernels of other crates: by a number's bits, and with figures from little to much.
fn own() -> impl Strategy<Value = OwnKernels> {
    let figure = || proptest::option::of((1e-6..1e6, 1e-6..1e6));
    (0usize..16, select(ProtocolId::ALL.to_vec()), figure(), figure()).prop_map(
        |(bits, like, protocol, algorithm)| {
            let (all, (p, a)) = (Collective::AllReduce, OWN);
            let kernels = [
                (all, Algorithm::Ring, p),
                (all, a, ProtocolId::Ll),
                (all, a, p),
                (Collective::AllGather, Algorithm::Bruck, p),
            ];
            let kernels = kernels.into_iter().enumerate();
            let kernels = kernels.filter(|(i, _)| bits >> i & 1 == 1).map(|(_, k)| k).collect();
            let mut own = OwnKernels { kernels, ..OwnKernels::default() };
            own.protocols[2] =
                protocol.map(|(latency, bandwidth)| ProtocolFigures { like, latency, bandwidth });
            own.algorithms[1] = algorithm.map(|(steps, sent)| AlgorithmFigures { steps, sent });
            own
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    let some = |n: u32| proptest::option::of(0..n);
    let lists = (0usize..2048, 0usize..8, any::<[bool; 2]>(), own());
    (lists, some(2000), some(2000), some(100), some(100)).prop_map(
        |(
            (algorithms, protocols, [deterministic, windows], own),
            threads,
            ll128_threads,
            min_channels,
            max_channels,
        )| Settings {
            own,
            algorithms: list(algorithms),
            protocols: list(protocols),
            deterministic,
            windows,
            no_multicast: windows && deterministic,
            threads,
            ll128_threads,
            buffers: [None, Some(0), Some(u64::MAX / 8)],
            min_channels,
            max_channels,
            fitted: None,
            no_ll128_c2c: !deterministic,
        },
    )
}

#[test]
fn every_prediction_is_a_time_or_a_reason() {
    let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &SEED);
    let graphs = (graph(GraphId::Ring), graph(GraphId::Tree), graph(GraphId::CollNet));
    let machine = (
        select(vec![0u32, 60, 70, 80, 86, 90, 100, 120, u32::MAX]),
        select(vec![
            (Arch::X86, Vendor::Amd),
            (Arch::X86, Vendor::Intel),
            (Arch::Power, Vendor::Other),
        ]),
        any::<[bool; 4]>(),
    );
    let nodes = prop_oneof![0u32..70, Just(3072u32), Just(u32::MAX)];
    let ranks = prop_oneof![0u32..600, Just(24_576u32), Just(u32::MAX)];
    let bytes =
        prop_oneof![Just(0u64), 1u64..1 << 20, any::<u64>().prop_map(|b| b >> 2), Just(1 << 62)];
    let all = (graphs, machine, nodes, ranks, bytes, settings());
    let result = TestRunner::new_with_rng(config, rng).run(&all, |case| {
        let (
            (ring, tree, collnet),
            (sm, cpu, [has_tree, has_collnet, nvswitch, cores]),
            nodes,
            ranks,
            bytes,
            settings,
        ) = case;
        let gpus = Gpus {
            ring: &ring,
            tree: has_tree.then_some(&tree),
            collnet: has_collnet.then_some(&collnet),
            min_sm: sm,
            max_sm: sm,
            cpu,
            nvswitch,
        };
        let devices = if cores { Devices::Cpu { ring: Some(&ring) } } else { Devices::Gpus(gpus) };
        let s = Situation::new(nodes, ranks, devices);
        for &collective in Collective::ALL {
            for algorithm in Algorithm::ALL.iter().copied().chain([OWN.1]) {
                for protocol in ProtocolId::ALL.iter().copied().chain([OWN.0]) {
                    let p = predict(&s, collective, algorithm, protocol, bytes, &settings);
                    prop_assert!(p.cost.is_some() || p.why_not.is_some(), "{p:?}");
                    if let Some(cost) = p.cost {
                        prop_assert!(cost.time_us.is_finite() && cost.time_us >= 0.0, "{p:?}");
                        prop_assert!(
                            cost.latency_us >= 0.0 && cost.latency_us <= cost.time_us,
                            "{p:?}"
                        );
                        prop_assert!(cost.bandwidth.is_finite() && cost.bandwidth > 0.0, "{p:?}");
                        prop_assert!(cost.algbw(bytes).is_finite(), "{p:?}");
                    }
                }
            }
            let alternatives = match choose(&s, collective, bytes, &settings) {
                Ok(choice) => {
                    let best = choice.cost.time_us;
                    prop_assert!((1..=64).contains(&choice.channels), "{choice:?}");
                    prop_assert!((1..=640).contains(&choice.threads), "{choice:?}");
                    for a in &choice.alternatives {
                        let open = a.prediction.why_not.is_none();
                        let time = a.prediction.cost.map_or(f64::INFINITY, |cost| cost.time_us);
                        prop_assert!(!open || time >= best * (1.0 - NOISE), "{choice:?}");
                    }
                    let own = settings.own.kernels.iter().filter(|own| own.0 == collective);
                    // All but the one that is chosen.
                    let all = 3 * Algorithm::ALL.len() + own.count();
                    prop_assert_eq!(choice.alternatives.len(), all - 1);
                    choice.alternatives
                }
                Err(none) => none.alternatives,
            };
            prop_assert!(alternatives.iter().all(|a| !a.lost.is_empty()), "{alternatives:?}");
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("seed {SEED:?}: {error}");
    }
}

/// The tuner is the choice, at every threshold and at sizes between, for every collective; and of the ways that a
/// caller leaves open, it takes the fastest.
#[test]
fn the_tuner_agrees_with_the_choice() {
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &SEED);
    let machine = (1u32..3000, 1u32..33, 1u32..4, any::<bool>(), any::<bool>());
    let graphs = (usable(GraphId::Ring), usable(GraphId::Tree));
    let sizes = proptest::collection::vec(0u64..1 << 40, 20);
    let all = (machine, graphs, settings(), sizes, any::<u64>());
    let result = TestRunner::new_with_rng(config, rng).run(&all, |case| {
        let ((ranks, channels, nodes, collnet, cores), (ring, tree), settings, sizes, open) = case;
        let gpus = Gpus {
            ring: &ring,
            tree: Some(&tree),
            collnet: None,
            min_sm: 90,
            max_sm: 90,
            cpu: (Arch::X86, Vendor::Amd),
            nvswitch: true,
        };
        let devices = if cores { Devices::Cpu { ring: None } } else { Devices::Gpus(gpus) };
        let s = Situation::new(nodes, ranks * nodes, devices)
            .with_channels(channels)
            .with_collnet(collnet);
        let tuner = Tuner::new(&s, &settings);
        for &collective in Collective::ALL {
            let ways = switches(&s, collective, &settings, 0, 1 << 62);
            let near = ways.iter().flat_map(|way| [way.0.saturating_sub(1), way.0, way.0 + 1]);
            let sizes = sizes.iter().copied().chain((0..62).map(|shift| 1 << shift));
            for bytes in near.chain(sizes) {
                let kernel = |a, _| !tuner.is_by_messages(collective, bytes, a);
                let way = tuner.fastest(collective, bytes, kernel);
                let choice = choose(&s, collective, bytes, &settings).ok();
                let chosen = choice.as_ref().map(|choice| (choice.algorithm, choice.protocol));
                let (Some(choice), Some((a, p))) = (choice, way) else {
                    prop_assert_eq!(way, chosen, "{} of {} bytes, {:?}", collective, bytes, &ways);
                    continue;
                };
                let most = settings.max_channels.unwrap_or(64).clamp(1, 64);
                let most = s.channels().max(settings.min_channels.unwrap_or(1)).min(most);
                let worth = tuner.channels(collective, bytes, a, p, most);
                if way == chosen {
                    prop_assert_eq!(worth, choice.channels);
                }

                // With some ways closed: the fastest of the others, or nothing.
                let is_open = |a: Algorithm, p: ProtocolId| {
                    open >> ((a.index() * 4 + p.index()) % 64) & 1 == 1
                };
                let time = |a, p| {
                    let found = predict(&s, collective, a, p, bytes, &settings);
                    found.cost.filter(|_| found.why_not.is_none()).map(|cost| cost.time_us)
                };
                let best = time(a, p).expect("it may be chosen");
                let same =
                    (best / choice.cost.time_us - 1.0).abs() < NOISE || best == choice.cost.time_us;
                prop_assert!(same, "{way:?} of {bytes} bytes, not {chosen:?}: {ways:?}");
                let way = tuner.fastest(collective, bytes, is_open);
                let times = tuner.candidates(collective).filter(|(a, p)| is_open(*a, *p));
                let times = times.map(|(a, p)| time(a, p).expect("it may be chosen"));
                let least = times.min_by(f64::total_cmp);
                match (way, least) {
                    (Some((a, p)), Some(least)) => {
                        prop_assert!(is_open(a, p), "{a} {p}");
                        let time = time(a, p).expect("it may be chosen");
                        prop_assert!(time <= least * (1.0 + NOISE), "{time} instead of {least}");
                    }
                    (None, None) => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("seed {SEED:?}: {error}");
    }
}

/// A graph that a search may give.
fn usable(id: GraphId) -> impl Strategy<Value = ChannelGraph> {
    (graph(id), 1usize..32, 0.02..60.0, 0.02..60.0).prop_map(|(graph, n, bw_intra, bw_inter)| {
        ChannelGraph {
            bw_intra,
            bw_inter,
            latency_inter: 0.0,
            channels: vec![GraphChannel { nets: None, gpus: vec![0] }; n],
            ..graph
        }
    })
}

/// Between the switch points of GPUs nothing else is faster: trees and rings take turns, as trees' bandwidth comes in
/// steps.
#[test]
fn between_switches_nothing_is_faster() {
    let config = Config { cases: 1000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &SEED);
    let sizes = proptest::collection::vec((0u32..44, any::<u64>()), 40);
    let graphs = (usable(GraphId::Ring), usable(GraphId::Tree));
    let lists = select(vec![
        Selection::all(),
        Selection::only(ProtocolId::Simple),
        [ProtocolId::Ll, ProtocolId::Simple].into_iter().collect(),
    ]);
    let all = (graphs, select(vec![70u32, 80, 90, 100]), 1u32..200, sizes, lists);
    let result = TestRunner::new_with_rng(config, rng).run(
        &all,
        |((ring, tree), sm, nodes, sizes, protocols)| {
            let gpus = Gpus {
                ring: &ring,
                tree: Some(&tree),
                collnet: None,
                min_sm: sm,
                max_sm: sm,
                cpu: (Arch::X86, Vendor::Amd),
                nvswitch: true,
            };
            let s = Situation::new(nodes, nodes * 8, Devices::Gpus(gpus));
            let settings = Settings { protocols, ..Settings::default() };
            let all = Collective::AllReduce;
            let ways = switches(&s, all, &settings, 0, 1 << 44);
            let odd =
                sizes.into_iter().map(|(shift, low)| (1 << shift) | (low & ((1 << shift) - 1)));
            let near = ways.iter().flat_map(|way| [way.0.saturating_sub(1), way.0, way.0 + 1]);
            let edges = (6..44).flat_map(|shift| [(1u64 << shift) - 1, 1 << shift]);
            for bytes in near.chain(edges).chain(odd) {
                let way =
                    ways.iter().rev().find(|way| way.0 <= bytes).expect("the first is from 0");
                let best = choose(&s, all, bytes, &settings)
                    .expect("rings are always allowed")
                    .cost
                    .time_us;
                let found = predict(&s, all, way.1, way.2, bytes, &settings)
                    .cost
                    .expect("it was chosen")
                    .time_us;
                // Of two that cross, either will do at the point itself.
                prop_assert!(
                    found <= best * (1.0 + NOISE),
                    "{} bytes: {:?} takes {}, not {}",
                    bytes,
                    way,
                    found,
                    best
                );
            }
            Ok(())
        },
    );
    if let Err(error) = result {
        panic!("seed {SEED:?}: {error}");
    }
}

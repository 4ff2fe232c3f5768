//! The tuning model: NCCL's figures where it is NCCL's, the record's where it is measured, and no nonsense anywhere.

mod algorithms;
mod hostile;

use ferroccl::ProtocolId::{Ll, Ll128, Simple};
use ferroccl::config::Config;
use ferroccl::graph::tuning::Algorithm::{CollnetChain, CollnetDirect, Doubling, Ring, Tree};
use ferroccl::graph::tuning::Collective::{AllGather, AllReduce, Broadcast};
use ferroccl::graph::tuning::*;
use ferroccl::graph::{ChannelGraph, GraphChannel, GraphId, Pattern};
use ferroccl::topology::{Arch, PathKind, Vendor};

/// Channels over 8 GPUs in order.
fn graph(id: GraphId, channels: usize, bw: f64, network: bool) -> ChannelGraph {
    let nets = network.then_some([0, 0]);
    let pattern = if id == GraphId::Ring { Pattern::Ring } else { Pattern::BalancedTree };
    ChannelGraph {
        id,
        pattern,
        cross_nic: false,
        same_channels: true,
        bw_intra: bw,
        bw_inter: bw,
        latency_inter: 0.0,
        kind_intra: PathKind::Nvl,
        kind_inter: if network { PathKind::Pxb } else { PathKind::Loc },
        channels: vec![GraphChannel { nets, gpus: (0..8).collect() }; channels],
    }
}

struct Machine {
    ring: ChannelGraph,
    tree: ChannelGraph,
    sm: u32,
    vendor: Vendor,
    nodes: u32,
}

impl Machine {
    fn new(sm: u32, vendor: Vendor, nodes: u32, channels: usize, bw: f64) -> Machine {
        let graph = |id| graph(id, channels, bw, nodes > 1);
        Machine { ring: graph(GraphId::Ring), tree: graph(GraphId::Tree), sm, vendor, nodes }
    }

    /// 8 GPUs with 12 `NVLink`s of 20 each to the switches; over nodes, 8 ports of 24.
    fn dgx_a100(nodes: u32) -> Machine {
        let channels = if nodes > 1 { 8 } else { 10 };
        Machine::new(80, Vendor::Amd, nodes, channels, 24.0)
    }

    /// Over nodes, 8 ports of 48, each for two channels.
    fn h100(nodes: u32) -> Machine {
        Machine::new(90, Vendor::Intel, nodes, 16, 24.0)
    }

    fn gpus(&self) -> Gpus<'_> {
        Gpus {
            ring: &self.ring,
            tree: Some(&self.tree),
            collnet: None,
            min_sm: self.sm,
            max_sm: self.sm,
            cpu: (Arch::X86, self.vendor),
            nvswitch: true,
        }
    }

    fn situation(&self) -> Situation<'_> {
        Situation::new(self.nodes, self.nodes * 8, Devices::Gpus(self.gpus()))
    }
}

fn settings(variables: &[(&str, &str)]) -> Settings {
    let get = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Config::from_lookup(get).unwrap().tuning()
}

fn time(
    s: &Situation<'_>,
    algorithm: Algorithm,
    protocol: ferroccl::ProtocolId,
    bytes: u64,
) -> f64 {
    let none = Settings::default();
    let prediction = predict(s, AllReduce, algorithm, protocol, bytes, &none);
    prediction.cost.unwrap_or_else(|| panic!("{prediction:?}")).time_us
}

#[track_caller]
fn is(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-5, "{found} instead of {expected}");
}

/// One node: joint bandwidth 240, the call's bandwidth a ring's 8/14 or a tree's 1/2 of the channels'.
#[test]
fn dgx_a100_one_node() {
    let machine = Machine::dgx_a100(1);
    let s = machine.situation();
    // LL: half of 240 is more than an A100's 87.7; x 8/14 = 50.11429; 6.6 + 14 x 0.6 = 15.0.
    is(time(&s, Ring, Ll, 1 << 10), 15.0 + 1024.0 / 50_114.29);
    // LL128: 240 x 0.92 is more than 10 channels x 20; x 8/14 = 114.28571; 14 + 14 x 1.9 = 40.6.
    is(time(&s, Ring, Ll128, 1 << 20), 40.6 + 1_048_576.0 / 114_285.71);
    // Simple: 240 x 8/14 = 137.14286; 8.4 + 14 x 3.4 = 56.
    is(time(&s, Ring, Simple, 64 << 20), 56.0 + 67_108_864.0 / 137_142.86);
    // Tree: 240 x 0.92 = 220.8, within 10 x 24. LL: / 3.8 / 2 = 29.05263; 6.8 + 14 x 0.6 = 15.2. Below 64 bytes
    // nothing is lost, 1 KiB is 2^4 x 64: 0.9 is left.
    is(time(&s, Tree, Ll, 8), 15.2 + 8.0 / 29_052.63);
    is(time(&s, Tree, Ll, 1 << 10), 15.2 + 1024.0 / (29_052.63 * 0.9));
    // LL128: 220.8 x 7/9 / 2 = 85.86667, and 0.6 of it at 1 MiB = 51.52; 14 + 14 x 1.25 = 31.5.
    is(time(&s, Tree, Ll128, 1 << 20), 31.5 + 1_048_576.0 / 51_520.0);
    // Simple: 110.4, and 0.8 of it at 64 MiB = 88.32; 8.4 + 14 x 4 = 64.4.
    is(time(&s, Tree, Simple, 64 << 20), 64.4 + 67_108_864.0 / 88_320.0);
}

/// 16 nodes, 128 ranks: 254 steps, 30 of them over the network; a ring's ratio is 128/254.
#[test]
fn dgx_a100_sixteen_nodes() {
    let machine = Machine::dgx_a100(16);
    let s = machine.situation();
    // LL: 19.0 with AMD's CPUs, x 128/254 = 9.574803; 6.6 + 224 x max(0.6, 2.0) + 30 x 2.7 = 535.6.
    is(time(&s, Ring, Ll, 8), 535.6 + 8.0 / 9_574.803);
    // Simple: 192 x 128/254 = 96.755906; 8.4 + 224 x max(3.4, 6) + 30 x 14 = 1772.4; from 64 B x 16 channels x 128
    // ranks = 128 KiB on 1.4 times that.
    is(time(&s, Ring, Simple, (128 << 10) - 1), 1772.4 + 131_071.0 / 96_755.906);
    is(time(&s, Ring, Simple, 1 << 30), 1772.4 * 1.4 + 1_073_741_824.0 / 96_755.906);
    // Tree: 192 x 0.92 is more than 8 x 17.8 = 142.4. LL: / 3.8 is more than 19; / 2 = 9.5;
    // 6.8 + 2 (7 x 0.6 + 4 x 5) = 55.2.
    is(time(&s, Tree, Ll, 8), 55.2 + 8.0 / 9_500.0);
    // LL128: 142.4 x 120/128 / 2 = 66.75; 14 + 2 (7 x 1.25 + 4 x 8.5) = 99.5; nothing is lost at 1 GiB.
    is(time(&s, Tree, Ll128, 1 << 30), 99.5 + 1_073_741_824.0 / 66_750.0);
    // Simple: 71.2; 8.4 + 2 (7 x 4 + 4 x 14) = 176.4.
    is(time(&s, Tree, Simple, 1 << 30), 176.4 + 1_073_741_824.0 / 71_200.0);
}

/// 4 nodes of H100, 32 ranks: 62 steps, 6 over the network.
#[test]
fn h100_four_nodes() {
    let machine = Machine::h100(4);
    let s = machine.situation();
    // LL: 20.4 with Intel's CPUs x 32/62 = 10.529032; 6.6 + 56 x max(0.6, 1) + 6 x 2.7 = 78.8.
    is(time(&s, Ring, Ll, 1 << 16), 78.8 + 65_536.0 / 10_529.032);
    // Tree: 384 x 0.92 = 353.28, within 16 x 36; LL128: x 120/128 / 2 = 165.6, within 16 x 29 / 2;
    // 14 + 2 (7 x 1.25 + 2 x 8.5) = 65.5.
    is(time(&s, Tree, Ll128, 1 << 30), 65.5 + 1_073_741_824.0 / 165_600.0);
    // Simple: 176.64; 8.4 + 2 (7 x 4 + 2 x 14) = 120.4.
    is(time(&s, Tree, Simple, 1 << 30), 120.4 + 1_073_741_824.0 / 176_640.0);
}

/// Only the ring's: an all-gather has half of an all-reduce's steps, a broadcast one step of latency where all
/// channels are alike.
#[test]
fn other_collectives_of_one_node() {
    let machine = Machine::dgx_a100(1);
    let s = machine.situation();
    let of = |collective, bytes| {
        predict(&s, collective, Ring, Simple, bytes, &Settings::default()).cost.unwrap().time_us
    };
    // 240 x 8/7 = 274.28571; 8.4 + 7 x 3.4 = 32.2. And 240 x 8/8; 8.4 + 3.4.
    is(of(AllGather, 1 << 20), 32.2 + 1_048_576.0 / 274_285.71);
    is(of(Broadcast, 1 << 20), 11.8 + 1_048_576.0 / 240_000.0);
    let tree = predict(&s, AllGather, Tree, Simple, 8, &Settings::default());
    assert_eq!((tree.cost, tree.why_not.as_deref()), (None, Some("no Tree does all_gather")));
}

/// Within nodes the links have more left than the ports: that must not count over the ports.
#[test]
fn bandwidth_within_nodes_does_not_cross_the_network() {
    let mut machine = Machine::dgx_a100(2);
    let before: Vec<f64> = [2, 4]
        .map(|nodes| {
            machine.nodes = nodes;
            time(&machine.situation(), Ring, Simple, 1 << 30)
        })
        .to_vec();
    machine.ring.bw_intra = 200.0;
    machine.tree.bw_intra = 200.0;
    for (nodes, before) in [2, 4].into_iter().zip(before) {
        machine.nodes = nodes;
        is(time(&machine.situation(), Ring, Simple, 1 << 30), before);
    }
    // Two nodes' tree has one parent or one child each: twice 24, as far as a channel's 23.6 allow.
    machine.nodes = 2;
    is(
        time(&machine.situation(), Tree, Simple, 1 << 30),
        8.4 + 84.0 + 1_073_741_824.0 / (8.0 * 11_800.0),
    );
}

#[test]
fn small_calls_go_by_ll_in_few_rounds_large_ones_by_simple_and_rings() {
    for machine in [Machine::dgx_a100(16), Machine::h100(16), Machine::dgx_a100(64)] {
        let s = machine.situation();
        let ways = switches(&s, AllReduce, &Settings::default(), 0, 1 << 40);
        let (first, last) = (ways[0], ways[ways.len() - 1]);
        assert_eq!((first.1, first.2), (Doubling, Ll), "{ways:?}");
        // Without doubling, as NCCL has none, by trees.
        let without = settings(&[("NCCL_ALGO", "^Doubling")]);
        let first = switches(&s, AllReduce, &without, 0, 1 << 40)[0];
        assert_eq!((first.1, first.2), (Tree, Ll));
        assert_eq!((last.1, last.2), (Ring, Simple), "{ways:?}");
        assert!(ways.windows(2).all(|pair| pair[0].0 < pair[1].0), "{ways:?}");
        for pair in ways.windows(2) {
            assert!(pair[0].2 <= pair[1].2 || pair[0].1 != pair[1].1, "{ways:?}");
        }
        // Each is what is chosen there, and the one before is what is chosen a byte earlier.
        for pair in ways.windows(2) {
            let at = |bytes| choose(&s, AllReduce, bytes, &Settings::default()).unwrap();
            let (before, after) = (at(pair[1].0 - 1), at(pair[1].0));
            assert_eq!((before.algorithm, before.protocol), (pair[0].1, pair[0].2));
            assert_eq!((after.algorithm, after.protocol), (pair[1].1, pair[1].2));
        }
    }
}

/// What is forced is chosen, whatever it takes, and the others say why they lost.
#[test]
fn forced_settings_are_obeyed_and_named() {
    let machine = Machine::dgx_a100(4);
    let s = machine.situation();
    let choice =
        choose(&s, AllReduce, 8, &settings(&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")]));
    let choice = choice.unwrap();
    assert_eq!((choice.algorithm, choice.protocol), (Ring, Simple));
    let lost = |a: Algorithm, p| {
        let found = choice
            .alternatives
            .iter()
            .find(|x| (x.prediction.algorithm, x.prediction.protocol) == (a, p));
        found.unwrap().lost.clone()
    };
    assert_eq!(lost(Tree, Ll), "not allowed by NCCL_ALGO");
    assert_eq!(lost(Ring, Ll), "not allowed by NCCL_PROTO");
    assert_eq!(lost(CollnetChain, Simple), "there is no network that reduces");
    assert_eq!(lost(CollnetDirect, Ll), "a network that reduces knows no LL");
    // All but the one that is chosen.
    assert_eq!(choice.alternatives.len(), 3 * Algorithm::ALL.len() - 1, "{choice:#?}");

    let none = choose(&s, AllGather, 8, &settings(&[("NCCL_ALGO", "Tree")])).unwrap_err();
    let text = none.to_string();
    assert!(text.starts_with("nothing may do all_gather: Tree: no Tree does"), "{text}");
    assert!(text.contains("; Ring: not allowed by NCCL_ALGO;"), "{text}");
}

#[test]
fn ll128_is_chosen_only_where_it_is_safe() {
    let safe = |change: &dyn Fn(&mut Machine), max_sm: Option<u32>, list: &[(&str, &str)]| {
        let mut machine = Machine::dgx_a100(2);
        change(&mut machine);
        let mut gpus = machine.gpus();
        gpus.max_sm = max_sm.unwrap_or(machine.sm);
        let s = Situation::new(machine.nodes, machine.nodes * 8, Devices::Gpus(gpus));
        predict(&s, AllReduce, Ring, Ll128, 1 << 20, &settings(list)).why_not
    };
    let none: &[(&str, &str)] = &[];
    assert_eq!(safe(&|_| (), None, none), None);
    for (change, max_sm, why) in [
        (&(|m: &mut Machine| m.sm = 60) as &dyn Fn(&mut Machine), None, "sm_60"),
        (&|_: &mut Machine| (), Some(86), "sm_80 and sm_86"),
        (&|m: &mut Machine| m.ring.kind_intra = PathKind::Pix, None, "PIX, farther than NVB"),
        (&|m: &mut Machine| m.ring.kind_inter = PathKind::Pxn, None, "PXN, farther than PXB"),
        (
            &|m: &mut Machine| {
                m.sm = 90;
                m.ring.kind_inter = PathKind::Phb;
            },
            None,
            "PHB, farther than PXN",
        ),
    ] {
        let reason = safe(change, max_sm, none).unwrap_or_default();
        assert!(reason.starts_with("LL128 is not safe: ") && reason.contains(why), "{reason}");
        // Who asks for it gets it.
        assert_eq!(safe(change, max_sm, &[("NCCL_PROTO", "LL128")]), None);
    }
    let hopper = |m: &mut Machine| {
        m.sm = 90;
        m.ring.kind_inter = PathKind::Pxn;
    };
    assert_eq!(safe(&hopper, None, none), None);
    assert_eq!(safe(&hopper, Some(100), none), None);
    // The network is no matter where there is none.
    assert_eq!(safe(&|m| (m.nodes, m.ring.kind_inter) = (1, PathKind::Sys), None, none), None);
}

#[test]
fn collnets_need_a_network_switches_and_nodes() {
    let machine = Machine::dgx_a100(4);
    let collnet = ChannelGraph { pattern: Pattern::Tree, ..graph(GraphId::CollNet, 8, 24.0, true) };
    let of = |nodes: u32, nvswitch: bool, algorithm| {
        let gpus = Gpus { collnet: Some(&collnet), nvswitch, ..machine.gpus() };
        let s = Situation::new(nodes, nodes * 8, Devices::Gpus(gpus));
        predict(&s, AllReduce, algorithm, Simple, 1 << 20, &Settings::default())
    };
    // Channels of 24 (within the node) x 8 / 2 = 96. Chain: 14 x 2.8 + 30 = 69.2. Direct: a GPU a port, so all of it;
    // 2 (3.7 + 7 x 0.4) + 31 = 44.
    is(of(4, true, CollnetChain).cost.unwrap().time_us, 69.2 + 1_048_576.0 / 96_000.0);
    is(of(4, true, CollnetDirect).cost.unwrap().time_us, 44.0 + 1_048_576.0 / 96_000.0);
    assert_eq!(of(4, true, CollnetDirect).why_not, None);
    let why = |p: Prediction| p.why_not.unwrap();
    assert!(why(of(4, false, CollnetDirect)).contains("switches"));
    assert!(why(of(1, true, CollnetChain)).contains("single node"));
}

/// NCCL's rule: a channel has so many bytes a thread, LL's ring so many a rank; then threads are halved.
#[test]
fn channels_and_threads_follow_the_size() {
    let machine = Machine::dgx_a100(1);
    let s = machine.situation();
    assert_eq!(s.channels(), 20);
    let of = |list: &[(&str, &str)], bytes| {
        let choice = choose(&s, AllReduce, bytes, &settings(list)).unwrap();
        (choice.channels, choice.threads)
    };
    let ll: &[_] = &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL")];
    // 512 threads x 8 bytes x 8 ranks = 32 KiB a channel; 8 KiB are worth 128 threads, and it goes to 96 at least.
    assert_eq!(of(ll, 96 << 10), (3, 512));
    assert_eq!(of(ll, (32 << 10) - 1), (1, 256));
    assert_eq!(of(ll, 8 << 10), (1, 128));
    assert_eq!(of(ll, 0), (1, 96));
    let simple: &[_] = &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];
    // 512 x 64 = 32 KiB; a warp more synchronises.
    assert_eq!(of(simple, 1 << 30), (20, 544));
    assert_eq!(of(simple, 64 << 10), (2, 544));
    let two: &[_] = &[("NCCL_PROTO", "Simple"), ("NCCL_ALGO", "Ring"), ("NCCL_NTHREADS", "256")];
    assert_eq!(of(two, 64 << 10), (4, 288));
    let tree: &[_] = &[("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "Simple")];
    assert_eq!(of(tree, 1 << 30), (20, 640));
    let ll128: &[_] =
        &[("NCCL_PROTO", "LL128"), ("NCCL_ALGO", "Ring"), ("NCCL_LL128_NTHREADS", "320")];
    // 320 x 8 = 2560 bytes.
    assert_eq!(of(ll128, 7680), (3, 320));
    for (name, value, channels) in [
        ("NCCL_MAX_NCHANNELS", "5", 5),
        ("NCCL_MIN_NCHANNELS", "32", 32),
        ("NCCL_BUFFSIZE", "1M", 20),
    ] {
        let list = [simple[0], simple[1], (name, value)];
        assert_eq!(of(&list, 1 << 30).0, channels, "{name}");
    }
    let chunk =
        |list: &[(&str, &str)]| choose(&s, AllReduce, 8, &settings(list)).unwrap().chunk_bytes;
    assert_eq!(chunk(simple), 2 << 20); // half of 4 MiB
    assert_eq!(chunk(&[simple[0], simple[1], ("NCCL_BUFFSIZE", "1M")]), 512 << 10);
    assert_eq!(chunk(ll), 32 << 10); // an eighth of 512 KiB, half of it data
}

/// What a tuner keeps is what is chosen, and large calls take what was measured. Small ones are in the topology's own tests.
#[test]
fn cpu_devices_choose_as_they_were_measured() {
    for ranks in [4, 16] {
        for bytes in [8, 64, 512, 4 << 10, 32 << 10, 256 << 10] {
            let s = Situation::new(1, ranks, Devices::Cpu { ring: None }).with_channels(2);
            let rings = settings(&[("NCCL_ALGO", "Ring")]);
            let choice = choose(&s, AllReduce, bytes, &rings).unwrap();
            assert_eq!(choice.algorithm, Ring);
            let tuner = Tuner::new(&s, &Settings::default());
            let way = tuner.fastest(AllReduce, bytes, |a, _| a == Ring);
            assert_eq!(way, Some((Ring, choice.protocol)));
            let channels = tuner.channels(AllReduce, bytes, Ring, choice.protocol, 2);
            assert_eq!(channels, choice.channels);
        }
    }
    // From memory: `benches/records/2026-11-21-foundation.md`, operations in a row, one thread. 1 MiB is in the caches, and its figure of
    // 2026-11-27, the least of three runs; 110 in that record.
    for (ranks, mib, measured) in
        [(4, 1, 88.4), (4, 16, 4670.0), (4, 64, 19046.0), (16, 4, 5570.0), (16, 64, 87737.0)]
    {
        let s = Situation::new(1, ranks, Devices::Cpu { ring: None }).with_channels(2);
        let off = time(&s, Ring, Simple, mib << 20) / measured;
        assert!((0.9..1.1).contains(&off), "{ranks} ranks, {mib} MiB: {off}");
    }
}

/// Two ranks on two hosts over sockets, all-reduce: bytes, and microseconds with LL, LL128 and Simple around the ring, and by doubling,
/// of `benches/records/2026-11-26-two-hosts.md`.
const OVER_SOCKETS: [(u64, [f64; 3], [f64; 3]); 5] = [
    (8, [17.1, 19.7, 17.9], [13.1, 9.9, 9.9]),
    (32 << 10, [53.0, 28.3, 25.1], [57.8, 34.4, 12.3]),
    (256 << 10, [349.0, 173.0, 79.6], [396.0, 205.0, 65.5]),
    (2 << 20, [2719.0, 1309.0, 484.0], [2718.0, 1495.0, 445.0]),
    (16 << 20, [21165.0, 10437.0, 4844.0], [22105.0, 11804.0, 5241.0]),
];

#[test]
fn cpu_devices_choose_over_a_network_as_they_were_measured() {
    let s = Situation::new(2, 2, Devices::Cpu { ring: None }).with_channels(2);
    for (bytes, ring, doubling) in OVER_SOCKETS {
        for (algorithm, measured) in [(Ring, ring), (Doubling, doubling)] {
            for (protocol, measured) in ferroccl::ProtocolId::ALL.iter().zip(measured) {
                let off = time(&s, algorithm, *protocol, bytes) / measured;
                assert!((0.6..1.7).contains(&off), "{bytes} B, {algorithm} {protocol}: {off}");
            }
        }
        let choice = choose(&s, AllReduce, bytes, &Settings::default()).unwrap();
        assert_eq!(choice.protocol, Simple, "{bytes} B");
        let fastest = if ring[2] < doubling[2] { Ring } else { Doubling };
        let as_fast = (ring[2] / doubling[2] - 1.0).abs() < 0.1;
        assert!(choice.algorithm == fastest || as_fast, "{bytes} B: {}", choice.algorithm);
    }
}

#[test]
fn ll128_is_never_the_default_of_cpu_devices() {
    for ranks in 2..200 {
        for channels in [1, 2, 7, 32] {
            let s = Situation::new(1, ranks, Devices::Cpu { ring: None }).with_channels(channels);
            // Its large calls are linear.
            for &collective in Collective::ALL.iter().filter(|c| **c != Collective::AllToAll) {
                let ways = switches(&s, collective, &Settings::default(), 0, 1 << 62);
                let last = ways[ways.len() - 1];
                assert_eq!((last.1, last.2), (Ring, Simple), "{collective}, {ranks}: {ways:?}");
                let safe = collective != AllReduce || ways.iter().all(|way| way.2 != Ll128);
                assert!(safe, "{ranks} ranks: {ways:?}");
            }
            let ways = switches(&s, AllReduce, &settings(&[("NCCL_ALGO", "Ring")]), 0, 1 << 62);
            assert_eq!((ways[0].2, ways[ways.len() - 1].2), (Ll, Simple), "{ranks}: {ways:?}");
        }
    }
}

/// `NCCL_P2P_DISABLE` is the shortest `NCCL_P2P_LEVEL`.
#[test]
fn without_p2p_nothing_is_near_enough() {
    let off = |name: &str| (name == "NCCL_P2P_DISABLE").then(|| "1".to_owned());
    let policy = Config::from_lookup(off).unwrap().policy();
    assert_eq!(policy.p2p_level, Some(PathKind::Loc));
}

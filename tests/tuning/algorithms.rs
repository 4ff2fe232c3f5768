//! The algorithms beside ring and tree: what the model says of each, checked by hand, and what settings leave.

use ferroccl::ProtocolId::{Ll, Ll128, Simple};
use ferroccl::graph::tuning::Algorithm::{
    Bruck, Chain, CollnetDirect, Direct, Doubling, Hierarchical, Linear, Nvls, OneShot, Ring, Tree,
    TwoShot,
};
use ferroccl::graph::tuning::Collective::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Reduce, ReduceScatter, SendRecv,
};
use ferroccl::graph::tuning::Selection;
use ferroccl::graph::tuning::*;

use super::{Machine, is, settings};
use ferroccl::topology::PathKind;

fn time(s: &Situation<'_>, way: (Collective, Algorithm, ferroccl::ProtocolId), bytes: u64) -> f64 {
    let prediction = predict(s, way.0, way.1, way.2, bytes, &Settings::default());
    prediction.cost.unwrap_or_else(|| panic!("{prediction:?}")).time_us
}

/// 8 GPUs of sm_90 with joint channels of 384, and those that have no multicast objects.
#[test]
fn a_switch_that_sums_and_spreads() {
    let machine = Machine::h100(1);
    let s = machine.situation();
    let windows = Settings { windows: true, ..Settings::default() };
    let nvls = |s: &Situation<'_>, collective, bytes| {
        predict(s, collective, Nvls, Simple, bytes, &windows)
    };
    let time = |collective, bytes| nvls(&s, collective, bytes).cost.unwrap().time_us;
    let link = 384_000.0 * 0.963;
    // A launch and the barriers, 4.2 + 5 + 8 x 0.04. Up to 1 MiB the bytes go there and back one after the other; then they overlap,
    // and each link carries nine eighths of them.
    is(time(AllReduce, 1 << 10), 9.52 + 2.0 * 1024.0 / link);
    is(time(AllReduce, 1 << 20), 9.52 + 2.0 * 1_048_576.0 / link);
    let further = f64::from((64 << 20) - (1 << 20)) * 1.125;
    is(time(AllReduce, 64 << 20), 9.52 + (2.0 * 1_048_576.0 + further) / link);
    is(time(AllGather, 64 << 20), 9.3 + 67_108_864.0 / link);
    is(time(ReduceScatter, 8), 9.3 + 8.0 / link);
    // Simulated, an all-reduce of 16 MiB takes 58.9 us without its launch, one of 4 MiB 20.4, one of 1 MiB 10.2.
    for (mib, simulated) in [(16, 58.9), (4, 20.4), (1, 10.2)] {
        let model = time(AllReduce, mib << 20) - 4.2;
        assert!((model / simulated - 1.0).abs() < 0.08, "{mib} MiB: {model}");
    }
    // A thread for each 64 bytes and rank, in 16 blocks at most.
    for (bytes, channels) in [(64 << 20, 16), (4 << 20, 16), (2 << 20, 8), (1 << 20, 4)] {
        let choice = choose(&s, AllReduce, bytes, &windows).unwrap();
        assert_eq!((choice.algorithm, choice.protocol), (Nvls, Simple), "{bytes}");
        assert_eq!((choice.channels, choice.threads), (channels, 512), "{bytes}");
    }

    let why = |s: &Situation<'_>, settings: &Settings| {
        predict(s, AllReduce, Nvls, Simple, 8, settings).why_not.unwrap_or_default()
    };
    assert_eq!(why(&s, &windows), "");
    assert_eq!(why(&s, &Settings::default()), "the buffers are in no window");
    let off = settings(&[("NCCL_NVLS_ENABLE", "0")]);
    assert_eq!(why(&s, &Settings { windows: true, ..off }), "NCCL_NVLS_ENABLE is 0");
    let ordered = Settings { deterministic: true, ..windows.clone() };
    assert!(why(&s, &ordered).starts_with("not in the order of the ranks"));
    let of = |gpus| Situation::new(1, 8, Devices::Gpus(gpus));
    let gpus = machine.gpus();
    let older = why(&of(Gpus { min_sm: 80, ..gpus }), &windows);
    assert_eq!(older, "sm_80 has no multicast objects; sm_90 has");
    let apart = why(&of(Gpus { nvswitch: false, ..machine.gpus() }), &windows);
    assert_eq!(apart, "multicast objects need GPUs that are joined by switches");
    let mut ring = machine.ring.clone();
    ring.kind_intra = PathKind::Loc;
    let shared = why(&of(Gpus { ring: &ring, ..machine.gpus() }), &windows);
    assert_eq!(shared, "a GPU is in a multicast object once, and ranks share one");
}

/// 8 GPUs with joint channels of 240; see `dgx_a100_one_node`.
#[test]
fn one_node_of_gpus() {
    let machine = Machine::dgx_a100(1);
    let s = machine.situation();
    // Three rounds: 8 + 3 x 4; three quarters of 240.
    is(time(&s, (AllGather, Bruck, Simple), 1 << 20), 20.0 + 1_048_576.0 / 180_000.0);
    // With LL a ring's figures: 6.6 + 3 x 0.6; three quarters of 87.7.
    is(time(&s, (ReduceScatter, Bruck, Ll), 1 << 10), 8.4 + 1024.0 / 65_775.0);
    // A launch and one shot, 4.2 + 2 + 8 x 0.04; seven copies, half of them flags, 0.82 of the link.
    is(time(&s, (AllReduce, OneShot, Ll), 1 << 10), 6.52 + 1024.0 / (98_400.0 / 7.0));
    // 4.2 + 5 + 8 x 0.42; 14 eighths, 120 of 128 bytes, 1.16 of the link.
    let bandwidth = 240_000.0 * 0.9375 * 1.16 / 1.75;
    is(time(&s, (AllReduce, TwoShot, Ll128), 1 << 20), 12.56 + 1_048_576.0 / bandwidth);
    // 4.2 + 5.7 + 8 x 0.09; 0.95 of the link.
    let bandwidth = 240_000.0 * 0.95 / 1.75;
    let direct = |windows, protocol| {
        let settings = Settings { windows, ..Settings::default() };
        predict(&s, AllReduce, Direct, protocol, 1 << 20, &settings)
    };
    is(direct(true, Simple).cost.unwrap().time_us, 10.62 + 1_048_576.0 / bandwidth);
    let why = |p: Prediction| p.why_not.unwrap_or_default();
    assert_eq!(why(direct(false, Simple)), "the buffers are in no window");
    assert_eq!(why(direct(true, Ll)), "Direct moves plain data, as Simple does");
    // The buffers leave no room for the slots in the cache.
    let bandwidth = 240_000.0 * 0.9375 * 1.16 * 0.68 / 1.75;
    is(time(&s, (AllReduce, TwoShot, Ll128), 16 << 20), 12.56 + 16_777_216.0 / bandwidth);
    let plain = predict(&s, AllReduce, TwoShot, Simple, 8, &Settings::default());
    let unnamed = "the model has no figures of it, and NCCL_ALGO does not name it";
    assert_eq!(plain.why_not.as_deref(), Some(unnamed));
    let apart = s.clone().with_mesh(false);
    assert!(predict(&apart, AllGather, OneShot, Ll, 8, &Settings::default()).cost.is_none());
    // 14 steps, every byte twice over each link.
    is(time(&s, (AllReduce, Chain, Simple), 1 << 20), 56.0 + 1_048_576.0 / 120_000.0);
    // Half of the way of an all-reduce's tree: 8.4 + 7 x 4. 110.4, and 0.6 of it is left at 32 KiB.
    is(time(&s, (Broadcast, Tree, Simple), 32 << 10), 36.4 + 32_768.0 / (110_400.0 * 0.6));
    is(time(&s, (Reduce, Tree, Ll), 8), 6.8 + 4.2 + 8.0 / 29_052.63);
    // A message: 6 for the launch and 6.9 for the hop, 1.3 for each of 7 further channels, 8 blocks of 24.5.
    is(time(&s, (SendRecv, Ring, Simple), 1 << 20), 12.9 + 9.1 + 1_048_576.0 / 196_000.0);
    // All 20 channels, whose blocks could move more than the links carry: 240.
    is(time(&s, (SendRecv, Ring, Simple), 1 << 30), 12.9 + 24.7 + 1_073_741_824.0 / 240_000.0);
    assert_eq!(
        time(&s, (Barrier, Tree, Ll), 1).to_bits(),
        time(&s, (AllReduce, Tree, Ll), 1).to_bits()
    );
    // On one node the leader's ring is empty: two chains.
    is(time(&s, (AllReduce, Hierarchical, Simple), 1 << 20), 56.0 + 1_048_576.0 / 120_000.0);
}

/// 16 nodes of 8; 192 cross the network.
#[test]
fn sixteen_nodes_of_gpus() {
    let machine = Machine::dgx_a100(16);
    let s = machine.situation();
    // Three rounds within a node, four between; of the ports' bandwidth 0.75 / 8.
    is(time(&s, (AllGather, Bruck, Simple), 1 << 20), 8.0 + 12.0 + 56.0 + 1_048_576.0 / 18_000.0);
    // 8.4 + 2 x 7 x 3.4 + 30 x 14. Inside 2 / 192; between 30/16 of the bytes through an eighth of 192.
    let bytes = 2.0 / 192.0 + 30.0 / 16.0 / 24.0;
    let hierarchical = time(&s, (AllReduce, Hierarchical, Simple), 1 << 20);
    is(hierarchical, 8.4 + 47.6 + 420.0 + 1_048.576 * bytes);
    // 254 steps, 30 of them between nodes.
    is(
        time(&s, (AllReduce, Chain, Simple), 1 << 20),
        8.4 + 224.0 * 3.4 + 420.0 + 1_048_576.0 / 96_000.0,
    );
    let far = predict(&s, AllReduce, OneShot, Ll, 8, &Settings::default());
    assert_eq!(
        far.why_not.as_deref(),
        Some("ranks do not all reach each other's memory, or memory of one host")
    );
}

/// Steps of all ranks together, from the module's text: LL's cost 0.0343 each, a tenth more where it is not the ring.
#[test]
fn cores_count_the_steps_of_all_ranks() {
    let s = Situation::new(1, 16, Devices::Cpu { ring: None }).with_collnet(true);
    let steps = |collective, algorithm| {
        let taken = time(&s, (collective, algorithm, Ll), 0) - 16.0 * 0.562;
        taken / 0.0213
    };
    for (collective, algorithm, expected) in [
        (AllReduce, Ring, 480.0),
        // Steps of a tree take 4.32 of a ring's, and there are 16 blocks more, 0.129 each.
        (AllReduce, Tree, 4.32 * 30.0 + 16.0 * 0.129 / 0.0213),
        (AllReduce, Chain, 1.03 * 30.0),
        (AllReduce, OneShot, 0.381 * 240.0),
        (AllReduce, TwoShot, 1.26 * 480.0),
        // Not measured: a tenth more.
        (AllReduce, Hierarchical, 1.1 * 1.03 * 31.0),
        (AllReduce, Doubling, 2.78 * 64.0),
        (AllGather, Ring, 240.0),
        (AllGather, Bruck, 4.09 * 64.0),
        (AllGather, Linear, 2.13 * 240.0),
        (ReduceScatter, Ring, 240.0),
        (ReduceScatter, Bruck, 4.09 * 64.0),
        (ReduceScatter, Chain, 1.03 * 480.0),
        (Broadcast, Ring, 15.0),
        (Broadcast, Tree, 4.32 * 15.0),
        (Reduce, Ring, 15.0),
        (Reduce, Chain, 1.03 * 22.5),
        (SendRecv, Ring, 1.0),
    ] {
        is(steps(collective, algorithm), expected);
    }
    // The network's own time: NCCL's figure.
    assert!(time(&s, (AllReduce, CollnetDirect, Simple), 0) > 31.0);
    let none = Situation::new(1, 16, Devices::Cpu { ring: None });
    let missing = predict(&none, AllReduce, CollnetDirect, Simple, 0, &Settings::default());
    assert_eq!(missing.why_not.as_deref(), Some("there is no network that reduces"));
}

/// Rounds of the last rank's binary digits, for every number of ranks.
#[test]
fn rounds_are_binary_digits() {
    for (ranks, rounds) in [(2, 1.0), (3, 2.0), (4, 2.0), (5, 3.0), (16, 4.0), (17, 5.0)] {
        let s = Situation::new(1, ranks, Devices::Cpu { ring: None });
        let taken = time(&s, (AllGather, Bruck, Ll), 0) - 0.562 * f64::from(ranks);
        is(taken / 0.0213 / 4.09 / f64::from(ranks), rounds);
    }
}

#[test]
fn the_deterministic_mode_takes_what_is_in_rank_order() {
    let machine = Machine::dgx_a100(1);
    let cores = Situation::new(1, 4, Devices::Cpu { ring: None });
    let mode = settings(&[("FERROCCL_DETERMINISTIC", "1")]);
    for s in [machine.situation(), cores] {
        for collective in [AllReduce, ReduceScatter, Reduce] {
            let ways = switches(&s, collective, &mode, 0, 1 << 40);
            assert!(!ways.is_empty());
            for way in ways {
                assert!(matches!(way.1, Chain | OneShot | TwoShot), "{collective}: {way:?}");
            }
        }
        for collective in [AllGather, Broadcast, SendRecv, Barrier] {
            let free = switches(&s, collective, &Settings::default(), 0, 1 << 40);
            assert_eq!(switches(&s, collective, &mode, 0, 1 << 40), free);
        }
        let ring = predict(&s, AllReduce, Ring, Simple, 8, &mode);
        let why = ring.why_not.unwrap();
        assert!(ring.cost.is_some() && why.contains("FERROCCL_DETERMINISTIC"), "{why}");
        // Both of the user's wishes count.
        let ring = settings(&[("FERROCCL_DETERMINISTIC", "1"), ("NCCL_ALGO", "ring")]);
        assert!(choose(&s, AllReduce, 8, &ring).is_err());
        assert!(choose(&s, AllGather, 8, &ring).is_ok());
        assert_eq!(Tuner::new(&s, &ring).fastest(AllReduce, 8, |_, _| true), None);
    }
}

#[test]
fn lists_are_of_one_collective_each() {
    let s = Situation::new(1, 16, Devices::Cpu { ring: None });
    let lists = settings(&[
        ("NCCL_ALGO", "ring;allreduce:chain;all_gather:pat"),
        ("NCCL_PROTO", "simple;AllReduce:LL128"),
    ]);
    let tuner = Tuner::new(&s, &lists);
    let ways = |c| tuner.candidates(c).collect::<Vec<_>>();
    assert_eq!(ways(AllReduce), [(Chain, ferroccl::ProtocolId::Ll128)]);
    assert_eq!(ways(Barrier), [(Chain, ferroccl::ProtocolId::Ll128)]);
    assert_eq!(ways(AllGather), [(Bruck, Simple)]);
    assert_eq!(ways(ReduceScatter), [(Ring, Simple)]);
    // What leaves nothing is said when it is called.
    let tree = Settings { algorithms: Selection::only(Tree), ..Settings::default() };
    let tuner = Tuner::new(&s, &tree);
    assert!(ways(SendRecv) == [(Ring, Simple)] && tuner.candidates(AllGather).next().is_none());
    assert!(tuner.candidates(AllReduce).all(|way| way.0 == Tree));
    assert_eq!(tuner.fastest(AllGather, 8, |_, _| true), None);
    // One rank only copies, whatever is asked.
    let one = Situation::new(1, 1, Devices::Cpu { ring: None });
    for &collective in Collective::ALL {
        let way = Tuner::new(&one, &tree).fastest(collective, 8, |_, _| true);
        // An all-to-all has no ring; where nothing is left, it is messages.
        let copied = (collective != AllToAll).then_some((Ring, Simple));
        assert_eq!(way, copied, "{collective}");
    }
}

/// On GPUs LL128 must be trusted, or asked for by a list that is about the collective.
#[test]
fn a_list_for_another_collective_does_not_ask_for_ll128() {
    let mut machine = Machine::dgx_a100(1);
    machine.sm = 60;
    let s = machine.situation();
    let ll128 = |collective, list| {
        let list = settings(&[("NCCL_PROTO", list)]);
        predict(&s, collective, Ring, ferroccl::ProtocolId::Ll128, 8, &list).why_not
    };
    assert_eq!(ll128(AllReduce, "allreduce:ll128"), None);
    assert!(ll128(AllGather, "allreduce:ll128").is_some_and(|why| why.contains("sm_60")));
    assert_eq!(ll128(AllGather, "ll128;allreduce:simple"), None);
    assert!(ll128(AllReduce, "ll128;allreduce:simple").is_some());
}

/// For kernels of one's own: the ring, whatever the settings are.
#[test]
fn only_one_protocol() {
    let s = Situation::new(1, 4, Devices::Cpu { ring: None });
    let list = settings(&[("NCCL_ALGO", "chain"), ("NCCL_PROTO", "LL")]);
    let tuner = Tuner::new(&s, &list);
    let only = tuner.only(Simple);
    for bytes in [0, 8, 1 << 20, u64::MAX] {
        assert_eq!(only.fastest(AllReduce, bytes, |_, _| true), Some((Ring, Simple)));
        assert_eq!(only.fastest(AllReduce, bytes, |_, p| p == Ll), None);
        let of = |tuner: &Tuner| tuner.channels(AllReduce, bytes, Ring, Simple, 7);
        assert_eq!(of(&only), of(&tuner));
    }
}

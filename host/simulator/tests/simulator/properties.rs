//! What holds for every cluster and call.

use ferroccl::{Algorithm, Collective, ProtocolId};
use ferroccl_simulator::{Call, Fault, Options, SimulateError};
use proptest::prelude::*;

use crate::support::{all_reduce, cluster, host, run, with_gpus};

/// Every byte that a rank has to get rid of passes its port: a ring's `2 (k - 1) / k` of the call over each hop between hosts.
#[test]
fn no_bytes_are_lost_or_made() {
    let system = host("dgx-a100.xml");
    for (hosts, bytes) in [(2u32, 1u64 << 20), (4, 1_000_000), (3, 12345 * 4)] {
        let cluster = cluster(&system, hosts, "rail", &[], &[]);
        let options = Options { trace_steps: usize::MAX, ..Options::default() };
        let call = all_reduce(bytes, Algorithm::Ring, ProtocolId::Simple);
        let outcome = cluster.simulate(&call, &options).unwrap();
        let k = u64::from(cluster.ranks());
        // Each rank takes part in 2 k - 1 steps of each of k chunks: all but the last one send.
        let sum: u64 = outcome.trace.iter().map(|span| u64::from(span.bytes)).sum();
        assert_eq!(sum, (2 * k - 1) * bytes, "{hosts} hosts, {bytes} bytes");
        assert!(outcome.trace.iter().all(|span| span.end_us > span.begin_us));
        assert_eq!(outcome.trace.len() as u64, outcome.steps);
    }
}

/// A link between hosts carries what the ring sends over it.
#[test]
fn links_carry_what_a_ring_sends() {
    let one = with_gpus(&host("dgx-a100.xml"), 1);
    let cluster = cluster(&one, 4, "rail", &[("NCCL_MAX_NCHANNELS", "1")], &[]);
    let bytes = 4 << 20;
    let outcome = run(&cluster, &all_reduce(bytes, Algorithm::Ring, ProtocolId::Simple));
    assert!(!outcome.links.is_empty());
    for link in &outcome.links {
        assert_eq!(link.bytes, (bytes * 2 * 3 / 4) as f64, "{}", link.name);
    }
}

#[test]
fn equal_seeds_give_equal_times_and_others_do_not() {
    let system = host("dgx-a100.xml");
    let cluster = cluster(&system, 4, "fat-tree:oversubscription=2", &[], &[]);
    let call = all_reduce(4 << 20, Algorithm::Tree, ProtocolId::Simple);
    let of = |seed| {
        let options = Options { seed, skew_us: 20.0, ..Options::default() };
        cluster.simulate(&call, &options).unwrap()
    };
    assert_eq!(of(7), of(7));
    assert_ne!(of(7).time_us, of(8).time_us);
    assert!(of(7).time_us > run(&cluster, &call).time_us, "late ranks make a call longer");
}

#[test]
fn all_collectives_with_steps_are_simulated() {
    let cluster = cluster(&host("dgx-a100.xml"), 3, "rail", &[], &[]);
    for (collective, ways) in [
        (
            Collective::AllReduce,
            &[
                Algorithm::Ring,
                Algorithm::Tree,
                Algorithm::Chain,
                Algorithm::Doubling,
                Algorithm::Hierarchical,
            ][..],
        ),
        (Collective::Barrier, &[Algorithm::Ring, Algorithm::Tree]),
        (Collective::AllGather, &[Algorithm::Ring, Algorithm::Bruck]),
        (Collective::ReduceScatter, &[Algorithm::Ring, Algorithm::Bruck, Algorithm::Chain]),
        (Collective::Broadcast, &[Algorithm::Ring, Algorithm::Tree]),
        (Collective::Reduce, &[Algorithm::Ring, Algorithm::Tree, Algorithm::Chain]),
    ] {
        for &algorithm in ways {
            for &protocol in ProtocolId::ALL {
                // Bruck's chunks are small: it is for few bytes.
                let most = if algorithm == Algorithm::Bruck { 64 << 10 } else { 3 << 20 };
                for bytes in [1u64, 1000, most] {
                    let (algorithm, protocol) = (Some(algorithm), Some(protocol));
                    let call = Call { collective, bytes, algorithm, protocol };
                    let outcome = cluster.simulate(&call, &Options::default()).unwrap();
                    let last = outcome.finish_us.iter().copied().fold(0.0, f64::max);
                    assert!(outcome.time_us.is_finite() && outcome.time_us > 0.0, "{call:?}");
                    assert_eq!(outcome.time_us, last);
                    assert!(outcome.time_us >= outcome.bound_us, "{call:?}: faster than its links");
                }
            }
        }
    }
}

#[test]
fn what_has_no_steps_is_refused_with_the_reason() {
    let one = cluster(&host("hgx-h100.xml"), 1, "rail", &[], &[]);
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Direct, Algorithm::Nvls] {
        let call = Call { protocol: None, ..all_reduce(8, algorithm, ProtocolId::Simple) };
        let error = one.simulate(&call, &Options::default()).unwrap_err();
        assert!(matches!(error, SimulateError::CannotBeHad { .. }), "{algorithm}: {error}");
        assert!(error.to_string().contains("no steps"), "{algorithm}: {error}");
    }
    let call = Call {
        collective: Collective::AllGather,
        ..all_reduce(8, Algorithm::Tree, ProtocolId::Ll)
    };
    let error = one.simulate(&call, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("no Tree does all_gather"), "{error}");
    let hosts = cluster(&host("hgx-h100.xml"), 2, "rail", &[], &[]);
    let call =
        Call { protocol: None, ..all_reduce(8, Algorithm::CollnetDirect, ProtocolId::Simple) };
    let error = hosts.simulate(&call, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("no network that reduces"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Less bandwidth makes no call quicker: neither of one link nor of the network.
    #[test]
    fn a_call_is_monotone_in_bandwidth(
        hosts in 2u32..7,
        gpus in 1usize..5,
        bytes in 1u64..8_000_000,
        ring in any::<bool>(),
        protocol in 0usize..3,
        part in 0.05f64..1.0,
        at in any::<u32>(),
    ) {
        // Rings through one channel have no queues in which the order of messages could turn round.
        let system = with_gpus(&host("dgx-a100.xml"), gpus);
        let settings: &[(&str, &str)] = &[("NCCL_MAX_NCHANNELS", "1")];
        let algorithm = if ring { Algorithm::Ring } else { Algorithm::Tree };
        let call = all_reduce(bytes, algorithm, ProtocolId::ALL[protocol]);
        let healthy = run(&cluster(&system, hosts, "rail", settings, &[]), &call);
        let fault = Fault::SlowLink { host: at % hosts, port: at % 8, part };
        let slow = run(&cluster(&system, hosts, "rail", settings, &[fault]), &call);
        let least = healthy.time_us * if ring { 1.0 - 1e-9 } else { 0.98 };
        prop_assert!(slow.time_us >= least, "{} us, and {} us with {fault}", healthy.time_us, slow.time_us);
    }

    /// More bytes take no less time, with one protocol and one channel.
    #[test]
    fn a_call_is_monotone_in_its_bytes(hosts in 1u32..5, bytes in 16u64..4_000_000, more in 1u64..1_000_000) {
        let cluster = cluster(&host("dgx-a100.xml"), hosts, "rail", &[("NCCL_MAX_NCHANNELS", "1")], &[]);
        let of = |bytes| run(&cluster, &all_reduce(bytes, Algorithm::Ring, ProtocolId::Simple)).time_us;
        let (less, more) = (of(bytes), of(bytes + more));
        // How a last round is cut may save a little.
        prop_assert!(more >= 0.97 * less, "{less} us for {bytes} bytes, and {more} us for more");
    }
}

/// With two slots a sender waits for credit after each step; slots are as large in both clusters.
#[test]
fn a_sender_waits_for_credit() {
    let system = with_gpus(&host("hgx-h100.xml"), 4);
    let time = |slots: &str, bytes: &str| {
        let settings =
            [("NCCL_MAX_NCHANNELS", "1"), ("FERROCCL_SLOTS", slots), ("NCCL_BUFFSIZE", bytes)];
        let call = Call {
            collective: Collective::Broadcast,
            ..all_reduce(4 << 20, Algorithm::Ring, ProtocolId::Simple)
        };
        run(&cluster(&system, 1, "rail", &settings, &[]), &call).time_us
    };
    let (few, many) = (time("2", "131072"), time("8", "524288"));
    assert!(few > 1.2 * many, "{few} us with 2 slots, {many} us with 8");
}

//! The coarse ways against the exact one, where both can be had.

use ferroccl::{Algorithm, ProtocolId};
use ferroccl_simulator::{Call, Cluster, Detail, Options};

use crate::support::{all_reduce, cluster, host, run};

fn coarse(cluster: &Cluster, call: &Call) -> (f64, Detail) {
    let options = Options { exact_steps: 1, ..Options::default() };
    let outcome = cluster.simulate(call, &options).unwrap();
    (outcome.time_us, outcome.details[0])
}

#[test]
fn a_folded_ring_is_the_whole_one() {
    for file in ["dgx-a100.xml", "hgx-h100.xml"] {
        let cluster = cluster(&host(file), 8, "rail", &[], &[]);
        for (bytes, protocol) in [
            (8u64, ProtocolId::Ll),
            (1 << 20, ProtocolId::Ll128),
            (64 << 20, ProtocolId::Simple),
            (512 << 20, ProtocolId::Simple),
        ] {
            let call = all_reduce(bytes, Algorithm::Ring, protocol);
            let exact = run(&cluster, &call);
            let (time, detail) = coarse(&cluster, &call);
            println!(
                "{file}, {bytes} B: {:.2} us step by step, {time:.2} us folded",
                exact.time_us
            );
            assert!(matches!(detail, Detail::Folded { of: 8, .. }), "{detail:?}");
            assert!(
                (-0.01..0.2).contains(&(time / exact.time_us - 1.0)),
                "{file}, {bytes} B: {time} {}",
                exact.time_us
            );
        }
    }
}

#[test]
fn trees_on_shares_of_links_are_near_to_trees_in_queues() {
    for file in ["dgx-a100.xml", "hgx-h100.xml"] {
        let cluster = cluster(&host(file), 16, "rail", &[], &[]);
        for (bytes, protocol) in [
            (8u64, ProtocolId::Ll),
            (1 << 20, ProtocolId::Ll128),
            (64 << 20, ProtocolId::Simple),
            (256 << 20, ProtocolId::Simple),
        ] {
            let call = all_reduce(bytes, Algorithm::Tree, protocol);
            let exact = run(&cluster, &call);
            let (time, detail) = coarse(&cluster, &call);
            println!(
                "{file}, {bytes} B: {:.2} us step by step, {time:.2} us on shares",
                exact.time_us
            );
            if bytes > 8 {
                assert!(matches!(detail, Detail::Shares { channels: 2, .. }), "{detail:?}");
            }
            assert!(
                (time / exact.time_us - 1.0).abs() < 0.25,
                "{file}, {bytes} B: {time} {}",
                exact.time_us
            );
        }
    }
}

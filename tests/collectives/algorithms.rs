//! Every collective by every algorithm and protocol, on communicators of all sizes, in the default set-up and in a
//! hostile one: 2 slots of the smallest size, 3 channels. An algorithm and a number of ranks are in one of the two, and in both in the nightly
//! tier. What is checked is in `team`.
//!
//! Types and operators are the business of `conformance.rs`; here elements are `u32`.

use std::sync::Arc;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime};
use ferroccl::{Algorithm, CommConfig, Device, ProtocolId};

use crate::random::Random;
use crate::reductions::knows;
use crate::team::{COUNTS, team, team_on};
use crate::tier;

/// For small slots. The largest goes around them fifty times; that of [`COUNTS`] would do so two hundred times, and take as much longer.
const HOSTILE_COUNTS: [usize; 8] = [0, 1, 2, 7, 33, 1000, 4099, 20_011];

/// Each with the sizes of calls.
fn configs(protocol: ProtocolId) -> [(CommConfig, &'static str, &'static [usize]); 2] {
    let mut usual = CommConfig::default();
    usual.protocol = Some(protocol);
    let mut hostile = usual.clone();
    hostile.slots = Some(2);
    hostile.buffer_bytes = [Some(512); 3];
    hostile.channels = Some(3);
    [(usual, "usual", &COUNTS), (hostile, "hostile", &HOSTILE_COUNTS)]
}

const ALGORITHMS: [Algorithm; 11] = [
    Algorithm::Ring,
    Algorithm::Tree,
    Algorithm::OneShot,
    Algorithm::TwoShot,
    Algorithm::Direct,
    Algorithm::Nvls,
    Algorithm::Bruck,
    Algorithm::Chain,
    Algorithm::Doubling,
    Algorithm::Linear,
    Algorithm::Hierarchical,
];

fn every_algorithm(protocol: ProtocolId) {
    let seed = 0x5EED + protocol.index() as u64;
    println!("seed {seed:#x}");
    for (i, n) in [1, 2, 3, 4, 7].into_iter().enumerate() {
        for algorithm in ALGORITHMS.into_iter().filter(|a| knows(*a, protocol)) {
            for (variant, (mut config, name, counts)) in configs(protocol).into_iter().enumerate() {
                if !tier::takes(i + algorithm.index() + protocol.index(), variant) {
                    continue;
                }
                config.algorithm = Some(algorithm);
                let name = format!("{algorithm}, {protocol}, {name}");
                team(&config, n, &name).collectives(seed, counts);
                if matches!(algorithm, Algorithm::Hierarchical | Algorithm::Tree) && n > 2 {
                    config.ranks_per_node = Some(2);
                    team(&config, n, &format!("{name}, 2 a node")).collectives(seed, counts);
                }
            }
        }
    }
}

#[test]
fn every_algorithm_with_simple() {
    every_algorithm(ProtocolId::Simple);
}

#[test]
fn every_algorithm_with_ll() {
    every_algorithm(ProtocolId::Ll);
}

#[test]
fn every_algorithm_with_ll128() {
    every_algorithm(ProtocolId::Ll128);
}

#[test]
fn messages() {
    for &protocol in ProtocolId::ALL {
        for n in [1, 2, 3, 5, 8] {
            for (config, name, counts) in configs(protocol) {
                team(&config, n, &format!("{protocol}, {name}")).messages(7, counts);
            }
        }
    }
}

/// Slots that hold one chunk and a half.
#[test]
fn three_slots() {
    for &protocol in ProtocolId::ALL {
        for algorithm in ALGORITHMS.into_iter().filter(|a| knows(*a, protocol)) {
            let mut config = CommConfig::default();
            config.protocol = Some(protocol);
            config.algorithm = Some(algorithm);
            config.slots = Some(3);
            config.buffer_bytes = [Some(3 * 256); 3];
            team(&config, 4, &format!("{algorithm}, {protocol}, three slots"))
                .collectives(3, &COUNTS[..6]);
        }
    }
}

/// Every algorithm and protocol under schedules and a memory that are as unhelpful as the rules allow; `FERROCCL_TEST_SEEDS=N` has more
/// of them.
#[test]
fn under_adversity() {
    let seeds = std::env::var("FERROCCL_TEST_SEEDS")
        .map_or(tier::seeds(4, 8), |seeds| seeds.parse().unwrap());
    for &protocol in ProtocolId::ALL {
        for algorithm in ALGORITHMS.into_iter().filter(|a| knows(*a, protocol)) {
            for seed in 0..seeds {
                let device = Device::new(Arc::new(CpuRuntime::seeded(Adversity::new(seed))));
                let mut config = CommConfig::default();
                config.protocol = Some(protocol);
                config.algorithm = Some(algorithm);
                config.slots = Some(2 + seed as u32 % 3);
                config.buffer_bytes = [Some(1024); 3];
                config.channels = Some(1 + seed as u32 % 2);
                if algorithm == Algorithm::Hierarchical || seed % 4 == 3 {
                    config.ranks_per_node = Some(2);
                }
                let n = 2 + seed as u32 % 4;
                let name = format!("{algorithm}, {protocol}, seed {seed}");
                let team = team_on(device, &config, n, &name);
                team.collectives(seed, &[0, 1, 40, 301]);
                team.messages(seed, &[0, 3, 150]);
            }
        }
    }
}

/// What is kept from call to call: no step is lost between algorithms that use the same connections.
#[test]
fn one_communicator_after_the_other() {
    let mut random = Random(11);
    for &protocol in ProtocolId::ALL {
        let mut config = CommConfig::default();
        config.protocol = Some(protocol);
        config.slots = Some(2);
        config.buffer_bytes = [Some(512); 3];
        // Steps that begin just before LL's flags repeat.
        config.first_step = (1 << 31) - 20;
        let team = team(&config, 4, &format!("{protocol}, late steps"));
        for _ in 0..3 {
            team.collectives(random.next(), &COUNTS[..5]);
            team.messages(random.next(), &COUNTS[..5]);
        }
    }
}

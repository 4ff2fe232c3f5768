//! Packets of a user's kernel, under a scheduler and a memory that are as unhelpful as the rules allow, and in every way.

use std::sync::Arc;
use std::time::Duration;

use ferroccl::runtime::cpu::{Adversity, CpuRuntime, ModelCheck, Violation};
use ferroccl::{CommConfig, Device};

use crate::packets::EXCHANGE;
use crate::packets_run;
use crate::random::Random;

const SEEDS: u64 = 200;

fn run(seed: u64, places: usize) -> Result<(), String> {
    let mut random = Random(seed);
    let adversity = Adversity { races: true, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let devices = vec![Device::new(runtime.clone()); 1 + random.below(4)];
    let (blocks, rounds) = (1 + random.below(3) as u32, 1 + random.below(5));
    let count = [0, 1, 2, 3, random.below(90)][random.below(5)];
    let size = (blocks, count, rounds);
    packets_run::run(&devices, &EXCHANGE, size, (2, places), &CommConfig::default())?;
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn exchanges_survive() {
    ferroccl::conformance::seeds(SEEDS, |seed| run(seed, 2));
}

/// Packets are written over that nobody has read.
#[test]
fn one_place_is_not_enough() {
    let found = (0..SEEDS).find_map(|seed| Some((seed, run(seed, 1).err()?)));
    println!("{found:?}");
    let (_, wrong) = found.expect("no seed notices that there is one place");
    assert!(wrong.contains(", not ") || wrong.contains("deadlock"), "{wrong}");
}

fn every_way(ranks: usize, rounds: usize, places: usize) -> Option<Violation> {
    let runtime = Arc::new(CpuRuntime::model_checked(ModelCheck::default()));
    let devices = vec![Device::new(runtime.clone()); ranks];
    let size = (1, 3, rounds);
    let ended = packets_run::run(&devices, &EXCHANGE, size, (1, places), &CommConfig::default());
    let (checked, wrong) = (runtime.checked(), runtime.wrong());
    println!("{ranks} ranks, {rounds} rounds, {places} places: {checked:?}, {wrong:?}");
    if wrong.is_none() {
        ended.unwrap();
        assert!(checked.complete && checked.executions > 0, "{checked:?}");
    }
    wrong
}

#[test]
fn exchanges_are_right_in_every_way() {
    for (ranks, rounds) in [(2, 1), (2, 3), (2, 4), (3, 1)] {
        assert_eq!(every_way(ranks, rounds, 2), None);
    }
    assert!(every_way(2, 3, 1).is_some());
}

/// Who waits for packets that do not come gives up in time, and says for whose.
#[test]
fn a_rank_that_does_not_come_is_named() {
    let mut config = CommConfig::default();
    config.timeout = Some(Duration::from_millis(200));
    let devices = [Device::cpu(), Device::cpu()];
    // Its kernel is launched on the first rank alone.
    let error = packets_run::alone(&devices, &EXCHANGE, &config);
    let wanted = "timeout: rank 0 channel 0 step 1 waited for an LL line (both flags) of rank 1";
    assert!(error.contains(wanted), "{error}");
}

//! A user's kernel on a device communicator, under a scheduler and a memory that are as unhelpful as the rules allow.
//!
//! A failing seed is printed; `FERROCCL_SEED=n` runs that one alone.

use std::sync::Arc;

use ferroccl::Device;
use ferroccl::device::orders::{self, Published, Side};
use ferroccl::runtime::cpu::{Adversity, CpuRuntime, ModelCheck, Violation};

use crate::random::Random;
use crate::rounds::ROUNDS;
use crate::rounds_run;
use crate::tier;

const SEEDS: u64 = 400;

fn run(seed: u64, weaken: Option<(Published, Side)>) -> Result<(), String> {
    let mut random = Random(seed);
    let adversity = Adversity { races: true, weaken, ..Adversity::new(seed) };
    let runtime = Arc::new(CpuRuntime::seeded(adversity));
    let devices = vec![Device::new(runtime.clone()); 1 + random.below(5)];
    let (blocks, rounds) = (1 + random.below(3) as u32, 1 + random.below(4));
    let count = [0, 1, 2, random.below(40), random.below(300)][random.below(5)];
    rounds_run::run(&devices, &ROUNDS, (blocks, count, rounds), 2)?;
    runtime.race().map_or(Ok(()), Err)
}

#[test]
fn rounds_survive() {
    for seed in tier::survived(SEEDS) {
        if let Err(wrong) = run(seed, None) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn every_weakened_order_is_caught() {
    for word in [orders::BARRIER, orders::SIGNAL] {
        for side in [Side::Release, Side::Acquire] {
            let caught =
                (0..SEEDS).find_map(|seed| Some((seed, run(seed, Some((word, side))).err()?)));
            println!("{} {side:?}: {caught:?}", word.name());
            assert!(caught.is_some(), "no seed below {SEEDS} notices {} {side:?}", word.name());
        }
    }
}

/// Rounds of two elements, of one block a rank, in every way that they can go; what is wrong, if anything is.
fn every_way(ranks: usize, rounds: usize, weaken: Option<(Published, Side)>) -> Option<Violation> {
    let mut config = ModelCheck::default();
    config.weaken = weaken;
    let runtime = Arc::new(CpuRuntime::model_checked(config));
    let ended =
        rounds_run::run(&vec![Device::new(runtime.clone()); ranks], &ROUNDS, (1, 2, rounds), 1);
    let (checked, wrong) = (runtime.checked(), runtime.wrong());
    println!("{ranks} ranks, {rounds} rounds, {weaken:?}: {checked:?}, {wrong:?}");
    if wrong.is_none() {
        ended.unwrap();
        assert!(checked.complete && checked.executions > 0, "{checked:?}");
    }
    wrong
}

#[test]
fn rounds_are_right_in_every_way() {
    for (ranks, rounds) in [(2, 1), (2, 2), (2, 3), (3, 1)] {
        assert_eq!(every_way(ranks, rounds, None), None);
    }
}

#[test]
fn every_weakened_order_has_a_counterexample() {
    for word in [orders::BARRIER, orders::SIGNAL] {
        for side in [Side::Release, Side::Acquire] {
            let wrong = every_way(2, 1, Some((word, side)));
            assert!(
                matches!(wrong, Some(Violation::Race(_))),
                "{} {side:?}: {wrong:?}",
                word.name()
            );
        }
    }
}

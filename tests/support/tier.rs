//! How much of a long test runs: all in the nightly tier, samples else.
#![allow(dead_code, reason = "each test binary uses its part")]

/// Whether everything is to run (`FERROCCL_TEST_TIER=nightly`).
pub(crate) fn is_nightly() -> bool {
    std::env::var_os("FERROCCL_TEST_TIER").is_some_and(|tier| tier == "nightly")
}

/// Whether a case runs with a variant, both by number: each case with every second variant, and each variant with every second case, unless
/// everything is to run.
pub(crate) fn takes(case: usize, variant: usize) -> bool {
    is_nightly() || (case + variant).is_multiple_of(2)
}

/// `all`, or so many of them.
pub(crate) fn seeds(some: u64, all: u64) -> u64 {
    if is_nightly() { all } else { some }
}

/// The seed that `FERROCCL_SEED` names, with which alone a seeded test is to run.
pub(crate) fn seed() -> Option<u64> {
    let seed = std::env::var("FERROCCL_SEED").ok()?;
    let number = seed.parse().ok().filter(|seed| *seed < u64::MAX);
    Some(number.unwrap_or_else(|| panic!("FERROCCL_SEED={seed:?} is no seed: they are numbers")))
}

/// The one seed that is named, or else all of these.
pub(crate) fn named_or(all: std::ops::Range<u64>) -> std::ops::Range<u64> {
    seed().map_or(all, |seed| seed..seed + 1)
}

/// The seeds that a test is to survive: the one that is named, or else a third of so many, or all of them.
pub(crate) fn survived(all: u64) -> std::ops::Range<u64> {
    named_or(0..seeds(all / 3, all))
}

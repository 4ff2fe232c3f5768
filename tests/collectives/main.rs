//! Collectives on the CPU runtime: results, whatever the algorithm, protocol, type, operator, count and channels.

mod algorithms;
mod channel_count;
mod chunking;
mod conformance;
mod deterministic;
mod huge;
mod random_programs;
mod special_values;
mod windows;

#[path = "../support/again.rs"]
mod again;
#[path = "../support/random.rs"]
mod random;
#[path = "../support/reductions.rs"]
mod reductions;
#[path = "../support/team.rs"]
mod team;
#[path = "../support/tier.rs"]
mod tier;
#[path = "../support/values.rs"]
mod values;

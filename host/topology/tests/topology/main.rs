//! Topologies: files and machines that are read, paths, channels that are searched for, and how hosts are joined.

mod choices;
mod detect;
mod files;
mod graphs;
mod merge;
mod systems;
mod xml;

#[path = "../../../../tests/support/again.rs"]
mod again;
#[path = "../../../../tests/support/random.rs"]
mod random;

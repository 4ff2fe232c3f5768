//! The collectives, written in verbs: each reads like its algorithm.

mod all_reduce;
pub mod chunks;

pub use all_reduce::ring_all_reduce;

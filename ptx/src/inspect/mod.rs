//! What a person wants to know of a kernel, as pure functions over the tree: where its instructions come
//! from, what they are, what they do to memory, loop by loop; and two kernels side by side.
//!
//! It reads text. What the hardware makes of it (registers, spills, the order of instructions) is `ptxas`'s to
//! say; how often a loop runs and which way lanes go, nobody's here. All results can be serialized.

mod compare;
pub mod draw;
mod flight;
mod lines;
mod stats;
mod style;
#[cfg(test)]
mod tests;

pub use compare::{Change, Difference, Listing, differences};
pub use flight::{Flight, flight};
pub use lines::{Call, Lines, Place};
pub use stats::{AccessCount, Bytes, Count, FenceCount, LoopStats, Stats, registers, stats};
pub use style::{Style, styled};

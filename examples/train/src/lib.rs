//! Data-parallel training with candle over FerroCCL: see README.md.

pub mod digits;
pub mod gradients;
pub mod host_memory;
pub mod network;

//! The emulator: kernels run warp by warp, 32 lanes at a time.

pub mod alu;

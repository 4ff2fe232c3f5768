//! The emulator on small kernels: what warps do, what memory may do, and what is found out.

mod asynchronous;
mod checks;
mod clock;
mod cuda;
mod hostile;
mod literature;
mod litmus;
mod litmus_text;
mod machine;
mod multicast;
mod published;
#[path = "../instructions/rng.rs"]
#[allow(dead_code, reason = "shared with the tests of instructions")]
mod rng;
mod support;
mod warps;

//! The emulator on small kernels: what warps do, what memory may do, and what is found out.

mod checks;
mod litmus;
mod machine;
mod support;
mod warps;

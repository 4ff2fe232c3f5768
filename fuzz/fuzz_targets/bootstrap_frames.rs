//! Frames of the bootstrap, with and without right seals.
#![no_main]

ferroccl_fuzz::target!(ferroccl_bootstrap::fuzz::frames);

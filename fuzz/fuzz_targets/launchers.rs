//! What launchers set.
#![no_main]

ferroccl_fuzz::target!(ferroccl::fuzz::launchers);

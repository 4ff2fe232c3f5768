//! Graph files.
#![no_main]

ferroccl_fuzz::target!(ferroccl_topology::fuzz::graphs);

//! Names of variables.
#![no_main]

ferroccl_fuzz::target!(ferroccl::fuzz::names);

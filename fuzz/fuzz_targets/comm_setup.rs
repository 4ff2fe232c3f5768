//! The JSON that ranks exchange.
#![no_main]

ferroccl_fuzz::target!(ferroccl::fuzz::setup);

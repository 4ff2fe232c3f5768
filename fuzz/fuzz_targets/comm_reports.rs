//! Reports of calls, news of failures, signatures.
#![no_main]

ferroccl_fuzz::target!(ferroccl::fuzz::reports);

//! The first message of a connection, handles and subjects.
#![no_main]

ferroccl_fuzz::target!(ferroccl_proxy::fuzz::hellos);

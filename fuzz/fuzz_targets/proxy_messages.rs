//! Messages over sockets.
#![no_main]

ferroccl_fuzz::target!(ferroccl_proxy::fuzz::messages);

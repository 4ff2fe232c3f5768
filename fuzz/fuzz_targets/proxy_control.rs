//! The control socket of a connection over verbs.
#![no_main]

ferroccl_fuzz::target!(ferroccl_proxy::fuzz::control);

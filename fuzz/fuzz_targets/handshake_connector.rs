//! What an acceptor answers to a connector, in pieces.
#![no_main]

ferroccl_fuzz::target!(ferroccl_handshake::fuzz::connector);

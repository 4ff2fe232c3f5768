//! What a connector says to an acceptor, in pieces.
#![no_main]

ferroccl_fuzz::target!(ferroccl_handshake::fuzz::acceptor);

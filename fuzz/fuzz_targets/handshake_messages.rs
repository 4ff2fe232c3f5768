//! Hellos, challenges and rejects of the handshake.
#![no_main]

ferroccl_fuzz::target!(ferroccl_handshake::fuzz::messages);

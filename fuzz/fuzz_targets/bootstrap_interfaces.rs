//! NCCL_SOCKET_IFNAME.
#![no_main]

ferroccl_fuzz::target!(ferroccl_bootstrap::fuzz::interfaces);

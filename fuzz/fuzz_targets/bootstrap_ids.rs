//! Unique ids, invitations and NCCL_COMM_ID.
#![no_main]

ferroccl_fuzz::target!(ferroccl_bootstrap::fuzz::ids);

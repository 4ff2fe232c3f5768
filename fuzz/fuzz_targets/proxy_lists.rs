//! NCCL_IB_HCA and FERROCCL_NET_FAULTS.
#![no_main]

ferroccl_fuzz::target!(ferroccl_proxy::fuzz::lists);

//! Bus ids, kinds of paths, sets of cores, --assume, NCCL_ALGO and NCCL_PROTO.
#![no_main]

ferroccl_fuzz::target!(ferroccl_topology::fuzz::words);

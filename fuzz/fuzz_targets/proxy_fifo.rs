//! The FIFO that a receiver writes by RDMA.
#![no_main]

ferroccl_fuzz::target!(ferroccl_proxy::fuzz::fifo);

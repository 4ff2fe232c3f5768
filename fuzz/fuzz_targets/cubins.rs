//! Files of the cache of assembled kernels.
#![no_main]

ferroccl_fuzz::target!(ferroccl::fuzz::cubins);

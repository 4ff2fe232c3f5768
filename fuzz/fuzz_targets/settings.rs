//! All settings.
#![no_main]

ferroccl_fuzz::target!(ferroccl::fuzz::settings);

//! Networks: what each must do, and what the socket network does besides.

mod conformance;
#[path = "../../../tests/support/free_port.rs"]
mod free_port;
mod middleware;
mod socket;
mod strangers;
mod support;
mod virtual_devices;

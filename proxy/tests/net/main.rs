//! Networks: what each must do, and what the socket network does besides.

mod conformance;
mod middleware;
mod socket;
mod strangers;
mod support;

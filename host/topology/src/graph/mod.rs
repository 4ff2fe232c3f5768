//! From a host's paths to the channels of a communicator, and from a call to the way it is done.
//!
//! ```text
//! System, Paths ─► search ─► ChannelGraph (ring, tree, collnet: HostGraphs) of one host ◄─► file
//!                     └─► connect ─► Rings, Trees over all hosts
//!                            └─► tuning ─► algorithm, protocol, channels of a call
//! ```
//!
//! Pure functions, but for [`file::load`]: no I/O, no clock, no random numbers.

mod channels;
pub mod connect;
pub mod file;
mod host;
mod load;
mod nvls;
pub mod search;
pub mod tree;
pub mod tuning;
mod walk;

pub use channels::{ChannelGraph, GraphChannel, GraphId, Pattern};
pub use host::{HostGraphs, NoChannels, SearchSettings};
pub use load::{Limit, feasible_bw, limit, link_loads};
pub use nvls::NvlsHeads;

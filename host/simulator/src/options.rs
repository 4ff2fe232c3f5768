//! What is simulated, and how closely.

use std::fmt;

use ferroccl::{Algorithm, Collective, ProtocolId};

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is called. Where there is a root it is rank 0.
    pub collective: Collective,
    /// Bytes of the largest of a rank's buffers, rounded up to whole floats: of an all-gather and a reduce-scatter those of all ranks
    /// together.
    pub bytes: u64,
    /// The algorithm; `None` leaves it to the tuner.
    pub algorithm: Option<Algorithm>,
    /// The protocol; `None` leaves it to the tuner.
    pub protocol: Option<ProtocolId>,
}

/// How closely a run follows the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Every step of every block of every rank, and every message in the queue of each link that it passes.
    Steps,
    /// Steps of every rank, but of some of the channels only, which stand for the others. A message waits for those of its own
    /// connection alone: of each link a connection has a fixed share, as large as its part of the link's bytes.
    Shares {
        /// The channels that are simulated.
        channels: u32,
        /// Channels of the call.
        of: u32,
    },
    /// Rings around hosts that are all alike: one host, or two, stand for all. What leaves the last one is what comes to the first. Links are
    /// shared as above, and a way through the network takes as long as the mean of all. Each rank of all hosts starts at its own time: a rank
    /// ends a step between hosts too late at most, for what is coarse about late starts.
    Folded {
        /// The hosts that are simulated.
        hosts: u32,
        /// Hosts of the cluster.
        of: u32,
    },
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Detail::Steps => f.write_str("step by step"),
            Detail::Shares { channels, of } => {
                write!(f, "{channels} of {of} channels, fixed shares of links")
            }
            Detail::Folded { hosts, of } => {
                write!(f, "{hosts} of {of} hosts, fixed shares of links")
            }
        }
    }
}

/// How a call is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Steps at most for [`Detail::Steps`]; what has more is simulated more coarsely. Rings from or to a root take up to 20 times as many,
    /// since their channels have the ranks in different orders.
    pub exact_steps: u64,
    /// Steps at most in all.
    pub most_steps: u64,
    /// The mean of the time by which ranks start late, in microseconds: each by an exponential distribution of its own.
    pub skew_us: f64,
    /// What the late starts and the ways through the network are drawn from.
    pub seed: u64,
    /// Steps at most that are kept for a trace; 0 keeps none. Only of [`Detail::Steps`].
    pub trace_steps: usize,
}

impl Default for Options {
    /// 20 million steps one by one, no late starts, seed 0, no trace.
    fn default() -> Self {
        Options {
            exact_steps: 20_000_000,
            most_steps: 6_000_000_000,
            skew_us: 0.0,
            seed: 0,
            trace_steps: 0,
        }
    }
}

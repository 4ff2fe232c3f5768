//! What a host costs that dies: until the ranks that are left have made their next call.
//!
//! ```text
//! noticed     its neighbours in the bootstrap's ring hear nothing of it          the heartbeat's limit, or TCP's
//! told        the news reach all that are left, from both ends of the row        news_hops
//! connected   all that are left connect with the first of them, and in a ring    RING_CONNECTIONS × CONNECT_MESSAGES
//! agreed      the all-gathers in which they make a communicator                  INIT_GATHERS × gather_rounds
//! call        the call on the ranks that are left                                a simulation
//! ```
//!
//! How many messages there are is the library's own ([`ferroccl::bootstrap::rounds`], [`Communicator::INIT_GATHERS`]). Each takes the way
//! through the network and what sockets and threads take ([`SOCKET_US`]). Not counted are the bytes of these messages, what ranks
//! reckon meanwhile (the search, plans), connections that calls make later, and how long a root takes for many ranks at once.

use ferroccl::CommConfig;
use ferroccl::Communicator;
use ferroccl::bootstrap::rounds::{
    CONNECT_MESSAGES, KEEP_ALIVE_LIMIT, RING_CONNECTIONS, gather_rounds, news_hops,
};
use serde::Serialize;

use crate::{Call, Cluster, Options, Outcome, SimulateError};

/// What a message of the bootstrap takes besides the way through the network, in microseconds: two sockets' system calls, and a
/// thread that wakes up. Assumed, and not measured.
pub const SOCKET_US: f64 = 30.0;

/// A part of the time from the death of a host on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecoveryPart {
    /// What happens in it: `noticed`, `told`, `connected` or `agreed`.
    pub name: &'static str,
    /// How long it takes, in microseconds.
    pub us: f64,
    /// How that is reckoned.
    pub how: String,
}

/// What a host costs that dies, as it was simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// Until the ranks that are left have a communicator.
    pub parts: Vec<RecoveryPart>,
    /// Their call.
    pub call: Outcome,
}

impl Recovery {
    /// From the death of the host until the call has ended, in microseconds.
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.parts.iter().map(|part| part.us).sum::<f64>() + self.call.time_us
    }
}

impl Cluster {
    /// What it costs that a host of a cluster dies, of which `self` is what is left.
    ///
    /// # Errors
    /// As [`Cluster::simulate`], and those of the settings.
    pub fn recovery(&self, call: &Call, options: &Options) -> Result<Recovery, SimulateError> {
        Ok(Recovery { parts: self.recovery_parts()?, call: self.simulate(call, options)? })
    }

    /// The parts until the ranks that are left have a communicator.
    ///
    /// # Errors
    /// Those of the settings.
    pub fn recovery_parts(&self) -> Result<Vec<RecoveryPart>, SimulateError> {
        let ranks = self.ranks();
        let message = SOCKET_US + self.longest_way_us();
        let (limit, why) = match CommConfig::heartbeat_of(self.config())? {
            Some(heartbeat) => (heartbeat.limit, "the heartbeat's limit"),
            None => {
                (KEEP_ALIVE_LIMIT, "there is no heartbeat, and TCP's keep-alive is as long as that")
            }
        };
        let seconds = limit.as_secs_f64();
        let part = |name, messages: u32, how: String| RecoveryPart {
            name,
            us: f64::from(messages) * message,
            how: format!("{how}, of {message:.1} us each"),
        };
        let (hops, connect) = (news_hops(ranks), RING_CONNECTIONS * CONNECT_MESSAGES);
        let (gathers, rounds) = (Communicator::INIT_GATHERS, gather_rounds(ranks));
        let noticed = RecoveryPart {
            name: "noticed",
            us: seconds * 1e6,
            how: format!("{seconds:.1} s at most: {why}"),
        };
        Ok(vec![
            noticed,
            part("told", hops, format!("{hops} messages along the row of {ranks} ranks")),
            part(
                "connected",
                connect,
                format!("{connect} messages, to the first rank and to the next one"),
            ),
            part("agreed", gathers * rounds, format!("{gathers} all-gathers of {rounds} rounds")),
        ])
    }
}

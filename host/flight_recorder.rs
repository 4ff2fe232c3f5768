//! What the communicators of a process do, and have done last: for who looks at a job from outside.
//!
//! Each communicator remembers its last 128 calls (PyTorch calls such a record a flight recorder). With where its blocks and
//! connections are, they can be had in three ways:
//!
//! ```text
//! ferroccl status [PID]        asks a process of the same user by a socket                 (`query`)
//! FERROCCL_DUMP_FILE           a file, when a communicator fails or FERROCCL_DUMP_SIGNAL comes
//! a program's own code         `ProcessRecord::here`
//! ```
//!
//! The files are JSON, and [Perfetto](https://ui.perfetto.dev) opens them as traces: [`trace`] has their form. The numbers
//! are in memory anyway; nothing is written down for who does not ask.

mod dump;
mod socket;
pub mod trace;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::comm;

pub use dump::DumpSignal;
pub(crate) use dump::{DumpFile, on_failure, watch_signal};
pub use socket::{QueryError, processes, query};
pub(crate) use socket::{close_unless, serve};

/// The communicators of a process, at one moment. Times are nanoseconds since 1970, by the process's own clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// The host's name.
    pub host: String,
    /// The process, as it numbers itself.
    pub pid: u32,
    /// What it was started as.
    pub program: String,
    /// When this was looked at.
    pub time_ns: u64,
    /// Its communicators: an element for each rank.
    pub communicators: Vec<CommRecord>,
}

/// One rank of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommRecord {
    /// What all ranks of the communicator have in common: a random number, in hexadecimal.
    pub id: String,
    /// The rank.
    pub rank: u32,
    /// The communicator's ranks.
    pub ranks: u32,
    /// The name of the runtime that it is on.
    pub runtime: String,
    /// The failure, where it has failed.
    pub failure: Option<String>,
    /// The number of the last collective that it has entered; 0 for none.
    pub entered: u64,
    /// The number of the first collective that it has entered and not ended. It may be no longer among `calls`.
    pub pending: Option<u64>,
    /// The calls that are remembered, the oldest first.
    pub calls: Vec<CallRecord>,
    /// The connections that have moved data.
    pub connections: Vec<ConnectionRecord>,
    /// What blocks wait for. GPUs and the emulator do not tell.
    pub waits: Vec<WaitRecord>,
    /// Who has not entered the first call that any rank waits in; `None` where nobody is known to hold up a call, and in a
    /// file.
    pub held_up_by: Option<String>,
}

/// A call, or messages that were sent and received together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// Its number among the communicator's collectives, from 1; `None` for messages.
    pub number: Option<u64>,
    /// What was called, in words.
    pub call: String,
    /// The collective's name, as `all_reduce`.
    pub collective: String,
    /// The algorithm and protocol that run; `None` for messages.
    pub plan: Option<String>,
    /// Its channels; 0 for messages.
    pub channels: u32,
    /// What tells its stream from others of the process.
    pub stream: u64,
    /// When it was made.
    pub entered_ns: u64,
    /// When its first kernel came to the head of its stream; `None` where that is yet to come, and on GPUs.
    pub started_ns: Option<u64>,
    /// When its last kernel ended.
    pub ended_ns: Option<u64>,
    /// Whether it has gone into a graph, whose replays are not recorded.
    pub in_graph: bool,
}

/// The two connections with a peer on one channel: how many steps they have moved since the communicator was made. A step
/// is the filling of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// The rank at the other end.
    pub peer: u32,
    /// The channel.
    pub channel: u32,
    /// Whether they are the connections of sends and receives.
    pub messages: bool,
    /// Steps published to the peer. LL and LL128 publish with the data: their steps count when they are acknowledged.
    pub sent: u64,
    /// Steps that the peer has taken, as far as it has said so: in LL128 and Simple it does for half of the slots at a time.
    pub acknowledged: u64,
    /// Steps that the peer has published, as far as is known: as `sent`.
    pub arrived: u64,
    /// Steps that this rank has taken, as far as it has said so.
    pub received: u64,
}

/// A block that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitRecord {
    /// The block's channel.
    pub channel: u32,
    /// Its kernel.
    pub kernel: String,
    /// The rank that it waits for.
    pub peer: u32,
    /// The step that it waits for.
    pub step: u64,
    /// The condition, in words.
    pub what: String,
}

impl ProcessRecord {
    /// The communicators of this process, now. A fork has none of its parent's.
    ///
    /// ```
    /// use ferroccl::flight_recorder::ProcessRecord;
    /// use ferroccl::{Communicator, Device, group};
    ///
    /// let ranks = Communicator::init_all(&Device::cpu(), 2)?;
    /// let stream = ranks[0].device().stream()?;
    /// group(|| ranks.iter().try_for_each(|rank| rank.barrier(&stream)))?;
    /// stream.synchronize()?;
    /// let record = ProcessRecord::here();
    /// assert_eq!(record.communicators[1].calls[0].collective, "barrier");
    /// # Ok::<(), ferroccl::Error>(())
    /// ```
    #[must_use]
    pub fn here() -> Self {
        Self::look(None)
    }

    /// The same, and who holds up calls: other ranks are asked, and waited for so long.
    #[must_use]
    pub fn ask(patience: Duration) -> Self {
        Self::look(Some(patience))
    }

    fn look(patience: Option<Duration>) -> Self {
        let communicators = comm::records(patience);
        ProcessRecord {
            host: crate::log::host_name(),
            pid: std::process::id(),
            program: program(),
            time_ns: comm::unix_now(),
            communicators,
        }
    }
}

/// What this process was started as.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().map(|name| name.to_string_lossy());
    name.unwrap_or_default().into_owned()
}

//! What can go wrong, as values: kind, what, where, source.

use std::io;
use std::sync::Arc;

use ferroccl_bootstrap::BootstrapError;
use ferroccl_device::abi::{Fault, FaultKind, NO_RANK, ProtocolId, WaitKind};
use ferroccl_topology::TopologyError;
use ferroccl_topology::graph::file::GraphError;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library. Cheap to clone: one failure is reported on several streams.
///
/// Its `Debug` is its `Display`: `main() -> Result<()>`, `unwrap` and `expect` print `Debug`, and what they print is for whoever
/// runs the program. What it is made of is in its variants. `docs/troubleshooting.md` has causes and remedies.
///
/// ```
/// let error = ferroccl::Error::argument("root", "9 is none of the 4 ranks");
/// assert_eq!(format!("{error:?}"), "invalid argument root: 9 is none of the 4 ranks");
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument of a call makes no sense; nothing was started (NCCL's `ncclInvalidArgument`).
    #[error("invalid argument {argument}: {reason}")]
    InvalidArgument {
        /// The argument's name in the call.
        argument: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting of the environment or of a configuration makes no sense.
    #[error("invalid setting {name}={value}: {reason}")]
    InvalidSetting {
        /// The variable or field.
        name: String,
        /// What it was set to.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The operating system refused (NCCL's `ncclSystemError`).
    #[error("{what}: {source}")]
    System {
        /// What was tried, with its object.
        what: String,
        /// Why it failed.
        #[source]
        source: Arc<io::Error>,
    },
    /// Ranks could not find each other, or a message between them made no sense.
    #[error("bootstrap: {0}")]
    Bootstrap(BootstrapError),
    /// The machine's topology cannot be found, read or written.
    #[error("topology: {0}")]
    Topology(Arc<TopologyError>),
    /// The machine has no channels, or they cannot be read or written.
    #[error("channels: {0}")]
    Graph(Arc<GraphError>),
    /// A network failed.
    #[error("network {0}")]
    Network(Arc<ferroccl_proxy::NetError>),
    /// A peer is gone (NCCL's `ncclRemoteError`).
    #[error("rank {rank}: lost rank {peer}: {reason}")]
    PeerLost {
        /// The rank that noticed.
        rank: u32,
        /// The rank that is gone.
        peer: u32,
        /// How it was noticed.
        reason: String,
    },
    /// A call has waited for as long as calls may, because ranks have not entered it. All ranks name the same ones.
    #[error("timeout: {reason}")]
    Timeout {
        /// The ranks that have not entered it.
        ranks: Vec<u32>,
        /// The call, and the last call of each of the ranks.
        reason: String,
    },
    /// A call of CUDA's driver failed, or a kernel did what it may not, and the context is lost
    /// ([`CudaError::is_sticky`](crate::runtime::cuda::CudaError::is_sticky)).
    #[cfg(feature = "cuda")]
    #[error("{0}")]
    Cuda(#[from] crate::runtime::cuda::CudaError),
    /// A kernel gave up (see [`KernelFault`]).
    #[error("{0}")]
    Kernel(Arc<KernelFault>),
    /// A kernel did what no GPU lets it do, or its schedule can never go on: found by the PTX emulator. All
    /// streams whose kernels it has stopped report the same.
    #[cfg(feature = "emulator")]
    #[error("{0}")]
    Emulator(Arc<ferroccl_ptx::emu::Fault>),
    /// The communicator was aborted, or has failed before.
    #[error("communicator of rank {rank} is aborted: {cause}")]
    Aborted {
        /// This rank.
        rank: u32,
        /// The first cause.
        cause: String,
    },
    /// The communicator was revoked ([`Communicator::revoke`](crate::Communicator::revoke)): no call of it runs any more, and
    /// none can be made.
    #[error("communicator of rank {rank} was revoked by rank {by}")]
    Revoked {
        /// This rank.
        rank: u32,
        /// The rank that has revoked it.
        by: u32,
    },
    /// A kernel panicked: a broken invariant of the library.
    #[error("kernel {kernel} panicked: {message}")]
    Panicked {
        /// The kernel.
        kernel: String,
        /// The panic's message.
        message: String,
    },
    /// The machine or this build lacks something.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why it cannot be had, and how to get it.
        reason: String,
    },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// An [`Error::System`] from an operating-system error.
    pub fn system(what: impl Into<String>, source: io::Error) -> Self {
        Error::System { what: what.into(), source: Arc::new(source) }
    }

    /// An [`Error::System`] from `errno`.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::system(what, io::Error::last_os_error())
    }

    /// An [`Error::Bootstrap`] about what a member of the group sent.
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        BootstrapError::Malformed(what.into()).into()
    }

    /// The ranks that this error blames: those that are lost, or that have not made a call. Empty where no rank is to blame, or
    /// the error does not say. After a failure [`Communicator::async_error`](crate::Communicator::async_error) has the error
    /// that does, and [`Communicator::shrink`](crate::Communicator::shrink) goes on without them.
    ///
    /// ```
    /// let lost = ferroccl::Error::PeerLost { rank: 0, peer: 3, reason: "its process has ended".into() };
    /// assert_eq!(lost.blamed_ranks(), [3]);
    /// ```
    #[must_use]
    pub fn blamed_ranks(&self) -> Vec<u32> {
        match self {
            Error::PeerLost { peer, .. } => vec![*peer],
            Error::Timeout { ranks, .. } => ranks.clone(),
            Error::Kernel(fault) if FaultKind::from_raw(fault.0.kind) == FaultKind::PeerLost => {
                vec![fault.0.peer]
            }
            _ => Vec::new(),
        }
    }

    /// An [`Error::InvalidArgument`].
    pub fn argument(argument: &'static str, reason: impl Into<String>) -> Self {
        Error::InvalidArgument { argument, reason: reason.into() }
    }
}

/// What every part of the library calls by one name has it here, too; the rest is [`Error::Bootstrap`].
impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::InvalidArgument { argument, reason } => {
                Error::InvalidArgument { argument, reason }
            }
            BootstrapError::System { what, source } => Error::System { what, source },
            BootstrapError::PeerLost { rank, peer, reason } => {
                Error::PeerLost { rank, peer, reason }
            }
            other => Error::Bootstrap(other),
        }
    }
}

// Shared, so that the error stays small: it is part of every result.
impl From<TopologyError> for Error {
    fn from(error: TopologyError) -> Self {
        Error::Topology(Arc::new(error))
    }
}

impl From<ferroccl_proxy::NetError> for Error {
    fn from(error: ferroccl_proxy::NetError) -> Self {
        Error::Network(Arc::new(error))
    }
}

impl From<ferroccl_plugin::LoadError> for Error {
    fn from(error: ferroccl_plugin::LoadError) -> Self {
        Error::Unavailable { what: error.name, reason: error.reason }
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Self {
        Error::Graph(Arc::new(error))
    }
}

impl From<crate::enqueue::PlanError> for Error {
    fn from(e: crate::enqueue::PlanError) -> Self {
        match e.left_out {
            Some(_) => Error::Unavailable { what: "kernel".to_owned(), reason: e.to_string() },
            // There are kernels, and the settings leave none of them.
            None if e.choice.is_none() && e.has_kernels => Error::Unavailable {
                what: format!("algorithm for {}", e.call.collective),
                reason: e.to_string(),
            },
            None => Error::argument("op", e.to_string()),
        }
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;

/// A [`Fault`] of a kernel, readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFault(pub Fault);

impl KernelFault {
    /// What kind of fault it is.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        FaultKind::from_raw(self.0.kind)
    }
}

impl std::fmt::Display for KernelFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Fault { rank, peer, channel, step, seq, .. } = self.0;
        let wait = WaitKind::from_raw(self.0.wait).words();
        let of_whom = match peer {
            NO_RANK => "any rank".to_owned(),
            rank => format!("rank {rank}"),
        };
        match self.kind() {
            FaultKind::Mismatch => {
                let (ours, theirs) = crate::enqueue::describe(&self.0.expected, &self.0.found);
                if self.0.expected == self.0.found {
                    return write!(
                        f,
                        "call {seq} differs between ranks: rank {rank} and rank {peer} called {ours}, with buffers \
                         at different places of their windows"
                    );
                }
                write!(
                    f,
                    "call {seq} differs between ranks: rank {rank} called {ours}, rank {peer} called {theirs}"
                )
            }
            FaultKind::Deadlock => write!(
                f,
                "deadlock: rank {rank} channel {channel} step {step} waits for {wait} of {of_whom}, and nothing can move"
            ),
            FaultKind::Timeout => {
                write!(
                    f,
                    "timeout: rank {rank} channel {channel} step {step} waited for {wait} of {of_whom}"
                )
            }
            FaultKind::NoConnection => {
                let protocol = ProtocolId::from_index(step);
                let protocol = protocol.map_or_else(|| step.to_string(), |p| p.to_string());
                let whom = match peer {
                    NO_RANK => "a rank".to_owned(),
                    rank => format!("rank {rank}"),
                };
                write!(
                    f,
                    "rank {rank}: a kernel asked for primitives with {whom} on channel {channel} in {protocol}, for which its device \
                     communicator has no connection: DeviceCommConfig::channels"
                )
            }
            FaultKind::PeerLost if rank == peer => {
                write!(f, "rank {rank} has left the group, after its call {seq}")
            }
            FaultKind::PeerLost => write!(f, "rank {rank} lost rank {peer} in call {seq}"),
            FaultKind::Aborted | FaultKind::None => {
                write!(f, "rank {rank} was aborted in call {seq}")
            }
        }
    }
}
